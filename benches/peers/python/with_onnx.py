"""Works in ONNX Runtime."""

import networks
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


class Nodes:
    """The calls of networks.py as nodes of a graph."""

    def __init__(self):
        self.nodes = []

    def node(self, kind, inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def conv(self, x, name, stride, padding):
        parameters = [f"{name}.weight", f"{name}.bias"]
        return self.node("Conv", [x, *parameters], strides=[stride] * 2, pads=[padding] * 4)

    def max_pool(self, x):
        return self.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def relu(self, x):
        return self.node("Relu", [x])

    def add(self, x, y):
        return self.node("Add", [x, y])

    def mean(self, x):
        return self.node("Flatten", [self.node("GlobalAveragePool", [x])])

    def linear(self, x, name):
        return self.node("Gemm", [x, f"{name}.weight", f"{name}.bias"])


def output(ops, kind):
    """Adds what computes the result."""
    match kind:
        case "Matmul":
            return ops.node("MatMul", ["x", "w1"])
        case "Mlp":
            return ops.node("MatMul", [ops.relu(ops.node("MatMul", ["x", "w1"])), "w2"])
        case "Softmax":
            return ops.node("Softmax", ["x"], axis=-1)
        case "LayerNorm":
            return ops.node("LayerNormalization", ["x", "w1", "w2"], axis=-1, epsilon=1e-5)
        case "Gelu":
            return ops.node("Gelu", ["x"])
        case "Conv":
            return ops.node("Conv", ["x", "w1"], pads=[1] * 4)
        case "Resnet50":
            return networks.resnet50(ops, "x")
    raise ValueError(kind)


def work(kind, arrays, threads):
    ops = Nodes()
    y = output(ops, kind)
    dims = {"Conv": 4}.get(kind, 2)
    graph = helper.make_graph(
        ops.nodes,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, arrays["x"].shape)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, [None] * dims)],
        [numpy_helper.from_array(a, name) for name, a in arrays.items() if name != "x"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run():
        return session.run(None, {"x": arrays["x"]})[0]

    return run, run
