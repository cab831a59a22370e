//! Tests that sequences give the same results in a batch as separately.

use std::collections::HashMap;

use meganeura_core::random::SplitMix64;
use meganeura_llm::engine::{ChosenToken, Constraint, EngineCounts, Event, Finish, SequenceId, SequenceRequest};
use meganeura_llm::{CacheType, Checkpoint, Engine, EngineOptions, Generator, ModelConfig, Request, Sampling};

use crate::transformers::{MODELS, device, expected, folder, generator, generator_with_half_cache, ids};

pub(crate) fn engine(model: &str, options: EngineOptions) -> Engine {
    let config = ModelConfig::open(&folder(model)).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder(model)).expect("weights");
    Engine::on(device(), config, &checkpoint, options).expect("an engine")
}

pub(crate) fn request(prompt: &[u32], max_tokens: usize) -> SequenceRequest {
    SequenceRequest::new(prompt.to_vec(), max_tokens)
}

/// Result of a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    finish: Option<Finish>,
    error: Option<String>,
}

/// Runs steps until no sequence is left.
pub(crate) fn finish(engine: &mut Engine) -> HashMap<SequenceId, Outcome> {
    let mut outcomes: HashMap<SequenceId, Outcome> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().expect("a step") {
            match event {
                Event::Prompt(..) => {}
                Event::Token(id, ChosenToken { token, .. }) => outcomes.entry(id).or_default().tokens.push(token),
                Event::Finished(id, finish) => outcomes.entry(id).or_default().finish = Some(finish),
                Event::Failed(id, error) => outcomes.entry(id).or_default().error = Some(error.to_string()),
            }
        }
    }
    outcomes
}

/// Returns prompts of several lengths, some with equal beginnings.
fn prompts(model: &str) -> Vec<Vec<u32>> {
    let whole = ids(&expected(model)["prompt_ids"]);
    let mut rng = SplitMix64::new(5);
    let mut all: Vec<Vec<u32>> = vec![whole.clone(), whole[..1].to_vec(), [&whole[..], &whole[..]].concat()];
    for len in [7, 16, 17, 40, 60] {
        let shared = whole.len().min(len / 2);
        let rest = (shared..len).map(|_| rng.below(320) as u32);
        all.push(whole[..shared].iter().copied().chain(rest).collect());
    }
    all
}

fn sampling(number: usize) -> Sampling {
    match number % 3 {
        0 => Sampling::default(),
        1 => Sampling {
            temperature: 0.7,
            top_p: Some(0.9),
            // The device does not draw tokens with penalties.
            presence_penalty: 0.1,
            seed: number as u64,
            ..Sampling::default()
        },
        _ => Sampling {
            temperature: 1.0,
            top_k: Some(20),
            repetition_penalty: 1.2,
            seed: 100 + number as u64,
            ..Sampling::default()
        },
    }
}

const COUNT: usize = 30;

/// Returns the result of each prompt in a separate run.
fn alone(model: &str) -> Vec<Vec<u32>> {
    alone_on(generator(model, 8), model)
}

fn alone_on(mut generator: Generator, model: &str) -> Vec<Vec<u32>> {
    let one = |(number, prompt): (usize, &Vec<u32>)| {
        let request = Request {
            max_tokens: COUNT,
            sampling: sampling(number),
            stop: Some(Vec::new()),
        };
        let generation = generator.generate(prompt, &request).expect("it begins");
        generation.map(|token| token.expect("a token")).collect()
    };
    prompts(model).iter().enumerate().map(one).collect()
}

/// Returns the results of all prompts in one batch, twice each, with these options.
fn together(model: &str, options: EngineOptions) -> (Vec<Vec<u32>>, EngineCounts) {
    together_on(engine(model, options), model)
}

