//! What `meganeura train` prints while it trains.

use std::ops::ControlFlow;

use indicatif::{ProgressBar, ProgressStyle};
use meganeura::nn::trainer::{EpochBegin, EpochReport, Observer, StepInfo, TrainBegin};
use serde_json::json;

use super::finite;
use crate::output::line;

/// Prints each epoch as a JSON object.
pub(super) struct JsonLines;

impl Observer for JsonLines {
    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        let printed = line(json!({
            "epoch": report.epoch,
            "train_loss": finite(report.train_loss),
            "test_loss": report.evaluation.map(|e| finite(e.loss)),
            "test_accuracy": report.evaluation.map(|e| e.accuracy()),
            "learning_rate": report.learning_rate,
            "steps_per_second": report.steps_per_second(),
        }));
        // Nobody reads any more: stop training for nobody.
        if printed.is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// A progress bar for each epoch, and a line after it.
#[derive(Default)]
pub(super) struct Display {
    bar: Option<ProgressBar>,
    epochs: usize,
}

impl Observer for Display {
    fn on_train_begin(&mut self, begin: &TrainBegin) -> ControlFlow<()> {
        let said = match begin.resumed_steps {
            0 => Ok(()),
            steps => line(format_args!("resumed after step {steps}")),
        };
        // Nobody reads any more.
        said.map_or(ControlFlow::Break(()), ControlFlow::Continue)
    }

    fn on_epoch_begin(&mut self, begin: &EpochBegin) -> ControlFlow<()> {
        let bar = ProgressBar::new(begin.steps as u64);
        let template = "epoch {prefix} [{bar:30}] {pos}/{len} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        self.epochs = begin.epochs;
        bar.set_prefix(format!("{}/{}", begin.epoch, begin.epochs));
        self.bar = Some(bar);
        ControlFlow::Continue(())
    }

    fn on_step(&mut self, info: &StepInfo) -> ControlFlow<()> {
        if let Some(bar) = &self.bar {
            bar.set_position(info.step as u64);
            if let Some(loss) = info.loss {
                bar.set_message(format!("loss {loss:.4}"));
            }
        }
        ControlFlow::Continue(())
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let test = report.evaluation.map_or_else(String::new, |e| {
            format!("  test loss {:.4}  test accuracy {:.2} %", e.loss, 100.0 * e.accuracy())
        });
        let width = self.epochs.to_string().len();
        let printed = line(format_args!(
            "epoch {:>width$}/{}  train loss {:.4}{test}  {:.0} steps/s",
            report.epoch,
            self.epochs,
            report.train_loss,
            report.steps_per_second()
        ));
        if printed.is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
