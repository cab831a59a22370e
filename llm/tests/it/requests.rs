//! Tests of options of engine requests: scores of prompts, biases, minimum lengths, late constraints, adapters.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use meganeura_core::Result;
use meganeura_llm::engine::{ChosenToken, Constraint, Event, Finish, SequenceId, SequenceRequest};
use meganeura_llm::{
    Adapters, CacheType, Checkpoint, Engine, EngineOptions, Generator, GeneratorOptions, ModelConfig, Request,
    WeightStorage,
};
use safetensors::Dtype;

use crate::transformers::{device, expected, folder, ids, logits, write_tensors};

fn engine(options: EngineOptions) -> Engine {
    let config = ModelConfig::open(&folder("llama")).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder("llama")).expect("weights");
    Engine::on(device(), config, &checkpoint, options).expect("an engine")
}

fn prompt() -> Vec<u32> {
    ids(&expected("llama")["prompt_ids"])
}

/// Returns all events of some requests.
fn events(engine: &mut Engine, requests: Vec<SequenceRequest>) -> (Vec<SequenceId>, Vec<Event>) {
    let ids = requests
        .into_iter()
        .map(|r| engine.submit(r).expect("a request"))
        .collect();
    let mut all = Vec::new();
    while !engine.is_idle() {
        all.extend(engine.step().expect("a step"));
    }
    (ids, all)
}

