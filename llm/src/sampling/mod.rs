//! Sampling of a token from logits.

use meganeura_core::random::SplitMix64;
use meganeura_core::{Error, Result};
use rustc_hash::FxHashMap;

use crate::softmax;

/// Sampling options. The defaults select the most likely token (greedy decoding).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 selects the largest logit.
    pub temperature: f32,
    /// Number of the most likely tokens that can be chosen.
    pub top_k: Option<usize>,
    /// Total probability of the most likely tokens that can be chosen (Holtzman et al., 2020).
    pub top_p: Option<f32>,
    /// Minimum probability of tokens that can be chosen, as a fraction of that of the most likely
    /// one (Nguyen et al., 2024).
    pub min_p: Option<f32>,
    /// Penalty of tokens that occur in the prompt or the generated text (Keskar et al., 2019): positive logits are
    /// divided by it, and negative ones multiplied; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Number that is subtracted once from the logits of tokens that occur in the generated text (OpenAI's API); 0
    /// changes nothing.
    pub presence_penalty: f32,
    /// Number that is subtracted from the logit of a token for each time that it occurs in the generated text (OpenAI's
    /// API); 0 changes nothing.
    pub frequency_penalty: f32,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Returns true if a penalty depends on earlier tokens.
    fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Checks that each value is in its range.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with the invalid value.
    pub fn check(&self) -> Result<()> {
        let fraction = |p: f32| p > 0.0 && p <= 1.0;
        let wrong = [
            (
                !(self.temperature >= 0.0 && self.temperature.is_finite()),
                format!("expected a temperature of at least 0, found {}", self.temperature),
                "give 0 for the most likely token, or a positive number",
            ),
            (
                self.top_k == Some(0),
                "expected top-k of at least 1, found 0".into(),
                "give at least 1",
            ),
            (
                self.top_p.is_some_and(|p| !fraction(p)),
                format!(
                    "expected top-p above 0 and at most 1, found {}",
                    self.top_p.unwrap_or_default()
                ),
                "give a probability, or leave it out",
            ),
            (
                self.min_p.is_some_and(|p| !fraction(p)),
                format!(
                    "expected min-p above 0 and at most 1, found {}",
                    self.min_p.unwrap_or_default()
                ),
                "give a fraction, or leave it out",
            ),
            (
                !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()),
                format!(
                    "expected a repetition penalty above 0, found {}",
                    self.repetition_penalty
                ),
                "give 1 for none, more to avoid repetitions",
            ),
            (
                !(-2.0..=2.0).contains(&self.presence_penalty),
                format!(
                    "expected a presence penalty from -2 to 2, found {}",
                    self.presence_penalty
                ),
                "give 0 for none",
            ),
            (
                !(-2.0..=2.0).contains(&self.frequency_penalty),
                format!(
                    "expected a frequency penalty from -2 to 2, found {}",
                    self.frequency_penalty
                ),
                "give 0 for none",
            ),
        ];
        match wrong.into_iter().find(|(is_wrong, ..)| *is_wrong) {
            None => Ok(()),
            Some((_, message, remedy)) => Err(Error::misuse(message, remedy)),
        }
    }
}

/// Maximum effective temperature.
const MAX_TEMPERATURE: f32 = 1e9;

/// A sampler with its random state.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Sampling,
    rng: SplitMix64,
    /// Candidates of top-k and top-p; the memory is reused.
    candidates: Vec<f32>,
}

impl Sampler {
    /// Creates a sampler whose random numbers start from the seed.
    ///
    /// # Errors
    /// See [`Sampling::check`].
    pub fn new(options: Sampling) -> Result<Self> {
        options.check()?;
        Ok(Sampler {
            options,
            rng: SplitMix64::new(options.seed),
            candidates: Vec::new(),
        })
    }

