"""Writes tests/fixtures/gguf/pre_tokenizers.gguf and pre_tokenizers.json: a vocabulary, texts, and the tokens of the texts.

    python3 -m venv venv
    venv/bin/pip install gguf tokenizers
    venv/bin/python scripts/verify-external/make_gguf_pre_tokenizers.py

The vocabulary is trained without a pre-tokenizer, so that its merges cross words, numbers and lines: a text that is split
elsewhere has other tokens. The tokens are those of the package `tokenizers` (whose regular expressions are Oniguruma's).

Sources of the patterns: src/llama-vocab.cpp of llama.cpp, which quotes the patterns of the models' tokenizer.json files;
for kimi-k2 tokenization_kimi.py of moonshotai/Kimi-K2-Instruct. The names in `without` have no known pattern here.

texts     texts
groups    for each pattern the `names` and the tokens (`ids`) of every text
made_with versions of the libraries
"""

import json
from importlib.metadata import version
from pathlib import Path

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TARGET = Path(__file__).resolve().parents[2] / "tests/fixtures/gguf"
BOS = "<|begin|>"
# A token that no merge makes: only tokenizers that look up whole pieces have it.
WHOLE = " zebras"
TEXTS = [
    "",
    "Hello world, it's 1234567 o'clock",
    "I'M SURE THEY'LL SAY WE'VE DON'T It'S you'Re I'D",
    "1 12 123 1234 12345 3.14159 1,000,000 ٣٤٥ Ⅷ ½ x2y33z444",
    "你好，世界！今天是2024年12月31日。こんにちは、カタカナ 안녕하세요 ㄅㄆ",
    "😀👍🏽 👨‍👩‍👧 ok🎉🎉",
    "Cafe\u0301 nai\u0308ve हिन्दी ภาษาไทย \u0301x",
    "line one\nline two\r\n\r\n  indented\n\n\n\tafter tab\n",
    "trailing spaces   ",
    "   leading and      many       inside",
    "camelCaseWord HTTPServer snake_case /path/to//file.rs ./a/\n/b",
    "Ünïcödé ÀÉ ΑΒγ Привет ԱԲ աբ ქართ ǅ ʰ ªº",
    "f(x)=[a+b]*{c}^2 && $5 <= #tag @me `code` ~|~ \"quoted\" (“curly”)…",
    "<sentinel:42> IMGIMGABCZ no ; yes!? -- ... 。、،।",
    "a\u00a0b\u3000c\u2003d \t mixed \n \n spaces",
    " zebras and zebras",
    "'s 't 're 'x '' ' s 'tis Ali'den 'LLama",
    "가나다 ㄱㄴ　全角！？：～ “引” ——…",
]  # fmt: skip

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(digits, suffix, upper=UPPER, lower=LOWER, after=r"[\r\n/]*"):
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{after}|{SPACES}"


def without_han(letters):
    return letters[:-1] + r"&&[^\p{Han}]]"


GPT4O = cased(r"\p{N}{1,3}", SUFFIX + "?")
KIMI = r"[\p{Han}]+|" + cased(
    r"\p{N}{1,3}", SUFFIX + "?", without_han(UPPER), without_han(LOWER), r"[\r\n]*"
)
CJK = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
CJK_HANGUL = "[一-龥\u0800-一가-\ud7ff]+"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + SPACES
)
# Ranges of letters with case, first and last one.
DEEPSEEK_LETTERS = """
    b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1 3a3-3f5 3f7-481
    48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d
    1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3
    1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139
    213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787
    a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2
    10cc0-10cf2 118a0-118df 1e900-1e943""".split()
LETTERS = "A-Za-z" + "".join("-".join(chr(int(end, 16)) for end in r.split("-")) for r in DEEPSEEK_LETTERS)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + CJK

