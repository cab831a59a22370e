//! Tests of training end to end on the CPU backend.

use crate::common::{config, flat_digits, head, linear_model};
use meganeura_core::Graph;
use meganeura_nn::data::{Dataset, digits_split};
use meganeura_nn::layers::{BatchNorm, Linear};
use meganeura_nn::models::{CnnConfig, MlpConfig, classifier, cnn_classifier, mlp_classifier};
use meganeura_nn::trainer::{OptimizerChoice, Schedule, SilentObserver, TrainConfig, Trainer};

/// Returns the bits of all parameters and states of the training session.
fn weights(trainer: &mut Trainer) -> Vec<u32> {
    let session = trainer.session_mut();
    let parameters: Vec<String> = session.plan().parameters().into_iter().map(|p| p.name).collect();
    let states: Vec<String> = session.plan().states().into_iter().map(|s| s.name).collect();
    let mut bits = Vec::new();
    for name in parameters {
        bits.extend(session.read_parameter(&name).into_iter().map(f32::to_bits));
    }
    for name in states {
        bits.extend(
            session
                .try_read_state(&name)
                .expect("a state")
                .into_iter()
                .map(f32::to_bits),
        );
    }
    bits
}

// ---- learning ------------------------------------------------------------------------------------------

#[test]
fn an_mlp_learns_the_digits() {
    let (train, test) = flat_digits();
    let config = TrainConfig { epochs: 8, ..config() };
    let mut trainer = Trainer::new(|batch| mlp_classifier(batch, 64, 10), config).expect("builds");
    let report = trainer.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
    let accuracy = report.evaluation.expect("evaluated").accuracy();
    assert!(accuracy > 0.95, "{accuracy}");
    assert_eq!(report.epochs.len(), 8);
    assert!(report.epochs[7].train_loss < 0.5 * report.epochs[0].train_loss);
    assert_eq!(report.evaluation, report.epochs[7].evaluation);
    assert!(!report.stopped && report.compile_seconds > 0.0 && report.epochs[0].steps_per_second() > 0.0);
    let line = report.epochs[7].to_string();
    assert!(
        line.starts_with("epoch 8: train loss 0.") && line.contains("of 360"),
        "{line}"
    );
}

#[test]
fn a_cnn_learns_the_digits() {
    let (train, test) = digits_split().expect("embedded");
    let config = TrainConfig { epochs: 5, ..config() };
    let small = CnnConfig::new([1, 8, 8], 10).channels([8, 16, 32]).hidden(32);
    let model = |batch| classifier(batch, &[1, 8, 8], |g, x| small.build(g, "").forward(g, x));
    let mut trainer = Trainer::new(model, config).expect("builds");
    let report = trainer.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
    let accuracy = report.evaluation.expect("evaluated").accuracy();
    assert!(accuracy > 0.95, "{accuracy}");
}

/// Trains a model with the default settings and ten seeds; each must reach `accuracy`.
fn check_defaults(model: impl Fn(usize) -> Graph, (train, test): (Dataset, Dataset), accuracy: f64) {
    for seed in 0..10 {
        let config = TrainConfig { seed, ..config() };
        let mut trainer = Trainer::new(&model, config).expect("builds");
        let report = trainer.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
        let evaluation = report.evaluation.expect("evaluated");
        println!("seed {seed}: {evaluation}, {:.1} s", report.seconds);
        assert!(evaluation.accuracy() >= accuracy, "seed {seed}: {evaluation}");
    }
}

#[test]
#[ignore = "ten whole runs take minutes without optimization"]
fn the_default_mlp_reaches_its_accuracy_for_every_seed() {
    check_defaults(|batch| mlp_classifier(batch, 64, 10), flat_digits(), 0.97);
}

#[test]
#[ignore = "ten whole runs take minutes without optimization"]
fn the_default_cnn_reaches_its_accuracy_for_every_seed() {
    let digits = digits_split().expect("embedded");
    check_defaults(|batch| cnn_classifier(batch, [1, 8, 8], 10), digits, 0.985);
}

#[test]
fn every_optimizer_lowers_the_loss() {
    let (train, _) = flat_digits();
    let train = head(&train, 256);
    let custom = Box::new(meganeura_core::Adam::new(123.0));
    let choices = [
        (OptimizerChoice::Sgd, 0.3),
        (OptimizerChoice::Momentum, 0.05),
        (OptimizerChoice::Nesterov, 0.05),
        (OptimizerChoice::Adam, 0.01),
        (OptimizerChoice::AdamW { weight_decay: 0.01 }, 0.01),
        (OptimizerChoice::Custom(custom), 0.01),
    ];
    for (optimizer, learning_rate) in choices {
        let config = TrainConfig {
            epochs: 4,
            optimizer: optimizer.clone(),
            learning_rate,
            ..config()
        };
        let mut trainer = Trainer::new(linear_model, config).expect("builds");
        let epochs = trainer.fit(&train, None, &mut SilentObserver).expect("trains").epochs;
        assert!(
            epochs[3].train_loss < 0.8 * epochs[0].train_loss,
            "{optimizer:?}: {epochs:?}"
        );
    }
}

