#!/usr/bin/env python3
"""Runs the checkpoints in tests/fixtures on a device, and compares with what transformers makes of them.

    scripts/verify-external/compare_generation.py MEGANEURA DEVICE

MEGANEURA is the program, DEVICE what its --device takes. Logits of every position of the prompt have to be within TOLERANCE
of the largest, the greedy continuation of up to 64 tokens has to be the same. Needs NumPy, and no network.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures"
TOLERANCE = 1e-4
# With scales that are rounded to binary16.
LOOSE = {"llama_q4_k": 0.01, "llama_q6_k": 1e-3, "llama_q4_0_mixed": 1e-3}


def tensor(path, name):
    """A tensor of f32 in a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + length])[name]
    assert entry["dtype"] == "F32", entry
    start, end = (8 + length + offset for offset in entry["data_offsets"])
    return numpy.frombuffer(data[start:end], "<f4").reshape(entry["shape"])


def generate(program, device, model, ids, tokens, logits):
    """The tokens that follow; logits of the prompt go to a file."""
    command = [program, "generate", "--model", model, "--device", device, "--temperature", "0", "--json", "--no-plan-cache"]
    command += ["--prompt-ids", ",".join(map(str, ids)), "--max-tokens", str(tokens), "--logits", logits]
    if model.is_dir():
        command += ["--weights", "f32"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{model.name}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["token_ids"]


def main():
    program, device = sys.argv[1:3]
    failed = False
    cases = [(folder, json.loads((folder / "expected.json").read_text())) for folder in sorted((ROOT / "transformers").iterdir()) if folder.is_dir()]
    prompt = cases[0][1]["prompt_ids"]
    listed = json.loads((ROOT / "gguf/expected.json").read_text())
    cases += [(path, listed) for path in sorted((ROOT / "gguf").glob("*.gguf"))]
    for model, known in cases:
        ids = known.get("prompt_ids", prompt)
        continuation = known.get("continuation")
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch) / "logits.npy"
            tokens = generate(program, device, model, ids, len(continuation or [0]), file)
            found = numpy.load(file)
        reference = model / "expected.safetensors" if model.is_dir() else model.with_suffix(".safetensors")
        expected = tensor(reference, "logits").reshape(found.shape)
        off = float(numpy.abs(found - expected).max() / numpy.abs(expected).max())
        limit = LOOSE.get(model.stem, TOLERANCE)
        # It ends at a token that ends texts, the fixture does not.
        same = continuation is None or (tokens and tokens == continuation[: len(tokens)])
        print(f"{model.name}: logits off by {off:.1e} of the largest ({limit:.0e} accepted), {f'the same {len(tokens)} tokens' if same else 'OTHER TOKENS'}")
        failed |= not (off <= limit and same)
    sys.exit(failed)


if __name__ == "__main__":
    main()
