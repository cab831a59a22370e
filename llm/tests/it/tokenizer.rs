//! Tests of tokenizer files.

use meganeura_llm::Tokenizer;
use serde_json::json;

const TEXT: &str = "The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down.";

/// Returns a trained tokenizer, and one whose file also sets these fields.
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

/// Returns the error of opening and using a tokenizer with changed parts, if it is refused.
fn refused(change: impl FnOnce(&mut serde_json::Value)) -> Option<String> {
    let plain = Tokenizer::train(TEXT, 300).expect("trains");
    let mut file: serde_json::Value = serde_json::from_str(&plain.to_json().expect("writes")).expect("JSON");
    change(&mut file);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, file.to_string()).expect("written");
    let used = Tokenizer::read(&path).and_then(|tokenizer| {
        let tokens = tokenizer.encode(TEXT)?;
        tokenizer.decode(&tokens)
    });
    used.err().map(|e| e.to_string())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = bytes.iter().map(|b| format!("{b:08b}")).collect();
    let digit = |six: &[u8]| {
        let six = std::str::from_utf8(six).expect("bits");
        char::from(DIGITS[usize::from_str_radix(&format!("{six:0<6}"), 2).expect("bits")])
    };
    let text: String = bits.as_bytes().chunks(6).map(digit).collect();
    let padding = text.len().next_multiple_of(4) - text.len();
    text + &"=".repeat(padding)
}

/// Training on a very long word finishes in time, although its time grows with the square of a word's length; too large
/// vocabularies are an error.
#[test]
fn texts_and_vocabularies_of_any_size_are_learnt_from_or_refused() {
    let begun = std::time::Instant::now();
    for text in ["a".repeat(300_000), "äö".repeat(100_000)] {
        let tokenizer = Tokenizer::train(&text, 300).expect("a tokenizer");
        let tokens = tokenizer.encode_plain(&text).expect("tokens");
        assert_eq!(tokenizer.decode(&tokens).expect("a text"), text);
    }
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    for vocab in [usize::MAX, (1 << 20) + 1] {
        let error = Tokenizer::train("a text", vocab).expect_err("too large");
        assert!(error.to_string().contains("use at most"), "{error}");
    }
}

#[test]
fn tokenizers_that_fail_or_never_end_are_errors() {
    let replace =
        |pattern: serde_json::Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let sequence = |steps: Vec<serde_json::Value>| json!({"type": "Sequence", "normalizers": steps});
    let precompiled = |bytes: &[u8]| json!({"type": "Precompiled", "precompiled_charsmap": base64(bytes)});
    let template = |single: serde_json::Value, marks: serde_json::Value| json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": marks});
    let mark = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let doubling = vec![replace(json!({"String": "a"}), "aa"); 40];
    let prepends = vec![json!({"type": "Prepend", "prepend": "x"}); 5000];
    let mut long = vec![4u8, 0, 0, 0, 0, 0, 0, 0];
    long.extend([b'x'; 100_000]);
    // Every transition points outside of the trie.
    let mut out_of_trie = vec![4u8, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f];
    out_of_trie.extend(b"a\0");
    let cases: Vec<(&str, serde_json::Value, &str)> = vec![
        ("normalizer", replace(json!({"Regex": ""}), "x"), "empty pattern"),
        ("normalizer", replace(json!({"String": ""}), "x"), "empty pattern"),
        ("normalizer", sequence(doubling), "times as long"),
        ("normalizer", sequence(prepends), "more than 64 steps"),
        ("normalizer", precompiled(&[]), "empty precompiled_charsmap"),
        ("normalizer", precompiled(&[0xff, 0xff, 0xff, 0xff, 0]), "a trie of"),
        ("normalizer", precompiled(&[0, 0, 0, 0, b'a']), "a trie of 0 bytes"),
        ("normalizer", precompiled(&out_of_trie), "the tokenizers library failed"),
        ("normalizer", precompiled(&long), "that replaces a character by"),
        (
            "post_processor",
            template(json!([mark("[GONE]")]), json!({})),
            "'[GONE]', which is not among",
        ),
        (
            "post_processor",
            template(
                json!(vec![mark("A"); 5000]),
                json!({"A": {"id": "A", "ids": [1], "tokens": ["A"]}}),
            ),
            "template of 5000 pieces",
        ),
        (
            "post_processor",
            template(
                json!([mark("A")]),
                json!({"A": {"id": "A", "ids": vec![1; 5000], "tokens": vec!["A"; 5000]}}),
            ),
            "5000 tokens for 'A'",
        ),
    ];
    for (field, value, said) in cases {
        let error = refused(|file| file[field] = value).unwrap_or_default();
        assert!(error.contains(said), "{said}: {error}");
    }
    let error = refused(|file| file["model"]["continuing_subword_prefix"] = json!("####")).unwrap_or_default();
    assert!(error.contains("continuing_subword_prefix '####'"), "{error}");
    // Settings for batches are ignored.
    let stride = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 4});
    assert_eq!(refused(|file| file["truncation"] = stride), None);
    let few = template(
        json!([{"Sequence": {"id": "A", "type_id": 0}}, mark("A")]),
        json!({"A": {"id": "A", "ids": [1], "tokens": ["A"]}}),
    );
    assert_eq!(refused(|file| file["post_processor"] = few), None);
    assert_eq!(
        refused(|file| file["normalizer"] = replace(json!({"String": " "}), "\u{2581}")),
        None
    );
}

#[test]
fn a_text_with_its_own_first_token_gets_no_second_one() {
    let mark = json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let tokens = json!({"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}});
    let processor =
        json!({"type": "TemplateProcessing", "single": [mark, text], "pair": [mark, text], "special_tokens": tokens});
    let (plain, marked) = with(&[("post_processor", processor)]);
    let wanted = [&[0][..], &plain.encode("Hi").expect("tokens")].concat();
    assert_eq!(marked.encode("Hi").expect("tokens"), wanted);
    assert_eq!(marked.encode("<|endoftext|>Hi").expect("tokens"), wanted);
}