fn tokens(events: &[Event], of: SequenceId) -> Vec<u32> {
    let token = |event: &Event| match event {
        Event::Token(id, chosen) if *id == of => Some(chosen.token),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn generate(engine: &mut Engine, request: SequenceRequest) -> Vec<u32> {
    let (ids, events) = events(engine, vec![request]);
    tokens(&events, ids[0])
}

fn scores(engine: &mut Engine, request: SequenceRequest) -> Vec<ChosenToken> {
    let (_, events) = events(engine, vec![request]);
    let found = events.into_iter().find_map(|event| match event {
        Event::Prompt(_, _, scored) => Some(scored),
        _ => None,
    });
    found.expect("the prompt is reported")
}

#[test]
fn prompts_are_scored_by_the_logits_of_transformers() {
    let prompt = prompt();
    let all = logits("llama");
    let vocab = all.len() / prompt.len();
    for (step_tokens, sequences, max_tokens) in [(64, 8, 0), (7, 3, 2), (64, 1, 1)] {
        let mut engine = engine(EngineOptions {
            step_tokens: Some(step_tokens),
            sequences,
            ..EngineOptions::default()
        });
        // The second time, nothing may come from the cache.
        for _ in 0..2 {
            let request = SequenceRequest {
                prompt_logprobs: Some(2),
                ..SequenceRequest::new(prompt.clone(), max_tokens)
            };
            let scored = scores(&mut engine, request);
            assert_eq!(scored.len(), prompt.len() - 1);
            for (position, chosen) in scored.iter().enumerate() {
                let row: Vec<f64> = all[position * vocab..][..vocab].iter().map(|&x| f64::from(x)).collect();
                let total = row.iter().map(|x| x.exp()).sum::<f64>().ln();
                let token = prompt[position + 1];
                let (found, best) = chosen.logprobs.as_ref().expect("log-probabilities");
                assert_eq!((chosen.token, best.len()), (token, 2));
                assert!((f64::from(*found) - (row[token as usize] - total)).abs() < 1e-3);
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max) - total;
                assert!((f64::from(best[0].1) - largest).abs() < 1e-3);
            }
        }
    }
}

#[test]
fn several_scored_prompts_share_steps() {
    let mut engine = engine(EngineOptions {
        sequences: 3,
        ..EngineOptions::default()
    });
    let score = |prompt: &[u32]| SequenceRequest {
        prompt_logprobs: Some(0),
        ..SequenceRequest::new(prompt.to_vec(), 1)
    };
    let prompt = prompt();
    let alone = scores(&mut engine, score(&prompt));
    let requests = vec![
        score(&prompt),
        SequenceRequest::new(prompt[..5].to_vec(), 9),
        score(&prompt),
        SequenceRequest::new(prompt[..9].to_vec(), 9),
        score(&prompt[..4]),
    ];
    let (ids, events) = events(&mut engine, requests);
    for (number, len) in [(0, prompt.len()), (2, prompt.len()), (4, 4)] {
        let scored = events.iter().find_map(|event| match event {
            Event::Prompt(id, _, scored) if *id == ids[number] => Some(scored),
            _ => None,
        });
        let scored = scored.expect("scores");
        assert_eq!(scored.len(), len - 1);
        for (found, wanted) in scored.iter().zip(&alone) {
            let [found, wanted] = [found, wanted].map(|c| c.logprobs.as_ref().expect("one").0);
            assert!((found - wanted).abs() < 1e-4);
        }
    }
}

#[test]
fn the_prompt_reports_cached_tokens() {
    let mut engine = engine(EngineOptions::default());
    let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 320).collect();
    let mut cached = || {
        let (_, events) = events(&mut engine, vec![SequenceRequest::new(prompt.clone(), 1)]);
        match &events[0] {
            Event::Prompt(_, cached, scored) if scored.is_empty() => *cached,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((cached(), cached()), (0, 32));
}

#[test]
fn only_tokens_that_are_still_cached_when_a_sequence_begins_are_reported() {
    let mut engine = engine(EngineOptions {
        sequences: 2,
        context: Some(128),
        cache_tokens: Some(128),
        ..EngineOptions::default()
    });
    let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 320).collect();
    events(&mut engine, vec![SequenceRequest::new(prompt.clone(), 1)]);
    // This sequence leaves no room for another one, and takes the blocks of the prompt when it has all its tokens.
    let large = SequenceRequest {
        min_tokens: 44,
        ..SequenceRequest::new((0..75).map(|i| i * 11 % 320).collect(), 44)
    };
    let longer = [prompt, vec![3; 30]].concat();
    let before = engine.counts().cached_tokens;
    let (ids, events) = events(&mut engine, vec![large, SequenceRequest::new(longer, 1)]);
    let reported = events.iter().find_map(|event| match event {
        Event::Prompt(id, cached, _) if *id == ids[1] => Some(*cached as u64),
        _ => None,
    });
    assert_eq!(reported, Some(engine.counts().cached_tokens - before));
    assert_eq!(reported, Some(0));
}

#[test]
fn biases_and_minimum_lengths_change_the_choice() {
    let mut engine = engine(EngineOptions::default());
    let prompt = prompt();
    let plain = generate(&mut engine, SequenceRequest::new(prompt.clone(), 6));
    let biased = SequenceRequest {
        logit_bias: vec![(7, 100.0)],
        ..SequenceRequest::new(prompt.clone(), 3)
    };
    assert_eq!(generate(&mut engine, biased), [7, 7, 7]);
    let banned = SequenceRequest {
        logit_bias: vec![(plain[0], -100.0)],
        ..SequenceRequest::new(prompt.clone(), 1)
    };
    assert_ne!(generate(&mut engine, banned)[0], plain[0]);
    let outside = SequenceRequest {
        logit_bias: vec![(320, 1.0)],
        ..SequenceRequest::new(prompt.clone(), 1)
    };
    assert!(
        engine
            .submit(outside)
            .expect_err("no token")
            .to_string()
            .contains("320")
    );

    // The first token ends texts.
    let ending = |min_tokens| SequenceRequest {
        stop: vec![plain[0]],
        min_tokens,
        ..SequenceRequest::new(prompt.clone(), 6)
    };
    assert_eq!(generate(&mut engine, ending(0)), [0u32; 0]);
    let longer = generate(&mut engine, ending(2));
    assert!(longer.len() >= 2 && !longer[..2].contains(&plain[0]), "{longer:?}");
}

/// A constraint that allows one token, and is ready only after some polls.
struct LateMask {
    polls: Arc<AtomicUsize>,
    token: u32,
    left: usize,
    /// True after the first answer of `is_complete`.
    is_complete: bool,
}

impl Constraint for LateMask {
    fn is_ready(&mut self) -> bool {
        self.polls.fetch_add(1, Ordering::Relaxed) % 4 == 3
    }

    fn mask(&mut self, logits: &mut [f32]) -> Result<bool> {
        for (token, logit) in (0u32..).zip(logits) {
            if token != self.token {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(self.left > 0)
    }

    fn accept(&mut self, _: u32) -> Result<bool> {
        self.left -= 1;
        Ok(false)
    }

    fn is_complete(&mut self) -> Option<bool> {
        let is_ready = self.is_complete || self.is_ready();
        self.is_complete = is_ready;
        is_ready.then_some(self.left == 0)
    }
}

/// After the last requested token, only the reason why the text ends is late.
#[test]
fn late_ends_hold_up_nobody_else() {
    let mut engine = engine(EngineOptions::default());
    let prompt = prompt();
    let alone = generate(&mut engine, SequenceRequest::new(prompt.clone(), 12));
    for (left, expected) in [(2, Finish::Stop), (3, Finish::Length)] {
        let polls = Arc::new(AtomicUsize::new(0));
        let late = SequenceRequest {
            constraint: Some(Box::new(LateMask {
                polls: polls.clone(),
                token: 9,
                left,
                is_complete: false,
            })),
            ..SequenceRequest::new(prompt.clone(), 2)
        };
        let (ids, events) = events(&mut engine, vec![late, SequenceRequest::new(prompt.clone(), 12)]);
        assert_eq!(tokens(&events, ids[0]), [9, 9]);
        assert_eq!(tokens(&events, ids[1]), alone);
        let at = |is_searched: &dyn Fn(&Event) -> bool| events.iter().position(is_searched).expect("an event");
        let end = at(&|event| matches!(event, Event::Finished(id, finish) if *id == ids[0] && *finish == expected));
        let last = events
            .iter()
            .rposition(|event| matches!(event, Event::Token(id, _) if *id == ids[0]));
        let between = &events[last.expect("a token")..end];
        assert!(
            between
                .iter()
                .any(|event| matches!(event, Event::Token(id, _) if *id == ids[1])),
            "the other sequence goes on"
        );
    }
}

#[test]
fn late_constraints_hold_up_nobody_else() {
    let mut engine = engine(EngineOptions::default());
    let prompt = prompt();
    let alone = generate(&mut engine, SequenceRequest::new(prompt.clone(), 12));
    let polls = Arc::new(AtomicUsize::new(0));
    let late = SequenceRequest {
        constraint: Some(Box::new(LateMask {
            polls: polls.clone(),
            token: 9,
            left: 2,
            is_complete: false,
        })),
        ..SequenceRequest::new(prompt.clone(), 10)
    };
    let (ids, events) = events(&mut engine, vec![late, SequenceRequest::new(prompt, 12)]);
    assert_eq!(tokens(&events, ids[0]), [9, 9]);
    assert_eq!(tokens(&events, ids[1]), alone);
    let end = events.iter().find_map(|event| match event {
        Event::Finished(id, finish) if *id == ids[0] => Some(*finish),
        _ => None,
    });
    assert_eq!(end, Some(Finish::Stop));
    assert!(polls.load(Ordering::Relaxed) > 8);
}

fn adapters() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/finetuning/lora")
}

/// Returns the tokens of a model with separate adapters and weights of a storage type.
fn with_adapters(weights: Option<WeightStorage>, named: bool, prompt: &[u32]) -> Vec<u32> {
    let mut options = EngineOptions {
        weights,
        ..EngineOptions::default()
    };
    if named {
        options.named_adapters = vec![adapters(), adapters()];
    } else {
        options.adapters = Some(adapters());
    }
    let request = SequenceRequest {
        adapter: named.then_some(1),
        ..SequenceRequest::new(prompt.to_vec(), 12)
    };
    generate(&mut engine(options), request)
}

fn merged(weights: WeightStorage, prompt: &[u32]) -> Vec<u32> {
    let config = ModelConfig::open(&folder("llama")).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder("llama")).expect("weights");
    let options = GeneratorOptions {
        adapters: Some(adapters()),
        weights: Some(weights),
        ..GeneratorOptions::default()
    };
    let mut generator = Generator::on(device(), config, checkpoint, &options).expect("a generator");
    let request = Request {
        max_tokens: 12,
        ..Request::default()
    };
    let tokens = generator.generate(prompt, &request).expect("it begins");
    tokens.map(|token| token.expect("a token")).collect()
}

#[test]
fn adapters_beside_weights_compute_what_merged_ones_do() {
    let prompt = prompt();
    let mut plain = engine(EngineOptions::default());
    let without = generate(&mut plain, SequenceRequest::new(prompt.clone(), 12));
    let wanted = merged(WeightStorage::F32, &prompt);
    assert_ne!(without, wanted, "the adapters change nothing");
    assert_eq!(with_adapters(None, true, &prompt), wanted);
    // Weights of 16 bits hold the numbers of the fixture closely enough.
    assert_eq!(with_adapters(Some(WeightStorage::F16), false, &prompt), wanted);
    for &weights in WeightStorage::ALL.iter().filter(|weights| weights.format().is_some()) {
        let by_generator = merged(weights, &prompt);
        assert_eq!(with_adapters(Some(weights), false, &prompt), by_generator);
        assert_eq!(with_adapters(Some(weights), true, &prompt), by_generator);
    }
}

#[test]
fn sequences_with_different_adapters_share_steps_but_no_cache() {
    let prompt: Vec<u32> = prompt().into_iter().cycle().take(40).collect();
    let mut engine = engine(EngineOptions {
        named_adapters: vec![adapters()],
        ..EngineOptions::default()
    });
    let request = |adapter| SequenceRequest {
        adapter,
        ..SequenceRequest::new(prompt.clone(), 10)
    };
    let alone = [None, Some(0)].map(|adapter| generate(&mut engine, request(adapter)));
    assert_ne!(alone[0], alone[1]);
    let requests = [None, Some(0), None, Some(0)].map(request).into();
    let (ids, events) = events(&mut engine, requests);
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(tokens(&events, *id), alone[number % 2], "sequence {number}");
    }
    let error = engine.submit(request(Some(1))).expect_err("no such adapter");
    assert!(error.to_string().contains("adapter"), "{error}");
}

