#!/usr/bin/env python3
"""Lets ONNX Runtime run what `meganeura export` writes.

    python scripts/verify-external/onnx_export.py FOLDER [--program target/release/meganeura]
    python scripts/verify-external/onnx_export.py --fixtures formats/onnx/tests/data

FOLDER is that of `onnx_public_models.py`, which must have run before. Every public model is imported, exported, and run by
ONNX Runtime on the same inputs as the original; a difference is accepted as there. Needs `numpy`, `onnx`, `onnxruntime`.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy
import onnx
import onnxruntime


def run(path, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    types = {
        "tensor(float)": numpy.float32,
        "tensor(int32)": numpy.int32,
        "tensor(uint32)": numpy.uint32,
        "tensor(int64)": numpy.int64,
    }
    # Inputs of an exported file have the types of graphs.
    feeds = {port.name: inputs[port.name].astype(types[port.type]) for port in session.get_inputs()}
    return session.run(None, feeds)


def cases(arguments):
    """Models with the folder of their inputs and results, and the accepted difference."""
    if arguments.fixtures:
        for model in sorted(arguments.folder.glob("*/model.onnx")):
            # The export has quantised layers in floats, and ONNX Runtime rounds their inputs and states to 8 bits.
            yield model, model.parent, 1e-2 if model.parent.name.startswith("quantized") else 1e-4
        return
    for model in sorted(arguments.folder.glob("models/*/*.onnx")):
        reference = arguments.folder / "references" / model.parent.name / model.stem
        yield model, reference, float((reference / "tolerance").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="target/release/meganeura")
    parser.add_argument("--fixtures", action="store_true", help="FOLDER is formats/onnx/tests/data")
    arguments = parser.parse_args()
    failed = []
    onnxruntime.set_default_logger_severity(3)
    for path, reference, tolerance in cases(arguments):
        name = f"{path.parent.name}/{path.name}"
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs, dims = {}, []
        for index, port in enumerate(session.get_inputs()):
            array = numpy.load(reference / f"input_{index}.npy")
            inputs[port.name] = array
            if array.size == 1 and port.type == "tensor(int64)":
                dims.append(f"--set={port.name}={int(array)}")
            for axis, size in enumerate(array.shape):
                if not isinstance(port.shape[axis], int):
                    dims.append(f"--dim={port.name}.{axis}={size}")
        wanted = [numpy.load(reference / f"output_{i}.npy") for i in range(len(session.get_outputs()))]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "again.onnx"
            command = [arguments.program, "export", str(path), "--out", str(out), *dims]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{name}: not exported: {done.stderr.strip().splitlines()[-1]}")
                failed.append(name)
                continue
            onnx.checker.check_model(str(out))
            found = run(out, inputs)
        differences = [0.0]
        for a, b in zip(found, wanted):
            scale = max(float(numpy.max(numpy.abs(b))), 1e-300)
            differences.append(float(numpy.max(numpy.abs(a.astype(numpy.float64) - b))) / scale)
        # Unlike Python's maximum, NumPy's is NaN if one of them is.
        apart = float(numpy.max(differences))
        print(f"{name}: {apart:.1e} apart")
        if not apart <= tolerance:
            failed.append(name)
    if failed:
        sys.exit(f"{len(failed)} of the models failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
