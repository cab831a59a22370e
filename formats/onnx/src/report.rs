//! The report on a model: what it declares, what it needs, and what prevents its import.

use std::fmt;

use serde::Serialize;

use crate::error::{Issue, IssueKind};
use crate::import::OutputLabels;
use crate::port::Port;

/// Description of a model, with all issues that prevent its import.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Inputs as the file declares them.
    pub inputs: Vec<Port>,
    /// Results as the file declares them; with their actual sizes if the model can be imported.
    pub outputs: Vec<Port>,
    /// Domains with the versions of their operators.
    pub opsets: Vec<(String, i64)>,
    /// Number of nodes of the file, without the nodes of branches and functions.
    pub nodes: usize,
    /// All issues; the model can be imported if there are none.
    pub issues: Vec<Issue>,
    /// Deviations of the computation from the model, such as `f64` computed in `f32`.
    pub notes: Vec<String>,
    /// Labels of the results that are strings or maps in the model.
    pub labels: Vec<OutputLabels>,
    /// Open dimensions without a size, and the size that the check used. In a run, the inputs determine the sizes.
    pub assumed: Vec<(String, usize)>,
    /// Required resources, if the model can be imported.
    pub estimate: Option<Estimate>,
}

/// Resources that running a model requires, before it is rewritten and planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Estimate {
    /// Number of operators of the graph.
    pub operators: usize,
    /// Bytes of the parameters.
    pub parameter_bytes: u64,
    /// Bytes of all intermediate results; a plan keeps only those that are needed at the same time.
    pub activation_bytes: u64,
    /// Number of floating-point operations of one run.
    pub flops: u64,
}

impl Report {
    /// Returns true if the model can be imported.
    pub fn is_supported(&self) -> bool {
        self.issues.is_empty()
    }

    /// Returns true if a shape or a branch depends on the data of an input, which [`ImportOptions::constants`](crate::ImportOptions::constants) can provide.
    pub fn depends_on_data(&self) -> bool {
        self.issues.iter().any(|issue| issue.message.contains(DEPENDS_ON_DATA))
    }

    /// Returns true if the file is invalid or incomplete.
    pub fn is_broken(&self) -> bool {
        self.issues
            .iter()
            .any(|issue| matches!(issue.kind, IssueKind::Broken | IssueKind::MissingData))
    }
}

/// Text in messages about shapes that depend on data.
pub(crate) const DEPENDS_ON_DATA: &str = "depends on the data of an input";

/// Maximum number of issues of one kind that are printed.
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
        if !self.assumed.is_empty() {
            let sizes: Vec<String> = self
                .assumed
                .iter()
                .map(|(name, size)| format!("{name} = {size}"))
                .collect();
            writeln!(
                f,
                "  open dimensions, which the inputs determine: checked with {}",
                sizes.join(", ")
            )?;
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

pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}
