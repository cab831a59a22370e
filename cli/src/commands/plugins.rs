//! Command `meganeura plugins`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use meganeura::config::Config;
use meganeura::plugins::{PluginContents, Report, check_plugin, loaded, open_data};
use meganeura::registry;
use meganeura::rewrite::verify::{Outcome as Found, RuleVerdict, VerifyOptions, verify_rule};
use serde_json::json;

use super::Outcome;
use crate::output::{aligned, columns, line, lines};

/// Maximum number of operator names in a row of a listing.
const NAMES_IN_A_ROW: usize = 4;

/// Options of `plugins`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object per line.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Test the rules of one rule set, or of all, on generated graphs.
    ///
    /// For each rule, graphs that match its left-hand side are generated. Both sides of the rule are computed with the
    /// reference definitions of the operators, and their results are compared. For rules that apply before
    /// differentiation, the gradients are compared too. If the sides differ, or no matching graph is found, the
    /// failing case is printed and the exit code is 1.
    Verify(VerifyArgs),

    /// Check whether a plugin can be loaded.
    ///
    /// The command loads the plugin, so code of a shared object runs. The exit code is 1 if the plugin cannot be
    /// loaded.
    Check {
        /// Folder or file `*.toml` of a plugin without native code, or a shared object.
        #[arg(value_name = "PATH")]
        path: PathBuf,

        /// Plugin without native code to load first, because the checked plugin has rules for its operators. May be
        /// repeated.
        #[arg(long, value_name = "PATH")]
        after: Vec<PathBuf>,
    },
}

impl Args {
    /// Returns true if the command checks a single plugin.
    pub(crate) fn checks(&self) -> bool {
        matches!(self.command, Some(Command::Check { .. }))
    }
}

/// Options of `plugins verify`.
#[derive(Debug, clap::Args)]
struct VerifyArgs {
    /// Rule set to check; see `meganeura plugins` [default: all]
    #[arg(value_name = "SET")]
    set: Option<String>,

    /// Number of generated graphs per rule.
    #[arg(long, value_name = "N", default_value_t = VerifyOptions::default().cases)]
    cases: usize,

    /// Seed of the random graphs and data.
    #[arg(long, value_name = "N", default_value_t = VerifyOptions::default().seed)]
    seed: u64,
}

/// Returns the origin of an operator: the crate or plugin that contains it, with its version, or the core.
fn origin_of_op(name: &str) -> String {
    let plugins = registry::plugins();
    let linked = plugins.iter().find(|p| p.ops.contains(&name));
    let linked = linked.map(|p| format!("crate {} {}", p.name, p.version));
    let brings = |report: &Report| {
        report
            .brings
            .as_ref()
            .is_some_and(|b| b.ops.iter().any(|op| op == name))
    };
    linked.or_else(|| origin_of_data(brings)).unwrap_or_else(core_origin)
}

/// Returns the crate or plugin that contains a rule set, with its version; empty if the set was registered in another
/// way.
fn origin_of_set(namespace: &str) -> String {
    let plugins = registry::plugins();
    let linked = plugins.iter().find(|p| p.rule_sets.contains(&namespace));
    let linked = linked.map(|p| format!("crate {} {}", p.name, p.version));
    let is_own = |report: &Report| report.brings.is_some() && report.name.as_deref() == Some(namespace);
    linked.or_else(|| origin_of_data(is_own)).unwrap_or_default()
}

/// Returns the name and version of the first loaded plugin without native code that satisfies the predicate.
fn origin_of_data(is_it: impl Fn(&Report) -> bool) -> Option<String> {
    let report = loaded().into_iter().find(is_it)?;
    Some(format!(
        "plugin {} {}",
        report.title(),
        report.version.unwrap_or_default()
    ))
}

fn core_origin() -> String {
    format!("crate meganeura-core {}", env!("CARGO_PKG_VERSION"))
}