fn together_on(mut engine: Engine, model: &str) -> (Vec<Vec<u32>>, EngineCounts) {
    let mut all = Vec::new();
    let mut submitted = Vec::new();
    for _ in 0..2 {
        for (number, prompt) in prompts(model).iter().enumerate() {
            let mut request = request(prompt, COUNT);
            request.sampling = sampling(number);
            submitted.push(engine.submit(request).expect("a sequence"));
        }
        let mut outcomes = finish(&mut engine);
        for id in submitted.drain(..) {
            let outcome = outcomes.remove(&id).expect("an outcome");
            assert_eq!((outcome.finish, outcome.error), (Some(Finish::Length), None));
            all.push(outcome.tokens);
        }
        assert!(outcomes.is_empty());
    }
    let counts = engine.counts();
    assert_eq!((counts.running, counts.waiting, counts.blocks_used), (0, 0, 0));
    (all, counts)
}

#[test]
fn factors_of_positions_go_with_the_context_of_the_engine() {
    let model = "phi3_longrope_short";
    let expected = expected(model);
    let options = EngineOptions {
        sequences: 1,
        context: Some(96),
        ..EngineOptions::default()
    };
    let mut engine = engine(model, options);
    let id = engine
        .submit(request(&ids(&expected["prompt_ids"]), 64))
        .expect("a sequence");
    let found = finish(&mut engine).remove(&id).expect("an outcome");
    assert_eq!(found.tokens, ids(&expected["continuation"]));
}

#[test]
fn greedy_continuations_are_those_of_transformers() {
    for model in MODELS {
        let expected = expected(model);
        let prompt = ids(&expected["prompt_ids"]);
        for step_tokens in [1, 5, 64] {
            let options = EngineOptions {
                sequences: 1,
                step_tokens: Some(step_tokens),
                ..EngineOptions::default()
            };
            let mut engine = engine(model, options);
            let id = engine.submit(request(&prompt, 64)).expect("a sequence");
            let found = finish(&mut engine).remove(&id).expect("an outcome");
            assert_eq!(found.tokens, ids(&expected["continuation"]), "{model} by {step_tokens}");
            assert_eq!(found.finish, Some(Finish::Length));
        }
    }
}

#[test]
fn sequences_together_are_as_alone() {
    for model in ["llama", "mistral", "qwen3", "qwen2_moe", "mixtral"] {
        let wanted = [alone(model), alone(model)].concat();
        for (sequences, step_tokens, prefix_cache) in [(1, 1, true), (3, 5, true), (8, 24, false), (8, 64, true)] {
            let options = EngineOptions {
                sequences,
                step_tokens: Some(step_tokens),
                prefix_cache,
                ..EngineOptions::default()
            };
            let (found, counts) = together(model, options);
            assert_eq!(found, wanted, "{model}: {sequences} by {step_tokens}");
            assert_eq!(counts.generated_tokens, (found.len() * COUNT) as u64);
            assert_eq!(counts.cached_tokens > 0, prefix_cache, "{counts:?}");
        }
    }
}

#[test]
fn caches_of_f16_give_together_what_they_give_alone() {
    for model in ["llama", "gemma3"] {
        let wanted = alone_on(generator_with_half_cache(model, 8), model);
        for step_tokens in [5, 64] {
            let options = EngineOptions {
                step_tokens: Some(step_tokens),
                sequences: 5,
                cache_type: CacheType::F16,
                ..EngineOptions::default()
            };
            let (found, counts) = together(model, options);
            assert_eq!(found, [&wanted[..], &wanted[..]].concat(), "{model} by {step_tokens}");
            assert!(counts.cached_tokens > 0, "{counts:?}");
        }
    }
}

#[test]
fn sequences_that_give_their_blocks_back_lose_nothing() {
    let wanted = [alone("llama"), alone("llama")].concat();
    let options = EngineOptions {
        sequences: 8,
        context: Some(96),
        // The maximum for one sequence.
        cache_tokens: Some(96),
        step_tokens: Some(16),
        ..EngineOptions::default()
    };
    let (found, counts) = together("llama", options);
    assert_eq!(found, wanted);
    assert!(counts.preemptions > 0, "{counts:?}");
}

