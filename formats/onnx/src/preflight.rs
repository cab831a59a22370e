//! What importing a model would meet, all at once.

use std::fmt;

use meganeura_core::graph::{Graph, NodeKind};
use serde::Serialize;

use crate::error::{Issue, IssueKind};
use crate::import::{ImportOptions, try_import};
use crate::model::{Dim, Model, Port};

/// What a model is, and what is in the way of importing it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Inputs as the file declares them.
    pub inputs: Vec<Port>,
    /// Results as the file declares them; with the sizes that they have, if the model can be imported.
    pub outputs: Vec<Port>,
    /// Domains with the versions of their operators.
    pub opsets: Vec<(String, i64)>,
    /// Nodes of the file, without those of branches and functions.
    pub nodes: usize,
    /// Everything that is in the way; the model can be imported if there is nothing.
    pub issues: Vec<Issue>,
    /// What would be computed otherwise than the model says, such as `f64` in `f32`.
    pub notes: Vec<String>,
    /// What running it takes, if it can be imported.
    pub estimate: Option<Estimate>,
}

/// What running a model takes, before it is rewritten and planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Estimate {
    /// Operators of the graph.
    pub operators: usize,
    /// Bytes of the parameters.
    pub parameter_bytes: u64,
    /// Bytes of all intermediate results, of which a plan keeps only those that are needed at a time.
    pub activation_bytes: u64,
    /// Floating-point operations of one run.
    pub flops: u64,
}

/// Everything about a model that can be said without building it for a device.
pub(crate) fn preflight(model: &Model, options: &ImportOptions) -> Report {
    let (import, issues) = try_import(model, options);
    let mut report = Report::of_issues(model, issues);
    if let Some(import) = import.filter(|_| report.issues.is_empty()) {
        for (port, found) in report.outputs.iter_mut().zip(&import.outputs) {
            port.dims = Some(found.dims.iter().map(|&size| Dim::Size(size)).collect());
        }
        report.notes = import.notes;
        report.estimate = Some(estimate(&import.graph));
    }
    report
}

/// Sums over the operators of a graph.
fn estimate(graph: &Graph) -> Estimate {
    let mut estimate = Estimate {
        operators: 0,
        parameter_bytes: 0,
        activation_bytes: 0,
        flops: 0,
    };
    for node in graph.nodes() {
        let bytes = |ty: &meganeura_core::TensorType| ty.dtype.storage_bytes(ty.shape.numel()).unwrap_or(0) as u64;
        let of_results: u64 = node.outputs.iter().map(bytes).sum();
        match &node.kind {
            NodeKind::Parameter { .. } => estimate.parameter_bytes += of_results,
            _ if node.is_op() => {
                estimate.operators += 1;
                estimate.activation_bytes = estimate.activation_bytes.saturating_add(of_results);
                estimate.flops = estimate.flops.saturating_add(flops(graph, node));
            }
            _ => {}
        }
    }
    estimate
}

fn flops(graph: &Graph, node: &meganeura_core::graph::Node) -> u64 {
    let Some((op, attrs)) = node.op() else { return 0 };
    let inputs: Option<Vec<_>> = node.inputs.iter().map(|&v| graph.ty(v).cloned()).collect();
    let Some(inputs) = inputs else { return 0 };
    op.cost(&meganeura_core::ops::Call {
        attrs,
        inputs: &inputs,
        outputs: &node.outputs,
    })
    .flops
}

impl Report {
    /// A report of what is in the way.
    pub(crate) fn of_issues(model: &Model, issues: Vec<Issue>) -> Self {
        Report {
            inputs: model.inputs().to_vec(),
            outputs: model.outputs().to_vec(),
            opsets: model
                .opsets()
                .map(|(name, version)| (name.to_owned(), version))
                .collect(),
            nodes: model.graph_proto().map_or(0, |g| g.node.len()),
            issues,
            notes: Vec::new(),
            estimate: None,
        }
    }

    /// Whether the model can be imported.
    pub fn is_supported(&self) -> bool {
        self.issues.is_empty()
    }

    /// Whether a shape or a branch depends on the data of an input, which [`ImportOptions::constants`] can give.
    pub fn depends_on_data(&self) -> bool {
        self.issues.iter().any(|issue| issue.message.contains(DEPENDS_ON_DATA))
    }

    /// Whether the file itself is at fault, rather than what is supported.
    pub fn is_broken(&self) -> bool {
        self.issues
            .iter()
            .any(|issue| matches!(issue.kind, IssueKind::Broken | IssueKind::MissingData))
    }
}

/// What messages about such shapes say.
pub(crate) const DEPENDS_ON_DATA: &str = "depends on the data of an input";

/// Issues of one kind that are printed one by one.
const MAX_LISTED: usize = 50;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opsets: Vec<String> = self
            .opsets
            .iter()
            .map(|(name, version)| format!("{} {version}", if name.is_empty() { "ai.onnx" } else { name }))
            .collect();
        writeln!(f, "{} nodes, operators of {}", self.nodes, opsets.join(", "))?;
        for port in &self.inputs {
            writeln!(f, "  input  {port}")?;
        }
        for port in &self.outputs {
            writeln!(f, "  output {port}")?;
        }
        for note in &self.notes {
            writeln!(f, "  note   {note}")?;
        }
        if let Some(e) = &self.estimate {
            writeln!(
                f,
                "  {} operators, {} of parameters, {} of intermediate results, {:.3} GFLOP a run",
                e.operators,
                bytes(e.parameter_bytes),
                bytes(e.activation_bytes),
                e.flops as f64 / 1e9
            )?;
        }
        if self.issues.is_empty() {
            return write!(f, "supported");
        }
        for kind in [
            IssueKind::Broken,
            IssueKind::MissingData,
            IssueKind::UnboundDimension,
            IssueKind::Unsupported,
        ] {
            let of_kind: Vec<&Issue> = self.issues.iter().filter(|i| i.kind == kind).collect();
            if of_kind.is_empty() {
                continue;
            }
            writeln!(f, "{kind}: {}", of_kind.len())?;
            for issue in of_kind.iter().take(MAX_LISTED) {
                writeln!(f, "  {issue}")?;
            }
            if of_kind.len() > MAX_LISTED {
                writeln!(f, "  and {} more", of_kind.len() - MAX_LISTED)?;
            }
        }
        match self.issues.len() {
            1 => write!(f, "the model cannot be imported: 1 problem"),
            count => write!(f, "the model cannot be imported: {count} problems"),
        }
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}
