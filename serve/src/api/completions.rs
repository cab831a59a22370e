//! `/v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use meganeura_llm::engine::ChosenToken;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::error::ApiError;
use super::generation::{Piece, Usage};
use super::request::{Common, TextOptions, parse};
use super::stream::{self, Format, LogprobLists, Logprobs, StreamEvent};
use super::{App, JsonBody, now};

#[derive(Deserialize)]
struct Body {
    prompt: Prompt,
    logprobs: Option<usize>,
    echo: Option<bool>,
    best_of: Option<usize>,
    return_token_ids: Option<bool>,
    #[serde(flatten)]
    common: Common,
}

/// Text or tokens, one or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, tokens, or a list of either")]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Several(Vec<OneOrMoreTokens>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or tokens")]
enum OneOrMoreTokens {
    Text(String),
    Tokens(Vec<u32>),
}

/// Maximum number of prompts of a request.
const MAX_PROMPTS: usize = 256;

impl Prompt {
    fn list(self) -> Vec<OneOrMoreTokens> {
        match self {
            Prompt::Text(text) => vec![OneOrMoreTokens::Text(text)],
            Prompt::Tokens(tokens) if tokens.is_empty() => Vec::new(),
            Prompt::Tokens(tokens) => vec![OneOrMoreTokens::Tokens(tokens)],
            Prompt::Several(several) => several,
        }
    }
}

/// Request whose prompts are tokenized and whose fields are checked.
/// A prompt that the answer repeats.
enum EchoedPrompt {
    Text(String),
    /// Tokens, whose text may be much longer. It is written after the prompt has passed its checks.
    Tokens(Vec<u32>),
}

struct PreparedRequest {
    prompts: Vec<Vec<u32>>,
    /// Prompts that the answer repeats (`echo`); empty otherwise.
    echoed: Vec<EchoedPrompt>,
    options: TextOptions,
    has_token_ids: bool,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let deadline = app.site.deadline();
    let of_request = app.clone();
    let prepared = app
        .site
        .prepare(deadline, body.len(), move || prepare(&of_request, &body))
        .await?;
    let PreparedRequest {
        prompts,
        echoed,
        options,
        has_token_ids,
    } = prepared;
    let (stream, include_usage, per_prompt) = (options.stream, options.include_usage, options.count);
    let choices = prompts.len() * per_prompt;
    let first_tokens = prompts.iter().map(|prompt| prompt[0]).collect();
    let of_echo = |prompt: &EchoedPrompt| match prompt {
        EchoedPrompt::Text(text) => text.len(),
        EchoedPrompt::Tokens(tokens) => size_of_val(&tokens[..]),
    };
    let held = (true, echoed.iter().map(of_echo).sum());
    let generation = app.clone().generate(prompts, options, held, deadline).await?;
    let shows_special: Vec<bool> = echoed
        .iter()
        .map(|prompt| matches!(prompt, EchoedPrompt::Tokens(_)))
        .collect();
    let of_echo = app.clone();
    let spell = move |prompt: &EchoedPrompt| match prompt {
        EchoedPrompt::Text(text) => text.clone(),
        EchoedPrompt::Tokens(tokens) => of_echo.spelled(tokens),
    };
    let spell_all = move || -> Vec<String> { echoed.iter().map(&spell).collect() };
    let echoed = if shows_special.contains(&true) {
        app.site.prepare(deadline, 0, move || Ok(spell_all())).await?
    } else {
        spell_all()
    };
    // A complete response repeats the prompt in each choice.
    let repeated = if stream { 1 } else { per_prompt };
    generation.keep(echoed.iter().map(String::len).sum::<usize>().saturating_mul(repeated))?;
    let format = Completions {
        id: super::chat::id("cmpl"),
        created: now(),
        app,
        logprobs: (0..choices).map(|_| Logprobs::default()).collect(),
        token_ids: has_token_ids.then(|| vec![Vec::new(); choices]),
        texts: vec![Default::default(); choices],
        echoed,
        shows_special,
        first_tokens,
        per_prompt,
        scored: None,
    };
    if stream {
        Ok(stream::events(generation, choices, include_usage, format))
    } else {
        stream::whole(generation, format).await
    }
}

