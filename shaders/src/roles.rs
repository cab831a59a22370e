//! What operators are to the generators of bodies: the only lists of their names.

use meganeura_core::ops::Call;

use super::conv_kinds::is_convolution;
use super::fold::Fold;
use super::scalar;

/// Most operands of a concatenation.
const MAX_PARTS: usize = 8;

/// What a call is to the generators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// An element of the result depends on the operands' elements at its location.
    Pointwise,
    /// Operand 0's elements at other locations.
    View,
    /// Elements of the operands, chosen one by one.
    Pull,
    /// Operand 0 folded over axes.
    Reduction,
    /// A matmul or a convolution.
    Contraction,
    /// Numbers of blocks of integers with a scale each, operands 0 and 1.
    Packed,
}

/// The role of an operator, if it has one.
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

/// Whether an operator is a matmul.
pub(super) fn is_matmul(name: &str) -> bool {
    name == "core.matmul"
}

/// Whether each element of an operator's result depends on that half a head away as well.
pub(super) fn is_rotation(name: &str) -> bool {
    matches!(name, "core.rope" | "core.rope_dynamic_offset")
}

/// Whether an operator expands packed numbers.
fn is_packed(name: &str) -> bool {
    name == "core.dequantize"
}

/// Whether an operator only says where elements are found.
fn is_view(name: &str) -> bool {
    matches!(
        name,
        "core.reshape" | "core.expand" | "core.permute" | "core.slice" | "core.flip"
    )
}

/// Whether each element of an operator's result is one of some elements of its operands, or a number of its own.
fn is_pull(name: &str, call: &Call) -> bool {
    match name {
        "core.pad" | "core.gather" | "core.take_along_axis" | "core.random_bits" | "core.tril" | "core.triu" => true,
        "core.concat" => call.inputs.len() <= MAX_PARTS,
        _ => false,
    }
}

/// The operand that an operator's result is, element by element.
pub(super) fn stands_for(name: &str) -> Option<usize> {
    match name {
        "core.stop_gradient" => Some(0),
        // It is where this is written that makes the difference.
        "core.assign" => Some(1),
        _ => None,
    }
}
