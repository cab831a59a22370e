//! Tests that one request with many long prompts does not hold up others.

use std::collections::HashMap;

use meganeura_core::Result;
use meganeura_core::random::SplitMix64;
use meganeura_llm::engine::{ChosenToken, Constraint, Event, SequenceId, SequenceRequest};
use meganeura_llm::{Checkpoint, Engine, EngineOptions, ModelConfig};

use crate::transformers::{device, folder};

const LONG: usize = 100;

fn engine(prefix_cache: bool) -> Engine {
    engine_of(4, prefix_cache)
}

fn engine_of(sequences: usize, prefix_cache: bool) -> Engine {
    let config = ModelConfig::open(&folder("llama")).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder("llama")).expect("weights");
    let options = EngineOptions {
        sequences,
        cache_tokens: Some(128 * sequences / 2),
        step_tokens: Some(16),
        prefix_cache,
        ..EngineOptions::default()
    };
    Engine::on(device(), config, &checkpoint, options).expect("an engine")
}

/// Creates a request with a prompt of [`LONG`] tokens. Their log-probabilities are reported if `is_scored`.
fn long(number: u32, is_scored: bool) -> SequenceRequest {
    SequenceRequest {
        group: Some(1),
        prompt_logprobs: is_scored.then_some(0),
        ..SequenceRequest::new((0..LONG as u32).map(|i| (i * 7 + number) % 300).collect(), 2)
    }
}

/// Runs a step; adds the tokens to the texts.
fn step(engine: &mut Engine, texts: &mut HashMap<SequenceId, Vec<u32>>) {
    for event in engine.step().expect("a step") {
        match event {
            Event::Token(id, ChosenToken { token, .. }) => texts.entry(id).or_default().push(token),
            Event::Prompt(..) | Event::Finished(..) => {}
            Event::Failed(_, error) => panic!("{error}"),
        }
    }
}

#[test]
fn short_prompts_are_read_at_once_while_a_group_reads_long_ones() {
    for (prefix_cache, is_scored) in [(true, false), (false, false), (true, true)] {
        let mut wanted = HashMap::new();
        let mut alone = engine(prefix_cache);
        for number in 0..6 {
            let id = alone.submit(long(number, false)).expect("a sequence");
            while !alone.is_idle() {
                step(&mut alone, &mut wanted);
            }
            let text = wanted.remove(&id).expect("a text");
            wanted.insert(id, text);
        }
        let mut engine = engine(prefix_cache);
        let mut texts = HashMap::new();
        let ids: Vec<SequenceId> = (0..6)
            .map(|i| engine.submit(long(i, is_scored)).expect("a sequence"))
            .collect();
        for _ in 0..5 {
            step(&mut engine, &mut texts);
        }
        assert!(engine.counts().running > 1);
        for group in [2, 3] {
            let short = SequenceRequest {
                group: Some(group),
                ..SequenceRequest::new(vec![1, 2, 3], 1)
            };
            let short = engine.submit(short).expect("a sequence");
            step(&mut engine, &mut texts);
            assert!(texts.contains_key(&short), "group {group}, {prefix_cache}, {is_scored}");
        }
        while !engine.is_idle() {
            step(&mut engine, &mut texts);
        }
        for (number, id) in ids.iter().enumerate() {
            let alone = wanted
                .iter()
                .find(|(id, _)| format!("{id:?}") == format!("{:?}", ids[number]));
            assert_eq!(Some(&texts[id]), alone.map(|(_, text)| text), "prompt {number}");
        }
    }
}

#[test]
fn a_long_prompt_makes_progress_among_short_ones() {
    let mut engine = engine(true);
    let mut texts = HashMap::new();
    let long = engine.submit(long(0, false)).expect("a sequence");
    let mut steps = 0_u32;
    while !texts.contains_key(&long) {
        // There are always enough short prompts for all slots.
        while engine.counts().running + engine.counts().waiting < 6 {
            let prompt = (0..12).map(|i| (steps * 31 + i * 17) % 300).collect();
            engine.submit(SequenceRequest::new(prompt, 1)).expect("a sequence");
        }
        step(&mut engine, &mut texts);
        steps += 1;
        assert!(steps < 60, "the long prompt is not read");
    }
}

#[test]
fn a_long_scored_prompt_makes_progress_among_short_scored_ones() {
    let mut engine = engine(true);
    let mut texts = HashMap::new();
    let long = engine
        .submit(SequenceRequest {
            group: None,
            ..long(0, true)
        })
        .expect("a sequence");
    let mut steps = 0_u32;
    while !texts.contains_key(&long) {
        while engine.counts().running + engine.counts().waiting < 6 {
            let prompt = (0..14).map(|i| (steps * 31 + i * 17) % 300).collect();
            let short = SequenceRequest {
                prompt_logprobs: Some(0),
                ..SequenceRequest::new(prompt, 1)
            };
            engine.submit(short).expect("a sequence");
        }
        step(&mut engine, &mut texts);
        steps += 1;
        assert!(steps < 100, "the long prompt is not read");
    }
}

