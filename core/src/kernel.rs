//! Descriptions of kernels and devices: queries for kernels, capabilities of devices and cost models.

use std::fmt;
use std::time::Duration;

use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::ops::{Call, OpRef};
use crate::reference::operand_name;
use crate::shape::TensorType;

/// Rates for cost estimates; the device supplies them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Fixed cost of a dispatch.
    pub launch: Duration,
    /// Memory bandwidth in bytes per second.
    pub bytes_per_second: f64,
    /// FLOP/s of a large matmul in `f32`.
    pub flops_per_second: f64,
    /// FLOP/s of a large matmul with half-precision operands.
    pub half_flops_per_second: f64,
    /// `true` if kernels read and write slices of wider rows in place, so that slicing columns of a
    /// matrix is free.
    pub free_views: bool,
}

/// Capabilities of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// Selector-like name, `cpu` or `blade:0`.
    pub name: String,
    /// Storage types of buffers.
    pub dtypes: Vec<DType>,
    /// Largest buffer in bytes, if limited: the lesser of the largest allocation and the largest binding of a kernel.
    pub max_buffer_bytes: Option<u64>,
    /// Memory in bytes, if the device reports it.
    pub memory_bytes: Option<u64>,
    /// `true` if device and host share memory.
    pub unified_memory: bool,
    /// Rates.
    pub cost: CostModel,
}

/// A kernel that a plan needs.
#[derive(Clone, Copy, Debug)]
pub struct KernelDesc<'a> {
    /// Operator name.
    pub name: &'a str,
    /// Version of the operator's semantics.
    pub version: u32,
    /// Attributes of the call.
    pub attrs: &'a Attrs,
    /// Operand types.
    pub inputs: &'a [TensorType],
    /// Result types.
    pub outputs: &'a [TensorType],
}

impl KernelDesc<'_> {
    /// Returns the call in the form that shape rules use.
    pub fn call(&self) -> Call<'_> {
        Call {
            attrs: self.attrs,
            inputs: self.inputs,
            outputs: self.outputs,
        }
    }
}

impl fmt::Display for KernelDesc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<String> = self.inputs.iter().map(ToString::to_string).collect();
        write!(f, "{}({})", self.name, types.join(", "))
    }
}

/// Result of a query whether a device has a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// The device has one.
    Yes,
    /// The device has none, for this reason.
    No(String),
}

/// Returns `true` if a call without a kernel is replaced by the same call in `f32` between casts.
pub(crate) fn is_widened(op: OpRef, desc: &KernelDesc) -> bool {
    matches!(widen(op, desc), Ok(Some(_)))
}

/// Returns the same call in `f32` between casts, for half-precision operands that the device has no
/// kernel for. Returns `None` if there are no such operands, if the call is such a cast itself, or
/// if it writes such an operand in place, which a cast cannot do.
pub(crate) fn widen(op: OpRef, desc: &KernelDesc) -> Result<Option<(Graph, Vec<Value>)>> {
    let is_half = |ty: &TensorType| ty.dtype.is_half();
    let writes_half = op
        .writes()
        .iter()
        .any(|&(operand, _)| desc.inputs.get(operand).is_some_and(is_half));
    if writes_half || !desc.inputs.iter().any(is_half) {
        return Ok(None);
    }
    let mut graph = Graph::new();
    let operands: Vec<Value> = desc
        .inputs
        .iter()
        .enumerate()
        .map(|(i, ty)| {
            let operand = graph.input_typed(&operand_name(i), &ty.shape, ty.dtype);
            if is_half(ty) {
                graph.cast(operand, DType::F32).into()
            } else {
                operand.into()
            }
        })
        .collect();
    let call = graph.call(op, desc.attrs.clone(), operands);
    let results: Vec<Value> = desc
        .outputs
        .iter()
        .enumerate()
        .map(|(port, ty)| {
            let result = graph.port(call, port as u32);
            if port == 0 || graph.dtype(result) != ty.dtype {
                graph.cast(result, ty.dtype).into()
            } else {
                result
            }
        })
        .collect();
    let repeats_itself = graph
        .nodes()
        .iter()
        .any(|n| n.op().is_some_and(|(o, _)| o == op) && n.inputs.iter().any(|v| graph.ty(*v).is_some_and(is_half)));
    if repeats_itself {
        return Ok(None);
    }
    graph.set_outputs(results.clone());
    // A decomposition that converts some operands itself may not be valid in `f32`; its calls are
    // widened one by one.
    match graph.verify() {
        Err(_) if op.semantics().decomposition().is_some() => Ok(None),
        verified => verified.map(|()| Some((graph, results))),
    }
}
