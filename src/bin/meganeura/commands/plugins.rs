//! `meganeura plugins`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use meganeura::registry;
use serde_json::json;

use super::Outcome;
use crate::output::line;

/// Options of `plugins`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// The plugin crate that announces an operator, or the core.
fn origin_of_op(name: &str) -> String {
    registry::plugins()
        .iter()
        .find(|p| p.ops.contains(&name))
        .map_or_else(core_origin, |p| format!("crate {} {}", p.name, p.version))
}

fn core_origin() -> String {
    format!("crate meganeura-core {}", env!("CARGO_PKG_VERSION"))
}

pub(crate) fn run(args: &Args) -> Outcome {
    let problems: Vec<String> = registry::problems()
        .iter()
        .chain(&registry::op_problems())
        .map(ToString::to_string)
        .collect();
    if args.json {
        print_json(&problems)?;
    } else {
        print_text(&problems)?;
    }
    let code = if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    Ok(code)
}

fn print_json(problems: &[String]) -> std::io::Result<()> {
    for backend in registry::backends() {
        let info = backend.info();
        line(json!({
            "kind": "backend", "name": info.name, "version": info.version, "origin": info.origin,
        }))?;
    }
    for op in registry::ops() {
        line(json!({
            "kind": "op", "name": op.name(), "version": op.version(), "origin": origin_of_op(op.name()),
            "formula": op.doc().formula, "source": op.doc().source,
        }))?;
    }
    for problem in problems {
        line(json!({ "kind": "problem", "message": problem }))?;
    }
    Ok(())
}

fn print_text(problems: &[String]) -> std::io::Result<()> {
    line("backends:")?;
    let backends = registry::backends();
    for backend in &backends {
        let info = backend.info();
        line(format_args!("  {:<12} {:<8} {}", info.name, info.version, info.origin))?;
    }
    for known in registry::KNOWN_BACKENDS {
        if !backends.iter().any(|b| b.info().name == known.name) {
            line(format_args!("  {:<12} not linked: {}", known.name, known.how))?;
        }
    }
    let mut by_origin: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for op in registry::ops() {
        by_origin.entry(origin_of_op(op.name())).or_default().push(op.name());
    }
    for (origin, names) in by_origin {
        line(format_args!("operators of {origin} ({}):", names.len()))?;
        for row in names.chunks(4) {
            let cells: Vec<String> = row.iter().map(|n| format!("{n:<26}")).collect();
            line(format_args!("  {}", cells.concat().trim_end()))?;
        }
    }
    line("rule sets:\n  none registered")?;
    for problem in problems {
        line(format_args!("problem: {problem}"))?;
    }
    Ok(())
}