/// A preempted sequence is computed again, but the scores of its prompt are reported only once.
#[test]
fn scored_sequences_continue_correctly_after_preemption() {
    let request = |number: u32| SequenceRequest {
        prompt_logprobs: Some(0),
        ..SequenceRequest::new((0..20).map(|i| (i * 7 + number * 13) % 300).collect(), 60)
    };
    let mut alone = engine(false);
    let wanted: Vec<Vec<u32>> = (0..6)
        .map(|number| {
            let mut texts = HashMap::new();
            let id = alone.submit(request(number)).expect("a sequence");
            while !alone.is_idle() {
                step(&mut alone, &mut texts);
            }
            texts.remove(&id).expect("a text")
        })
        .collect();
    let mut engine = engine(false);
    let mut texts = HashMap::new();
    let ids: Vec<SequenceId> = (0..6)
        .map(|number| engine.submit(request(number)).expect("a sequence"))
        .collect();
    while !engine.is_idle() {
        step(&mut engine, &mut texts);
    }
    assert!(engine.counts().preemptions > 0);
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(texts[id], wanted[number], "sequence {number}");
    }
}

/// A constraint that allows every token.
struct Free;

impl Constraint for Free {
    fn mask(&mut self, _: &mut [f32]) -> Result<bool> {
        Ok(true)
    }

    fn accept(&mut self, _: u32) -> Result<bool> {
        Ok(false)
    }
}

/// A sequence with a constraint that waits for a slot does not preempt other sequences.
#[test]
fn sequences_that_may_not_run_preempt_no_others() {
    let mut engine = engine_of(8, true);
    let constrained = |group| SequenceRequest {
        group: Some(group),
        constraint: Some(Box::new(Free)),
        ..SequenceRequest::new(vec![1, 2, 3], 20)
    };
    // At most six of the eight slots are for constrained sequences; the remaining two read prompts of one group.
    for group in 10..17 {
        engine.submit(constrained(group)).expect("a sequence");
    }
    for number in 0..3 {
        engine.submit(long(number, false)).expect("a sequence");
    }
    let mut texts = HashMap::new();
    while !engine.is_idle() {
        step(&mut engine, &mut texts);
    }
    assert_eq!(texts.len(), 10);
    assert!(texts.values().all(|text| [2, 20].contains(&text.len())));
    assert_eq!(engine.counts().preemptions, 0);
}

/// Groups and single sequences with random options and little memory have the same texts as in separate runs.
#[test]
fn random_mixtures_change_no_text() {
    for seed in 0..6 {
        let mut rng = SplitMix64::new(seed);
        let requests: Vec<(Option<u64>, usize, Vec<u32>, usize)> = (0..24)
            .map(|_| {
                let group = Some(rng.below(4) as u64).filter(|&group| group > 0);
                let longest = if rng.below(2) == 0 { 8 } else { LONG };
                let len = 1 + rng.below(longest);
                let prompt = (0..len).map(|_| rng.below(300) as u32).collect();
                (group, rng.below(4), prompt, 1 + rng.below(30))
            })
            .collect();
        let request = |(group, kind, prompt, max_tokens): &(Option<u64>, usize, Vec<u32>, usize)| SequenceRequest {
            group: *group,
            constraint: (*kind == 0).then(|| Box::new(Free) as Box<dyn Constraint>),
            prompt_logprobs: (*kind == 1).then_some(0),
            ..SequenceRequest::new(prompt.clone(), *max_tokens)
        };
        let prefix_cache = seed % 2 == 0;
        let mut alone = engine(prefix_cache);
        let wanted: Vec<Vec<u32>> = requests
            .iter()
            .map(|own| {
                let mut texts = HashMap::new();
                let id = alone.submit(request(own)).expect("a sequence");
                while !alone.is_idle() {
                    step(&mut alone, &mut texts);
                }
                texts.remove(&id).expect("a text")
            })
            .collect();
        let mut engine = engine(prefix_cache);
        let mut texts = HashMap::new();
        let mut ids = Vec::new();
        let mut steps = 0;
        for own in &requests {
            ids.push(engine.submit(request(own)).expect("a sequence"));
            if rng.below(2) == 0 {
                step(&mut engine, &mut texts);
            }
        }
        while !engine.is_idle() {
            step(&mut engine, &mut texts);
            steps += 1;
            assert!(steps < 2_000, "no progress, seed {seed}");
        }
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(texts[id], wanted[number], "sequence {number} of seed {seed}");
        }
    }
}

