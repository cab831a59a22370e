//! Tests of runs on several ranks, as threads of one process, against the same runs on one rank.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{flat_digits, head};
use crate::ranks::{BATCH, Losses, Task, config, mlp};
use meganeura_core::Error;
use meganeura_core::distributed::{CollectiveFailure, Communicator, ThreadGroup};
use meganeura_nn::data::Dataset;
use meganeura_nn::models::{MlpConfig, regressor};
use meganeura_nn::trainer::{
    Checkpoints, EarlyStopping, Evaluation, Observer, OptimizerChoice, SilentObserver, StepInfo, TrainConfig,
    TrainError, Trainer,
};

pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Runs a function on every rank of a group; without a communicator if there is one rank.
pub(crate) fn on_ranks<T: Send>(
    size: usize,
    limit: Duration,
    f: impl Fn(Option<Arc<dyn Communicator>>) -> T + Sync,
) -> Vec<T> {
    if size == 1 {
        return vec![f(None)];
    }
    let group = ThreadGroup::new(size, limit);
    thread::scope(|scope| {
        let threads: Vec<_> = group.into_iter().map(|rank| scope.spawn(|| f(Some(rank)))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

/// Compares the losses of 50 steps, the evaluation after them, and the parameters, on one to four ranks, with optimizer
/// states on all ranks and sharded.
fn assert_equal_runs(what: &str) {
    const STEPS: usize = 50;
    let task = Task::named(what).expect("there is such a task");
    let run = |ranks, zero1| {
        let mut config = task.config(ranks);
        config.zero1 = zero1;
        let mut trainer = Trainer::new(task.model, config).expect("builds");
        let mut observer = Losses::of_steps(STEPS);
        let report = trainer
            .fit(&task.train, Some(&task.test), &mut observer)
            .expect("trains");
        assert!(report.stopped);
        let names: Vec<String> = trainer
            .session()
            .plan()
            .parameters()
            .into_iter()
            .map(|v| v.name)
            .collect();
        let session = trainer.session_mut();
        let parameters: Vec<Vec<f32>> = names.iter().map(|name| session.read_parameter(name)).collect();
        (observer.losses, report.evaluation.expect("evaluated"), parameters)
    };
    let single = on_ranks(1, LIMIT, |ranks| run(ranks, false)).remove(0);
    let largest = single.0.iter().copied().fold(0.0, f32::max);
    assert!(
        single.0[STEPS - 1] < 0.98 * single.0[0],
        "{what} learns: {:?}",
        single.0
    );
    for (size, zero1) in [(2, false), (3, false), (4, false), (2, true), (3, true), (4, true)] {
        let ranks = on_ranks(size, LIMIT, |ranks| run(ranks, zero1));
        let what = format!("{what}{}", if zero1 { " with zero1" } else { "" });
        let (losses, evaluation, parameters) = &ranks[0];
        assert_eq!(losses.len(), STEPS);
        let pairs = losses.iter().zip(&single.0);
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest;
        println!("{what}, {size} ranks: losses differ by {worst:e} of the largest");
        assert!(worst <= 1e-6, "{what}, {size} ranks: {worst:e}");
        assert!(
            close(evaluation, &single.1),
            "{what}, {size} ranks: {evaluation} and {}",
            single.1
        );
        for (rank, other) in ranks.iter().enumerate() {
            assert_eq!((&other.0, &other.1), (losses, evaluation), "rank {rank} of {size}");
            assert!(&other.2 == parameters, "parameters of rank {rank} of {size} differ");
        }
    }
}

pub(crate) fn close(a: &Evaluation, b: &Evaluation) -> bool {
    a.examples == b.examples && (a.loss - b.loss).abs() <= 1e-5 * b.loss && a.correct.abs_diff(b.correct) <= 1
}

#[test]
fn a_perceptron_learns_the_same_on_any_number_of_ranks() {
    assert_equal_runs("mlp");
}

#[test]
fn a_convolutional_network_learns_the_same_on_any_number_of_ranks() {
    assert_equal_runs("cnn");
}

#[test]
fn a_language_model_learns_the_same_on_any_number_of_ranks() {
    assert_equal_runs("llama");
}

#[test]
fn a_regression_learns_the_same_on_any_number_of_ranks() {
    let features: Vec<f32> = (0..3 * 100).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let targets = features.chunks_exact(3).flat_map(|x| [2.0 * x[0] - x[1], x[2]]);
    let data = Dataset::regression("sums", features.clone(), vec![3], targets.collect(), 2).expect("valid");
    let model = |batch| {
        let network = MlpConfig::new(3, 2).hidden([8]).dropout(0.0);
        regressor(batch, &[3], |g, x| network.build(g, "").forward(g, x))
    };
    let run = |ranks| {
        let config = TrainConfig {
            learning_rate: 0.02,
            ..config(ranks)
        };
        let mut trainer = Trainer::new(model, config).expect("builds");
        let mut observer = Losses::of_steps(30);
        let report = trainer.fit(&data, Some(&data), &mut observer).expect("trains");
        (observer.losses, report.evaluation.expect("evaluated"))
    };
    let (losses, evaluation) = on_ranks(1, LIMIT, run).remove(0);
    let sum = |losses: &[f32]| losses.iter().sum::<f32>();
    assert!(sum(&losses[20..]) < 0.5 * sum(&losses[..10]), "{losses:?}");
    for size in [2, 3] {
        for (rank, found) in on_ranks(size, LIMIT, run).iter().enumerate() {
            for (a, b) in found.0.iter().zip(&losses) {
                assert!((a - b).abs() <= 1e-5 * b, "rank {rank} of {size}: {a} and {b}");
            }
            assert!(close(&found.1, &evaluation), "rank {rank} of {size}: {}", found.1);
        }
    }
}

/// All ranks stop after the same evaluation and keep the same weights, because they see the same evaluations.
#[test]
fn ranks_stop_early_together_with_the_best_weights() {
    let (train, test) = flat_digits();
    let (train, test) = (head(&train, 301), head(&test, 50));
    let run = |ranks| {
        let config = TrainConfig {
            early_stopping: Some(EarlyStopping {
                patience: 2,
                // No later epoch improves by this much.
                min_delta: 10.0,
                ..EarlyStopping::default()
            }),
            ..config(ranks)
        };
        let mut trainer = Trainer::new(|batch| mlp(batch, 10), config).expect("builds");
        let report = trainer.fit(&train, Some(&test), &mut SilentObserver).expect("trains");
        let after = trainer.evaluate(&test).expect("evaluates");
        (report, after, trainer.session_mut().read_parameter("fc1.weight"))
    };
    let single = on_ranks(1, LIMIT, run).remove(0);
    for size in [1, 2, 3] {
        let ranks = on_ranks(size, LIMIT, run);
        for (rank, (report, after, weights)) in ranks.iter().enumerate() {
            let best = report.best.expect("evaluated");
            assert!(report.early_stopped, "rank {rank} of {size}");
            assert_eq!((report.epochs.len(), best.epoch), (3, 1), "rank {rank} of {size}");
            assert_eq!(report.evaluation, Some(best.evaluation), "rank {rank} of {size}");
            assert_eq!(*after, best.evaluation, "rank {rank} of {size}");
            assert!(close(after, &single.1), "rank {rank} of {size}: {after}");
            assert!(*weights == ranks[0].2, "weights of rank {rank} of {size} differ");
        }
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let (train, _) = flat_digits();
    let train = head(&train, 90);
    let folder = tempfile::tempdir().expect("a folder");
    let run = |ranks: Option<Arc<dyn Communicator>>, checkpoint: bool, stop_after| {
        let mut config = config(ranks);
        // Saved within an update, whose gradients so far are those of all ranks.
        config.accumulate = 3;
        config.checkpoints = checkpoint.then(|| Checkpoints {
            folder: folder.path().to_owned(),
            every: 1000,
            resume: true,
            allow_changes: Vec::new(),
        });
        let mut trainer = Trainer::new(|batch| mlp(batch, 10), config).expect("builds");
        let mut observer = Losses::of_steps(stop_after);
        trainer.fit(&train, None, &mut observer).expect("trains");
        observer.losses
    };
    let whole = run(None, false, 30);
    let mut parts = Vec::new();
    for (ranks, steps) in [(2, 11), (1, 5), (4, 7), (3, 7)] {
        parts.extend(on_ranks(ranks, LIMIT, |c| run(c, true, steps)).remove(0));
    }
    assert_eq!(parts.len(), 30);
    for (part, whole) in parts.iter().zip(&whole) {
        assert!(
            (part - whole).abs() <= 2e-6 * whole.abs().max(1.0),
            "{parts:?}\n{whole:?}"
        );
    }
}

/// Returns the failure of a collective, with the rank that observed it.
fn failure(error: &TrainError) -> (usize, &CollectiveFailure) {
    match error {
        TrainError::Core(Error::Collective(error)) => (error.rank, &error.failure),
        other => panic!("{other}"),
    }
}

#[test]
fn ranks_that_train_something_else_are_errors_everywhere() {
    let (train, _) = flat_digits();
    let train = head(&train, 60);
    let wide = |batch| mlp(batch, 11);
    let normal = |batch| mlp(batch, 10);
    type Change = fn(&mut TrainConfig);
    let same: Change = |_| ();
    // Change of rank 1, and a word of the error.
    let cases: [(&str, bool, Change); 6] = [
        ("list of parameters", true, same),
        ("optimizer", false, |c| c.optimizer = OptimizerChoice::Sgd),
        ("optimizer", false, |c| c.clip = None),
        ("seed", false, |c| c.seed = 7),
        ("epochs", false, |c| c.epochs = 7),
        ("plan", false, |c| c.batch_size *= 2),
    ];
    for (word, is_wide, change) in cases {
        let errors = on_ranks(2, LIMIT, |ranks| {
            let mut config = config(ranks);
            let is_other = config.rank() == 1;
            if is_other {
                change(&mut config);
            }
            let trainer = if is_other && is_wide {
                Trainer::new(wide, config)
            } else {
                Trainer::new(normal, config)
            };
            trainer
                .and_then(|mut trainer| trainer.fit(&train, None, &mut SilentObserver))
                .expect_err(word)
        });
        for (rank, error) in errors.iter().enumerate() {
            let (own, failure) = failure(error);
            assert_eq!(own, rank);
            assert!(
                matches!(failure, CollectiveFailure::Mismatch { peer, what } if *peer == 1 - rank && what.contains(word)),
                "{word}: {error}"
            );
        }
    }
}

#[test]
fn a_rank_that_ends_ends_the_others_with_its_name() {
    let (train, _) = flat_digits();
    let train = head(&train, 60);
    let start = Instant::now();
    let errors = on_ranks(3, LIMIT, |ranks| {
        let mut config = config(ranks);
        config.accumulate = 1;
        if config.rank() == 2 {
            // Takes part at the start, and panics in a step, like a killed process.
            struct EndingObserver;
            impl Observer for EndingObserver {
                fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
                    std::panic::resume_unwind(Box::new(step.step))
                }
            }
            let mut trainer = Trainer::new(|batch| mlp(batch, 10), config).expect("builds");
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _ = trainer.fit(&train, None, &mut EndingObserver);
            }));
            assert!(panic.is_err());
            return None;
        }
        let mut trainer = Trainer::new(|batch| mlp(batch, 10), config).expect("builds");
        Some(
            trainer
                .fit(&train, None, &mut SilentObserver)
                .expect_err("a rank is gone"),
        )
    });
    for error in errors.iter().flatten() {
        assert!(
            matches!(failure(error).1, CollectiveFailure::PeerLost { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("all-gather of whether the run ends"), "{text}");
    }
    assert!(start.elapsed() < LIMIT / 2);
}

#[test]
fn a_step_that_fails_on_one_rank_fails_on_all() {
    let (train, _) = flat_digits();
    let train = head(&train, 60);
    let errors = on_ranks(2, LIMIT, |ranks| {
        let config = config(ranks);
        let is_other = config.rank() == 1;
        let mut trainer = Trainer::new(|batch| mlp(batch, 10), config).expect("builds");
        let _ = &train;
        let session = trainer.session_mut();
        session.set_input("x", &[0.5; BATCH / 2 * 64]);
        // An invalid label is a fault of the step.
        let label = if is_other { 10 } else { 3 };
        session.set_input_u32("labels", &[label; BATCH / 2]);
        let mut step = || session.try_step();
        // The second step applies the update.
        step().and_then(|()| step()).expect_err("a label is out of range")
    });
    assert!(matches!(&errors[1], Error::IndexOutOfRange { .. }), "{}", errors[1]);
    match &errors[0] {
        Error::Collective(error) => {
            assert!(
                matches!(error.failure, CollectiveFailure::PeerLost { peer: 1, .. }),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_batch_that_cannot_be_divided_is_an_error_with_sizes_that_can() {
    let errors = on_ranks(3, LIMIT, |ranks| {
        let mut config = config(ranks);
        config.batch_size = 32;
        Trainer::new(|batch| mlp(batch, 10), config).expect_err("32 is not divisible by 3")
    });
    for error in errors {
        assert!(error.to_string().contains("use 30 or 33"), "{error}");
    }
}
