#!/usr/bin/env python3
"""Write or check tests/fixtures/torch_ops.json and tests/fixtures/torch_training.json.

Both hold numbers that PyTorch computed in float64 on the CPU: values and
gradients of single operators, and training runs of two small networks.
`tests/external.rs` compares Meganeura with them.

    make_torch_fixtures.py           write both files
    make_torch_fixtures.py --check   compute anew and compare with the committed
                                     numbers, which another release of PyTorch
                                     may miss by rounding errors

See README.md beside this file for what it needs.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy
import torch

# The modules beside this file leave no compiled copies in the repository.
sys.dont_write_bytecode = True

import torch_ops  # noqa: E402
import torch_training  # noqa: E402

FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures"

# Numbers are rounded to this many digits, which is below every tolerance of the test.
DIGITS = 11
# What --check lets pass, relative to the largest number of a list.
CHECK_TOLERANCE = 1e-9


def rounded(value):
    """The same structure with rounded floats; whole ones become integers, which are shorter."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            sys.exit("a fixture holds a number that is not finite: choose other operands")
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 2**53 else short
    return value


def text_of(document):
    """JSON with one entry of the main list on each line, so that changes are readable."""
    (key, entries), *rest = document.items()
    compact = lambda v: json.dumps(v, separators=(",", ":"))
    head = "".join(f"{compact(k)}:{compact(v)},\n" for k, v in rest)
    lines = ",\n".join(compact(rounded(entry)) for entry in entries)
    return f"{{{head}{compact(key)}:[\n{lines}\n]}}\n"


def differences(ours, theirs, path=""):
    """Places where two documents differ by more than rounding."""
    numbers = lambda v: isinstance(v, list) and v and all(isinstance(x, (int, float)) for x in v)
    if numbers(ours) and numbers(theirs) and len(ours) == len(theirs):
        scale = max(max(abs(x) for x in theirs), 1e-300)
        worst = max(abs(a - b) for a, b in zip(ours, theirs)) / scale
        return [f"{path}: relative difference {worst:.1e}"] if worst > CHECK_TOLERANCE else []
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return [d for k in ours for d in differences(ours[k], theirs[k], f"{path}/{k}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [d for i, (a, b) in enumerate(zip(ours, theirs)) for d in differences(a, b, f"{path}/{i}")]
    return [] if ours == theirs else [f"{path}: {ours!r:.60} here, {theirs!r:.60} in the file"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made_with = f"torch {torch.__version__}, numpy {numpy.__version__}, float64 on the CPU"
    documents = {
        "torch_ops.json": {"cases": torch_ops.cases(), "made_with": made_with},
        "torch_training.json": {"models": torch_training.models(), "made_with": made_with},
    }
    failed = False
    for name, document in documents.items():
        path, text = FIXTURES / name, text_of(document)
        if options.check:
            (key, *_) = document
            found = differences(json.loads(text)[key], json.loads(path.read_text())[key])
            failed |= bool(found)
            print(f"{name}: {len(found)} differences", *found[:20], sep="\n  ")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"{name}: {len(document[next(iter(document))])} entries, {len(text)} bytes")
    sys.exit(failed)


if __name__ == "__main__":
    main()