#[test]
fn one_hot_labels_train_like_ids() {
    let (train, test) = flat_digits();
    let one_hot_model = |batch| {
        let mut g = Graph::new();
        let x = g.input("pixels", &[batch, 64]);
        let target = g.input("target", &[batch, 10]);
        let logits = Linear::new(&mut g, "fc1", 64, 10).forward(&mut g, x);
        let loss = g.cross_entropy_loss(logits, target);
        g.set_outputs(vec![loss, logits]);
        g
    };
    let ids_model = |batch| classifier(batch, &[64], |g, x| Linear::new(g, "fc1", 64, 10).forward(g, x));
    let base = TrainConfig { epochs: 1, ..config() };
    let named = TrainConfig {
        features: "pixels".into(),
        labels: "target".into(),
        ..base.clone()
    };
    let mut a = Trainer::new(one_hot_model, named).expect("builds");
    let mut b = Trainer::new(ids_model, base).expect("builds");
    let a = a.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
    let b = b.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
    assert!((a.epochs[0].train_loss - b.epochs[0].train_loss).abs() < 1e-4);
}

// ---- reproducibility -----------------------------------------------------------------------------------

#[test]
fn equal_seeds_give_equal_bits_and_other_seeds_do_not() {
    let (train, test) = digits_split().expect("embedded");
    let (train, test) = (head(&train, 300), head(&test, 100));
    let small = CnnConfig::new([1, 8, 8], 10).channels([4, 8, 8]).hidden(16);
    let model = |batch| classifier(batch, &[1, 8, 8], |g, x| small.build(g, "").forward(g, x));
    let run = |seed| {
        let config = TrainConfig {
            epochs: 2,
            seed,
            ..config()
        };
        let mut trainer = Trainer::new(model, config).expect("builds");
        let report = trainer.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
        let losses: Vec<f64> = report.epochs.iter().map(|e| e.train_loss).collect();
        (losses, report.evaluation, weights(&mut trainer))
    };
    let first = run(7);
    assert!(first == run(7), "equal seeds");
    assert!(first.2 != run(8).2, "other seeds");
}

#[test]
fn the_seed_decides_weights_and_order_and_masks() {
    let (train, _) = flat_digits();
    let train = head(&train, 64);
    let losses = |hidden: &[usize], dropout, shuffle, learning_rate| {
        let model = MlpConfig::new(64, 10).hidden(hidden).dropout(dropout);
        let config = TrainConfig {
            epochs: 2,
            shuffle,
            learning_rate,
            ..config()
        };
        let build = |batch| classifier(batch, &[64], |g, x| model.build(g, "").forward(g, x));
        let mut trainer = Trainer::new(build, config).expect("builds");
        let epochs = trainer.fit(&train, None, &mut SilentObserver).expect("trains").epochs;
        (epochs[0].train_loss, epochs[1].train_loss)
    };
    // At rate 0 and without dropout, epochs are identical; dropout masks make them differ.
    let (first, second) = losses(&[32], 0.0, false, 0.0);
    assert_eq!(first, second);
    let (first, second) = losses(&[32], 0.5, false, 0.0);
    assert_ne!(first, second);
    // The order of the examples matters once the weights move.
    assert_ne!(losses(&[], 0.0, true, 0.01), losses(&[], 0.0, false, 0.01));
}

// ---- losses and evaluation -----------------------------------------------------------------------------

#[test]
fn the_train_loss_is_the_mean_of_all_steps_however_often_it_is_read() {
    let (train, _) = flat_digits();
    let train = head(&train, 320);
    let run = |loss_every| {
        let config = TrainConfig {
            epochs: 1,
            learning_rate: 0.0,
            loss_every,
            ..config()
        };
        let mut trainer = Trainer::new(linear_model, config).expect("builds");
        let before = weights(&mut trainer);
        let report = trainer.fit(&train, Some(&train), &mut SilentObserver).expect("trains");
        let same = before
            .iter()
            .zip(weights(&mut trainer))
            .filter(|(a, b)| **a == *b)
            .count();
        assert!(same >= 650, "a rate of 0 changes no parameter");
        // The weights did not change, so the mean over the steps is the loss on the whole data set.
        let evaluated = report.evaluation.expect("evaluated").loss;
        assert!((report.epochs[0].train_loss - evaluated).abs() < 1e-5);
        report.epochs[0].train_loss
    };
    assert_eq!(run(1), run(0));
    assert_eq!(run(3), run(1000));
}

