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
    let config = r#"{"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0]['role'] }}"}"#;
    for (files, expected) in [
        (
            &[("chat_template.jinja", jinja), ("tokenizer_config.json", config)][..],
            "<s>hi",
        ),
        (&[("tokenizer_config.json", config)], "<s>user"),
        (
            &[(
                "tokenizer_config.json",
                r#"{"chat_template": [{"name": "tools", "template": "a"}, {"name": "default", "template": "b{{ messages[0].role }}"}]}"#,
            )],
            "buser",
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
