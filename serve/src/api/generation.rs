//! Texts while they are generated: of all choices of one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use meganeura_llm::Sampling;
use meganeura_llm::engine::{Chosen, Finish, SequenceRequest};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout_at};

use super::App;
use super::error::ApiError;
use super::request::Wanted;
use crate::grammar::Compiled;
use crate::text::Text;
use crate::worker::{Busy, Job, Update, What};

/// Choices of a request, some of which are still generated.
pub(crate) struct Generation {
    app: Arc<App>,
    updates: UnboundedReceiver<Update>,
    choices: Vec<Choice>,
    deadline: Instant,
    started: Instant,
    latest: Option<Instant>,
    pub(crate) usage: Usage,
}

struct Choice {
    /// `None` when it is complete.
    text: Option<Text>,
    cancelled: Arc<AtomicBool>,
}

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) generated: usize,
}

/// What comes next of a choice.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) choice: usize,
    pub(crate) text: String,
    pub(crate) chosen: Option<Chosen>,
    /// Why it ended, if it did: `stop` or `length`.
    pub(crate) finish: Option<&'static str>,
}

impl Generation {
    /// Begins to generate `wanted.count` texts for each prompt, which go on with the prompt's own if they are completions. It
    /// takes a while, and no asynchronous thread should wait for it.
    pub(crate) fn start(
        app: Arc<App>,
        prompts: Vec<Vec<u32>>,
        wanted: &Wanted,
        are_completions: bool,
    ) -> Result<Self, ApiError> {
        let (sender, updates) = unbounded_channel();
        let mut choices = Vec::new();
        let mut usage = Usage::default();
        for prompt in &prompts {
            if prompt.len() >= app.site.context {
                return Err(ApiError::bad(format!(
                    "the prompt has {} tokens, and sequences at most {}: nothing could follow",
                    prompt.len(),
                    app.site.context
                ))
                .code("context_length_exceeded"));
            }
        }
        let count = prompts.len().saturating_mul(wanted.count);
        // To ask again would be of no use.
        if count > app.worker.limit() {
            let (prompts, each, limit) = (prompts.len(), wanted.count, app.worker.limit());
            return Err(ApiError::bad(format!(
                "{prompts} prompts with {each} choices each are {count} sequences, and the server takes at most {limit} at a time; \
                 send fewer prompts in a request, or a smaller 'n'"
            ))
            .of(if each > 1 { "n" } else { "prompt" }));
        }
        let mut places = app.worker.reserve(count).map_err(|Busy| {
            app.site.metrics.refused.inc();
            let message = format!(
                "there is no room in the queue for {count} more sequences, {} are computed or wait; try again later",
                app.worker.pending()
            );
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full")
        })?;
        let grammar = wanted.grammar.as_ref().map(|grammar| app.grammars.read(grammar));
        let grammar = grammar.transpose().map_err(|e| ApiError::of_request(&e))?;
        for prompt in prompts {
            usage.prompt += prompt.len();
            let room = app.site.context - prompt.len();
            let behind = if are_completions { &prompt[..] } else { &[] };
            for number in 0..wanted.count {
                let cancelled = Arc::new(AtomicBool::new(false));
                let request = SequenceRequest {
                    prompt: prompt.clone(),
                    max_tokens: wanted.max_tokens.unwrap_or(room).min(room),
                    // Each text draws other numbers.
                    sampling: Sampling {
                        seed: wanted.sampling.seed.wrapping_add(number as u64),
                        ..wanted.sampling
                    },
                    stop: app.stop.clone(),
                    top_logprobs: wanted.top_logprobs,
                    constraint: grammar.as_ref().map(Compiled::constraint),
                };
                places.submit(Job {
                    request,
                    choice: choices.len(),
                    updates: sender.clone(),
                    cancelled: cancelled.clone(),
                    has_constraint: grammar.is_some(),
                });
                choices.push(Choice {
                    text: Some(Text::new(app.tokenizer.clone(), behind, wanted.stop.clone())),
                    cancelled,
                });
            }
        }
        let started = Instant::now();
        app.site.metrics.prompt_tokens.inc_by(usage.prompt as u64);
        Ok(Generation {
            deadline: started + app.site.request_timeout,
            app,
            updates,
            choices,
            started,
            latest: None,
            usage,
        })
    }

    /// What comes next; `None` when all choices are complete.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
        while self.choices.iter().any(|choice| choice.text.is_some()) {
            // An update that is there already comes before the time is looked at, so that is done here, too.
            let in_time = match Instant::now() < self.deadline {
                true => timeout_at(self.deadline, self.updates.recv()).await.ok(),
                false => None,
            };
            let update = in_time.ok_or_else(|| {
                ApiError::new(
                    StatusCode::GATEWAY_TIMEOUT,
                    format!(
                        "the request took longer than {} s",
                        self.app.site.request_timeout.as_secs()
                    ),
                )
                .code("timeout")
            })?;
            let Some(update) = update else {
                return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has ended"));
            };
            let choice = &mut self.choices[update.choice];
            let Some(text) = &mut choice.text else {
                // What was on its way when a string ended it.
                continue;
            };
            let mut piece = Piece {
                choice: update.choice,
                ..Piece::default()
            };
            let internal = |e: meganeura_core::Error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string());
            match update.what {
                What::Token(chosen) => {
                    let added = text.push(chosen.token).map_err(internal)?;
                    piece.text = added.text;
                    piece.chosen = Some(chosen);
                    self.usage.generated += 1;
                    if added.ends {
                        choice.cancelled.store(true, Ordering::Relaxed);
                        choice.text = None;
                        piece.finish = Some("stop");
                    }
                    self.observe();
                }
                What::Finished(finish) => {
                    if let Some(text) = choice.text.take() {
                        piece.text = text.finish().map_err(internal)?;
                    }
                    piece.finish = Some(match finish {
                        Finish::Stop => "stop",
                        Finish::Length => "length",
                    });
                }
                What::Failed { message, by_request } => {
                    return Err(match by_request {
                        true => ApiError::bad(message),
                        false => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message),
                    });
                }
            }
            return Ok(Some(piece));
        }
        let elapsed: Duration = self.started.elapsed();
        self.app.site.metrics.request_seconds.observe(elapsed.as_secs_f64());
        Ok(None)
    }

    fn observe(&mut self) {
        let now = Instant::now();
        let metrics = &self.app.site.metrics;
        metrics.generated_tokens.inc();
        match self.latest {
            None => metrics.first_token_seconds.observe((now - self.started).as_secs_f64()),
            Some(latest) if self.choices.len() == 1 => metrics.token_seconds.observe((now - latest).as_secs_f64()),
            Some(_) => {}
        }
        self.latest = Some(now);
    }
}
