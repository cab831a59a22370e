//! Command `meganeura tune`.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use meganeura::ExecutionPlan;
use meganeura::backend::{Device, Tune, TuneOptions, TunedClass};
use meganeura::builder::Builder;
use meganeura::config::Config;
use meganeura::precision::Precision;
use meganeura::select::{self, SelectedDevice};
use meganeura_bench::{Sizes, Task, metric, workloads};
use serde_json::{Value, json};

use super::Outcome;
use super::bench::suites;
use super::precision::Choice;
use super::workload::ModelOptions;
use crate::output::{self, line, notice};

/// Options of `tune`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Workloads to tune: names of models (`meganeura explain` lists them), checkpoint folders, GGUF files, ONNX
    /// files, and matmuls such as 4096x4096x4096 (m, n, k). Their matmuls, reductions and attention are tuned.
    #[arg(value_name = "WORKLOAD")]
    workload: Vec<String>,

    /// Suite of workloads to tune: matmul, attention, conv, models and others of `meganeura bench --suite`, or all.
    /// Separate several with commas.
    #[arg(long, value_name = "SUITE", value_delimiter = ',', value_parser = suites::suites, conflicts_with = "workload")]
    suite: Vec<suites::Suites>,

    /// Device to tune; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    #[command(flatten)]
    models: ModelOptions,

    /// Precision of the plans [default: from the configuration file, else from the device; suites measure some workloads
    /// in both]
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Maximum total time in seconds. It is shared evenly by all classes of calls; time that a class does not use goes
    /// to later classes. A class contains calls of the same operation with similar sizes, and has one schedule.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Show the results without saving them.
    #[arg(long)]
    dry_run: bool,

    /// Delete earlier results of the device, so that the default schedules are used again.
    #[arg(long, conflicts_with_all = ["workload", "suite", "dry_run", "precision"])]
    forget: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    // The measurements are saved in a file, so a closed output does not end the command.
    output::outlast_reader();
    if !args.forget && args.workload.is_empty() && args.suite.is_empty() {
        return Err(
            "there is nothing to tune: name models or matmuls, such as smollm2-135m or 512x512x512, or give --suite; \
             --forget deletes earlier results"
                .into(),
        );
    }
    if !args.suite.is_empty() {
        args.models.check_suites()?;
    }
    // Without a fallback: calls that run on the fallback device are not tuned.
    let config = Config {
        fallback: None,
        ..Config::load()?
    };
    let selected = select::select(args.device.as_deref(), &config)?;
    let device: Arc<dyn Device> = selected.open(&config)?;
    let Some(tunable) = device.tunable() else {
        return Err(format!(
            "there is nothing to tune on {}: its backend has no schedules; use a GPU, such as `--device blade`; \
             `meganeura devices` lists the devices",
            selected.selector
        )
        .into());
    };
    if args.forget {
        return forget(args, tunable);
    }
    let plans = plans(args, &selected, &device, &config)?;
    let options = TuneOptions {
        time: Duration::from_secs(args.seconds),
        keep: !args.dry_run,
    };
    let mut failure = Ok(());
    let all = tunable.tune(&plans, &options, &mut |number, of, tuned| {
        if let (Ok(()), Err(error)) = (&failure, tell(args, number, of, tuned)) {
            failure = Err(error);
        }
    })?;
    failure?;
    report(args, &selected, tunable, &all)?;
    Ok(if all.iter().any(|tuned| tuned.skipped.is_none()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn forget(args: &Args, device: &dyn Tune) -> Outcome {
    let file = device.tuned_file()?.to_owned();
    let was_there = device.forget_tuned()?;
    match args.json {
        true => line(json!({ "file": file, "forgotten": was_there }))?,
        false if was_there => line(format_args!(
            "{} is deleted; the default schedules are used",
            file.display()
        ))?,
        false => line(format_args!(
            "no results for this device: {} does not exist",
            file.display()
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the plans whose calls are measured, the same as those of sessions on the device.
fn plans(
    args: &Args,
    selected: &SelectedDevice,
    device: &Arc<dyn Device>,
    config: &Config,
) -> Result<Vec<ExecutionPlan>, Box<dyn Error>> {
    let wanted = args.precision.map(Precision::from).or(config.rewrite.precision);
    let mut plans = Vec::new();
    let mut rewrite = config.rewrite.clone();
    for name in &args.workload {
        let workload = args.models.workload(name)?;
        rewrite.precision = wanted;
        plans.push(
            Builder::on(device.clone())
                .mode(workload.mode)
                .maybe_optimizer(workload.optimizer.clone())
                .rewrite(rewrite.clone())
                .plan(&workload.graph)?
                .0,
        );
    }
    let listed = suites::distinct(&args.suite)
        .into_iter()
        .flat_map(|suite| workloads(suite, Sizes::of(selected.info.kind)))
        .filter(|workload| workload.task == Task::Step);
    for workload in listed {
        for precision in workload.precisions(wanted, &**device) {
            rewrite.precision = Some(precision);
            let plan = Builder::on(device.clone())
                .mode(workload.mode)
                .maybe_optimizer(workload.update.clone())
                .rewrite(rewrite.clone())
                .plan(&workload.graph());
            match plan {
                Ok((plan, _)) => plans.push(plan),
                Err(error) => notice(format_args!("skipped {}: {error}", workload.name))?,
            }
        }
    }
    Ok(plans)
}

/// Prints the result for a measured class.
fn tell(args: &Args, number: usize, of: usize, tuned: &TunedClass) -> std::io::Result<()> {
    for refusal in tuned.refused.iter().filter(|refusal| refusal.wrong) {
        notice(format_args!(
            "warning: '{}' computes wrong results for {} and is not used: {}",
            refusal.schedule, tuned.class, refusal.reason
        ))?;
    }
    let text = format!("[{number}/{of}] {}: {}", tuned.class, outcome(tuned));
    if args.json { notice(text) } else { line(text) }
}

fn outcome(tuned: &TunedClass) -> String {
    if let Some(why) = &tuned.skipped {
        return format!("not measured: {why}");
    }
    let seconds = |seconds: f64| format!("{}s", metric(seconds));
    let mut text = match &tuned.winner {
        Some(winner) => format!(
            "{winner}, {} instead of {} of {}, {:.2} times as fast",
            seconds(tuned.best_seconds),
            seconds(tuned.default_seconds),
            tuned.default,
            tuned.gain()
        ),
        None => format!("{} as by default, {}", tuned.default, seconds(tuned.default_seconds)),
    };
    text += &format!("; {} others were timed", tuned.timed);
    for (count, what) in [(tuned.refused.len(), "refused"), (tuned.untried, "not tried")] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

fn report(args: &Args, selected: &SelectedDevice, device: &dyn Tune, all: &[TunedClass]) -> Result<(), Box<dyn Error>> {
    let file = if args.dry_run { None } else { Some(device.tuned_file()?) };
    let winners = all.iter().filter(|tuned| tuned.winner.is_some()).count();
    if args.json {
        line(json!({
            "device": selected.selector,
            "name": selected.info.name,
            "driver": selected.info.driver,
            "file": file,
            "classes": all.iter().map(object).collect::<Vec<_>>(),
        }))?;
        return Ok(());
    }
    let classes = match all.len() {
        0 => "these workloads have no calls with several schedules; nothing was measured".to_owned(),
        count => format!("{winners} of {count} classes of calls have a faster schedule than the default"),
    };
    match file {
        Some(file) if winners > 0 => line(format_args!(
            "{classes}; later runs use it; it is saved in {}",
            file.display()
        ))?,
        _ => line(classes)?,
    }
    Ok(())
}

fn object(tuned: &TunedClass) -> Value {
    let refused = tuned.refused.iter();
    let refused = refused.map(|r| json!({ "schedule": r.schedule, "reason": r.reason, "wrong": r.wrong }));
    json!({
        "class": tuned.class,
        "calls": tuned.calls,
        "default": tuned.default,
        "default_seconds": tuned.default_seconds,
        "winner": tuned.winner,
        "best_seconds": tuned.best_seconds,
        "gain": tuned.gain(),
        "timed": tuned.timed,
        "untried": tuned.untried,
        "refused": refused.collect::<Vec<_>>(),
        "skipped": tuned.skipped,
    })
}
