"""Writes the encoders of tests/fixtures/embeddings to tests/fixtures/gguf as GGUF files.

    python3 -m venv venv
    venv/bin/pip install gguf numpy safetensors
    venv/bin/python scripts/verify-external/make_gguf_encoders.py

Files are as llama.cpp's converter writes them: architecture `bert`, names and keys of the package `gguf`, WordPiece tokens with
a mark in front of those that begin words, the table of positions of RoBERTa without its first rows. The expected tokens and
vectors are those of the folders (`expected.json`), except for the vectors of RoBERTa: GGUF files contain no activation, and this
fixture has another one than usual.
"""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

FIXTURES = Path(__file__).resolve().parents[2] / "tests/fixtures"
POOLING = {"bert": gguf.PoolingType.MEAN, "roberta": gguf.PoolingType.CLS}


def write_tokenizer(writer, tokenizer):
    model = tokenizer["model"]
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids = model["vocab"] | special
    tokens = sorted(ids, key=ids.get)
    first, _, last = [next(iter(piece.values()))["id"] for piece in tokenizer["post_processor"]["single"]]
    plain = lambda token: token[2:] if token.startswith("##") else "\u2581" + token
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([token if token in special else plain(token) for token in tokens])
    writer.add_bos_token_id(ids[first])
    writer.add_sep_token_id(ids[last])
    writer.add_unk_token_id(ids[model["unk_token"]])
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if token in special else kinds.NORMAL for token in tokens])


def make(name):
    folder = FIXTURES / "embeddings" / name
    config = json.loads((folder / "config.json").read_text())
    first = lambda *keys: next(config[key] for key in keys if key in config)
    layers = first("num_hidden_layers", "n_layers")
    positions = config["max_position_embeddings"]
    offset = config["pad_token_id"] + 1 if name == "roberta" else 0
    path = FIXTURES / f"gguf/{name}_f32.gguf"
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(layers)
    writer.add_context_length(positions - offset)
    writer.add_embedding_length(first("hidden_size", "dim"))
    writer.add_feed_forward_length(first("intermediate_size", "hidden_dim"))
    writer.add_head_count(first("num_attention_heads", "n_heads"))
    writer.add_layer_norm_eps(config.get("layer_norm_eps", 1e-12))
    writer.add_causal_attention(False)
    if name in POOLING:
        writer.add_pooling_type(POOLING[name])
    write_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, layers)
    for key, array in load_file(folder / "model.safetensors").items():
        key = key.removeprefix("distilbert.")
        if key.startswith("pooler.") or key.endswith(("position_ids", "token_type_ids")):
            continue
        own = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert own, key
        if key == "embeddings.position_embeddings.weight":
            array = np.ascontiguousarray(array[offset:])
        writer.add_tensor(own, array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(name, path.stat().st_size)


def main():
    for name in ("bert", "distilbert", "roberta"):
        make(name)


if __name__ == "__main__":
    main()
