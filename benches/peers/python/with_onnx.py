"""Works in ONNX Runtime, from a file with the model."""

import onnxruntime


def work(folder, arrays, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads would go on waiting busily, up to 18 ms, on the processors of whoever's turn comes next: ResNet-50 took
    # Meganeura 47 instead of 28 ms beside it. Without that, it takes 2.5 % longer itself.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])

    def run():
        return session.run(None, {"x": arrays["x"]})[0]

    return run, run
