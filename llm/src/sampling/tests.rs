use super::*;

fn counts(options: Sampling, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(options).expect("options that make sense");
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        let token = sampler.choose(&mut logits.to_vec(), &[], &[]).expect("numbers");
        counts[token as usize] += 1;
    }
    counts
}

/// Returns the logits of the probabilities 0.5, 0.3, 0.15 and 0.05, in another order.
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
            .choose(&mut [lowest, -1.0, lowest], &[], &[])
            .expect("one is possible"),
        1
    );
    let error = sampler
        .choose(&mut [lowest; 3], &[], &[])
        .expect_err("none is possible");
    assert!(error.to_string().contains("contain NaN or no finite number"), "{error}");
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
        // Nearly uniform: nearly all tokens are kept.
        Sampling {
            temperature: 100.0,
            ..with(None, Some(0.95), None)
        },
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
        // Random numbers choose in the order of the vocabulary.
        kept.sort_by_key(|(token, _)| *token);
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
                sampler.choose(&mut logits.clone(), &[], &[]).expect("a token"),
                expected,
                "{options:?}"
            );
        }
    }
}

#[test]
fn tokens_as_likely_as_the_last_one_are_kept() {
    let equal = [1.0f32; 40];
    for (top_k, top_p) in [(Some(3), None), (None, Some(0.1))] {
        let options = Sampling {
            temperature: 1.0,
            top_k,
            top_p,
            ..Sampling::default()
        };
        let found = counts(options, &equal, 4000);
        assert!(found.iter().all(|&count| count > 50), "{options:?}: {found:?}");
    }
}

#[test]
fn the_least_probable_weight_is_that_of_sorted_weights() {
    let mut rng = SplitMix64::new(3);
    for len in [1, 2, 3, 10, 1000] {
        // Few different values, so that many are equal.
        let weights: Vec<f32> = (0..len).map(|_| rng.below(50) as f32 / 64.0).collect();
        let mut sorted = weights.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let total: f64 = sorted.iter().map(|x| f64::from(*x)).sum();
        for fraction in [0.0, 1e-9, 0.3, 0.9, 1.0, 1.1] {
            let mut sum = 0.0;
            let expected = sorted.iter().find(|x| {
                sum += f64::from(**x);
                sum >= fraction * total
            });
            let expected = expected.or(sorted.last()).copied();
            assert_eq!(
                Some(least_probable(&mut weights.clone(), fraction * total)),
                expected,
                "{fraction} of {len} weights"
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
    let of = |options| Sampler::new(options).expect("sense").device_options();
    let expected = DeviceOptions {
        temperature: 0.7,
        ..DeviceOptions::GREEDY
    };
    assert_eq!(of(plain), Some(expected));
    let limited = Sampling {
        top_k: Some(5),
        top_p: Some(0.9),
        min_p: Some(0.1),
        ..plain
    };
    let expected = DeviceOptions {
        top_k: 5,
        top_p: 0.9,
        min_p: 0.1,
        ..expected
    };
    assert_eq!(of(limited), Some(expected));
    for penalised in [
        Sampling {
            repetition_penalty: 1.1,
            ..plain
        },
        Sampling {
            presence_penalty: 0.5,
            ..plain
        },
        Sampling {
            frequency_penalty: 0.5,
            ..plain
        },
    ] {
        assert_eq!(of(penalised), None, "{penalised:?}");
    }
    let hot = Sampling {
        temperature: f32::MAX,
        ..plain
    };
    assert!(of(hot).is_some_and(|options| (options.temperature * 23.0).is_finite()));
}

#[test]
fn repetitions_are_penalised() {
    let options = Sampling {
        repetition_penalty: 2.0,
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(options).expect("options");
    assert_eq!(sampler.choose(&mut [3.0, 2.0, -1.0], &[], &[]).expect("a token"), 0);
    assert_eq!(sampler.choose(&mut [3.0, 2.0, -1.0], &[0, 0], &[]).expect("a token"), 1);
    // A negative one gets smaller.
    assert_eq!(sampler.choose(&mut [-3.0, -2.0], &[1], &[]).expect("a token"), 0);
}

#[test]
fn penalties_never_exclude_a_token() {
    for temperature in [0.0, 1.0, 1e-30] {
        for top_k in [None, Some(2)] {
            let options = Sampling {
                repetition_penalty: f32::MAX,
                temperature,
                top_k,
                ..Sampling::default()
            };
            let mut sampler = Sampler::new(options).expect("options");
            // A constraint excludes the first two tokens.
            let mut logits = [f32::NEG_INFINITY, f32::NEG_INFINITY, -3.0, f32::NEG_INFINITY];
            let token = sampler.choose(&mut logits, &[0, 1, 2, 3], &[2, 2]).expect("a token");
            assert_eq!(token, 2, "{options:?}");
        }
    }
}

#[test]
fn the_first_of_equals_and_the_same_seed() {
    let mut sampler = Sampler::new(Sampling::default()).expect("options");
    assert_eq!(sampler.choose(&mut [1.0, 4.0, 4.0], &[], &[]).expect("a token"), 1);
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
    assert!(sampler.choose(&mut [1.0, f32::NAN], &[], &[]).is_err());
    assert!(sampler.choose(&mut [], &[], &[]).is_err());
}

#[test]
fn penalties_count_generated_tokens() {
    let sampler = |presence_penalty, frequency_penalty| {
        let options = Sampling {
            presence_penalty,
            frequency_penalty,
            ..Sampling::default()
        };
        Sampler::new(options).expect("options")
    };
    // The prompt does not count.
    let next = |mut sampler: Sampler, prompt: &[u32], generated: &[u32]| {
        sampler
            .choose(&mut [2.0, 1.5, 0.0], prompt, generated)
            .expect("a token")
    };
    assert_eq!(next(sampler(1.0, 0.0), &[0, 0, 0], &[]), 0);
    assert_eq!(next(sampler(1.0, 0.0), &[], &[0]), 1);
    // Frequency counts each occurrence: 2 - 3 * 0.2 < 1.5, 2 - 2 * 0.2 > 1.5.
    assert_eq!(next(sampler(0.0, 0.2), &[], &[0, 0]), 0);
    assert_eq!(next(sampler(0.0, 0.2), &[], &[0, 0, 0]), 1);
    assert_eq!(next(sampler(-2.0, 0.0), &[], &[2, 2]), 0);
    assert_eq!(next(sampler(0.0, -1.5), &[], &[2, 2]), 2);
    let wrong = Sampling {
        frequency_penalty: 2.5,
        ..Sampling::default()
    };
    assert!(Sampler::new(wrong).is_err());
}
