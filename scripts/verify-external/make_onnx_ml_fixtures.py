#!/usr/bin/env python3
"""Makes the models of formats/onnx/tests/data/ml with operators of `ai.onnx.ml`, and the results of ONNX Runtime.

    python scripts/verify-external/make_onnx_ml_fixtures.py formats/onnx/tests/data/ml

Each folder contains `model.onnx`, the inputs `input_0.npy`..., and the results `output_0.npy`... Results that are strings are
in `output_0.txt`, with one string per line. A map of ZipMap is an array with one column for each key.

Needs the packages numpy, scikit-learn, skl2onnx, xgboost, lightgbm, onnxmltools, onnx and onnxruntime.
"""

import itertools
import pathlib
import sys
import warnings

import lightgbm
import numpy as np
import onnxmltools
import onnxruntime
import xgboost
from onnx import TensorProto, helper, numpy_helper
from onnxmltools.convert.common.data_types import FloatTensorType as ToolsFloat
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType
from sklearn import ensemble, linear_model, naive_bayes, neighbors, neural_network, preprocessing, svm, tree
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

warnings.filterwarnings("ignore")
onnxruntime.set_default_logger_severity(4)

# skl2onnx 1.20 passes booleans as integers, which onnx 1.23 refuses.
make_attribute = helper.make_attribute
helper.make_attribute = lambda key, value, *others, **named: make_attribute(
    key, [int(v) if isinstance(v, (bool, np.bool_)) else v for v in value] if isinstance(value, list) else value, *others, **named
)

ROWS = 8
OPSETS = {"": 17, "ai.onnx.ml": 3}
random = np.random.default_rng(11)


def table(classes, rows=60, features=4):
    """Features with overlapping classes, and the class of each row."""
    y = np.arange(rows) % classes
    centers = random.normal(size=(classes, features)) * 2
    x = centers[y] + random.normal(size=(rows, features))
    return x.astype(np.float32), y


