"""Writes tests/fixtures/gguf/granite_bf16.gguf, smollm3_bf16.gguf, olmo3_bf16.gguf, lfm2_bf16.gguf and gpt_oss_mxfp4.gguf
from the checkpoints in tests/fixtures/transformers.

    python3 -m venv venv
    venv/bin/pip install gguf numpy
    venv/bin/python scripts/verify-external/make_gguf_families.py

Names, keys and the order of the rows of heads are those of llama.cpp's converter (conversion/granite.py, conversion/llama.py).
The expected logits of Granite are those of the checkpoint. Files of SmolLM3 do not name the layers without rotary positions:
it is every fourth. Therefore the file has a fourth layer, a copy of the first, and `llm/tests/it/gguf` compares it with a
checkpoint that has the same. Files of OLMo 3 have the architecture olmo2 and a window. Files of gpt-oss have the matrices of
experts in the order of other mixtures. They do not name the limit of gates, which is 7.
"""

import json
import math
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

FIXTURES = Path(__file__).resolve().parents[2] / "tests/fixtures"


def load(path):
    """The tensors of a safetensors file in bfloat16, as their 16 bits, or in bytes."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, info in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            kind = {"BF16": np.uint16, "U8": np.uint8}[info["dtype"]]
            first, last = (8 + size + offset for offset in info["data_offsets"])
            tensors[name] = np.frombuffer(data[first:last], kind).reshape(info["shape"])
    return tensors


def pairs(array, heads):
    """Rows of heads as files have them: those that are rotated together are neighbours."""
    half = array.shape[0] // heads // 2
    return array.reshape(heads, 2, half, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def write_tokenizer(writer):
    tokenizer = json.loads((FIXTURES / "transformers/llama/tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | special
    tokens = sorted(ids, key=ids.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if token in special else kinds.NORMAL for token in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)


def usual_experts(tensors):
    """Replaces the experts of gpt-oss by tensors of their gates and up-projections; rows of MXFP4 become those of GGUF files."""
    experts = {key: tensors.pop(key) for key in list(tensors) if ".experts." in key}
    for key, array in experts.items():
        layer, module = key.split(".experts.")
        if module.endswith("_scales"):
            continue
        if module.endswith("_blocks"):
            module = module.removesuffix("_blocks")
            scales = experts[f"{layer}.experts.{module}_scales"]
            numbers = np.stack([array & 15, array >> 4], -1).reshape(*array.shape[:-1], 32)
            halves = numbers[..., :16] | numbers[..., 16:] << 4
            array = np.concatenate([scales[..., None], halves], -1).reshape(*array.shape[:2], -1)
        elif not module.endswith("_bias"):
            array = array.swapaxes(1, 2)
        kind = "bias" if module.endswith("_bias") else "weight"
        module = module.removesuffix("_bias")
        parts = {"gate_up_proj": ["gate_proj", "up_proj"], "down_proj": ["down_proj"]}[module]
        for first, part in enumerate(parts):
            tensors[f"{layer}.experts.{part}.{kind}"] = array[:, first :: len(parts)]


def make(name):
    folder = FIXTURES / "transformers" / name
    config = json.loads((folder / "config.json").read_text())
    tensors = load(folder / "model.safetensors")
    layers = config["num_hidden_layers"]
    if name == "smollm3":
        tensors |= {k.replace(".0.", f".{layers}."): t for k, t in tensors.items() if ".layers.0." in k}
        layers += 1
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    path = FIXTURES / f"gguf/{name if 'mxfp4' in name else name + '_bf16'}.gguf"
    architecture = {"olmo3": "olmo2", "gpt_oss_mxfp4": "gpt_oss"}.get(name, name)
    writer = gguf.GGUFWriter(path, architecture.replace("_", "-"))
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if name != "lfm2":
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    kinds = config.get("layer_types") or []
    writer.add_head_count_kv([0 if kind == "conv" else kv_heads for kind in kinds] if name == "lfm2" else kv_heads)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps")))
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        usual = 0.1 * math.log(rope["factor"]) + 1
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_attn_factors(rope["attention_factor"] / usual)
    if name == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    if name == "lfm2":
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        size = int(2 * config["intermediate_size"] / 3)
        multiple = config["block_multiple_of"]
        writer.add_feed_forward_length((size + multiple - 1) // multiple * multiple)
        tensors |= {k: t.reshape(t.shape[0], t.shape[2]) for k, t in tensors.items() if k.endswith("conv.conv.weight")}
    if architecture == "gpt_oss":
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        usual_experts(tensors)
    if name == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    write_tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], layers)
    for key, array in tensors.items():
        is_paired = name in ("granite", "smollm3")
        if key.endswith("q_proj.weight") and is_paired:
            array = pairs(array, heads)
        if key.endswith("k_proj.weight") and is_paired:
            array = pairs(array, kv_heads)
        own = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if ".experts." in key:
            _, _, layer, _, _, module, kind = key.split(".")
            own = f"blk.{layer}.ffn_{module.removesuffix('_proj')}_exps.{kind}"
        if key.endswith("sinks"):
            own += ".weight"
        if array.dtype == np.uint8:
            writer.add_tensor(own, np.ascontiguousarray(array), raw_dtype=Type.MXFP4)
            continue
        if array.ndim == 1 or key.endswith(".bias"):
            writer.add_tensor(own, (array.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(own, np.ascontiguousarray(array).view(np.uint8), raw_dtype=Type.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(name, path.stat().st_size)


def main():
    for name in sys.argv[1:] or ("granite", "smollm3", "olmo3", "lfm2", "gpt_oss_mxfp4"):
        make(name)


if __name__ == "__main__":
    main()
