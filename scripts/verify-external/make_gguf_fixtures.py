"""Writes tests/fixtures/gguf: small models in GGUF files, one for each storage type, with what transformers makes of them.

    python3 -m venv venv
    venv/bin/pip install torch transformers tokenizers safetensors numpy gguf accelerate
    venv/bin/python scripts/verify-external/make_gguf_fixtures.py [NAME...]

With names, only those files are made anew.

Files are written by the package `gguf`, which also rounds to Q8_0, Q5_0 and Q4_0; blocks of Q4_K and Q6_K, which it only reads,
have random bytes. The numbers of a file are what `gguf` reads back from it, and go into a model of transformers, which
computes in float32:

<name>.gguf              model and tokenizer
<name>.safetensors       logits of the prompt at every position (`logits`, [rows, vocab])
expected.json            the prompt, numbers with what `gguf` rounds them to, and the versions of the libraries
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests/fixtures/gguf"
TOKENIZER = ROOT / "tests/fixtures/transformers/llama/tokenizer.json"
PROMPT = [41, 75, 260, 9, 310, 86, 2, 77, 300, 12, 65, 199]
VOCAB = 320

# Architecture, class, sizes beyond the usual ones, type of the matrices, and of the head if it is another one.
USUAL = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rope_theta": 20000.0, "rms_norm_eps": 1e-5,
    "initializer_range": 0.2, "tie_word_embeddings": True,
}  # fmt: skip
WIDE = {"hidden_size": 256, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 20000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 5, "pad_token_id": None}
GEMMA3_POSITIONS = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 20000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
MOE = {"num_hidden_layers": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS = {
    "llama_f32": ("llama", "Llama", {"num_hidden_layers": 1}, Type.F32),
    "llama_f16": ("llama", "Llama", {"tie_word_embeddings": False}, Type.F16),
    "llama_bf16": ("llama", "Llama", {"num_hidden_layers": 1}, Type.BF16),
    "llama_q8_0": ("llama", "Llama", {}, Type.Q8_0),
    "llama_q4_0": ("llama", "Llama", {}, Type.Q4_0),
    "llama_q5_0": ("llama", "Llama", {"num_hidden_layers": 1}, Type.Q5_0),
    "llama_q4_k": ("llama", "Llama", WIDE, Type.Q4_K),
    "llama_q6_k": ("llama", "Llama", WIDE | {"num_key_value_heads": 1}, Type.Q6_K),
    "llama_q4_0_mixed": ("llama", "Llama", WIDE | {"tie_word_embeddings": False}, Type.Q4_0, Type.Q6_K),
    "llama3_q8_0": ("llama", "Llama", {"num_hidden_layers": 1, "head_dim": 32, "rope_parameters": LLAMA3}, Type.Q8_0),
    "qwen2_q8_0": ("qwen2", "Qwen2", {"tie_word_embeddings": False}, Type.Q8_0),
    "qwen3_q4_0": ("qwen3", "Qwen3", {"head_dim": 32}, Type.Q4_0),
    "mistral_q8_0": ("llama", "Mistral", {"head_dim": 32, "sliding_window": 5}, Type.Q8_0),
    "gemma2_q8_0": ("gemma2", "Gemma2", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}, Type.Q8_0),
    # Seven layers: the sixth one sees all positions, as files of this architecture do not say.
    "gemma3_q8_0": (
        "gemma3", "Gemma3Text",
        GEMMA | {"num_hidden_layers": 7, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2,
                 "num_key_value_heads": 1, "rope_parameters": GEMMA3_POSITIONS},
        Type.Q8_0,
    ),
    "phi3_q8_0": ("phi3", "Phi3", {"sliding_window": 5, "pad_token_id": None, "tie_word_embeddings": False}, Type.Q8_0),
    "olmo2_q8_0": ("olmo2", "Olmo2", {"pad_token_id": None, "tie_word_embeddings": False}, Type.Q8_0),
    # Mixtures of experts, whose matrices files have together.
    "qwen3moe_q4_0": ("qwen3moe", "Qwen3Moe", MOE | {"num_experts": 4, "norm_topk_prob": True, "head_dim": 32}, Type.Q4_0),
    "qwen2moe_q8_0": ("qwen2moe", "Qwen2Moe", MOE | {"num_experts": 3, "shared_expert_intermediate_size": 64}, Type.Q8_0),
    "olmoe_q8_0": ("olmoe", "Olmoe", MOE | {"num_experts": 4, "intermediate_size": 32, "pad_token_id": None}, Type.Q8_0),
    "mixtral_q8_0": ("llama", "Mixtral", MOE | {"num_local_experts": 4, "intermediate_size": 32}, Type.Q8_0),
}  # fmt: skip
BLOCKS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


# What other architectures call the same, or have beside it.
OTHERS = {
    "post_feedforward_layernorm": "post_ffw_norm", "pre_feedforward_layernorm": "ffn_norm",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip


def name_of(name, architecture):
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module, kind = name.rsplit(".", 1)
    if module in whole:
        return f"{whole[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    if module == "post_attention_layernorm" and architecture in ("gemma2", "gemma3", "olmo2"):
        return f"blk.{layer}.post_attention_norm.{kind}"
    return f"blk.{layer}.{(BLOCKS | OTHERS)[module]}.{kind}"


def pairs(array, heads):
    """Rows of llama's heads as files have them: those that are rotated together are neighbours."""
    half = array.shape[0] // heads // 2
    return array.reshape(heads, 2, half, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def unpaired(array, heads):
    half = array.shape[0] // heads // 2
    return array.reshape(heads, half, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def random_blocks(rng, shape, kind):
    """Random bytes with scales of a usual size."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = shape[0] * shape[1] // block
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    scale = lambda size: (rng.uniform(0.5, 1, (count, 1)) * size).astype(np.float16).view(np.uint8)
    if kind == Type.Q4_K:
        data[:, 0:2], data[:, 2:4] = scale(6e-4), scale(4e-3)
    else:
        data[:, -2:] = scale(7e-5)
    return data.reshape(shape[0], -1)


def stored(rng, array, kind):
    """What a file holds of a matrix, its type, and the numbers that are read back."""
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if array.shape[-1] % block:
        kind = Type.Q8_0
    if kind in (Type.Q4_K, Type.Q6_K):
        data = random_blocks(rng, array.shape, kind)
    else:
        data = gguf.quantize(array, kind)
    return data, kind, gguf.dequantize(data, kind).reshape(array.shape)


def write_tokenizer(writer):
    tokenizer = json.loads(TOKENIZER.read_text())
    vocab = tokenizer["model"]["vocab"]
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted((vocab | special).items(), key=lambda item: item[1])
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in tokens])
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if token in special else kinds.NORMAL for token, _ in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ bos_token + m.content }}{% endfor %}")


def write_factors(writer, model, theta):
    """By what the model divides the speeds of its pairs, as files of Llama 3.1 have it."""
    slowed = model.model.rotary_emb.inv_freq
    plain = theta ** -(torch.arange(len(slowed), dtype=torch.float32) / len(slowed))
    writer.add_tensor("rope_freqs.weight", (plain / slowed).numpy())


def write_experts(writer, rng, key, parameter, kind):
    """The matrices of all experts, of which the model has gates and what they multiply below each other."""
    layer = key.rsplit(".", 1)[0]
    modules = ["gate_proj", "up_proj"] if key.endswith("gate_up_proj") else ["down_proj"]
    backs = []
    for module, array in zip(modules, np.split(parameter.numpy().astype(np.float32), len(modules), axis=1)):
        data, raw, back = stored(rng, array, kind)
        writer.add_tensor(name_of(f"{layer}.{module}.weight", None), data, raw_dtype=raw)
        backs.append(back)
    parameter.copy_(torch.from_numpy(np.concatenate(backs, axis=1)))


def make(name, architecture, family, options, kind, head_kind=None):
    sizes = USUAL | options
    config = getattr(transformers, f"{family}Config")(**sizes)
    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")._from_config(config, attn_implementation="eager").eval()
    path = TARGET / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(sizes["rope_theta"])
    head_dim = sizes.get("head_dim")
    if head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    if architecture in ("llama", "phi3"):
        writer.add_rope_dimension_count(head_dim)
    if "attn_logit_softcapping" in sizes:
        writer.add_attn_logit_softcapping(sizes["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(sizes["final_logit_softcapping"])
    if "sliding_window" in sizes:
        writer.add_sliding_window(sizes["sliding_window"])
    if "num_experts_per_tok" in sizes:
        writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if architecture.startswith("qwen"):
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if architecture == "qwen2moe":
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture == "gemma3":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(sizes["rope_parameters"]["full_attention"]["factor"])
    elif "rope_parameters" in sizes:
        write_factors(writer, model, sizes["rope_theta"])
    write_tokenizer(writer)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("norm.weight"):
                parameter.add_(0.2 * torch.randn_like(parameter))
            if key.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
            if ".mlp.experts." in key:
                write_experts(writer, rng, key, parameter, kind)
                continue
            array = parameter.numpy().astype(np.float32)
            heads = None
            if key.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
                # Files have them as they are, and the gate of one row without its axis.
                writer.add_tensor(name_of(key, architecture), array.squeeze())
                continue
            if architecture == "llama" and ".self_attn.q_proj" in key:
                heads = config.num_attention_heads
            if architecture == "llama" and ".self_attn.k_proj" in key:
                heads = config.num_key_value_heads
            if heads:
                array = pairs(array, heads)
            if array.ndim == 1:
                # Files have the factors of a norm themselves, which the weights of Gemma are less 1.
                factor = array + 1 if architecture.startswith("gemma") and key.endswith("norm.weight") else array
                writer.add_tensor(name_of(key, architecture), factor)
                continue
            own_kind = head_kind if head_kind and key.startswith("lm_head") else kind
            data, raw, back = stored(rng, array, own_kind)
            writer.add_tensor(name_of(key, architecture), data, raw_dtype=raw)
            parameter.copy_(torch.from_numpy(unpaired(back, heads) if heads else back))
        logits = model(torch.tensor([PROMPT])).logits[0]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({"logits": logits.contiguous()}, TARGET / f"{name}.safetensors")
    (TARGET / f"{name}.safetensors").chmod(0o644)
    # What transformers reads from the file itself, names and pairs of rows included. It knows no window of the
    # architecture llama, no width of qwen3's heads, no factors of rotary positions, not all of what the architectures of
    # Gemma and Phi-3 imply, and no architecture olmo2 or olmoe, nor experts of the architecture llama.
    if family not in ("Mistral", "Olmo2", "Olmoe", "Mixtral"):
        is_given = family in ("Qwen3", "Qwen3Moe", "Qwen2Moe", "Phi3") or family.startswith("Gemma") or "rope_parameters" in sizes
        given = {"config": config} if is_given else {}
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            TARGET, gguf_file=path.name, dtype=torch.float32, **given
        )
        with torch.no_grad():
            again = loaded(torch.tensor([PROMPT])).logits[0]
        worst = ((again - logits).abs().max() / logits.abs().max()).item()
        print(name, path.stat().st_size, "read by transformers itself: off by", worst)
        assert worst < 1e-4, worst


def main():
    torch.set_num_threads(1)
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or MODELS:
        make(name, *MODELS[name])
    if sys.argv[1:]:
        return
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    versions["gguf"] = __import__("importlib.metadata").metadata.version("gguf")
    values = (np.random.default_rng(3).standard_normal(128) * 0.3).astype(np.float32)
    values[32:64] = 0
    rounded = {kind.name: gguf.quantize(values[None], kind).tobytes().hex() for kind in (Type.Q8_0, Type.Q4_0)}
    rounding = {"values": values.tolist()} | rounded
    expected = {"prompt_ids": PROMPT, "rounding": rounding, "made_with": versions}
    (TARGET / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
