//! HTML page of a graph: before and after rewriting, its plan, and costs.
//!
//! The page is one file without external references.

mod kernels;
mod layout;
mod tensors;

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use meganeura::backend::KernelSource;
use meganeura::graph::{Graph, Node, NodeId, NodeKind};
use meganeura::optimize::OptimizeReport;
use meganeura::plan::{BufferRef, FORWARD_BACKWARD};
use meganeura::rewrite::{Target, call_cost};
use meganeura::session::Timings;
use meganeura::shape::TensorType;
use meganeura::{ExecutionPlan, Result, registry};
use meganeura_bench::html::{STYLE, escaped};

use layout::Layout;

pub use tensors::{ReportTensor, tensors};

/// Contents of the page.
pub struct Report<'a> {
    /// Heading: model and mode.
    pub title: String,
    /// Device, versions and settings.
    pub environment: Vec<(String, String)>,
    /// The graph with its gradients, before rewriting.
    pub before: &'a Graph,
    /// The graph that is compiled.
    pub after: &'a Graph,
    /// The report of rewriting.
    pub optimization: &'a OptimizeReport,
    /// The compiled graph.
    pub plan: &'a ExecutionPlan,
    /// Source code of the plan's kernels ([`Device::kernel_sources`](meganeura::backend::Device::kernel_sources)); empty if
    /// kernels are not generated.
    pub kernels: &'a [KernelSource],
    /// Cost model of the dispatches.
    pub target: &'a dyn Target,
    /// Measured times of dispatches, if available.
    pub timings: Option<&'a Timings>,
    /// Statistics of the tensors of a step, if they were collected ([`tensors`]).
    pub tensors: &'a [ReportTensor],
}

impl Report<'_> {
    /// Returns the page as HTML.
    ///
    /// # Errors
    /// The graph has a cycle.
    pub fn html(&self) -> Result<String> {
        // A name must not contain `</script>` or a placeholder of the template. Both can only occur within strings here.
        let data = self
            .data()?
            .to_string()
            .replace('<', "\\u003c")
            .replace("{{", "{\\u007b");
        let program = concat!(
            include_str!("page/graph.js"),
            include_str!("page/plan.js"),
            include_str!("page/kernels.js"),
            include_str!("page/tensors.js"),
            include_str!("page/page.js")
        );
        Ok(include_str!("page/page.html")
            .replace("{{style}}", STYLE)
            .replace("{{program}}", program)
            .replace("{{data}}", &data)
            .replace("{{title}}", &escaped(&self.title)))
    }

    /// Returns the data of the page.
    ///
    /// # Errors
    /// The graph has a cycle.
    pub fn data(&self) -> Result<Json> {
        let report = self.optimization;
        let mut marks: HashMap<NodeId, String> = HashMap::new();
        for cluster in &report.clusters {
            marks.insert(cluster.node, "cluster".into());
        }
        for fusion in &report.fusions {
            if let Some(node) = fusion.node {
                marks.insert(node, fusion.rule.clone());
            }
        }
        let fusions = report.fusions.iter().map(|f| {
            json!({ "rule": f.rule, "set": f.rule_set, "name": f.node_name, "ps": f.saving_ps,
                "node": f.node.map(|node| node.0) })
        });
        let clusters = report.clusters.iter().map(
            |c| json!({ "node": c.node.0, "name": c.label, "calls": c.calls, "program": c.program, "ps": c.saving_ps }),
        );
        let timings = self.timings.map(|t| {
            let rows = t.rows.iter();
            rows.map(|r| json!({ "label": r.label, "count": r.count, "us": r.total.as_secs_f64() * 1e6 }))
                .collect::<Vec<_>>()
        });
        let (texts, kernels) = kernels::data(self.plan, self.kernels);
        Ok(json!({
            "title": self.title,
            "environment": self.environment,
            "before": graph_data(self.before, &HashMap::new())?,
            "after": graph_data(self.after, &marks)?,
            "fusions": fusions.collect::<Vec<_>>(),
            "clusters": clusters.collect::<Vec<_>>(),
            "fired": report.rules_fired,
            "cost": {
                "before": report.cost_before_ps,
                "rewritten": report.cost_after_ps,
                "clustered": report.clustered_cost_ps,
                "greedy": report.greedy_cost_ps,
                "exact": report.extraction_exact,
                "budget": report.budget_hit,
            },
            "ms": {
                "saturation": report.egglog_time.as_secs_f64() * 1e3,
                "extraction": report.extract_time.as_secs_f64() * 1e3,
                "clustering": report.cluster_time.as_secs_f64() * 1e3,
            },
            "plan": self.plan_data(&kernels),
            "kernels": texts,
            "memory": self.memory_data(),
            "timings": timings,
            "tensors": tensors::data(self.tensors),
        }))
    }

    fn plan_data(&self, kernels: &[Vec<Json>]) -> Json {
        let plan = self.plan;
        let dispatches: Vec<Json> = plan
            .dispatches
            .iter()
            .zip(kernels)
            .map(|(d, kernels)| {
                let types = d.types();
                let call = d.kernel_desc(&types);
                let ps = registry::op(&d.kernel.name).map(|op| call_cost(self.target, op, &call.call()));
                let [inputs, outputs] = &types;
                json!({
                    "kernel": d.title(),
                    "label": d.label,
                    "level": d.level,
                    "coop": d.use_coop,
                    "kernels": kernels,
                    "ps": ps,
                    "in": inputs.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "out": outputs.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "bytes": inputs.iter().chain(outputs).map(TensorType::bytes).sum::<usize>(),
                })
            })
            .collect();
        let segments = plan.segments.iter();
        let segments = segments.map(|s| json!({ "name": s.name, "first": s.first, "count": s.count, "once": s.once }));
        let levels = plan.segment(FORWARD_BACKWARD).map_or(0, |segment| plan.levels(segment));
        json!({
            "dispatches": dispatches,
            // The numbers that the terminal output shows.
            "step_dispatches": plan.step_dispatches().count(),
            "prepared_dispatches": plan.prepared_dispatches().count(),
            "step_levels": levels,
            "is_recomputed": plan.recomputation.is_some(),
            "segments": segments.collect::<Vec<_>>(),
            "buffers": plan.buffers.len(),
            "bytes": plan.total_bytes(),
        })
    }
}

