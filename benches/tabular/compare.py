#!/usr/bin/env python3
"""Trains `meganeura train --csv` on the splits of peers.py, and compares its accuracy with peers.json."""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from splits import METRICS, read_index, split_files

# Peers that the best baseline is chosen from.
BASELINES = ["linear", "forest", "boosting"]
# Maximum difference to the best baseline that counts as equal.
MARGINS = {"classification": 0.01, "regression": 0.02}
# Names of the metrics in the output of `meganeura evaluate --json`.
SCORES = {"classification": "accuracy", "regression": "r2"}


class RunError(Exception):
    """A command that failed, or that printed no score."""


def call(command, args, folder, deadline):
    """Runs a command that prints JSON lines, and returns the object of the last line."""
    environment = os.environ | {"MEGANEURA_THREADS": str(args.threads)}
    name = f"`{Path(command[0]).name} {command[1]}`"
    limit = deadline - time.monotonic()
    try:
        # A configuration file in the current folder must not change the results.
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=max(limit, 0.1))
    except subprocess.TimeoutExpired:
        raise RunError(f"{name} did not end within {args.timeout} s") from None
    except OSError as error:
        raise RunError(f"{name} did not start: {error}") from None
    if done.returncode:
        raise RunError(f"{name} ended with status {done.returncode}: {done.stderr.strip()[-1000:]}")
    lines = done.stdout.strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        found = None
    if not isinstance(found, dict):
        raise RunError(f"{name}: expected a JSON object in the last line, found {lines[-1:]}")
    return found


def train_and_evaluate(args, table, seed):
    """Returns the result of one split."""
    train_file, test_file = (str(path.resolve()) for path in split_files(args.folder, table, seed))
    device = ["--device", args.device] if args.device else []
    deadline = time.monotonic() + args.timeout
    with tempfile.TemporaryDirectory(prefix="meganeura-tabular-") as folder:
        model = str(Path(folder) / "model")
        train = [args.command, "train", "--csv", train_file, "--header", "yes", "--target", table["target"]]
        train += ["--task", table["task"], "--missing", "mean", "--seed", str(seed), "--out", model, "--json"]
        # All training rows are used for training, because the test rows are in their own file.
        train += ["--test-csv", test_file, *device, *shlex.split(args.options)]
        evaluate = [args.command, "evaluate", "--model", model, "--csv", test_file, "--unknown-words", "--json", *device]
        try:
            start = time.monotonic()
            summary = call(train, args, folder, deadline)
            trained = time.monotonic()
            report = call(evaluate, args, folder, deadline)
            end = time.monotonic()
        except RunError as error:
            return {"error": str(error)}
    score = report.get(SCORES[table["task"]])
    if not isinstance(score, (int, float)):
        return {"error": f"`evaluate`: expected a number as {SCORES[table['task']]}, found {score}"}
    return {
        "score": round(score, 5),
        "train_seconds": round(trained - start, 2),
        "evaluate_seconds": round(end - trained, 2),
        "epochs": summary.get("epochs"),
        "device": summary.get("device"),
    }


def read_results(args):
    """Returns the existing results. They must belong to the same options."""
    if not args.results.is_file():
        return {}
    saved = json.loads(args.results.read_text())
    for key in ("options", "device"):
        if saved[key] != getattr(args, key):
            expected = f"expected results with --{key} '{getattr(args, key)}', found '{saved[key]}'"
            raise SystemExit(f"{args.results}: {expected}; give another file as --results")
    return saved["tables"]


def write_results(args, results):
    saved = {"options": args.options, "device": args.device, "tables": results}
    partial = args.results.with_suffix(".partial")
    partial.write_text(json.dumps(saved, indent=1, ensure_ascii=False) + "\n")
    partial.replace(args.results)


def measure(args, index, results):
    """Runs all splits without a result. Failed runs are repeated."""
    runs = []
    for seed in range(args.seeds):
        for table in index:
            if "score" in results.get(table["name"], {}).get(str(seed), {}):
                continue
            for path in split_files(args.folder, table, seed):
                if not path.is_file():
                    command = f"peers.py {args.folder} --seeds {args.seeds} --splits-only"
                    raise SystemExit(f"{path}: no such file; run {command} first")
            runs.append((table, seed))
    if runs and not args.command:
        raise SystemExit("--command: expected the path of meganeura, found nothing")
    with ThreadPoolExecutor(args.jobs) as pool:
        pending = {pool.submit(train_and_evaluate, args, table, seed): (table, seed) for table, seed in runs}
        try:
            for count, done in enumerate(as_completed(pending), 1):
                table, seed = pending[done]
                result = done.result()
                results.setdefault(table["name"], {})[str(seed)] = result
                write_results(args, results)
                text = f"{result['score']:.4f} ({result['train_seconds']:.1f} s)" if "score" in result else result["error"]
                print(f"[{count}/{len(runs)}] {table['name']}, seed {seed}: {text}", file=sys.stderr)
        finally:
            # After Ctrl-C, only the running commands end.
            pool.shutdown(cancel_futures=True)