def save(folder, model, inputs, reference=None):
    """Writes a model with its inputs and results. ONNX Runtime computes the results with the model `reference` if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession((reference or model).SerializeToString(), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    results = session.run(None, dict(zip(names, inputs)))
    (folder / "model.onnx").write_bytes(data)
    for i, value in enumerate(inputs):
        np.save(folder / f"input_{i}.npy", value)
    for i, value in enumerate(results):
        if isinstance(value, list):
            value = np.array([list(row.values()) for row in value], np.float32)
        value = np.asarray(value)
        if value.dtype.kind in "OU":
            lines = [str(text) for text in value.reshape(-1)]
            (folder / f"output_{i}.txt").write_text("\n".join(lines) + "\n")
        else:
            np.save(folder / f"output_{i}.npy", value)


def sklearn_models(out):
    names = np.array(["setosa", "versicolor", "virginica"])
    two, three = table(2), table(3)
    shifted = (two[0], two[1] * 3 + 4)
    strings = (three[0], names[three[1]])
    pair = (two[0], np.array(["no", "yes"])[two[1]])
    targets = (three[0], three[0] @ random.normal(size=(4, 2)).astype(np.float32))
    target = (three[0], targets[1][:, 0])
    with_nan = three[0].copy()
    with_nan[random.random(with_nan.shape) < 0.2] = np.nan
    small = {"n_estimators": 4, "max_depth": 3, "random_state": 0}
    zip_map = {"zipmap": True}
    cases = {
        "logistic_binary": (linear_model.LogisticRegression(), shifted, zip_map),
        "logistic_strings": (linear_model.LogisticRegression(), strings, {}),
        "logistic_strings_zip_map": (linear_model.LogisticRegression(), pair, zip_map),
        "scaled_logistic": (make_pipeline(SimpleImputer(), preprocessing.StandardScaler(), linear_model.LogisticRegression()), (with_nan, three[1]), {}),
        "sgd": (linear_model.SGDClassifier(random_state=0), strings, {}),
        "perceptron": (linear_model.Perceptron(), two, {}),
        "linear_svc": (svm.LinearSVC(), three, {}),
        "linear_svc_binary": (svm.LinearSVC(), pair, {}),
        "linear_regression": (linear_model.LinearRegression(), targets, {}),
        "ridge": (linear_model.Ridge(), target, {}),
        "svc_rbf": (svm.SVC(), strings, {}),
        "svc_rbf_binary": (svm.SVC(), shifted, {}),
        "svc_probability": (svm.SVC(probability=True, random_state=0), three, {}),
        "svc_probability_binary": (svm.SVC(probability=True, random_state=0), pair, {}),
        "svc_poly": (svm.SVC(kernel="poly", degree=3, coef0=0.5), three, {}),
        "svc_sigmoid": (svm.SVC(kernel="sigmoid", gamma=0.05), three, {}),
        "svc_linear": (svm.SVC(kernel="linear"), two, {}),
        "svr": (svm.SVR(C=3.0), target, {}),
        "svr_poly": (svm.SVR(kernel="poly", degree=2), target, {}),
        "one_class_svm": (svm.OneClassSVM(nu=0.3), (three[0], None), {}),
        "decision_tree": (tree.DecisionTreeClassifier(max_depth=5, random_state=0), strings, {}),
        "decision_tree_binary": (tree.DecisionTreeClassifier(max_depth=3, random_state=0), shifted, {}),
        "random_forest": (ensemble.RandomForestClassifier(**small), strings, zip_map),
        "random_forest_binary": (ensemble.RandomForestClassifier(**small), pair, {}),
        "extra_trees_regressor": (ensemble.ExtraTreesRegressor(**small), targets, {}),
        "gradient_boosting": (ensemble.GradientBoostingClassifier(**small), three, {}),
        "gradient_boosting_binary": (ensemble.GradientBoostingClassifier(**small), shifted, {}),
        "gradient_boosting_regressor": (ensemble.GradientBoostingRegressor(**small), target, {}),
        "hist_gradient_boosting": (ensemble.HistGradientBoostingClassifier(max_iter=4, max_depth=3, min_samples_leaf=5), (with_nan, three[1]), {}),
        "hist_gradient_boosting_regressor": (ensemble.HistGradientBoostingRegressor(max_iter=5, max_depth=3, min_samples_leaf=5), (with_nan, target[1]), {}),
        "ada_boost": (ensemble.AdaBoostClassifier(n_estimators=4, random_state=0), three, {}),
        "bagging": (ensemble.BaggingClassifier(tree.DecisionTreeClassifier(max_depth=3), n_estimators=3, random_state=0), three, {}),
        "voting": (ensemble.VotingClassifier([("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=3))], voting="soft", flatten_transform=False), strings, {}),
        "isolation_forest": (ensemble.IsolationForest(n_estimators=2, max_samples=16, random_state=0), (three[0], None), {}),
        "naive_bayes": (naive_bayes.GaussianNB(), strings, {}),
        "nearest_neighbors": (neighbors.KNeighborsClassifier(3), (strings[0][:30], strings[1][:30]), {}),
        "perceptron_layers": (neural_network.MLPClassifier((8,), max_iter=50, random_state=0), strings, {}),
        "normalizer_l1": (preprocessing.Normalizer("l1"), (three[0], None), {}),
        "normalizer_l2": (preprocessing.Normalizer("l2"), (three[0], None), {}),
        "normalizer_max": (preprocessing.Normalizer("max"), (three[0], None), {}),
        "binarizer": (preprocessing.Binarizer(threshold=0.3), (three[0], None), {}),
        "min_max": (make_pipeline(preprocessing.MinMaxScaler(), preprocessing.PolynomialFeatures(2)), (three[0], None), {}),
    }
    for name, (model, (x, y), options) in cases.items():
        model.fit(x, y)
        settings = {}
        if hasattr(model, "classes_") and not isinstance(model, svm.LinearSVC):
            settings = {"zipmap": False, **options}
        if isinstance(model, (svm.LinearSVC, linear_model.SGDClassifier, linear_model.Perceptron)) or (isinstance(model, svm.SVC) and not model.probability):
            settings["raw_scores"] = True
        proto = to_onnx(model, x[:1], options={id(model): settings} if settings else None, target_opset=OPSETS)
        save(out / name, proto, [x[:ROWS]])

    numbers = random.integers(0, 4, size=(60, 2))
    for name, encoder in {
        "one_hot": preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False),
        "one_hot_strict": preprocessing.OneHotEncoder(sparse_output=False),
        "ordinal": preprocessing.OrdinalEncoder(),
    }.items():
        encoder.fit(numbers)
        given = numbers[:ROWS].copy()
        if name == "one_hot":
            given[:2] = 9
        proto = to_onnx(encoder, initial_types=[("x", Int64TensorType([None, 2]))], target_opset=OPSETS)
        save(out / name, proto, [given])
    x = np.concatenate([three[0], (np.arange(60) % 4)[:, None]], axis=1).astype(np.float32)
    model = make_pipeline(
        ColumnTransformer([("scaled", preprocessing.StandardScaler(), [0, 1, 2, 3]), ("category", preprocessing.OneHotEncoder(), [4])]),
        ensemble.RandomForestClassifier(**small),
    ).fit(x, three[1])
    proto = to_onnx(model, initial_types=[("x", FloatTensorType([None, 5]))], options={id(model): {"zipmap": False}}, target_opset=OPSETS)
    save(out / "columns", proto, [x[:ROWS]])


def boosted_models(out):
    two, three = table(2), table(3)
    target = (three[0], three[0][:, 0] * 2 + three[0][:, 1])
    with_nan = three[0].copy()
    with_nan[random.random(with_nan.shape) < 0.2] = np.nan
    categories = three[0].copy()
    categories[:, 3] = np.arange(60) % 6
    small = {"n_estimators": 4, "max_depth": 3}
    kinds = [("x", ToolsFloat([None, 4]))]
    for name, model, (x, y), options in [
        ("xgboost_binary", xgboost.XGBClassifier(**small), two, {}),
        ("xgboost", xgboost.XGBClassifier(**small), (with_nan, three[1]), {}),
        ("xgboost_regressor", xgboost.XGBRegressor(**small), (with_nan, target[1]), {}),
        ("xgboost_forest", xgboost.XGBRFClassifier(**small), two, {}),
    ]:
        model.fit(x, y)
        proto = onnxmltools.convert_xgboost(model, initial_types=kinds, target_opset=15)
        save(out / name, proto, [x[:ROWS]])
    for name, model, (x, y), options in [
        ("lightgbm_binary", lightgbm.LGBMClassifier(**small, min_child_samples=5, verbose=-1), two, {"zipmap": False}),
        ("lightgbm", lightgbm.LGBMClassifier(**small, min_child_samples=5, verbose=-1), (with_nan, three[1]), {"zipmap": True}),
        ("lightgbm_regressor", lightgbm.LGBMRegressor(**small, min_child_samples=5, verbose=-1), target, {}),
        ("lightgbm_categories", lightgbm.LGBMClassifier(**small, min_child_samples=5, min_data_per_group=2, cat_smooth=1, verbose=-1), (categories, (categories[:, 3] % 2).astype(int)), {"zipmap": False}),
    ]:
        fit = {"categorical_feature": [3]} if name == "lightgbm_categories" else {}
        model.fit(x, y, **fit)
        proto = onnxmltools.convert_lightgbm(model, initial_types=kinds, target_opset=15, **options)
        save(out / name, proto, [x[:ROWS]])


class Nodes:
    """A model with one node for each case; all cases share the inputs."""

    def __init__(self, inputs, version):
        self.inputs, self.version = inputs, version
        self.nodes, self.outputs, self.initializers = [], [], []

    def known(self, value):
        name = f"known_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator, names, types=(TensorProto.FLOAT,), **attributes):
        outputs = [f"{len(self.outputs) + i}" for i in range(len(types))]
        self.outputs += [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, types)]
        attributes = {key: value for key, value in attributes.items() if value is not None and not (isinstance(value, list) and not value)}
        self.nodes.append(helper.make_node(operator, names, outputs, f"case_{outputs[0]}", domain="ai.onnx.ml", **attributes))
        return outputs

    def save(self, folder):
        types = {np.dtype("float32"): TensorProto.FLOAT, np.dtype("float64"): TensorProto.DOUBLE, np.dtype("int64"): TensorProto.INT64}
        inputs = [helper.make_tensor_value_info(name, types[value.dtype], value.shape) for name, value in self.inputs.items()]
        graph = helper.make_graph(self.nodes, "nodes", inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", self.version)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        # ONNX Runtime 1.32 exchanges the numbers 1 (SOFTMAX) and 2 (LOGISTIC) of TreeEnsemble.
        reference = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        for node in reference.graph.node:
            for attribute in node.attribute:
                if node.op_type == "TreeEnsemble" and attribute.name == "post_transform":
                    attribute.i = {1: 2, 2: 1}.get(attribute.i, attribute.i)
        save(folder, model, list(self.inputs.values()), reference)


POSTS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def trees(count, modes, tracks, features=3):
    """Complete trees with two levels; the leaves of each tree are the nodes 3 to 6."""
    lists = {key: [] for key in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")}
    for t in range(count):
        for n in range(7):
            leaf = n >= 3
            lists["treeids"].append(t)
            lists["nodeids"].append(n)
            lists["featureids"].append(0 if leaf else int(random.integers(features)))
            lists["values"].append(0.0 if leaf else float(np.float32(random.integers(-2, 3) / 2)))
            lists["modes"].append("LEAF" if leaf else modes[int(random.integers(len(modes)))])
            lists["truenodeids"].append(0 if leaf else 2 * n + 1)
            lists["falsenodeids"].append(0 if leaf else 2 * n + 2)
            lists["missing_value_tracks_true"].append(int(tracks and not leaf and random.integers(2)))
    return {f"nodes_{key}": value for key, value in lists.items()}


def weights(prefix, count, ids, low):
    """Weights of all leaves of `trees`, one for each of the targets `ids(tree)`."""
    lists = {f"{prefix}_treeids": [], f"{prefix}_nodeids": [], f"{prefix}_ids": [], f"{prefix}_weights": []}
    for t in range(count):
        for leaf in range(3, 7):
            for i in ids(t):
                lists[f"{prefix}_treeids"].append(t)
                lists[f"{prefix}_nodeids"].append(leaf)
                lists[f"{prefix}_ids"].append(i)
                lists[f"{prefix}_weights"].append(float(np.float32(random.uniform(low, 1) / count)))
    return lists


def tree_nodes(out):
    x = (random.integers(-4, 5, size=(ROWS, 3)) / 4).astype(np.float32)
    x[random.random(x.shape) < 0.15] = np.nan
    modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
    types = (TensorProto.INT64, TensorProto.FLOAT)
    for name, value in {"tree_modes": x, "tree_modes_f64": x.astype(np.float64), "tree_modes_int": np.nan_to_num(4 * x).astype(np.int64)}.items():
        nodes = Nodes({"x": value}, 3)
        mixed = [(modes[:4], False), (modes, False), (modes, True)]
        for mode, tracks in mixed + ([([mode], True) for mode in modes] if name == "tree_modes" else []):
            # ONNX Runtime has no TreeEnsembleRegressor of integers.
            if name == "tree_modes_int":
                nodes.add("TreeEnsembleClassifier", ["x"], types, **trees(3, mode, tracks), **weights("class", 3, lambda t: [0], -1), classlabels_int64s=[0, 1])
            else:
                nodes.add("TreeEnsembleRegressor", ["x"], **trees(3, mode, tracks), **weights("target", 3, lambda t: [0], -1), n_targets=1)
        nodes.save(out / name)
    nodes = Nodes({"x": x}, 3)
    for aggregate, targets in itertools.product(["SUM", "AVERAGE", "MIN", "MAX"], [1, 2]):
        for base in [aggregate != "AVERAGE"]:
            nodes.add("TreeEnsembleRegressor", ["x"], **trees(2, modes, True), **weights("target", 2, lambda t: range(targets), -1), n_targets=targets,
                      aggregate_function=aggregate, base_values=[0.25, -0.5][:targets] if base else None)
    for post, targets in itertools.product(POSTS, [1, 2]):
        low = 0.1 if post == "PROBIT" else -1
        nodes.add("TreeEnsembleRegressor", ["x"], **trees(2, modes, True), **weights("target", 2, lambda t: range(targets), low), n_targets=targets, post_transform=post)
        nodes.add("TreeEnsembleRegressor", ["x"], **trees(2, modes, True), **weights("target", 2, lambda t: [t % targets], low), n_targets=targets, post_transform=post)
    nodes.save(out / "tree_regressors")

    nodes = Nodes({"x": x}, 3)
    for post, base, low in itertools.product(["NONE", "LOGISTIC", "SOFTMAX_ZERO"], [[], [0.125], [0.125, -0.25]], [0, -1]):
        # ONNX Runtime ignores the weights of class 1 if there are two base values.
        for ids in [[0]] if len(base) == 2 else [[0], [1]]:
            nodes.add("TreeEnsembleClassifier", ["x"], types, **trees(2, modes, True), **weights("class", 2, lambda t: ids, low), base_values=base,
                      post_transform=post, classlabels_int64s=[7, 3])
    nodes.save(out / "tree_binary")
    nodes = Nodes({"x": x}, 3)
    for post, (base, ids) in itertools.product(POSTS, [([], lambda t: range(3)), ([0.1, 0.2, 0.3], lambda t: [t % 3])]):
        low = 0.1 if post == "PROBIT" else -1
        nodes.add("TreeEnsembleClassifier", ["x"], types, **trees(3, modes, True), **weights("class", 3, ids, low), base_values=base,
                  post_transform=post, classlabels_int64s=[0, 1, 2])
    nodes.save(out / "tree_classes")

    for name, dtype in {"tree_ensemble": np.float32, "tree_ensemble_f64": np.float64}.items():
        value = (random.integers(0, 6, size=(ROWS, 3))).astype(dtype)
        value[random.random(value.shape) < 0.1] = np.nan
        nodes = Nodes({"x": value}, 5)
        kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.DOUBLE

        def tensor(name, values, kind):
            return helper.make_tensor(name, kind, [len(values)], values)

        for aggregate, targets in itertools.product(range(4), [1, 2]):
            # Three trees: a node with a set and two comparisons, a single leaf, and a shared subtree.
            nodes.add(
                "TreeEnsemble", ["x"], (kind,),
                tree_roots=[0, 3, 4],
                nodes_featureids=[0, 1, 2, 0, 1, 2],
                nodes_splits=tensor("splits", [0.0, 2.0, 3.0, 0.0, 1.0, 2.0], kind),
                nodes_modes=tensor("modes", [6, 0, 3, 0, 1, 6], TensorProto.UINT8),
                nodes_truenodeids=[1, 0, 2, 4, 5, 6], nodes_trueleafs=[0, 1, 1, 1, 0, 1],
                nodes_falsenodeids=[2, 1, 3, 4, 5, 7], nodes_falseleafs=[0, 1, 1, 1, 1, 1],
                nodes_missing_value_tracks_true=[1, 0, 1, 0, 1, 0],
                membership_values=tensor("members", [1.0, 3.0, float("nan"), 2.0, 5.0, 0.0], kind),
                leaf_targetids=[i % targets for i in range(8)],
                leaf_weights=tensor("weights", [0.5, -0.25, 1.0, 0.75, -0.5, 0.125, 2.0, 1.5], kind),
                n_targets=targets, aggregate_function=aggregate, post_transform=aggregate,
            )
        nodes.save(out / name)


def other_nodes(out):
    x = random.normal(size=(ROWS, 3)).astype(np.float32)
    ints = random.integers(-2, 6, size=(ROWS, 3))
    types = (TensorProto.INT64, TensorProto.FLOAT)
    nodes = Nodes({"x": x, "i": ints, "d": x.astype(np.float64)}, 1)

    def numbers(count):
        return [float(np.float32(v)) for v in random.normal(size=count) / 2]

    for post, classes in itertools.product(POSTS[:4], [1, 2, 3]):
        nodes.add("LinearClassifier", ["x"], types, coefficients=numbers(3 * classes), intercepts=numbers(classes), classlabels_ints=[5, 2, 9][: max(2, classes)],
                  post_transform=post)
    for given in ("i", "d"):
        nodes.add("LinearClassifier", [given], types, coefficients=numbers(6), intercepts=numbers(2), classlabels_ints=[5, 2])
    for post, targets in itertools.product(POSTS[:4], [1, 2]):
        nodes.add("LinearRegressor", ["x"], coefficients=numbers(3 * targets), intercepts=numbers(targets), targets=targets, post_transform=post)
    nodes.add("LinearRegressor", ["x"], coefficients=numbers(6), targets=2)
    for kind, parameters in {"LINEAR": [0.5, 0.1, 3.0], "POLY": [0.25, 0.5, 4.0], "RBF": [0.5, 0.0, 0.0], "SIGMOID": [0.5, 0.1, 0.0]}.items():
        nodes.add("SVMRegressor", ["x"], kernel_type=kind, kernel_params=parameters, n_supports=4, support_vectors=numbers(12), coefficients=numbers(4), rho=[0.1])
        posts = ["NONE", "LOGISTIC", "SOFTMAX"] if kind == "RBF" else ["NONE"]
        for post, sizes, probabilities in itertools.product(posts, [[2, 3], [2, 1, 2]], [False, True]):
            pairs = len(sizes) * (len(sizes) - 1) // 2
            nodes.add("SVMClassifier", ["x"], types, kernel_type=kind, kernel_params=parameters, vectors_per_class=sizes, support_vectors=numbers(15),
                      coefficients=numbers(5 * (len(sizes) - 1)), rho=numbers(pairs), prob_a=numbers(pairs) if probabilities else None,
                      prob_b=numbers(pairs) if probabilities else None, classlabels_ints=[4, 8, 6][: len(sizes)], post_transform=post)
    nodes.add("SVMRegressor", ["x"], kernel_type="RBF", kernel_params=[0.5, 0.0, 0.0], n_supports=0, coefficients=numbers(3), rho=[0.1], one_class=1)
    for classes, sign in itertools.product([2, 3], [False, True]):
        values = numbers(3 * classes)
        nodes.add("SVMClassifier", ["x"], types, kernel_params=[0.5, 0.0, 0.0], coefficients=[abs(v) for v in values] if sign else values, rho=[0.1],
                  classlabels_ints=[4, 8, 6][:classes], post_transform="NONE")
    nodes.save(out / "linear_nodes")

    holes = x.copy()
    holes[random.random(holes.shape) < 0.3] = np.nan
    nodes = Nodes({"x": holes, "i": ints, "d": np.nan_to_num(holes).astype(np.float64)}, 2)
    nan = float("nan")
    nodes.add("Scaler", ["x"], offset=[1.0, 2.0, 3.0], scale=[0.5, 1.5, 2.5])
    nodes.add("Scaler", ["i"], offset=[1.0], scale=[0.5])
    nodes.add("Scaler", ["d"], offset=[1.0], scale=[0.5])
    nodes.add("Imputer", ["x"], imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=nan)
    nodes.add("Imputer", ["x"], imputed_value_floats=[4.0], replaced_value_float=nan)
    nodes.add("Imputer", ["i"], (TensorProto.INT64,), imputed_value_int64s=[7, 8, 9], replaced_value_int64=-1)
    for norm in ("MAX", "L1", "L2"):
        nodes.add("Normalizer", ["i"], norm=norm)
        nodes.add("Normalizer", ["d"], norm=norm)
    nodes.add("FeatureVectorizer", ["x", "x"], inputdimensions=[2, 4])
    nodes.add("FeatureVectorizer", ["i"], inputdimensions=[3])
    nodes.add("ArrayFeatureExtractor", ["x", nodes.known(np.array([[2, 0]]))])
    nodes.add("ArrayFeatureExtractor", ["i", nodes.known(np.array([1]))], (TensorProto.INT64,))
    nodes.add("OneHotEncoder", ["i"], cats_int64s=[3, 1, 1, -2])
    nodes.add("OneHotEncoder", ["d"], cats_int64s=[0, 1])
    nodes.add("LabelEncoder", ["i"], (TensorProto.FLOAT,), keys_int64s=[3, -2, 3, 5], values_floats=[1.5, 2.5, 9.0, 3.5], default_float=-7.0)
    nodes.add("LabelEncoder", ["i"], (TensorProto.STRING,), keys_int64s=[0, 1, 2, 3, 4], values_strings=["a", "b", "c", "a", "e"], default_string="other")
    (words,) = nodes.add("LabelEncoder", ["i"], (TensorProto.STRING,), keys_int64s=[0, 1, 2], values_strings=["x", "y", "z"])
    nodes.add("LabelEncoder", [words], (TensorProto.INT64,), keys_strings=["z", "x"], values_int64s=[100, -200], default_int64=5)
    nodes.add("LabelEncoder", [words], (TensorProto.STRING,), keys_strings=["z", "x"], values_strings=["zed", "ex"])
    nodes.add("OneHotEncoder", [words], cats_strings=["q", "z", "y"])
    nodes.save(out / "feature_nodes")

    values = np.array([[nan, 0.5, -0.5], [2.0, 1e30, -0.0]], np.float32)
    nodes = Nodes({"x": values, "i": np.array([[2**31 - 1, 3], [-(2**31), 0]])}, 4)
    nodes.add("LabelEncoder", ["x"], (TensorProto.INT64,), keys_floats=[0.5, nan, 0.0, 1e30, -0.5, 7.0], values_int64s=[1, 2, 3, 4, 5, 6])
    nodes.add("LabelEncoder", ["x"], (TensorProto.FLOAT,), keys_floats=[2.0], values_floats=[1.0])
    nodes.add("LabelEncoder", ["i"], (TensorProto.INT64,), keys_int64s=[2**31 - 1, 2**40, -(2**31)], values_int64s=[1, 2, 3])
    nodes.add("LabelEncoder", ["i"], (TensorProto.INT64,), keys_tensor=helper.make_tensor("k", TensorProto.INT64, [2], [3, 0]),
              values_tensor=helper.make_tensor("v", TensorProto.INT64, [2], [-3, 4]), default_tensor=helper.make_tensor("d", TensorProto.INT64, [1], [11]))
    nodes.save(out / "label_nodes")


def main():
    out = pathlib.Path(sys.argv[1])
    sklearn_models(out)
    boosted_models(out)
    tree_nodes(out)
    other_nodes(out)


if __name__ == "__main__":
    main()
