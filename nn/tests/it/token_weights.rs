//! Tests of language models whose loss counts only some tokens.

use meganeura_core::Graph;
use meganeura_nn::data::{Dataset, TokenSequence};
use meganeura_nn::models::{LlamaConfig, TARGETS, TOKENS, language_model, weighted_language_model};
use meganeura_nn::trainer::{OptimizerChoice, SilentObserver, TrainConfig, TrainError, Trainer};

const VOCAB: usize = 30;
const ROWS: usize = 8;
const EXAMPLES: usize = 6;

fn tokens(example: usize) -> Vec<u32> {
    (0..=ROWS)
        .map(|at| ((example * 7 + at * at * 3) % VOCAB) as u32)
        .collect()
}

/// Returns a data set whose loss counts the tokens for which `is_counted` returns true.
fn data(is_counted: impl Fn(usize, usize) -> bool) -> Dataset {
    let examples: Vec<(Vec<u32>, Vec<bool>)> = (0..EXAMPLES)
        .map(|example| (tokens(example), (0..=ROWS).map(|at| is_counted(example, at)).collect()))
        .collect();
    let sequences = examples
        .iter()
        .map(|(tokens, is_scored)| TokenSequence { tokens, is_scored });
    Dataset::from_sequences("tokens", sequences, ROWS, 0, VOCAB).expect("examples")
}

fn weighted(batch: usize) -> Graph {
    weighted_language_model(batch, ROWS, |g, tokens| {
        LlamaConfig::small(VOCAB).build(g, "").forward(g, tokens)
    })
}

fn plain(batch: usize) -> Graph {
    language_model(batch, ROWS, |g, tokens| {
        LlamaConfig::small(VOCAB).build(g, "").forward(g, tokens)
    })
}

fn trainer(model: fn(usize) -> Graph) -> Trainer {
    let config = TrainConfig {
        batch_size: EXAMPLES,
        epochs: 2,
        learning_rate: 0.1,
        optimizer: OptimizerChoice::Sgd,
        features: TOKENS.to_owned(),
        labels: TARGETS.to_owned(),
        ..TrainConfig::default()
    };
    Trainer::new(model, config).expect("builds")
}

#[test]
fn a_loss_of_all_tokens_is_the_usual_one() {
    let data = data(|_, _| true);
    let report = |model| {
        trainer(model)
            .fit(&data, Some(&data), &mut SilentObserver)
            .expect("trains")
    };
    let (weighted, plain) = (report(weighted), report(plain));
    for (a, b) in weighted.epochs.iter().zip(&plain.epochs) {
        assert!(
            (a.train_loss - b.train_loss).abs() < 1e-5,
            "{} and {}",
            a.train_loss,
            b.train_loss
        );
    }
    let [a, b] = [weighted, plain].map(|report| report.evaluation.expect("evaluated"));
    assert!((a.loss - b.loss).abs() < 1e-5, "{a} and {b}");
    assert_eq!((a.correct, a.examples), (b.correct, b.examples));
}

#[test]
fn the_loss_is_the_mean_over_the_counted_tokens() {
    // Each example has another number of counted tokens.
    let is_first = |example: usize, at: usize| at <= example + 1;
    let [all, first, last] = [
        data(|_, _| true),
        data(is_first),
        data(|example, at| !is_first(example, at)),
    ];
    let mut trainer = trainer(weighted);
    let [all, of_first, of_last] = [&all, &first, &last].map(|data| trainer.evaluate(data).expect("evaluates"));
    assert_eq!(all.examples, EXAMPLES * ROWS);
    assert_eq!(of_first.examples, (2..8).sum::<usize>() - EXAMPLES);
    assert_eq!(of_last.examples, all.examples - of_first.examples);
    let sum = |e: &meganeura_nn::trainer::Evaluation| e.loss * e.examples as f64;
    assert!((sum(&of_first) + sum(&of_last) - sum(&all)).abs() < 1e-4);
    // The first step of the training has the same loss.
    let report = trainer.fit(&first, None, &mut SilentObserver).expect("trains");
    assert!((report.epochs[0].train_loss - of_first.loss).abs() < 1e-5);
    assert!(report.epochs[1].train_loss < of_first.loss);
}

#[test]
fn a_model_without_weights_refuses_tokens_that_do_not_count() {
    let error = trainer(plain).fit(&data(|_, at| at > 3), None, &mut SilentObserver);
    match error.expect_err("no weights") {
        TrainError::Model { message, remedy } => {
            assert!(message.contains("'tokens' has tokens that do not count"), "{message}");
            assert!(remedy.contains("weighted_language_model"), "{remedy}");
        }
        other => panic!("{other}"),
    }
}
