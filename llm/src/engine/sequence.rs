//! State of a sequence of an engine, and the choice of its tokens.

use meganeura_core::{Error, Result};

use super::blocks::{BlockPool, Identity};
use super::inputs::Part;
use super::request::{ChosenToken, Constraint, Finish, SequenceId, SequenceRequest};
use crate::config::ModelConfig;
use crate::sampling::{DeviceOptions, Sampler, Seeds, sort_likeliest};
use crate::softmax;

/// Logits of a chosen row that wait for their constraint. They are empty after the last requested token, when only the reason why
/// the text ends is missing.
type HeldLogits = Vec<f32>;

/// A sequence: its tokens, and the progress of their computation.
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    /// Prompt and generated tokens.
    pub(super) tokens: Vec<u32>,
    /// Tokens whose keys and values are cached.
    pub(super) computed: usize,
    /// Tokens whose keys and values the draft model has cached, at most `computed`.
    pub(super) computed_by_draft: usize,
    /// Cache blocks that contain the computed tokens.
    pub(super) blocks: Vec<usize>,
    /// Identities of its full blocks that other sequences can find.
    published: Vec<Identity>,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    left: usize,
    stop: Vec<u32>,
    top_logprobs: Option<usize>,
    /// Number of tokens of the prompt.
    prompt: usize,
    /// Minimum number of generated tokens before a stop token is allowed.
    min_tokens: usize,
    /// Numbers added to the logits of tokens.
    logit_bias: Vec<(u32, f32)>,
    /// Index of the adapter that its rows select.
    pub(super) adapter: Option<usize>,
    /// See [`SequenceRequest::group`].
    pub(super) group: Option<u64>,
    /// Number of turns of all groups before it was submitted.
    pub(super) arrival: u64,
    /// True if it was admitted before an older sequence, for which there was no room.
    pub(super) has_overtaken: bool,
    /// Number of the most likely tokens that are reported for each token of the prompt, if
    /// log-probabilities are requested.
    prompt_logprobs: Option<usize>,
    /// Scored tokens of the prompt, from the second one.
    scored: Vec<ChosenToken>,
    /// Tokens of the prompt that were found in the cache; `None` before the first admission.
    cached: Option<usize>,
    /// True after [`Event::Prompt`](super::Event::Prompt) was reported.
    prompt_is_reported: bool,
    /// Logits of the next token, until the constraint has its mask.
    held: Option<HeldLogits>,
}

/// Source of the next token: an output row of a step.
pub(super) enum Row<'a> {
    /// Logits of the token's row, which sampling may change.
    Logits(&'a mut [f32]),
    /// Token that the device has drawn, and true if the draw succeeded.
    Drawn(u32, bool),
}

/// The chosen token, and the reason if the sequence ends with it, or instead of it.
pub(super) type Choice = (Option<ChosenToken>, Option<Finish>);

impl Sequence {
    pub(super) fn new(id: SequenceId, request: SequenceRequest, arrival: u64) -> Result<Self> {
        Ok(Sequence {
            id,
            computed: 0,
            computed_by_draft: 0,
            blocks: Vec::new(),
            published: Vec::new(),
            sampler: Sampler::new(request.sampling)?,
            constraint: request.constraint,
            left: request.max_tokens,
            stop: request.stop,
            top_logprobs: request.top_logprobs,
            prompt: request.prompt.len(),
            min_tokens: request.min_tokens,
            logit_bias: request.logit_bias,
            adapter: request.adapter,
            group: request.group,
            arrival,
            has_overtaken: false,
            prompt_logprobs: request.prompt_logprobs,
            scored: Vec::new(),
            cached: None,
            prompt_is_reported: false,
            held: None,
            tokens: request.prompt,
        })
    }

    /// Returns the maximum number of tokens of the whole text, and one more.
    pub(super) fn whole_len(&self) -> usize {
        self.tokens.len().saturating_add(self.left).saturating_add(1)
    }

