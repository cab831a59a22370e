//! Tests of events during a run: evaluation between steps, early stopping, several observers, the log, augmentation,
//! prefetching.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{config, flat_digits, head, linear_model};
use meganeura_nn::data::{Augmentation, DataError, Remainder, digits_split};
use meganeura_nn::models::{CnnConfig, classifier};
use meganeura_nn::trainer::{
    EarlyStopping, EpochBegin, EpochReport, EvaluationInfo, JsonLinesLog, Metric, Observer, Schedule, SilentObserver,
    StatisticsInfo, StepInfo, TrainBegin, TrainConfig, TrainError, TrainReport, Trainer, Warmup,
};
use serde_json::Value;

/// Records every event, and ends the run at the event whose note is `stop`.
#[derive(Default)]
struct Recorder {
    notes: Vec<String>,
    evaluations: Vec<EvaluationInfo>,
    rates: Vec<f32>,
    stop: &'static str,
}

impl Recorder {
    fn note(&mut self, note: String) -> ControlFlow<()> {
        let stop = note == self.stop;
        self.notes.push(note);
        if stop {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Observer for Recorder {
    fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
        let TrainBegin {
            epochs,
            steps,
            batch_size,
            examples,
            test_examples,
            ..
        } = *run;
        self.note(format!(
            "train {epochs}x{steps}x{batch_size} of {examples}, {test_examples:?}"
        ))
    }

    fn on_epoch_begin(&mut self, begin: &EpochBegin) -> ControlFlow<()> {
        self.note(format!("begin {}", begin.epoch))
    }

    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        assert!(step.seconds > 0.0 && step.examples_per_second > 0.0 && step.examples == 32);
        self.rates.push(step.learning_rate);
        self.note(format!("step {}", step.total_step))
    }

    fn on_statistics(&mut self, info: &StatisticsInfo) -> ControlFlow<()> {
        let names: Vec<String> = info.tensors.iter().map(|t| format!("{} {}", t.kind, t.name)).collect();
        assert!(info.tensors.iter().all(|t| t.statistics.not_finite() == 0));
        self.note(format!("statistics {} of {}", info.total_step, names.join(", ")))
    }

    fn on_evaluation(&mut self, info: &EvaluationInfo) -> ControlFlow<()> {
        assert!(info.seconds >= info.evaluation_seconds && info.evaluation_seconds > 0.0);
        self.evaluations.push(*info);
        self.note(format!("evaluation {} {}", info.epoch, info.total_step))
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        assert!(report.examples_per_second() > 0.0 && report.seconds >= report.train_seconds);
        self.note(format!("end {}", report.epoch))
    }

    fn on_train_end(&mut self, report: &TrainReport) {
        let _ = self.note(format!("done {}", report.total_steps));
    }
}

/// Trains on 96 examples, with three steps per epoch, and tests on 40.
fn run(config: TrainConfig, observer: &mut dyn Observer) -> (Trainer, Result<TrainReport, TrainError>) {
    let (train, test) = flat_digits();
    let mut trainer = Trainer::new(linear_model, config).expect("builds");
    let report = trainer.fit(&head(&train, 96), Some(&head(&test, 40)), observer);
    (trainer, report)
}

fn weights(trainer: &mut Trainer) -> Vec<u32> {
    let values = trainer.session_mut().read_parameter("fc1.weight");
    values.into_iter().map(f32::to_bits).collect()
}

// ---- evaluation between steps, events -------------------------------------------------------------------

#[test]
fn evaluations_come_between_steps_and_not_twice_at_the_end_of_an_epoch() {
    let config = TrainConfig {
        epochs: 2,
        evaluate_every_steps: 2,
        evaluate_every: 2,
        ..config()
    };
    let mut seen = Recorder::default();
    let (_, report) = run(config, &mut seen);
    let report = report.expect("trains");
    let expected = [
        "train 2x3x32 of 96, Some(40)",
        "begin 1",
        "step 1",
        "step 2",
        "evaluation 1 2",
        "step 3",
        "end 1",
        "begin 2",
        "step 4",
        "evaluation 2 4",
        "step 5",
        "step 6",
        "evaluation 2 6",
        "end 2",
        "done 6",
    ];
    assert_eq!(seen.notes, expected);
    assert_eq!(report.epochs[0].evaluation, None);
    assert!(
        report.epochs[0].evaluation_seconds > 0.0,
        "that of the one between steps"
    );
    assert_eq!(report.evaluation, Some(seen.evaluations[2].evaluation));
    let best = report.best.expect("evaluated");
    let lowest = seen
        .evaluations
        .iter()
        .map(|e| e.evaluation.loss)
        .fold(f64::MAX, f64::min);
    assert_eq!(best.evaluation.loss, lowest);
    assert!(!report.stopped && !report.early_stopped);
}

#[test]
fn observers_end_the_run_at_every_event_and_learn_of_the_end() {
    for (stop, steps, evaluations) in [
        ("train 2x3x32 of 96, Some(40)", 0, 1),
        ("evaluation 1 2", 2, 1),
        ("step 2", 2, 1),
        ("evaluation 1 3", 3, 2),
        ("end 1", 3, 2),
    ] {
        let config = TrainConfig {
            epochs: 2,
            evaluate_every_steps: 2,
            prefetch: 1,
            ..config()
        };
        let mut seen = Recorder {
            stop,
            ..Recorder::default()
        };
        let report = run(config, &mut seen).1.expect("ends well");
        assert!(report.stopped, "{stop}");
        assert_eq!(
            (report.total_steps, seen.evaluations.len()),
            (steps, evaluations),
            "{stop}"
        );
        assert_eq!(
            report.evaluation,
            seen.evaluations.last().map(|e| e.evaluation),
            "{stop}"
        );
        assert_eq!(seen.notes.last(), Some(&format!("done {steps}")));
    }
}

#[test]
fn several_observers_see_everything_and_each_may_end_the_run() {
    let config = TrainConfig { epochs: 2, ..config() };
    let (mut first, mut second) = (Recorder::default(), Recorder::default());
    second.stop = "step 2";
    let mut third = Recorder::default();
    let mut several = (
        &mut first,
        vec![&mut second],
        Some(&mut third),
        Box::new(SilentObserver) as Box<dyn Observer>,
    );
    let report = run(config, &mut several).1.expect("trains");
    assert!(report.stopped && report.total_steps == 2);
    assert!(first.notes == second.notes && first.notes == third.notes);
    assert_eq!(first.notes.len(), 6, "{:?}", first.notes);
}

#[test]
fn statistics_are_told_when_they_are_due_and_change_no_bit() {
    let with = |statistics_every| {
        let mut recorder = Recorder::default();
        let config = TrainConfig {
            epochs: 2,
            statistics_every,
            ..config()
        };
        let (mut trainer, report) = run(config, &mut recorder);
        report.expect("trains");
        let told = |n: &&String| n.starts_with("statistics");
        let notes: Vec<String> = recorder.notes.iter().filter(told).cloned().collect();
        (weights(&mut trainer), notes)
    };
    let (plain, none) = with(0);
    assert!(none.is_empty(), "{none:?}");
    let (watched, notes) = with(4);
    assert!(plain == watched);
    let [note] = &notes[..] else {
        panic!("after step 4 of 6: {notes:?}")
    };
    assert!(note.starts_with("statistics 4 of parameter "), "{note}");
    let count = |kind: &str| note.matches(kind).count();
    assert_eq!((count("parameter "), count("gradient ")), (2, 2), "{note}");
}

#[test]
fn the_learning_rate_warms_up() {
    let config = TrainConfig {
        epochs: 2,
        learning_rate: 1e-3,
        schedule: Schedule::Constant,
        warmup: Warmup::Steps(4),
        ..config()
    };
    let mut seen = Recorder::default();
    run(config, &mut seen).1.expect("trains");
    let expected = [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3];
    assert!(
        seen.rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9),
        "{:?}",
        seen.rates
    );
}