def spread(values):
    """Formats mean and standard deviation."""
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def compared(table, runs, peers):
    """Returns the comparison of one table over the seeds that Meganeura and all peers have results for."""
    scores = {name: found["scores"] for name, found in peers.items()}
    seeds = [seed for seed, run in runs.items() if "score" in run and all(seed in found for found in scores.values())]
    failed = sum("error" in run for run in runs.values())
    row = {"table": table, "failed": failed, "seeds": len(seeds), "reaches_mlp": False, "is_near_best": False}
    values = {name: [found[seed] for seed in seeds] for name, found in scores.items()}
    values["meganeura"] = [runs[seed]["score"] for seed in seeds]
    row["values"] = values
    if seeds:
        means = {name: statistics.mean(found) for name, found in values.items()}
        row["best"] = max(BASELINES, key=lambda name: means[name])
        row["seconds"] = statistics.mean(runs[seed]["train_seconds"] for seed in seeds)
        row["total"] = sum(runs[seed]["train_seconds"] + runs[seed]["evaluate_seconds"] for seed in seeds)
        if not failed:
            row["reaches_mlp"] = means["meganeura"] >= means["mlp"]
            row["is_near_best"] = means["meganeura"] >= means[row["best"]] - MARGINS[table["task"]]
    return row


def markdown(rows):
    """Returns the lines of the table and of its summary."""
    lines = [
        "| table | rows | metric | Meganeura | MLP | linear | forest | boosting | best baseline | ≥ MLP | near best | s per run |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- | --- | --- | ---: |",
    ]
    for row in rows:
        table, values = row["table"], row["values"]
        cells = [table["name"], f"{table['rows']:,}", METRICS[table["task"]]]
        failed = f"{row['failed']} failed" if row["failed"] else ""
        if row["seeds"]:
            cells.append(", ".join(filter(None, [spread(values["meganeura"]), failed])))
            cells += [spread(values[name]) for name in ("mlp", *BASELINES)]
            cells.append(f"{row['best']} {statistics.mean(values[row['best']]):.3f}")
            cells += ["yes" if row[key] else "no" for key in ("reaches_mlp", "is_near_best")]
            cells.append(f"{row['seconds']:.1f}")
        else:
            cells += [failed, *[""] * 5, "no", "no", ""]
        lines.append(f"| {' | '.join(cells)} |")
    count = len(rows)
    share = lambda key: f"{sum(row[key] for row in rows)} of {count} tables ({100 * sum(row[key] for row in rows) / count:.0f} %)"
    margins = " or ".join(f"{MARGINS[task]} ({METRICS[task]})" for task in MARGINS)
    total = sum(row.get("total", 0.0) for row in rows)
    times = [row["seconds"] for row in rows if "seconds" in row]
    lines += ["", f"- At least the score of scikit-learn's MLP: {share('reaches_mlp')}"]
    lines.append(f"- Within {margins} of the best of {', '.join(BASELINES)}: {share('is_near_best')}")
    if times:
        lines.append(f"- Time: {total:.0f} s for all runs, median {statistics.median(times):.1f} s of training per run")
    return lines


def options():
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder that tables.py and peers.py wrote")
    parser.add_argument("--command", help="path of meganeura, such as target/release/meganeura")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="number of splits per table (default: 5)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="table to measure; may be repeated (default: all)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of runs at the same time (default: 1)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="number of CPU threads per run (default: 1)")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="time limit of a run (default: 600)")
    parser.add_argument("--device", metavar="SELECTOR", help="device of meganeura (default: its own choice)")
    parser.add_argument(
        "--options",
        default="",
        metavar="TEXT",
        help="further options of `meganeura train`, such as --options='--epochs 50' (default: none)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="file of results; existing ones are kept (default: results.json of the folder)",
    )
    parser.add_argument(
        "--peers",
        type=Path,
        default=here / "peers.json",
        metavar="FILE",
        help="results of peers.py (default: peers.json of this folder)",
    )
    parser.add_argument("--print", action="store_true", help="print the table of the existing results, and run nothing")
    args = parser.parse_args()
    args.results = args.results or args.folder / "results.json"
    if args.command:
        # Runs have another current folder.
        found = shutil.which(args.command)
        if not found:
            parser.error(f"--command: there is no program {args.command}")
        args.command = str(Path(found).resolve())
    return args


def main():
    args = options()
    index = read_index(args.folder, args.only)
    results = read_results(args)
    peers = json.loads(args.peers.read_text())["tables"]
    if not args.print:
        measure(args, index, results)
    rows = []
    for table in index:
        runs = {seed: run for seed, run in results.get(table["name"], {}).items() if int(seed) < args.seeds}
        missing = {"mlp", *BASELINES} - set(peers.get(table["name"], {"peers": {}})["peers"])
        if missing:
            print(f"{table['name']}: {args.peers} has no results of {', '.join(sorted(missing))}", file=sys.stderr)
        elif runs:
            rows.append(compared(table, runs, peers[table["name"]]["peers"]))
    if not rows:
        raise SystemExit("there are no results to compare")
    print("\n".join(markdown(rows)))


if __name__ == "__main__":
    main()
