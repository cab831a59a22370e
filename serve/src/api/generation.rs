//! Texts of all choices of one request, while they are generated.

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
use super::request::TextOptions;
use crate::grammar::Compiled;
use crate::text::{StopStrings, Text};
use crate::unsent::{Full, Unsent};
use crate::worker::{Busy, Job, Progress, Update};

/// The choices of a request.
pub(crate) struct Generation {
    app: Arc<App>,
    updates: UnboundedReceiver<Update>,
    choices: Vec<Choice>,
    /// Counts updates that are not received, and parts that are kept for the answer.
    unsent: Arc<Unsent>,
    deadline: Instant,
    started: Instant,
    latest: Option<Instant>,
    /// Choices of each prompt.
    per_prompt: usize,
    pub(crate) usage: Usage,
}

struct Choice {
    /// `None` when the choice is complete.
    text: Option<Text>,
    cancelled: Arc<AtomicBool>,
}

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) generated: usize,
    /// Tokens of the prompts that were found in the cache.
    pub(crate) cached: usize,
}

/// Next part of a choice.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) choice: usize,
    pub(crate) text: String,
    pub(crate) chosen: Option<Chosen>,
    /// Scored tokens of the prompt, from the second one.
    pub(crate) scored: Vec<Chosen>,
    /// Reason of the end, if the choice ended: `stop` or `length`.
    pub(crate) finish: Option<&'static str>,
}

impl Piece {
    /// Returns the number of bytes of the piece in a complete answer: text, and `each` for a log-probability.
    pub(crate) fn bytes(&self, each: usize) -> usize {
        let entries = |chosen: &Chosen| chosen.logprobs.as_ref().map_or(0, |(_, top)| 1 + top.len());
        let logprobs: usize = self.chosen.iter().chain(&self.scored).map(entries).sum();
        size_of::<Piece>() + self.text.len() + logprobs * each
    }
}

impl Generation {
    /// Starts to generate `options.count` texts for each prompt. Texts of completions continue the text of the prompt.
    pub(crate) fn start(
        app: Arc<App>,
        prompts: Vec<Vec<u32>>,
        options: &TextOptions,
        grammar: Option<&Compiled>,
        are_completions: bool,
        deadline: Instant,
    ) -> Result<Self, ApiError> {
        let (sender, updates) = unbounded_channel();
        let unsent = app.site.unsent.of_request();
        let mut choices = Vec::new();
        let mut usage = Usage::default();
        for prompt in &prompts {
            // A prompt that is only scored may fill the sequence.
            let needed = prompt.len() + usize::from(options.max_tokens != Some(0));
            if needed > app.site.context {
                return Err(ApiError::bad(format!(
                    "the prompt has {} tokens, and a sequence at most {}, including one generated token",
                    prompt.len(),
                    app.site.context
                ))
                .code("context_length_exceeded"));
            }
        }
        let count = prompts.len().saturating_mul(options.count);
        // Another try would not help.
        if count > app.worker.limit() {
            let (prompts, each, limit) = (prompts.len(), options.count, app.worker.limit());
            return Err(ApiError::bad(format!(
                "{prompts} prompts with {each} choices each are {count} sequences, and the server takes at most {limit} at a time; \
                 send fewer prompts in a request, or a smaller 'n'"
            ))
            .of(if each > 1 { "n" } else { "prompt" }));
        }
        let mut places = app.worker.reserve(count).map_err(|Busy| {
            app.site.metrics.refused.inc();
            ApiError::queue_full(format!(
                "the queue has no room for {count} more sequences, {} run or wait; try again later",
                app.worker.pending()
            ))
        })?;
        let stops = Arc::new(StopStrings::new(&options.stop));
        let mut stop = options.stop_tokens.clone();
        if !options.ignore_eos {
            stop.extend(&app.stop);
        }
        for prompt in prompts {
            usage.prompt += prompt.len();
            let room = app.site.context - prompt.len();
            let behind = if are_completions { &prompt[..] } else { &[] };
            for number in 0..options.count {
                let cancelled = Arc::new(AtomicBool::new(false));
                let request = SequenceRequest {
                    // Each text draws other numbers.
                    sampling: Sampling {
                        seed: options.sampling.seed.wrapping_add(number as u64),
                        ..options.sampling
                    },
                    stop: stop.clone(),
                    top_logprobs: options.top_logprobs,
                    constraint: grammar.map(Compiled::constraint),
                    min_tokens: options.min_tokens,
                    logit_bias: options.logit_bias.clone(),
                    adapter: options.adapter,
                    prompt_logprobs: options.prompt_logprobs,
                    ..SequenceRequest::new(prompt.clone(), options.max_tokens.unwrap_or(room).min(room))
                };
                places.submit(Job {
                    request,
                    choice: choices.len(),
                    updates: sender.clone(),
                    unsent: unsent.clone(),
                    cancelled: cancelled.clone(),
                    has_constraint: grammar.is_some(),
                });
                choices.push(Choice {
                    text: Some(Text::new(
                        app.tokenizer.clone(),
                        behind,
                        stops.clone(),
                        options.min_tokens,
                    )),
                    cancelled,
                });
            }
        }
        let started = Instant::now();
        app.site.metrics.prompt_tokens.inc_by(usage.prompt as u64);
        Ok(Generation {
            deadline,
            app,
            updates,
            unsent,
            choices,
            started,
            latest: None,
            per_prompt: options.count,
            usage,
        })
    }

