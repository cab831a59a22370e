//! Progress output of `meganeura train`.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use meganeura::nn::trainer::{EpochBegin, EpochReport, Evaluation, Observer, StepInfo, TrainBegin, TrainReport};
use serde_json::{Value, json};

use super::report::finite;
use crate::output::{line, notice};

/// Adds the quality to an object: accuracy, or errors of regression. The keys begin with the name of the examples.
pub(super) fn add_quality(object: &mut Value, examples: &str, evaluation: &Evaluation) {
    match &evaluation.regression {
        None => object[format!("{examples}_accuracy")] = json!(evaluation.accuracy()),
        Some(regression) => {
            object[format!("{examples}_rmse")] = finite(regression.rmse);
            object[format!("{examples}_mae")] = finite(regression.mae);
            object[format!("{examples}_r2")] = finite(regression.r2);
        }
    }
}

/// Observer that prints each epoch as a JSON object.
pub(super) struct JsonLines {
    /// Name of the examples that are evaluated: validation or test.
    pub(super) examples: &'static str,
}

impl Observer for JsonLines {
    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        let mut object = json!({
            "epoch": report.epoch,
            "train_loss": finite(report.train_loss),
            "learning_rate": report.learning_rate,
            "steps_per_second": report.steps_per_second(),
        });
        let examples = self.examples;
        object[format!("{examples}_loss")] = report.evaluation.map_or(Value::Null, |e| finite(e.loss));
        match &report.evaluation {
            Some(evaluation) => add_quality(&mut object, examples, evaluation),
            None => object[format!("{examples}_accuracy")] = Value::Null,
        }
        let printed = line(object);
        // Standard output is closed: stops training.
        if printed.is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// A progress bar for each epoch, and a line after it.
pub(super) struct Display {
    bar: Option<ProgressBar>,
    epochs: usize,
    start: Instant,
    /// Number of steps before a resumed run.
    resumed: u64,
    /// Name of the examples that are evaluated: validation or test.
    examples: &'static str,
    /// Time of the last progress line, if there is no progress bar.
    latest: Instant,
    /// Pause before the next line.
    pause: Duration,
    unit: SpeedUnit,
}

/// Unit of speeds.
#[derive(Clone, Copy, Debug)]
pub(super) enum SpeedUnit {
    Steps,
    /// Tokens, with their number in a step.
    Tokens(usize),
}

impl SpeedUnit {
    /// Returns a speed as text, such as `3.4 steps/s`.
    pub(super) fn speed(self, steps_per_second: f64) -> String {
        let (speed, unit) = match self {
            SpeedUnit::Steps => (steps_per_second, "steps"),
            SpeedUnit::Tokens(count) => (steps_per_second * count as f64, "tokens"),
        };
        // A slow step must not have the speed 0.
        let digits = usize::from(speed < 10.0) + usize::from(speed < 1.0);
        format!("{speed:.digits$} {unit}/s")
    }
}

/// Maximum number of lines for the epochs of a run.
const MAX_LINES: usize = 100;

/// Returns true if a line is printed for an epoch, counted from 1. Runs of many epochs print every n-th epoch, the first one and
/// the last one.
fn is_shown(epoch: usize, epochs: usize) -> bool {
    let every = epochs.div_ceil(MAX_LINES).max(1);
    epoch.is_multiple_of(every) || epoch == 1 || epoch == epochs
}

/// Pause before the first progress line and between further ones, if there is no progress bar.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_secs(10);

impl Display {
    pub(super) fn of(examples: &'static str, unit: SpeedUnit) -> Self {
        Display {
            unit,
            bar: None,
            epochs: 0,
            start: Instant::now(),
            resumed: 0,
            examples,
            latest: Instant::now(),
            pause: FIRST_PAUSE,
        }
    }
}

/// Returns the loss and speed of a run, after a comma; empty if no epoch was completed.
pub(super) fn training(loss: f64, steps_per_second: f64, unit: SpeedUnit) -> String {
    if loss.is_finite() {
        format!(", train loss {loss:.4}, {}", unit.speed(steps_per_second))
    } else {
        String::new()
    }
}

/// Estimates the remaining time of a run from the time so far, evaluations included.
fn remaining(elapsed: Duration, done: u64, all: u64) -> Duration {
    let rest = all.saturating_sub(done) as f64 / done.max(1) as f64;
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * rest).unwrap_or(Duration::MAX)
}