pub(crate) fn run(args: &Args) -> Outcome {
    if let Some(Command::Check { path, after }) = &args.command {
        return run_check(path, after, args.json);
    }
    registry::load_backends(&Config::load()?);
    if let Some(Command::Verify(verify)) = &args.command {
        return run_verify(verify, args.json);
    }
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
    for report in loaded() {
        line(plugin_json(&report))?;
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

fn plugin_json(report: &Report) -> serde_json::Value {
    json!({
        "kind": "plugin", "name": report.name, "path": report.path.display().to_string(),
        "sha256": report.sha256, "version": report.version, "description": report.description,
        "abi": report.abi, "brings": report.brings.as_ref().map(brings_json),
        "loaded": report.refused.is_none(), "refused": report.refused,
    })
}

fn run_check(path: &Path, after: &[PathBuf], json: bool) -> Outcome {
    for earlier in after {
        open_data(&std::path::absolute(earlier)?, None)?;
    }
    let report = check_plugin(&std::path::absolute(path)?, None)?;
    if json {
        line(plugin_json(&report))?
    } else {
        print_plugin(&report)?
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads the plugins from the environment and the configuration.
///
/// # Errors
/// Some plugins were refused; the message contains the reasons.
pub(crate) fn refuse_if_any_is_refused() -> Result<(), Box<dyn std::error::Error>> {
    registry::load_backends(&Config::load()?);
    let refused: Vec<String> = loaded()
        .into_iter()
        .filter_map(|report| Some(format!("plugin '{}': {}", report.title(), report.refused?)))
        .collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{}\n  help: correct the list of plugins, or leave --strict-plugins out",
            refused.join("\n")
        )
        .into())
    }
}

fn print_text(problems: &[String]) -> std::io::Result<()> {
    line("backends:")?;
    let backends = registry::backends();
    let rows: Vec<Vec<String>> = backends
        .iter()
        .map(|backend| backend.info())
        .map(|info| {
            [&info.name, &info.version, &info.origin]
                .map(ToString::to_string)
                .to_vec()
        })
        .collect();
    aligned(&rows)
        .iter()
        .try_for_each(|row| line(format_args!("  {row}")))?;
    for known in registry::KNOWN_BACKENDS {
        if !backends.iter().any(|b| b.info().name == known.name) {
            line(format_args!("  {:<12} not linked: {}", known.name, known.how))?;
        }
    }
    loaded().iter().try_for_each(print_plugin)?;
    let mut by_origin: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for op in registry::ops() {
        by_origin.entry(origin_of_op(op.name())).or_default().push(op.name());
    }
    for (origin, names) in by_origin {
        line(format_args!("operators of {origin} ({}):", names.len()))?;
        in_rows(&names)
            .iter()
            .try_for_each(|row| line(format_args!("  {row}")))?;
    }
    print_rule_sets()?;
    for problem in problems {
        line(format_args!("problem: {problem}"))?;
    }
    Ok(())
}

/// Arranges names in the maximum number of columns that fits into the terminal.
fn in_rows(names: &[&str]) -> Vec<String> {
    let rows = |count: usize| -> Vec<String> {
        let rows = names.chunks(count);
        let rows: Vec<Vec<String>> = rows.map(|row| row.iter().map(ToString::to_string).collect()).collect();
        aligned(&rows)
    };
    let room = columns(false).map_or(usize::MAX, |columns| columns.saturating_sub(2));
    let fits = |rows: &Vec<String>| rows.iter().all(|row| row.chars().count() <= room);
    let mut most = (2..=NAMES_IN_A_ROW).rev().map(rows);
    most.find(fits).unwrap_or_else(|| rows(1))
}

fn print_plugin(report: &Report) -> std::io::Result<()> {
    line(format_args!("plugin {}:", report.path.display()))?;
    let backend = report.name.as_ref().map(|name| format!("the backend '{name}'"));
    let data = report.brings.as_ref().map(brings_text);
    let rows = [
        ("brings", data.or(backend).filter(|_| report.refused.is_none())),
        ("version", report.version.clone()),
        ("about", report.description.clone()),
        ("interface", report.abi.clone()),
        ("sha256", report.sha256.clone()),
        ("refused", report.refused.clone()),
    ];
    for (what, value) in rows {
        if let Some(value) = value {
            lines(format_args!("  {what:<12} {value}"), 15)?;
        }
    }
    Ok(())
}

fn brings_json(brings: &PluginContents) -> serde_json::Value {
    json!({ "ops": brings.ops, "rules": brings.rules, "kernels": brings.kernels })
}

fn brings_text(brings: &PluginContents) -> String {
    let parts = [
        ("operators", &brings.ops),
        ("rules", &brings.rules),
        ("kernels", &brings.kernels),
    ];
    let parts = parts.iter().filter(|(_, names)| !names.is_empty());
    let parts: Vec<String> = parts
        .map(|(what, names)| format!("{what}: {}", names.join(", ")))
        .collect();
    parts.join("; ")
}

fn print_rule_sets() -> std::io::Result<()> {
    line("rule sets:")?;
    let sets = registry::rule_sets();
    if sets.is_empty() {
        line("  none registered")?;
    }
    let rows: Vec<Vec<String>> = sets
        .iter()
        .map(|registered| {
            let set = &registered.set;
            vec![
                set.namespace.to_string(),
                format!("v{}", set.version),
                format!("{} rules", registered.rules.len()),
                set.applies.name().to_string(),
                origin_of_set(&set.namespace),
            ]
        })
        .collect();
    for (registered, row) in sets.iter().zip(aligned(&rows)) {
        let set = &registered.set;
        line(format_args!("  {row}"))?;
        for op in set.ops.iter() {
            line(format_args!("    operator {}", op.name()))?;
        }
        for (backend, op) in set.kernels.iter() {
            line(format_args!("    kernel   {backend} {op}"))?;
        }
    }
    Ok(())
}

fn run_verify(args: &VerifyArgs, json: bool) -> Outcome {
    let mut sets = registry::rule_sets();
    if let Some(wanted) = &args.set {
        let known: Vec<String> = sets.iter().map(|s| s.set.namespace.to_string()).collect();
        sets.retain(|s| s.set.namespace == *wanted);
        if sets.is_empty() {
            return Err(format!("there is no rule set '{wanted}'; there are: {}", known.join(", ")).into());
        }
    }
    let options = VerifyOptions {
        cases: args.cases.max(1),
        seed: args.seed,
        ..VerifyOptions::default()
    };
    let (mut count, mut failures) = (0, 0);
    for rule in sets.iter().flat_map(|s| &s.rules) {
        let verdict = verify_rule(rule, &options);
        count += 1;
        failures += usize::from(!verdict.is_sound());
        if json {
            line(verdict_json(&verdict))?;
        } else {
            line(&verdict)?;
        }
    }
    if json {
        line(json!({ "kind": "summary", "rules": count, "failures": failures }))?;
    } else {
        line(format_args!("{count} rules, {failures} failures"))?;
    }
    Ok(if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn verdict_json(verdict: &RuleVerdict) -> serde_json::Value {
    let (sides, cases, message) = match &verdict.outcome {
        Found::Sound { cases, .. } => (None, *cases, None),
        Found::Wrong { case, difference } => (Some(case), 0, Some(difference)),
        Found::IllTyped { case, message } => (Some(case), 0, Some(message)),
        Found::Failed { message } => (None, 0, Some(message)),
        Found::NoWitness => (None, 0, None),
    };
    json!({
        "kind": "rule", "set": verdict.rule.set, "rule": verdict.rule.name, "verdict": verdict.outcome.name(),
        "place": verdict.rule.place(), "cases": cases, "message": message,
        "before": sides.map(|s| &s.before), "after": sides.map(|s| &s.after),
    })
}
