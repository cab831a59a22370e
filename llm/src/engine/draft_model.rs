//! A smaller model that guesses the next tokens (speculative decoding; Leviathan, Kalman and Matias, 2023).
//!
//! Its KV cache uses the same block indices for the same tokens as the model's cache, so that it needs no separate
//! bookkeeping. Its tokens are chosen with the same random numbers as the model's: if both models assign about the same
//! probabilities, both choose the same token, at any temperature. Only the model determines the tokens of a text.

use meganeura_core::{Error, Result};
use meganeura_nn::models::PagedCache;

use super::inputs::{Part, Rows, Span};
use super::model::{Model, Outputs};
use super::options::EngineOptions;
use super::sequence::Sequence;
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::plans::Plans;
use crate::sampling::{DeviceOptions, Sampler, Seeds};

/// A draft model: it guesses tokens that the engine's model then verifies.
pub(super) struct DraftModel {
    model: Model,
    /// Maximum tokens of a step.
    step_tokens: usize,
}

/// Checks that a model can draft tokens for another one.
pub(super) fn check(draft: &ModelConfig, model: &ModelConfig, context: usize, options: &EngineOptions) -> Result<()> {
    let refuse = |message: String, remedy: &str| Err(Error::misuse(message, remedy));
    let [own, vocab] = [draft, model].map(|config| config.network.vocab);
    if own != vocab {
        return refuse(
            format!("the draft model has a vocabulary of {own} tokens, expected {vocab}"),
            "use a draft model with the same vocabulary, such as a smaller model of the same family",
        );
    }
    if draft.context < context {
        return refuse(
            format!(
                "the draft model has {} positions, but sequences have up to {context} tokens",
                draft.context
            ),
            "use a shorter context",
        );
    }
    if options.draft_tokens == 0 {
        return refuse(
            "expected at least 1 draft token with a draft model, found 0".into(),
            "set the number of draft tokens, such as 4",
        );
    }
    Ok(())
}

/// Draft tokens of one sequence.
struct Guesses {
    /// Index among the parts of the step.
    part: usize,
    tokens: Vec<u32>,
    /// Sampler for tokens that the device does not draw.
    sampler: Sampler,
}

impl DraftModel {
    pub(super) fn new(
        plans: Plans<Rows>,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        cache: PagedCache,
    ) -> Result<Self> {
        Ok(DraftModel {
            // The draft model computes the logits of one token of each sequence at a time.
            model: Model::new(plans, config, checkpoint, options, 0, cache)?,
            step_tokens: options.max_step_tokens(),
        })
    }

    /// Computes the rows of parts, and drafts tokens for parts with room for draft tokens.
    ///
    /// # Errors
    /// The errors of the session.
    pub(super) fn draft(&mut self, running: &mut [Sequence], parts: &mut [Part]) -> Result<()> {
        for sequence in running.iter_mut() {
            // After a step that failed, the cache contains rows of draft tokens that were not accepted.
            sequence.computed_by_draft = sequence.computed_by_draft.min(sequence.computed);
        }
        let mut guesses = self.read(running, parts)?;
        loop {
            guesses.retain(|guess| guess.tokens.len() < parts[guess.part].room);
            if guesses.is_empty() {
                return Ok(());
            }
            let spans = guesses.iter().map(|guess| {
                let part = &parts[guess.part];
                let sequence = &running[part.sequence];
                let count = guess.tokens.len();
                Span {
                    start: sequence.computed + part.rows + count - 1,
                    tokens: [&[], &guess.tokens[count - 1..]],
                    blocks: &sequence.blocks,
                    asked: 1,
                    draws: draws(sequence, count),
                    adapter_scales: &[],
                }
            });
            let spans: Vec<Span> = spans.collect();
            let mut outputs = self.model.run(&spans)?;
            for guess in &guesses {
                running[parts[guess.part].sequence].computed_by_draft += 1;
            }
            self.choose(&mut outputs, &mut guesses, running, parts);
        }
    }

    /// Computes everything that is not cached yet up to the last row of each part, in steps of
    /// limited length, and chooses the first draft tokens.
    fn read(&mut self, running: &mut [Sequence], parts: &mut [Part]) -> Result<Vec<Guesses>> {
        let mut all = Vec::new();
        let mut next = 0;
        while next < parts.len() {
            let (mut spans, mut read, mut guesses) = (Vec::new(), Vec::new(), Vec::new());
            let mut left = self.step_tokens;
            while let Some(part) = parts.get(next)
                && left > 0
            {
                let sequence = &running[part.sequence];
                let (start, end) = (sequence.computed_by_draft, sequence.computed + part.rows);
                let count = (end - start).min(left);
                let is_read = start + count == end;
                let guesses_here = is_read && part.room > 0;
                if guesses_here {
                    guesses.push(Guesses {
                        part: next,
                        tokens: Vec::new(),
                        sampler: sequence.fork_sampler(),
                    });
                }
                spans.push(Span {
                    start,
                    tokens: [&sequence.tokens[start..start + count], &[]],
                    blocks: &sequence.blocks,
                    asked: usize::from(guesses_here),
                    draws: draws(sequence, 0),
                    adapter_scales: &[],
                });
                read.push((part.sequence, start + count));
                left -= count;
                if !is_read {
                    break;
                }
                next += 1;
            }
            let mut outputs = self.model.run(&spans)?;
            drop(spans);
            for (sequence, computed) in read {
                running[sequence].computed_by_draft = computed;
            }
            self.choose(&mut outputs, &mut guesses, running, parts);
            all.append(&mut guesses);
        }
        Ok(all)
    }

    /// Chooses one more token of each draft from the outputs of its row, and adds it to the parts.
    /// Drafts end if no token can be chosen.
    fn choose(&self, outputs: &mut Outputs, guesses: &mut Vec<Guesses>, running: &[Sequence], parts: &mut [Part]) {
        let mut rows = outputs.logits.chunks_exact_mut(self.model.vocab());
        let mut drawn = outputs.drawn.as_chunks().0.iter();
        guesses.retain_mut(|guess| {
            let part = &mut parts[guess.part];
            let token = match (drawn.next(), rows.next()) {
                (Some(&[token, sound]), _) => (sound > 0.0).then_some(token as u32),
                (None, Some(logits)) => {
                    let (prompt, generated) = running[part.sequence].split();
                    let generated = [generated, &guess.tokens].concat();
                    guess.sampler.choose(logits, prompt, &generated).ok()
                }
                (None, None) => None,
            };
            guess.tokens.extend(token);
            part.draft.extend(token);
            token.is_some()
        });
    }
}

/// Returns the options and seeds for drawing a draft token on the device, after this number of earlier draft tokens. If the
/// device does not draw the sequence's tokens, the most likely token is drafted.
fn draws(sequence: &Sequence, behind: usize) -> Option<(DeviceOptions, Seeds)> {
    let (options, mut seeds) = sequence
        .device_draws()
        .unwrap_or((DeviceOptions::GREEDY, sequence.fork_sampler().seeds()));
    seeds.by_ref().take(behind).for_each(drop);
    Some((options, seeds))
}