GROUPS = [
    (["default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "a.x-4.0", "mellum",
      "modern-bert", "gigachat", "roberta-bpe", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de",
      "jina-v2-code"], [GPT2], ""),
    (["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"], [r"\p{N}", GPT2], ""),
    (["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
     [LLAMA3], "bos whole"),
    (["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], [LLAMA3], ""),
    (["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"],
     [QWEN2], ""),
    (["qwen35"], [SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES], ""),
    (["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], [GPT4O], ""),
    (["granite-embed-multi-97m"], [GPT4O], "whole"),
    (["tekken"], [cased(r"\p{N}", "")], "bos whole"),
    (["deepseek-llm"], ["[\r\n]", rf"\s?[{LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+".replace(r"\u3000", "\u3000"),
                        r"\s+$", CJK_HANGUL, r"\p{N}+"], ""),
    (["deepseek-coder"], ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_HANGUL, r"\p{N}"], ""),
    (["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], [r"\p{N}{1,3}", CJK, DEEPSEEK3], ""),
    (["spark2_5"], [r"\p{N}{1,3}", CJK, DEEPSEEK3.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"),
                    r"\p{N}"], ""),
    (["youtu"], [YOUTU, cased(r"\p{N}", SUFFIX + "?")], "whole"),
    (["falcon"], [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"], ""),
    (["bloom", "poro-chat", "gpt3-finnish"], [BLOOM], ""),
    (["viking"], [BLOOM, r"\p{N}"], ""),
    (["chameleon"], ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\t\n]|    |  )", r"\p{N}",
                     r"[\p{P}!-/:-@\[-`{-~]", GPT2], "bos"),
    (["jais-2"], [LLAMA3.replace(r"|\s+(?!\S)|\s+", "") + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
                  + r"|\s{1,2}(?!\S)|\s{1}"], ""),
    (["tiny_aya", "cohere2moe"], [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O], ""),
    (["kimi-k2"], [KIMI], ""),
    (["superbpe"], [r"\p{N}+", r"(?=(\d{3})+(?!\d))"], ""),
    (["bailingmoe", "bailingmoe2", "llada-moe"],
     [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"], ""),
    (["seed-coder"], [SUFFIX + "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|" + SPACES], ""),
    (["ufakzeka"], [QWEN2.removeprefix(SUFFIX + "|")], ""),
    (["laguna"], [r"[^\n]+|[\n]+", QWEN2], ""),
    (["exaone-moe"], [SUFFIX + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|"
                      r"\s*[\r\n]|\s+(?!\S)|\s+"], ""),
    (["minicpm5"], [r"\p{N}{1,3}", QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")], "whole"),
]  # fmt: skip
WITHOUT = ["afmoe", "gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"]


def trained():
    """Merges of the texts, each of which is one piece."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    # Parts of texts as well, so that the merges are not those of whole texts only.
    parts = [text[i : i + 5] for text in TEXTS for i in range(len(text)) if WHOLE not in text]
    tokenizer.train_from_iterator(parts, trainer)
    return json.loads(tokenizer.to_str())["model"]


def main():
    model = trained()
    vocab = dict(model["vocab"])
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    vocab["Ġzebras"] = len(vocab)
    vocab[BOS] = bos = len(vocab)
    groups = []
    for names, patterns, options in GROUPS:
        bpe = models.BPE(vocab={t: i for t, i in vocab.items() if t != BOS}, merges=merges, ignore_merges="whole" in options)
        tokenizer = Tokenizer(bpe)
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.add_special_tokens([AddedToken(BOS, normalized=False)])
        assert tokenizer.token_to_id(BOS) == bos
        if "bos" in options:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos)]
            )
        groups.append({"names": names, "ids": [tokenizer.encode(text).ids for text in TEXTS]})
    distinct = {}
    for group in groups:
        twin = distinct.setdefault(json.dumps(group["ids"]), group)
        # The pattern of bailingmoe is written differently, but splits all texts as that of qwen2 does.
        assert twin is group or group["names"][0] == "bailingmoe", f"expected texts that differ between {twin['names'][0]} and {group['names'][0]}"
    print(sum(len(group["names"]) for group in groups), "names")

    writer = gguf.GGUFWriter(TARGET / "pre_tokenizers.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    tokens = sorted(vocab, key=vocab.get)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token == BOS else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    lines = [
        '  {"names": %s, "ids": [\n%s\n  ]}' % (json.dumps(g["names"]), ",\n".join(f"   {json.dumps(i, separators=(',', ':'))}" for i in g["ids"]))
        for g in groups
    ]
    made_with = {name: version(name) for name in ("gguf", "tokenizers")}
    (TARGET / "pre_tokenizers.json").write_text(
        '{"texts": %s,\n "without": %s,\n "made_with": %s,\n "groups": [\n%s\n ]}\n'
        % (json.dumps(TEXTS), json.dumps(WITHOUT), json.dumps(made_with), ",\n".join(lines))
    )


if __name__ == "__main__":
    main()
