#!/usr/bin/env python3
"""Times ResNet-50 and MiniLM in f32 and in 8 bits, in `meganeura run` and in ONNX Runtime, on the CPU.

    python scripts/verify-external/onnx_int8.py FOLDER [--program target/release/meganeura] [--threads 2]

Exports both models with random weights by PyTorch into FOLDER, and quantizes them with `meganeura quantize --random 4`. Both
programs run the same files, alternately. Prints medians of a run in milliseconds, and the largest difference between the programs,
relative to the largest result. Needs the packages `numpy`, `onnxruntime`, `torch`, `torchvision` and `transformers`.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import numpy
import onnxruntime
import torch

SECONDS = 2
TURNS = 2


def export(folder):
    import torchvision
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, attn_implementation="eager"
    )

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.BertModel(config, add_pooling_layer=False)

        def forward(self, x):
            return self.bert.encoder(x).last_hidden_state

    models = {
        "resnet50": (torchvision.models.resnet50(weights=None), torch.randn(1, 3, 224, 224)),
        "minilm": (Encoder(), torch.randn(1, 128, 384)),
    }
    for name, (model, x) in models.items():
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        path = folder / f"{name}.onnx"
        torch.onnx.export(
            model.eval(), x, path, opset_version=17, dynamo=False, input_names=["x"], output_names=["y"], dynamic_axes=axes
        )
        yield name, path, list(x.shape)


def ours(arguments, path, folder):
    environment = dict(os.environ, MEGANEURA_THREADS=str(arguments.threads))
    command = [arguments.program, "run", path, "--inputs-dir", folder, "--output-dir", folder / "out", "--device", "cpu"]
    command += ["--repeat", str(SECONDS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)["run_ms"], numpy.load(folder / "out" / "output_0.npy")


def theirs(session, x):
    times, begin = [], time.time()
    while len(times) < 3 or time.time() - begin < SECONDS:
        start = time.perf_counter()
        result = session.run(None, {"x": x})[0]
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="target/release/meganeura")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.log_severity_level = 3
    for name, path, shape in export(arguments.folder):
        small = path.with_name(f"{name}-int8.onnx")
        command = [arguments.program, "quantize", path, "-o", small, "--random", "4", "--device", "cpu"]
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for batch in (1, 8):
            x = numpy.random.default_rng(0).standard_normal([batch, *shape[1:]]).astype(numpy.float32)
            folder = arguments.folder / f"{name}-{batch}"
            folder.mkdir(exist_ok=True)
            numpy.save(folder / "input_0.npy", x)
            for kind, model in (("f32", path), ("int8", small)):
                session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
                for _ in range(TURNS):
                    (mine, found), (other, wanted) = ours(arguments, model, folder), theirs(session, x)
                    difference = abs(found - wanted).max() / abs(wanted).max()
                    print(f"{name} {kind}, batch of {batch}: {mine:.2f} ms, ONNX Runtime {other:.2f} ms, difference {difference:.1e}")


if __name__ == "__main__":
    main()
