"""Works in ONNX Runtime, from a file with the model."""

import onnxruntime


def work(folder, arrays, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])

    def run():
        return session.run(None, {"x": arrays["x"]})[0]

    return run, run
