//! Epilogues that a library applies to its result: the calls after a matmul or a convolution, if they are only a
//! residual, a bias and a ReLU, or a factor.

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::{DType, TensorType};

use super::body::{Body, Def, Id};
use super::kernel::{CompileCx, Compiled, Launch, Memory, Source};
use super::library_calls::LibraryEpilogue;
use super::pointwise;
use super::roles::Role;

/// Operator that rounds operands, and operators that a library can apply to its result.
const CAST: &str = "core.cast";
const ADD: &str = "core.add";
const MUL: &str = "core.mul";
const RELU: &str = "core.relu";
const RESHAPE: &str = "core.reshape";

/// An epilogue with its operands, as indices of operands of the dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoldedEpilogue {
    pub(super) epilogue: LibraryEpilogue,
    addend: Option<usize>,
    bias: Option<usize>,
    factor: Option<usize>,
}

impl FoldedEpilogue {
    /// Returns the epilogue that computes the only result of a body from call `id`, whose rows have `columns` elements.
    /// Returns `None` if another launch has to compute the results.
    pub(super) fn of(body: &Body, id: Id, columns: usize, cx: &CompileCx) -> Option<Self> {
        let &[result] = &body.results[..] else { return None };
        let stored = cx.stored_output(0);
        if !matches!(stored, DType::F32 | DType::F16) {
            return None;
        }
        if let Some(factor) = scaled_by(body, id, result) {
            let (_, dtype) = cx.stored_input(factor)?;
            return (dtype == DType::F32).then_some(FoldedEpilogue {
                epilogue: LibraryEpilogue::Scale,
                addend: None,
                bias: None,
                factor: Some(factor),
            });
        }
        let (mut addend, mut bias, mut relu) = (None, None, false);
        let mut at = unshaped(body, result, id);
        if at != id && body.is_call(at, |op| op == RELU) {
            relu = true;
            at = unshaped(body, body.inputs(at)[0], id);
        }
        while at != id {
            let &[left, right] = body.inputs(at) else { return None };
            let (product, other) = match [left, right].map(|side| body.depends_on(side, id)) {
                [true, false] => (left, right),
                [false, true] => (right, left),
                _ => return None,
            };
            if !body.is_call(at, |op| op == ADD) {
                return None;
            }
            let Def::Operand(operand) = body.nodes[unshaped(body, other, id)].def else {
                return None;
            };
            let (ty, whole) = (body.ty(other), body.ty(at));
            let is_row = |ty: &TensorType| ty.shape.last() == Some(&columns);
            let place = if ty.shape == whole.shape {
                &mut addend
            } else if is_row(ty) && is_row(whole) && ty.numel() == columns {
                &mut bias
            } else {
                return None;
            };
            if place.replace(operand).is_some() {
                return None;
            }
            at = unshaped(body, product, id);
        }
        let is_alike = |operand: usize| cx.stored_input(operand).is_some_and(|(_, dtype)| dtype == stored);
        let is_float = |operand: usize| {
            let dtype = cx.stored_input(operand).map(|(_, dtype)| dtype);
            matches!(dtype, Some(DType::F32 | DType::F16))
        };
        (addend.is_none_or(is_alike) && bias.is_none_or(is_float)).then_some(FoldedEpilogue {
            epilogue: LibraryEpilogue::Sum {
                addend: addend.is_some(),
                bias: bias.is_some(),
                relu,
            },
            addend,
            bias,
            factor: None,
        })
    }

    /// Returns the operands of the dispatch that are only added to the result of the call.
    pub(super) fn added(&self, body: &Body) -> Vec<usize> {
        let uses = |operand: &usize| {
            let is_it = |id: &&Id| matches!(body.nodes[**id].def, Def::Operand(other) if other == *operand);
            let inputs = (0..body.nodes.len()).flat_map(|id| body.inputs(id));
            inputs.filter(is_it).count()
        };
        let added = self.addend.into_iter().chain(self.bias);
        added.filter(|operand| uses(operand) == 1).collect()
    }

    /// Returns the memory of the epilogue's operands, in the order of the call's bindings. If the bias has another dtype
    /// than the result, adds a launch that casts it to scratch.
    pub(super) fn operands(&self, cx: &CompileCx, compiled: &mut Compiled) -> Result<Vec<Memory>, String> {
        let memory = |operand: usize| {
            cx.stored_input(operand)
                .ok_or("an operand of an epilogue has no memory")
        };
        let mut all = Vec::with_capacity(2);
        for operand in self.addend.into_iter().chain(self.factor) {
            all.push(memory(operand)?.0);
        }
        if let Some(operand) = self.bias {
            let (from, dtype) = memory(operand)?;
            let stored = cx.stored_output(0);
            if dtype == stored {
                all.push(from);
            } else {
                let to = cx.scratch(compiled.scratch.len());
                let ty = &cx.kernel.inputs[operand];
                compiled.scratch.push(4 * ty.numel());
                compiled.launches.extend(cast(cx, ty, stored, from, to)?);
                all.push(to);
            }
        }
        Ok(all)
    }
}

/// Compiles launches that cast elements of the type `ty` to another float type.
pub(super) fn cast(
    cx: &CompileCx,
    ty: &TensorType,
    to_dtype: DType,
    from: Memory,
    to: Memory,
) -> Result<Vec<Launch>, String> {
    let attrs = Attrs::new().with("to", to_dtype);
    let inputs = [ty.clone()];
    let outputs = [TensorType::new(to_dtype, ty.shape.clone())];
    let kernel = KernelDesc {
        name: CAST,
        version: 1,
        attrs: &attrs,
        inputs: &inputs,
        outputs: &outputs,
    };
    let part = cx.part(kernel, vec![Source::Memory(from)], vec![to], 0);
    Ok(pointwise::compile(&Body::of(&kernel)?, &part)?.launches)
}

/// Follows reshapes from `at` to their operands, at most to `id`, and returns the last value.
fn unshaped(body: &Body, mut at: Id, id: Id) -> Id {
    while at != id && body.is_call(at, |op| op == RESHAPE) {
        at = body.inputs(at)[0];
    }
    at
}

/// Returns the operand of the dispatch by whose only element the call is multiplied, if `result` is this product.
fn scaled_by(body: &Body, id: Id, result: Id) -> Option<usize> {
    if !body.is_call(result, |op| op == MUL) {
        return None;
    }
    match *body.inputs(result) {
        [left, right] if left == id && right != id => only_element(body, right),
        [left, right] if right == id && left != id => only_element(body, left),
        _ => None,
    }
}

/// Returns the operand of the dispatch that has one element, to which all elements of a value are equal. Returns
/// `None` for other values.
fn only_element(body: &Body, mut id: Id) -> Option<usize> {
    while body.role(id) == Some(Role::View) {
        id = *body.inputs(id).first()?;
    }
    match body.nodes[id].def {
        Def::Operand(operand) if body.ty(id).numel() == 1 => Some(operand),
        _ => None,
    }
}
