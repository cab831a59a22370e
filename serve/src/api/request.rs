//! Request fields that all text-generating endpoints have in common.

use std::collections::HashSet;

use axum::http::StatusCode;
use meganeura_llm::Sampling;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};
use super::structured::{ResponseFormat, StructuredOutputs, choice, schema};
use super::{App, fields, raw_json};
use crate::grammar::Grammar;

/// Fields of chat and completion requests. Names of OpenAI's API, vLLM and llama.cpp for the same value are aliases.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    #[serde(alias = "n_predict")]
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    min_tokens: Option<usize>,
    ignore_eos: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<Map<String, Value>>,
    seed: Option<i64>,
    n: Option<usize>,
    stop: Option<OneOrMore<String>>,
    stop_token_ids: Option<Vec<u32>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    response_format: Option<ResponseFormat>,
    #[serde(alias = "guided_grammar")]
    grammar: Option<String>,
    #[serde(alias = "json_schema")]
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    structured_outputs: Option<StructuredOutputs>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: Option<bool>,
    /// OpenAI's option to pad stream events. The server adds no padding.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
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

/// Checked options for the texts to generate.
#[derive(Debug)]
pub(crate) struct TextOptions {
    /// Maximum number of tokens; `None` fills the context.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) min_tokens: usize,
    /// True to continue after end-of-sequence tokens.
    pub(crate) ignore_eos: bool,
    pub(crate) sampling: Sampling,
    /// True if the client chose the seed.
    pub(crate) has_seed: bool,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Number of texts to generate for each prompt.
    pub(crate) count: usize,
    /// Strings that end a text, and tokens that end it.
    pub(crate) stop: Vec<String>,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) stream: bool,
    /// True to end a stream with an event that contains the numbers of tokens.
    pub(crate) include_usage: bool,
    pub(crate) grammar: Option<Grammar>,
    /// See [`SequenceRequest`](meganeura_llm::engine::SequenceRequest).
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) prompt_logprobs: Option<usize>,
    /// Index of the adapter.
    pub(crate) adapter: Option<usize>,
}

/// Maximum number of texts to generate for each prompt.
const MAX_COUNT: usize = 128;
/// Maximum number of stop strings, and maximum number of bytes of one.
const MAX_STOP: usize = 16;
const MAX_STOP_BYTES: usize = 1_000;
/// Maximum number of tokens in `logit_bias`, and of stop token ids.
const MAX_BIASES: usize = 1_024;
/// Maximum number of most likely tokens that are returned for each position.
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;

impl Common {
    /// Sets the values that `/v1/responses` passes under other names: `max_output_tokens` and `text.format`.
    ///
    /// # Errors
    /// A field that is set under both names; a limit below 1.
    pub(crate) fn with(self, max_tokens: Option<i64>, format: Option<ResponseFormat>) -> Result<Self, ApiError> {
        if let Some(number) = max_tokens.filter(|&number| number < 1 && number != -1) {
            let message = format!("expected max_output_tokens of at least 1, or -1 for no limit, found {number}");
            return Err(ApiError::field("max_output_tokens", message));
        }
        if let (Some(new), Some(old)) = (max_tokens, self.max_tokens)
            && new != old
        {
            let message = format!("expected one of max_output_tokens and max_tokens, found {new} and {old}");
            return Err(ApiError::field("max_output_tokens", message));
        }
        if format.is_some() && self.response_format.is_some() {
            let message = "expected one of text.format and response_format, found both";
            return Err(ApiError::field("text", message));
        }
        Ok(Common {
            max_tokens: max_tokens.or(self.max_tokens),
            response_format: format.or(self.response_format),
            ..self
        })
    }

