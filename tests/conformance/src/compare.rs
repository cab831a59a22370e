//! Comparison of results with the oracle's, by the rule in the crate's documentation.

use meganeura_core::DType;
use meganeura_core::graph::Graph;
use meganeura_core::ops::Call;

use crate::case::{Check, Failure, fail};
use crate::storage::quantise;

/// Minimum magnitude that errors are relative to.
const FLOOR: f64 = 0.01;

/// Number of operations per result element that widen a tolerance by `sqrt(2)`.
const COVERED: f64 = 64.0;

/// Returns the factor by which the sums in a graph widen a tolerance.
pub(crate) fn widening(graph: &Graph) -> f64 {
    let most = graph.nodes().iter().filter_map(|node| {
        let (op, attrs) = node.op()?;
        let inputs: Vec<_> = node.inputs.iter().filter_map(|v| graph.ty(*v).cloned()).collect();
        let call = Call {
            attrs,
            inputs: &inputs,
            outputs: &node.outputs,
        };
        let results = node.outputs.first().map_or(1, |t| t.numel().max(1));
        Some(op.cost(&call).flops as f64 / results as f64)
    });
    (1.0 + most.fold(0.0, f64::max) / COVERED).sqrt()
}

/// Returns the number of operations of all calls of a graph.
pub(crate) fn work(graph: &Graph) -> u64 {
    let calls = graph.nodes().iter().filter_map(|node| {
        let (op, attrs) = node.op()?;
        let inputs: Vec<_> = node.inputs.iter().filter_map(|v| graph.ty(*v).cloned()).collect();
        let call = Call {
            attrs,
            inputs: &inputs,
            outputs: &node.outputs,
        };
        Some(op.cost(&call).flops)
    });
    calls.fold(0, u64::saturating_add)
}

/// Compares a tensor with the oracle's. `limit` is relative to the tensor's largest magnitude.
pub(crate) fn compare(what: &str, dtype: DType, device: &[f64], oracle: &[f64], limit: f64) -> Result<Check, Failure> {
    compare_within(what, dtype, device, oracle, limit, 0.0)
}

/// Compares like [`compare`], and additionally accepts an error of this size for each element.
pub(crate) fn compare_within(
    what: &str,
    dtype: DType,
    device: &[f64],
    oracle: &[f64],
    limit: f64,
    more: f64,
) -> Result<Check, Failure> {
    let scale = oracle
        .iter()
        .filter(|v| v.is_finite())
        .fold(FLOOR, |m, v| m.max(v.abs()));
    compare_by(what, dtype, device, oracle, limit + more / scale, |_| scale)
}

/// Compares every element relative to its own magnitude, for tables of unrelated numbers.
pub(crate) fn compare_each(
    what: &str,
    dtype: DType,
    device: &[f64],
    oracle: &[f64],
    limit: f64,
) -> Result<Check, Failure> {
    compare_by(what, dtype, device, oracle, limit, |o| o.abs().max(FLOOR))
}

fn compare_by(
    what: &str,
    dtype: DType,
    device: &[f64],
    oracle: &[f64],
    limit: f64,
    scale: impl Fn(f64) -> f64,
) -> Result<Check, Failure> {
    if device.len() != oracle.len() {
        return fail(format!(
            "{what}: {} elements on the device, {} in the oracle",
            device.len(),
            oracle.len()
        ));
    }
    let limit = if dtype.is_integer() { 0.0 } else { limit };
    let rounded = quantise(dtype, oracle)?;
    let error = |i: usize| {
        let (d, o, r) = (device[i], oracle[i], rounded[i]);
        if r.is_finite() && d.is_finite() {
            (d - o).abs() / scale(o)
        } else if d == r || (d.is_nan() && r.is_nan()) {
            0.0
        } else {
            f64::INFINITY
        }
    };
    let errors: Vec<f64> = (0..oracle.len()).map(error).collect();
    let worst = errors
        .iter()
        .enumerate()
        .fold((0, 0.0), |w, (i, &e)| if e > w.1 { (i, e) } else { w });
    if worst.1 <= limit {
        return Ok(Check {
            error: worst.1,
            tolerance: limit,
        });
    }
    let beyond = errors.iter().filter(|&&e| e > limit).count();
    let i = worst.0;
    fail(format!(
        "{what}[{i}] is {} on the device, {} by the oracle: error {:.2e}, accepted {limit:.2e} ({beyond} of {} elements are off)",
        device[i],
        oracle[i],
        worst.1,
        oracle.len()
    ))
}
