//! Roles of operators in the generation of bodies. Only this module lists their names.

use meganeura_core::ops::Call;

use super::conv_kinds::is_convolution;
use super::fold::Fold;
use super::scalar;

/// Maximum number of operands of a concatenation.
const MAX_PARTS: usize = 8;

/// The role of a call in the generation of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// An element of the result depends on the elements of the operands at the same location.
    Pointwise,
    /// The result consists of the elements of operand 0 at other locations.
    View,
    /// The result consists of elements that are selected from the operands one by one.
    Pull,
    /// A reduction of operand 0 over axes.
    Reduction,
    /// A matmul or a convolution.
    Contraction,
    /// Numbers that are dequantized from blocks of integers (operand 0) with scales (operand 1).
    Packed,
}

/// Returns the role of an operator, if it has one.
pub(super) fn role(name: &str, call: &Call) -> Result<Option<Role>, String> {
    if is_view(name) {
        return Ok(Some(Role::View));
    }
    if is_packed(name) {
        return Ok(Some(Role::Packed));
    }
    if is_pull(name, call) {
        return Ok(Some(Role::Pull));
    }
    if Fold::of(name).is_ok() {
        return Ok(Some(Role::Reduction));
    }
    if is_matmul(name) || is_convolution(name) {
        return match call.inputs.iter().find(|t| scalar::wgsl_type(t.dtype) != "f32") {
            None => Ok(Some(Role::Contraction)),
            Some(ty) => Err(format!("there is no contraction of {ty}")),
        };
    }
    Ok(scalar::is_known(name, call)?.then_some(Role::Pointwise))
}

/// Returns true if an operator is a matmul.
pub(super) fn is_matmul(name: &str) -> bool {
    name == "core.matmul"
}

/// Returns true if each element of an operator's result also depends on the operand element that is half a head away.
pub(super) fn is_rotation(name: &str) -> bool {
    matches!(name, "core.rope" | "core.rope_dynamic_offset")
}

/// Returns true if an operator dequantizes packed numbers.
fn is_packed(name: &str) -> bool {
    name == "core.dequantize"
}

/// Returns true if an operator only changes the locations of elements.
fn is_view(name: &str) -> bool {
    matches!(
        name,
        "core.reshape" | "core.expand" | "core.permute" | "core.slice" | "core.flip"
    )
}

/// Returns true if each element of an operator's result is a copy of an operand's element, or a generated number such
/// as random bits.
fn is_pull(name: &str, call: &Call) -> bool {
    match name {
        "core.pad" | "core.gather" | "core.take_along_axis" | "core.random_bits" | "core.tril" | "core.triu" => true,
        "core.concat" => call.inputs.len() <= MAX_PARTS,
        _ => false,
    }
}

/// Returns the index of the operand to which an operator's result is equal, element by element.
pub(super) fn stands_for(name: &str) -> Option<usize> {
    match name {
        "core.stop_gradient" => Some(0),
        // An assignment has the same elements as its operand. Only the destination differs.
        "core.assign" => Some(1),
        _ => None,
    }
}