fn prepare(app: &App, body: &[u8]) -> Result<PreparedRequest, ApiError> {
    let body: Body = parse(body, "prompt")?;
    let echo = body.echo.unwrap_or(false);
    let mut options = body.common.options(app, body.logprobs, "logprobs", echo)?;
    if let Some(best_of) = body.best_of.filter(|&best_of| best_of != options.count) {
        let message = format!(
            "best_of is supported only with the value of n, {}, found {best_of}",
            options.count
        );
        return Err(ApiError::field("best_of", message));
    }
    if echo {
        options.prompt_logprobs = options.top_logprobs.or((options.max_tokens == Some(0)).then_some(0));
    }
    let prompts = body.prompt.list();
    if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
        let message = format!("expected 1 to {MAX_PROMPTS} prompts, found {}", prompts.len());
        return Err(ApiError::field("prompt", message));
    }
    let mut echoed = Vec::new();
    let tokens = |prompt| match prompt {
        OneOrMoreTokens::Tokens(tokens) => {
            echoed.extend(echo.then(|| EchoedPrompt::Tokens(tokens.clone())));
            Ok(tokens)
        }
        OneOrMoreTokens::Text(text) => {
            app.check_length(&text)?;
            let tokens = app.tokenizer.encode(&text).map_err(|e| ApiError::of_request(&e));
            echoed.extend(echo.then_some(EchoedPrompt::Text(text)));
            tokens
        }
    };
    let prompts: Vec<Vec<u32>> = prompts.into_iter().map(tokens).collect::<Result<_, _>>()?;
    if prompts.iter().any(Vec::is_empty) {
        return Err(ApiError::field("prompt", "the prompt has no tokens"));
    }
    let vocab = app.vocab;
    if let Some(token) = prompts.iter().flatten().find(|&&token| token as usize >= vocab) {
        let message = format!("expected token ids below {vocab}, found {token}");
        return Err(ApiError::field("prompt", message));
    }
    Ok(PreparedRequest {
        echoed,
        prompts,
        options,
        has_token_ids: body.return_token_ids == Some(true),
    })
}

/// Two texts that are serialized as one string.
struct JoinedTexts<'a>(&'a str, &'a str);

impl Serialize for JoinedTexts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}{}", self.0, self.1))
    }
}

struct Completions {
    id: String,
    created: u64,
    app: Arc<App>,
    logprobs: Vec<Logprobs>,
    /// Generated tokens of each choice that are not sent yet, if the request asks for token ids.
    token_ids: Option<Vec<Vec<u32>>>,
    /// Generated text and `finish_reason` of each choice, for a response that is not streamed.
    texts: Vec<(String, Option<&'static str>)>,
    /// Texts of the prompts that the answer repeats, and the first token of each prompt.
    echoed: Vec<String>,
    /// For each repeated prompt, true if its text contains the names of special tokens.
    shows_special: Vec<bool>,
    first_tokens: Vec<u32>,
    /// Number of choices for each prompt.
    per_prompt: usize,
    /// Tokens of a scored prompt that are not sent yet, and its choice.
    scored: Option<(usize, std::vec::IntoIter<ChosenToken>)>,
}

impl Completions {
    /// Adds the tokens of a part of a choice to the log-probabilities and token ids. Of a scored prompt, adds at most `most`
    /// tokens; [`next_part`](Format::next_part) sends the others.
    fn push(&mut self, piece: Piece, most: usize) {
        if let Some(scored) = piece.scored {
            let first = self.first_tokens[piece.choice / self.per_prompt];
            let shows_special = self.shows_special_in(piece.choice);
            self.logprobs[piece.choice].push_first(first, shows_special);
            self.scored = Some((piece.choice, scored.into_iter()));
            self.push_scored(most);
        }
        if let Some(chosen) = &piece.chosen {
            self.logprobs[piece.choice].push(chosen, false);
            if let Some(token_ids) = &mut self.token_ids {
                token_ids[piece.choice].push(chosen.token);
            }
        }
    }

