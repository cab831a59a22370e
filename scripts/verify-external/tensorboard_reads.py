#!/usr/bin/env python3
"""Opens event files with TensorBoard's own reader and compares them with metrics.jsonl beside them.

    pip install tensorboard
    cargo run --release -- train digits --epochs 3 --statistics 50 --log-dir /tmp/run
    python3 scripts/verify-external/tensorboard_reads.py /tmp/run

A run that was ended and went on (`--checkpoint DIR --resume`) must look like one that was not.
"""

import json
import math
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def of_one_run(path: pathlib.Path) -> list[dict]:
    """The events of the file, without those that an ended run wrote beyond the checkpoint from which the next went on."""
    kept: list[dict] = []
    with open(path, encoding="utf-8") as file:
        for event in map(json.loads, file):
            if event["event"] == "train_begin":
                goes_on_after = event["resumed_steps"]
                kept = [e for e in kept if e["step"] <= goes_on_after] if goes_on_after else []
            elif event["event"] != "train_end":
                kept.append(event)
    return kept


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def scalars(events: EventAccumulator, rows: list[dict]) -> int:
    compared = 0
    for event, tag, field in [
        ("step", "train/loss", "loss"),
        ("evaluation", "test/loss", "loss"),
        ("evaluation", "test/accuracy", "accuracy"),
        ("epoch", "epoch/loss", "loss"),
    ]:
        expected = [(r["step"], r[field]) for r in rows if r["event"] == event]
        found = [(v.step, v.value) for v in events.Scalars(tag)]
        assert len(found) == len(expected), (tag, len(found), len(expected))
        for (step, value), (same_step, same) in zip(found, expected):
            assert step == same_step and close(value, same), (tag, step, value, same)
        compared += len(found)
    return compared


def histograms(events: EventAccumulator, rows: list[dict]) -> int:
    expected: dict[str, list[tuple[int, dict]]] = {}
    for row in rows:
        if row["event"] == "statistics" and row["min"] is not None:
            expected.setdefault(f"{row['kind']}/{row['name']}", []).append((row["step"], row))
    assert set(events.Tags()["histograms"]) == set(expected), "other histograms"
    for tag, list_ in expected.items():
        found = events.Histograms(tag)
        assert [v.step for v in found] == [step for step, _ in list_], tag
        for value, (_, row) in zip(found, list_):
            histogram = value.histogram_value
            finite = row["len"] - row["nan"] - row["positive_infinities"] - row["negative_infinities"]
            assert histogram.num == finite == sum(histogram.bucket), (tag, histogram, row)
            assert close(histogram.min, row["min"]) and close(histogram.max, row["max"]), (tag, histogram, row)
            assert close(histogram.sum / histogram.num, row["mean"]), (tag, histogram, row)
    return sum(map(len, expected.values()))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    tags = events.Tags()
    print("tags:", ", ".join(sorted(tags["scalars"] + tags["histograms"])))
    rows = of_one_run(folder / "metrics.jsonl")
    compared = scalars(events, rows)
    assert compared > 0, "the folder has no values"
    print(f"{compared} values and {histograms(events, rows)} histograms agree with metrics.jsonl")


if __name__ == "__main__":
    main()
