//! What requests for text have in common.

use axum::http::StatusCode;
use meganeura_llm::Sampling;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use crate::grammar::Grammar;

/// Fields of chats and completions.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<i64>,
    n: Option<usize>,
    stop: Option<OneOrMore<String>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    response_format: Option<ResponseFormat>,
    grammar: Option<String>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<serde_json::Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// One value, or a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, or a list of texts")]
pub(crate) enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    pub(crate) fn list(self) -> Vec<T> {
        match self {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(more) => more,
        }
    }
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    r#type: String,
    json_schema: Option<JsonSchema>,
}

#[derive(Debug, Deserialize)]
struct JsonSchema {
    schema: Option<Value>,
}

/// How texts are to be made.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) sampling: Sampling,
    /// Texts for each prompt.
    pub(crate) count: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub(crate) include_usage: bool,
    pub(crate) grammar: Option<Grammar>,
    /// See [`SequenceRequest`](meganeura_llm::engine::SequenceRequest).
    pub(crate) top_logprobs: Option<usize>,
}

/// Texts for each prompt at most, and strings that end them.
const MAX_COUNT: usize = 128;
const MAX_STOP: usize = 16;
/// Tokens with logarithms of probabilities at most, beside the chosen one.
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;

impl Common {
    /// Checks the fields. `top_logprobs` comes from the field of the name beside it.
    pub(crate) fn wanted(self, top_logprobs: Option<usize>, logprobs_field: &'static str) -> Result<Wanted, ApiError> {
        self.refuse_unsupported()?;
        let count = self.n.unwrap_or(1);
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(ApiError::field(
                "n",
                format!("n is {count}, and has to be from 1 to {MAX_COUNT}"),
            ));
        }
        let stop = self.stop.map(OneOrMore::list).unwrap_or_default();
        if stop.len() > MAX_STOP || stop.iter().any(String::is_empty) {
            let message = format!("stop has to be at most {MAX_STOP} strings, none of them empty");
            return Err(ApiError::field("stop", message));
        }
        if let Some(top) = top_logprobs.filter(|&top| top > MAX_TOP_LOGPROBS) {
            let message = format!("logprobs of {top} tokens are asked for, at most {MAX_TOP_LOGPROBS} are given");
            return Err(ApiError::field(logprobs_field, message));
        }
        let max_tokens = self.max_completion_tokens.or(self.max_tokens);
        if max_tokens == Some(0) {
            return Err(ApiError::field(
                "max_tokens",
                "max_tokens is 0: ask for at least one token",
            ));
        }
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.filter(|&k| k > 0),
            top_p: self.top_p,
            min_p: self.min_p.filter(|&p| p != 0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            seed: self.seed.map_or_else(random, |seed| seed as u64),
        };
        check_sampling(sampling)?;
        let by_format = self.response_format.map(ResponseFormat::grammar).transpose()?.flatten();
        if by_format.is_some() && self.grammar.is_some() {
            return Err(ApiError::field("grammar", "give either response_format or grammar"));
        }
        Ok(Wanted {
            max_tokens,
            sampling,
            count,
            stop,
            stream: self.stream.unwrap_or(false),
            include_usage: self.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
            grammar: by_format.or(self.grammar.map(Grammar::Lark)),
            top_logprobs,
        })
    }

    /// Fields that would change the result, and that nothing here does.
    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let not_zero = |penalty: Option<f32>| penalty.is_some_and(|p| p != 0.0);
        let wrong = [
            (not_zero(self.presence_penalty), "presence_penalty"),
            (not_zero(self.frequency_penalty), "frequency_penalty"),
            (
                self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty()),
                "logit_bias",
            ),
        ];
        match wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
            None => Ok(()),
            Some((_, field)) => Err(ApiError::field(
                field,
                format!("{field} is not supported; leave it out"),
            )),
        }
    }
}

impl ResponseFormat {
    fn grammar(self) -> Result<Option<Grammar>, ApiError> {
        match self.r#type.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(Grammar::Object)),
            "json_schema" => match self.json_schema.and_then(|s| s.schema) {
                Some(schema) => Ok(Some(Grammar::Schema(schema))),
                None => Err(ApiError::field(
                    "response_format",
                    "response_format of type json_schema needs json_schema.schema",
                )),
            },
            other => Err(ApiError::field(
                "response_format",
                format!("response_format of type '{other}'; there are text, json_object and json_schema"),
            )),
        }
    }
}

