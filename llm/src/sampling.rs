//! How a token is chosen from logits.

use meganeura_core::random::SplitMix64;
use meganeura_core::{Error, Result};

use crate::softmax;

/// What to choose by. The defaults take the most likely token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the largest.
    pub temperature: f32,
    /// Only so many of the most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that have this probability together (Holtzman et al., 2020).
    pub top_p: Option<f32>,
    /// Only tokens that are at least this fraction as likely as the most likely one (Nguyen et al., 2024).
    pub min_p: Option<f32>,
    /// Divides positive logits of tokens that there are already, and multiplies negative ones (Keskar et al., 2019); 1
    /// leaves them alone.
    pub repetition_penalty: f32,
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
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether the numbers make sense.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] naming the one that does not.
    pub fn check(&self) -> Result<()> {
        let fraction = |p: f32| p > 0.0 && p <= 1.0;
        let wrong = [
            (
                !(self.temperature >= 0.0 && self.temperature.is_finite()),
                format!("the temperature is {}", self.temperature),
                "give 0 for the most likely token, or a positive number",
            ),
            (
                self.top_k == Some(0),
                "top-k of 0 tokens leaves none".into(),
                "give at least 1",
            ),
            (
                self.top_p.is_some_and(|p| !fraction(p)),
                format!("top-p is {}", self.top_p.unwrap_or_default()),
                "give a probability above 0, and at most 1",
            ),
            (
                self.min_p.is_some_and(|p| !fraction(p)),
                format!("min-p is {}", self.min_p.unwrap_or_default()),
                "give a fraction above 0, and at most 1",
            ),
            (
                !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()),
                format!("the repetition penalty is {}", self.repetition_penalty),
                "give 1 for none, more to avoid repetitions",
            ),
        ];
        match wrong.into_iter().find(|(is_wrong, ..)| *is_wrong) {
            None => Ok(()),
            Some((_, message, remedy)) => Err(Error::misuse(message, remedy)),
        }
    }
}

/// Chooses tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Sampling,
    rng: SplitMix64,
    /// Candidates with what they weigh, in memory that is reused.
    candidates: Vec<(u32, f32)>,
    /// How many of them are known to be the most likely ones, and in their order.
    sorted: usize,
}

impl Sampler {
    /// With random numbers from the seed on.
    ///
    /// # Errors
    /// See [`Sampling::check`].
    pub fn new(options: Sampling) -> Result<Self> {
        options.check()?;
        Ok(Sampler {
            options,
            rng: SplitMix64::new(options.seed),
            candidates: Vec::new(),
            sorted: 0,
        })
    }

    /// The token that follows `tokens`, by its logits `[vocab]`, which are changed. Of equally likely tokens the first
    /// comes first.
    ///
    /// # Errors
    /// Logits that are not numbers, or of which none is finite.
    pub fn choose(&mut self, logits: &mut [f32], tokens: &[u32]) -> Result<u32> {
        let Some(mut most) = softmax::largest_finite(logits) else {
            return Err(not_numbers());
        };
        if self.options.repetition_penalty != 1.0 {
            self.penalise(logits, tokens);
            // Penalties may make logits larger than there are numbers for.
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
        if top_k.is_none() && top_p.is_none() {
            // The order of the tokens does not matter, so nothing is sorted.
            softmax::weigh(logits, most, temperature);
            if let Some(p) = min_p {
                logits
                    .iter_mut()
                    .filter(|weight| **weight < p)
                    .for_each(|weight| *weight = 0.0);
            }
            let limit = self.rng.unit() * softmax::sum(logits);
            return Ok(softmax::place_of(logits, limit) as u32);
        }
        self.candidates.clear();
        self.sorted = 0;
        let total = if let Some(k) = top_k {
            self.candidates.extend((0u32..).zip(logits.iter().copied()));
            self.keep(k);
            for (_, weight) in &mut self.candidates {
                softmax::weigh(std::slice::from_mut(weight), most, temperature);
            }
            self.total()
        } else {
            softmax::weigh(logits, most, temperature);
            // Tokens that weigh less are not needed for top-p: all of them together are less than what it leaves out.
            let (rest, total) = (f64::from(1.0 - top_p.unwrap_or(1.0)), softmax::sum(logits));
            let least = rest * total / logits.len() as f64;
            let weights = (0u32..).zip(logits.iter().copied());
            self.candidates
                .extend(weights.filter(|(_, weight)| f64::from(*weight) >= least));
            total
        };
        self.keep_probable(total);
        Ok(self.draw())
    }

    /// The temperature, if tokens are drawn from all of them by their logits alone, which devices can do; 0 takes the largest logit.
    pub(crate) fn plain_temperature(&self) -> Option<f32> {
        let Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            ..
        } = self.options;
        let is_plain = temperature == 0.0 || (top_k.is_none() && top_p.is_none_or(|p| p == 1.0) && min_p.is_none());
        // Noise times the temperature has to be finite.
        (is_plain && repetition_penalty == 1.0).then_some(temperature.min(1e30))
    }

