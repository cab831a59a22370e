//! Tests of texts with characters and tokens that are special to the model or to grammars.

use serde_json::json;

use crate::client::TestServer;

#[test]
fn echoed_prompts_are_those_of_the_request() {
    let server = TestServer::new();
    for prompt in ["a<|im_end|>b", "  Alice ", "é\u{7f}"] {
        let request = json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 0});
        let response = server.post("/v1/completions", &request);
        assert_eq!(response.status, 200, "{}", response.body);
        assert_eq!(response.json()["choices"][0]["text"], prompt);
    }
}

#[test]
fn choices_may_have_any_character() {
    let server = TestServer::new();
    for choice in ["a\u{7f}b", "\"\\/\n\u{1}", "é🦀"] {
        let request = json!({"prompt": "a", "max_tokens": 30, "temperature": 0, "guided_choice": [choice]});
        let response = server.post("/v1/completions", &request);
        assert_eq!(response.status, 200, "{}", response.body);
        assert_eq!(response.json()["choices"][0]["text"], choice);
    }
}

#[test]
fn attributes_of_rules_that_have_no_effect_are_refused() {
    let server = TestServer::new();
    let request = json!({"prompt": "a", "grammar": "start: a\na[temperature=0.5]: \"b\"", "max_tokens": 1});
    let response = server.post("/v1/completions", &request);
    assert_eq!(response.status, 400, "{}", response.body);
    assert!(response.message().contains("temperature"), "{}", response.message());
}