/// Copies the adapters with other numbers.
fn adapters_of(number: f32) -> tempfile::TempDir {
    let target = tempfile::tempdir().expect("a folder");
    let file = "adapter_model.safetensors";
    write_tensors(
        &adapters().join(file),
        &target.path().join(file),
        Dtype::F32,
        |_, _, values| {
            values.fill(number);
        },
    );
    let config = "adapter_config.json";
    std::fs::copy(adapters().join(config), target.path().join(config)).expect("copied");
    target
}

#[test]
fn an_adapter_that_overflows_does_not_change_other_sequences() {
    let (prompt, huge) = (prompt(), adapters_of(3e38));
    let mut alone = engine(EngineOptions {
        named_adapters: vec![adapters()],
        ..EngineOptions::default()
    });
    let mut beside = engine(EngineOptions {
        named_adapters: vec![adapters(), huge.path().to_owned()],
        ..EngineOptions::default()
    });
    for adapter in [None, Some(0)] {
        let request = || SequenceRequest {
            adapter,
            ..SequenceRequest::new(prompt.clone(), 10)
        };
        let wanted = generate(&mut alone, request());
        assert_eq!(generate(&mut beside, request()), wanted, "adapter {adapter:?}");
    }
    for number in [f32::NAN, f32::INFINITY] {
        let folder = adapters_of(number);
        let error = Adapters::open(folder.path()).expect_err("not finite");
        assert!(error.to_string().contains(&format!("contains {number}")), "{error}");
    }
}

