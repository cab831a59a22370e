#!/usr/bin/env python3
"""Compares the throughput of one ONNX model from several threads with ONNX Runtime.

    onnx_threads.py MODEL.onnx --command target/release/meganeura --input x=1x3x224x224

For each batch size and number of threads, both run for some seconds, in turns. ONNX Runtime has one session for all threads, with as many
threads inside as processors. Prints runs per second and the ratio. Needs onnxruntime and numpy.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time

import numpy as np
import onnxruntime as ort


def peer_rate(session, feeds, threads, seconds):
    """Returns the runs per second of all threads."""
    barrier = threading.Barrier(threads)
    rates = []

    def repeat():
        session.run(None, feeds)
        barrier.wait()
        begin, runs = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            session.run(None, feeds)
            runs += 1
        rates.append(runs / (time.perf_counter() - begin))

    workers = [threading.Thread(target=repeat) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(rates)


def own_rate(command, model, folder, threads, seconds):
    """Returns the runs per second of `meganeura run --threads`."""
    arguments = [command, "run", model, "--inputs-dir", folder, "--device", "cpu", "--json"]
    arguments += ["--repeat", str(seconds), "--threads", str(threads)]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    return json.loads(output)["runs_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--command", default="target/release/meganeura")
    parser.add_argument("--input", required=True, help="NAME=1xAxB: an f32 input with a batch of one")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--threads", default="1,2,4,8")
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    name, shape = options.input.split("=")
    shape = [int(size) for size in shape.split("x")]
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = os.cpu_count()
    session = ort.InferenceSession(options.model, settings, providers=["CPUExecutionProvider"])
    print("batch threads  meganeura  onnxruntime  ratio   (runs per second)")
    for batch in map(int, options.batches.split(",")):
        array = np.random.default_rng(batch).standard_normal([batch, *shape[1:]]).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            np.save(pathlib.Path(folder) / f"{name}.npy", array)
            for threads in map(int, options.threads.split(",")):
                own = own_rate(options.command, options.model, folder, threads, options.seconds)
                peer = peer_rate(session, {name: array}, threads, options.seconds)
                print(f"{batch:5} {threads:7} {own:10.1f} {peer:12.1f} {own / peer:6.2f}")


if __name__ == "__main__":
    main()
