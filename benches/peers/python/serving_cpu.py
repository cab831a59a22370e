"""The server of llama.cpp beside `meganeura serve` on the CPU, with the same clients.

    serving_cpu.py MEGANEURA MODEL.gguf [MODEL.gguf ...] [--rounds N] [--requests N] [--clients N ...] [--tokens N]

Each round starts both servers anew for each model, one after the other, and sends the same prompts of 8 to 120 words to both, greedy:
a client sends its next request when the one before is complete. Prints a line of JSON for each measurement, and one with the medians of
all rounds and the ratios of the rounds' pairs at the end. `others` is the part of all processors' time that other programs took: with
--wait, a measurement begins when they take less than a tenth, or after so many seconds. `processor_seconds` are those of the server; with
several threads, those for which threads spin while they wait for each other are among them. Needs Linux, and xllamacpp, which contains
llama.cpp's server.
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

WORDS = (8, 120)
SEQUENCES = 4
CONTEXT = 1024
FIGURES = ("tokens_per_second", "processor_seconds", "first_p50", "first_p99", "between_p50", "between_p99")


def llama_cpp(model, threads):
    """Runs in a process of its own until that is ended."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    # The context is that of all sequences together.
    params.n_parallel, params.n_ctx, params.fit_params = SEQUENCES, SEQUENCES * CONTEXT, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(f"at {server.listening_address}", flush=True)
    time.sleep(86400)


def start(way, program, model, threads):
    """A server, and its port."""
    command = [sys.executable, __file__, "--llama-cpp", model, "--threads", str(threads)]
    if way == "meganeura":
        command = [program, "serve", "--model", model, "--port", "0", "--sequences", str(SEQUENCES), "--context", str(CONTEXT)]
        command += ["--cache", str(SEQUENCES * CONTEXT), "--device", "cpu"]
    environment = os.environ | {"MEGANEURA_THREADS": str(threads)}
    # One says where it is on standard error, the other has its log there.
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} if way == "meganeura" else {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, text=True, env=environment, **output)
    for line in server.stderr or server.stdout:
        if found := re.search(r"at http://127\.0\.0\.1:(\d+)", line):
            return server, int(found[1])
    sys.exit(f"{way} did not start: {command}")


def ask(port, number, tokens):
    """Seconds to the first token and between tokens, and the number of tokens."""
    rng = random.Random(number)
    prompt = " ".join(f"word{rng.randrange(1000)}" for _ in range(rng.randrange(*WORDS)))
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    times, usage = [], None
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        if any(choice.get("text") for choice in event.get("choices", [])):
            times.append(time.perf_counter())
    if answer.status != 200 or not times or not usage:
        sys.exit(f"an answer without text or usage, status {answer.status}")
    return times[0] - begun, [b - a for a, b in zip(times, times[1:])], usage["completion_tokens"], usage["prompt_tokens"]


def busy():
    """Seconds that all processors were busy for, summed."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def used(pids):
    """Seconds of processors that these processes took, with all their threads."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def share_of_others(work, *pids):
    """What other processes take of all processors while a function works, and what that returns."""
    pids = (os.getpid(), *pids)
    begun, before, own = time.perf_counter(), busy(), used(pids)
    result = work()
    others = busy() - before - (used(pids) - own)
    return max(others, 0.0) / (time.perf_counter() - begun) / os.cpu_count(), result


def wait_for_others(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and share_of_others(lambda: time.sleep(1))[0] > 0.1:
        pass


def measure(server, port, requests, clients, tokens):
    answers = []
    # Once before, as threads and memory are needed for the first time; no prompt of those that follow.
    ask(port, 10**6, 4)

    def client(first):
        for number in range(first, requests, clients):
            answers.append(ask(port, number, tokens))

    begun, before = time.perf_counter(), used([server])
    threads = [threading.Thread(target=client, args=(first,)) for first in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, processors = time.perf_counter() - begun, used([server]) - before
    if len(answers) != requests:
        sys.exit("a request failed")
    first = sorted(answer[0] * 1e3 for answer in answers)
    between = sorted(gap * 1e3 for answer in answers for gap in answer[1])
    at = lambda times, part: times[min(int(part * len(times)), len(times) - 1)]
    figures = [sum(answer[2] for answer in answers) / seconds, processors]
    figures += [at(times, part) for times in (first, between) for part in (0.5, 0.99)]
    return dict(zip(FIGURES, figures)) | {"prompt_tokens": sum(answer[3] for answer in answers)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wait", type=float, default=0)
    parser.add_argument("--llama-cpp", metavar="MODEL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.llama_cpp:
        return llama_cpp(given.llama_cpp, given.threads)
    rounded = lambda figures: {name: round(value, 2) for name, value in figures.items()}
    # So that servers end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found = {}
    for turn in range(given.rounds):
        for model in given.models:
            for clients in given.clients:
                # Who begins changes, so that a machine that slows down is no one's loss.
                for way in ("meganeura", "llama.cpp")[:: 1 if turn % 2 == 0 else -1]:
                    server, port = start(way, given.program, model, given.threads)
                    try:
                        wait_for_others(given.wait)
                        work = lambda: measure(server.pid, port, given.requests, clients, given.tokens)
                        others, figures = share_of_others(work, server.pid)
                    finally:
                        server.kill()
                        server.wait()
                    found.setdefault((model, clients), {}).setdefault(way, []).append(figures)
                    row = {"round": turn, "model": os.path.basename(model), "clients": clients, "server": way, "others": round(others, 3)}
                    print(json.dumps(row | rounded(figures)), flush=True)
    for (model, clients), ways in found.items():
        row = {"model": os.path.basename(model), "clients": clients}
        for way, turns in ways.items():
            row[way] = rounded({name: statistics.median(turn[name] for turn in turns) for name in FIGURES})
        pairs = list(zip(ways["meganeura"], ways["llama.cpp"]))
        row["ratio"] = rounded({name: statistics.median(own[name] / other[name] for own, other in pairs) for name in FIGURES})
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