// ---- early stopping ------------------------------------------------------------------------------------

/// Returns settings with a learning rate at which training diverges.
fn hopeless(restore_best: bool) -> TrainConfig {
    TrainConfig {
        epochs: 50,
        learning_rate: 1.0,
        schedule: Schedule::Step {
            every_epochs: 1,
            factor: 3.0,
        },
        early_stopping: Some(EarlyStopping {
            patience: 3,
            restore_best,
            ..EarlyStopping::default()
        }),
        ..config()
    }
}

#[test]
fn early_stopping_ends_the_run_and_restores_the_best_weights() {
    let mut seen = Recorder::default();
    let (mut trainer, report) = run(hopeless(true), &mut seen);
    let report = report.expect("ends well");
    assert!(report.early_stopped && !report.stopped && report.epochs.len() < 50);
    let best = report.best.expect("evaluated");
    assert_eq!(best.epoch + 3, report.epochs.len());
    assert_eq!(report.epochs[best.epoch - 1].evaluation, Some(best.evaluation));
    assert_eq!(report.evaluation, Some(best.evaluation));
    let (_, test) = flat_digits();
    assert_eq!(trainer.evaluate(&head(&test, 40)).expect("evaluates"), best.evaluation);
    let marked: Vec<bool> = seen.evaluations.iter().map(|e| e.best).collect();
    assert_eq!(marked.iter().rposition(|&b| b), Some(best.epoch - 1));
    assert_eq!(seen.notes.last(), Some(&format!("done {}", report.total_steps)));

    let (_, report) = run(hopeless(false), &mut SilentObserver);
    let report = report.expect("ends well");
    assert_eq!(report.best, Some(best));
    assert_eq!(report.evaluation, report.epochs.last().and_then(|e| e.evaluation));
    assert_ne!(report.evaluation, Some(best.evaluation));
}

