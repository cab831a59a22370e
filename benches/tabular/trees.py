"""Compares the speed of tree ensembles with ONNX Runtime: python trees.py --command target/release/meganeura.

Needs scikit-learn, xgboost, lightgbm, skl2onnx, onnxmltools and onnxruntime. Prints a Markdown table: milliseconds of a batch with two
threads, and ONNX Runtime's time divided by Meganeura's. Both are measured three times in turns; the smallest time counts.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

import lightgbm
import numpy as np
import onnx
import onnxmltools
import onnxruntime
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as ToolsFloat
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn import ensemble

FEATURES = 20
BATCHES = [1, 1000, 10000]
THREADS = 2
ROUNDS = 3


def examples(rows, seed):
    """Returns features from -1 to 1, and a class with noise."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (rows, FEATURES)).astype(np.float32)
    score = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + x[:, 3] ** 2 + random.normal(0, 0.3, rows)
    return x, (score > np.median(score)).astype(int)


def models():
    """Returns ensembles by name, as ONNX models with an open batch size."""
    x, y = examples(5000, 0)
    ours, theirs = [("x", FloatTensorType([None, FEATURES]))], [("x", ToolsFloat([None, FEATURES]))]
    forest = ensemble.RandomForestClassifier(300, random_state=0, n_jobs=2).fit(x, y)
    yield "random forest, 300 trees", to_onnx(forest, initial_types=ours, options={"zipmap": False})
    boosted = xgboost.XGBClassifier(n_estimators=300, max_depth=6).fit(x, y)
    yield "XGBoost, 300 trees", onnxmltools.convert_xgboost(boosted, initial_types=theirs)
    leaves = lightgbm.LGBMClassifier(n_estimators=300, verbose=-1).fit(x, y)
    yield "LightGBM, 300 trees", onnxmltools.convert_lightgbm(leaves, initial_types=theirs, zipmap=False)


def with_batch(model, batch):
    """Returns a copy with a fixed batch size."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for value in [*model.graph.input, *model.graph.output]:
        dims = value.type.tensor_type.shape.dim
        if dims:
            dims[0].Clear()
            dims[0].dim_value = batch
    return model


def time_of_peer(path, batch):
    """Returns the milliseconds of a batch in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: examples(batch, 1)[0]}
    runs = max(3, 20000 // batch)
    for _ in range(max(1, runs // 4)):
        session.run(None, feed)
    start = time.perf_counter()
    for _ in range(runs):
        session.run(None, feed)
    return 1000 * (time.perf_counter() - start) / runs


def time_of_command(command, path, batch):
    """Returns the milliseconds of a batch in Meganeura."""
    steps = str(max(3, 20000 // batch))
    line = [command, "bench", str(path), "--device", "cpu", "--steps", steps, "--json"]
    environment = os.environ | {"MEGANEURA_THREADS": str(THREADS)}
    output = subprocess.run(line, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])["synchronized_step_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="target/release/meganeura")
    command = parser.parse_args().command
    print("| ensemble | rows | Meganeura, ms | ONNX Runtime, ms | ratio |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models():
            for batch in BATCHES:
                path = pathlib.Path(folder) / "model.onnx"
                path.write_bytes(with_batch(model, batch).SerializeToString())
                pairs = [(time_of_command(command, path, batch), time_of_peer(path, batch)) for _ in range(ROUNDS)]
                own, peer = (min(times) for times in zip(*pairs))
                print(f"| {name} | {batch:,} | {own:.3f} | {peer:.3f} | {peer / own:.2f} |", flush=True)


if __name__ == "__main__":
    main()
