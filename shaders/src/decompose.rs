//! Kernels for what an operator is decomposed to.

use meganeura_core::TensorType;

use super::body::Body;
use super::families::compile_body;
use super::kernel::{CompileCx, Compiled};
use super::roles::Role;
use super::stages;

/// Compiles a dispatch to kernels for the calls that its operator is decomposed to.
pub(super) fn compile_decomposed(cx: &CompileCx) -> Result<Compiled, String> {
    let body = Body::of(&cx.kernel)?;
    body.nodes.iter().try_for_each(|node| check_count(&node.ty))?;
    match compile_body(&body, cx) {
        Ok(compiled) => Ok(compiled),
        // One that is not to be cut is refused for the first reason.
        Err(reason) => stages::compile(&body, cx).map_err(|cut| match body.calls(Role::Contraction).is_empty() {
            true if body.calls(Role::Reduction).is_empty() => reason,
            _ => format!("{reason}; in several kernels: {cut}"),
        }),
    }
}

/// Elements of a value, whether it is kept in memory or not, are numbered in 32 bits.
pub(super) fn check_count(ty: &TensorType) -> Result<(), String> {
    match i32::try_from(ty.numel()) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{ty} has more elements than a kernel can number")),
    }
}
