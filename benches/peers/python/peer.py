"""A framework of Python as a contestant of benches/peers: peer.py FRAMEWORK THREADS FOLDER.

FOLDER has problem.json (kind and shapes) and the numbers of each operand. Requests are lines on standard input: `result`
writes the result to FOLDER/result.f32, `time N` answers with the seconds of doing it once, of N times. Answers are `ok ...` or
`error ...`. Needs torch, or onnx and onnxruntime: what is not installed is an error of the first answer.
"""

import json
import sys
import time
from pathlib import Path


def operands(folder, shapes):
    import numpy

    return [numpy.fromfile(folder / f"{i}.f32", dtype="<f4").reshape(shape) for i, shape in enumerate(shapes)]


def with_torch(kind, arrays, how, threads):
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    x, *weights = [torch.from_numpy(a.copy()) for a in arrays]

    def work(x):
        match kind:
            case "Matmul":
                return x @ weights[0]
            case "Mlp":
                return F.relu(x @ weights[0]) @ weights[1]
            case "Softmax":
                return torch.softmax(x, -1)
            case "LayerNorm":
                return F.layer_norm(x, x.shape[-1:], weights[0], weights[1], 1e-5)
            case "Gelu":
                return F.gelu(x)
            case "Conv":
                return F.conv2d(x, weights[0], padding=1)
        raise ValueError(kind)

    if how == "compile":
        work = torch.compile(work)
    elif how == "reduce-overhead":
        work = torch.compile(work, mode="reduce-overhead")

    def run():
        with torch.inference_mode():
            return work(x)

    return run, lambda y: y.numpy()


def with_onnxruntime(kind, arrays, threads):
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node
    nodes = {
        "Matmul": [node("MatMul", ["x", "w1"], ["y"])],
        "Mlp": [node("MatMul", ["x", "w1"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "w2"], ["y"])],
        "Softmax": [node("Softmax", ["x"], ["y"], axis=-1)],
        "LayerNorm": [node("LayerNormalization", ["x", "w1", "w2"], ["y"], axis=-1, epsilon=1e-5)],
        "Gelu": [node("Gelu", ["x"], ["y"])],
        "Conv": [node("Conv", ["x", "w1"], ["y"], pads=[1, 1, 1, 1])],
    }[kind]
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, arrays[0].shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * arrays[0].ndim)],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(arrays[1:], 1)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": arrays[0]})[0], lambda y: y


def main():
    framework, threads, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    problem = json.loads((folder / "problem.json").read_text())
    arrays = operands(folder, problem["shapes"])
    if framework == "onnxruntime":
        run, numbers = with_onnxruntime(problem["kind"], arrays, threads)
    else:
        run, numbers = with_torch(problem["kind"], arrays, framework.removeprefix("torch "), threads)
    print("ok ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["result"]:
                numbers(run()).astype("<f4").tofile(folder / "result.f32")
                print("ok written", flush=True)
            case ["time", times]:
                start = time.perf_counter()
                for _ in range(int(times)):
                    run()
                print("ok", (time.perf_counter() - start) / int(times), flush=True)
            case _:
                print("error no such request", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # Whatever is wrong is the answer; the other side names it and goes on.
        print("error", f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