#[test]
fn evaluation_counts_every_example_once() {
    let (train, test) = flat_digits();
    let config = TrainConfig { epochs: 1, ..config() };
    let mut trainer = Trainer::new(linear_model, config).expect("builds");
    trainer.fit(&train, None, &mut SilentObserver).expect("trains");
    let singles: Vec<_> = (0..70)
        .map(|row| {
            trainer
                .evaluate(&test.subset(&[row]).expect("a row"))
                .expect("evaluates")
        })
        .collect();
    // Smaller than a batch, one batch, one more, two batches and a rest.
    for n in [1, 5, 31, 32, 33, 64, 70] {
        let all = trainer.evaluate(&head(&test, n)).expect("evaluates");
        assert_eq!(
            (all.examples, all.correct),
            (n, singles[..n].iter().map(|e| e.correct).sum())
        );
        let mean = singles[..n].iter().map(|e| e.loss).sum::<f64>() / n as f64;
        assert!((all.loss - mean).abs() < 1e-6, "{n}: {} and {mean}", all.loss);
    }
    assert_eq!(trainer.evaluate(&test).expect("evaluates").examples, 360);
}

#[test]
fn dropout_is_off_in_evaluation() {
    let (train, _) = flat_digits();
    let train = head(&train, 64);
    let model = |dropout| {
        let mlp = MlpConfig::new(64, 10).hidden([64]).dropout(dropout);
        let build = move |batch| classifier(batch, &[64], |g, x| mlp.build(g, "").forward(g, x));
        Trainer::new(build, config()).expect("builds")
    };
    let (mut with, mut without) = (model(0.9), model(0.0));
    let evaluation = with.evaluate(&train).expect("evaluates");
    assert_eq!(evaluation, with.evaluate(&train).expect("evaluates"));
    assert_eq!(evaluation, without.evaluate(&train).expect("evaluates"));
}

#[test]
fn batch_norm_uses_running_statistics_in_evaluation() {
    let (train, test) = flat_digits();
    let model = |batch| {
        classifier(batch, &[64], |g, x| {
            let y = BatchNorm::new(g, "bn", 64).forward(g, x);
            Linear::new(g, "fc", 64, 10).forward(g, y)
        })
    };
    let config = TrainConfig {
        epochs: 3,
        learning_rate: 0.0,
        ..config()
    };
    let mut trainer = Trainer::new(model, config).expect("builds");
    let fresh = trainer.evaluate(&test).expect("evaluates");
    let report = trainer.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
    let moved = report.evaluation.expect("evaluated");
    // The parameters did not change, but the running statistics did: now they are near those of the batches.
    assert_ne!(fresh.loss, moved.loss);
    assert!((moved.loss - report.epochs[2].train_loss).abs() < 0.2);
    let mean = trainer
        .session_mut()
        .try_read_state("bn.running_mean")
        .expect("a state");
    let pixel = |at: usize| train.features().iter().skip(at).step_by(64).sum::<f32>() / train.len() as f32;
    assert!((mean[20] - pixel(20)).abs() < 0.1, "{} and {}", mean[20], pixel(20));
    // A single example: with the statistics of its batch, it would be all zeros.
    let alone = trainer.evaluate(&head(&test, 1)).expect("evaluates");
    assert_eq!(alone.examples, 1);
    assert_eq!(
        moved,
        trainer.evaluate(&test).expect("evaluates"),
        "evaluation changes nothing"
    );
}

#[test]
fn no_epochs_only_evaluate() {
    let (train, test) = flat_digits();
    let config = TrainConfig { epochs: 0, ..config() };
    let mut trainer = Trainer::new(linear_model, config).expect("builds");
    let before = weights(&mut trainer);
    // Fewer examples than in a batch are allowed in this case.
    let report = trainer
        .fit(&head(&train, 3), Some(&test), &mut SilentObserver)
        .expect("evaluates");
    assert!(report.epochs.is_empty() && !report.stopped);
    assert_eq!(report.evaluation.expect("evaluated").examples, 360);
    assert_eq!(before, weights(&mut trainer));
}

#[test]
fn evaluation_comes_as_often_as_asked_and_after_the_last_epoch() {
    let (train, test) = flat_digits();
    let (train, test) = (head(&train, 64), head(&test, 10));
    for (evaluate_every, expected) in [(1, vec![1, 2, 3, 4, 5]), (2, vec![2, 4, 5]), (0, vec![5]), (9, vec![5])] {
        let config = TrainConfig {
            epochs: 5,
            evaluate_every,
            ..config()
        };
        let mut trainer = Trainer::new(linear_model, config).expect("builds");
        let report = trainer.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
        let evaluated: Vec<usize> = report
            .epochs
            .iter()
            .filter(|e| e.evaluation.is_some())
            .map(|e| e.epoch)
            .collect();
        assert_eq!(evaluated, expected);
        assert!(report.evaluation.is_some());
    }
}

#[test]
fn a_second_run_goes_on_from_the_first() {
    let (train, _) = flat_digits();
    let train = head(&train, 256);
    let config = TrainConfig {
        epochs: 3,
        schedule: Schedule::Constant,
        ..config()
    };
    let mut trainer = Trainer::new(linear_model, config).expect("builds");
    let first = trainer.fit(&train, None, &mut SilentObserver).expect("trains").epochs;
    let second = trainer.fit(&train, None, &mut SilentObserver).expect("trains").epochs;
    assert!(second[0].train_loss < first[2].train_loss);
    assert_eq!(second[0].epoch, 1);
}
