//! Generation of the texts of all choices of one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use meganeura_core::random::mix;
use meganeura_llm::Sampling;
use meganeura_llm::engine::{ChosenToken, Finish, SequenceRequest};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout_at};

use super::App;
use super::error::ApiError;
use super::request::TextOptions;
use super::stream::logprob_bytes;
use crate::grammar::{Compiled, PackedGrammar};
use crate::preparation::{Abandonment, GRAMMAR_LIMITS, GRAMMAR_TIMEOUT, GrammarRoom, NotPrepared, size_of_grammar};
use crate::text::{StopStrings, Text};
use crate::unsent::{LimitReached, RequestBytes};
use crate::worker::{Job, Progress, QueueFull, Update, size_of_token};

/// Choices of a request while they are generated.
pub(crate) struct Generation {
    app: Arc<App>,
    updates: UnboundedReceiver<Update>,
    choices: Vec<Choice>,
    /// Count of the bytes of updates that are not received yet, and of parts that are kept for the answer.
    unsent: Arc<RequestBytes>,
    deadline: Instant,
    started: Instant,
    latest: Option<Instant>,
    /// Number of choices for each prompt.
    per_prompt: usize,
    /// True if the log-probabilities of prompts are requested.
    scores_prompts: bool,
    pub(crate) usage: Usage,
}

struct Choice {
    /// Text that was generated so far; `None` when the choice is complete.
    text: Option<Text>,
    cancelled: Arc<AtomicBool>,
}

/// Numbers of tokens that a response reports as `usage`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) generated: usize,
    /// Number of prompt tokens that were found in the prefix cache.
    pub(crate) cached: usize,
}

/// Next part of a choice: at most one generated token with the text that it completes.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) choice: usize,
    pub(crate) text: String,
    pub(crate) chosen: Option<ChosenToken>,
    /// Prompt tokens with log-probabilities, from the second token on, after the prompt was scored. A prompt of one token has
    /// none.
    pub(crate) scored: Option<Vec<ChosenToken>>,
    /// `finish_reason` if the choice has ended: `stop` or `length`.
    pub(crate) finish: Option<&'static str>,
}

impl Piece {
    /// Returns the number of bytes that the piece takes in memory.
    pub(crate) fn kept_bytes(&self) -> usize {
        let tokens = self.chosen.iter().chain(self.scored.iter().flatten());
        size_of::<Piece>() + self.text.len() + tokens.map(size_of_token).sum::<usize>()
    }

    /// Returns the estimated bytes of the piece as JSON text.
    fn written_bytes(&self, app: &App) -> usize {
        let entries = |chosen: &ChosenToken| {
            let (_, top) = chosen.logprobs.as_ref()?;
            let tokens = std::iter::once(chosen.token).chain(top.iter().map(|(token, _)| *token));
            Some(tokens.map(|token| logprob_bytes(app, token)).sum::<usize>())
        };
        let logprobs = self.chosen.iter().chain(self.scored.iter().flatten());
        size_of::<Piece>() + self.text.len() + logprobs.filter_map(entries).sum::<usize>()
    }
}

impl App {
    /// Compiles the grammar of a request and starts to generate its choices. The request holds `held` bytes in addition to
    /// its prompts while it waits for its grammar.
    pub(crate) async fn generate(
        self: Arc<Self>,
        prompts: Vec<Vec<u32>>,
        mut options: TextOptions,
        (are_completions, held): (bool, usize),
        deadline: Instant,
    ) -> Result<Generation, ApiError> {
        check_lengths(&self, &prompts, &options)?;
        let counted = options.grammar.as_ref().map(|_| self.grammars.count());
        let unsent = self.site.unsent.of_request();
        let compiled = match options.grammar.take() {
            None => None,
            Some(grammar) => {
                // The request may wait for its grammar for long.
                let of_prompts: usize = prompts.iter().map(|prompt| size_of_val(&prompt[..])).sum();
                grammar.check_size().map_err(|e| ApiError::of_request(&e))?;
                let grammar = Arc::new(grammar.packed());
                let waiting = of_prompts + grammar.bytes() + held;
                unsent.add(waiting).map_err(too_much)?;
                let compiled = self.compile(grammar, prompts.len() * options.count, deadline).await?;
                unsent.remove(waiting);
                Some(compiled)
            }
        };
        let started = Generation::start(
            self,
            unsent,
            prompts,
            &options,
            compiled.as_ref(),
            are_completions,
            deadline,
        );
        drop(counted);
        started
    }

