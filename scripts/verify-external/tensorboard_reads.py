#!/usr/bin/env python3
"""Opens an event file with TensorBoard's own reader and compares it with metrics.csv beside it.

    pip install tensorboard
    cargo run --release -- train digits --epochs 3 --log-dir /tmp/run
    python3 scripts/verify-external/tensorboard_reads.py /tmp/run
"""

import csv
import math
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    print("tags:", ", ".join(sorted(tags)))
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    compared = 0
    for event, tag, column in [
        ("step", "train/loss", "loss"),
        ("evaluation", "test/loss", "loss"),
        ("evaluation", "test/accuracy", "accuracy"),
        ("epoch", "epoch/loss", "loss"),
    ]:
        expected = [(int(r["step"]), float(r[column])) for r in rows if r["event"] == event]
        found = [(v.step, v.value) for v in events.Scalars(tag)]
        assert len(found) == len(expected), (tag, len(found), len(expected))
        for (step, value), (same_step, same) in zip(found, expected):
            assert step == same_step and math.isclose(value, same, rel_tol=1e-6, abs_tol=1e-9), (tag, step, value, same)
        compared += len(found)
    assert compared > 0, "the folder has no values"
    print(f"{compared} values agree with metrics.csv")


if __name__ == "__main__":
    main()
