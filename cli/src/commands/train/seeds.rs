//! `--seeds`: the same training with several seeds.

use std::error::Error;
use std::process::ExitCode;

use meganeura::nn::model::mean_and_deviation;
use serde_json::json;

use super::report::{finite, quality};
use super::{Args, is_interrupted, train};
use crate::commands::Outcome;
use crate::commands::ranks::Ranks;
use crate::output::{line, notice};
use crate::signals;

/// Trains with `count` seeds. Prints the test result of each run, then mean and standard deviation.
pub(super) fn run(args: &Args, count: u64, ranks: &Ranks) -> Outcome {
    let (mut scores, mut is_regression) = (Vec::new(), false);
    for repetition in 0..count {
        let mut args = args.clone();
        args.run.repetition = Some(repetition);
        args.run.seed = shifted("seed", args.run.seed, repetition)?;
        args.files.split_seed = shifted("split-seed", args.files.split_seed, repetition)?;
        let results = train(&args, ranks)?;
        if is_interrupted(&results.report) {
            notice(format_args!("interrupted after {repetition} of {count} seeds"))?;
            summarise(&args, &scores, is_regression)?;
            return Ok(ExitCode::from(signals::exit_code()));
        }
        is_regression = results.test.regression.is_some();
        scores.push(match &results.test.regression {
            Some(regression) => regression.r2,
            None => results.test.accuracy(),
        });
        if !args.run.json {
            line(format_args!(
                "seed {}: {} epochs, {}",
                args.run.seed,
                results.report.epochs.len(),
                quality(&results.test)
            ))?;
        }
    }
    summarise(args, &scores, is_regression)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints mean and standard deviation of the scores, if there are any.
fn summarise(args: &Args, scores: &[f64], is_regression: bool) -> std::io::Result<()> {
    let count = scores.len();
    if count == 0 {
        return Ok(());
    }
    let (mean, deviation) = mean_and_deviation(scores);
    let metric = if is_regression { "r2" } else { "accuracy" };
    if args.run.json {
        line(json!({
            "seeds": count,
            (format!("test_{metric}")): finite(mean),
            (format!("test_{metric}_deviation")): finite(deviation),
        }))
    } else if is_regression {
        line(format_args!("test R² {mean:.4} ± {deviation:.4} over {count} seeds"))
    } else {
        let (mean, deviation) = (100.0 * mean, 100.0 * deviation);
        line(format_args!(
            "test accuracy {mean:.2} ± {deviation:.2} % over {count} seeds"
        ))
    }
}

/// Returns the seed of a repetition.
fn shifted(option: &str, seed: u64, repetition: u64) -> Result<u64, Box<dyn Error>> {
    let shifted = seed.checked_add(repetition);
    shifted.ok_or_else(|| format!("--{option}: {seed} is too large for several seeds").into())
}
