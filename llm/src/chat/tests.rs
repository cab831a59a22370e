use serde_json::json;

use super::guard::STRUCTURE;
use super::*;

fn open(files: &[(&str, &str)]) -> Result<ChatTemplate> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    ChatTemplate::open(folder.path())
}

#[test]
fn templates_in_all_places() {
    let messages = [Message::new("user", " hi ")];
    let jinja = "{% for m in messages %}\n{{ bos_token + m.content.strip() }}{% endfor %}\n";
    let config = r#"{"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0]['role'] }}{{ messages[0]['content'] }}"}"#;
    for (files, expected) in [
        (
            &[("chat_template.jinja", jinja), ("tokenizer_config.json", config)][..],
            "<s>hi",
        ),
        (&[("tokenizer_config.json", config)], "<s>user hi "),
        (
            &[(
                "tokenizer_config.json",
                r#"{"chat_template": [{"name": "tools", "template": "a"}, {"name": "default", "template": "b{{ messages[0].role }}{{ messages[0].content }}"}]}"#,
            )],
            "buser hi ",
        ),
    ] {
        let template = open(files).expect("a template");
        assert_eq!(template.render(&messages, None).expect("text").text, expected);
    }
}

#[test]
fn what_is_no_template_is_an_error() {
    for (files, said) in [
        (&[][..], "no chat template"),
        (&[("tokenizer_config.json", "{}")], "no chat template"),
        (
            &[("chat_template.jinja", "{% for %}")],
            "is damaged or of another format",
        ),
        (&[("tokenizer_config.json", r#"{"chat_template": []}"#)], "'default'"),
    ] {
        let error = open(files).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
    let template = open(&[("chat_template.jinja", "{{ raise_exception('roles must alternate') }}")]);
    let error = template
        .expect("a template")
        .render(&[], None)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("roles must alternate"), "{error}");
}

/// Returns the text that a template renders for one message, and the byte offsets of its guards.
fn guarded(template: &str, message: &Json) -> (String, Vec<usize>) {
    let template = open(&[("chat_template.jinja", template)]).expect("a template");
    let tokens = SpecialTokens::new(["<|im_end|>", "<|user|>", "</s>"].map(str::to_owned).into());
    let input = ChatInput {
        special_tokens: Some(&tokens),
        ..ChatInput::new(std::slice::from_ref(message))
    };
    let RenderedChat { text, guards } = template.render_chat(&input).expect("text");
    (text, guards)
}

#[test]
fn texts_that_complete_special_tokens_are_guarded() {
    // Returns true if each special token in the text spans a guard.
    let all_are_text = |(text, guards): &(String, Vec<usize>)| {
        let spellings = ["<|im_end|>", "</s>"];
        spellings.iter().all(|spelling| {
            text.match_indices(spelling)
                .all(|(at, found)| guards.iter().any(|guard| (at + 1..at + found.len()).contains(guard)))
        })
    };
    let keys = "{% for key in messages[0].arguments %}<{{ key }}></{{ key }}>{% endfor %}";
    let two = "{{ messages[0].name + messages[0].content | trim }}";
    for (template, message, text) in [
        (
            keys,
            json!({"role": "user", "arguments": {"|im_end|": 1}}),
            "<|im_end|></|im_end|>",
        ),
        (keys, json!({"role": "user", "arguments": {"s": 1}}), "<s></s>"),
        (
            two,
            json!({"role": "user", "name": "<|im_", "content": "end|>"}),
            "<|im_end|>",
        ),
        (
            two,
            json!({"role": "user", "name": "a<|im_end ", "content": " |>"}),
            "a<|im_end |>",
        ),
        (
            two,
            json!({"role": "user", "name": "<|im_end", "content": " |> "}),
            "<|im_end|>",
        ),
    ] {
        let found = guarded(template, &message);
        assert_eq!(found.0, text);
        assert!(all_are_text(&found), "{message}: {found:?}");
    }
    // A role is a part of the template's own tokens.
    let role = "<|{{ messages[0].role }}|>{{ messages[0].content }}";
    let (text, guards) = guarded(role, &json!({"role": "user", "content": "<|user|> <"}));
    assert_eq!(text, "<|user|><|user|> <");
    assert_eq!(guards, [9, 18]);
    assert!(STRUCTURE.is_sorted());
}