    /// Returns the next part; `None` when all choices are complete.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
        while self.choices.iter().any(|choice| choice.text.is_some()) {
            // `timeout_at` prefers an update that is there already, even after the deadline.
            let in_time = if Instant::now() < self.deadline {
                timeout_at(self.deadline, self.updates.recv()).await.ok()
            } else {
                None
            };
            let update = in_time.ok_or_else(|| ApiError::timeout(self.app.site.request_timeout))?;
            let Some(update) = update else {
                return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has ended"));
            };
            if matches!(update.progress, Progress::Prompt { .. } | Progress::Token(_)) {
                self.unsent.remove(update.bytes());
            }
            let choice = &mut self.choices[update.choice];
            let Some(text) = &mut choice.text else {
                // It was on its way when a stop string ended the choice.
                continue;
            };
            let mut piece = Piece {
                choice: update.choice,
                ..Piece::default()
            };
            let internal = |e: meganeura_core::Error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string());
            match update.progress {
                Progress::Prompt { cached, scored } => {
                    // The choices of one prompt share it.
                    if update.choice % self.per_prompt == 0 {
                        self.usage.cached += cached;
                    }
                    piece.scored = scored;
                }
                Progress::Token(chosen) => {
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
                Progress::Finished(finish) => {
                    if let Some(text) = choice.text.take() {
                        piece.text = text.finish().map_err(internal)?;
                    }
                    piece.finish = Some(match finish {
                        Finish::Stop => "stop",
                        Finish::Length => "length",
                    });
                }
                Progress::Full(full) => return Err(too_much(full)),
                Progress::Failed { message, by_request } => {
                    return Err(if by_request {
                        ApiError::bad(message)
                    } else {
                        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
                    });
                }
            }
            return Ok(Some(piece));
        }
        let elapsed: Duration = self.started.elapsed();
        self.app.site.metrics.request_seconds.observe(elapsed.as_secs_f64());
        Ok(None)
    }

    /// Counts bytes that are kept for the answer until the request ends.
    ///
    /// # Errors
    /// A limit that they exceed.
    pub(crate) fn keep(&self, bytes: usize) -> Result<(), ApiError> {
        self.unsent.add(bytes).map_err(too_much)
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

fn too_much(full: Full) -> ApiError {
    match full {
        Full::Own(_) => ApiError::bad(full.message()).code("answer_too_large"),
        Full::All => ApiError::queue_full(full.message()),
    }
}
