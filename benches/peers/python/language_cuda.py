"""A language model of SmolLM2-135M's shape and others' workloads in PyTorch on an NVIDIA GPU, beside `meganeura bench`.

    python language_cuda.py [token] [prompt] [train] [mlp] [matmul]

Models are compiled (torch.compile, mode reduce-overhead, which makes CUDA graphs); steps of the MLP and matmuls are one CUDA graph. Prompts and tokens are computed in f16, a token
with 128 of 512 rows of a static cache; training keeps parameters in
f32 and computes matmuls in f16 (autocast), with plain gradient descent. Prints a line of JSON for each figure: milliseconds a step, the
median of seven samples of many steps that nobody waits for. Needs torch and transformers.
"""

import json
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from ddp_cuda import SHAPE

# SmolLM2-1.7B's.
LARGE = dict(SHAPE, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32, num_key_value_heads=32)


def graph_of(step):
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(run):
    for _ in range(20):
        run()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(20):
        run()
    torch.cuda.synchronize()
    count = max(20, int(0.1 / ((time.perf_counter() - begun) / 20)))
    samples = []
    for _ in range(7):
        begun = time.perf_counter()
        for _ in range(count):
            run()
        torch.cuda.synchronize()
        samples.append(1e3 * (time.perf_counter() - begun) / count)
    return sorted(samples)[3]


def say(workload, ms, **more):
    print(json.dumps({"pytorch": torch.__version__, "workload": workload, "ms": round(ms, 4), **more}), flush=True)


def llama(dtype):
    torch._dynamo.reset()
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="sdpa")).to("cuda", dtype)


@torch.no_grad()
def token():
    for name, shape in (("135M", SHAPE), ("1.7B", LARGE)):
        torch._dynamo.reset()
        config = LlamaConfig(**shape, attn_implementation="sdpa")
        model = LlamaForCausalLM(config).to("cuda", torch.float16).eval()
        cache = StaticCache(config=config, max_cache_len=512)
        prompt, place = torch.arange(128, device="cuda")[None], torch.arange(128, device="cuda")
        model(prompt, past_key_values=cache, cache_position=place)
        compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        one, place = prompt[:, :1].clone(), torch.tensor([128], device="cuda")
        positions = place[None].clone()

        def step():
            # The same row of the cache each time.
            cache_length(cache, 128)
            return compiled(one, past_key_values=cache, cache_position=place, position_ids=positions).logits

        say(f"token {name}", milliseconds(step))
        del model, cache, compiled
        torch.cuda.empty_cache()


def cache_length(cache, rows):
    """Newer versions count the rows that they have written themselves."""
    for layer in getattr(cache, "layers", []):
        count = getattr(layer, "cumulative_length", None)
        if torch.is_tensor(count):
            count.fill_(rows)


@torch.no_grad()
def prompt():
    for rows in (128, 512):
        model = torch.compile(llama(torch.float16).eval(), mode="reduce-overhead")
        tokens = torch.arange(rows, device="cuda")[None] % 1000
        say(f"prompt of {rows}", milliseconds(lambda: model(tokens, use_cache=False).logits))


def train():
    for rows in (128, 512):
        model = llama(torch.float32).train()
        tokens = torch.arange(rows + 1, device="cuda")[None] % 1000
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)

        def loss_of():
            with torch.autocast("cuda", torch.float16):
                logits = model(tokens[:, :-1], use_cache=False).logits
            return torch.nn.functional.cross_entropy(logits.float()[0], tokens[0, 1:])

        compiled = torch.compile(loss_of, mode="reduce-overhead")

        def step():
            torch.compiler.cudagraph_mark_step_begin()
            compiled().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        say(f"training step of {rows}", milliseconds(step))
        del model, optimizer, compiled
        torch.cuda.empty_cache()


def mlp():
    for batch in (32, 512):
        torch._dynamo.reset()
        torch.manual_seed(1)
        sizes = [784, 256, 128, 10]
        layers = [part for a, b in zip(sizes, sizes[1:]) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())][:-1]
        model = torch.compile(torch.nn.Sequential(*layers).cuda())
        x, y = torch.randn(batch, 784, device="cuda"), torch.randint(10, (batch,), device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

        def step():
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        say(f"mlp training step, batch {batch}", milliseconds(graph_of(step)))


def matmul():
    for size in (1024, 4096, 8192):
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
        c = torch.empty_like(a)

        def twenty():
            for _ in range(20):
                torch.matmul(a, b, out=c)

        ms = milliseconds(graph_of(twenty)) / 20
        say(f"matmul {size}", ms, tflops=round(2 * size**3 / ms / 1e9, 1))


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    parts = {"token": token, "prompt": prompt, "train": train, "mlp": mlp, "matmul": matmul}
    for name in sys.argv[1:] or parts:
        try:
            parts[name]()
        except Exception as error:  # one that this version cannot do must not cost the others
            print(json.dumps({"workload": name, "error": f"{type(error).__name__}: {error}"[:600]}), flush=True)
