//! Compilation of an operator by its decomposition.

use meganeura_core::TensorType;

use super::body::Body;
use super::families::compile_body;
use super::kernel::{CompileCx, Compiled};
use super::roles::Role;
use super::stages;

/// Compiles a dispatch to kernels for the calls of its operator's decomposition.
pub(super) fn compile_decomposed(cx: &CompileCx) -> Result<Compiled, String> {
    let body = Body::of(&cx.kernel)?;
    body.nodes.iter().try_for_each(|node| check_count(&node.ty))?;
    match compile_body(&body, cx) {
        Ok(compiled) => Ok(compiled),
        // If a body cannot be split into stages, the first reason is the error.
        Err(reason) => stages::compile(&body, cx).map_err(|cut| {
            if body.calls(Role::Contraction).is_empty() && body.calls(Role::Reduction).is_empty() {
                reason
            } else {
                format!("{reason}; in several kernels: {cut}")
            }
        }),
    }
}

/// Returns an error if the elements of a value cannot be indexed with 32 bits, even if the value is not in memory.
pub(super) fn check_count(ty: &TensorType) -> Result<(), String> {
    match i32::try_from(ty.numel()) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{ty} has more elements than a kernel can number")),
    }
}
