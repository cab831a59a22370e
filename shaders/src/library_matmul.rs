//! Matmuls that a library of the device computes.
//!
//! If rounding is allowed, launches before the matmul round operands of `f32` to `f16` and expand packed weights to
//! `f16`. The library computes [some epilogues](super::library_epilogue). For any other epilogue, the result is in
//! scratch, and a launch after the matmul computes the epilogue.

use meganeura_core::DType;

use super::contraction::Sizes;
use super::emit::Emitter;
use super::epilogue::{self, PARTIAL, Results};
use super::kernel::{Binding, Compiled, Launch, Memory};
use super::library_calls::{LibraryCall, LibraryEpilogue, LibraryMatmul, LibraryOperand};
use super::library_epilogue::{FoldedEpilogue, cast};
use super::packed::Packed;
use super::tiled::schedules::MatMulCall;

/// Kernel name of a launch of the library. Other launches have the name of their kernel file.
pub(super) const KERNEL: &str = "library";
/// Name of the schedule in listings.
pub(super) const SCHEDULE: &str = "library";
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
    let folded = FoldedEpilogue::of(body, id, n, cx);
    let is_folded = folded.is_some();
    if !is_folded && body.results == [id] {
        return Ok(None);
    }
    let epilogue = folded.as_ref().map_or(LibraryEpilogue::PLAIN, |folded| folded.epilogue);
    let result = if is_folded { cx.stored_output(0) } else { PARTIAL };
    let operand = |operand: usize, found: &Operand| LibraryOperand {
        dtype,
        transposed: match operand {
            0 => !contraction.is_along_k(0),
            _ => contraction.is_along_k(1),
        },
        stride: found.stride(),
    };
    let call = LibraryCall::Matmul(LibraryMatmul {
        batch,
        m,
        n,
        k,
        operands: [operand(0, &a), operand(1, &b)],
        result,
        epilogue,
    });
    let operands = [a, b];
    let to_round = operands.iter().filter(|operand| operand.dtype() != Some(dtype));
    let bytes = to_round.map(|operand| operand.bytes(product)).sum();
    if !library.takes(&call, bytes, !is_folded) {
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
                compiled.launches.extend(cast(cx, ty, DType::F16, memory, to)?);
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
    let target = if is_folded {
        cx.outputs[0]
    } else {
        compiled.scratch[PRODUCT] = 4 * total;
        cx.scratch(PRODUCT)
    };
    let mut bound = vec![memories[0], memories[1], target, cx.scratch(WORKSPACE)];
    if let Some(folded) = &folded {
        bound.extend(folded.operands(cx, &mut compiled)?);
        if may_round {
            compiled.rounded_with_result = folded.added(body);
        }
    }
    compiled.launches.push(launch(call, bound, may_round));
    if !is_folded {
        let last = epilogue::join(Emitter::new(body, cx), id, &results.of_product, 1)?;
        compiled.launches.push(last);
    }
    Ok(Some(compiled))
}

/// Returns the launch of a call with its buffers.
pub(super) fn launch(call: LibraryCall, bound: Vec<Memory>, coop: bool) -> Launch {
    let names = ["a", "b", "d", "workspace", "epilogue", "bias"];
    Launch {
        kernel: KERNEL,
        source: String::new(),
        names: names[..bound.len()].to_vec(),
        bindings: bound.into_iter().map(Binding::Memory).collect(),
        tables: Vec::new(),
        groups: [1; 3],
        coop,
        library: Some(call),
        schedule: Some(SCHEDULE.into()),
        chosen: None,
        replacements: None,
    }
}