    /// Checks the fields and converts them to options. `top_logprobs` is the value of the field `logprobs_field`. A
    /// `max_tokens` of 0 is allowed if `may_be_empty`.
    pub(crate) fn options(
        self,
        app: &App,
        top_logprobs: Option<usize>,
        logprobs_field: &'static str,
        may_be_empty: bool,
    ) -> Result<TextOptions, ApiError> {
        fields::check(&self.others)?;
        let adapter = check_model(self.model.as_deref(), app)?;
        let count = self.n.unwrap_or(1);
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(ApiError::field(
                "n",
                format!("expected n from 1 to {MAX_COUNT}, found {count}"),
            ));
        }
        if let Some(top) = top_logprobs.filter(|&top| top > MAX_TOP_LOGPROBS) {
            let message = format!("expected log-probabilities of at most {MAX_TOP_LOGPROBS} tokens, found {top}");
            return Err(ApiError::field(logprobs_field, message));
        }
        if let (Some(new), Some(old)) = (self.max_completion_tokens, self.max_tokens)
            && new != old
        {
            let message = format!("expected one of max_completion_tokens and max_tokens, found {new} and {old}");
            return Err(ApiError::field("max_tokens", message));
        }
        let stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !stream {
            return Err(ApiError::field("stream_options", "stream_options needs stream: true"));
        }
        let max_tokens = match self.max_completion_tokens.or(self.max_tokens) {
            None | Some(-1) => None,
            Some(0) if may_be_empty => Some(0),
            Some(number) if number > 0 => Some(usize::try_from(number).unwrap_or(usize::MAX)),
            Some(number) => {
                let message = format!("expected max_tokens of at least 1, or -1 for no limit, found {number}");
                return Err(ApiError::field("max_tokens", message));
            }
        };
        let usual = app.sampling;
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_k: match self.top_k {
                None => usual.top_k,
                Some(-1 | 0) => None,
                Some(number) => Some(usize::try_from(number).map_err(|_| {
                    let message = format!("expected top_k of at least 1, or -1 for all tokens, found {number}");
                    ApiError::field("top_k", message)
                })?),
            },
            top_p: self.top_p.or(usual.top_p),
            min_p: self.min_p.or(usual.min_p).filter(|&p| p != 0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            seed: self.seed.map_or_else(random, |seed| seed as u64),
        };
        let has_seed = self.seed.is_some();
        check_sampling(sampling)?;
        let (stop, stop_tokens) = stops(self.stop, self.stop_token_ids, app)?;
        let structured = self.structured_outputs.unwrap_or_default();
        let by_format = self.response_format.map(ResponseFormat::grammar).transpose()?.flatten();
        let grammars = [
            by_format,
            self.grammar.map(Grammar::Lark),
            structured.grammar.map(Grammar::Lark),
            self.guided_json.map(schema).transpose()?,
            structured.json.map(schema).transpose()?,
            self.guided_regex.map(Grammar::Regex),
            structured.regex.map(Grammar::Regex),
            self.guided_choice.map(choice).transpose()?,
            structured.choice.map(choice).transpose()?,
        ];
        let mut grammars = grammars.into_iter().flatten();
        let grammar = grammars.next();
        if grammars.next().is_some() {
            return Err(ApiError::field(
                "grammar",
                "expected one of response_format, grammar, guided_json, guided_regex and guided_choice, found several",
            ));
        }
        let ignore_eos = self.ignore_eos.unwrap_or(false);
        let min_tokens = self.min_tokens.unwrap_or(0);
        if let Some(max) = max_tokens.filter(|&max| min_tokens > max) {
            let message = format!("expected min_tokens of at most max_tokens, found {min_tokens} and {max}");
            return Err(ApiError::field("min_tokens", message));
        }
        let ending: HashSet<&u32> = stop_tokens.iter().chain(&app.stop).collect();
        if min_tokens > 0 && ending.len() >= app.vocab {
            return Err(ApiError::field(
                "stop_token_ids",
                "expected fewer tokens than the vocabulary has, because min_tokens excludes them",
            ));
        }
        if min_tokens > app.site.context {
            let message = format!(
                "expected min_tokens of at most {}, the tokens of a sequence, found {min_tokens}",
                app.site.context
            );
            return Err(ApiError::field("min_tokens", message));
        }
        let options = TextOptions {
            max_tokens,
            min_tokens,
            ignore_eos,
            sampling,
            has_seed,
            logit_bias: biases(self.logit_bias, app.vocab)?,
            count,
            stop,
            stop_tokens,
            stream,
            include_usage: self.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
            grammar,
            top_logprobs,
            prompt_logprobs: None,
            adapter,
        };
        options.check_ends()?;
        Ok(options)
    }
}