impl Report<'_> {
    /// Returns the location and lifetime of each buffer in memory; null for a plan without a memory layout.
    fn memory_data(&self) -> Json {
        let plan = self.plan;
        if plan.memory.offsets.is_empty() {
            return Json::Null;
        }
        let mut names: Vec<Option<(&str, &str)>> = vec![None; plan.buffers.len()];
        for d in plan.dispatches.iter().rev() {
            for output in &d.outputs {
                names[output.buffer.index()] = Some((&d.label, "transient"));
            }
        }
        let constants = plan.constant_buffers.iter().map(|(b, _)| (*b, "constant"));
        let raw = plan.raw_constant_buffers.iter().map(|(b, _)| (*b, "constant"));
        let results = plan.output_buffers.iter().map(|b| (*b, "output"));
        for (buffer, kind) in constants.chain(raw).chain(results) {
            let label = names[buffer.index()].map_or(kind, |(label, _)| label);
            names[buffer.index()] = Some((label, kind));
        }
        let named = |list: &'_ [(String, BufferRef)], kind: &'static str| -> Vec<(BufferRef, String, &'static str)> {
            list.iter().map(|(name, b)| (*b, name.clone(), kind)).collect()
        };
        let persistent = [
            named(&plan.gradient_buffers, "gradient"),
            named(&plan.scalar_buffers, "scalar"),
            named(&plan.input_buffers, "input"),
            named(&plan.param_buffers, "parameter"),
        ];
        let persistent = persistent.concat();
        for (buffer, name, kind) in &persistent {
            names[buffer.index()] = Some((name, kind));
        }
        for state in &plan.state_buffers {
            names[state.buffer.index()] = Some((&state.name, "state"));
        }
        let levels: usize = plan.segments.iter().map(|s| plan.levels(s)).sum();
        let lives = plan.lifetimes();
        let slots = (0..plan.buffers.len()).filter(|&i| plan.buffers[i] > 0).map(|i| {
            let (name, kind) = names[i].unwrap_or(("", "unused"));
            let (first, last) = lives[i].map_or((0, levels.saturating_sub(1)), |l| (l.first, l.last));
            json!({ "name": name, "kind": kind, "offset": plan.memory.offsets[i], "bytes": plan.buffers[i],
                "first": first, "last": last })
        });
        let forecast = plan.memory_forecast();
        json!({
            "peak": plan.memory.bytes,
            "bound": forecast.lower_bound,
            "unplanned": forecast.unplanned,
            "levels": levels,
            "slots": slots.collect::<Vec<_>>(),
        })
    }
}

/// Returns nodes with their positions. Repeated text is written once and referred to by index, which keeps pages small.
fn graph_data(graph: &Graph, marks: &HashMap<NodeId, String>) -> Result<Json> {
    let order: Vec<usize> = graph.topological_order()?.iter().map(|id| id.index()).collect();
    let layout = Layout::new(graph, &order);
    let mut texts = Texts::default();
    let nodes: Vec<Json> = graph
        .nodes()
        .iter()
        .enumerate()
        .map(|(i, node)| {
            let types: Vec<String> = node.outputs.iter().map(ToString::to_string).collect();
            json!([
                texts.number(node.name.as_deref().unwrap_or_default()),
                texts.number(node.kind.noun()),
                texts.number(&types.join(", ")),
                texts.number(&details(node)),
                texts.number(&node.location.map(|l| l.to_string()).unwrap_or_default()),
                texts.number(marks.get(&NodeId::new(i as u32)).map_or("", String::as_str)),
                (layout.x[i] * 100.0).round() / 100.0,
                layout.y[i],
                node.inputs.iter().map(|v| v.node.0).collect::<Vec<_>>(),
            ])
        })
        .collect();
    let outputs: Vec<u32> = graph.roots().map(|v| v.node.0).collect();
    Ok(json!({ "nodes": nodes, "texts": texts.list, "roots": outputs }))
}

/// Returns the attributes of a call, or the kind of a leaf.
fn details(node: &Node) -> String {
    match &node.kind {
        NodeKind::Op { attrs, .. } => attrs.to_string(),
        NodeKind::Parameter { trainable: false, .. } => "frozen".into(),
        NodeKind::Parameter { packing: Some(_), .. } => "packed".into(),
        _ => String::new(),
    }
}

/// Distinct texts by index.
#[derive(Default)]
struct Texts {
    list: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Texts {
    fn number(&mut self, text: &str) -> usize {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), self.list.len() - 1);
        self.list.len() - 1
    }
}
