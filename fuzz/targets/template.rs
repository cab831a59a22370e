//! Target: chat templates, and the rendering of a conversation with them.
#![no_main]

use meganeura_fuzz::{in_file, seed, target, text};
use meganeura_llm::{ChatInput, ChatTemplate, SpecialTokens};
use serde_json::json;

/// Template with constructs of published templates.
const TOOLS: &str = r#"{%- if messages[0]['role'] == 'system' %}{{- messages[0].content|trim + '\n' }}{%- endif %}
{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- macro show(value, depth=0) -%}{%- if value is mapping %}{%- for k, v in value|items %}{{ k ~ ':' }}{{ show(v, depth + 1) }}
{%- endfor %}{%- else %}{{ value|string|indent(2) }}{%- endif %}{%- endmacro -%}
{%- if tools is defined and tools is not none %}{%- for tool in tools %}{{ tool|tojson(indent=2) }}{{ show(tool) }}{%- endfor %}{%- endif %}
{%- for message in messages[::-1] %}{%- set index = loop.index0 %}
{%- if message.content is string and not (message.content.startswith('<') and message.content.endswith('>')) and not ns.found %}
{%- set ns.found = true %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- if loop.first %}{{ bos_token }}{%- elif message.role not in ['user', 'assistant', 'tool'] %}
{{ raise_exception('no such role') }}{%- endif %}{{ '<|' ~ message.role|upper ~ '|>' }}{{ message['content'].split('b')[-1].lstrip('\n') }}
{%- if message.tool_calls %}{%- for call in message.tool_calls|selectattr('function')|list %}{{ call.function.name|replace('a', 'b') }}
{{ call.function.arguments|tojson|safe }}{%- endfor %}{%- endif %}{%- if not loop.last %}{{ '%s-%d'|format('x', 3) }}{% continue %}{%- endif %}
{{ range(3)|join(',') ~ [1,2,3]|batch(2)|list ~ 'abc'|slice(2)|list ~ (1.5)|round(1) }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{%- endif %}"#;

fn seeds() -> Vec<Vec<u8>> {
    vec![
        seed!("tests/fixtures/transformers/llama/chat_template.jinja"),
        seed!("tests/fixtures/transformers/qwen3/chat_template.jinja"),
        TOOLS.into(),
    ]
}

target!(seeds: seeds, change: text::change, |data| {
    in_file("chat_template.jinja", data, |path| {
        let Ok(template) = ChatTemplate::open(path.parent().expect("a folder")) else {
            return;
        };
        let call = json!({ "function": { "name": "add", "arguments": { "a": 1, "b": [2.5, null, "c"] } } });
        let messages = [
            json!({ "role": "system", "content": "Be brief." }),
            json!({ "role": "user", "content": "a\nb <|user|>" }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
        ];
        let tools = [json!({ "name": "add", "parameters": { "type": "object" } })];
        let special_tokens = SpecialTokens::new(vec!["<|user|>".to_owned()]);
        let _ = template.render_chat(&ChatInput {
            tools: &tools,
            special_tokens: Some(&special_tokens),
            ..ChatInput::new(&messages)
        });
        let _ = template.render_chat(&ChatInput::new(&messages[1..2]));
    });
});
