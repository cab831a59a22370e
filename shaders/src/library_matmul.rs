//! Matmuls that a library of the device computes.
//!
//! If rounding is allowed, launches before the matmul round operands of `f32` to `f16` and expand packed weights to
//! `f16`. The library can add a matrix to the result or scale it. For any other epilogue, the result is in scratch,
//! and a launch after the matmul computes the epilogue.

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::{DType, TensorType};

use super::body::{Body, Def, Id};
use super::contraction::Sizes;
use super::emit::Emitter;
use super::epilogue::{self, PARTIAL, Results};
use super::kernel::{Binding, Compiled, Launch, LibraryEpilogue, LibraryMatmul, LibraryOperand, Memory, Source};
use super::packed::Packed;
use super::pointwise;
use super::roles::Role;
use super::tiled::schedules::MatMulCall;

/// Kernel name of a launch of the library. Other launches have the name of their kernel file.
const KERNEL: &str = "library";
/// Name of the schedule in listings.
const SCHEDULE: &str = "library";
/// Operators that round operands, and operators that the library can apply to the result of the matmul.
const CAST: &str = "core.cast";
const ADD: &str = "core.add";
const MUL: &str = "core.mul";
/// Indices of scratch buffers: the result of the matmul, if an epilogue follows; the workspace of the library; and
/// rounded operands.
const PRODUCT: usize = 0;
const WORKSPACE: usize = 1;
const FIRST_ROUNDED: usize = 2;

/// An operand of the matmul in memory.
enum Operand {
    /// A matrix, or several matrices that are `stride` elements apart.
    Stored {
        /// Index of the operand of the dispatch.
        number: usize,
        memory: Memory,
        dtype: DType,
        stride: usize,
    },
    Packed(Packed),
}

impl Operand {
    fn of(product: &MatMulCall, operand: usize) -> Option<Self> {
        let MatMulCall { cx, contraction, .. } = product;
        if let Some(number) = contraction.stored(operand) {
            let (memory, dtype) = cx.stored_input(number)?;
            let stride = contraction.batch_stride(operand)?;
            return Some(Operand::Stored {
                number,
                memory,
                dtype,
                stride,
            });
        }
        let packed = contraction.packed(operand)?;
        (operand == 1 && contraction.sizes().batch == 1).then_some(Operand::Packed(packed))
    }

    /// Returns the dtype of the operand in memory, or `None` for packed weights.
    fn dtype(&self) -> Option<DType> {
        match self {
            Operand::Stored { dtype, .. } => Some(*dtype),
            Operand::Packed(_) => None,
        }
    }

    fn stride(&self) -> usize {
        match self {
            Operand::Stored { stride, .. } => *stride,
            Operand::Packed(_) => 0,
        }
    }

    /// Returns the size in memory of an operand that is not `f16`, in bytes.
    fn bytes(&self, product: &MatMulCall) -> usize {
        let bytes = |number: usize| product.cx.kernel.inputs[number].bytes();
        match self {
            Operand::Stored { number, .. } => bytes(*number),
            Operand::Packed(packed) => bytes(packed.words) + bytes(packed.scales),
        }
    }
}