    /// Returns the token that follows `prompt` and `generated`, by its logits `[vocab]`, which are
    /// changed. Top-k and top-p keep all tokens that are as likely as the last one they keep. A temperature of 0 selects
    /// the first of the most likely tokens.
    ///
    /// # Errors
    /// Logits that are NaN, or of which none is finite.
    pub fn choose(&mut self, logits: &mut [f32], prompt: &[u32], generated: &[u32]) -> Result<u32> {
        let Some(mut most) = softmax::largest_finite(logits) else {
            return Err(not_numbers());
        };
        if self.options.has_penalties() {
            self.penalise(logits, prompt, generated);
            most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        }
        let Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            ..
        } = self.options;
        if temperature == 0.0 || !most.is_finite() {
            return Ok(largest(logits));
        }
        // All tokens are equally likely beyond, and arithmetic with the smallest numbers (subnormal ones) is slow.
        let temperature = temperature.min(MAX_TEMPERATURE);
        if let Some(k) = top_k.filter(|k| *k < logits.len()) {
            self.candidates.clear();
            self.candidates.extend_from_slice(logits);
            exclude_below(logits, kth_largest(&mut self.candidates, k), f32::NEG_INFINITY);
        }
        softmax::weigh(logits, most, temperature);
        if let Some(p) = top_p.filter(|p| *p < 1.0) {
            let total = softmax::sum(logits);
            // Tokens of lower weight are not candidates: their total weight is less than top-p excludes.
            let least = f64::from(1.0 - p) * total / logits.len() as f64;
            self.candidates.clear();
            let weights = logits.iter().copied();
            self.candidates
                .extend(weights.filter(|weight| f64::from(*weight) >= least));
            exclude_below(logits, least_probable(&mut self.candidates, f64::from(p) * total), 0.0);
        }
        if let Some(p) = min_p {
            // The most likely token weighs 1.
            exclude_below(logits, p, 0.0);
        }
        let limit = self.rng.unit() * softmax::sum(logits);
        Ok(softmax::place_of(logits, limit) as u32)
    }

    /// Returns the options for drawing tokens on the device, or `None` if the host has to apply penalties.
    pub(crate) fn device_options(&self) -> Option<DeviceOptions> {
        let options = &self.options;
        (!options.has_penalties()).then(|| DeviceOptions {
            temperature: options.temperature.min(MAX_TEMPERATURE),
            top_k: options.top_k.map_or(0, |k| u32::try_from(k).unwrap_or(u32::MAX)),
            top_p: options.top_p.unwrap_or(1.0),
            min_p: options.min_p.unwrap_or(0.0),
        })
    }

    /// Returns the seeds of the next tokens that a device draws; [`Sampler::take_drawn`] advances the sampler by one
    /// token.
    pub(crate) fn seeds(&self) -> Seeds {
        Seeds(self.rng.clone())
    }

    /// Returns a copy that will choose the same tokens.
    pub(crate) fn fork(&self) -> Self {
        Sampler {
            options: self.options,
            rng: self.rng.clone(),
            candidates: Vec::new(),
        }
    }

    /// Records a token that a device has drawn with the next seed; `could` is false if the draw failed.
    ///
    /// # Errors
    /// As [`Sampler::choose`].
    pub(crate) fn take_drawn(&mut self, token: u32, could: bool) -> Result<u32> {
        self.rng.next_u64();
        if could { Ok(token) } else { Err(not_numbers()) }
    }

    fn penalise(&self, logits: &mut [f32], prompt: &[u32], generated: &[u32]) {
        let counts = |tokens: &[u32]| {
            let mut counts: FxHashMap<u32, u32> = FxHashMap::default();
            tokens.iter().for_each(|token| *counts.entry(*token).or_default() += 1);
            counts
        };
        let Sampling {
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            ..
        } = self.options;
        let of_text = counts(generated);
        if repetition_penalty != 1.0 {
            let mut seen = of_text.clone();
            seen.extend(prompt.iter().map(|&token| (token, 1)));
            for token in seen.into_keys() {
                // Tokens that a constraint excludes stay at minus infinity, and penalties must not exclude any other
                // token.
                if let Some(logit) = logits.get_mut(token as usize).filter(|logit| logit.is_finite()) {
                    let penalised = if *logit > 0.0 {
                        *logit / repetition_penalty
                    } else {
                        *logit * repetition_penalty
                    };
                    *logit = penalised.clamp(f32::MIN, f32::MAX);
                }
            }
        }
        for (token, count) in of_text {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= presence_penalty + frequency_penalty * count as f32;
            }
        }
    }
}

/// Options of a token that a device draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceOptions {
    /// Divisor of the logits; 0 selects the largest logit.
    pub(crate) temperature: f32,
    /// Number of the most likely tokens; 0 for all.
    pub(crate) top_k: u32,
    /// Total probability of the most likely tokens; 1 for all.
    pub(crate) top_p: f32,
    /// Minimum probability relative to the most likely token; 0 for none.
    pub(crate) min_p: f32,
}

impl DeviceOptions {
    /// Selects the most likely token.
    pub(crate) const GREEDY: DeviceOptions = DeviceOptions {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
    };
}

/// Iterator over the random words of tokens that a device draws, two words per token.
#[derive(Clone, Debug)]
pub(crate) struct Seeds(SplitMix64);

impl Iterator for Seeds {
    type Item = [u32; 2];

    fn next(&mut self) -> Option<[u32; 2]> {
        let word = self.0.next_u64();
        Some([word as u32, (word >> 32) as u32])
    }
}

fn not_numbers() -> Error {
    Error::misuse(
        "the model's logits contain NaN or no finite number, so no token can be selected",
        "check its weights; `step_debug` finds the first operator with a result that is not finite",
    )
}

/// Replaces all numbers below `least`.
fn exclude_below(numbers: &mut [f32], least: f32, replacement: f32) {
    for x in numbers {
        *x = if *x < least { replacement } else { *x };
    }
}

/// Returns the `k`-th largest number, with `k` from 1 to the length. Changes the order.
fn kth_largest(numbers: &mut [f32], k: usize) -> f32 {
    *numbers.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
}

/// Returns the weight at which the sum of the largest weights reaches `limit`, or the smallest weight if their sum is
/// less. Changes the order.
///
/// Takes linear time: each round halves the range that contains the result. Sorting a vocabulary of 128,000 tokens takes
/// longer than a step of a small model.
fn least_probable(weights: &mut [f32], limit: f64) -> f32 {
    let (mut rest, mut before, mut least) = (weights, 0.0, 0.0);
    while !rest.is_empty() {
        let middle = rest.len() / 2;
        let (larger, &mut pivot, smaller) = rest.select_nth_unstable_by(middle, |a, b| b.total_cmp(a));
        let sum = before + softmax::sum(larger);
        if sum >= limit && !larger.is_empty() {
            rest = larger;
        } else {
            least = pivot;
            before = sum + f64::from(pivot);
            if before >= limit {
                break;
            }
            rest = smaller;
        }
    }
    least
}

/// Moves the `count` most likely tokens to the front, in order; equally likely tokens are ordered
/// by id.
pub(crate) fn sort_likeliest(tokens: &mut [(u32, f32)], count: usize) {
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, order);
    }
    let count = count.min(tokens.len());
    tokens[..count].sort_unstable_by(order);
}

/// Returns the first of the largest logits.
fn largest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0u32..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    best.0
}

#[cfg(test)]
mod tests;
