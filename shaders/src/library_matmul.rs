//! Matmuls that a library of the device computes: operands in `f32` are rounded to `f16` before where that is allowed, and what
//! follows the product is a launch of its own, which reads the product from scratch.

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::{DType, TensorType};

use super::body::Body;
use super::contraction::Sizes;
use super::emit::Emitter;
use super::epilogue::{self, PARTIAL, Results};
use super::kernel::{Binding, Compiled, Launch, LibraryMatmul, LibraryOperand, Memory, Source};
use super::pointwise;
use super::tiled::schedules::MatMulCall;

/// What a launch of this kind is called where kernels have the names of their files.
const KERNEL: &str = "library";
/// The schedule, for listings.
const SCHEDULE: &str = "library";
/// The operator that rounds.
const CAST: &str = "core.cast";
/// Scratch: the product, if something follows it; the library's workspace; and operands that were rounded.
const PRODUCT: usize = 0;
const WORKSPACE: usize = 1;
const FIRST_ROUNDED: usize = 2;

/// Launches for a product, if there is a library that takes it.
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
    let found = [0, 1].map(|operand| {
        let number = contraction.stored(operand)?;
        let (memory, dtype) = cx.stored_input(number)?;
        let stride = contraction.batch_stride(operand)?;
        Some((number, memory, dtype, stride))
    });
    let [Some(a), Some(b)] = found else { return Ok(None) };
    if !contraction.is_by_rows() || !results.before.is_empty() {
        return Ok(None);
    }
    let may_round = cx.coop.is_some_and(|config| config.use_f16_input);
    let dtype = match (a.2, b.2) {
        (DType::F32, DType::F32) if !may_round => DType::F32,
        (DType::F32 | DType::F16, DType::F32 | DType::F16) if may_round || a.2 == b.2 => DType::F16,
        _ => return Ok(None),
    };
    let is_plain = body.results == [id];
    let stored = cx.stored_output(0);
    let result = match is_plain {
        true if matches!(stored, DType::F32 | DType::F16) => stored,
        true => return Ok(None),
        false => PARTIAL,
    };
    let operand = |operand: usize, stride: usize| LibraryOperand {
        dtype,
        transposed: match operand {
            0 => !contraction.is_along_k(0),
            _ => contraction.is_along_k(1),
        },
        stride,
    };
    let matmul = LibraryMatmul {
        batch,
        m,
        n,
        k,
        operands: [operand(0, a.3), operand(1, b.3)],
        result,
    };
    let to_round = [a, b].into_iter().filter(|(.., own, _)| *own != dtype);
    let bytes = to_round
        .map(|(number, ..)| cx.kernel.inputs[number].numel() * size_of::<f32>())
        .sum();
    if !library.takes(&matmul, bytes, !is_plain) {
        return Ok(None);
    }
    let mut compiled = Compiled {
        scratch: vec![0, library.workspace_bytes()],
        rounded: match may_round {
            true => body.only_used_by(id),
            false => Vec::new(),
        },
        ..Compiled::default()
    };
    let mut memories = Vec::with_capacity(2);
    for (number, memory, own, _) in [a, b] {
        memories.push(match own == dtype {
            true => memory,
            false => {
                let to = cx.scratch(compiled.scratch.len());
                let ty = &cx.kernel.inputs[number];
                compiled.launches.extend(round(product, ty, memory, to)?.launches);
                compiled.scratch.push(2 * ty.numel());
                to
            }
        });
    }
    debug_assert!(compiled.scratch.len() >= FIRST_ROUNDED);
    let target = match is_plain {
        true => cx.outputs[0],
        false => {
            compiled.scratch[PRODUCT] = 4 * total;
            cx.scratch(PRODUCT)
        }
    };
    let bound = [memories[0], memories[1], target, cx.scratch(WORKSPACE)];
    compiled.launches.push(Launch {
        kernel: KERNEL,
        source: String::new(),
        bindings: bound.map(Binding::Memory).to_vec(),
        names: vec!["a", "b", "d", "workspace"],
        tables: Vec::new(),
        groups: [1; 3],
        coop: may_round,
        library: Some(matmul),
        schedule: Some(SCHEDULE.into()),
        chosen: None,
    });
    if !is_plain {
        let last = epilogue::join(Emitter::new(body, cx), id, &results.of_product, 1)?;
        compiled.launches.push(last);
    }
    Ok(Some(compiled))
}

/// A launch that rounds an operand to `f16`.
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
