//! Command `meganeura bench --curve`.

use std::error::Error;
use std::process::ExitCode;

use meganeura::config::Config;
use meganeura::precision::Precision;
use meganeura::{Graph, Mode};
use meganeura_bench::{BenchDevice, LossCurve, LossCurves, Options, Suite, Workload, adamw, loss_curves};

use super::super::Outcome;
use super::{Args, suites};
use crate::output::line;

/// Approximate number of rows of a table.
const ROWS: usize = 10;

/// Parses a number of steps, which must be at least one.
pub(super) fn steps(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1 step, found 0".to_owned()),
        Ok(steps) => Ok(steps),
        Err(_) => Err("expected a number of steps".to_owned()),
    }
}

/// Compares loss curves of `steps` steps, for the named workloads or for the training workloads of suites.
pub(super) fn measure(args: &Args, steps: usize) -> Outcome {
    let config = Config::load()?;
    let precision = args.precision.map(Precision::from);
    let named = if args.suite.is_empty() {
        Some(named(args)?)
    } else {
        None
    };
    let devices = suites::open(&args.device, &config)?;
    let workloads = match named {
        Some(workloads) => workloads,
        None => of_suites(args, &devices)?,
    };
    let mut all = Vec::new();
    for workload in &workloads {
        let curves = loss_curves(workload, &devices, precision, steps)?;
        if !args.json {
            line(table(&curves))?;
        }
        all.push(curves);
    }
    if args.json {
        line(serde_json::to_string_pretty(&all)?)?;
    }
    Ok(if all.iter().all(|curves| curves.skipped.is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the named workloads, in training mode.
fn named(args: &Args) -> Result<Vec<Workload>, Box<dyn Error>> {
    if !args.models.train {
        return Err("--curve compares training losses: add --train, or select a suite with training workloads".into());
    }
    if args.models.optimizer.is_some() {
        return Err("--curve trains with AdamW: leave out --optimizer".into());
    }
    let mut workloads = Vec::new();
    for name in &args.workload {
        let graph = args.models.workload(name)?.graph;
        let title = match args.models.seq {
            Some(rows) => format!("{name}, {rows} rows"),
            None => name.clone(),
        };
        let classes = classes(&graph);
        let workload = Workload::of(Suite::Models, title, Mode::Training, move || graph.clone());
        workloads.push(workload.with_classes(classes).updating(adamw()));
    }
    Ok(workloads)
}

/// Returns the number of columns of the logits (the output after the loss). Labels must be below this number.
fn classes(graph: &Graph) -> u32 {
    let logits = graph.outputs().get(1);
    let last = logits.and_then(|&logits| graph.shape(logits).last().copied());
    last.and_then(|classes| u32::try_from(classes).ok())
        .unwrap_or(super::CLASSES)
}

fn of_suites(args: &Args, devices: &[BenchDevice]) -> Result<Vec<Workload>, Box<dyn Error>> {
    let options = Options {
        suites: suites::distinct(&args.suite),
        only: args.only.clone(),
        sizes: args.sizes,
        ..Options::default()
    };
    let mut workloads = options.workloads(devices)?;
    workloads.retain(|workload| workload.mode == Mode::Training && workload.update.is_some());
    // Workloads that only update parameters have no falling losses.
    workloads.retain(|workload| workload.suite == Suite::Models);
    if workloads.is_empty() {
        Err("no selected workload trains a model; use `--suite models`".into())
    } else {
        Ok(workloads)
    }
}

fn table(found: &LossCurves) -> String {
    let LossCurves {
        workload,
        curves,
        skipped,
    } = found;
    let mut text = format!("{workload}\n{:>6}", "step");
    for curve in curves {
        text += &format!(" {:>16}", heading(curve));
    }
    let steps = curves.iter().map(|curve| curve.losses.len()).max().unwrap_or(0);
    for step in shown(steps) {
        text += &format!("\n{:>6}", step + 1);
        for curve in curves {
            let loss = curve.losses.get(step);
            text += &format!(
                " {:>16}",
                loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.6}"))
            );
        }
    }
    let Some((reference, others)) = curves.split_first() else {
        return text;
    };
    for curve in others {
        let (step, off) = curve.farthest(reference);
        let [all, units] = curve.dispatches;
        text += &format!(
            "\n{}: max. deviation {off:.1e} of the first loss, at step {}; {:.0e} is accepted; {units} of {all} dispatches on \
             tensor cores",
            heading(curve),
            step + 1,
            curve.accepted()
        );
    }
    if others.is_empty() {
        text += "\nno other curve to compare with: the device supports only one precision; add devices with --device";
    }
    for left in skipped {
        text += &format!(
            "\n{} {}: DIFFERS FROM THE REFERENCE: {}",
            left.device, left.precision, left.reason
        );
    }
    text + "\n"
}

fn heading(curve: &LossCurve) -> String {
    format!("{} {}", curve.device, curve.precision)
}

/// Returns the steps of a table: the first, the last, and some steps between them.
fn shown(steps: usize) -> Vec<usize> {
    let apart = steps.div_ceil(ROWS).max(1);
    let mut shown: Vec<usize> = (0..steps)
        .filter(|step| *step == 0 || (step + 1) % apart == 0)
        .collect();
    shown.extend(steps.checked_sub(1).filter(|last| shown.last() != Some(last)));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_first_and_the_last_step() {
        assert!(shown(0).is_empty());
        assert_eq!(shown(1), [0]);
        assert_eq!(shown(3), [0, 1, 2]);
        assert_eq!(shown(50), [0, 4, 9, 14, 19, 24, 29, 34, 39, 44, 49]);
        assert_eq!(shown(11), [0, 1, 3, 5, 7, 9, 10]);
    }
}