#[test]
fn early_stopping_counts_evaluations_between_steps_and_restores_states() {
    let (train, test) = digits_split().expect("embedded");
    let small = CnnConfig::new([1, 8, 8], 10).channels([4, 4, 4]).hidden(8);
    let model = |batch| classifier(batch, &[1, 8, 8], |g, x| small.build(g, "").forward(g, x));
    let config = TrainConfig {
        evaluate_every_steps: 1,
        evaluate_every: 0,
        ..hopeless(true)
    };
    let mut trainer = Trainer::new(model, config).expect("builds");
    let test = head(&test, 40);
    let report = trainer
        .fit(&head(&train, 320), Some(&test), &mut SilentObserver)
        .expect("ends well");
    let best = report.best.expect("evaluated");
    assert!(report.early_stopped);
    assert_eq!(report.total_steps, best.total_step + 3);
    // The running statistics of the batch norms also belong to the best weights.
    assert_eq!(trainer.evaluate(&test).expect("evaluates"), best.evaluation);
}

#[test]
fn the_best_weights_come_back_also_when_the_run_is_complete_or_ended_by_others() {
    for (epochs, stop) in [(4, ""), (50, "end 4"), (50, "step 11")] {
        let mut stopping = hopeless(true);
        stopping.epochs = epochs;
        stopping.early_stopping = stopping.early_stopping.map(|s| EarlyStopping { patience: 100, ..s });
        let mut seen = Recorder {
            stop,
            ..Recorder::default()
        };
        let (mut trainer, report) = run(stopping, &mut seen);
        let report = report.expect("trains");
        assert!(!report.early_stopped && report.stopped != stop.is_empty());
        let (_, test) = flat_digits();
        let now = trainer.evaluate(&head(&test, 40)).expect("evaluates");
        assert_eq!(
            (report.evaluation, report.best.map(|b| b.evaluation)),
            (Some(now), Some(now))
        );
    }
}

#[test]
fn a_run_that_gets_better_is_not_stopped() {
    let config = TrainConfig {
        epochs: 6,
        early_stopping: Some(EarlyStopping {
            patience: 1,
            metric: Metric::Loss,
            ..EarlyStopping::default()
        }),
        ..config()
    };
    let report = run(config, &mut SilentObserver).1.expect("trains");
    assert!(!report.early_stopped && report.epochs.len() == 6);
    assert_eq!(report.best.map(|b| b.epoch), Some(6));
}

