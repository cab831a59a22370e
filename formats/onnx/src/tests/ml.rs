//! Tests of wrong attributes of `ai.onnx.ml`: each is an issue of the node, with the expected and the found value.

use std::time::{Duration, Instant};

use prost::Message;

use super::{floats, ints as int_tensor, node, small, value};
use crate::proto::{AttributeProto, ModelProto, OperatorSetIdProto, TensorProto, attribute_type};
use crate::{Dims, Model};

pub(super) fn ints(name: &str, list: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: list.to_vec(),
        r#type: attribute_type::INTS,
        ..AttributeProto::default()
    }
}

fn numbers(name: &str, list: &[f32]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        floats: list.to_vec(),
        r#type: attribute_type::FLOATS,
        ..AttributeProto::default()
    }
}

pub(super) fn strings(name: &str, list: &[&str]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        strings: list.iter().map(|text| text.as_bytes().to_vec().into()).collect(),
        r#type: attribute_type::STRINGS,
        ..AttributeProto::default()
    }
}

fn string(name: &str, text: &str) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        s: text.as_bytes().to_vec().into(),
        r#type: attribute_type::STRING,
        ..AttributeProto::default()
    }
}

fn tensor(name: &str, tensor: TensorProto) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        t: Some(tensor),
        r#type: attribute_type::TENSOR,
        ..AttributeProto::default()
    }
}

/// Returns a model with one node for `x f32[2, 3]`, and its first result.
pub(super) fn model(operator: &str, attributes: &[AttributeProto]) -> ModelProto {
    let mut model = small();
    model.opset_import.push(OperatorSetIdProto {
        domain: "ai.onnx.ml".into(),
        version: 5,
    });
    let graph = model.graph.as_mut().expect("a graph");
    let mut only = node(operator, "wrong", &["x"], &["y", "z"]);
    only.domain = "ai.onnx.ml".into();
    only.attribute = attributes.to_vec();
    graph.node = vec![only];
    graph.initializer.clear();
    graph.output = vec![value("y", &[])];
    model
}

pub(super) fn parsed(model: &ModelProto) -> Model {
    Model::from_bytes(model.encode_to_vec()).expect("a model")
}

/// Checks that the node is refused with a message.
fn refused(operator: &str, attributes: &[AttributeProto], message: &str) {
    let start = Instant::now();
    let report = parsed(&model(operator, attributes)).preflight(&Dims::new());
    let [issue] = report.issues.as_slice() else {
        panic!("{operator}, {message}: {report}")
    };
    assert_eq!(issue.operator, format!("ai.onnx.ml.{operator}"));
    assert_eq!(issue.place, "wrong");
    assert!(
        issue.message.contains(message),
        "expected {message:?}, found {:?}",
        issue.message
    );
    assert!(start.elapsed() < Duration::from_secs(20), "{operator}, {message}");
}

/// Returns the attributes with some of them replaced.
fn with(attributes: &[AttributeProto], changes: &[AttributeProto]) -> Vec<AttributeProto> {
    let kept = attributes.iter().filter(|a| changes.iter().all(|c| c.name != a.name));
    kept.chain(changes).cloned().collect()
}

