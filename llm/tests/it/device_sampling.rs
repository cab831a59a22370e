//! Tests of tokens that the device draws.

use meganeura_llm::{EngineOptions, Sampling};

use crate::engine::{engine, finish, request};
use crate::transformers::{expected, generator, ids};

/// Number of draws of a test.
const DRAWS: u64 = 4000;
/// Number of tokens in the vocabulary.
const VOCAB: usize = 320;

/// Returns how often the device draws each token after the prompt, with the seeds `0..DRAWS`.
fn counts(prompt: &[u32], sampling: Sampling) -> Vec<u32> {
    let options = EngineOptions {
        device_sampling: Some(true),
        sequences: 32,
        ..EngineOptions::default()
    };
    let mut engine = engine("llama", options);
    for seed in 0..DRAWS {
        let mut request = request(prompt, 1);
        request.sampling = Sampling { seed, ..sampling };
        engine.submit(request).expect("a sequence");
    }
    let mut counts = vec![0u32; VOCAB];
    for outcome in finish(&mut engine).into_values() {
        counts[outcome.tokens[0] as usize] += 1;
    }
    counts
}

/// Returns the weight of each token. It is 0 for tokens that sampling excludes.
fn weights(logits: &[f32], sampling: &Sampling) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| (f64::from(logit - most) / f64::from(sampling.temperature)).exp();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(sampling.top_k.unwrap_or(VOCAB));
    let limit =
        f64::from(sampling.top_p.unwrap_or(1.0)) * order.iter().map(|&token| weight(logits[token])).sum::<f64>();
    let (mut kept, mut sum) = (vec![0.0; logits.len()], 0.0);
    for token in order {
        let weight = weight(logits[token]);
        if sum < limit && weight >= f64::from(sampling.min_p.unwrap_or(0.0)) {
            kept[token] = weight;
        }
        sum += weight;
    }
    kept
}

#[test]
fn the_device_draws_tokens_with_their_probabilities() {
    let prompt = ids(&expected("llama")["prompt_ids"]);
    let logits = generator("llama", 8).prompt_logits(&prompt).expect("logits");
    let last = &logits[logits.len() - VOCAB..];
    let plain = Sampling {
        temperature: 0.7,
        ..Sampling::default()
    };
    for (sampling, least) in [
        (plain, 50),
        (
            Sampling {
                top_k: Some(40),
                ..plain
            },
            35,
        ),
        (
            Sampling {
                top_p: Some(0.6),
                ..plain
            },
            8,
        ),
        (
            Sampling {
                min_p: Some(0.1),
                ..plain
            },
            5,
        ),
        (
            Sampling {
                temperature: 1.5,
                top_k: Some(100),
                top_p: Some(0.9),
                min_p: Some(0.05),
                ..plain
            },
            20,
        ),
    ] {
        let (counts, weights) = (counts(&prompt, sampling), weights(last, &sampling));
        let sum: f64 = weights.iter().sum();
        let excluded = counts.iter().zip(&weights).filter(|(_, weight)| **weight == 0.0);
        assert_eq!(excluded.map(|(count, _)| count).sum::<u32>(), 0, "{sampling:?}");
        // Pearson's statistic, with all rare tokens as one: its mean is the number of terms minus one, and its variance is
        // twice the mean.
        let of_token = |(&count, &weight): (&u32, &f64)| (f64::from(count), DRAWS as f64 * weight / sum);
        let pairs = counts
            .iter()
            .zip(&weights)
            .filter(|(_, weight)| **weight > 0.0)
            .map(of_token);
        let (common, rare): (Vec<_>, Vec<_>) = pairs.partition(|&(_, expected)| expected >= 5.0);
        let rare = rare
            .iter()
            .fold((0.0, 0.0), |sum, rare| (sum.0 + rare.0, sum.1 + rare.1));
        let terms = common.iter().chain(Some(&rare).filter(|rare| rare.1 > 0.0));
        let statistic: f64 = terms
            .clone()
            .map(|(count, expected)| (count - expected).powi(2) / expected)
            .sum();
        let mean = (terms.count() - 1) as f64;
        assert!(
            common.len() >= least && (statistic - mean).abs() < 4.0 * (2.0 * mean).sqrt(),
            "{sampling:?}: {statistic} of {mean}, {} common tokens",
            common.len()
        );
    }
}