    /// Seeds for the tokens that a device draws next, of any number; [`Sampler::take_drawn`] goes on by one.
    pub(crate) fn seeds(&self) -> Seeds {
        Seeds(self.rng.clone())
    }

    /// One that will choose the same tokens.
    pub(crate) fn fork(&self) -> Self {
        Sampler {
            options: self.options,
            rng: self.rng.clone(),
            candidates: Vec::new(),
            sorted: 0,
        }
    }

    /// Takes a token that a device drew with the next seed, if it could.
    ///
    /// # Errors
    /// As [`Sampler::choose`].
    pub(crate) fn take_drawn(&mut self, token: u32, could: bool) -> Result<u32> {
        self.rng.next_u64();
        if could { Ok(token) } else { Err(not_numbers()) }
    }

    fn penalise(&self, logits: &mut [f32], tokens: &[u32]) {
        let penalty = self.options.repetition_penalty;
        let mut seen: Vec<u32> = tokens.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 {
                    *logit / penalty
                } else {
                    *logit * penalty
                };
            }
        }
    }

    /// Has the most likely candidates in front, in their order, so many or all. Few are usually looked at, and sorting a whole vocabulary
    /// takes longer than a small model's step.
    fn sort_to(&mut self, count: usize) {
        while self.sorted < count.min(self.candidates.len()) {
            let rest = &mut self.candidates[self.sorted..];
            let more = (3 * self.sorted).max(64).min(rest.len());
            sort_likeliest(rest, more);
            self.sorted += more;
        }
    }

    /// The candidate at a place in the order of their likeliness.
    fn candidate(&mut self, at: usize) -> Option<(u32, f32)> {
        self.sort_to(at + 1);
        self.candidates.get(at).copied()
    }

    /// Drops what is behind so many candidates.
    fn keep(&mut self, count: usize) {
        self.sort_to(count);
        self.candidates.truncate(count);
    }

    /// The sum of all weights.
    fn total(&self) -> f64 {
        self.candidates.iter().map(|c| f64::from(c.1)).sum()
    }

    /// Drops what top-p and min-p leave out of candidates that weigh so much with those that are left out already; the most likely
    /// token always stays.
    fn keep_probable(&mut self, total: f64) {
        if let Some(p) = self.options.top_p {
            let limit = f64::from(p) * total;
            let (mut kept, mut before) = (0, 0.0);
            while before < limit
                && let Some((_, weight)) = self.candidate(kept)
            {
                before += f64::from(weight);
                kept += 1;
            }
            self.keep(kept.max(1));
        }
        if let Some(p) = self.options.min_p {
            // The most likely one weighs 1.
            let mut kept = 0;
            while self.candidate(kept).is_some_and(|(_, weight)| weight >= p) {
                kept += 1;
            }
            self.keep(kept.max(1));
        }
    }

    /// One of the candidates, each as often as it weighs; in whatever order they are.
    fn draw(&mut self) -> u32 {
        let mut rest = self.rng.unit() * self.total();
        for (token, weight) in &self.candidates {
            rest -= f64::from(*weight);
            if rest < 0.0 {
                return *token;
            }
        }
        // Rounding may leave a rest.
        self.candidates.last().map_or(0, |c| c.0)
    }
}

/// The random words of tokens that a device draws, two for each.
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
        "the model's logits are not all numbers, so there is no most likely token",
        "look at its weights; `MEGANEURA_DEBUG` and `step_debug` find where numbers are lost",
    )
}

/// Has so many of the likeliest tokens in front, in their order, of equally likely ones the first first.
pub(crate) fn sort_likeliest(tokens: &mut [(u32, f32)], count: usize) {
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, order);
    }
    let count = count.min(tokens.len());
    tokens[..count].sort_unstable_by(order);
}