#[test]
fn early_stopping_without_test_data_is_refused() {
    let (train, _) = flat_digits();
    let mut trainer = Trainer::new(linear_model, hopeless(true)).expect("builds");
    let error = trainer
        .fit(&train, None, &mut SilentObserver)
        .expect_err("no test data");
    assert!(
        matches!(
            error,
            TrainError::Config {
                field: "early_stopping",
                ..
            }
        ),
        "{error}"
    );
}

// ---- the log -------------------------------------------------------------------------------------------

fn parsed(lines: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(lines).expect("UTF-8");
    assert!(text.ends_with('\n'));
    text.lines().map(|l| serde_json::from_str(l).expect(l)).collect()
}

#[test]
fn the_log_holds_every_event_with_its_fields() {
    let config = TrainConfig {
        epochs: 2,
        loss_every: 2,
        evaluate_every_steps: 1,
        ..config()
    };
    let mut lines = Vec::new();
    let mut log = JsonLinesLog::new(&mut lines);
    let report = run(config, &mut log).1.expect("trains");
    log.finish().expect("a vector takes everything");
    let events = parsed(&lines);
    let names: Vec<&str> = events.iter().filter_map(|e| e["event"].as_str()).collect();
    let epoch = ["evaluation", "step", "evaluation", "evaluation", "epoch"];
    let expected: Vec<&str> = ["train_begin"]
        .into_iter()
        .chain(epoch)
        .chain(epoch)
        .chain(["train_end"])
        .collect();
    assert_eq!(names, expected);
    for event in &events[1..events.len() - 1] {
        for key in ["epoch", "step", "loss", "lr", "seconds"] {
            assert!(event[key].is_number(), "{key} in {event}");
        }
    }
    let of = |name: &str| {
        events
            .iter()
            .filter(|e| e["event"] == name)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (&events[0]["epochs"], &events[0]["steps_per_epoch"]),
        (&2.into(), &3.into())
    );
    assert_eq!(
        (&events[0]["test_examples"], &events[0]["seed"]),
        (&40.into(), &0.into())
    );
    assert_eq!(
        of("step").iter().map(|e| e["step"].as_u64()).collect::<Vec<_>>(),
        [Some(2), Some(5)]
    );
    assert!(of("step").iter().all(|e| e["examples_per_second"].as_f64() > Some(0.0)));
    for (line, epoch) in of("epoch").iter().zip(&report.epochs) {
        assert_eq!(line["loss"].as_f64(), Some(epoch.train_loss));
        assert_eq!(
            (&line["step"], &line["epoch"]),
            (&epoch.total_steps.into(), &epoch.epoch.into())
        );
    }
    let best = of("evaluation")
        .iter()
        .rposition(|e| e["best"] == true)
        .map(|at| at as u64 + 1);
    let last = &events[events.len() - 1];
    assert_eq!(last["best_step"].as_u64(), best);
    assert_eq!(last["accuracy"].as_f64(), report.evaluation.map(|e| e.accuracy()));
    assert_eq!((&last["stopped"], &last["step"]), (&false.into(), &6.into()));
}