#[test]
fn groups_share_the_slots() {
    let mut engine = engine(EngineOptions {
        sequences: 2,
        ..EngineOptions::default()
    });
    let of_group = |group, count: usize| {
        let request = move || SequenceRequest {
            group,
            ..SequenceRequest::new(vec![1, 2, 3], 4)
        };
        std::iter::repeat_with(request).take(count)
    };
    // Two large groups come first; then a small one and a sequence without a group.
    let large = of_group(Some(1), 20).chain(of_group(Some(2), 20));
    let all = large.chain(of_group(Some(3), 1)).chain(of_group(None, 1)).collect();
    let (ids, events) = events(&mut engine, all);
    let ended = events.iter().filter_map(|event| match event {
        Event::Finished(id, _) => Some(*id),
        _ => None,
    });
    let ended: Vec<SequenceId> = ended.collect();
    assert_eq!(ended.len(), 42);
    for id in &ids[40..] {
        let place = ended.iter().position(|other| other == id).expect("it has ended");
        assert!(place < 6, "{place}");
    }
}

/// Draft tokens and the prefix cache do not change texts, for every storage type of weights.
#[test]
fn drafts_and_prefix_caches_change_no_text_of_packed_weights() {
    let prompt: Vec<u32> = prompt().into_iter().cycle().take(40).collect();
    for &weights in &WeightStorage::ALL {
        let texts = |draft_model: bool, draft_tokens, prefix_cache| {
            let mut engine = engine(EngineOptions {
                weights: Some(weights),
                cache_type: CacheType::F16,
                draft_tokens,
                prefix_cache,
                named_adapters: vec![adapters()],
                ..EngineOptions::default()
            });
            if draft_model {
                let config = ModelConfig::open(&folder("llama")).expect("a configuration");
                let checkpoint = Checkpoint::open(&folder("llama")).expect("weights");
                let drafting = engine.with_draft_model(device(), config, &checkpoint);
                engine = drafting.expect("an engine with a draft model");
            }
            let mut texts = Vec::new();
            // The second time, prompts are in the prefix cache.
            for _ in 0..2 {
                let requests = [None, Some(0), None, Some(0)].map(|adapter| SequenceRequest {
                    adapter,
                    ..SequenceRequest::new(prompt.clone(), 10)
                });
                let (ids, events) = events(&mut engine, requests.into());
                texts.extend(ids.iter().map(|id| tokens(&events, *id)));
            }
            let counts = engine.counts();
            assert_eq!(counts.cached_tokens > 0, prefix_cache, "{counts:?}");
            assert!(!draft_model || counts.accepted_tokens > 0, "{counts:?}");
            texts
        };
        let wanted = texts(false, 0, false);
        assert_ne!(wanted[0], wanted[1], "the adapters change nothing");
        for (draft_model, draft_tokens) in [(false, 0), (false, 3), (true, 3)] {
            let found = texts(draft_model, draft_tokens, true);
            assert_eq!(
                found, wanted,
                "{weights:?}, draft model {draft_model}, {draft_tokens} draft tokens"
            );
        }
    }
}