impl TextOptions {
    /// Checks that no option contradicts the grammar, which determines the end of the text.
    ///
    /// # Errors
    /// A grammar together with `ignore_eos` or `min_tokens`.
    pub(crate) fn check_ends(&self) -> Result<(), ApiError> {
        let refused = |field, rest| {
            let message = format!("{field} cannot be used with a grammar, a schema or a required tool{rest}");
            Err(ApiError::field(field, message))
        };
        if self.grammar.is_none() {
            Ok(())
        } else if self.ignore_eos {
            refused("ignore_eos", "")
        } else if self.min_tokens > 0 {
            refused("min_tokens", ", which determines the end of the text")
        } else {
            Ok(())
        }
    }
}

/// Returns the stop strings and stop tokens. If a stop string is a special token, its id is added to the stop tokens.
fn stops(
    strings: Option<OneOrMore<String>>,
    tokens: Option<Vec<u32>>,
    app: &App,
) -> Result<(Vec<String>, Vec<u32>), ApiError> {
    let strings = strings.map(OneOrMore::list).unwrap_or_default();
    let mut tokens = tokens.unwrap_or_default();
    let is_wrong = |string: &String| string.is_empty() || string.len() > MAX_STOP_BYTES;
    if strings.len() > MAX_STOP || strings.iter().any(is_wrong) {
        let message =
            format!("expected at most {MAX_STOP} stop strings of 1 to {MAX_STOP_BYTES} bytes each, none of them empty");
        return Err(ApiError::field("stop", message));
    }
    if tokens.len() > MAX_BIASES || tokens.iter().any(|&token| token as usize >= app.vocab) {
        let message = format!("expected at most {MAX_BIASES} token ids below {}", app.vocab);
        return Err(ApiError::field("stop_token_ids", message));
    }
    for string in &strings {
        if let Some(token) = app
            .tokenizer
            .token(string)
            .filter(|&token| app.tokenizer.is_special(token))
        {
            tokens.push(token);
        }
    }
    Ok((strings, tokens))
}

fn biases(biases: Option<Map<String, Value>>, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    const MAX: f64 = 100.0;
    let biases = biases.unwrap_or_default();
    let wrong = |message: String| ApiError::field("logit_bias", message);
    if biases.len() > MAX_BIASES {
        return Err(wrong(format!(
            "expected at most {MAX_BIASES} biases, found {}",
            biases.len()
        )));
    }
    let bias = |(token, bias): (&String, &Value)| {
        let id = token.parse::<u32>().ok().filter(|&id| (id as usize) < vocab);
        let id = id.ok_or_else(|| wrong(format!("expected token ids below {vocab}, found {}", quoted(token))))?;
        let number = bias.as_f64().filter(|bias| bias.abs() <= MAX);
        let number = number.ok_or_else(|| wrong(format!("expected biases from -{MAX} to {MAX}")))?;
        Ok((id, number as f32))
    };
    let biases: Vec<(u32, f32)> = biases.iter().map(bias).collect::<Result<_, _>>()?;
    // "5" and "05" are the same token.
    let mut seen = HashSet::new();
    match biases.iter().find(|(id, _)| !seen.insert(*id)) {
        Some((id, _)) => Err(wrong(format!(
            "expected one bias for each token, found several for {id}"
        ))),
        None => Ok(biases),
    }
}

/// Returns a random seed.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// Checks the sampling fields one by one, so that the error names the wrong one.
fn check_sampling(all: Sampling) -> Result<(), ApiError> {
    let none = Sampling::default();
    let one_by_one = [
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
        (
            "presence_penalty",
            Sampling {
                presence_penalty: all.presence_penalty,
                ..none
            },
        ),
        (
            "frequency_penalty",
            Sampling {
                frequency_penalty: all.frequency_penalty,
                ..none
            },
        ),
        ("top_k", all),
    ];
    one_by_one
        .into_iter()
        .try_for_each(|(field, sampling)| sampling.check().map_err(|e| ApiError::of_request(&e).of(field)))
}

/// Parses a request body. The field `required` must exist.
pub(crate) fn parse<T: for<'a> Deserialize<'a>>(body: &[u8], required: &'static str) -> Result<T, ApiError> {
    if raw_json::has_reserved_name(body) {
        return Err(ApiError::bad(
            "names that begin with '$serde_json::private::' are reserved",
        ));
    }
    serde_json::from_slice(body).map_err(|error| wrong_body::<T>(body, required, &error))
}

