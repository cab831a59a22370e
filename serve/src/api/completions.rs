//! `/v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::generation::{Generation, Piece, Usage};
use super::request::{Common, check_model, parse};
use super::stream::{self, Format, Logprobs};
use super::{App, JsonBody, now, off_thread};

#[derive(Deserialize)]
struct Body {
    prompt: Prompt,
    logprobs: Option<usize>,
    echo: Option<bool>,
    suffix: Option<String>,
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

/// Prompts of a request at most.
const MAX_PROMPTS: usize = 256;

impl Prompt {
    fn list(self) -> Vec<OneOrMoreTokens> {
        match self {
            Prompt::Text(text) => vec![OneOrMoreTokens::Text(text)],
            Prompt::Tokens(tokens) => vec![OneOrMoreTokens::Tokens(tokens)],
            Prompt::Several(several) => several,
        }
    }
}

pub(crate) async fn handle(State(app): State<Arc<App>>, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let of_request = app.clone();
    let (generation, choices, wanted, token_ids) = off_thread(move || {
        let body: Body = parse(&body, "prompt")?;
        check_model(body.common.model.as_deref(), &of_request.site.model)?;
        let unsupported = [
            (body.echo == Some(true), "echo"),
            (body.suffix.is_some_and(|s| !s.is_empty()), "suffix"),
            (body.best_of.is_some_and(|n| n > 1), "best_of"),
        ];
        if let Some((_, field)) = unsupported.into_iter().find(|(is_set, _)| *is_set) {
            return Err(ApiError::field(
                field,
                format!("{field} is not supported; leave it out"),
            ));
        }
        let prompts = body.prompt.list();
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
            let message = format!(
                "there are {} prompts, and have to be from 1 to {MAX_PROMPTS}",
                prompts.len()
            );
            return Err(ApiError::field("prompt", message));
        }
        let tokens = |prompt| match prompt {
            OneOrMoreTokens::Tokens(tokens) => Ok(tokens),
            OneOrMoreTokens::Text(text) => of_request.tokenizer.encode(&text).map_err(|e| ApiError::of_request(&e)),
        };
        let prompts: Vec<Vec<u32>> = prompts.into_iter().map(tokens).collect::<Result<_, _>>()?;
        if prompts.iter().any(Vec::is_empty) {
            return Err(ApiError::field("prompt", "the prompt has no tokens"));
        }
        let vocab = of_request.vocab;
        if let Some(token) = prompts.iter().flatten().find(|&&token| token as usize >= vocab) {
            let message = format!("token {token} is not in the model's vocabulary of {vocab}");
            return Err(ApiError::field("prompt", message));
        }
        let wanted = body.common.wanted(body.logprobs, "logprobs")?;
        let choices = prompts.len() * wanted.count;
        let token_ids = body.return_token_ids == Some(true);
        let generation = Generation::start(of_request, prompts, &wanted, true)?;
        Ok((generation, choices, wanted, token_ids))
    })
    .await?;
    let format = Completions {
        id: super::chat::id("cmpl"),
        created: now(),
        app,
        logprobs: (0..choices).map(|_| Logprobs::default()).collect(),
        token_ids: token_ids.then(|| vec![Vec::new(); choices]),
    };
    match wanted.stream {
        true => Ok(stream::events(generation, choices, wanted.include_usage, format)),
        false => stream::whole(generation, choices, format).await,
    }
}

struct Completions {
    id: String,
    created: u64,
    app: Arc<App>,
    logprobs: Vec<Logprobs>,
    /// Tokens of each choice that are still to be sent, if they are asked for.
    token_ids: Option<Vec<Vec<u32>>>,
}

impl Completions {
    /// Notes the token of a piece.
    fn push(&mut self, piece: &Piece) {
        if let Some(chosen) = &piece.chosen {
            self.logprobs[piece.choice].push(&self.app, chosen);
            if let Some(token_ids) = &mut self.token_ids {
                token_ids[piece.choice].push(chosen.token);
            }
        }
    }

    /// A choice with what was noted of it.
    fn choice(&mut self, index: usize, text: &str, finish: Option<&str>) -> Value {
        let mut choice = json!({
            "index": index,
            "text": text,
            "logprobs": self.logprobs[index].take(),
            "finish_reason": finish,
        });
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
    fn begin(&mut self, _: usize) -> Vec<Value> {
        Vec::new()
    }

    fn piece(&mut self, piece: Piece) -> Vec<Value> {
        self.push(&piece);
        let has_tokens = self.token_ids.is_some() && piece.chosen.is_some();
        if piece.text.is_empty() && piece.finish.is_none() && !has_tokens {
            return Vec::new();
        }
        let choice = self.choice(piece.choice, &piece.text, piece.finish);
        vec![self.with(vec![choice])]
    }

    fn usage(&self, usage: Usage) -> Value {
        let mut value = self.with(Vec::new());
        value["usage"] = stream::usage(usage);
        value
    }

    fn whole(&mut self, pieces: Vec<Piece>, choices: usize, usage: Usage) -> Value {
        let mut texts = vec![(String::new(), None); choices];
        for piece in pieces {
            self.push(&piece);
            let (text, finish) = &mut texts[piece.choice];
            text.push_str(&piece.text);
            *finish = piece.finish;
        }
        let all = texts.into_iter().enumerate();
        let all = all
            .map(|(index, (text, finish))| self.choice(index, &text, finish))
            .collect();
        let mut value = self.with(all);
        value["usage"] = stream::usage(usage);
        value
    }
}
