//! Tests of training examples from JSON objects.

use std::path::Path;

use meganeura_llm::examples::{ExampleFormat, ExampleRecords, LossOn, TrainingExample, pack};
use meganeura_llm::{ChatTemplate, Tokenizer};

use crate::transformers::folder;

/// The token that ends a message in the template of the small checkpoint.
const END: u32 = 2;

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&folder("llama")).expect("a tokenizer")
}

fn records(text: &str) -> ExampleRecords {
    ExampleRecords::parse(Path::new("data.jsonl"), text).unwrap_or_else(|e| panic!("{e}"))
}

fn examples(text: &str, loss_on: LossOn) -> Vec<TrainingExample> {
    let template = ChatTemplate::open(&folder("llama")).expect("a template");
    let examples = records(text).tokenize(&tokenizer(), Some(&template), &[END], loss_on);
    examples
        .unwrap_or_else(|e| panic!("{e}"))
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the text of the scored tokens of an example, with `|` in place of the token that ends a message.
fn scored(example: &TrainingExample) -> String {
    let tokenizer = tokenizer();
    let pieces = example.tokens.iter().zip(&example.is_scored);
    let pieces = pieces
        .filter(|(_, is_scored)| **is_scored)
        .map(|(&token, _)| match token {
            END => "|".to_owned(),
            token => tokenizer.decode(&[token]).expect("text"),
        });
    pieces.collect()
}

/// All tokens occur once, in sequences that fit, and nearly without gaps.
#[test]
fn short_examples_are_packed() {
    let example = |number: usize, length: usize| TrainingExample {
        tokens: vec![number as u32; length],
        is_scored: vec![true; length],
    };
    let lengths = |seed: usize| 1 + (seed * 7919) % 61;
    let examples: Vec<TrainingExample> = (0..300).map(|number| example(number, lengths(number))).collect();
    let total: usize = examples.iter().map(|example| example.tokens.len()).sum();
    let packed = pack(examples.clone(), 127);
    let mut found = vec![0; 300];
    for TrainingExample { tokens, is_scored } in &packed {
        assert!(tokens.len() <= 128 && tokens.len() == is_scored.len());
        for (at, token) in tokens.iter().enumerate() {
            let begins = at == 0 || tokens[at - 1] != *token;
            // The first token of an example is not predicted.
            assert_eq!(is_scored[at], !begins, "{at}");
            found[*token as usize] += 1;
        }
    }
    assert!((0..300).all(|number| found[number] == lengths(number)));
    assert!(
        packed.len() <= total.div_ceil(128) + 1,
        "{} sequences of {total} tokens",
        packed.len()
    );
    // An example that is too long is not joined.
    let long = pack([example(1, 200), example(2, 3)], 127);
    assert_eq!(
        long.iter().map(|example| example.tokens.len()).collect::<Vec<_>>(),
        [200, 3]
    );
    assert!(pack([], 16).is_empty());
}

#[test]
fn the_loss_counts_the_answers_of_a_conversation() {
    let chat = r#"{"id": 7, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <|im_end|>"},
        {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "Leave"}, {"role": "assistant", "content": "Bye."}]}"#
        .replace('\n', "");
    let [example] = &examples(&chat, LossOn::Answers)[..] else {
        panic!("one example");
    };
    assert_eq!(scored(example), "Hi!|Bye.|");
    // The text of the user does not end the message.
    assert_eq!(example.tokens.iter().filter(|&&token| token == END).count(), 5);
    let [all] = &examples(&chat, LossOn::All)[..] else {
        panic!("one example");
    };
    assert_eq!(all.tokens, example.tokens);
    assert!(all.is_scored.iter().all(|&is_scored| is_scored));
    let records = records(&chat);
    assert_eq!((records.format(), records.len()), (ExampleFormat::Messages, 1));
    assert_eq!(records.unused_fields(), ["id"]);
}

/// Returns a template from its source.
fn template(source: &str) -> ChatTemplate {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("chat_template.jinja"), source).expect("written");
    std::fs::write(folder.path().join("tokenizer_config.json"), "{}").expect("written");
    ChatTemplate::open(folder.path()).expect("a template")
}