/// A seed that no two requests share.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// Checks the fields one by one, to name the one that is wrong.
fn check_sampling(all: Sampling) -> Result<(), ApiError> {
    let none = Sampling::default();
    let alone = [
        (
            "temperature",
            Sampling {
                temperature: all.temperature,
                ..none
            },
        ),
        (
            "top_p",
            Sampling {
                top_p: all.top_p,
                ..none
            },
        ),
        (
            "min_p",
            Sampling {
                min_p: all.min_p,
                ..none
            },
        ),
        (
            "repetition_penalty",
            Sampling {
                repetition_penalty: all.repetition_penalty,
                ..none
            },
        ),
        ("top_k", all),
    ];
    alone
        .into_iter()
        .try_for_each(|(field, sampling)| sampling.check().map_err(|e| ApiError::of_request(&e).of(field)))
}

/// The fields that bodies have.
const FIELDS: [&str; 32] = [
    "messages",
    "prompt",
    "input",
    "model",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "n",
    "stop",
    "stream",
    "stream_options",
    "response_format",
    "grammar",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "echo",
    "suffix",
    "best_of",
    "return_token_ids",
    "encoding_format",
    "dimensions",
    "user",
];

/// What a body says, in which one field is required.
pub(crate) fn parse<T: for<'a> Deserialize<'a>>(body: &[u8], required: &'static str) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| wrong_body::<T>(body, required, &error))
}

/// What is wrong with a body that cannot be read: its syntax, or a field.
fn wrong_body<T: for<'a> Deserialize<'a>>(body: &[u8], required: &'static str, error: &serde_json::Error) -> ApiError {
    let fields = match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return ApiError::bad("the body is JSON, but no object"),
        Err(error) => return ApiError::bad(format!("the body is no JSON: {error}")),
    };
    if !fields.contains_key(required) {
        return ApiError::field(required, format!("{required} is missing"));
    }
    // Each field alone, with as little as may be in the place of the one without which there is no request: no part of a large
    // body is read for every field.
    let little = || if required == "messages" { json!([]) } else { json!("") };
    let alone = |field: &&'static str| {
        let value = fields.get(*field)?.clone();
        let few = serde_json::Map::from_iter([(required.into(), little()), ((*field).into(), value)]);
        let error = serde_json::from_value::<T>(Value::Object(few)).err()?;
        Some((*field, error))
    };
    let rest = FIELDS.iter().filter(|&&field| field != required);
    match [required].iter().chain(rest).find_map(alone) {
        Some((field, error)) => ApiError::field(field, format!("{field}: {}", in_words(&error))),
        // Such as a field that is there twice.
        None => ApiError::bad(format!("the body cannot be read: {}", in_words(error))),
    }
}

/// An error with the types of JSON instead of those of Rust, and without most of a text that is wrong.
fn in_words(error: &serde_json::Error) -> String {
    const MAX_CHARS: usize = 200;
    let mut text = error.to_string();
    for (rust, json) in [
        ("expected usize", "expected a whole number that is not negative"),
        ("expected u32", "expected a whole number that is not negative"),
        ("expected i64", "expected a whole number of 64 bits"),
        ("expected f32", "expected a number"),
        ("expected a map", "expected an object"),
        ("expected a sequence", "expected a list"),
    ] {
        text = text.replace(rust, json);
    }
    for name in ["StreamOptions", "ResponseFormat", "JsonSchema"] {
        text = text.replace(&format!("expected struct {name}"), "expected an object");
    }
    match text.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// Whether a request is for the model that is served.
pub(crate) fn check_model(asked: Option<&str>, served: &str) -> Result<(), ApiError> {
    match asked {
        Some(asked) if asked != served => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            format!("there is no model '{asked}' here, but '{served}'"),
        )
        .of("model")
        .code("model_not_found")),
        _ => Ok(()),
    }
}
