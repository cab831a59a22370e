"""Writes tests/fixtures/gguf/granite_bf16.gguf, smollm3_bf16.gguf and olmo3_bf16.gguf from the checkpoints in
tests/fixtures/transformers.

    python3 -m venv venv
    venv/bin/pip install gguf numpy
    venv/bin/python scripts/verify-external/make_gguf_families.py

Names, keys and the order of the rows of heads are those of llama.cpp's converter (conversion/granite.py, conversion/llama.py).
The expected logits of Granite are those of the checkpoint. Files of SmolLM3 do not name the layers without rotary positions:
it is every fourth. Therefore the file has a fourth layer, a copy of the first, and `llm/tests/it/gguf` compares it with a
checkpoint that has the same. Files of OLMo 3 have the architecture olmo2 and a window.
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
    """The tensors of a safetensors file in bfloat16, as their 16 bits."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, info in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            assert info["dtype"] == "BF16", name
            first, last = (8 + size + offset for offset in info["data_offsets"])
            tensors[name] = np.frombuffer(data[first:last], np.uint16).reshape(info["shape"])
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


def make(name):
    folder = FIXTURES / "transformers" / name
    config = json.loads((folder / "config.json").read_text())
    tensors = load(folder / "model.safetensors")
    layers = config["num_hidden_layers"]
    if name == "smollm3":
        tensors |= {k.replace(".0.", f".{layers}."): t for k, t in tensors.items() if ".layers.0." in k}
        layers += 1
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    path = FIXTURES / f"gguf/{name}_bf16.gguf"
    architecture = "olmo2" if name == "olmo3" else name
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        usual = 0.1 * math.log(rope["factor"]) + 1
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(rope["attention_factor"] / usual)
    if name == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    if name == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    write_tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], layers)
    for key, array in tensors.items():
        if key.endswith("q_proj.weight") and name != "olmo3":
            array = pairs(array, heads)
        if key.endswith("k_proj.weight") and name != "olmo3":
            array = pairs(array, kv_heads)
        own = names.get_name(key, try_suffixes=(".weight",))
        if array.ndim == 1:
            writer.add_tensor(own, (array.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(own, np.ascontiguousarray(array).view(np.uint8), raw_dtype=Type.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(name, path.stat().st_size)


def main():
    for name in sys.argv[1:] or ("granite", "smollm3", "olmo3"):
        make(name)


if __name__ == "__main__":
    main()
