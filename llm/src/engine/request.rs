//! Requests of an engine, and the events that answer them.

use meganeura_core::{Error, Result};

use crate::sampling::Sampling;

/// A rule that decides which tokens may come next, such as a grammar.
pub trait Constraint: Send {
    /// Returns true if [`Constraint::mask`] can answer at once. Until then the token waits, and the
    /// engine continues with other sequences: a constraint that computes on another thread starts
    /// when it [accepts](Constraint::accept) a token.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// Sets the logits `[vocab]` of tokens that may not come next to minus infinity. Returns `false` if the text ends here.
    ///
    /// # Errors
    /// A state from which no token can follow.
    fn mask(&mut self, logits: &mut [f32]) -> Result<bool>;

    /// Records a chosen token; returns true if the text ends with it.
    ///
    /// # Errors
    /// A token that may not come next.
    fn accept(&mut self, token: u32) -> Result<bool>;

    /// Returns true if the text is complete after the last requested token. `None` means that the constraint still
    /// computes: the sequence waits, as for a mask. After the first `Some`, the result must not change.
    fn is_complete(&mut self) -> Option<bool> {
        Some(false)
    }
}

/// A text to continue.
pub struct SequenceRequest {
    /// Tokens of the text, at least one.
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
    /// Constraint that decides which tokens may come next.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Minimum number of tokens before the text may end by a stop token.
    pub min_tokens: usize,
    /// Numbers added to the logits of tokens, before constraints and penalties.
    pub logit_bias: Vec<(u32, f32)>,
    /// Index of one of `EngineOptions::named_adapters`; `None` for the model without them.
    pub adapter: Option<usize>,
    /// Number of the most likely tokens whose log-probabilities are reported at each position of
    /// the prompt, in addition to those of its tokens; `None` reports none. With it, `max_tokens`
    /// may be 0.
    pub prompt_logprobs: Option<usize>,
    /// Group that shares slots fairly with other groups, such as the choices of one request. A free slot goes to the group with
    /// the fewest running sequences. A sequence without a group counts as a group by itself.
    pub group: Option<u64>,
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
            group: None,
        }
    }
}

/// Identifier of a sequence of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(super) u64);

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// The token.
    pub token: u32,
    /// Log-probability of the token, and the most likely tokens with their log-probabilities, by the unchanged logits
    /// of the model; only if requested.
    pub logprobs: Option<(f32, Vec<(u32, f32)>)>,
}

/// Reason for the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token, or the constraint, ended the text.
    Stop,
    /// The maximum number of tokens was reached.
    Length,
}

/// Progress of a sequence in a step.
#[derive(Debug)]
pub enum Event {
    /// The prompt is computed; comes before the first token. Contains the number of tokens that
    /// were found in the cache, and the tokens after the first with their log-probabilities, if
    /// requested.
    Prompt(SequenceId, usize, Vec<ChosenToken>),
    /// The next token was chosen.
    Token(SequenceId, ChosenToken),
    /// The sequence ended.
    Finished(SequenceId, Finish),
    /// The sequence failed; other sequences continue.
    Failed(SequenceId, Error),
}

/// Counters since the engine was opened, and its current load.
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
    /// Number of draft tokens that were verified; `accepted_tokens` counts the accepted ones.
    pub drafted_tokens: u64,
    /// See `drafted_tokens`.
    pub accepted_tokens: u64,
    /// Sequences that had to give their blocks back.
    pub preemptions: u64,
    /// Sequences that are computed now.
    pub running: usize,
    /// Sequences that wait for a slot.
    pub waiting: usize,
    /// Number of cache blocks in use; `blocks` is the number of all.
    pub blocks_used: usize,
    /// See `blocks_used`.
    pub blocks: usize,
}
