"""A Python framework that benches/peers compares: peer.py FRAMEWORK THREADS FOLDER.

FOLDER has problem.json (kind, operands, settings), the numbers of each operand and, if there is one, model.onnx. Requests
are lines on standard input: `result` writes the result to FOLDER/result.f32, `time N` answers with the seconds of doing it
once, of N times. Answers are `ok ...` or `error ...`. Needs torch, or onnxruntime: what is not installed is an error of the first answer.
"""

import json
import sys
import time
from pathlib import Path

import numpy


def operands(folder, described):
    """The given tensors by name."""
    return {o["name"]: numpy.fromfile(folder / f"{o['name']}.f32", dtype="<f4").reshape(o["shape"]) for o in described}


def work(framework, threads, folder):
    """What does the work, and what makes its result an array. The first call's result is that which is compared."""
    problem = json.loads((folder / "problem.json").read_text())
    arrays = operands(folder, problem["operands"])
    if framework == "onnxruntime":
        import with_onnx

        return with_onnx.work(folder, arrays, threads, problem["settings"])
    import with_torch

    how = framework.removeprefix("torch ")
    return with_torch.work(problem["kind"], arrays, problem["settings"], how, threads)


def main():
    framework, threads, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    run, result = work(framework, threads, folder)
    print("ok ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["result"]:
                result().astype("<f4").tofile(folder / "result.f32")
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
        print("error", f"{type(error).__name__}: {error}".replace("\n", " ")[:300], flush=True)
