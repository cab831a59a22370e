"""Evaluates a running server with lm-eval: lm_eval_client.py http://127.0.0.1:8080 CHECKPOINT

The server has to serve CHECKPOINT, a folder of checkpoint.py. Compares the log-likelihoods that lm-eval computes from
`/v1/completions` with those of the same checkpoint in NumPy, which has to agree with the logits of `transformers` in
tests/fixtures/transformers/llama. Needs the packages `lm-eval[api]`, `transformers` and `numpy`, and downloads nothing. Prints each
check, and fails at the first difference.
"""

import json
import logging
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

for name in ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"]:
    os.environ[name] = "1"
for name in ["TQDM_DISABLE", "HF_DATASETS_DISABLE_PROGRESS_BARS"]:
    os.environ[name] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The client reads the key from here only.
os.environ["OPENAI_API_KEY"] = "none"
CACHE = tempfile.TemporaryDirectory()
os.environ["HF_DATASETS_CACHE"] = CACHE.name

import lm_eval  # noqa: E402
import numpy as np  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

TOLERANCE = 1e-3
FIXTURE = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "transformers" / "llama"
QUESTIONS = [
    {"question": "The duck swims in the", "choices": ["pond", "sky", "big old tree"], "answer": 0},
    {"question": "Two and two are", "choices": ["four", "five"], "answer": 0},
    {"question": "Größe 🦆 is", "choices": ["größer", "日本", "x"], "answer": 2},
    {"question": "A", "choices": ["b", "B", "bb bb bb bb"], "answer": 1},
]
TASKS = {
    "choice": """
task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "rolling": """
task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}]
""",
    "greedy": """
task: greedy
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "x"
generation_kwargs: {max_gen_toks: 8, until: ["\\n\\n"]}
metric_list: [{metric: exact_match}]
""",
}


def tensors(path):
    """Reads a safetensors file of `f32`."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    read = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[8 + size + begin : 8 + size + end], "<f4")
        read[name] = values.reshape(entry["shape"]).astype(np.float64)
    return read


class Llama:
    """The checkpoint in `float64`, for one sequence."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = tensors(folder / "model.safetensors")

    def norm(self, x, name):
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * self.weights[name]

    def rotate(self, x):
        """Applies rotary positions to [length, heads, head_dim]."""
        length, _, size = x.shape
        frequencies = self.config["rope_parameters"]["rope_theta"] ** (-np.arange(0, size, 2) / size)
        angles = np.arange(length)[:, None, None] * frequencies
        first, second = x[..., : size // 2], x[..., size // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def logits(self, tokens):
        c, w, length = self.config, self.weights, len(tokens)
        heads, kv_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        x = w["model.embed_tokens.weight"][tokens]
        future = np.triu(np.full((length, length), -np.inf), 1)
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (h @ w[f"{p}self_attn.{n}_proj.weight"].T for n in "qkv")
            q = self.rotate(q.reshape(length, heads, size))
            k = self.rotate(k.reshape(length, kv_heads, size)).repeat(heads // kv_heads, 1)
            v = v.reshape(length, kv_heads, size).repeat(heads // kv_heads, 1)
            scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + future
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            x = x + np.einsum("hqk,khd->qhd", scores, v).reshape(length, -1) @ w[p + "self_attn.o_proj.weight"].T
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate, up = (h @ w[f"{p}mlp.{n}_proj.weight"].T for n in ["gate", "up"])
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
        return self.norm(x, "model.norm.weight") @ w["model.embed_tokens.weight"].T

    def log_probabilities(self, tokens):
        """Returns those of all tokens after each position."""
        logits = self.logits(tokens)
        logits = logits - logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def check_numpy(model):
    expected = json.loads((FIXTURE / "expected.json").read_text())
    logits = tensors(FIXTURE / "expected.safetensors")["logits"]
    found = model.logits(expected["prompt_ids"])
    difference = np.abs(found - logits).max()
    assert difference < 1e-4 * np.abs(logits).max(), difference
    print(f"the forward pass in NumPy agrees with transformers: {difference:.1e}")


def served_model(address):
    with urllib.request.urlopen(address + "/v1/models") as response:
        return json.load(response)["data"][0]["id"]


def evaluate(address, checkpoint, folder, batch_size):
    data = folder / "questions.json"
    data.write_text("\n".join(json.dumps(each) for each in QUESTIONS))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(text.replace("DATA", json.dumps(str(data))))
    settings = {
        "base_url": address + "/v1/completions",
        "model": served_model(address),
        "tokenizer": str(checkpoint),
        "tokenizer_backend": "huggingface",
        "tokenized_requests": True,
        "num_concurrent": 1,
        "max_retries": 1,
        "max_length": 1024,
    }
    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args=settings,
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        batch_size=batch_size,
        log_samples=True,
        bootstrap_iters=0,
    )


def encode(tokenizer, context, continuation):
    """Splits tokens as lm-eval does: those of the whole text after as many as the context has."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    whole = tokenizer.encode(context + continuation, add_special_tokens=False)
    return whole, len(tokenizer.encode(context, add_special_tokens=False))


def compare(model, tokenizer, results):
    largest = count = 0
    for sample in results["samples"]["choice"]:
        for (context, continuation), [(found, is_greedy)] in zip(sample["arguments"], sample["resps"]):
            tokens, start = encode(tokenizer, context, continuation)
            every = model.log_probabilities(tokens)
            own = [every[i - 1, tokens[i]] for i in range(start, len(tokens))]
            best = all(every[i - 1].argmax() == tokens[i] for i in range(start, len(tokens)))
            largest = max(largest, abs(sum(own) - float(found)))
            assert largest < TOLERANCE, f"{context!r} {continuation!r}: expected {sum(own)}, found {found}"
            assert str(best) == str(is_greedy), f"{context!r} {continuation!r}: greedy is {is_greedy}, expected {best}"
            count += 1
    assert count == sum(len(each["choices"]) for each in QUESTIONS)
    print(f"{count} choices: log-likelihoods differ by {largest:.1e} at most")
    for sample, question in zip(results["samples"]["rolling"], QUESTIONS):
        tokens = tokenizer.encode(question["question"], add_special_tokens=False)
        # The text follows the token that lm-eval takes as its prefix.
        tokens = [tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id, *tokens]
        every = model.log_probabilities(tokens)
        own = sum(every[i - 1, tokens[i]] for i in range(1, len(tokens)))
        found = float(np.ravel(sample["resps"])[0])
        assert abs(own - found) < TOLERANCE, f"{question}: expected {own}, found {found}"
    print(f"{len(QUESTIONS)} whole texts: log-likelihoods agree")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    logging.disable(logging.WARNING)
    address, checkpoint = sys.argv[1], Path(sys.argv[2])
    model = Llama(checkpoint)
    check_numpy(model)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    texts = []
    for batch_size in [1, 4]:
        with tempfile.TemporaryDirectory() as folder:
            results = evaluate(address, checkpoint, Path(folder), batch_size)
        compare(model, tokenizer, results)
        texts.append([sample["resps"] for sample in results["samples"]["greedy"]])
    assert texts[0] == texts[1], texts
    print("greedy texts are the same with several prompts in a request")


main()
