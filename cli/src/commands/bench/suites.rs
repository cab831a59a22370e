//! Command `meganeura bench --suite`.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use meganeura::config::Config;
use meganeura::files::write_atomically;
use meganeura::precision::Precision;
use meganeura_bench::{BenchDevice, Options, Progress, Record, RecordComparison, Sizes, Suite, Verdict, run};

use super::super::Outcome;
use super::Args;
use super::table::Table;
use crate::output::{columns, line, notice, shortened, wrapped};

/// Name of all suites, and of all devices that are found.
const ALL: &str = "all";

/// Parses a suite, or all of them.
pub(crate) fn suites(text: &str) -> Result<Suites, String> {
    match text {
        ALL => Ok(Suites(Suite::ALL.to_vec())),
        one => one
            .parse()
            .map(|suite| Suites(vec![suite]))
            .map_err(|e: meganeura::Error| e.to_string()),
    }
}

/// Suites of one value of `--suite`.
#[derive(Clone, Debug)]
pub(crate) struct Suites(Vec<Suite>);

/// Returns the suites of several values of `--suite`, without duplicates.
pub(crate) fn distinct(named: &[Suites]) -> Vec<Suite> {
    let mut suites: Vec<Suite> = named.iter().flat_map(|s| s.0.clone()).collect();
    suites.sort_unstable();
    suites.dedup();
    suites
}

/// Parses the size of the workloads.
pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    text.parse().map_err(|e: meganeura::Error| e.to_string())
}

/// Parses a number of samples, which must be at least one.
pub(super) fn samples(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1 sample, found 0".to_owned()),
        Ok(samples) => Ok(samples),
        Err(_) => Err("expected a number of samples".to_owned()),
    }
}

pub(super) fn measure(args: &Args) -> Outcome {
    let config = Config::load()?;
    // Errors in files are reported before the measurements, which take minutes.
    let before = args.compare.as_deref().map(Record::read).transpose()?;
    let options = Options {
        suites: distinct(&args.suite),
        only: args.only.clone(),
        sizes: args.sizes,
        precision: args.precision.map(Precision::from),
        samples: args.samples,
    };
    let devices = open(&args.device, &config)?;
    for d in &devices {
        let rates = format!("{} ({}): {}", d.label(), d.info.kind.name(), d.peak_rates);
        say(args, &wrapped(&rates, columns(args.json), 2))?;
    }
    say(args, &about_sizes(&options, &devices))?;
    let table = Table::new(columns(args.json), devices.len() > 1);
    if let Some(note) = table.left_out() {
        say(args, &note)?;
    }
    // If standard output is closed, measuring ends.
    let mut failure = Ok(());
    let mut suite = None;
    let record = run(&devices, &options, &mut |progress| {
        let told = match progress {
            Progress::Begins(workload) if suite.replace(workload.suite) != Some(workload.suite) => {
                say(args, &format!("\n{}\n{}", workload.suite, table.head()))
            }
            Progress::Begins(_) => Ok(()),
            Progress::Measured(measurement) => say(args, &table.row(measurement)),
            Progress::Skipped(left) => say(
                args,
                &format!("{}: skipped {}: {}", left.workload, left.device, left.reason),
            ),
        };
        failure = told;
        match failure {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    failure?;
    if record
        .results
        .iter()
        .any(|m| m.share().is_some_and(|share| share > 1.0))
    {
        say(args, &wrapped(ABOVE_PEAK, columns(args.json), 2))?;
    }
    let comparison = before
        .map(|before| RecordComparison::new(&before, &record))
        .transpose()?;
    if let Some(comparison) = &comparison {
        say(args, &compared(comparison, columns(args.json)))?;
    }
    // A failed write must not lose the measurements.
    if args.json {
        line(record.to_json()?)?;
    }
    if let Some(path) = &args.html {
        write_page(path, &record, comparison.as_ref())?;
        say(args, &format!("\nthe page is in {}", path.display()))?;
    }
    Ok(if record.results.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Prints to standard error if standard output is only for JSON, otherwise to standard output.
fn say(args: &Args, text: &str) -> std::io::Result<()> {
    if args.json { notice(text) } else { line(text) }
}

/// Opens the named devices, each once; the selected one if there are no names.
pub(super) fn open(named: &[String], config: &Config) -> Result<Vec<BenchDevice>, Box<dyn std::error::Error>> {
    if named.is_empty() {
        return Ok(vec![BenchDevice::open(None, config)?]);
    }
    let mut devices: Vec<BenchDevice> = Vec::new();
    for selector in named {
        let more = match selector.as_str() {
            ALL => {
                let found = BenchDevice::open_all(config)?;
                for (selector, reason) in found.skipped {
                    notice(format_args!("skipped {selector}: {reason}"))?;
                }
                found.opened
            }
            one => vec![BenchDevice::open(Some(one), config)?],
        };
        let new = |device: &BenchDevice| devices.iter().all(|d| d.selector != device.selector);
        let more: Vec<BenchDevice> = more.into_iter().filter(new).collect();
        devices.extend(more);
    }
    Ok(devices)
}

fn about_sizes(options: &Options, devices: &[BenchDevice]) -> String {
    let sizes = options.sizes(devices);
    let smaller: Vec<&str> = devices
        .iter()
        .filter(|d| options.sizes.is_none() && Sizes::of(d.info.kind) > sizes)
        .map(|d| d.selector.as_str())
        .collect();
    let mut text = format!("workloads are {sizes}");
    if !smaller.is_empty() {
        text += &format!(
            ", because all devices run the same workloads; by itself, {} would get larger ones",
            smaller.join(" and ")
        );
    } else if sizes == Sizes::Small && options.sizes.is_none() {
        text += ", the default for devices emulated in software";
    }
    text
}

/// Note below the table that explains shares above 100 % of peak.
const ABOVE_PEAK: &str = "\nabove 100 % of peak: peak rates are measured with 64 MB; smaller data stay in a cache, or \
     the machine was busier when the peak was measured";

fn compared(comparison: &RecordComparison, columns: Option<usize>) -> String {
    // Width that remains after device, precision, ratio and mark.
    let name = columns.map_or(58, |columns| columns.saturating_sub(32).clamp(16, 58));
    let mut text = String::from("\ntime now / time before\n");
    for c in &comparison.peak_rates {
        if let Some([then, now]) = &c.replaced {
            text += &format!("{}: was {then}, is {now}\n", c.device);
        }
        text += &format!(
            "{}: copy rate {:.2}, matmul rate {:.2}, launch cost {:.2}\n",
            c.device, c.copies, c.matmuls, c.launches
        );
    }
    for c in &comparison.changes {
        let mark = match c.verdict {
            Verdict::Faster => "faster",
            Verdict::Slower => "SLOWER",
            Verdict::Same => "",
        };
        text += &format!(
            "{:<name$} {:<10} {:<5} {:>7.2} {mark}\n",
            shortened(&c.workload, name),
            c.device,
            c.precision.to_string(),
            c.ratio()
        );
    }
    text += &format!(
        "{} faster, {} slower, {} unchanged within the scatter of both",
        comparison.count(Verdict::Faster),
        comparison.count(Verdict::Slower),
        comparison.count(Verdict::Same)
    );
    if comparison.only_before + comparison.only_after > 0 {
        text += &format!(
            "; {} results are only in the earlier record, {} only in this run",
            comparison.only_before, comparison.only_after
        );
    }
    text
}

fn write_page(path: &Path, record: &Record, comparison: Option<&RecordComparison>) -> meganeura::Result<()> {
    let html = record.html(comparison);
    write_atomically(path, |out| out.write_all(html.as_bytes()))
}
