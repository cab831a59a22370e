//! Command `meganeura diff`.

use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::cache::read_plan;
use meganeura::config::Config;
use meganeura::replay::{Replay, ReplayOptions, replay_on_two};
use meganeura::select;
use serde_json::json;

use super::Outcome;
use crate::output::line;

/// Options of `diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Plan file, written by `meganeura explain MODEL --device SEL --cache FILE` or by MEGANEURA_DEBUG=dump=FOLDER
    /// (plan.ron). Both devices must support all of its kernels.
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,

    /// Device to run on; see `meganeura devices`. Give this option twice.
    #[arg(long, value_name = "SEL", required = true, num_args = 1)]
    device: Vec<String>,

    /// Tolerated difference, relative to the largest magnitude in a result. Sums of many terms get a larger tolerance.
    #[arg(long, value_name = "X", default_value_t = ReplayOptions::default().tolerance)]
    tolerance: f64,

    /// Seed of random inputs and parameters.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let [first, second] = &args.device[..] else {
        return Err(format!(
            "expected two devices: give --device twice, not {} times",
            args.device.len()
        )
        .into());
    };
    if !(args.tolerance.is_finite() && args.tolerance > 0.0) {
        return Err(format!("--tolerance: expected a number above 0, found {}", args.tolerance).into());
    }
    let plan = read_plan(&args.plan)?;
    // No fallback, so that missing kernels are reported.
    let config = Config {
        fallback: None,
        ..Config::load()?
    };
    let open = |selector: &str| select::select(Some(selector), &config)?.open(&config);
    let (a, b) = (open(first)?, open(second)?);
    let options = ReplayOptions {
        tolerance: args.tolerance,
        seed: args.seed,
    };
    let replay = replay_on_two(&plan, [&a, &b], &options)?;
    let names = [&a, &b].map(|device| device.capabilities().name.clone());
    if args.json {
        line(object(&replay, &names))?;
    } else {
        print(&replay, &names, plan.dispatches.len())?;
    }
    Ok(match replay.divergence {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn print(replay: &Replay, [a, b]: &[String; 2], dispatches: usize) -> std::io::Result<()> {
    if let Some(divergence) = &replay.divergence {
        let before = replay.compared.saturating_sub(1);
        line(format_args!(
            "{a} and {b} agree on {before} of {dispatches} dispatches, and differ first at"
        ))?;
        return line(divergence);
    }
    let worst = replay.worst.map_or_else(String::new, |(ratio, dispatch)| {
        format!(
            "; the largest difference is {:.1} % of the tolerance, at dispatch {dispatch}",
            100.0 * ratio
        )
    });
    line(format_args!(
        "{a} and {b} agree on all {} dispatches{worst}",
        replay.compared
    ))
}

fn object(replay: &Replay, devices: &[String; 2]) -> serde_json::Value {
    json!({
        "devices": devices,
        "compared": replay.compared,
        "worst": replay.worst.map(|(ratio, _)| ratio),
        "worst_dispatch": replay.worst.map(|(_, dispatch)| dispatch),
        "divergence": replay.divergence.as_ref().map(|d| json!({
            "dispatch": d.dispatch, "kernel": d.title, "label": d.label, "source": d.source, "result": d.result,
            "element": d.element, "values": d.values.map(number), "limit": d.limit,
        })),
    })
}

/// Converts a number to JSON. Infinities and NaN become strings, because JSON does not have them.
fn number(value: f64) -> serde_json::Value {
    if value.is_finite() {
        json!(value)
    } else {
        json!(value.to_string())
    }
}
