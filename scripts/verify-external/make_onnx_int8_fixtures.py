#!/usr/bin/env python3
"""Makes the quantized models of formats/onnx/tests/data/int8, with results by ONNX Runtime.

    python scripts/verify-external/make_onnx_int8_fixtures.py formats/onnx/tests/data/int8

A small classifier of images is quantized by ONNX Runtime's tools: as QuantizeLinear and DequantizeLinear (`qdq`, and
`qdq_signed` with activations in int8), as QLinearConv and QLinearMatMul (`qoperator`), and dynamically (`dynamic`). Each
folder has `model.onnx`, `input_0.npy` and `output_0.npy`. Needs the packages `numpy`, `onnx` and `onnxruntime`.
"""

import pathlib
import sys
import tempfile

import numpy
import onnx
import onnxruntime
from make_onnx_fixtures import FLOAT, model, weights
from onnx import helper
from onnxruntime import quantization
from onnxruntime.quantization import QuantFormat, QuantType

SHAPE = (2, 3, 9, 9)


def classifier(random):
    """Two convolutions, a matrix product and a Gemm."""
    initializers = weights(random, **{"conv0": (8, 3, 3, 3), "bias0": (8,), "conv1": (20, 8, 1, 1)})
    initializers += weights(random, **{"dense": (500, 33), "fc": (10, 33), "fc.bias": (10,)})
    nodes = [
        helper.make_node("Conv", ["x", "conv0", "bias0"], ["a"], "first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "conv1"], ["c"], "second"),
        helper.make_node("Flatten", ["c"], ["d"], "flatten"),
        helper.make_node("MatMul", ["d", "dense"], ["e"], "dense"),
        helper.make_node("Gemm", ["e", "fc", "fc.bias"], ["y"], "fc", transB=1),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, SHAPE)]
    outputs = [helper.make_tensor_value_info("y", FLOAT, [SHAPE[0], 10])]
    return model("classifier", nodes, inputs, outputs, initializers)


class Examples(quantization.CalibrationDataReader):
    """Inputs like those of the comparison."""

    def __init__(self):
        random = numpy.random.default_rng(2)
        self.left = [{"x": random.standard_normal(SHAPE).astype(numpy.float32)} for _ in range(8)]

    def get_next(self):
        return self.left.pop() if self.left else None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    x = numpy.random.default_rng(3).standard_normal(SHAPE).astype(numpy.float32)
    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder) / "plain.onnx"
        onnx.save(classifier(numpy.random.default_rng(7)), plain)
        forms = {
            "qdq": {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8},
            "qdq_signed": {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QInt8},
            # Products of bytes saturate in ONNX Runtime on processors without VNNI, unless weights have 7 bits.
            "qoperator": {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8, "reduce_range": True},
        }
        for name in (*forms, "dynamic"):
            to = root / name
            to.mkdir(parents=True, exist_ok=True)
            path = to / "model.onnx"
            if name == "dynamic":
                quantization.quantize_dynamic(plain, path, weight_type=QuantType.QInt8)
            else:
                quantization.quantize_static(plain, path, Examples(), weight_type=QuantType.QInt8, per_channel=True, **forms[name])
            # Without optimizations, ONNX Runtime computes pairs of QuantizeLinear and DequantizeLinear with floats.
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            numpy.save(to / "input_0.npy", x)
            numpy.save(to / "output_0.npy", session.run(None, {"x": x})[0])


if __name__ == "__main__":
    main()
