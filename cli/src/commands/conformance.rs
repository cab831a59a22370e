//! Command `meganeura conformance`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use meganeura::config::Config;
use meganeura::files::write_atomically;
use meganeura::select;
use meganeura_conformance::{CaseResult, ExpectedFailure, Options, run_with};

use super::Outcome;
use super::precision::Choice;
use crate::output::{line, notice};

/// Options of `conformance`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Device to test; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Run only cases whose names contain this text, such as `core.matmul` or `backward`.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Number of random seeds. Each seed tests every operator with other random shapes and values.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,

    /// Precision of all plans. A run in mixed precision fails if no dispatch uses cooperative matrices (tensor cores).
    /// Small matmuls use them with `coop_min_workgroups = 0` in section `[backend.blade]` of the configuration file.
    #[arg(long, value_enum, default_value_t = Choice::F32)]
    precision: Choice,

    /// TOML file of expected failures: entries `[[expected]]` with a pattern `cases`, where * matches any text, and a
    /// `reason`. An expected failure that passes counts as a failure.
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,

    /// Number of cases that run concurrently. More than one is faster where kernels take longer to compile than to run,
    /// as with CUDA.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,

    /// Write an HTML page with all results.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print one JSON object per line: the cases, then a summary. Without --json, use --verbose to list all groups and
    /// failures.
    #[arg(long)]
    json: bool,
}

/// Interval of progress lines if there is no progress bar.
const PAUSE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args, is_verbose: bool) -> Outcome {
    // No fallback, so that missing kernels are reported.
    let config = Config {
        fallback: None,
        ..Config::load()?
    };
    let device = select::select(args.device.as_deref(), &config)?.open(&config)?;
    let expected = args.expected.as_deref().map(ExpectedFailure::read).transpose()?;
    let options = Options {
        filter: args.filter.clone(),
        seeds: 0..args.seeds,
        precision: args.precision.into(),
        jobs: usize::from(args.jobs),
        ..Options::default()
    };
    let progress = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} cases, {elapsed}: {msg}") {
        progress.set_style(style);
    }
    let mut latest = Instant::now();
    let mut show = |case: &CaseResult| {
        progress.inc(1);
        if progress.is_hidden() && latest.elapsed() >= PAUSE {
            latest = Instant::now();
            // If standard error is closed, the run still completes and prints its report.
            let _ = notice(format_args!("{} cases, {}", progress.position(), case.group()));
        }
        progress.set_message(case.group().to_owned());
    };
    let report = run_with(device, &options, expected.as_deref().unwrap_or_default(), &mut show);
    progress.finish_and_clear();
    if report.cases.is_empty() {
        let filter = args.filter.as_deref().unwrap_or_default();
        return Err(format!(
            "no case matches the filter '{filter}'\n  help: a name begins with an operator, such as core.matmul; `meganeura ops` lists them"
        )
        .into());
    }
    // A failed write must not lose the results.
    if args.json {
        line(report.to_json_lines()?.trim_end())?;
    } else if is_verbose {
        line(format_args!("{report:#}"))?;
    } else {
        line(&report)?;
    }
    if let Some(path) = &args.html {
        let html = report.to_html();
        write_atomically(path, |out| out.write_all(html.as_bytes()))?;
    }
    Ok(if report.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
