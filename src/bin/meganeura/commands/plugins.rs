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

/// The plugin crate that announces a rule set; none if it was registered otherwise.
fn origin_of_set(namespace: &str) -> String {
    registry::plugins()
        .iter()
        .find(|p| p.rule_sets.contains(&namespace))
        .map_or_else(String::new, |p| format!("crate {} {}", p.name, p.version))
}

fn core_origin() -> String {
    format!("crate meganeura-core {}", env!("CARGO_PKG_VERSION"))
}

pub(crate) fn run(args: &Args) -> Outcome {
    let problems: Vec<String> = registry::problems()
        .iter()
        .chain(&registry::op_problems())
        .chain(&registry::rule_set_problems())
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
    for registered in registry::rule_sets() {
        let set = &registered.set;
        let ops: Vec<&str> = set.ops.iter().map(|op| op.name()).collect();
        let rules: Vec<&str> = registered.rules.iter().map(|r| r.name.as_str()).collect();
        line(json!({
            "kind": "rule_set", "name": set.namespace, "version": set.version, "applies": set.applies.name(),
            "rules": rules, "ops": ops, "kernels": set.kernels, "origin": origin_of_set(&set.namespace),
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
    print_rule_sets()?;
    for problem in problems {
        line(format_args!("problem: {problem}"))?;
    }
    Ok(())
}

fn print_rule_sets() -> std::io::Result<()> {
    line("rule sets:")?;
    let sets = registry::rule_sets();
    if sets.is_empty() {
        line("  none registered")?;
    }
    for registered in sets {
        let set = &registered.set;
        let version = format!("v{}", set.version);
        let rules = format!("{} rules", registered.rules.len());
        let origin = origin_of_set(&set.namespace);
        let row = format!(
            "  {:<12} {version:<8} {rules:<10} {:<10} {origin}",
            set.namespace,
            set.applies.name()
        );
        line(row.trim_end())?;
        for op in set.ops.iter() {
            line(format_args!("    operator {}", op.name()))?;
        }
        for (backend, op) in set.kernels.iter() {
            line(format_args!("    kernel   {backend} {op}"))?;
        }
    }
    Ok(())
}