#[test]
fn draft_tokens_change_nothing_but_the_number_of_steps() {
    for model in ["llama", "qwen3"] {
        let wanted = [alone(model), alone(model)].concat();
        let options = |draft_tokens| EngineOptions {
            sequences: 4,
            draft_tokens,
            ..EngineOptions::default()
        };
        let (plain, without) = together(model, options(0));
        assert_eq!(plain, wanted);
        for draft_tokens in [1, 4] {
            let (found, counts) = together(model, options(draft_tokens));
            assert_eq!(found, wanted, "{model} with {draft_tokens}");
            assert!(counts.drafted_tokens >= counts.accepted_tokens, "{counts:?}");
            assert_eq!(counts.generated_tokens, without.generated_tokens);
        }
    }
    // A repetitive text: this model ends in a loop.
    let prompt = ids(&expected("qwen3")["prompt_ids"]);
    let mut engine = engine(
        "qwen3",
        EngineOptions {
            draft_tokens: 4,
            ..EngineOptions::default()
        },
    );
    engine.submit(request(&prompt, 64)).expect("a sequence");
    finish(&mut engine);
    let counts = engine.counts();
    assert!(counts.accepted_tokens > 0 && counts.steps < 60, "{counts:?}");
}

fn with_draft_model(engine: Engine, model: &str) -> Engine {
    let config = ModelConfig::open(&folder(model)).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder(model)).expect("weights");
    (engine.with_draft_model(device(), config, &checkpoint)).expect("an engine with a draft model")
}

#[test]
fn draft_models_change_nothing_but_the_number_of_steps() {
    let wanted = [alone("llama"), alone("llama")].concat();
    for device_sampling in [false, true] {
        for (draft_model, step_tokens, cache_tokens) in [
            ("llama", 64, None),
            ("llama", 9, None),
            ("mistral", 64, None),
            ("qwen3", 12, Some(96)),
        ] {
            let options = EngineOptions {
                device_sampling: Some(device_sampling),
                sequences: 4,
                step_tokens: Some(step_tokens),
                context: Some(96),
                cache_tokens,
                draft_tokens: 3,
                ..EngineOptions::default()
            };
            let engine = with_draft_model(engine("llama", options), draft_model);
            let (found, counts) = together_on(engine, "llama");
            assert_eq!(found, wanted, "{draft_model} drafts, steps of {step_tokens}");
            assert!(counts.drafted_tokens > 0, "{counts:?}");
            assert!(cache_tokens.is_none() || counts.preemptions > 0, "{counts:?}");
        }
    }
}

#[test]
fn a_draft_model_that_is_the_model_guesses_all_tokens() {
    let prompt = ids(&expected("llama")["prompt_ids"]);
    for device_sampling in [false, true] {
        for temperature in [0.0, 0.9] {
            let options = |draft_tokens| EngineOptions {
                device_sampling: Some(device_sampling),
                sequences: 2,
                draft_tokens,
                ..EngineOptions::default()
            };
            let mut engines = [
                engine("llama", options(0)),
                with_draft_model(engine("llama", options(4)), "llama"),
            ];
            let [plain, drafted] = engines.each_mut().map(|engine| {
                let mut request = request(&prompt, 51);
                request.sampling = Sampling {
                    temperature,
                    seed: 3,
                    ..Sampling::default()
                };
                let id = engine.submit(request).expect("a sequence");
                finish(engine).remove(&id).expect("an outcome").tokens
            });
            assert_eq!(plain, drafted);
            let counts = engines[1].counts();
            // One or two steps read the prompt; each further step gives five tokens.
            assert_eq!(counts.drafted_tokens, counts.accepted_tokens, "{counts:?}");
            assert!(counts.steps <= 12, "{counts:?}");
            // The draft model also finds cached prefixes.
            let again = [&prompt[..], &drafted[..]].concat();
            engines[1].submit(request(&again, 20)).expect("a sequence");
            finish(&mut engines[1]);
            let counts = engines[1].counts();
            assert!(counts.cached_tokens >= 32, "{counts:?}");
            assert_eq!(counts.drafted_tokens, counts.accepted_tokens, "{counts:?}");
        }
    }
}

