"""Writes tests/fixtures/sentencepiece: a vocabulary of SentencePiece in a GGUF file, with the tokens of texts.

    python3 -m venv venv
    venv/bin/pip install sentencepiece gguf transformers tokenizers protobuf
    venv/bin/python scripts/verify-external/make_sentencepiece_fixtures.py

SentencePiece learns the vocabulary from the shipped text, with the options that Llama 2 was made with, and the package
`gguf` writes it:

vocab.gguf               pieces, scores and kinds; no tensors
expected.json            texts with the tokens that SentencePiece itself gives; texts with marks in them with those of
                         transformers, as SentencePiece finds no marks in texts; and the versions of the libraries

Before that, a hundred thousand random texts go through SentencePiece and through merges that follow from the scores, as
`meganeura-llm` derives them: it fails unless all tokens are the same.
"""

import io
import json
import random
from importlib.metadata import version
from pathlib import Path

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Tokenizer, models, normalizers
from transformers import LlamaTokenizer

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests/fixtures/sentencepiece"
SPACE = "\u2581"
NORMAL, UNUSED = 1, 5
RANDOM_TEXTS = 100_000


def train():
    model = io.BytesIO()
    text = (ROOT / "data/alice/alice.txt").read_text()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["<|user|>"],
        minloglevel=2,
    )
    return model.getvalue()


def processor(model, first_space):
    parsed = proto.ModelProto.FromString(model)
    parsed.normalizer_spec.add_dummy_prefix = first_space
    return sentencepiece.SentencePieceProcessor(model_proto=parsed.SerializeToString()), parsed


def merges(pieces):
    """Every way to cut a piece into two, by falling scores; of those of a piece, the longest first part first."""
    scores = {p.piece: p.score for p in pieces if p.type in (NORMAL, UNUSED)}
    cuts = [(s, piece[:i], piece[i:]) for piece, s in scores.items() for i in range(1, len(piece))]
    cuts = [cut for cut in cuts if cut[1] in scores and cut[2] in scores]
    cuts.sort(key=lambda cut: (-cut[0], -len(cut[1].encode())))
    return [cut[1:] for cut in cuts]


def random_text(rng, alice):
    if rng.random() < 0.3:
        start = rng.randrange(len(alice) - 60)
        return alice[start : start + rng.randint(1, 60)]
    letters = ["ab", "the ", "aab  ", "he rsan", "lo \n", "éa好 ", "-*' \"", "0123 .", "abcdefghijklmnop qrstuvwxyz"]
    letters = rng.choice(letters)
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, 40)))


def write(parsed):
    writer = gguf.GGUFWriter(TARGET / "vocab.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([p.piece for p in parsed.pieces])
    writer.add_token_scores([p.score for p in parsed.pieces])
    writer.add_token_types([p.type for p in parsed.pieces])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    TARGET.mkdir(parents=True, exist_ok=True)
    model = train()
    own, parsed = processor(model, True)
    without, _ = processor(model, False)
    write(parsed)
    vocab = {p.piece: i for i, p in enumerate(parsed.pieces)}
    pairs = merges(parsed.pieces)
    by_merges = Tokenizer(models.BPE(vocab=vocab, merges=pairs, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    by_merges.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    alice = (ROOT / "data/alice/alice.txt").read_text()
    rng = random.Random(5)
    for i in range(RANDOM_TEXTS):
        text = random_text(rng, alice)
        assert by_merges.encode(text).ids == own.encode(text), (i, text)
    print(RANDOM_TEXTS, "random texts have the same tokens by scores and by merges")
    texts = [
        "", " ", "  ", "a", " a", "a ", "Alice was not a bit hurt, and she jumped up",
        "“Curious”, and naïve: 好奇 🐇! It's 12345\n\n  done", "\ttabs\tand\r\nlines", "aaaaaaaaaaa", "abababababa",
        "hehehehe she thethethe", "in    the      middle", "<0x0A> is no byte", "\u2581 is a space", "e\u0301 and \u00e9",
    ]  # fmt: skip
    texts += [random_text(rng, alice) for _ in range(200)]
    # Where a space follows a mark, transformers adds none, and llama.cpp, for which GGUF files are made, does.
    marked = ["<s>Alice", "<|user|>hi</s>", "one<|user|>two <|user|>three", "<unk><s>é </s>", "a<s>", "<|user|"]
    reference = LlamaTokenizer(vocab=vocab, merges=pairs, legacy=True, add_bos_token=False)
    reference.add_tokens(["<|user|>"])
    expected = {
        "plain": [[text, own.encode(text)] for text in texts],
        "without_first_space": [[text, without.encode(text)] for text in texts],
        "marked": [[text, reference.encode(text, add_special_tokens=False)] for text in marked],
        "made_with": {name: version(name) for name in ["sentencepiece", "gguf", "transformers", "tokenizers"]},
    }
    (TARGET / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")
    print(parsed.trainer_spec.vocab_size, "pieces,", len(pairs), "merges")


if __name__ == "__main__":
    main()