/// Compiles the launches of a matmul. Returns `None` unless there is a library that supports it.
pub(super) fn compile(product: &MatMulCall, results: &Results) -> Result<Option<Compiled>, String> {
    let &MatMulCall {
        body,
        id,
        cx,
        contraction,
        total,
        reduces,
    } = product;
    let Some(library) = cx
        .library
        .filter(|_| !reduces && total > 0 && contraction.sizes().k > 0)
    else {
        return Ok(None);
    };
    let Sizes { batch, m, n, k } = contraction.sizes();
    let found = [0, 1].map(|operand| Operand::of(product, operand));
    let [Some(a), Some(b)] = found else { return Ok(None) };
    if !contraction.is_by_rows() || !results.before.is_empty() {
        return Ok(None);
    }
    let may_round = cx.coop.is_some_and(|config| config.use_f16_input);
    let dtype = match (a.dtype(), b.dtype()) {
        (Some(DType::F32), Some(DType::F32)) if !may_round => DType::F32,
        (Some(DType::F16), Some(DType::F16)) => DType::F16,
        (None | Some(DType::F32 | DType::F16), None | Some(DType::F32 | DType::F16)) if may_round => DType::F16,
        _ => return Ok(None),
    };
    let stored = cx.stored_output(0);
    let folded = folded(product).filter(|_| matches!(stored, DType::F32 | DType::F16));
    let is_plain = folded.is_some();
    if !is_plain && body.results == [id] {
        return Ok(None);
    }
    let (epilogue, operand_of_epilogue) = folded.unwrap_or((LibraryEpilogue::Plain, None));
    let result = if is_plain { stored } else { PARTIAL };
    let operand = |operand: usize, found: &Operand| LibraryOperand {
        dtype,
        transposed: match operand {
            0 => !contraction.is_along_k(0),
            _ => contraction.is_along_k(1),
        },
        stride: found.stride(),
    };
    let matmul = LibraryMatmul {
        batch,
        m,
        n,
        k,
        operands: [operand(0, &a), operand(1, &b)],
        result,
        epilogue,
    };
    let operands = [a, b];
    let to_round = operands.iter().filter(|operand| operand.dtype() != Some(dtype));
    let bytes = to_round.map(|operand| operand.bytes(product)).sum();
    if !library.takes(&matmul, bytes, !is_plain) {
        return Ok(None);
    }
    let mut compiled = Compiled {
        scratch: vec![0, library.workspace_bytes()],
        rounded: if may_round { body.only_used_by(id) } else { Vec::new() },
        ..Compiled::default()
    };
    let mut memories = Vec::with_capacity(2);
    for operand in operands {
        if let Operand::Stored { memory, dtype: own, .. } = operand
            && own == dtype
        {
            memories.push(memory);
            continue;
        }
        let to = cx.scratch(compiled.scratch.len());
        let elements = match operand {
            Operand::Stored { number, memory, .. } => {
                let ty = &cx.kernel.inputs[number];
                compiled.launches.extend(round(product, ty, memory, to)?.launches);
                ty.numel()
            }
            Operand::Packed(packed) => {
                compiled.launches.push(packed.expand_to_f16(body, cx, n * k, to)?);
                n * k
            }
        };
        compiled.scratch.push(2 * elements);
        memories.push(to);
    }
    debug_assert!(compiled.scratch.len() >= FIRST_ROUNDED);
    let target = if is_plain {
        cx.outputs[0]
    } else {
        compiled.scratch[PRODUCT] = 4 * total;
        cx.scratch(PRODUCT)
    };
    let mut bound = vec![memories[0], memories[1], target, cx.scratch(WORKSPACE)];
    bound.extend(operand_of_epilogue);
    let names = ["a", "b", "d", "workspace", "epilogue"];
    compiled.launches.push(Launch {
        kernel: KERNEL,
        source: String::new(),
        names: names[..bound.len()].to_vec(),
        bindings: bound.into_iter().map(Binding::Memory).collect(),
        tables: Vec::new(),
        groups: [1; 3],
        coop: may_round,
        library: Some(matmul),
        schedule: Some(SCHEDULE.into()),
        chosen: None,
        replacements: None,
    });
    if !is_plain {
        let last = epilogue::join(Emitter::new(body, cx), id, &results.of_product, 1)?;
        compiled.launches.push(last);
    }
    Ok(Some(compiled))
}

/// Returns the library operation that computes the only result from the matmul, and the operand of the operation.
/// Returns `None` if another launch has to compute the results.
fn folded(product: &MatMulCall) -> Option<(LibraryEpilogue, Option<Memory>)> {
    let &MatMulCall { body, id, cx, .. } = product;
    let &[result] = &body.results[..] else { return None };
    if result == id {
        return Some((LibraryEpilogue::Plain, None));
    }
    let Def::Call { op, inputs, .. } = &body.nodes[result].def else {
        return None;
    };
    let other = match inputs[..] {
        [left, right] if left == id && right != id => right,
        [left, right] if right == id && left != id => left,
        _ => return None,
    };
    match *op {
        ADD => {
            let Def::Operand(operand) = body.nodes[other].def else {
                return None;
            };
            let (memory, dtype) = cx.stored_input(operand)?;
            let is_alike = dtype == cx.stored_output(0) && body.ty(other).shape == body.ty(result).shape;
            is_alike.then_some((LibraryEpilogue::Add, Some(memory)))
        }
        MUL => {
            let operand = only_element(body, other)?;
            let (memory, dtype) = cx.stored_input(operand)?;
            (dtype == DType::F32).then_some((LibraryEpilogue::Scale, Some(memory)))
        }
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

/// Compiles a launch that rounds an operand to `f16`.
fn round(product: &MatMulCall, ty: &TensorType, from: Memory, to: Memory) -> Result<Compiled, String> {
    let attrs = Attrs::new().with("to", DType::F16);
    let inputs = [TensorType::new(DType::F32, ty.shape.clone())];
    let outputs = [TensorType::new(DType::F16, ty.shape.clone())];
    let kernel = KernelDesc {
        name: CAST,
        version: 1,
        attrs: &attrs,
        inputs: &inputs,
        outputs: &outputs,
    };
    let part = product.cx.part(kernel, vec![Source::Memory(from)], vec![to], 0);
    pointwise::compile(&Body::of(&kernel)?, &part)
}
