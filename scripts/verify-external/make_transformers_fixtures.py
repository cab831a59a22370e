"""Writes tests/fixtures/transformers: small checkpoints of each family with what Hugging Face's transformers makes of them.

    python3 -m venv venv
    venv/bin/pip install torch transformers tokenizers safetensors numpy
    venv/bin/python scripts/verify-external/make_transformers_fixtures.py [NAME...]

With names, only those models are made anew.

Each folder is what `save_pretrained` writes of a model with random weights, with a tokenizer trained on
data/alice/alice.txt, and two files more:

expected.safetensors  logits of a prompt at every position (`logits`, [rows, vocab]), in float32
expected.json         prompt, its tokens, the greedy continuation, the smallest distance of the two largest logits on its
                      way, loss and gradient norm of a training step, and the versions of the libraries
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests/fixtures/transformers"
VOCAB = 320
CONTINUATION = 64
PROMPT = "Alice was not a bit hurt, and she jumped up"
# A continuation is only worth comparing token by token where rounding cannot change it: of the largest logit.
SMALLEST_GAP = 3e-3
# One that repeats itself at once compares little.
FEWEST_TOKENS = 8
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'].strip() + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}



def longrope(original):
    return {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.5, 3.0],
            "long_factor": [1.25, 3.0, 9.0],
            "original_max_position_embeddings": original,
        },
        "original_max_position_embeddings": original,
        "tie_word_embeddings": True,
        "pad_token_id": None,
    }


def gpt_oss(hidden, limit, chosen):
    return {
        "head_dim": 8,
        "intermediate_size": hidden,
        "num_local_experts": 4,
        "num_experts_per_tok": chosen,
        "sliding_window": 8,
        "swiglu_limit": limit,
        "rope_parameters": yarn(factor=8.0, truncate=False),
        "pad_token_id": None,
    }


def yarn(**options):
    return {"rope_type": "yarn", "rope_theta": 10000.0, "original_max_position_embeddings": 8} | options


# Family, configuration, type of the stored weights, bytes of a shard.
MODELS = {
    "llama": ("Llama", {"tie_word_embeddings": True}, torch.float32, None),
    "llama_sharded": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3, "tie_word_embeddings": False},
        torch.bfloat16,
        "30KB",
    ),
    "llama_linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, "head_dim": 6},
        torch.float16,
        None,
    ),
    "mistral": ("Mistral", {"sliding_window": 8, "head_dim": 8}, torch.bfloat16, None),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, torch.float16, None),
    "qwen3": ("Qwen3", {"head_dim": 12, "tie_word_embeddings": True}, torch.bfloat16, None),
    "qwen2_window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "tie_word_embeddings": True},
        torch.bfloat16,
        None,
    ),
    # Scores and logits of a random model are of the size of these bounds.
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 12,
            "query_pre_attn_scalar": 20,
            "sliding_window": 6,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 12.0,
            "pad_token_id": None,
        },
        torch.bfloat16,
        None,
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "num_hidden_layers": 3,
            "head_dim": 12,
            "query_pre_attn_scalar": 20,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
            },
            "pad_token_id": None,
        },
        torch.bfloat16,
        None,
    ),
    "phi3": ("Phi3", {"sliding_window": 9, "pad_token_id": None}, torch.bfloat16, None),
    "phi3_partial": (
        "Phi3",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            "tie_word_embeddings": True,
            "pad_token_id": None,
        },
        torch.bfloat16,
        "40KB",
    ),
    # The prompt is longer than the first training's context, and without the long factors ("..._short") all is shorter.
    "phi3_longrope": ("Phi3", longrope(16), torch.bfloat16, None),
    "phi3_longrope_short": ("Phi3", longrope(96), torch.bfloat16, None),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "pad_token_id": None}, torch.bfloat16, None),
    "olmo2": ("Olmo2", {"pad_token_id": None}, torch.bfloat16, None),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.5,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.0,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
        None,
    ),
    # Mixtures of experts: with a dense layer among them, with a shared expert, and with files of which the first has not all
    # experts of a layer.
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_hidden_layers": 3,
            "head_dim": 12,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
        "30KB",
    ),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
        None,
    ),
    "olmoe": (
        "Olmoe",
        {"intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False, "pad_token_id": None},
        torch.bfloat16,
        None,
    ),
    "mixtral": (
        "Mixtral",
        {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": True},
        torch.float16,
        None,
    ),
    # YaRN: the prompt is longer than the first training's context.
    "qwen3_yarn": (
        "Qwen3",
        {"head_dim": 16, "tie_word_embeddings": True, "rope_parameters": yarn(factor=4.0, beta_fast=4.0)},
        torch.bfloat16,
        None,
    ),
    "olmo3": (
        "Olmo3",
        {
            "num_hidden_layers": 4,
            "sliding_window": 6,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "full_attention": yarn(factor=8.0, rope_theta=5000.0, attention_factor=1.3),
            },
            "pad_token_id": None,
        },
        torch.bfloat16,
        None,
    ),
    "ministral3": (
        "Ministral3",
        {
            "head_dim": 12,
            "rope_parameters": yarn(factor=16.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4),
            "tie_word_embeddings": True,
            "pad_token_id": None,
        },
        torch.bfloat16,
        None,
    ),
    "glm4_moe": (
        "Glm4Moe",
        {
            "num_hidden_layers": 3,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "attention_bias": True,
            "num_nextn_predict_layers": 0,
        },
        torch.bfloat16,
        None,
    ),
    "lfm2": (
        "Lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "intermediate_size": 72,
            "block_multiple_of": 16,
            "pad_token_id": None,
        },
        torch.bfloat16,
        None,
    ),
    "gpt_oss": ("GptOss", gpt_oss(24, 1.5, 2), torch.bfloat16, None),
    # Tokens use all experts: otherwise, rounding of other matrices changes the choice of experts.
    "gpt_oss_mxfp4": ("GptOss", gpt_oss(32, 7.0, 4), torch.bfloat16, None),
}


def train_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train([str(ROOT / "data/alice/alice.txt")], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], bos_token=SPECIAL[0], chat_template=CHAT
    )


MATRICES_OF_EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
# The magnitudes of numbers in E2M1 (OCP Microscaling Formats, 2023, section 5.3.3).
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def mxfp4(matrices):
    """Blocks, scales and rounded numbers of matrices [experts, outputs, inputs], in the layout of gpt-oss's checkpoints."""
    blocks = matrices.reshape(*matrices.shape[:-1], -1, 32)
    exponents = blocks.abs().amax(-1).clamp(min=2.0**-100).log2().floor() - 2
    scaled = blocks / 2.0 ** exponents[..., None]
    indices = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    numbers = (E2M1[indices].copysign(scaled) * 2.0 ** exponents[..., None]).reshape(matrices.shape)
    indices = (indices + 8 * (scaled < 0)).to(torch.uint8)
    packed = indices[..., 0::2] | indices[..., 1::2] << 4
    return packed, (exponents + 127).to(torch.uint8), numbers


