#!/usr/bin/env python3
"""Write or check the fixtures of tests/it/external: tests/fixtures/torch/*.json and torch_training.json.

They hold numbers that PyTorch computed in float64 on the CPU: values and
gradients of single operators, and training runs of small networks.
`tests/it/external` compares Meganeura with them.

    make_torch_fixtures.py               write all files
    make_torch_fixtures.py losses        write one of them: torch/losses.json, from ops/losses.py
    make_torch_fixtures.py --check       compute anew and compare with the committed
                                         numbers, which another release of PyTorch
                                         may miss by rounding errors

See README.md beside this file for what it needs.
"""

import argparse
import importlib
import json
import math
import sys
import zlib
from pathlib import Path

import numpy
import torch

# The modules beside this file leave no compiled copies in the repository.
sys.dont_write_bytecode = True

import torch_training  # noqa: E402
from torch_cases import Cases  # noqa: E402

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
# Not a family of operators.
TRAINING = "training"

# Numbers are rounded to this many digits, which is below every tolerance of the test.
DIGITS = 11
# What --check lets pass, relative to the largest number of a list.
CHECK_TOLERANCE = 1e-9


def rounded(value):
    """The same structure with rounded floats; whole ones become integers, which are shorter. Attributes stay
    as they are: there the type matters."""
    if isinstance(value, dict):
        return {key: v if key == "attrs" else rounded(v) for key, v in value.items()}
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


def families():
    """The case files, by name."""
    return sorted(path.stem for path in (HERE / "ops").glob("*.py"))


def cases_of(family):
    module = importlib.import_module(f"ops.{family}")
    # Random operands depend on the file alone, not on what other files there are.
    cases = Cases(getattr(module, "SEED", zlib.crc32(family.encode())))
    module.cases(cases)
    return cases.found


def documents(wanted):
    """Path and contents of the fixtures of these families."""
    made_with = f"torch {torch.__version__}, numpy {numpy.__version__}, float64 on the CPU"
    for family in wanted:
        if family == TRAINING:
            yield FIXTURES / "torch_training.json", {"models": torch_training.models(), "made_with": made_with}
        else:
            yield FIXTURES / "torch" / f"{family}.json", {"cases": cases_of(family), "made_with": made_with}


def check(path, document):
    """Whether the file holds what was computed now."""
    if not path.exists():
        print(f"{path.name}: is missing")
        return False
    (key, *_) = document
    found = differences(json.loads(text_of(document))[key], json.loads(path.read_text())[key])
    print(f"{path.name}: {len(found)} differences", *found[:20], sep="\n  ")
    return not found


def write(path, document):
    text = text_of(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"{path.name}: {len(document[next(iter(document))])} entries, {len(text)} bytes")


def main():
    everything = families() + [TRAINING]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("only", nargs="*", help=f"which fixtures, of {', '.join(everything)}; all if none is named")
    options = parser.parse_args()
    unknown = set(options.only) - set(everything)
    if unknown:
        parser.error(f"there is no case file for {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    good = True
    for path, document in documents(options.only or everything):
        if options.check:
            good &= check(path, document)
        else:
            write(path, document)
    left = {path.stem for path in (FIXTURES / "torch").glob("*.json")} - set(families())
    for family in sorted(left):
        print(f"torch/{family}.json: has no case file")
    sys.exit(not good or bool(left))


if __name__ == "__main__":
    main()