/// Returns the error for a body that cannot be parsed: a syntax error, or the name of the wrong field.
fn wrong_body<T: for<'a> Deserialize<'a>>(body: &[u8], required: &'static str, error: &serde_json::Error) -> ApiError {
    /// Maximum number of fields that are tried one by one.
    const MAX_FIELDS: usize = 100;
    let fields: Map<String, Value> = match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return ApiError::bad("expected a JSON object as the body"),
        Err(error) => return ApiError::bad(format!("the body is not JSON: {error}")),
    };
    if !fields.contains_key(required) {
        return ApiError::field(required, format!("{required} is missing"));
    }
    // Another required field.
    if let Some(name) = error
        .to_string()
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split_once('`'))
    {
        let name = name.0.to_owned();
        return ApiError::bad(format!("{name} is missing")).of_any(name);
    }
    // Each field by itself, with the smallest value of the required one: no large field is parsed for every other.
    let smallest = || if required == "messages" { json!([]) } else { json!("") };
    let by_itself = |(name, value): (&String, &Value)| {
        let mut few = Map::from_iter([(required.to_owned(), smallest())]);
        few.insert(name.clone(), value.clone());
        let error = serde_json::from_value::<T>(Value::Object(few)).err()?;
        // Another required field is left out here.
        (!error.to_string().starts_with("missing field")).then(|| (name.clone(), error))
    };
    match fields.iter().take(MAX_FIELDS).find_map(by_itself) {
        Some((name, error)) => {
            let name: String = name.chars().take(60).collect();
            ApiError::bad(format!("{name}: {}", in_words(&error))).of_any(name)
        }
        None => {
            let found = ApiError::bad(format!("the body cannot be parsed: {}", in_words(error)));
            let text = error.to_string();
            let twice = text
                .strip_prefix("duplicate field `")
                .and_then(|rest| rest.split_once('`'));
            match twice {
                Some((name, _)) => found.of_any(name.to_owned()),
                None => found,
            }
        }
    }
}

/// Returns the message of a parse error, with JSON types instead of Rust types, and long values shortened.
fn in_words(error: &serde_json::Error) -> String {
    const MAX_CHARS: usize = 200;
    let mut text = error.to_string();
    for (rust, json) in [
        ("expected usize", "expected a whole number that is not negative"),
        ("expected u32", "expected a whole number that is not negative"),
        ("expected i64", "expected a whole number of 64 bits"),
        ("expected f32", "expected a number"),
        ("invalid type: map", "invalid type: object"),
        ("invalid type: sequence", "invalid type: list"),
        ("invalid type: floating point", "invalid type: number"),
        ("expected a map", "expected an object"),
        ("expected a sequence", "expected a list"),
    ] {
        text = text.replace(rust, json);
    }
    for name in ["StreamOptions", "ResponseFormat", "JsonSchema", "StructuredOutputs"] {
        text = text.replace(&format!("expected struct {name}"), "expected an object");
    }
    match text.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// Finds the model that a request names. Returns `None` for the base model, or the index of an adapter, which requests
/// name `MODEL:ADAPTER` or `ADAPTER`.
pub(crate) fn check_model(asked: Option<&str>, app: &App) -> Result<Option<usize>, ApiError> {
    let Some(asked) = asked else { return Ok(None) };
    let adapter = asked
        .strip_prefix(&*app.site.model)
        .and_then(|rest| rest.strip_prefix(':'));
    let found = app
        .adapters
        .iter()
        .position(|name| Some(&**name) == adapter || name == asked);
    match found {
        Some(index) => Ok(Some(index)),
        None if adapter.is_some() => Err(unknown_model(asked, &app.site.model, &app.adapters)),
        None => check_name(asked, &app.site.model, app.site.strict_model).map(|()| None),
    }
}

/// Checks the model name of a request. Without `strict`, any name is accepted, because clients often send a fixed one.
pub(crate) fn check_name(asked: &str, served: &str, strict: bool) -> Result<(), ApiError> {
    if asked == served || !strict {
        Ok(())
    } else {
        Err(unknown_model(asked, served, &[]))
    }
}

pub(crate) fn unknown_model(asked: &str, served: &str, adapters: &[String]) -> ApiError {
    let mut names = vec![quoted(served)];
    names.extend(adapters.iter().map(|adapter| quoted(&format!("{served}:{adapter}"))));
    let message = format!("unknown model {}; this server has {}", quoted(asked), names.join(", "));
    ApiError::new(StatusCode::NOT_FOUND, message)
        .of("model")
        .code("model_not_found")
}