#[test]
fn draft_models_that_do_not_fit_are_refused() {
    let config = ModelConfig::open(&folder("llama")).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder("llama")).expect("weights");
    let refused = |options: EngineOptions, config: ModelConfig| {
        let refused = engine("llama", options).with_draft_model(device(), config, &checkpoint);
        refused.expect_err("a draft model that does not fit").to_string()
    };
    let options = |draft_tokens| EngineOptions {
        draft_tokens,
        ..EngineOptions::default()
    };
    let mut other = config.clone();
    other.network.vocab += 1;
    for (options, config, said) in [
        (options(0), config.clone(), "at least 1 draft token"),
        (
            options(2),
            other,
            "the draft model has a vocabulary of 321 tokens, expected 320",
        ),
        (
            options(2),
            ModelConfig { context: 64, ..config },
            "has 64 positions, but sequences have up to 128",
        ),
    ] {
        let error = refused(options, config);
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn tokens_that_the_device_draws_are_those_of_the_host_where_nothing_is_random() {
    // Two thirds of these sequences have penalties, so the host chooses their tokens.
    let wanted = [alone("llama"), alone("llama")].concat();
    for draft_tokens in [0, 3] {
        let options = EngineOptions {
            device_sampling: Some(true),
            sequences: 5,
            step_tokens: Some(32),
            draft_tokens,
            ..EngineOptions::default()
        };
        assert_eq!(together("llama", options).0, wanted, "{draft_tokens} draft tokens");
    }
}

#[test]
fn tokens_that_the_device_draws_depend_on_the_seed_alone() {
    let model = "qwen3";
    let drawn = |sequences, draft_tokens, cache_tokens| {
        let options = EngineOptions {
            device_sampling: Some(true),
            sequences,
            step_tokens: Some(32),
            context: Some(96),
            draft_tokens,
            cache_tokens,
            ..EngineOptions::default()
        };
        let mut engine = engine(model, options);
        let prompts = prompts(model);
        let submitted = prompts.iter().zip(0..).map(|(prompt, seed)| {
            let mut request = request(prompt, COUNT);
            request.sampling = Sampling {
                temperature: 0.3,
                seed,
                ..Sampling::default()
            };
            engine.submit(request).expect("a sequence")
        });
        let submitted: Vec<SequenceId> = submitted.collect();
        let mut outcomes = finish(&mut engine);
        let tokens = |id: &SequenceId| outcomes.remove(id).expect("an outcome").tokens;
        (submitted.iter().map(tokens).collect::<Vec<_>>(), engine.counts())
    };
    let (wanted, _) = drawn(1, 0, None);
    assert!(wanted.iter().all(|tokens| tokens.len() == COUNT));
    assert_eq!(drawn(8, 0, None).0, wanted);
    let (found, counts) = drawn(4, 4, None);
    assert!(found == wanted && counts.drafted_tokens > 0, "{counts:?}");
    let (found, counts) = drawn(8, 0, Some(96));
    assert!(found == wanted && counts.preemptions > 0, "{counts:?}");
}

#[test]
fn sequences_end_where_they_are_told_to() {
    let expected = expected("llama");
    let (prompt, text) = (ids(&expected["prompt_ids"]), ids(&expected["continuation"]));
    let mut engine = engine("llama", EngineOptions::default());
    let stop = text[7];
    let first = text.iter().position(|&token| token == stop).expect("it is there");
    let mut stopped = request(&prompt, 64);
    stopped.stop = vec![stop];
    let ids = [stopped, request(&prompt, 5)].map(|request| engine.submit(request).expect("a sequence"));
    // A sequence that is cancelled.
    let cancelled = engine.submit(request(&prompt, 64)).expect("a sequence");
    engine.step().expect("a step");
    engine.cancel(cancelled);
    let outcomes = finish(&mut engine);
    assert!(!outcomes.contains_key(&cancelled));
    assert!(outcomes[&ids[0]].tokens.len() <= first && outcomes[&ids[0]].finish == Some(Finish::Stop));
    assert_eq!(outcomes[&ids[1]].finish, Some(Finish::Length));
    assert_eq!(engine.counts().blocks_used, 0);
}

#[test]
fn probabilities_are_those_of_the_logits() {
    let prompt = ids(&expected("llama")["prompt_ids"]);
    let logits = generator("llama", 8).prompt_logits(&prompt).expect("logits");
    let last = &logits[logits.len() - 320..];
    let sum: f64 = last.iter().map(|&x| f64::from(x).exp()).sum();
    let mut engine = engine("llama", EngineOptions::default());
    let mut asked = request(&prompt, 1);
    asked.top_logprobs = Some(3);
    engine.submit(asked).expect("a sequence");
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step().expect("a step"));
    }
    let Some(Event::Token(_, ChosenToken { token, logprobs })) = events.get(1) else {
        panic!("{events:?}");
    };
    let (own, top) = logprobs.as_ref().expect("they were asked for");
    let wanted = |token: u32| f64::from(last[token as usize]) - sum.ln();
    assert!((f64::from(*own) - wanted(*token)).abs() < 1e-4);
    assert_eq!((top.len(), top[0].0), (3, *token));
    for &(token, found) in top {
        assert!((f64::from(found) - wanted(token)).abs() < 1e-4);
    }
    assert!(top.is_sorted_by(|a, b| a.1 >= b.1));
}

