//! What files say of tokenizers.

use meganeura_llm::Tokenizer;
use serde_json::json;

const TEXT: &str = "The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down.";

/// A trained tokenizer whose file sets these fields as well.
fn with(fields: &[(&str, serde_json::Value)]) -> (Tokenizer, Tokenizer) {
    let plain = Tokenizer::train(TEXT, 300).expect("trains");
    let mut file: serde_json::Value = serde_json::from_str(&plain.to_json().expect("writes")).expect("JSON");
    for (name, value) in fields {
        assert!(file[*name].is_null(), "{name} is set");
        file[*name] = value.clone();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, file.to_string()).expect("written");
    (plain, Tokenizer::read(&path).expect("a tokenizer"))
}

fn padding(strategy: serde_json::Value, direction: &str) -> serde_json::Value {
    json!({"strategy": strategy, "direction": direction, "pad_to_multiple_of": 8, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>"})
}

#[test]
fn padding_of_the_file_is_no_part_of_a_text() {
    for direction in ["Left", "Right"] {
        for strategy in [
            json!({"Fixed": 128}),
            json!("BatchLongest"),
            json!({"Fixed": 1u64 << 50}),
        ] {
            let (plain, padded) = with(&[("padding", padding(strategy, direction))]);
            let tokens = padded.encode(TEXT).expect("tokens");
            assert_eq!(tokens, plain.encode(TEXT).expect("tokens"));
            assert!(!tokens.contains(&0) && tokens.len() < 128, "{tokens:?}");
            assert_eq!(padded.encode_plain("").expect("none"), [0u32; 0]);
            assert_eq!(padded.decode(&tokens).expect("text"), TEXT);
        }
    }
}

#[test]
fn truncation_of_the_file_ends_no_text() {
    let truncation = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    let (plain, cut) = with(&[("truncation", truncation)]);
    let tokens = cut.encode(TEXT).expect("tokens");
    assert!(tokens.len() > 4);
    assert_eq!(tokens, plain.encode(TEXT).expect("tokens"));
    assert_eq!(cut.decode(&tokens).expect("text"), TEXT);
}
