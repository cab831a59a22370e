#!/usr/bin/env python3
"""Times small quantised networks in `meganeura run` and in ONNX Runtime.

    python scripts/verify-external/onnx_quantized.py FOLDER [--program target/release/meganeura] [--threads 2]

Writes a perceptron (784-1024-1024-10, 32 rows) and a convolutional network (4 convolutions of 3x3, 64 channels, 56x56) with
random weights into FOLDER, in `float32` and quantised by ONNX Runtime's tools: dynamically (MatMulInteger), and statically
as QLinearMatMul and QLinearConv and as QuantizeLinear and DequantizeLinear pairs. Results of both programs must agree to
2e-2 of the largest magnitude before anything is timed: a different rounding of one activation moves further ones. Needs the
packages `numpy`, `onnx` and `onnxruntime`.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

TOLERANCE = 2e-2


def weight(random, name, shape, inputs):
    data = random.standard_normal(shape) * (2.0 / inputs) ** 0.5
    return numpy_helper.from_array(data.astype(numpy.float32), name)


def network(name, nodes, initializers, x, y):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mlp(random):
    sizes = [784, 1024, 1024, 10]
    nodes, initializers, value = [], [], "x"
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        initializers.append(weight(random, f"w{i}", (a, b), a))
        last = i == len(sizes) - 2
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], ["y" if last else f"m{i}"], f"product{i}"))
        if not last:
            value = f"r{i}"
            nodes.append(helper.make_node("Relu", [f"m{i}"], [value], f"relu{i}"))
    return network("mlp", nodes, initializers, [32, 784], [32, 10])


def convnet(random):
    nodes, initializers, value = [], [], "x"
    for i in range(4):
        initializers.append(weight(random, f"w{i}", (64, 64, 3, 3), 576))
        nodes.append(helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]))
        value = "y" if i == 3 else f"r{i}"
        nodes.append(helper.make_node("Relu", [f"c{i}"], [value], f"relu{i}"))
    return network("convnet", nodes, initializers, [1, 64, 56, 56], [1, 64, 56, 56])


class Examples(quantization.CalibrationDataReader):
    """A few inputs like those of the comparison."""

    def __init__(self, shape):
        random = numpy.random.default_rng(2)
        self.left = [{"x": random.standard_normal(shape).astype(numpy.float32)} for _ in range(4)]

    def get_next(self):
        return self.left.pop() if self.left else None


def variants(folder, name, made, shape):
    """The network and its quantised forms, as files."""
    plain = folder / f"{name}-f32.onnx"
    onnx.save(made, plain)
    yield plain
    if name == "mlp":
        path = folder / f"{name}-dynamic.onnx"
        quantization.quantize_dynamic(plain, path, weight_type=quantization.QuantType.QInt8)
        yield path
    for form in (quantization.QuantFormat.QOperator, quantization.QuantFormat.QDQ):
        path = folder / f"{name}-{form.name.lower()}.onnx"
        quantization.quantize_static(plain, path, Examples(shape), quant_format=form, weight_type=quantization.QuantType.QInt8)
        yield path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="target/release/meganeura")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for make, shape in ((mlp, (32, 784)), (convnet, (1, 64, 56, 56))):
        made = make(numpy.random.default_rng(1))
        for path in variants(arguments.folder, make.__name__, made, shape):
            if not compared(arguments, path, shape):
                failed.append(path.name)
    if failed:
        sys.exit(f"{len(failed)} networks failed: {', '.join(failed)}")


def compared(arguments, path, shape):
    """Whether both agree; prints their times."""
    x = numpy.random.default_rng(0).standard_normal(shape).astype(numpy.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    reference = arguments.folder / path.stem
    reference.mkdir(exist_ok=True)
    numpy.save(reference / "input_0.npy", x)
    numpy.save(reference / "output_0.npy", session.run(None, {"x": x})[0])
    command = [arguments.program, "check", str(path), "--against", str(reference), "--device", "cpu"]
    checked = subprocess.run([*command, "--tolerance", str(TOLERANCE)], capture_output=True, text=True, check=False)
    if checked.returncode != 0:
        print(f"{path.stem}: FAILED\n{checked.stdout}{checked.stderr}")
        return False

    def theirs():
        times, begin = [], time.perf_counter()
        while len(times) < 5 or time.perf_counter() - begin < 1.0:
            start = time.perf_counter()
            session.run(None, {"x": x})
            times.append(time.perf_counter() - start)
        return 1e3 * statistics.median(times)

    def ours():
        run = [arguments.program, "run", str(path), "--inputs-dir", str(reference), "--device", "cpu", "--repeat", "1", "--json"]
        return json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)["run_ms"]

    first, our, second = theirs(), ours(), theirs()
    their = (first + second) / 2
    print(f"{path.stem}: {our:.3f} ms against {their:.3f} ms: {their / our:.2f} of its speed", flush=True)
    return True


if __name__ == "__main__":
    main()