def pack_experts(folder):
    """Replaces the matrices of experts by blocks of MXFP4, which represent the same numbers."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for key in [key for key in tensors if key.endswith(MATRICES_OF_EXPERTS)]:
        matrices = tensors.pop(key).float().transpose(1, 2)
        blocks, scales, numbers = mxfp4(matrices)
        assert torch.equal(numbers, matrices), key
        tensors |= {f"{key}_blocks": blocks.contiguous(), f"{key}_scales": scales.contiguous()}
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(name, family, options, dtype, shard, tokenizer, seed):
    """The expectations of a model, or None if its continuation hangs by too little."""
    config = getattr(transformers, f"{family}Config")(**(SIZES | options))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")._from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("norm.weight"):
                parameter.add_(0.2 * torch.randn_like(parameter))
            # The embeddings of Gemma are large: what the blocks add has to be, too, or a text is one token over and over.
            if family.startswith("Gemma") and ".post_" in key:
                parameter.add_(2.0)
            if key.endswith("sinks"):
                parameter.add_(torch.randn_like(parameter))
            if key.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
            # The reference computes in float32 with the weights as they are stored. Buffers stay as they are: rotary
            # frequencies are not stored.
            parameter.copy_(parameter.to(dtype).float())
            if name.endswith("mxfp4") and key.endswith(MATRICES_OF_EXPERTS):
                _, _, numbers = mxfp4(parameter.transpose(1, 2))
                parameter.copy_(numbers.transpose(1, 2))
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_((0.3 * torch.randn_like(buffer)).to(dtype).float())
    model = model.eval()
    prompt = tokenizer(PROMPT)["input_ids"]
    tokens = list(prompt)
    gap = float("inf")
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0]
        for _ in range(CONTINUATION):
            last = model(torch.tensor([tokens])).logits[0, -1]
            best = last.topk(2)
            gap = min(gap, ((best.values[0] - best.values[1]) / last.abs().max()).item())
            if gap < SMALLEST_GAP:
                return None
            tokens.append(best.indices[0].item())
    if len(set(tokens[len(prompt) :])) < FEWEST_TOKENS:
        return None
    ids = torch.tensor([prompt])
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:])
    loss.backward()
    norm = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None).sqrt()
    folder = TARGET / name
    shutil.rmtree(folder, ignore_errors=True)
    stored = model.to(dtype)
    stored.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    if name.endswith("mxfp4"):
        pack_experts(folder)
    save_file({"logits": logits.contiguous()}, folder / "expected.safetensors")
    return {
        "prompt": PROMPT,
        "prompt_ids": prompt,
        "continuation": tokens[len(prompt) :],
        "text": tokenizer.decode(tokens[len(prompt) :], skip_special_tokens=True),
        "smallest_gap": gap,
        "loss": loss.item(),
        "gradient_norm": norm.item(),
        "seed": seed,
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]},
    }


def main():
    torch.set_num_threads(1)
    tokenizer = train_tokenizer()
    for name in sys.argv[1:] or MODELS:
        family, options, dtype, shard = MODELS[name]
        found = (make(name, family, options, dtype, shard, tokenizer, seed) for seed in range(500))
        expected = next(e for e in found if e is not None)
        folder = TARGET / name
        (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        if name in ("llama", "qwen3"):
            tokenizer.save_pretrained(folder)
            messages = [{"role": "user", "content": "Do cats eat bats? "}]
            chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            (folder / "expected_chat.txt").write_text(chat)
        print(name, "seed", expected["seed"], "gap", round(expected["smallest_gap"], 4))


if __name__ == "__main__":
    main()
