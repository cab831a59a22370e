//! Tests that streamed text equals the decoded text, for random tokens of many tokenizers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use meganeura_core::random::SplitMix64;
use meganeura_llm::{TextStream, Tokenizer};
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

/// Returns every tokenizer of the fixtures, with its file.
fn tokenizers() -> Vec<(PathBuf, Tokenizer)> {
    let mut found = Vec::new();
    let mut folders = vec![fixtures()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let is_gguf = path.extension().is_some_and(|e| e == "gguf");
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("tokenizer.json") {
                let tokenizer = Tokenizer::read(&path).expect("a tokenizer");
                found.push((path, tokenizer));
            } else if is_gguf && let Ok(tokenizer) = Tokenizer::open(&path) {
                found.push((path, tokenizer));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn streamed(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    for &token in tokens {
        text += &stream.push(token).expect("text");
    }
    text + &stream.finish().expect("text")
}

/// Returns the streamed continuation of some tokens.
fn continued(tokenizer: &Tokenizer, before: &[u32], tokens: &[u32]) -> String {
    let mut stream = TextStream::behind(tokenizer, before);
    let mut text = String::new();
    for &token in tokens {
        text += &stream.push(token).expect("text");
    }
    text + &stream.finish().expect("text")
}

fn check(name: &Path, tokenizer: &Tokenizer, tokens: &[u32]) {
    let whole = tokenizer.decode(tokens).expect("text");
    assert_eq!(streamed(tokenizer, tokens), whole, "{} {tokens:?}", name.display());
}

#[test]
fn streamed_text_is_the_decoded_text() {
    let all = tokenizers();
    // Encoders join words by other rules, and generate no text.
    let all: Vec<_> = all
        .into_iter()
        .filter(|(path, _)| !path.to_string_lossy().contains("embeddings"))
        .collect();
    assert!(all.len() >= 10, "{} tokenizers", all.len());
    let mut rng = SplitMix64::new(3);
    let texts = [
        "한국어 텍스트",
        "中文字符，测试。",
        "😂🙂🙃😉😊 a😀",
        "naïve — Ελληνικά",
        "a  b\n\n c ",
    ];
    for (path, tokenizer) in &all {
        let vocab = tokenizer.vocab();
        let mut bytes: Vec<u32> = (0..256)
            .filter_map(|b| tokenizer.token(&format!("<0x{b:02X}>")))
            .collect();
        if bytes.is_empty() {
            bytes = (0..vocab.min(260) as u32).collect();
        }
        for round in 0..60 {
            let len = 1 + rng.below(if round % 10 == 0 { 200 } else { 12 });
            let tokens: Vec<u32> = (0..len).map(|_| rng.below(vocab) as u32).collect();
            check(path, tokenizer, &tokens);
            let tokens: Vec<u32> = (0..len).map(|_| bytes[rng.below(bytes.len())]).collect();
            check(path, tokenizer, &tokens);
        }
        for text in texts {
            let tokens = tokenizer.encode_plain(text).expect("tokens");
            check(path, tokenizer, &tokens);
            for at in 1..tokens.len() {
                let (before, after) = tokens.split_at(at);
                let whole = tokenizer.decode(&tokens).expect("text");
                let begin = tokenizer.decode(before).expect("text");
                if begin.ends_with('\u{fffd}') || tokenizer.decode(&before[..1]).expect("text").trim().is_empty() {
                    continue;
                }
                assert_eq!(
                    begin + &continued(tokenizer, before, after),
                    whole,
                    "{}",
                    path.display()
                );
            }
        }
    }
}

/// White space and single bytes were kept as context, and decoded again with each token.
#[test]
fn long_white_space_and_bytes_take_linear_time() {
    for (path, tokenizer) in tokenizers() {
        let word = |text: &str| {
            tokenizer
                .encode_plain(text)
                .ok()
                .and_then(|tokens| tokens.last().copied())
        };
        let byte = tokenizer.token("<0x41>").or(word("b"));
        let (Some(space), Some(byte), Some(letter)) = (word("\n"), byte, word("a")) else {
            continue;
        };
        for pair in [[space, space], [byte, letter], [byte, space]] {
            let tokens = pair.repeat(10_000);
            let begun = Instant::now();
            check(&path, &tokenizer, &tokens);
            let elapsed = begun.elapsed();
            assert!(elapsed < Duration::from_secs(10), "{} {elapsed:?}", path.display());
        }
    }
}

/// The text after a prompt that ends inside a character keeps its own bytes.
#[test]
fn prompts_may_end_inside_a_character() {
    let mut checked = 0;
    for (path, tokenizer) in tokenizers() {
        let byte = |byte: u8| tokenizer.token(&format!("<0x{byte:02X}>"));
        let letter = tokenizer
            .encode_plain("a")
            .ok()
            .and_then(|tokens| tokens.last().copied());
        let (Some(first), Some(invalid), Some(newline), Some(letter)) = (byte(0xe4), byte(0xff), byte(b'\n'), letter)
        else {
            continue;
        };
        checked += 1;
        for before in [first, newline] {
            let text = continued(&tokenizer, &[letter, before], &[invalid, letter]);
            assert!(
                text.contains('\u{fffd}') && text.ends_with('a'),
                "{} {text:?}",
                path.display()
            );
        }
    }
    assert!(checked > 0);
}

/// Creates a byte tokenizer with these added tokens.
fn with_added(added: &[(&str, bool)]) -> Tokenizer {
    let plain = Tokenizer::train("aaa bbb", 260).expect("trains");
    let mut file: Value = serde_json::from_str(&plain.to_json().expect("JSON")).expect("JSON");
    let first = plain.vocab();
    let list = file["added_tokens"].as_array_mut().expect("a list");
    for (number, (content, special)) in added.iter().enumerate() {
        list.push(
            json!({"id": first + number, "content": content, "special": special, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}),
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, file.to_string()).expect("written");
    Tokenizer::read(&path).expect("a tokenizer")
}

#[test]
fn a_token_may_end_one_character_and_begin_the_next() {
    // Each token is 3 bytes of characters of 4: the last token of one opens the next.
    let tokenizer = Tokenizer::train("a", 257).expect("trains");
    let bytes = "😂🙂🙃😉😊".as_bytes();
    let tokens: Vec<u32> = bytes.iter().flat_map(|&b| tokenizer_byte(&tokenizer, b)).collect();
    assert_eq!(streamed(&tokenizer, &tokens), "😂🙂🙃😉😊");
}

/// Returns the token of a byte.
fn tokenizer_byte(tokenizer: &Tokenizer, byte: u8) -> Option<u32> {
    use meganeura_llm::tokenizer::TokenBytes;
    let all = tokenizer.token_bytes();
    let at = all.iter().position(|token| *token == TokenBytes::Text(vec![byte]))?;
    Some(at as u32)
}

#[test]
fn added_tokens_decode_to_themselves() {
    let tokenizer = with_added(&[("é", false), ("日本", false), ("Ġx", false), ("<|é|>", true)]);
    for text in ["é", "日本", "Ġx"] {
        let token = tokenizer.token(text).expect("a token");
        assert_eq!(tokenizer.decode(&[token]).expect("text"), text);
        assert_eq!(streamed(&tokenizer, &[token, token]), text.repeat(2));
    }
    let special = tokenizer.token("<|é|>").expect("a token");
    assert_eq!(tokenizer.decode(&[special]).expect("text"), "");
}