#[test]
fn a_log_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = JsonLinesLog::create(folder.path().join("no/such/folder.jsonl")).expect_err("no folder");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);

    /// A writer that accepts only some bytes.
    struct LimitedWriter(usize);
    impl Write for LimitedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut log = JsonLinesLog::new(LimitedWriter(400));
    let report = run(TrainConfig { epochs: 50, ..config() }, &mut log)
        .1
        .expect("ends well");
    assert!(report.stopped && report.total_steps < 10);
    assert_eq!(log.finish().expect_err("full").kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_log_file_is_complete_after_every_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    /// An observer that reads the file while the log is open.
    struct Reader<'p>(&'p std::path::Path, Vec<usize>);
    impl Observer for Reader<'_> {
        fn on_step(&mut self, _: &StepInfo) -> ControlFlow<()> {
            self.1.push(parsed(&std::fs::read(self.0).expect("readable")).len());
            ControlFlow::Continue(())
        }
    }
    let log = JsonLinesLog::create(&path).expect("writable");
    let mut observers = (log, Reader(&path, Vec::new()));
    let config = TrainConfig {
        epochs: 2,
        loss_every: 1,
        ..config()
    };
    run(config, &mut observers).1.expect("trains");
    // After the first line and the step's line; an evaluation and the end of the epoch come in between.
    assert_eq!(observers.1.1, [2, 3, 4, 7, 8, 9]);
    observers.0.finish().expect("written");
    assert_eq!(parsed(&std::fs::read(&path).expect("readable")).len(), 12);
}

// ---- augmentation and prefetching -----------------------------------------------------------------------

#[test]
fn prefetching_changes_no_bit() {
    let run = |prefetch, remainder, augmentation: Augmentation| {
        let config = TrainConfig {
            epochs: 3,
            prefetch,
            remainder,
            augmentation,
            evaluate_every_steps: 2,
            ..config()
        };
        let (train, test) = flat_digits();
        let mut trainer = Trainer::new(linear_model, config).expect("builds");
        let mut losses = Vec::new();
        // A second run continues with other orders of the examples.
        for _ in 0..2 {
            let report = trainer
                .fit(&head(&train, 170), Some(&head(&test, 40)), &mut SilentObserver)
                .expect("trains");
            losses.extend(report.epochs.iter().map(|e| e.train_loss.to_bits()));
        }
        (losses, weights(&mut trainer))
    };
    for remainder in [Remainder::Drop, Remainder::Wrap] {
        let noise = Augmentation::new().noise(0.1).brightness(0.1);
        let without = run(0, remainder, noise.clone());
        for prefetch in [1, 3, 64] {
            assert!(run(prefetch, remainder, noise.clone()) == without, "{prefetch}");
        }
        assert!(run(2, remainder, Augmentation::new()) != without);
    }
}

#[test]
fn augmentation_is_for_training_only_and_checked() {
    let (train, _) = flat_digits();
    let train = head(&train, 64);
    let run = |augmentation: Augmentation, prefetch| {
        let config = TrainConfig {
            epochs: 1,
            learning_rate: 0.0,
            augmentation,
            prefetch,
            ..config()
        };
        let mut trainer = Trainer::new(linear_model, config).expect("builds");
        trainer.fit(&train, Some(&train), &mut SilentObserver)
    };
    let plain = run(Augmentation::new(), 0).expect("trains");
    let noisy = run(Augmentation::new().noise(1.0), 0).expect("trains");
    assert_eq!(plain.evaluation, noisy.evaluation);
    assert_ne!(plain.epochs[0].train_loss, noisy.epochs[0].train_loss);
    for prefetch in [0, 2] {
        let error = run(Augmentation::new().flip(0.5), prefetch).expect_err("vectors");
        assert!(matches!(error, TrainError::Data(DataError::Augment { .. })), "{error}");
    }
}

#[test]
fn failing_and_panicking_runs_end_the_thread() {
    let config = TrainConfig {
        epochs: 10_000,
        learning_rate: f32::MAX,
        schedule: Schedule::Constant,
        loss_every: 1,
        prefetch: 2,
        ..config()
    };
    let error = run(config.clone(), &mut SilentObserver).1.expect_err("diverges");
    assert!(matches!(error, TrainError::NonFiniteLoss { .. }), "{error}");

    struct Panics;
    impl Observer for Panics {
        fn on_step(&mut self, _: &StepInfo) -> ControlFlow<()> {
            panic!("the observer's own")
        }
    }
    let run = AssertUnwindSafe(|| run(config, &mut Panics).1.map(|_| ()).map_err(|e| e.to_string()));
    let panic = catch_unwind(run);
    let message = panic.expect_err("a panic");
    assert_eq!(message.downcast_ref::<&str>(), Some(&"the observer's own"));
}
