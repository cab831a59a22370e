#!/usr/bin/env python3
"""Makes the small models of formats/onnx/tests/data, with results by ONNX Runtime.

    python scripts/verify-external/make_onnx_fixtures.py formats/onnx/tests/data

Each folder has `model.onnx`, `input_0.npy`... and `output_0.npy`... Needs the packages `numpy`, `onnx` and `onnxruntime`.
"""

import pathlib
import sys

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def weights(random, **shapes):
    """Initializers of normal numbers."""
    return [numpy_helper.from_array((0.3 * random.standard_normal(shape)).astype(numpy.float32), name) for name, shape in shapes.items()]


def model(name, nodes, inputs, outputs, initializers, opset=17, functions=(), imports=()):
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *imports]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions), producer_name="fixtures")
    return made


def convnet(random):
    """A convolutional classifier with a batch of any size; the variance is positive."""
    initializers = weights(random, **{"conv.weight": (8, 1, 3, 3), "conv.bias": (8,), "scale": (8,), "shift": (8,), "mean": (8,)})
    initializers += [numpy_helper.from_array(numpy.full(8, 0.5, numpy.float32), "variance")]
    initializers += weights(random, **{"fc.weight": (10, 8 * 4 * 4), "fc.bias": (10,)})
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["logits"], "fc", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax"),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["batch", 1, 8, 8])]
    outputs = [helper.make_tensor_value_info(name, FLOAT, ["batch", 10]) for name in ("logits", "probabilities")]
    feeds = {"x": random.standard_normal((3, 1, 8, 8)).astype(numpy.float32)}
    return model("convnet", nodes, inputs, outputs, initializers), feeds


def sequence(random):
    """Token ids, an embedding, an LSTM in both directions, and a reshape by arithmetic on shapes."""
    initializers = weights(random, **{"table": (11, 6), "w": (2, 20, 6), "r": (2, 20, 5), "b": (2, 40)})
    initializers += [
        numpy_helper.from_array(numpy.array([1], numpy.int64), "one"),
        numpy_helper.from_array(numpy.array([-1], numpy.int64), "rest"),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], "embed"),
        helper.make_node("LSTM", ["e", "w", "r", "b"], ["y", "h", ""], "lstm", hidden_size=5, direction="bidirectional"),
        helper.make_node("Transpose", ["y"], ["t"], "transpose", perm=[2, 0, 1, 3]),
        helper.make_node("Shape", ["ids"], ["s"], "shape"),
        helper.make_node("Gather", ["s", "one"], ["batch_size"], "batch", axis=0),
        helper.make_node("Concat", ["batch_size", "rest"], ["target"], "target", axis=0),
        helper.make_node("Reshape", ["t", "target"], ["flat"], "flat"),
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rounds", "batch"])]
    outputs = [helper.make_tensor_value_info("flat", FLOAT, ["batch", None]), helper.make_tensor_value_info("h", FLOAT, [2, "batch", 5])]
    feeds = {"ids": random.integers(-11, 11, (4, 2)).astype(numpy.int64)}
    return model("sequence", nodes, inputs, outputs, initializers), feeds


def recurrent(random):
    """All recurrent layers with lengths that only a run knows; an RNN with ReLU goes backwards."""
    sizes = {"gru": 3, "lstm": 4, "rnn": 1}
    initializers = []
    for name, blocks in sizes.items():
        shapes = {"w": (1, 5 * blocks, 3), "r": (1, 5 * blocks, 5), "b": (1, 10 * blocks), "h": (1, 2, 5)}
        initializers += weights(random, **{f"{name}.{part}": shape for part, shape in shapes.items()})
    operands = lambda name: ["x", f"{name}.w", f"{name}.r", f"{name}.b", "lengths", f"{name}.h"]
    nodes = [
        helper.make_node("GRU", operands("gru"), ["gru_y", "gru_h"], "gru", hidden_size=5, linear_before_reset=1),
        helper.make_node("LSTM", operands("lstm"), ["lstm_y", "lstm_h", "lstm_c"], "lstm", hidden_size=5),
        helper.make_node("RNN", operands("rnn"), ["rnn_y", "rnn_h"], "rnn", hidden_size=5, direction="reverse", activations=["Relu"]),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["rounds", 2, 3]), helper.make_tensor_value_info("lengths", TensorProto.INT32, [2])]
    outputs = [helper.make_tensor_value_info(f"{name}_y", FLOAT, ["rounds", 1, 2, 5]) for name in sizes]
    outputs += [helper.make_tensor_value_info(name, FLOAT, [1, 2, 5]) for name in ("gru_h", "lstm_h", "lstm_c", "rnn_h")]
    feeds = {"x": random.standard_normal((6, 2, 3)).astype(numpy.float32), "lengths": numpy.array([6, 4], numpy.int32)}
    return model("recurrent", nodes, inputs, outputs, initializers), feeds


