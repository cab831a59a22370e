#!/usr/bin/env python3
"""Compares tokens, logits and greedy texts of a GGUF model with llama.cpp's.

    python3 -m venv venv
    venv/bin/pip install xllamacpp numpy
    venv/bin/python scripts/verify-external/llama_cpp.py MEGANEURA MODEL.gguf [--device DEVICE] [--weights STORAGE] [--tokens N]

MEGANEURA is the program, MODEL one that llama.cpp reads as well, such as that of scripts/gemma3_270m.py. Tokens of all texts have to be
the same. Greedy texts may differ from a place on where the two likeliest tokens are about as likely as each other:
there, and at the end of each prompt, log-probabilities have to agree within TOLERANCE. llama.cpp rounds what a matrix is multiplied by
to 8 bits, so no more than that can be expected. Fails if anything else is found.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import numpy
import xllamacpp

TEXTS = [
    "The capital of France is",
    "  two spaces, a\ttab and\n\n\nlines\n    def f(x):\r\n",
    "“Curious”, and naïve: 好奇 🐇👩‍👩‍👧! It's 1234567.89",
    "<start_of_turn>user\nWhat is 2 + 2?<end_of_turn>\n<start_of_turn>model\n",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Der schnellste Weg, eine Sprache zu lernen, ist",
    "water, fire, earth, air, " * 200,
]
# Of log-probabilities of the likeliest tokens; 0.7 was found after a prompt of 1,602 tokens.
TOLERANCE = 1.0
LIKELIEST = 5


class Peer:
    """llama.cpp's server in this process."""

    def __init__(self, model):
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_parallel, params.n_ctx, params.fit_params = 1, 4096, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
        self.server = xllamacpp.Server(params)
        self.address = self.server.listening_address

    def ask(self, path, **body):
        request = urllib.request.Request(f"{self.address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def tokens(self, text):
        return self.ask("/tokenize", content=text, add_special=True, parse_special=True)["tokens"]

    def greedy(self, ids, count):
        """The tokens that follow."""
        body = {"prompt": ids, "n_predict": count, "temperature": 0, "return_tokens": True, "cache_prompt": False}
        return self.ask("/completion", **body)["tokens"]

    def likeliest(self, ids):
        """The likeliest next tokens with the logarithms of their probabilities."""
        body = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": LIKELIEST, "cache_prompt": False}
        first = self.ask("/completion", **body)["completion_probabilities"][0]
        return {entry["id"]: entry["logprob"] for entry in first["top_logprobs"]}


class Ours:
    """The program, run anew each time."""

    def __init__(self, program, model, options):
        self.command = [program, "generate", "--model", str(model), "--temperature", "0", "--json"] + options

    def run(self, *args):
        done = subprocess.run(self.command + list(args), capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"meganeura: {done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])

    def greedy(self, text, count):
        """Tokens of the text and those that follow."""
        answer = self.run("--prompt", text, "--max-tokens", str(count))
        return answer["prompt_ids"], answer["token_ids"]

    def logarithms(self, ids):
        """Of the probabilities of all next tokens."""
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch) / "logits.npy"
            self.run("--prompt-ids", ",".join(map(str, ids)), "--max-tokens", "1", "--logits", str(file))
            logits = numpy.load(file)
        last = logits.reshape(-1, logits.shape[-1])[-1].astype(numpy.float64)
        return last - last.max() - numpy.log(numpy.exp(last - last.max()).sum())


def same_beginning(one, other):
    pairs = zip(one, other)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def distance(peer, ours, ids):
    """How far the logarithms of the likeliest tokens differ, and how much likelier the first is than the second."""
    theirs, own = peer.likeliest(ids), ours.logarithms(ids)
    first, second = sorted(theirs.values(), reverse=True)[:2]
    return max(abs(own[token] - value) for token, value in theirs.items()), first - second


def compare(peer, ours, text, count):
    """Whether a text is read and continued alike; says what is found."""
    ids, own = ours.greedy(text, count)
    wanted = peer.tokens(text)
    name = json.dumps(text[:40], ensure_ascii=False)
    if ids != wanted:
        at = same_beginning(ids, wanted)
        print(f"{name}: OTHER TOKENS from {at} on: {ids[at : at + 8]}, llama.cpp {wanted[at : at + 8]}")
        return False
    theirs = peer.greedy(ids, count)
    off, _ = distance(peer, ours, ids)
    same = same_beginning(own, theirs)
    message, right = f"{len(ids)} tokens, likeliest off by {off:.3f}", off <= TOLERANCE
    # One may leave out the token that ends a text.
    if same < min(len(own), len(theirs)):
        off, lead = distance(peer, ours, ids + own[:same])
        message += f"; other text after {same} tokens, where llama.cpp's first leads by {lead:.3f} and the likeliest are off by {off:.3f}"
        right = right and off <= TOLERANCE and lead <= 2 * off
    else:
        message += f"; the same {same} tokens"
    print(f"{name}: {message}{'' if right else ' WRONG'}", flush=True)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights")
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    options = ["--device", given.device] + (["--weights", given.weights] if given.weights else [])
    peer, ours = Peer(given.model), Ours(given.program, given.model, options)
    results = [compare(peer, ours, text, given.tokens) for text in TEXTS]
    print(f"{sum(results)} of {len(results)} texts agree")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
