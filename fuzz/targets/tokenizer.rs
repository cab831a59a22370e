//! Target: `tokenizer.json` files, and the encoding of a text with them.
#![no_main]

use meganeura_fuzz::{in_file, seed, target, text};
use meganeura_llm::Tokenizer;

/// Tokenizer with features of other model families that the fixture does not have.
const OTHERS: &str = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":8,"strategy":"LongestFirst","stride":1},
"padding":{"strategy":"BatchLongest","direction":"Left","pad_to_multiple_of":4,"pad_id":0,"pad_type_id":0,"pad_token":"p"},
"added_tokens":[{"id":5,"content":"<s>","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Prepend","prepend":"_"},{"type":"Lowercase"},
{"type":"Replace","pattern":{"Regex":"a+"},"content":"b"},{"type":"BertNormalizer","clean_text":true,
"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},{"type":"Strip","strip_left":true,"strip_right":true}]},
"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+|[^a-z]"},"behavior":"Isolated",
"invert":false},{"type":"Digits","individual_digits":true},{"type":"Metaspace","replacement":"_","prepend_scheme":"always",
"split":true},{"type":"Punctuation","behavior":"Removed"},{"type":"BertPreTokenizer"}]},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A",
"type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],
"special_tokens":{"<s>":{"id":"<s>","ids":[5],"tokens":["<s>"]}}},
"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},
{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0},{"type":"CTC","pad_token":"p","word_delimiter_token":"|",
"cleanup":true},{"type":"WordPiece","prefix":"a","cleanup":true}]},
"model":{"type":"Unigram","unk_id":0,"vocab":[["u",0.0],["a",-1.5],["b",-2.0],["ab",-2.5],["_",-3.0]],"byte_fallback":false}}"#;

const WORDPIECE: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
"pre_tokenizer":{"type":"Whitespace"},"post_processor":{"type":"BertProcessing","sep":["s",1],"cls":["c",2]},
"decoder":null,"model":{"type":"WordPiece","unk_token":"u","continuing_subword_prefix":"a","max_input_chars_per_word":100,
"vocab":{"u":0,"s":1,"c":2,"a":3,"word":4,"ab":5}}}"#;

const WORDLEVEL: &str = r#"{"version":"1.0","truncation":null,"padding":{"strategy":{"Fixed":16},"direction":"Right",
"pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"p"},"added_tokens":[],"normalizer":{"type":"Nmt"},
"pre_tokenizer":{"type":"UnicodeScripts"},"post_processor":{"type":"RobertaProcessing","sep":["s",1],"cls":["c",2],
"trim_offsets":true,"add_prefix_space":true},"decoder":{"type":"BPEDecoder","suffix":"w"},
"model":{"type":"WordLevel","unk_token":"u","vocab":{"u":0,"s":1,"c":2,"word":3}}}"#;

fn seeds() -> Vec<Vec<u8>> {
    vec![
        seed!("tests/fixtures/transformers/llama/tokenizer.json"),
        OTHERS.into(),
        WORDPIECE.into(),
        WORDLEVEL.into(),
    ]
}

target!(seeds: seeds, change: text::change, |data| {
    in_file("tokenizer.json", data, |path| {
        if let Ok(tokenizer) = Tokenizer::read(path) {
            for text in ["", "a word, \u{e9}\u{4e00}12<s>", "  ab aab\n\tbaba  "] {
                if let Ok(tokens) = tokenizer.encode(text) {
                    let _ = tokenizer.decode(&tokens);
                }
                let _ = tokenizer.encode_plain(text);
            }
        }
    });
});