impl Observer for Display {
    fn on_train_begin(&mut self, begin: &TrainBegin) -> ControlFlow<()> {
        (self.start, self.resumed) = (Instant::now(), begin.resumed_steps);
        self.latest = self.start;
        let said = match begin.resumed_steps {
            0 => Ok(()),
            steps => line(format_args!("resumed after step {steps}")),
        };
        // Standard output is closed.
        said.map_or(ControlFlow::Break(()), ControlFlow::Continue)
    }

    fn on_epoch_begin(&mut self, begin: &EpochBegin) -> ControlFlow<()> {
        let bar = ProgressBar::new(begin.steps as u64);
        let template = "epoch {prefix} [{bar:20}] {pos}/{len} ETA {eta}{msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        self.epochs = begin.epochs;
        bar.set_prefix(format!("{}/{}", begin.epoch, begin.epochs));
        // Shows the bar before the first step is complete.
        bar.tick();
        self.bar = Some(bar);
        ControlFlow::Continue(())
    }

    fn on_step(&mut self, info: &StepInfo) -> ControlFlow<()> {
        if let Some(bar) = &self.bar {
            if bar.is_hidden() && self.latest.elapsed() >= self.pause {
                (self.latest, self.pause) = (Instant::now(), PAUSE);
                let loss = info.loss.map_or_else(String::new, |loss| format!("  loss {loss:.4}"));
                let (epoch, epochs) = (info.epoch, self.epochs);
                let done = (info.total_step - self.resumed) as f64;
                let speed = self.unit.speed(done / self.start.elapsed().as_secs_f64().max(1e-9));
                let written = notice(format_args!(
                    "epoch {epoch}/{epochs}  step {}/{}{loss}  {speed}",
                    info.step, info.steps
                ));
                if written.is_err() {
                    return ControlFlow::Break(());
                }
            }
            if info.step > 1 && bar.position() == 0 {
                // Steps before a resumed run took no time.
                bar.set_position(info.step as u64 - 1);
                bar.reset_eta();
            }
            bar.set_position(info.step as u64);
            if let Some(loss) = info.loss {
                let all = (self.epochs as u64).saturating_mul(info.steps as u64);
                let (done, all) = (info.total_step - self.resumed, all.saturating_sub(self.resumed));
                let rest = HumanDuration(remaining(self.start.elapsed(), done, all));
                bar.set_message(format!(", all epochs {rest:#}  loss {loss:.4}"));
            }
        }
        ControlFlow::Continue(())
    }

    fn on_train_end(&mut self, _: &TrainReport) {
        // The epoch was cut short.
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if !is_shown(report.epoch, self.epochs) {
            return ControlFlow::Continue(());
        }
        let what = self.examples;
        let test = report.evaluation.map_or_else(String::new, |e| match e.regression {
            Some(regression) => format!("  {what} {regression}"),
            None => {
                let percent = 100.0 * e.accuracy();
                format!("  {what} loss {:.4}  {what} accuracy {percent:.2} %", e.loss)
            }
        });
        let width = self.epochs.to_string().len();
        let printed = line(format_args!(
            "epoch {:>width$}/{}  train loss {:.4}{test}  {}",
            report.epoch,
            self.epochs,
            report.train_loss,
            self.unit.speed(report.steps_per_second())
        ));
        if printed.is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_many_epochs_have_few_lines() {
        let shown = |epochs: usize| {
            (1..=epochs)
                .filter(|&epoch| is_shown(epoch, epochs))
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(3), [1, 2, 3]);
        assert_eq!(shown(100).len(), 100);
        assert_eq!(shown(150)[..4], [1, 2, 4, 6]);
        let many = shown(3201);
        assert!(many.len() <= MAX_LINES + 2 && many.last() == Some(&3201), "{many:?}");
    }

    #[test]
    fn the_rest_takes_as_long_as_what_is_done() {
        let seconds = |elapsed, done, all| remaining(Duration::from_secs(elapsed), done, all).as_secs();
        assert_eq!(seconds(10, 5, 20), 30);
        assert_eq!(seconds(10, 20, 20), 0);
        assert_eq!(seconds(10, 21, 20), 0);
        assert_eq!(seconds(0, 1, u64::MAX), 0);
        assert_eq!(remaining(Duration::MAX, 1, u64::MAX), Duration::MAX);
    }
}
