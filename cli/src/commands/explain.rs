//! Command `meganeura explain`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use meganeura::builder::prepare;
use meganeura::config::Config;
use meganeura::graph::NodeKind;
use meganeura::nn::models::{PRESETS, preset};
use meganeura::optimize::{Fusion, OptimizeReport};
use meganeura::plan::MemoryBudget;
use meganeura::rewrite::{RewriteConfig, SimulatedDevice, Target};
use meganeura::{Graph, Mode, select};
use serde_json::{Value, json};

use super::onnx::{self, DimOptions};
use super::planned::TimedPlan;
use super::scaling::ScalingOptions;
use super::workload::{LanguageModel, LanguageOptions};
use super::{Outcome, kernels, page};
use crate::commands::outputs::keep_inputs;
use crate::output::{line, lines};

/// Options of `explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a model, a checkpoint folder, a GGUF file or an ONNX file [default: print the list of models]
    model: Option<String>,

    /// Explain a training step instead of inference.
    #[arg(long)]
    train: bool,

    /// Device to rewrite for; see `meganeura devices`.
    #[arg(long, value_name = "SEL", conflicts_with = "simulated_gpu")]
    device: Option<String>,

    /// Rewrite for a simulated discrete GPU (5 us per launch, 500 GB/s, 20 TFLOP/s, kernels for all operators) instead
    /// of a device of this machine.
    #[arg(long)]
    simulated_gpu: bool,

    /// Number of rows: tokens of a sequence, or examples of a batch.
    #[arg(long, value_name = "N")]
    seq: Option<usize>,

    /// Memory limit of the plan: a size (4GB), or a share of the plan's memory without a limit (50%), of its
    /// activation memory (50%:step), or of the device's memory (80%:device). Activations are recomputed (gradient
    /// checkpointing) to stay below it.
    #[arg(long, value_name = "BUDGET")]
    memory_budget: Option<MemoryBudget>,

    /// Rule set (group of rewrite rules) to disable; `meganeura plugins` lists them. May be repeated.
    #[arg(long, value_name = "SET")]
    disable: Vec<String>,

    /// Cache file of the compiled plan. If the file is missing or contains another plan, it is written. The time to
    /// load the plan from it is measured.
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// Print only the rewrite program, in egglog.
    #[arg(long, conflicts_with = "json")]
    program: bool,

    /// Print only the rewritten graph, in Graphviz's DOT language.
    #[arg(long, conflicts_with_all = ["json", "program"])]
    dot: bool,

    /// Write an HTML page with graphs, plan and costs.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// With --html: run this number of steps on the device with random data, and show measured times and statistics of
    /// parameters, gradients and activations.
    #[arg(long, value_name = "N", requires = "html", conflicts_with = "simulated_gpu")]
    profile: Option<usize>,

    #[command(flatten)]
    language: LanguageOptions,

    #[command(flatten)]
    scaling: ScalingOptions,

    #[command(flatten)]
    dims: DimOptions,

    #[command(flatten)]
    kernels: kernels::KernelArgs,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let Some(name) = &args.model else {
        for p in PRESETS {
            lines(format_args!("{:14} {} ({} rows)", p.name, p.about, p.rows), 15)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    // If a preset and a file have the same name, the file is not read, but it is not overwritten either.
    keep_inputs(&[("--html", args.html.as_deref())], [Path::new(name)])?;
    let (graph, rows) = subject(name, args)?;
    let settings = Config::load()?;
    let simulated = SimulatedDevice::discrete_gpu();
    let (opened, device) = if args.simulated_gpu {
        (None, "a discrete GPU (simulated)".to_owned())
    } else {
        let selected = select::select(args.device.as_deref(), &settings)?;
        (Some(selected.open(&settings)?), selected.selector.clone())
    };
    let target: &dyn Target = opened.as_ref().map_or(&simulated, |device| device);
    let mut plain = settings.rewrite;
    plain.disable.extend(args.disable.iter().cloned());
    plain.memory_budget = args.memory_budget.or(plain.memory_budget);
    let config = RewriteConfig {
        baseline: true,
        ..plain.clone()
    };
    let mode = if args.train { Mode::Training } else { Mode::Inference };
    let (rewritten, report) = prepare(&graph, mode, target, &config, None)?;
    let what = if args.train { "training step" } else { "inference" };
    let planned = match &opened {
        Some(device) => TimedPlan::on(device, &graph, mode, &plain, args.cache.as_deref())?,
        None => TimedPlan::simulated(&simulated, &graph, mode, &plain, args.cache.as_deref())?,
    };
    if let Some(file) = &args.html {
        let subject = page::Subject {
            title: format!("{name}, {what}, {rows} rows, for {device}"),
            device: opened.as_ref(),
            target,
            graph: &graph,
            rewritten: &rewritten,
            plan: &planned.plan,
            mode,
            config: &config,
            report: &report,
        };
        subject.write(file, args.profile)?;
    }
    if let (true, Some(opened)) = (args.kernels.kernels, &opened) {
        return args.kernels.print(opened.as_ref(), &device, &planned.plan, args.json);
    }
    if args.dot {
        line(rewritten.to_dot().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.program {
        line(&report.egglog_program)?;
        return Ok(ExitCode::SUCCESS);
    }
    let scaling = args.scaling.estimate(&planned.plan, target)?;
    if args.json {
        let mut object = object(name, mode, rows, &device, &report, &planned);
        if let Some(scaling) = &scaling {
            object["scaling"] = scaling.object();
        }
        line(object)?;
    } else {
        line(format_args!("{name}, {what}, {rows} rows, for {device}\n"))?;
        lines(report.to_string().trim_end(), 4)?;
        planned.show()?;
        places(&report)?;
        if let Some(scaling) = &scaling {
            scaling.show()?;
        }
        if let Some(file) = &args.html {
            line(format_args!("\nThe page is in {}", file.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the graph of a model name or an ONNX file, and its number of rows.
fn subject(name: &str, args: &Args) -> Result<(Graph, usize), Box<dyn Error>> {
    if onnx::is_file(name) {
        if args.train || args.seq.is_some() {
            return Err("--train and --seq do not work with ONNX files; see --dim".into());
        }
        if let Some(option) = args.language.given() {
            return Err(format!("{option} does not work with ONNX files such as '{name}'").into());
        }
        let graph = onnx::graph(name, &args.dims)?;
        // The first dimension of the first input.
        let input = graph
            .node_ids()
            .find(|id| matches!(graph.nodes()[id.index()].kind, NodeKind::Input));
        let rows = input.and_then(|id| graph.shape(id).first().copied()).unwrap_or(1);
        return Ok((graph, rows));
    }
    if args.dims.any() {
        return Err(format!("--dim and --set work only with ONNX files, and '{name}' is not one").into());
    }
    if let Some(model) = LanguageModel::named(name)? {
        return Ok(args.language.graph(&model, args.seq, args.train)?);
    }
    let Some(model) = preset(name) else {
        let known: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
        return Err(format!(
            "there is no model '{name}', and it is not an ONNX file, a checkpoint folder or a GGUF file; there are: {}",
            known.join(", ")
        )
        .into());
    };
    if let Some(option) = args.language.given() {
        return Err(format!("{option} works only with language models, and '{name}' is not one").into());
    }
    let rows = args.seq.unwrap_or(model.rows);
    Ok((model.graph(rows), rows))
}

/// Prints fusions by rule: their number, the time that they save, and the first nodes.
fn places(report: &OptimizeReport) -> std::io::Result<()> {
    let mut rules: Vec<(&str, Vec<&Fusion>)> = Vec::new();
    for fusion in &report.fusions {
        match rules.iter_mut().find(|(rule, _)| *rule == fusion.rule) {
            Some((_, list)) => list.push(fusion),
            None => rules.push((&fusion.rule, vec![fusion])),
        }
    }
    let saving = |list: &[&Fusion]| list.iter().map(|f| f.saving_ps).sum::<i64>();
    rules.sort_by_key(|(_, list)| -saving(list));
    if !rules.is_empty() {
        line("\nSavings by rule (estimated, per step):")?;
    }
    for (rule, list) in rules {
        const SHOWN: usize = 3;
        let names: Vec<&str> = list.iter().take(SHOWN).map(|f| f.node_name.as_str()).collect();
        let rest = match list.len().saturating_sub(SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let saved = saving(&list) as f64 * 1e-6;
        let text = format!(
            "  {saved:>10.1} us  {rule}  x{}  at {}{rest}",
            list.len(),
            names.join(", ")
        );
        lines(text, 17)?;
    }
    Ok(())
}

fn object(model: &str, mode: Mode, rows: usize, device: &str, report: &OptimizeReport, planned: &TimedPlan) -> Value {
    let fusions: Vec<Value> = report
        .fusions
        .iter()
        .map(|f| {
            json!({
                "rule": f.rule,
                "rule_set": f.rule_set,
                "node": f.node.map(|node| node.0),
                "name": f.node_name,
                "saving_ps": f.saving_ps,
            })
        })
        .collect();
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let forecast = planned.plan.memory_forecast();
    let fired: serde_json::Map<String, Value> = report.rules_fired.iter().map(|(r, n)| (r.clone(), json!(n))).collect();
    json!({
        "model": model,
        "mode": if mode == Mode::Training { "training" } else { "inference" },
        "rows": rows,
        "device": device,
        "nodes_before": report.nodes_before,
        "nodes_after": report.nodes_after,
        "num_enodes": report.num_enodes,
        "num_eclasses": report.num_eclasses,
        "rewrite_ms": ms(report.egglog_time + report.extract_time),
        "saturation_ms": ms(report.egglog_time),
        "extraction_ms": ms(report.extract_time),
        "extraction_exact": report.extraction_exact,
        "budget_hit": report.budget_hit,
        "cost_before_ps": report.cost_before_ps,
        "cost_after_ps": report.cost_after_ps,
        "greedy_cost_ps": report.greedy_cost_ps,
        "clustered_cost_ps": report.clustered_cost_ps,
        "clusters": report.clusters.iter().map(|c| json!({ "name": c.label, "calls": c.calls, "program": c.program })).collect::<Vec<_>>(),
        "dispatches": planned.plan.step_dispatches().count(),
        "prepared_dispatches": planned.plan.prepared_dispatches().count(),
        "levels": planned.levels(),
        "peak_bytes_planned": forecast.planned,
        "peak_bytes_unplanned": forecast.unplanned,
        "peak_bytes_lower_bound": forecast.lower_bound,
        "workspace_bytes": planned.workspace_bytes,
        "recomputation": planned.plan.recomputation.as_ref().map(|r| json!({
            "budget_bytes": r.budget,
            "peak_bytes_without": r.peak_without,
            "dispatches": r.repeated.iter().map(|&i| &planned.plan.dispatches[i as usize].label).collect::<Vec<_>>(),
            "extra_ps": r.extra_ps,
            "step_ps": r.step_ps,
            "slow_down": r.slow_down(),
        })),
        "build_ms": planned.build_ms,
        "cached_load_ms": planned.cached_load_ms,
        "rules_fired": fired,
        "fusions": fusions,
    })
}
