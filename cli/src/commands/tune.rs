//! `meganeura tune`.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use meganeura::backend::{Device, Tune, TuneOptions, Tuned};
use meganeura::build::Builder;
use meganeura::config::Config;
use meganeura::precision::Precision;
use meganeura::select::{self, Selected};
use meganeura::{ExecutionPlan, Mode, Sgd};
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
    /// Workloads whose matmuls, reductions and attention to tune: models of `meganeura explain`, ONNX files, and matmuls such
    /// as 4096x4096x4096 (m, n, k).
    #[arg(value_name = "WORKLOAD")]
    workload: Vec<String>,

    /// Workloads of a suite: matmul, attention, conv, models and others of `meganeura bench --suite`, or all. Separate
    /// several with commas.
    #[arg(long, value_name = "SUITE", value_delimiter = ',', value_parser = suites::suites, conflicts_with = "workload")]
    suite: Vec<suites::Suites>,

    /// Device to tune; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    #[command(flatten)]
    models: ModelOptions,

    /// Precision of the plans [default: that of each workload on the device]
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Time for all classes of calls; unused time goes to later classes.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Show the results, but do not save them.
    #[arg(long)]
    dry_run: bool,

    /// Delete the results of earlier runs on the device: the default schedules are used again.
    #[arg(long, conflicts_with_all = ["workload", "suite", "dry_run", "precision"])]
    forget: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    // What it measured is kept in a file.
    output::outlast_reader();
    if !args.forget && args.workload.is_empty() && args.suite.is_empty() {
        return Err(
            "there is nothing to tune: name models or matmuls, such as smollm2-135m or 512x512x512, or give --suite; \
             --forget deletes what was found before"
                .into(),
        );
    }
    // Calls that run on the fallback device are not tuned here.
    let config = Config {
        fallback: None,
        ..Config::load()?
    };
    let selected = select::select(args.device.as_deref(), &config)?;
    let device: Arc<dyn Device> = selected.open(&config)?;
    let Some(tunable) = device.tunable() else {
        return Err(format!(
            "there is nothing to tune on {}: its backend measures no schedules; `meganeura devices` lists other devices, of \
             which GPUs have several, such as `--device blade`",
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
    Ok(match all.iter().any(|tuned| tuned.skipped.is_none()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
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
            "nothing was measured on this device: there is no {}",
            file.display()
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The plans whose calls are measured, as sessions on the device have them.
fn plans(
    args: &Args,
    selected: &Selected,
    device: &Arc<dyn Device>,
    config: &Config,
) -> Result<Vec<ExecutionPlan>, Box<dyn Error>> {
    let wanted = args.precision.map(Precision::from).or(config.rewrite.precision);
    let mut plans = Vec::new();
    let mut rewrite = config.rewrite.clone();
    for name in &args.workload {
        let workload = args.models.workload(name)?;
        let optimizer = (workload.mode == Mode::Training).then(|| Sgd::new(1e-3).into());
        rewrite.precision = wanted;
        plans.push(
            Builder::on(device.clone())
                .mode(workload.mode)
                .maybe_optimizer(optimizer.clone())
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
                Err(error) => notice(format_args!("{} is left out: {error}", workload.name))?,
            }
        }
    }
    Ok(plans)
}

/// Tells of a class that was measured.
fn tell(args: &Args, number: usize, of: usize, tuned: &Tuned) -> std::io::Result<()> {
    for refusal in tuned.refused.iter().filter(|refusal| refusal.wrong) {
        notice(format_args!(
            "warning: '{}' is wrong for {} and never used: {}",
            refusal.schedule, tuned.class, refusal.reason
        ))?;
    }
    let text = format!("[{number}/{of}] {}: {}", tuned.class, outcome(tuned));
    match args.json {
        true => notice(text),
        false => line(text),
    }
}

fn outcome(tuned: &Tuned) -> String {
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

fn report(args: &Args, selected: &Selected, device: &dyn Tune, all: &[Tuned]) -> Result<(), Box<dyn Error>> {
    let file = match args.dry_run {
        true => None,
        false => Some(device.tuned_file()?),
    };
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
            "{classes}; it is used from now on, and kept in {}",
            file.display()
        ))?,
        _ => line(classes)?,
    }
    Ok(())
}

fn object(tuned: &Tuned) -> Value {
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