def quantized_lstm(random):
    """An LSTM in both directions whose weights have 8 bits, with a scale for each direction."""
    initializers = []
    for name, rows in (("w", 6), ("r", 8)):
        values = random.integers(0, 256, (2, rows, 32)).astype(numpy.uint8)
        initializers += [
            numpy_helper.from_array(values, name),
            numpy_helper.from_array(numpy.array([0.004, 0.003], numpy.float32), f"{name}_scale"),
            numpy_helper.from_array(numpy.array([128, 120], numpy.uint8), f"{name}_zero"),
        ]
    initializers += weights(random, b=(2, 64))
    operands = ["x", "w", "r", "b", "", "", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    nodes = [
        helper.make_node(
            "DynamicQuantizeLSTM", operands, ["y", "h", "c"], "lstm", domain="com.microsoft", hidden_size=8, direction="bidirectional"
        )
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["rounds", 2, 6])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, ["rounds", 2, 2, 8])]
    outputs += [helper.make_tensor_value_info(name, FLOAT, [2, 2, 8]) for name in ("h", "c")]
    feeds = {"x": random.standard_normal((5, 2, 6)).astype(numpy.float32)}
    imports = [helper.make_opsetid("com.microsoft", 1)]
    return model("quantized_lstm", nodes, inputs, outputs, initializers, imports=imports), feeds


def quantized_ops(random):
    """Operators of ONNX Runtime's quantised form beside convolutions and products, in a small classifier."""
    number = lambda value, kind: numpy_helper.from_array(numpy.array(value, kind), f"{kind.__name__}_{value}")
    scales = {value: number(value, numpy.float32) for value in (0.02, 0.03, 0.004, 0.01)}
    zeros = {value: number(value, numpy.uint8) for value in (0, 60, 120)}
    initializers = [*scales.values(), *zeros.values()]
    how = lambda scale, zero: [scales[scale].name, zeros[zero].name]
    initializers += [
        numpy_helper.from_array(random.integers(-128, 128, (3, 8)).astype(numpy.int8), "w"),
        numpy_helper.from_array(numpy.array([0.01, 0.02, 0.015], numpy.float32), "w_scale"),
        numpy_helper.from_array(numpy.zeros(3, numpy.int8), "w_zero"),
        numpy_helper.from_array(numpy.array([900, -400, 100], numpy.int32), "b"),
        numpy_helper.from_array(random.integers(0, 2, (4, 5, 5)).astype(bool), "condition"),
    ]
    node = lambda op, inputs, output, **attributes: helper.make_node(op, inputs, [output], output, domain="com.microsoft", **attributes)
    q, opened, leaky = ["q", *how(0.03, 120)], ["opened", *how(0.004, 0)], ["leaky", *how(0.02, 60)]
    pooled, logits = ["pooled", *how(0.01, 60)], ["logits", *how(0.03, 120)]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *q[1:]], ["q"], "quantize"),
        node("QLinearSigmoid", [*q, *opened[1:]], "opened"),
        node("QLinearLeakyRelu", [*q, *leaky[1:]], "leaky", alpha=0.1),
        node("QLinearWhere", ["condition", *opened, *leaky, *how(0.02, 60)], "chosen"),
        node("QLinearConcat", [*how(0.02, 60), *opened, *leaky], "joined", axis=1),
        node("QLinearGlobalAveragePool", ["joined", *how(0.02, 60), *pooled[1:]], "averaged"),
        helper.make_node("Flatten", ["averaged"], ["pooled"], "flatten"),
        node("QGemm", [*pooled, "w", "w_scale", "w_zero", "b", *logits[1:]], "logits", transB=1),
        node("QGemm", [*pooled, "w", "w_scale", "w_zero", "b"], "floats", transB=1, alpha=0.5),
        node("QLinearSoftmax", [*logits, *how(0.004, 0)], "probabilities", axis=1, opset=13),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["batch", 4, 5, 5])]
    outputs = [helper.make_tensor_value_info("chosen", TensorProto.UINT8, ["batch", 4, 5, 5])]
    outputs += [helper.make_tensor_value_info(name, kind, ["batch", 3]) for name, kind in (("floats", FLOAT), ("probabilities", TensorProto.UINT8))]
    feeds = {"x": random.standard_normal((2, 4, 5, 5)).astype(numpy.float32)}
    imports = [helper.make_opsetid("com.microsoft", 1)]
    return model("quantized_ops", nodes, inputs, outputs, initializers, imports=imports), feeds


