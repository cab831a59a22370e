//! Output of `meganeura train`: the introduction, the results and the summary.

use meganeura::nn::data::Dataset;
use meganeura::nn::model::Task;
use meganeura::nn::trainer::{Evaluation, TrainReport, Trainer};
use serde_json::{Value, json};

use super::data::NamedExamples;
use super::folds::{Candidate, Folds};
use super::{Args, display, is_interrupted};
use crate::output::{line, shortened};

/// Results of a run.
pub(super) struct Results {
    pub(super) report: TrainReport,
    /// True if the model has the weights of the best evaluation.
    pub(super) kept_best: bool,
    /// Choice of the number of epochs, if it was made.
    pub(super) cross_validation: Option<Folds>,
    /// Evaluation on the validation examples, if there are any.
    pub(super) validation: Option<Evaluation>,
    pub(super) test: Evaluation,
}

impl Results {
    /// Returns the loss on the training examples in the epoch whose weights were kept.
    fn train_loss(&self) -> f64 {
        let best = self.report.best.filter(|_| self.kept_best).map(|best| best.epoch);
        let kept = best.and_then(|epoch| self.report.epochs.iter().find(|e| e.epoch == epoch));
        kept.or(self.report.epochs.last()).map_or(f64::NAN, |e| e.train_loss)
    }
}

/// Returns the quality metrics that are stored in the model's folder.
pub(super) fn metrics(results: &Results) -> Value {
    let mut metrics = json!({"test": evaluation_object(&results.test)});
    if let Some(validation) = &results.validation {
        metrics["validation"] = evaluation_object(validation);
    }
    metrics
}

fn evaluation_object(evaluation: &Evaluation) -> Value {
    match &evaluation.regression {
        Some(regression) => json!({
            "examples": evaluation.examples,
            "loss": finite(evaluation.loss),
            "rmse": finite(regression.rmse),
            "mae": finite(regression.mae),
            "r2": finite(regression.r2),
        }),
        None => json!({
            "examples": evaluation.examples,
            "loss": finite(evaluation.loss),
            "accuracy": evaluation.accuracy(),
        }),
    }
}

/// Prints a description of the run before it starts.
pub(super) fn introduce(network: &str, loaded: &NamedExamples, trainer: &Trainer) -> std::io::Result<()> {
    let parts = &loaded.parts;
    if !loaded.ships {
        const MAX: usize = 10;
        let shape = parts.train.feature_shape();
        match &loaded.task {
            Task::Regression { targets, .. } => line(format_args!(
                "{}: examples of shape {shape:?}, numbers to predict: {}",
                loaded.name,
                targets.join(", ")
            ))?,
            task => {
                let names = task.classes();
                let more = if names.len() > MAX { ", ..." } else { "" };
                let shown: Vec<String> = names.iter().take(MAX).map(|name| shortened(name, 100)).collect();
                line(format_args!(
                    "{}: examples of shape {shape:?}, {} classes: {}{more}",
                    loaded.name,
                    names.len(),
                    shown.join(", ")
                ))?;
            }
        }
    }
    if let Some(profile) = &loaded.profile {
        const MAX_COLUMNS: usize = 30;
        crate::commands::data::print(profile, MAX_COLUMNS)?;
    }
    for note in &loaded.notes {
        line(note)?;
    }
    let validation = parts
        .validation
        .as_ref()
        .map_or_else(String::new, |v| format!("{} to validate, ", v.len()));
    line(format_args!(
        "{} on {}: {} examples to train, {validation}{} to test, {} parameters",
        network,
        trainer.session().device().capabilities().name,
        parts.train.len(),
        parts.test.as_ref().map_or(0, Dataset::len),
        parameters(trainer)
    ))?;
    introduce_plan(trainer)
}

/// Prints special properties of the plan.
pub(super) fn introduce_plan(trainer: &Trainer) -> std::io::Result<()> {
    let plan = trainer.session().plan();
    if let Some(scaling) = plan.loss_scaling {
        let units = plan.dispatches.iter().filter(|d| d.use_coop).count();
        let precision = plan.precision;
        line(format_args!(
            "precision {precision}, loss scale {scaling}; {units} of {} dispatches on tensor cores",
            plan.dispatches.len()
        ))?;
    }
    match &plan.recomputation {
        Some(recomputation) if trainer.config().memory_budget.is_some() => {
            line(format_args!("memory budget: {recomputation}"))
        }
        Some(recomputation) => line(format_args!("limited by the device's memory: {recomputation}")),
        None => Ok(()),
    }
}

