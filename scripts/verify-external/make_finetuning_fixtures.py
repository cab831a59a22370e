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
patterns/       random adapters with rsLoRA, and ranks and alphas that differ from layer to layer
patterns.safetensors  the logits with them
dora/           random adapters with DoRA
dora.safetensors  the logits with them
dora_curve.json the same 20 steps on them

With names of folders as arguments (patterns, dora), only these are written.
"""

import json
import shutil
import sys
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
VARIANTS = {
    "patterns": {
        **LORA,
        "r": 6,
        "use_rslora": True,
        "rank_pattern": {"q_proj": 3, "layers.0.mlp.down_proj": 2},
        "alpha_pattern": {"v_proj": 2.5, "^model.layers.1.self_attn.q_proj": 4.0},
    },
    "dora": {**LORA, "use_dora": True},
}
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


def random_adapters(name, settings, prompt):
    """Writes random adapters and the logits of a prompt with them. Returns the model and its trained parameters."""
    model = peft.get_peft_model(load(), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_magnitude" in parameter_name:
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
            elif "lora_" in parameter_name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    folder = TARGET / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    # The folder that it was made in is nobody's business.
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "tests/fixtures/transformers/llama"
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    with torch.no_grad():
        logits = model(prompt[None]).logits[0]
    save_file({"logits": logits.contiguous()}, TARGET / f"{name}.safetensors")
    prefix = "base_model.model."
    adapters = {
        parameter_name.removeprefix(prefix).replace(".default", "").replace("vector.weight", "vector"): p
        for parameter_name, p in model.named_parameters()
        if p.requires_grad
    }
    return model, adapters


def main():
    torch.set_num_threads(1)
    chosen = sys.argv[1:]
    if not chosen:
        shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL)
    tokens = torch.tensor(tokenizer((ROOT / "data/alice/alice.txt").read_text())["input_ids"])
    prompt = tokens[:20]
    if not chosen:
        model = load()
        write("curve.json", curve(model, tokens, dict(model.named_parameters())))
        torch.manual_seed(7)
        model, adapters = random_adapters("lora", LORA, prompt)
        write("lora.json", {"prompt_ids": prompt.tolist(), "made_with": VERSIONS})
        write("lora_curve.json", curve(model, tokens, adapters))
    for name in chosen or VARIANTS:
        torch.manual_seed(11)
        model, adapters = random_adapters(name, VARIANTS[name], prompt)
        if name == "dora":
            write("dora_curve.json", curve(model, tokens, adapters))


if __name__ == "__main__":
    main()
