"""Writes tests/fixtures/finetuning: what transformers and PEFT make of training the small Llama checkpoint.

    python3 -m venv venv
    venv/bin/pip install torch transformers tokenizers safetensors numpy peft
    venv/bin/python scripts/verify-external/make_finetuning_fixtures.py

The checkpoint is tests/fixtures/transformers/llama; the text is data/alice/alice.txt in its tokens. In the folder:

curve.json      a batch for each of 20 steps, the loss of each, and the norms of the gradients of the first by parameter:
                AdamW on all parameters, in float32
lora/           random adapters as PEFT's `save_pretrained` writes them
lora.json       a prompt
lora.safetensors  the logits of the model with these adapters at every position of it
lora_curve.json the same 20 steps with AdamW on adapters alone, which begin as those in lora/
"""

import json
import shutil
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/fixtures/transformers/llama"
TARGET = ROOT / "tests/fixtures/finetuning"
STEPS, BATCH, ROWS = 20, 2, 24
RATE, BETAS, EPSILON, DECAY = 2e-3, (0.9, 0.999), 1e-8, 0.05
LORA = {"r": 4, "lora_alpha": 6.0, "target_modules": ["q_proj", "v_proj", "down_proj"], "lora_dropout": 0.0}
VERSIONS = {
    "transformers": transformers.__version__,
    "torch": torch.__version__.split("+")[0],
    "peft": peft.__version__,
}


def load():
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")


def batches(tokens):
    """Pieces of the text, tokens and what follows them."""
    for step in range(STEPS):
        starts = [(step * BATCH + row) * 37 for row in range(BATCH)]
        yield torch.stack([tokens[s : s + ROWS + 1] for s in starts])


def curve(model, tokens, parameters):
    optimizer = torch.optim.AdamW(parameters.values(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    losses, norms = [], {}
    for batch in batches(tokens):
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if not losses:
            norms = {name: p.grad.norm().item() for name, p in parameters.items()}
        optimizer.step()
        losses.append(loss.item())
    return {
        "batches": [b.tolist() for b in batches(tokens)],
        "adamw": {"rate": RATE, "betas": BETAS, "epsilon": EPSILON, "weight_decay": DECAY},
        "losses": losses,
        "gradient_norms": norms,
        "made_with": VERSIONS,
    }


def write(name, content):
    (TARGET / name).write_text(json.dumps(content) + "\n")


def main():
    torch.set_num_threads(1)
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL)
    tokens = torch.tensor(tokenizer((ROOT / "data/alice/alice.txt").read_text())["input_ids"])
    model = load()
    write("curve.json", curve(model, tokens, dict(model.named_parameters())))

    torch.manual_seed(7)
    model = peft.get_peft_model(load(), peft.LoraConfig(task_type="CAUSAL_LM", **LORA))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(TARGET / "lora")
    (TARGET / "lora/README.md").unlink(missing_ok=True)
    # The folder that it was made in is nobody's business.
    config = json.loads((TARGET / "lora/adapter_config.json").read_text())
    config["base_model_name_or_path"] = "tests/fixtures/transformers/llama"
    (TARGET / "lora/adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    prompt = tokens[:20]
    with torch.no_grad():
        logits = model(prompt[None]).logits[0]
    save_file({"logits": logits.contiguous()}, TARGET / "lora.safetensors")
    write("lora.json", {"prompt_ids": prompt.tolist(), "made_with": VERSIONS})
    prefix = "base_model.model."
    adapters = {
        name.removeprefix(prefix).replace(".default", ""): p
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    write("lora_curve.json", curve(model, tokens, adapters))


if __name__ == "__main__":
    main()