/// Prints the results.
pub(super) fn conclude(args: &Args, results: &Results) -> std::io::Result<()> {
    let report = &results.report;
    if let (true, Some(best)) = (results.kept_best, report.best) {
        let early = if report.early_stopped { "stopped early, " } else { "" };
        line(format_args!(
            "{early}best weights are those of epoch {}, step {}",
            best.epoch, best.total_step
        ))?;
    }
    if report.skipped_updates > 0 {
        line(format_args!(
            "{} updates were skipped, because a gradient was not finite",
            report.skipped_updates
        ))?;
    }
    let quality = quality(&results.test);
    line(format_args!(
        "{quality}{}, compiled in {:.3} s, {:.1} s in all",
        display::training(
            results.train_loss(),
            steps_per_second(report),
            display::SpeedUnit::Steps
        ),
        report.compile_seconds,
        report.compile_seconds + report.seconds
    ))?;
    match &args.out {
        Some(file) if args.onnx.is_some() => line(format_args!(
            "saved to {0}; `meganeura run {0}` uses it",
            file.display()
        )),
        Some(folder) => line(format_args!(
            "saved to {0}; `meganeura predict --model {0}` uses it",
            folder.display()
        )),
        None if args.source.csv.is_some() => line("the model is not saved; --out DIR saves it"),
        None => Ok(()),
    }
}

/// Returns the quality on the test examples, in words.
pub(super) fn quality(test: &Evaluation) -> String {
    match &test.regression {
        Some(regression) => format!("test {regression} of {} examples", test.examples),
        None => format!(
            "test accuracy {:.2} % ({} of {})",
            100.0 * test.accuracy(),
            test.correct,
            test.examples
        ),
    }
}

pub(super) fn parameters(trainer: &Trainer) -> usize {
    let plan = trainer.session().plan();
    let sizes = plan.param_buffers.iter();
    sizes.map(|(_, b)| plan.buffer_types[b.index()].numel()).sum()
}

pub(super) fn steps_per_second(report: &TrainReport) -> f64 {
    // Epochs that were cut short have no time.
    let steps: usize = report.epochs.iter().map(|e| e.steps).sum();
    let seconds: f64 = report.epochs.iter().map(|e| e.train_seconds).sum();
    if seconds > 0.0 { steps as f64 / seconds } else { 0.0 }
}

/// Returns a number, or null for values that JSON does not have.
pub(super) fn finite(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

pub(super) fn summary(
    args: &Args,
    network: &str,
    loaded: &NamedExamples,
    results: &Results,
    trainer: &Trainer,
) -> Value {
    let device = &trainer.session().device().capabilities().name;
    let precision = trainer.session().plan().precision.to_string();
    let report = &results.report;
    let classes = (!loaded.ships && !loaded.task.classes().is_empty()).then(|| loaded.task.classes());
    let mut summary = json!({
        "data": loaded.name,
        "classes": classes,
        "model": network,
        "seed": args.run.seed,
        "device": device,
        "epochs": report.epochs.len(),
        "early_stopped": report.early_stopped,
        "interrupted": is_interrupted(report),
        "best_epoch": report.best.map(|b| b.epoch),
        "out": args.out,
        "test_loss": finite(results.test.loss),
        "train_loss": finite(results.train_loss()),
        "precision": precision,
        "skipped_updates": report.skipped_updates,
        "steps_per_second": steps_per_second(report),
        "compile_seconds": report.compile_seconds,
        "seconds": report.seconds,
    });
    if let Some(found) = &results.cross_validation {
        let object = |candidate: &Candidate| {
            let (mean, deviation) = candidate.score();
            json!({
                "network": candidate.network.name,
                "epochs": candidate.epochs,
                "loss": finite(candidate.loss),
                "score": finite(mean),
                "score_deviation": finite(deviation),
            })
        };
        let candidates: Vec<Value> = found.candidates.iter().map(object).collect();
        summary["cross_validation"] = json!({"folds": found.folds, "candidates": candidates});
    }
    display::add_quality(&mut summary, "test", &results.test);
    if let Some(validation) = &results.validation {
        summary["validation_loss"] = finite(validation.loss);
        display::add_quality(&mut summary, "validation", validation);
    }
    summary
}
