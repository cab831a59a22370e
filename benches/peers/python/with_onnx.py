"""Works in ONNX Runtime, from a file with the model."""

import numpy
import onnxruntime


def work(folder, arrays, threads, settings):
    """The model of the folder with the input `x` and its first result, or one of a path with inputs in files and all results."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads would go on waiting busily, up to 18 ms, on the processors of whoever's turn comes next: ResNet-50 took
    # Meganeura 47 instead of 28 ms beside it. Without that, it takes 2.5 % longer itself.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    path = settings["model"] if settings else str(folder / "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    if settings:
        feeds = {port.name: numpy.load(file) for port, file in zip(session.get_inputs(), settings["inputs"])}

        def run_all():
            return session.run(None, feeds)

        return run_all, lambda: numpy.concatenate([result.reshape(-1) for result in run_all()])

    def run():
        return session.run(None, {"x": arrays["x"]})[0]

    return run, run
