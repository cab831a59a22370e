//! Reports of all issues that an import would encounter.

use std::collections::BTreeSet;

use meganeura_core::graph::{Graph, NodeKind};

use crate::error::{Issue, IssueKind};
use crate::import::{ImportOptions, try_import};
use crate::model::Model;
use crate::port::Dim;
use crate::report::{Estimate, Report};

/// Sizes of open dimensions to try, in this order: a batch of one, a few tokens, an image.
const TRIED: [usize; 5] = [1, 2, 16, 224, 640];

/// Returns the report of a model without building it for a device. If open dimensions without a size are the only obstacle,
/// the model is checked with sizes that it accepts.
pub(crate) fn preflight(model: &Model, options: &ImportOptions) -> Report {
    let report = preflight_with(model, options);
    let is_open = |issue: &Issue| issue.kind == IssueKind::UnboundDimension;
    if report.issues.is_empty() || !report.issues.iter().all(is_open) {
        return report;
    }
    let open: BTreeSet<String> = report.issues.iter().map(|issue| issue.place.clone()).collect();
    for size in TRIED {
        let mut with_sizes = options.clone();
        for name in &open {
            with_sizes.dims = with_sizes.dims.bind(name, size);
        }
        let mut tried = preflight_with(model, &with_sizes);
        if tried.is_supported() {
            tried.assumed = open.into_iter().map(|name| (name, size)).collect();
            return tried;
        }
    }
    report
}

fn preflight_with(model: &Model, options: &ImportOptions) -> Report {
    let (import, issues) = try_import(model, options);
    let mut report = model.report(issues);
    if let Some(import) = import.filter(|_| report.issues.is_empty()) {
        for (port, found) in report.outputs.iter_mut().zip(&import.outputs) {
            port.dims = Some(found.dims.iter().map(|&size| Dim::Size(size)).collect());
        }
        report.notes = import.notes;
        report.labels = import.labels;
        report.estimate = Some(estimate(&import.graph));
    }
    report
}

/// Sums the costs of the operators of a graph.
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
