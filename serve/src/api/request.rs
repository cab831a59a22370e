//! What requests for text have in common.

use axum::http::StatusCode;
use meganeura_llm::Sampling;
use serde::Deserialize;
use serde_json::Value;

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
#[serde(untagged)]
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
    /// Checks the fields.
    pub(crate) fn wanted(self, top_logprobs: Option<usize>) -> Result<Wanted, ApiError> {
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
            return Err(ApiError::field("top_logprobs", message));
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
            min_p: self.min_p.filter(|&p| p > 0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            seed: self.seed.map_or_else(random, |seed| seed as u64),
        };
        sampling.check().map_err(|e| ApiError::of_request(&e))?;
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

/// What a body says.
pub(crate) fn parse<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|e| ApiError::bad(format!("the body is not the JSON that it should be: {e}")))
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
