"""Writes tests/fixtures/embeddings: small encoders with what Hugging Face's transformers makes of some texts.

    python3 -m venv venv
    venv/bin/pip install torch transformers tokenizers safetensors numpy
    venv/bin/python scripts/verify-external/make_embedding_fixtures.py

Each folder is what `save_pretrained` writes of an encoder with random weights, with a tokenizer trained on
data/alice/alice.txt, for some the files that sentence-transformers puts beside it, and one file more:

expected.json  texts, their tokens, and of each pooling the embeddings in float32, not normalized
"""

import json
import shutil
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests/fixtures/embeddings"
VOCAB = 300
TEXTS = [
    "Alice was not a bit hurt.",
    "Rabbit",
    "Down, down, down. Would the fall never come to an end? I wonder how many miles I've fallen by this time, said Alice.",
    "",
]
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "initializer_range": 0.3,
}
# Class, configuration, marks of the tokenizer, modules of sentence-transformers.
MODELS = {
    "bert": ("Bert", {**COMMON, "max_position_embeddings": 64}, "bert", ["mean_tokens", "normalize"]),
    "roberta": (
        "Roberta",
        {**COMMON, "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1, "hidden_act": "gelu_new"},
        "roberta",
        ["cls_token"],
    ),
    "distilbert": (
        "DistilBert",
        {
            "vocab_size": VOCAB,
            "dim": 24,
            "hidden_dim": 40,
            "n_layers": 2,
            "n_heads": 3,
            "max_position_embeddings": 64,
            "initializer_range": 0.3,
        },
        "bert",
        None,
    ),
}


def train_tokenizer(marks):
    """WordPiece as BERT has it, with the marks of BERT or of RoBERTa."""
    first, last, pad, unknown = {
        "bert": ("[CLS]", "[SEP]", "[PAD]", "[UNK]"),
        "roberta": ("<s>", "</s>", "<pad>", "<unk>"),
    }[marks]
    special = [pad, unknown, first, last] if marks == "bert" else [first, pad, last, unknown]
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    text = (ROOT / "data/alice/alice.txt").read_text()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    ids = [(mark, tokenizer.token_to_id(mark)) for mark in (first, last)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, unk_token=unknown)


def sentence_modules(folder, modules, dim):
    """The files of sentence-transformers."""
    package = "sentence_transformers.models"
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}.Pooling"},
    ]
    if "normalize" in modules:
        listed.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{package}.Normalize"})
    (folder / "modules.json").write_text(json.dumps(listed, indent=2))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 60, "do_lower_case": False}))
    poolings = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"]
    config = {"word_embedding_dimension": dim, **{f"pooling_mode_{p}": p == modules[0] for p in poolings}}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(config, indent=2))


def make(name, family, options, marks, modules):
    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(**options)
    model = getattr(transformers, f"{family}Model")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # Biases and norms of a new model would not show if they were left out.
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    folder = TARGET / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokenizer = train_tokenizer(marks)
    tokenizer.save_pretrained(folder)
    if modules:
        sentence_modules(folder, modules, 24)
    tokens = [tokenizer(text)["input_ids"] for text in TEXTS]
    with torch.no_grad():
        # One by one, so that nothing is padded.
        rows = [model(torch.tensor([ids])).last_hidden_state[0] for ids in tokens]
    return {
        "texts": TEXTS,
        "tokens": tokens,
        "mean": [r.mean(0).tolist() for r in rows],
        "cls": [r[0].tolist() for r in rows],
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]},
    }


def main():
    torch.set_num_threads(1)
    for name, (family, options, marks, modules) in MODELS.items():
        expected = make(name, family, options, marks, modules)
        (TARGET / name / "expected.json").write_text(json.dumps(expected) + "\n")
        print(name, [len(ids) for ids in expected["tokens"]])


if __name__ == "__main__":
    main()
