"""Continuous batching of transformers on an NVIDIA GPU, beside `meganeura serve` with the program `load`.

    python ddp_cuda.py checkpoint DIR --data FILE
    python serving_cuda.py DIR

Prompts of 40 to 500 tokens, 64 new ones each, in f16: one after the other by `generate`, and 64 and 256 prompts at once by
`generate_batch`. Prints a line of JSON with tokens a second for each, of a second turn. Needs torch and transformers.
"""

import json
import random
import sys
import time

import torch
from transformers import GenerationConfig, LlamaForCausalLM

NEW = 64


def one_by_one(model, prompts):
    tokens = 0
    for prompt in prompts:
        ids = torch.tensor([prompt], device="cuda")
        out = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
        tokens += out.shape[1] - len(prompt)
    return tokens


def together(model, prompts):
    config = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
    out = model.generate_batch(inputs=prompts, generation_config=config)
    return sum(len(answer.generated_tokens) for answer in out.values())


def main(folder):
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float16, attn_implementation="sdpa").cuda().eval()
    random.seed(1)
    for work, requests in ((one_by_one, 8), (together, 64), (together, 256)):
        prompts = [[random.randrange(1000) for _ in range(random.randrange(40, 500))] for _ in range(requests)]
        work(model, prompts)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        tokens = work(model, prompts)
        seconds = time.perf_counter() - begun
        print(json.dumps({"way": work.__name__, "requests": requests, "tokens_per_second": round(tokens / seconds, 1)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