/// A group is admitted in its turn even if new requests arrive all the time.
#[test]
fn later_requests_overtake_no_group_that_waits() {
    let mut engine = engine(true);
    let mut texts = HashMap::new();
    let mut next_group = 100;
    let mut ids = Vec::new();
    for round in 0..400 {
        while engine.counts().running + engine.counts().waiting < 16 {
            next_group += 1;
            let request = SequenceRequest {
                group: Some(next_group),
                ..SequenceRequest::new(vec![next_group as u32 % 300, 7, 9], 6)
            };
            engine.submit(request).expect("a sequence");
        }
        if round == 10 {
            ids = (0..4)
                .map(|i| engine.submit(long(i, false)).expect("a sequence"))
                .collect();
        }
        step(&mut engine, &mut texts);
        if round > 10 && ids.iter().all(|id| texts.get(id).is_some_and(|text| text.len() == 2)) {
            return;
        }
    }
    panic!("the group waits without end");
}

/// A sequence for which there is no room does not hold up a short one that fits beside the running ones.
#[test]
fn short_sequences_overtake_one_that_does_not_fit() {
    let mut engine = engine_of(4, false);
    let mut texts = HashMap::new();
    let submit = |engine: &mut Engine, number: u32| {
        let request = SequenceRequest {
            group: Some(u64::from(number)),
            ..SequenceRequest::new((0..LONG as u32).map(|i| (i * 7 + number) % 300).collect(), 20)
        };
        engine.submit(request).expect("a sequence")
    };
    let long: Vec<SequenceId> = (1..=3).map(|number| submit(&mut engine, number)).collect();
    // Both prompts are read, in steps of 16 tokens.
    while texts.len() < 2 {
        step(&mut engine, &mut texts);
    }
    assert_eq!(engine.counts().running, 2, "the third does not fit");
    // More of them than a fixed number, one after the other.
    for number in 0..7 {
        let short = SequenceRequest {
            group: Some(100 + number),
            ..SequenceRequest::new(vec![1, 2, 3], 1)
        };
        let short = engine.submit(short).expect("a sequence");
        step(&mut engine, &mut texts);
        assert!(texts.contains_key(&short) && !texts.contains_key(&long[2]), "{number}");
    }
    while !engine.is_idle() {
        step(&mut engine, &mut texts);
    }
    assert!(long.iter().all(|id| texts[id].len() == 20));
}

/// One request with a choice for each slot does not keep all slots until its texts end, and its texts stay the same.
#[test]
fn a_group_that_generates_in_all_slots_makes_room_for_others() {
    for prefix_cache in [true, false] {
        let of_group = |number: u32| SequenceRequest {
            group: Some(1),
            ..SequenceRequest::new(vec![number, 7, 9], 30)
        };
        let mut wanted = HashMap::new();
        let mut alone = engine(prefix_cache);
        let ids: Vec<SequenceId> = (0..4).map(|i| alone.submit(of_group(i)).expect("a sequence")).collect();
        while !alone.is_idle() {
            step(&mut alone, &mut wanted);
        }
        let mut engine = engine(prefix_cache);
        let mut texts = HashMap::new();
        for number in 0..4 {
            engine.submit(of_group(number)).expect("a sequence");
        }
        while texts.len() < 4 {
            step(&mut engine, &mut texts);
        }
        assert_eq!(engine.counts().running, 4);
        let short = SequenceRequest {
            group: Some(2),
            ..SequenceRequest::new(vec![1, 2, 3], 1)
        };
        let short = engine.submit(short).expect("a sequence");
        step(&mut engine, &mut texts);
        assert!(texts.contains_key(&short), "it waits for a text of 30 tokens");
        while !engine.is_idle() {
            step(&mut engine, &mut texts);
        }
        for id in ids {
            assert_eq!(texts[&id], wanted[&id], "{id:?}, {prefix_cache}");
        }
    }
}

#[test]
fn a_scored_prompt_is_read_while_short_prompts_keep_arriving() {
    const SEQUENCES: usize = 4;
    let mut engine = engine_of(SEQUENCES, false);
    let mut scored = long(0, true);
    scored.max_tokens = 0;
    let id = engine.submit(scored).expect("a sequence");
    let mut texts = HashMap::new();
    for number in 0..200u32 {
        // Each ends after one step.
        for short in 0..SEQUENCES as u32 {
            let prompt = vec![(number * 5 + short) % 300, 7];
            engine.submit(SequenceRequest::new(prompt, 1)).expect("a sequence");
        }
        for event in engine.step().expect("a step") {
            match event {
                Event::Finished(ended, _) if ended == id => return,
                Event::Token(id, ChosenToken { token, .. }) => texts.entry(id).or_insert_with(Vec::new).push(token),
                Event::Prompt(..) | Event::Finished(..) => {}
                Event::Failed(_, error) => panic!("{error}"),
            }
        }
    }
    panic!("the prompt was not read in 200 steps");
}