/// Constraint that allows only even tokens, and ends after three.
struct EvenTokens(usize);

impl Constraint for EvenTokens {
    fn mask(&mut self, logits: &mut [f32]) -> meganeura_core::Result<bool> {
        logits
            .iter_mut()
            .skip(1)
            .step_by(2)
            .for_each(|x| *x = f32::NEG_INFINITY);
        Ok(true)
    }

    fn accept(&mut self, token: u32) -> meganeura_core::Result<bool> {
        assert!(token.is_multiple_of(2));
        self.0 += 1;
        Ok(self.0 == 3)
    }
}

#[test]
fn constraints_decide_what_may_come_next() {
    let prompt = ids(&expected("llama")["prompt_ids"]);
    let mut engine = engine("llama", EngineOptions::default());
    let mut constrained = request(&prompt, 64);
    constrained.constraint = Some(Box::new(EvenTokens(0)));
    let id = engine.submit(constrained).expect("a sequence");
    let outcome = finish(&mut engine).remove(&id).expect("an outcome");
    assert_eq!((outcome.tokens.len(), outcome.finish), (3, Some(Finish::Stop)));
    assert!(outcome.tokens.iter().all(|token| token.is_multiple_of(2)));
}

#[test]
fn requests_and_options_that_make_no_sense_are_errors() {
    let mut engine = engine("llama", EngineOptions::default());
    for (request, said) in [
        (request(&[], 1), "no tokens"),
        (request(&[320], 1), "320"),
        (request(&[1], 0), "max_tokens"),
        (request(&[1; 100], 29), "128"),
        (
            SequenceRequest {
                sampling: Sampling {
                    temperature: -1.0,
                    ..Sampling::default()
                },
                ..request(&[1], 1)
            },
            "temperature",
        ),
    ] {
        let error = engine.submit(request).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
    assert!(engine.is_idle() && engine.step().expect("nothing").is_empty());
    let config = ModelConfig::open(&folder("llama")).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder("llama")).expect("weights");
    let usual = EngineOptions::default;
    for (options, said) in [
        (
            EngineOptions {
                sequences: 0,
                ..usual()
            },
            "at least 1 sequence",
        ),
        (
            EngineOptions {
                context: Some(129),
                ..usual()
            },
            "129",
        ),
        (
            EngineOptions {
                step_tokens: Some(7),
                ..usual()
            },
            "found 7",
        ),
    ] {
        let outcome = Engine::on(device(), config.clone(), &checkpoint, options);
        let error = outcome.expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
}
