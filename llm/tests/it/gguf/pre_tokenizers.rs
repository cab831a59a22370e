//! Tests of pre-tokenizers of GGUF files against the package `tokenizers`: see
//! `scripts/verify-external/make_gguf_pre_tokenizers.py`.

use meganeura_llm::Tokenizer;
use serde_json::Value;

use super::files::{TEXT, file, fixture, says, text, with_value};

fn expected() -> Value {
    let path = super::folder().join("pre_tokenizers.json");
    let text = std::fs::read_to_string(path).expect("a fixture");
    serde_json::from_str(&text).expect("json")
}

fn strings(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list").iter();
    list.map(|text| text.as_str().expect("a text")).collect()
}

#[test]
fn tokens_are_those_of_the_pattern_of_each_name() {
    let (expected, plain) = (expected(), fixture("pre_tokenizers"));
    let texts = strings(&expected["texts"]);
    let mut names = 0;
    for group in expected["groups"].as_array().expect("groups") {
        for name in strings(&group["names"]) {
            let (_folder, path) = file(&with_value(&plain, "tokenizer.ggml.pre", TEXT, &text(name)));
            let tokenizer = Tokenizer::open(&path).expect(name);
            let all = group["ids"].as_array().expect("tokens");
            assert_eq!(all.len(), texts.len());
            for (text, ids) in texts.iter().zip(all) {
                let ids = ids.as_array().expect("tokens").iter();
                let wanted: Vec<u32> = ids.map(|id| id.as_u64().expect("a token") as u32).collect();
                let found = tokenizer.encode(text).expect("tokens");
                assert_eq!(found, wanted, "{name}: {text:?}");
                let without_bos = &found[found.len() - tokenizer.encode_plain(text).expect("tokens").len()..];
                assert_eq!(tokenizer.decode(without_bos).expect("text"), **text, "{name}");
            }
            names += 1;
        }
    }
    assert!(names > 80, "{names}");
}

#[test]
fn unknown_names_are_errors() {
    let (expected, plain) = (expected(), fixture("pre_tokenizers"));
    for name in strings(&expected["without"]).into_iter().chain(["other"]) {
        let (_folder, path) = file(&with_value(&plain, "tokenizer.ggml.pre", TEXT, &text(name)));
        let quoted = format!("'{name}'");
        says(
            Tokenizer::open(&path),
            &[&quoted, "tokenizer.ggml.pre", "tokenizer.json"],
        );
    }
}
