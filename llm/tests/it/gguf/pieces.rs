//! Tests of SentencePiece vocabularies in GGUF files, against SentencePiece.

use std::fs;
use std::path::PathBuf;

use meganeura_llm::Tokenizer;
use serde_json::Value;

use super::files::{file, replaced, says, text, with_kind, with_value};

const BOOL: u32 = 7;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/sentencepiece")
}

fn vocab() -> Vec<u8> {
    fs::read(folder().join("vocab.gguf")).expect("a fixture")
}

/// Returns texts with their expected tokens.
fn expected(kind: &str) -> Vec<(String, Vec<u32>)> {
    let all = fs::read_to_string(folder().join("expected.json")).expect("a fixture");
    let mut all: Value = serde_json::from_str(&all).expect("json");
    serde_json::from_value(all[kind].take()).expect("texts and tokens")
}

fn tokenizer(bytes: &[u8]) -> Tokenizer {
    let (_folder, path) = file(bytes);
    Tokenizer::open(&path).expect("a tokenizer")
}

fn flag(bytes: &[u8], name: &str, value: bool) -> Vec<u8> {
    with_value(bytes, &format!("tokenizer.ggml.{name}"), BOOL, &[value.into()])
}

#[test]
fn tokens_are_those_of_sentencepiece() {
    let usual = tokenizer(&vocab());
    let without = tokenizer(&flag(&vocab(), "add_space_prefix", false));
    for (tokenizer, kind) in [(&usual, "plain"), (&without, "without_first_space"), (&usual, "marked")] {
        let all = expected(kind);
        assert!(all.len() > 5, "{kind}");
        for (text, ids) in all {
            let found = tokenizer.encode_plain(&text).expect("tokens");
            assert_eq!(found, ids, "{kind}: {text:?}");
            if kind != "marked" {
                assert_eq!(
                    tokenizer.decode(&found).expect("text"),
                    text.replace('\u{2581}', " "),
                    "{kind}"
                );
            }
        }
    }
}

#[test]
fn marks_have_usual_places() {
    let plain = tokenizer(&vocab()).encode_plain("a").expect("tokens");
    let tokens = |bytes: &[u8]| tokenizer(bytes).encode("a").expect("tokens");
    let begun = [&[1], plain.as_slice()].concat();
    assert_eq!(tokens(&vocab()), begun);
    assert_eq!(tokens(&flag(&vocab(), "add_bos_token", false)), plain);
    assert_eq!(
        tokens(&flag(&vocab(), "add_eos_token", true)),
        [begun.as_slice(), &[2]].concat()
    );
}

#[test]
fn text_comes_piece_by_piece() {
    let tokenizer = tokenizer(&vocab());
    let text = " two spaces — and 好奇 🐇";
    let mut stream = tokenizer.stream();
    let mut shown = String::new();
    for token in tokenizer.encode(text).expect("tokens") {
        shown.push_str(&stream.push(token).expect("text"));
    }
    shown.push_str(&stream.finish().expect("text"));
    assert_eq!(shown, text);
}

#[test]
fn what_scores_do_not_say_is_refused() {
    let refused = |bytes: &[u8], parts: &[&str]| {
        let (_folder, path) = file(bytes);
        says(Tokenizer::open(&path), &[parts, &["tokenizer.json"]].concat());
    };
    refused(
        &flag(&vocab(), "remove_extra_whitespaces", true),
        &["changes the characters"],
    );
    let scores = "tokenizer.ggml.scores";
    refused(
        &replaced(&vocab(), scores, "tokenizer.ggml.counts"),
        &["no list 'tokenizer.ggml.scores'"],
    );
    // All scores are the same.
    let whole = vocab();
    let at = whole
        .windows(scores.len())
        .position(|w| w == scores.as_bytes())
        .expect("scores");
    let (start, count) = (at + scores.len() + 16, 700);
    let mut same = whole.clone();
    same[start..start + 4 * count].fill(0);
    refused(&same, &["the same score for the pieces"]);
    let (_folder, path) = file(&with_kind(&whole, scores, 8));
    assert!(Tokenizer::open(&path).is_err());
    let kinds = with_value(
        &replaced(&whole, "tokenizer.ggml.token_type", "tokenizer.ggml.token_tipe"),
        "tokenizer.ggml.token_type",
        9,
        &[&5u32.to_le_bytes()[..], &1u64.to_le_bytes(), &1i32.to_le_bytes()].concat(),
    );
    let (_folder, path) = file(&kinds);
    says(
        Tokenizer::open(&path),
        &["'tokenizer.ggml.token_type' has 1 entries, expected 700"],
    );
    let other = with_value(
        &replaced(&whole, "tokenizer.ggml.pre", "tokenizer.ggml.old"),
        "x",
        8,
        &text("y"),
    );
    // The split of text matters only to byte-pair encoding.
    assert_eq!(tokenizer(&other).vocab(), 700);
}