    /// Returns the number of tokens that are not computed yet.
    pub(super) fn due(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Returns the maximum number of tokens that are still to be generated.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Returns true if draft tokens are useful for the sequence: they are not with a constraint.
    pub(super) fn may_draft(&self) -> bool {
        self.constraint.is_none()
    }

    /// Returns the prompt and the generated tokens.
    pub(super) fn split(&self) -> (&[u32], &[u32]) {
        self.tokens.split_at(self.prompt)
    }

    /// Returns true if the next rows contain tokens of the prompt that are to be scored.
    pub(super) fn is_scored(&self) -> bool {
        // Reported scores were taken.
        self.prompt_logprobs.is_some() && !self.prompt_is_reported && self.scored.len() + 1 < self.prompt
    }

    /// Returns the number of cached tokens and the scores of the prompt, when they are complete and
    /// not yet reported.
    pub(super) fn take_prompt(&mut self) -> Option<(usize, Vec<ChosenToken>)> {
        if self.prompt_is_reported {
            return None;
        }
        self.prompt_is_reported = true;
        Some((self.cached.unwrap_or(0), std::mem::take(&mut self.scored)))
    }

    /// Records the log-probabilities of tokens of the prompt, by the logits of the rows before
    /// them.
    pub(super) fn score(&mut self, start: usize, rows: &mut Vec<Row>) {
        let Some(top) = self.prompt_logprobs.filter(|_| self.is_scored()) else {
            return;
        };
        // The row of the last token of the prompt chooses the first generated token.
        let count = (self.prompt - 1).saturating_sub(start).min(rows.len());
        for (row, position) in rows.drain(..count).zip(start + 1..) {
            let Row::Logits(logits) = row else { continue };
            let token = self.tokens[position];
            let (total, best) = logprobs(logits, top);
            self.scored.push(ChosenToken {
                token,
                logprobs: Some((logits[token as usize] - total, best)),
            });
        }
    }

    /// Returns true if the next token waits for its constraint.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Chooses the token that waited for its constraint, if that is ready now.
    pub(super) fn choose_held(&mut self) -> Option<Result<Choice>> {
        if !self.is_constraint_ready() {
            return None;
        }
        let mut logits = self.held.take()?;
        Some(self.choose(Row::Logits(&mut logits)))
    }

    /// Returns true if the constraint, if any, can decide about the next token, or about the end after the last one.
    fn is_constraint_ready(&mut self) -> bool {
        if self.left == 0 {
            return self.last_finish().is_some();
        }
        self.constraint.as_mut().is_none_or(|constraint| constraint.is_ready())
    }

    /// Returns the reason why the text ends after the last requested token, or `None` while the constraint computes it.
    fn last_finish(&mut self) -> Option<Finish> {
        let has_generated = self.tokens.len() > self.prompt;
        let is_complete = match self.constraint.as_mut().filter(|_| has_generated) {
            Some(constraint) => constraint.is_complete()?,
            None => false,
        };
        Some(if is_complete { Finish::Stop } else { Finish::Length })
    }

    /// Returns the options and seeds for drawing the next tokens on the device, if they depend only on their logits.
    pub(super) fn device_draws(&self) -> Option<(DeviceOptions, Seeds)> {
        let is_plain = self.constraint.is_none()
            && self.top_logprobs.is_none()
            && self.prompt_logprobs.is_none()
            && self.logit_bias.is_empty()
            && self.left > 0
            && self.tokens.len() - self.prompt >= self.min_tokens;
        let options = self.sampler.device_options().filter(|_| is_plain)?;
        Some((options, self.sampler.seeds()))
    }

    /// Returns a copy of the sampler of its next tokens, to draft them.
    pub(super) fn fork_sampler(&self) -> Sampler {
        self.sampler.fork()
    }

    /// Reuses cached blocks with the sequence's first tokens that another sequence has computed. The last token is
    /// always computed, for its logits; if the prompt is scored, all its tokens are computed.
    pub(super) fn find_beginning(&mut self, pool: &mut BlockPool, block_rows: usize) {
        if self.is_scored() {
            return;
        }
        while let Some(tokens) = self.tokens.get(self.computed..self.computed + block_rows)
            && self.computed + block_rows < self.tokens.len()
            && let Some((block, identity)) = pool.find(self.last_identity(), tokens)
        {
            self.blocks.push(block);
            self.published.push(identity);
            self.computed += block_rows;
        }
        // Shared blocks were computed by both models.
        self.computed_by_draft = self.computed;
    }

    /// Records the tokens that were found in the prefix cache, when the sequence is first admitted. After a preemption, it finds
    /// its own blocks, which do not count.
    pub(super) fn record_cached(&mut self) {
        self.cached.get_or_insert(self.computed);
    }

    fn last_identity(&self) -> Identity {
        let start = Identity::start(self.adapter);
        self.published.last().copied().unwrap_or(start)
    }

    /// Records that `computed` tokens are computed, and publishes the full blocks for reuse. With a draft model, only
    /// blocks that it has computed as well are published.
    pub(super) fn advance(
        &mut self,
        computed: usize,
        has_draft_model: bool,
        pool: Option<&mut BlockPool>,
        block_rows: usize,
    ) {
        self.computed = computed;
        // Rows of rejected draft tokens are computed again.
        self.computed_by_draft = self.computed_by_draft.min(computed);
        let Some(pool) = pool else { return };
        let by_all = if has_draft_model {
            self.computed_by_draft
        } else {
            self.computed
        };
        while (self.published.len() + 1) * block_rows <= by_all {
            let place = self.published.len();
            let tokens = &self.tokens[place * block_rows..(place + 1) * block_rows];
            let identity = pool.publish(self.blocks[place], self.last_identity(), tokens);
            self.published.push(identity);
        }
    }

    /// Releases all cached blocks: the sequence is computed again when it is scheduled.
    pub(super) fn give_back(&mut self, pool: &mut BlockPool) {
        pool.release(&self.blocks);
        self.blocks.clear();
        self.published.clear();
        self.computed = 0;
        self.computed_by_draft = 0;
        // A held token is computed again with its sequence.
        self.held = None;
        if self.is_scored() {
            self.scored.clear();
        }
    }

    /// Chooses the next token from the row of the last token, and further ones from the rows of
    /// draft tokens, as long as these are correct: the row after a correct draft token yields the
    /// next token.
    pub(super) fn choose_all(&mut self, part: &Part, rows: Vec<Row>) -> Vec<Result<Choice>> {
        let mut all = Vec::with_capacity(1);
        for (number, row) in rows.into_iter().enumerate() {
            if let Row::Logits(logits) = &row
                && !self.is_constraint_ready()
            {
                self.held = Some(logits.to_vec());
                break;
            }
            let choice = self.choose(row);
            let goes_on = match &choice {
                Ok((Some(chosen), None)) => part.draft.get(number) == Some(&chosen.token),
                _ => false,
            };
            all.push(choice);
            if !goes_on {
                break;
            }
        }
        all
    }

    /// Chooses the next token, and determines if the sequence ends with it, or instead of it.
    fn choose(&mut self, row: Row) -> Result<Choice> {
        if self.left == 0 {
            return Ok((None, Some(self.last_finish().unwrap_or(Finish::Length))));
        }
        let (token, logprobs) = match row {
            Row::Drawn(token, could) => (self.sampler.take_drawn(token, could)?, None),
            Row::Logits(logits) => {
                // From a copy of the unchanged logits, because the choice changes them.
                let logprobs = self.top_logprobs.map(|top| (logits.to_vec(), logprobs(logits, top)));
                for &(token, bias) in &self.logit_bias {
                    logits[token as usize] += bias;
                }
                let generated = self.tokens.len() - self.prompt;
                if generated < self.min_tokens {
                    for &token in &self.stop {
                        if let Some(logit) = logits.get_mut(token as usize) {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
                if let Some(constraint) = &mut self.constraint
                    && !constraint.mask(logits)?
                {
                    return Ok((None, Some(Finish::Stop)));
                }
                let (prompt, generated) = self.tokens.split_at(self.prompt);
                (self.sampler.choose(logits, prompt, generated)?, logprobs)
            }
        };
        if self.stop.contains(&token) {
            return Ok((None, Some(Finish::Stop)));
        }
        let ends = match &mut self.constraint {
            Some(constraint) => constraint.accept(token)?,
            None => false,
        };
        self.tokens.push(token);
        self.left -= 1;
        let finish = match (ends, self.left) {
            (true, _) => Some(Finish::Stop),
            (false, 0) => self.last_finish(),
            (false, _) => None,
        };
        if self.left == 0 && finish.is_none() {
            self.held = Some(Vec::new());
        }
        let logprobs = logprobs.map(|(logits, (total, best))| (logits[token as usize] - total, best));
        Ok((Some(ChosenToken { token, logprobs }), finish))
    }
}

/// Returns the logarithm of the sum of all exponentials (a logit minus it is a log-probability), and the most likely
/// tokens with their log-probabilities.
fn logprobs(logits: &[f32], top: usize) -> (f32, Vec<(u32, f32)>) {
    let total = softmax::log_sum_of_exponentials(logits);
    let mut best = Vec::new();
    if top > 0 {
        best.extend((0u32..).zip(logits.iter().map(|x| x - total)));
        sort_likeliest(&mut best, top);
        best.truncate(top);
        // The answer keeps it: otherwise each token would take the memory of the whole vocabulary.
        best.shrink_to_fit();
    }
    (total, best)
}

/// Checks a request against the model and the maximum number of tokens of a sequence.
pub(super) fn check(request: &SequenceRequest, config: &ModelConfig, most: usize) -> Result<()> {
    request.sampling.check()?;
    config.check_prompt(&request.prompt)?;
    if request.max_tokens == 0 && request.prompt_logprobs.is_none() {
        return Err(Error::misuse(
            "expected max_tokens of at least 1, found 0",
            "request at least one token, or prompt_logprobs",
        ));
    }
    let vocab = config.network.vocab;
    if let Some((token, _)) = request.logit_bias.iter().find(|(token, _)| *token as usize >= vocab) {
        return Err(Error::misuse(
            format!("logit_bias: expected token ids below {vocab}, found {token}"),
            "use the ids of the model's tokenizer",
        ));
    }
    if request.prompt.len().saturating_add(request.max_tokens) > most {
        return Err(Error::misuse(
            format!(
                "a prompt of {} tokens and {} generated tokens exceed the maximum of {most} per sequence",
                request.prompt.len(),
                request.max_tokens
            ),
            "shorten the prompt, or request fewer tokens",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_take_the_memory_of_those_that_are_returned() {
        let logits: Vec<f32> = (0_u16..10_000).map(f32::from).collect();
        let (_, best) = logprobs(&logits, 20);
        assert_eq!((best.len(), best[0].0), (20, 9_999));
        assert!(best.capacity() < 100, "{}", best.capacity());
    }
}