    /// Compiles a grammar for this number of sequences, and returns it with its room in memory.
    async fn compile(
        self: &Arc<Self>,
        grammar: Arc<PackedGrammar>,
        count: usize,
        deadline: Instant,
    ) -> Result<(Compiled, Arc<GrammarRoom>), ApiError> {
        let too_slow = |limit: Duration| {
            ApiError::bad(format!(
                "the schema or grammar is too large: compiling it takes more than {} s; use a simpler one",
                limit.as_secs()
            ))
        };
        let (app, of_cost) = (self.clone(), grammar.clone());
        let estimate = move || {
            of_cost.check().map_err(|e| ApiError::of_request(&e))?;
            Ok((of_cost.cost(), app.grammars.known(&of_cost)))
        };
        let (cost, known) = self.site.prepare(deadline, grammar.bytes(), estimate).await?;
        // The cost is an estimate: a grammar that takes longer continues as one of the next size.
        let first = size_of_grammar(cost);
        let mut measured = known.time;
        let mut error = too_slow(GRAMMAR_LIMITS[GRAMMAR_LIMITS.len() - 1].trial);
        for (size, limits) in GRAMMAR_LIMITS.into_iter().enumerate().skip(first) {
            if known.exceeds(&limits) {
                continue;
            }
            // A grammar that passed an earlier trial waits for no other trial.
            if measured.is_none() {
                let (app, tried) = (self.clone(), grammar.clone());
                let work = move |abandoned: &Abandonment| app.grammars.try_out(&tried, &limits, abandoned);
                let tried = self.site.preparation.trial(deadline, size, cost, work).await;
                let time = tried.map_err(|e| self.site.not_prepared(e))?;
                measured = time.map_err(|e| ApiError::of_request(&e))?;
            }
            let Some(time) = measured else { continue };
            let (app, compiled) = (self.clone(), grammar.clone());
            let work = move || app.grammars.compile(&compiled, &limits);
            // Now the time is measured, not estimated.
            let cost = time.as_micros() as usize;
            let compiled = self.site.preparation.grammar(deadline, [size, cost, count], work);
            let (compiled, room) = compiled.await.map_err(|e| match e {
                NotPrepared::TimedOut if Instant::now() < deadline => too_slow(GRAMMAR_TIMEOUT),
                other => self.site.not_prepared(other),
            })?;
            if let Some(compiled) = compiled.map_err(|e| ApiError::of_request(&e))? {
                return Ok((compiled, Arc::new(room)));
            }
            error = ApiError::bad(format!(
                "the schema or grammar is too slow: its first token takes more than {} ms; use a simpler one",
                limits.first_mask.as_millis()
            ));
        }
        Err(error)
    }
}

/// Returns the seed of a choice: other random numbers for each choice, and the seed of the request for the first one.
fn choice_seed(seed: u64, number: usize) -> u64 {
    match number as u64 {
        0 => seed,
        // Without mixing, choice 1 of a seed would equal choice 0 of the next seed.
        number => mix(seed.wrapping_add(mix(number))),
    }
}