/// The first of the largest.
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
mod tests {
    use super::*;

    fn counts(options: Sampling, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(options).expect("options that make sense");
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            let token = sampler.choose(&mut logits.to_vec(), &[]).expect("numbers");
            counts[token as usize] += 1;
        }
        counts
    }

    /// Logits of the probabilities 0.5, 0.3, 0.15 and 0.05, in another order.
    fn logits() -> Vec<f32> {
        [0.15f32, 0.5, 0.05, 0.3].map(f32::ln).to_vec()
    }

    #[test]
    fn frequencies_are_the_probabilities() {
        let options = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        let found = counts(options, &logits(), 20_000);
        for (found, expected) in found.iter().zip([3000.0, 10_000.0, 1000.0, 6000.0]) {
            assert!((*found as f64 - expected).abs() < 300.0, "{found}, not {expected}");
        }
        // Half the temperature squares them.
        let options = Sampling {
            temperature: 0.5,
            ..options
        };
        let found = counts(options, &logits(), 20_000);
        let expected = 20_000.0 * 0.25 / (0.25 + 0.09 + 0.0225 + 0.0025);
        assert!((found[1] as f64 - expected).abs() < 300.0, "{found:?}");
    }

    #[test]
    fn the_lowest_temperature_takes_the_most_likely_token() {
        let options = Sampling {
            temperature: f32::MIN_POSITIVE,
            ..Sampling::default()
        };
        assert_eq!(counts(options, &[3.0, 40.0, -7.0], 100), [0, 100, 0]);
        // A token may be impossible, but not all of them.
        let mut sampler = Sampler::new(options).expect("options that make sense");
        let lowest = f32::NEG_INFINITY;
        assert_eq!(
            sampler
                .choose(&mut [lowest, -1.0, lowest], &[])
                .expect("one is possible"),
            1
        );
        let error = sampler.choose(&mut [lowest; 3], &[]).expect_err("none is possible");
        assert!(error.to_string().contains("not all numbers"), "{error}");
    }

    #[test]
    fn unlikely_tokens_are_left_out() {
        let options = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        for (options, kept) in [
            (
                Sampling {
                    top_k: Some(2),
                    ..options
                },
                [false, true, false, true],
            ),
            (
                Sampling {
                    top_k: Some(9),
                    ..options
                },
                [true; 4],
            ),
            (
                Sampling {
                    top_p: Some(0.6),
                    ..options
                },
                [false, true, false, true],
            ),
            (
                Sampling {
                    top_p: Some(0.9),
                    ..options
                },
                [true, true, false, true],
            ),
            (
                Sampling {
                    top_p: Some(1e-6),
                    ..options
                },
                [false, true, false, false],
            ),
            (
                Sampling {
                    min_p: Some(0.25),
                    ..options
                },
                [true, true, false, true],
            ),
            (
                Sampling {
                    min_p: Some(1.0),
                    ..options
                },
                [false, true, false, false],
            ),
        ] {
            let found = counts(options, &logits(), 2000);
            let found: Vec<bool> = found.into_iter().map(|n| n > 0).collect();
            assert_eq!(found, kept, "{options:?}");
        }
    }

    #[test]
    fn tokens_of_a_large_vocabulary_are_those_of_sorting_it_all() {
        let mut rng = SplitMix64::new(7);
        let logits: Vec<f32> = (0..5000).map(|_| (12.0 * rng.unit()) as f32).collect();
        let plain = Sampling {
            temperature: 1.3,
            seed: 5,
            ..Sampling::default()
        };
        let with = |top_k, top_p, min_p| Sampling {
            top_k,
            top_p,
            min_p,
            ..plain
        };
        for options in [
            plain,
            with(Some(700), None, None),
            with(None, Some(0.5), None),
            with(None, Some(0.999), None),
            with(None, None, Some(0.02)),
            with(Some(900), Some(0.9), Some(0.05)),
        ] {
            let mut sorted: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            sorted.truncate(options.top_k.unwrap_or(usize::MAX));
            let most = sorted[0].1;
            let weight = |logit: f32| f64::from(((logit - most) / options.temperature).exp());
            let mut kept: Vec<(u32, f64)> = sorted.iter().map(|&(token, x)| (token, weight(x))).collect();
            if let Some(p) = options.top_p {
                let limit = f64::from(p) * kept.iter().map(|(_, weight)| weight).sum::<f64>();
                let mut before = 0.0;
                kept.retain(|(_, weight)| {
                    before += weight;
                    before - weight < limit
                });
            }
            let least = f64::from(options.min_p.unwrap_or(0.0));
            kept.retain(|(_, weight)| *weight >= least);
            // Where nothing is sorted, random numbers choose in the order of the vocabulary.
            if options.top_k.is_none() && options.top_p.is_none() {
                kept.sort_by_key(|(token, _)| *token);
            }
            let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
            let (mut sampler, mut rng) = (Sampler::new(options).expect("sense"), SplitMix64::new(options.seed));
            for _ in 0..300 {
                let mut rest = rng.unit() * total;
                let at = kept.iter().position(|(_, weight)| {
                    rest -= weight;
                    rest < 0.0
                });
                let expected = kept[at.unwrap_or(kept.len() - 1)].0;
                assert_eq!(
                    sampler.choose(&mut logits.clone(), &[]).expect("a token"),
                    expected,
                    "{options:?}"
                );
            }
        }
    }

    #[test]
    fn devices_draw_where_nothing_but_the_logits_counts() {
        let plain = Sampling {
            temperature: 0.7,
            ..Sampling::default()
        };
        let of = |options| Sampler::new(options).expect("sense").plain_temperature();
        assert_eq!(of(plain), Some(0.7));
        let all = Sampling {
            top_p: Some(1.0),
            ..plain
        };
        assert_eq!(of(all), Some(0.7));
        for options in [
            Sampling {
                top_k: Some(5),
                ..plain
            },
            Sampling {
                top_p: Some(0.9),
                ..plain
            },
            Sampling {
                min_p: Some(0.1),
                ..plain
            },
            Sampling {
                repetition_penalty: 1.1,
                ..plain
            },
        ] {
            assert_eq!(of(options), None, "{options:?}");
        }
        // The most likely token is among those that are left.
        let greedy = Sampling {
            top_k: Some(5),
            ..Sampling::default()
        };
        assert_eq!(of(greedy), Some(0.0));
        let hot = Sampling {
            temperature: f32::MAX,
            ..plain
        };
        assert!(of(hot).is_some_and(|temperature| (temperature * 23.0).is_finite()));
    }

    #[test]
    fn repetitions_are_penalised() {
        let options = Sampling {
            repetition_penalty: 2.0,
            ..Sampling::default()
        };
        let mut sampler = Sampler::new(options).expect("options");
        assert_eq!(sampler.choose(&mut [3.0, 2.0, -1.0], &[]).expect("a token"), 0);
        assert_eq!(sampler.choose(&mut [3.0, 2.0, -1.0], &[0, 0]).expect("a token"), 1);
        // A negative one gets smaller.
        assert_eq!(sampler.choose(&mut [-3.0, -2.0], &[1]).expect("a token"), 0);
    }

    #[test]
    fn the_first_of_equals_and_the_same_seed() {
        let mut sampler = Sampler::new(Sampling::default()).expect("options");
        assert_eq!(sampler.choose(&mut [1.0, 4.0, 4.0], &[]).expect("a token"), 1);
        let options = Sampling {
            temperature: 1.0,
            seed: 5,
            ..Sampling::default()
        };
        assert_eq!(counts(options, &logits(), 50), counts(options, &logits(), 50));
        assert_ne!(
            counts(options, &logits(), 50),
            counts(Sampling { seed: 6, ..options }, &logits(), 50)
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let wrong = [
            Sampling {
                temperature: -1.0,
                ..Sampling::default()
            },
            Sampling {
                temperature: f32::NAN,
                ..Sampling::default()
            },
            Sampling {
                top_k: Some(0),
                ..Sampling::default()
            },
            Sampling {
                top_p: Some(0.0),
                ..Sampling::default()
            },
            Sampling {
                top_p: Some(1.5),
                ..Sampling::default()
            },
            Sampling {
                min_p: Some(f32::NAN),
                ..Sampling::default()
            },
            Sampling {
                repetition_penalty: 0.0,
                ..Sampling::default()
            },
        ];
        for options in wrong {
            assert!(Sampler::new(options).is_err(), "{options:?}");
        }
        let mut sampler = Sampler::new(Sampling::default()).expect("options");
        assert!(sampler.choose(&mut [1.0, f32::NAN], &[]).is_err());
        assert!(sampler.choose(&mut [], &[]).is_err());
    }
}