    /// Returns true if the repeated prompt of a choice contains the names of special tokens.
    fn shows_special_in(&self, choice: usize) -> bool {
        self.shows_special.get(choice / self.per_prompt) == Some(&true)
    }

    /// Adds at most `most` tokens of the scored prompt. Returns its choice if it had any tokens left.
    fn push_scored(&mut self, most: usize) -> Option<usize> {
        let (choice, mut scored) = self.scored.take().filter(|(_, scored)| scored.len() > 0)?;
        let shows_special = self.shows_special_in(choice);
        for chosen in scored.by_ref().take(most) {
            self.logprobs[choice].push(&chosen, shows_special);
        }
        self.scored = Some((choice, scored));
        Some(choice)
    }

    /// Returns a choice as JSON, with the log-probabilities and ids of the tokens pushed since the last call.
    fn choice(&mut self, index: usize, text: &str, finish: Option<&str>) -> Value {
        let mut choice = json!({
            "index": index,
            "text": text,
            "logprobs": self.logprobs[index].lists(&self.app),
            "finish_reason": finish,
        });
        self.logprobs[index].clear(&self.app);
        if let Some(token_ids) = &mut self.token_ids {
            choice["token_ids"] = json!(std::mem::take(&mut token_ids[index]));
        }
        choice
    }

    fn with(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.app.site.model,
            "choices": choices,
        })
    }
}

impl Format for Completions {
    fn begin(&mut self, choice: usize) -> Vec<StreamEvent> {
        let prompt = choice / self.per_prompt;
        let Some(text) = self.echoed.get_mut(prompt).map(std::mem::take) else {
            return Vec::new();
        };
        let choice = self.choice(choice, &text, None);
        self.echoed[prompt] = text;
        vec![self.with(vec![choice]).into()]
    }

    fn piece(&mut self, piece: Piece) -> Vec<StreamEvent> {
        let has_tokens = (self.token_ids.is_some() && piece.chosen.is_some()) || piece.scored.is_some();
        let (index, text, finish) = (piece.choice, piece.text.clone(), piece.finish);
        self.push(piece, stream::PART_TOKENS);
        if text.is_empty() && finish.is_none() && !has_tokens {
            return Vec::new();
        }
        let choice = self.choice(index, &text, finish);
        vec![self.with(vec![choice]).into()]
    }

    fn next_part(&mut self) -> Option<StreamEvent> {
        let index = self.push_scored(stream::PART_TOKENS)?;
        let choice = self.choice(index, "", None);
        Some(self.with(vec![choice]).into())
    }

    fn usage(&self, usage: Usage) -> Value {
        let mut value = self.with(Vec::new());
        value["usage"] = stream::usage(usage);
        value
    }

    fn keep(&mut self, piece: Piece) {
        let (text, finish) = &mut self.texts[piece.choice];
        text.push_str(&piece.text);
        *finish = piece.finish.or(*finish);
        self.push(piece, usize::MAX);
    }

    fn whole(&mut self, usage: Usage) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Choice<'a> {
            index: usize,
            text: JoinedTexts<'a>,
            logprobs: LogprobLists<'a>,
            finish_reason: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            token_ids: Option<&'a [u32]>,
        }
        let choices = self.texts.iter().enumerate().map(|(index, (text, finish))| Choice {
            index,
            text: JoinedTexts(
                self.echoed.get(index / self.per_prompt).map_or("", String::as_str),
                text,
            ),
            logprobs: self.logprobs[index].lists(&self.app),
            finish_reason: *finish,
            token_ids: self.token_ids.as_ref().map(|token_ids| &token_ids[index][..]),
        });
        serde_json::to_string(&stream::CompleteResponse {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.app.site.model,
            choices: choices.collect::<Vec<_>>(),
            usage: stream::usage(usage),
        })
    }
}