impl Generation {
    /// Starts to generate `options.count` choices for each prompt. Adds the request's memory to `unsent`. If the request is a completion, the decoded text
    /// continues that of the prompt.
    pub(crate) fn start(
        app: Arc<App>,
        unsent: Arc<RequestBytes>,
        prompts: Vec<Vec<u32>>,
        options: &TextOptions,
        grammar: Option<&(Compiled, Arc<GrammarRoom>)>,
        are_completions: bool,
        deadline: Instant,
    ) -> Result<Self, ApiError> {
        let (sender, updates) = unbounded_channel();
        let mut choices = Vec::new();
        let mut usage = Usage::default();
        let count = prompts.len().saturating_mul(options.count);
        // Another try would not help.
        if count > app.worker.limit(count) {
            let (prompts, each, limit) = (prompts.len(), options.count, app.worker.limit(count));
            return Err(ApiError::bad(format!(
                "{prompts} prompts with {each} choices each are {count} sequences, but the server accepts at most \
                 {limit} at a time; send fewer prompts per request, or a smaller 'n'"
            ))
            .of(if each > 1 { "n" } else { "prompt" }));
        }
        let of_prompts: usize = prompts.iter().map(Vec::len).sum();
        // Each sequence has its copy of the prompt, the stop tokens and the biases.
        let of_stops = (options.stop_tokens.len() + app.stop.len()) * size_of::<u32>();
        let of_options = of_stops + size_of_val(&options.logit_bias[..]);
        let copied = of_prompts * size_of::<u32>() + prompts.len() * of_options;
        unsent.add(copied.saturating_mul(options.count)).map_err(too_much)?;
        let mut places = app.worker.reserve(count).map_err(|QueueFull| {
            app.site.metrics.refused.inc();
            ApiError::queue_full(format!(
                "the queue has no space for {count} more sequences, {} are running or waiting; try again later",
                app.worker.pending()
            ))
        })?;
        let stops = Arc::new(StopStrings::new(&options.stop));
        let mut stop = options.stop_tokens.clone();
        if !options.ignore_eos {
            stop.extend(&app.stop);
        }
        // The engine shares its slots fairly between groups.
        static NEXT_GROUP: AtomicU64 = AtomicU64::new(0);
        let group = Some(NEXT_GROUP.fetch_add(1, Ordering::Relaxed));
        for prompt in prompts {
            usage.prompt += prompt.len();
            let room = app.site.context - prompt.len();
            let behind = if are_completions { &prompt[..] } else { &[] };
            for number in 0..options.count {
                let cancelled = Arc::new(AtomicBool::new(false));
                // With a seed of the client, the texts of a prompt do not depend on the other prompts. Otherwise the texts
                // of equal prompts differ.
                let number = if options.has_seed { number } else { choices.len() };
                let request = SequenceRequest {
                    sampling: Sampling {
                        seed: choice_seed(options.sampling.seed, number),
                        ..options.sampling
                    },
                    stop: stop.clone(),
                    top_logprobs: options.top_logprobs,
                    constraint: grammar.map(|(grammar, room)| grammar.constraint(room.clone())),
                    min_tokens: options.min_tokens,
                    logit_bias: options.logit_bias.clone(),
                    adapter: options.adapter,
                    prompt_logprobs: options.prompt_logprobs,
                    group,
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
            scores_prompts: options.prompt_logprobs.is_some(),
            usage,
        })
    }

    /// Returns the next part of any choice, or `None` when all choices are complete.
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
                return Err(ApiError::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the engine has stopped",
                ));
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
                    piece.scored = self.scores_prompts.then_some(scored);
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
                    let rest = choice.text.take().map(Text::finish).transpose().map_err(internal)?;
                    let rest = rest.unwrap_or_default();
                    piece.text = rest.text;
                    piece.finish = Some(match finish {
                        Finish::Length if !rest.ends => "length",
                        Finish::Stop | Finish::Length => "stop",
                    });
                }
                Progress::Full(full) => return Err(too_much(full)),
                Progress::Failed { message, by_request } => {
                    // Choices that are complete already are lost too: an answer has all of its choices.
                    let message = match self.choices.len() {
                        1 => message,
                        count => format!("choice {} of {count} failed: {message}", update.choice),
                    };
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

    /// Releases bytes that were counted by [`keep`](Self::keep).
    pub(crate) fn release(&self, bytes: usize) {
        self.unsent.remove(bytes);
    }

    /// Counts the bytes of a piece of an answer that is written when it is complete.
    ///
    /// # Errors
    /// A limit that they exceed.
    pub(crate) fn keep_written(&self, piece: &Piece) -> Result<(), ApiError> {
        self.keep(piece.written_bytes(&self.app))
    }

    /// Returns the counter of the request's unsent bytes.
    pub(crate) fn counted(&self) -> Arc<RequestBytes> {
        self.unsent.clone()
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

/// Checks that each prompt fits into a sequence.
fn check_lengths(app: &App, prompts: &[Vec<u32>], options: &TextOptions) -> Result<(), ApiError> {
    let most = app.site.context;
    for prompt in prompts {
        // A prompt that is only scored may fill the sequence.
        let needed = prompt.len() + usize::from(options.max_tokens != Some(0));
        if needed > most {
            return Err(ApiError::bad(format!(
                "the prompt has {} tokens, but a sequence has at most {most}, including one generated token",
                prompt.len()
            ))
            .code("context_length_exceeded"));
        }
    }
    Ok(())
}

pub(super) fn too_much(full: LimitReached) -> ApiError {
    match full {
        LimitReached::Own(_) => ApiError::bad(full.message()).code("answer_too_large"),
        LimitReached::All => ApiError::queue_full(full.message()),
    }
}