def function(random):
    """A function of the model with an attribute, and a branch that a constant chooses."""
    body = [
        helper.make_node("Constant", [], ["slope"]),
        helper.make_node("Mul", ["a", "slope"], ["scaled"]),
        helper.make_node("Max", ["a", "scaled"], ["result"]),
    ]
    reference = helper.make_attribute("value_float", 0.0)
    reference.ClearField("f")
    reference.ref_attr_name = "slope"
    body[0].attribute.append(reference)
    leaky = helper.make_function("local", "Leaky", ["a"], ["result"], body, [helper.make_opsetid("", 17)], ["slope"])
    branch = lambda op: helper.make_graph([helper.make_node(op, ["l"], ["b"], op.lower())], op, [], [helper.make_tensor_value_info("b", FLOAT, None)])
    nodes = [
        helper.make_node("Leaky", ["x"], ["l"], "leaky", domain="local", slope=0.25),
        helper.make_node("If", ["condition"], ["y"], "choose", then_branch=branch("Exp"), else_branch=branch("Neg")),
    ]
    initializers = [numpy_helper.from_array(numpy.array(True), "condition")]
    inputs = [helper.make_tensor_value_info("x", FLOAT, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, [2, 3])]
    feeds = {"x": random.standard_normal((2, 3)).astype(numpy.float32)}
    imports = [helper.make_opsetid("local", 1)]
    return model("function", nodes, inputs, outputs, initializers, functions=[leaky], imports=imports), feeds


def decoder(random):
    """A step of a language model as exporters write it: grouped heads, rotary positions, a cache, a window."""
    heads, kv_heads, width, rows, past = 4, 2, 16, 3, 5
    angles = numpy.arange(16)[:, None] / (100.0 ** (numpy.arange(width // 2)[None, :] / (width // 2)))
    initializers = [
        numpy_helper.from_array(numpy.cos(angles).astype(numpy.float32), "cos"),
        numpy_helper.from_array(numpy.sin(angles).astype(numpy.float32), "sin"),
        numpy_helper.from_array(numpy.full(1, past + rows - 1, numpy.int32), "lengths"),
        numpy_helper.from_array(numpy.array(past + rows, numpy.int32), "total"),
    ]
    operands = ["q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin"]
    nodes = [
        helper.make_node(
            "GroupQueryAttention", operands, ["y", "present_k", "present_v"], "attention", domain="com.microsoft",
            num_heads=heads, kv_num_heads=kv_heads, do_rotary=1, local_window_size=6, softcap=3.0,
        )
    ]
    shapes = {"q": (1, rows, heads * width), "k": (1, rows, kv_heads * width), "v": (1, rows, kv_heads * width)}
    shapes |= {name: (1, kv_heads, past, width) for name in ("past_k", "past_v")}
    inputs = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()]
    present = (1, kv_heads, past + rows, width)
    outputs = [
        helper.make_tensor_value_info("y", FLOAT, shapes["q"]),
        helper.make_tensor_value_info("present_k", FLOAT, present),
        helper.make_tensor_value_info("present_v", FLOAT, present),
    ]
    feeds = {name: random.standard_normal(shape).astype(numpy.float32) for name, shape in shapes.items()}
    return model("decoder", nodes, inputs, outputs, initializers, imports=[helper.make_opsetid("com.microsoft", 1)]), feeds


def distances(random):
    """Distances and squared distances between the rows of an input and those of a constant."""
    node = lambda output, **attributes: helper.make_node("CDist", ["x", "points"], [output], output, domain="com.microsoft", **attributes)
    nodes = [node("roots", metric="euclidean"), node("squares", metric="sqeuclidean"), node("default")]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["batch", 3])]
    outputs = [helper.make_tensor_value_info(name, FLOAT, ["batch", 7]) for name in ("roots", "squares", "default")]
    feeds = {"x": random.standard_normal((5, 3)).astype(numpy.float32)}
    imports = [helper.make_opsetid("com.microsoft", 1)]
    return model("distances", nodes, inputs, outputs, weights(random, points=(7, 3)), imports=imports), feeds


def unsupported():
    """Operators that nobody has, and open dimensions."""
    nodes = [
        helper.make_node("Wobble", ["x"], ["a"], "first", domain="com.example"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("StringNormalizer", ["b"], ["c"], "second"),
        helper.make_node("Wobble", ["x"], ["y"], "third", domain="com.example"),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["batch", 4])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, None)]
    return model("unsupported", nodes, inputs, outputs, [], imports=[helper.make_opsetid("com.example", 1)])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    for make in (convnet, sequence, recurrent, quantized_lstm, quantized_ops, function, decoder, distances):
        made, feeds = make(numpy.random.default_rng(7))
        if made.opset_import[-1].domain != "com.microsoft":
            onnx.checker.check_model(made)
        folder = root / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(made.SerializeToString())
        session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        for index, value in enumerate(feeds.values()):
            numpy.save(folder / f"input_{index}.npy", value)
        for index, value in enumerate(session.run(None, feeds)):
            numpy.save(folder / f"output_{index}.npy", value)
    (root / "unsupported.onnx").write_bytes(unsupported().SerializeToString())


if __name__ == "__main__":
    main()
