//! A smaller model that guesses the next tokens (speculative decoding; Leviathan, Kalman and Matias, 2023).
//!
//! It caches the keys and values of the same tokens in blocks of the same numbers, so that it needs no bookkeeping of its own. Its
//! tokens are chosen with the random numbers that the model's will be chosen with: where both models find a token about
//! equally likely, both choose it, at any temperature. Which tokens a text has is up to the model alone.

use meganeura_core::{Error, Result};
use meganeura_nn::models::PagedCache;

use super::inputs::{Part, Rows, Span};
use super::model::{Model, Outputs};
use super::options::EngineOptions;
use super::sequence::Sequence;
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::plans::Plans;
use crate::sampling::{Sampler, Seeds};

/// A model that guesses.
pub(super) struct DraftModel {
    model: Model,
    /// Tokens of a step at most.
    step_tokens: usize,
}

/// Whether a model can guess tokens for another one.
pub(super) fn check(draft: &ModelConfig, model: &ModelConfig, context: usize, options: &EngineOptions) -> Result<()> {
    let refuse = |message: String, remedy: &str| Err(Error::misuse(message, remedy));
    let [own, vocab] = [draft, model].map(|config| config.network.vocab);
    if own != vocab {
        return refuse(
            format!("the draft model has {own} tokens, and the model {vocab}"),
            "give a draft model with the vocabulary of the model, such as a smaller one of its family",
        );
    }
    if draft.context < context {
        return refuse(
            format!(
                "the draft model has {} positions, but sequences have up to {context} tokens",
                draft.context
            ),
            "ask for a shorter context",
        );
    }
    if options.draft_tokens == 0 {
        return refuse(
            "a draft model, and no draft tokens that it could guess".into(),
            "ask for some, such as 4",
        );
    }
    Ok(())
}

/// Guesses for one sequence.
struct Guesses {
    /// Number of the part of the step.
    part: usize,
    tokens: Vec<u32>,
    /// What chooses where the device does not draw.
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
            // It is asked for one token of each sequence at a time.
            model: Model::new(plans, config, checkpoint, options, 0, cache)?,
            step_tokens: options.step_tokens,
        })
    }

    /// Computes the rows of parts, and guesses tokens behind those that have room for some.
    ///
    /// # Errors
    /// What the session finds.
    pub(super) fn draft(&mut self, running: &mut [Sequence], parts: &mut [Part]) -> Result<()> {
        for sequence in running.iter_mut() {
            // A step that failed after its drafts has left rows of tokens that nobody took.
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

    /// Computes what is not cached yet up to the last row of each part, in steps that are not too long; and begins with guesses.
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

    /// Chooses a token more of each guess, by the outputs of as many rows, and notes it in the parts. Guesses end where none can be
    /// chosen.
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

/// What the device draws a guess with, behind so many others: where the model's token is chosen otherwise, the most likely one.
fn draws(sequence: &Sequence, behind: usize) -> Option<(f32, Seeds)> {
    let (temperature, mut seeds) = sequence
        .device_draws()
        .unwrap_or((0.0, sequence.fork_sampler().seeds()));
    seeds.by_ref().take(behind).for_each(drop);
    Some((temperature, seeds))
}