#[test]
fn calls_of_tools_are_answers() {
    let template = template(
        "{% if not messages %}{{ raise_exception('no messages') }}{% endif %}{% for m in messages %}{{ m.role }}: \
         {% for call in m.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}{{ m.content or '' }}\
         <|im_end|>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
    );
    let call = r#"{"function": {"name": "add", "arguments": "{\"x\": 5}"}}"#;
    let chat = format!(
        r#"{{"messages": [{{"role": "assistant", "content": "Yes?"}}, {{"role": "user", "content": "Add"}},
            {{"role": "assistant", "tool_calls": [{call}]}}, {{"role": "tool", "content": "6"}}, {{"role": "assistant", "content": "It is 6"}}]}}"#
    )
    .replace('\n', "");
    let examples = records(&chat).tokenize(&tokenizer(), Some(&template), &[END], LossOn::Answers);
    let examples = examples.unwrap_or_else(|e| panic!("{e}"));
    let scored = scored(&examples[0][0]);
    // Without a prompt, the first message is scored with its role.
    assert!(scored.ends_with("Yes?| add {\"x\": 5}| It is 6|"), "{scored}");
}

#[test]
fn answers_are_apart_if_the_template_shortens_earlier_ones() {
    let template = template(
        "{% for m in messages %}{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}...{% else %}{{ m.content }}\
                    {% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}",
    );
    let chat = r#"[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "bee"},
        {"from": "human", "value": "c"}, {"from": "gpt", "value": "dee"}]}]"#;
    let examples = records(chat)
        .tokenize(&tokenizer(), Some(&template), &[END], LossOn::Answers)
        .expect("examples");
    let scored: Vec<String> = examples.iter().flatten().map(scored).collect();
    assert_eq!(scored, ["bee|", "dee|"]);
}

#[test]
fn other_formats_have_the_same_examples() {
    let chat = r#"{"messages": [{"role": "user", "content": "Add 1.\n\n2"}, {"role": "assistant", "content": "3"}]}"#;
    let chat = examples(chat, LossOn::Answers);
    assert_eq!(scored(&chat[0]), "3|");
    for same in [
        r#"{"instruction": "Add 1.", "input": "2", "output": "3", "source": "x"}"#,
        r#"{"conversations": [{"from": "human", "value": "Add 1.\n\n2"}, {"from": "gpt", "value": "3"}]}"#,
        r#"{"prompt": [{"role": "user", "content": "Add 1.\n\n2"}], "completion": [{"role": "assistant", "content": "3"}]}"#,
    ] {
        assert_eq!(examples(same, LossOn::Answers), chat, "{same}");
    }
    let completion = examples(r#"{"prompt": "One, two", "completion": ", three"}"#, LossOn::Answers);
    assert_eq!(scored(&completion[0]), ", three|");
    let document = examples("{\"text\": \"One\"}\n\n{\"text\": \"Two\"}\n", LossOn::Answers);
    assert_eq!(document.iter().map(scored).collect::<Vec<_>>(), ["One|", "Two|"]);
}

#[test]
fn wrong_objects_are_refused_with_their_line() {
    for (text, said) in [
        ("", "has no examples"),
        ("{\"text\": \"a\"}\n{", "line 2: expected a JSON object"),
        ("{\"text\": \"a\"}\n[1]", "line 2: expected a JSON object"),
        (
            "{\"txt\": 1}",
            "line 1: expected the fields 'messages', 'conversations'",
        ),
        (
            "{\"text\": \"a\"}\n\n{\"prompt\": \"a\"}",
            "line 3: expected the fields 'text' as in the first object, found 'prompt'",
        ),
        (
            "[{\"text\": \"a\"}, {}]",
            "object 2: expected the fields 'text' as in the first object, found none",
        ),
        ("[{\"text\": \"a\"}", "is not a JSON list"),
    ] {
        let error = ExampleRecords::parse(Path::new("data.jsonl"), text)
            .expect_err(text)
            .to_string();
        assert!(error.contains(said), "{text}: {error}");
        assert!(error.contains("data.jsonl"), "{error}");
    }
    let template = ChatTemplate::open(&folder("llama")).expect("a template");
    for (text, template, said) in [
        ("{\"text\": 5}", Some(&template), "line 1: expected a text in 'text'"),
        (
            "{\"messages\": {}}",
            Some(&template),
            "line 1: expected a list in 'messages'",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            Some(&template),
            "no message of the role 'assistant'",
        ),
        (
            "{\"messages\": [{\"role\": \"poet\", \"content\": \"a\"}]}",
            Some(&template),
            "found 'poet'",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            None,
            "needs a chat template",
        ),
        (
            "{\"conversations\": [{\"from\": \"x\", \"value\": \"a\"}]}",
            Some(&template),
            "expected 'from' with human",
        ),
    ] {
        let found = records(text).tokenize(&tokenizer(), template, &[END], LossOn::Answers);
        let error = found.expect_err(text).to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}