/// Returns a regressor of one tree with two leaves.
fn small_tree() -> Vec<AttributeProto> {
    vec![
        ints("nodes_treeids", &[0, 0, 0]),
        ints("nodes_nodeids", &[0, 1, 2]),
        ints("nodes_featureids", &[2, 0, 0]),
        ints("nodes_truenodeids", &[1, 0, 0]),
        ints("nodes_falsenodeids", &[2, 0, 0]),
        strings("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]),
        numbers("nodes_values", &[0.5, 0.0, 0.0]),
        ints("target_treeids", &[0, 0]),
        ints("target_nodeids", &[1, 2]),
        ints("target_ids", &[0, 0]),
        numbers("target_weights", &[1.0, 2.0]),
    ]
}

#[test]
fn wrong_trees_are_refused() {
    let right = small_tree();
    let report = parsed(&model("TreeEnsembleRegressor", &right)).preflight(&Dims::new());
    assert!(report.is_supported(), "{report}");
    let long = vec![1.0; 7];
    for (change, message) in [
        (ints("nodes_treeids", &[]), "expected at least one tree, found none"),
        (
            ints("nodes_nodeids", &[0, 1]),
            "nodes_nodeids: expected 3 elements, found 2",
        ),
        (
            ints("nodes_nodeids", &[0, 1, 1]),
            "expected one node 1 of tree 0, found two",
        ),
        (
            ints("nodes_featureids", &[3, 0, 0]),
            "feature ids: expected numbers below 3, found 3",
        ),
        (
            ints("nodes_featureids", &[-1, 0, 0]),
            "nodes_featureids: expected at least 0, found -1",
        ),
        (
            ints("nodes_featureids", &[i64::MAX, 0, 0]),
            "feature ids: expected numbers below 3",
        ),
        (
            ints("nodes_truenodeids", &[9, 0, 0]),
            "nodes_truenodeids: expected a node of tree 0, found 9",
        ),
        (
            ints("nodes_falsenodeids", &[-9, 0, 0]),
            "nodes_falsenodeids: expected a node of tree 0, found -9",
        ),
        (ints("nodes_truenodeids", &[0, 0, 0]), "a cycle through the node"),
        (
            strings("nodes_modes", &["BRANCH_LEQ", "BRANCH_LT", "LEAF"]),
            "a cycle through the node",
        ),
        (
            strings("nodes_modes", &["BRANCH_MEMBER", "LEAF", "LEAF"]),
            "expected LEAF or one of BRANCH_LEQ",
        ),
        (
            strings("nodes_modes", &["LEAF"]),
            "nodes_modes: expected 3 elements, found 1",
        ),
        (
            numbers("nodes_values", &long),
            "nodes_values: expected 3 elements, found 7",
        ),
        (
            ints("nodes_missing_value_tracks_true", &[1]),
            "nodes_missing_value_tracks_true: expected 3",
        ),
        (
            ints("target_ids", &[0, 1]),
            "target_ids: expected numbers below 1, found 1",
        ),
        (
            ints("target_nodeids", &[1, 5]),
            "target_nodeids: expected a node of tree 0, found 5",
        ),
        (
            ints("target_treeids", &[0, 5]),
            "target_nodeids: expected a node of tree 5, found 2",
        ),
        (
            ints("target_treeids", &[0]),
            "target_treeids: expected 2 elements, found 1",
        ),
        (
            numbers("base_values", &[1.0, 2.0]),
            "base_values: expected 1 elements, found 2",
        ),
        (
            super::int_attribute("n_targets", 0),
            "n_targets: expected at least 1, found 0",
        ),
        (super::int_attribute("n_targets", i64::MAX), "too large"),
        (
            string("aggregate_function", "MEDIAN"),
            "aggregate_function: expected one of AVERAGE",
        ),
        (
            string("post_transform", "SQUARE"),
            "post_transform: expected one of NONE",
        ),
        (
            string("nodes_treeids", "0"),
            "`nodes_treeids` is not a list of integers",
        ),
        (
            tensor("nodes_values_as_tensor", floats("t", &[3], &[0.0; 3])),
            "expected nodes_values or nodes_values_as_tensor, found both",
        ),
    ] {
        refused("TreeEnsembleRegressor", &with(&right, &[change]), message);
    }
}

#[test]
fn deep_trees_and_large_tables_are_refused_in_time() {
    // A chain of nodes, each with a leaf.
    let levels = 3000;
    let (count, nodes) = (2 * levels + 1, 0..2 * levels as i64 + 1);
    let modes: Vec<&str> = (0..count)
        .map(|i| if i < levels { "BRANCH_LEQ" } else { "LEAF" })
        .collect();
    let yes: Vec<i64> = nodes.clone().map(|i| i + 1).collect();
    let no: Vec<i64> = nodes.clone().map(|i| i + levels as i64 + 1).collect();
    let chain = [
        ints("nodes_treeids", &vec![0; count]),
        ints("nodes_nodeids", &nodes.collect::<Vec<_>>()),
        ints("nodes_featureids", &vec![0; count]),
        ints("nodes_truenodeids", &yes),
        ints("nodes_falsenodeids", &no),
        strings("nodes_modes", &modes),
        numbers("nodes_values", &vec![0.0; count]),
    ];
    refused(
        "TreeEnsembleRegressor",
        &with(&small_tree(), &chain),
        "expected trees of at most 1024 levels",
    );
    // Every leaf has a row of more than 2^23 weights.
    let wide = [
        super::int_attribute("n_targets", (1 << 23) + 1),
        string("aggregate_function", "MIN"),
    ];
    refused(
        "TreeEnsembleRegressor",
        &with(&small_tree(), &wide),
        "weights of [2, 8388609] is too large",
    );
}

#[test]
fn wrong_tree_ensembles_are_refused() {
    let bytes = |values: &[u8]| {
        let mut tensor = int_tensor("modes", &[]);
        tensor.dims = vec![values.len() as i64];
        tensor.data_type = 2;
        tensor.int64_data.clear();
        tensor.int32_data = values.iter().map(|&v| v.into()).collect();
        tensor
    };
    let right = vec![
        ints("tree_roots", &[0]),
        ints("nodes_featureids", &[0]),
        ints("nodes_truenodeids", &[0]),
        ints("nodes_falsenodeids", &[1]),
        ints("nodes_trueleafs", &[1]),
        ints("nodes_falseleafs", &[1]),
        tensor("nodes_splits", floats("splits", &[1], &[0.5])),
        tensor("nodes_modes", bytes(&[0])),
        ints("leaf_targetids", &[0, 0]),
        tensor("leaf_weights", floats("weights", &[2], &[1.0, 2.0])),
    ];
    let report = parsed(&model("TreeEnsemble", &right)).preflight(&Dims::new());
    assert!(report.is_supported(), "{report}");
    for (change, message) in [
        (ints("tree_roots", &[]), "expected at least one tree, found none"),
        (ints("tree_roots", &[1]), "tree_roots: expected nodes below 1, found 1"),
        (
            ints("nodes_truenodeids", &[2]),
            "nodes_truenodeids: expected leaves below 2, found 2",
        ),
        (ints("nodes_trueleafs", &[0]), "a cycle through the node"),
        (
            ints("nodes_falseleafs", &[0, 1]),
            "nodes_falseleafs: expected 1 elements, found 2",
        ),
        (
            tensor("nodes_modes", bytes(&[7])),
            "nodes_modes: expected 0 to 6, found 7",
        ),
        (
            tensor("nodes_modes", bytes(&[6])),
            "attribute `membership_values` is missing",
        ),
        (
            ints("leaf_targetids", &[0, 1]),
            "leaf_targetids: expected numbers below 1, found 1",
        ),
        (
            ints("leaf_targetids", &[0]),
            "leaf_targetids: expected 2 elements, found 1",
        ),
        (
            super::int_attribute("aggregate_function", 4),
            "aggregate_function: expected 0 to 3, found 4",
        ),
        (
            super::int_attribute("post_transform", -1),
            "post_transform: expected 0 to 4, found -1",
        ),
        (string("nodes_splits", "a"), "`nodes_splits` is not a tensor"),
    ] {
        refused("TreeEnsemble", &with(&right, &[change]), message);
    }
    let sets = [
        tensor("nodes_modes", bytes(&[6])),
        tensor("membership_values", floats("sets", &[3], &[1.0, f32::NAN, 2.0])),
    ];
    refused(
        "TreeEnsemble",
        &with(&right, &sets),
        "membership_values: expected 1 sets",
    );
}

#[test]
fn wrong_classifiers_are_refused() {
    let mut right = small_tree();
    for attribute in &mut right {
        attribute.name = attribute.name.replace("target_", "class_");
    }
    let labels = ints("classlabels_int64s", &[3, 4]);
    let texts = strings("classlabels_strings", &["a", "b"]);
    let classifier = "TreeEnsembleClassifier";
    refused(classifier, &right, "class labels: expected at least 2, found 0");
    refused(
        classifier,
        &with(&right, &[ints("classlabels_int64s", &[3])]),
        "expected at least 2, found 1",
    );
    refused(classifier, &with(&right, &[labels.clone(), texts]), "found both");
    let changes = [labels.clone(), ints("class_ids", &[0, 2])];
    refused(
        classifier,
        &with(&right, &changes),
        "class_ids: expected numbers below 2, found 2",
    );
    let changes = [labels.clone(), numbers("base_values", &[0.0; 3])];
    refused(
        classifier,
        &with(&right, &changes),
        "base_values: expected at most 2 elements, found 3",
    );
    let changes = [labels.clone(), string("post_transform", "PROBIT")];
    refused(classifier, &with(&right, &changes), "PROBIT of one column");
    let changes = [
        labels,
        numbers("class_weights", &[]),
        ints("class_ids", &[]),
        ints("class_nodeids", &[]),
    ];
    let changes = with(&changes, &[ints("class_treeids", &[])]);
    refused(
        classifier,
        &with(&right, &changes),
        "class_ids: expected the class of at least one leaf",
    );
    let large = ints("classlabels_int64s", &[1 << 40, 2]);
    refused(
        classifier,
        &with(&right, &[large]),
        "1099511627776 does not fit into i32",
    );
}

#[test]
fn wrong_linear_models_and_machines_are_refused() {
    let labels = ints("classlabels_ints", &[3, 4]);
    let classifier = "LinearClassifier";
    refused(
        classifier,
        &[],
        "coefficients: expected a multiple of 3 elements (the features), found 0",
    );
    refused(
        classifier,
        &[numbers("coefficients", &[1.0; 4])],
        "coefficients: expected a multiple of 3",
    );
    refused(
        classifier,
        &[numbers("coefficients", &[1.0; 6])],
        "class labels: expected 2 elements, found 0",
    );
    let changes = [numbers("coefficients", &[1.0; 9]), labels.clone()];
    refused(classifier, &changes, "class labels: expected 3 elements, found 2");
    let changes = [
        numbers("coefficients", &[1.0; 6]),
        labels.clone(),
        numbers("intercepts", &[1.0]),
    ];
    refused(classifier, &changes, "intercepts: expected 2 elements, found 1");
    let regressor = "LinearRegressor";
    refused(
        regressor,
        &[numbers("coefficients", &[1.0; 2])],
        "coefficients: expected 3 elements, found 2",
    );
    refused(
        regressor,
        &[super::int_attribute("targets", -1)],
        "targets: expected at least 1, found -1",
    );
    refused(regressor, &[super::int_attribute("targets", i64::MAX)], "too large");

    let machine = "SVMRegressor";
    refused(
        machine,
        &[string("kernel_type", "CUBIC")],
        "kernel_type: expected LINEAR, POLY, RBF or SIGMOID",
    );
    refused(
        machine,
        &[numbers("kernel_params", &[1.0])],
        "kernel_params: expected 3 elements, found 1",
    );
    refused(machine, &[], "rho: expected at least 1 element, found 0");
    let rho = numbers("rho", &[0.5]);
    let supports = super::int_attribute("n_supports", i64::MAX);
    refused(
        machine,
        &[rho.clone(), supports],
        "coefficients: expected 9223372036854775807",
    );
    let supports = super::int_attribute("n_supports", 2);
    let changes = [rho.clone(), supports.clone(), numbers("coefficients", &[1.0; 2])];
    refused(machine, &changes, "support_vectors: expected 6 elements, found 0");
    let changes = [rho.clone(), string("post_transform", "LOGISTIC")];
    refused(machine, &changes, "post_transform: expected NONE");

    let machine = "SVMClassifier";
    refused(
        machine,
        std::slice::from_ref(&rho),
        "class labels: expected at least 2, found 0",
    );
    let right = vec![
        labels,
        rho,
        ints("vectors_per_class", &[1, 1]),
        numbers("support_vectors", &[1.0; 6]),
        numbers("coefficients", &[1.0; 2]),
    ];
    for (change, message) in [
        (
            ints("vectors_per_class", &[2]),
            "vectors_per_class: expected 2 elements, found 1",
        ),
        (
            ints("vectors_per_class", &[1, -1]),
            "vectors_per_class: expected at most 16777216 vectors, found -1",
        ),
        (
            ints("vectors_per_class", &[1, i64::MAX]),
            "vectors_per_class: expected at most",
        ),
        (
            ints("vectors_per_class", &[1, 2]),
            "support_vectors: expected 9 elements, found 6",
        ),
        (
            numbers("coefficients", &[1.0; 3]),
            "coefficients: expected 2 elements, found 3",
        ),
        (numbers("rho", &[]), "rho: expected 1 elements, found 0"),
        (numbers("prob_a", &[1.0]), "prob_b: expected 1 elements, found 0"),
    ] {
        refused(machine, &with(&right, &[change]), message);
    }
}

#[test]
fn wrong_features_are_refused() {
    let scale = numbers("scale", &[1.0; 2]);
    refused("Scaler", &[scale], "scale: expected 1 or 3 elements, found 2");
    refused(
        "Imputer",
        &[],
        "imputed_value_floats: expected numbers for float32, found none",
    );
    let imputed = numbers("imputed_value_floats", &[1.0; 4]);
    refused(
        "Imputer",
        &[imputed],
        "imputed_value_floats: expected 1 or 3 elements, found 4",
    );
    refused(
        "Normalizer",
        &[string("norm", "L3")],
        "norm: expected MAX, L1 or L2, found `L3`",
    );
    let sizes = ints("inputdimensions", &[1, 2]);
    refused(
        "FeatureVectorizer",
        &[sizes],
        "inputdimensions: expected 1 elements, found 2",
    );
    refused(
        "FeatureVectorizer",
        &[ints("inputdimensions", &[0])],
        "expected sizes of at least 1, found 0",
    );
    refused("FeatureVectorizer", &[ints("inputdimensions", &[1 << 60])], "too large");
    refused(
        "OneHotEncoder",
        &[],
        "expected categories for numbers in cats_int64s only, found 0",
    );
    refused(
        "OneHotEncoder",
        &[ints("cats_int64s", &[1 << 40])],
        "does not fit into i32",
    );
    refused("ZipMap", &[], "class labels: expected one for each column, found none");
    refused(
        "ZipMap",
        &[ints("classlabels_int64s", &[1])],
        "class labels: expected 3 elements, found 1",
    );
    let keys = numbers("keys_floats", &[1.0, 2.0]);
    refused(
        "LabelEncoder",
        &[],
        "expected one of keys_int64s, keys_floats, keys_strings and keys_tensor, found 0",
    );
    refused(
        "LabelEncoder",
        std::slice::from_ref(&keys),
        "expected one of values_int64s",
    );
    let values = ints("values_int64s", &[1]);
    refused(
        "LabelEncoder",
        &[keys.clone(), values],
        "values: expected 2 elements (the keys), found 1",
    );
    let values = [ints("values_int64s", &[1, 2]), numbers("values_floats", &[1.0, 2.0])];
    refused(
        "LabelEncoder",
        &with(&values, std::slice::from_ref(&keys)),
        "expected one of values_int64s",
    );
    let values = ints("values_int64s", &[1, 1 << 33]);
    refused(
        "LabelEncoder",
        &[keys, values.clone()],
        "8589934592 does not fit into i32",
    );
    let keys = strings("keys_strings", &["a", "b"]);
    refused(
        "LabelEncoder",
        &[keys, values],
        "expected elements of the type of the keys (string), found float32",
    );
}
