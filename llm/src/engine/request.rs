//! Requests of an engine, and the events that answer them.

use meganeura_core::{Error, Result};

use crate::sampling::Sampling;

/// Decides which tokens may come next, such as a grammar.
pub trait Constraint: Send {
    /// Returns whether [`Constraint::mask`] can answer at once. Until then the token waits, and the engine continues with other
    /// sequences: a constraint that computes on another thread starts when it [accepts](Constraint::accept) a token.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// Sets the logits `[vocab]` of tokens that may not come next to minus infinity. Returns `false` if the text ends here.
    ///
    /// # Errors
    /// A state from which no token can follow.
    fn mask(&mut self, logits: &mut [f32]) -> Result<bool>;

    /// Takes a token that was chosen; returns whether the text ends with it.
    ///
    /// # Errors
    /// A token that may not come next.
    fn accept(&mut self, token: u32) -> Result<bool>;

    /// Returns whether the text is complete after the last token that was asked for. A constraint that computes on another
    /// thread may wait for it a short time.
    fn is_complete(&mut self) -> bool {
        false
    }
}

/// A text to continue.
pub struct SequenceRequest {
    /// Its tokens, at least one.
    pub prompt: Vec<u32>,
    /// Maximum number of generated tokens, at least 1.
    pub max_tokens: usize,
    /// Sampling options.
    pub sampling: Sampling,
    /// Tokens that end the text and are not part of it.
    pub stop: Vec<u32>,
    /// Number of the most likely tokens whose log-probabilities are reported with that of the chosen token; `None` reports
    /// none.
    pub top_logprobs: Option<usize>,
    /// Decides which tokens may come next.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Minimum number of tokens before the text may end by a stop token.
    pub min_tokens: usize,
    /// Numbers added to the logits of tokens, before constraints and penalties.
    pub logit_bias: Vec<(u32, f32)>,
    /// Index of one of `EngineOptions::named_adapters`; `None` for the model without them.
    pub adapter: Option<usize>,
    /// Asks for the log-probabilities of the tokens of the prompt, and for this number of the most likely tokens at each
    /// position. `max_tokens` may be 0 then.
    pub prompt_logprobs: Option<usize>,
}

impl SequenceRequest {
    /// Creates a request for at most `max_tokens` tokens after a prompt, with greedy decoding.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        SequenceRequest {
            prompt,
            max_tokens,
            sampling: Sampling::default(),
            stop: Vec::new(),
            top_logprobs: None,
            constraint: None,
            min_tokens: 0,
            logit_bias: Vec::new(),
            adapter: None,
            prompt_logprobs: None,
        }
    }
}

/// Names a sequence of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(super) u64);

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// Its log-probability, and the most likely tokens with theirs, by the unchanged logits of the model; if asked for.
    pub logprobs: Option<(f32, Vec<(u32, f32)>)>,
}

/// Reason for the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// By a token that ends texts, or by its constraint.
    Stop,
    /// After the maximum number of tokens.
    Length,
}

/// Progress of a sequence in a step.
#[derive(Debug)]
pub enum Event {
    /// The prompt is computed; comes before the first token. Holds the number of tokens that were found in the cache, and the
    /// tokens behind the first with their log-probabilities, if they were asked for.
    Prompt(SequenceId, usize, Vec<Chosen>),
    /// A token follows.
    Token(SequenceId, Chosen),
    /// It ended.
    Finished(SequenceId, Finish),
    /// It failed; other sequences continue.
    Failed(SequenceId, Error),
}

/// Counters since the engine was opened, and its present load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Steps that were made.
    pub steps: u64,
    /// Computed tokens of prompts. Preempted sequences count twice.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were found in the cache.
    pub cached_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// Checked draft tokens, and accepted ones.
    pub drafted_tokens: u64,
    /// See `drafted_tokens`.
    pub accepted_tokens: u64,
    /// Sequences that had to give their blocks back.
    pub preemptions: u64,
    /// Sequences that are computed now.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Blocks in use, and all.
    pub blocks_used: usize,
    /// See `blocks_used`.
    pub blocks: usize,
}
