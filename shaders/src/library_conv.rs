//! Convolutions of NHWC images that a library of the device computes.
//!
//! The library takes images in `f16`, and weights in `f16` as `[out channels, kernel height, kernel width, channels]`.
//! Launches before it round images of `f32`, and round and permute weights, which dispatches store as
//! `[kernel height, kernel width, channels, out channels]`. The library computes [some
//! epilogues](super::library_epilogue). For any other epilogue, its result is in scratch in `f16`, and a launch after it
//! computes the results. Gradients by the weights are permuted back.

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::{DType, Shape, TensorType, registry};

use super::body::{Body, Constant, Def, Id, Node};
use super::conv_kinds::{ConvTensor, StoredConvolution};
use super::epilogue::Results;
use super::kernel::{CompileCx, Compiled, Launch, Memory, Source};
use super::library_calls::{LibraryCall, LibraryConvolution, LibraryEpilogue};
use super::library_epilogue::{FoldedEpilogue, cast};
use super::library_matmul::launch;
use super::pointwise;
use super::roles::Role;
use super::tiled::schedules::MatMulCall;

/// Operators that move and round the elements of weights.
const PERMUTE: &str = "core.permute";
const CAST: &str = "core.cast";
const MUL: &str = "core.mul";
/// Divisor of gradients that the library returns in `f16`. Sums over many pixels or channels could exceed the range.
const GRADIENT_DIVISOR: u32 = 256;
/// Permutation of `[height, width, channels, out channels]` to `[out channels, height, width, channels]`.
const TO_OHWI: [i32; 4] = [3, 0, 1, 2];
/// The inverse permutation.
const TO_HWIO: [i32; 4] = [1, 2, 3, 0];
/// Indices of scratch buffers: the result of the library, if another launch follows; and its workspace. Rounded
/// operands come after them.
const PRODUCT: usize = 0;
const WORKSPACE: usize = 1;

/// Compiles the launches of a convolution. Returns `None` unless there is a library that supports it.
pub(super) fn compile(product: &MatMulCall, results: &Results) -> Result<Option<Compiled>, String> {
    let &MatMulCall {
        body,
        id,
        cx,
        contraction,
        total,
        reduces,
    } = product;
    let may_round = cx.coop.is_some_and(|config| config.use_f16_input);
    let Some(library) = cx.library.filter(|_| may_round && !reduces && total > 0) else {
        return Ok(None);
    };
    let Some(StoredConvolution { tensor, dims, operands }) = contraction.convolution() else {
        return Ok(None);
    };
    let stored = operands.map(|operand| cx.stored_input(operand));
    let [Some(a), Some(b)] = stored else { return Ok(None) };
    if !results.before.is_empty()
        || [a, b]
            .iter()
            .any(|(_, dtype)| !matches!(dtype, DType::F32 | DType::F16))
    {
        return Ok(None);
    }
    let is_alone = body.results == [id];
    if tensor == ConvTensor::WeightGrad && !is_alone {
        return Ok(None);
    }
    let columns = match tensor {
        ConvTensor::Output => Some(dims.o),
        ConvTensor::InputGrad => Some(dims.c),
        // The library has another order of the weights.
        ConvTensor::WeightGrad => None,
    };
    let rounded_bytes = [a, b]
        .iter()
        .zip(operands)
        .filter(|((_, dtype), _)| *dtype == DType::F32)
        .map(|(_, operand)| cx.kernel.inputs[operand].bytes())
        .sum();
    let call = |result: DType, divisor: u32, epilogue: LibraryEpilogue| {
        LibraryCall::Convolution(LibraryConvolution {
            tensor,
            dims,
            result,
            divisor,
            epilogue,
        })
    };
    let stored_result = cx.stored_output(0);
    let folded = columns.and_then(|columns| FoldedEpilogue::of(body, id, columns, cx));
    // Without an epilogue, results in `f32` are slower than results in `f16` that are converted.
    let folded = folded.filter(|folded| stored_result == DType::F16 || folded.epilogue != LibraryEpilogue::PLAIN);
    let folded = folded.map(|folded| (call(stored_result, 1, folded.epilogue), folded));
    let folded = folded.filter(|(call, _)| library.takes(call, rounded_bytes, false));
    let divisor = match tensor {
        ConvTensor::Output => 1,
        ConvTensor::InputGrad | ConvTensor::WeightGrad => GRADIENT_DIVISOR,
    };
    let plain = call(DType::F16, divisor, LibraryEpilogue::PLAIN);
    if folded.is_none() && !library.takes(&plain, rounded_bytes, true) {
        return Ok(None);
    }
    let mut compiled = Compiled {
        scratch: vec![0, library.workspace_bytes()],
        rounded: body.only_used_by(id),
        ..Compiled::default()
    };
    let mut bound = Vec::with_capacity(6);
    for (number, ((memory, dtype), operand)) in [a, b].into_iter().zip(operands).enumerate() {
        let ty = &cx.kernel.inputs[operand];
        let is_weight = number == 1 && tensor != ConvTensor::WeightGrad;
        if dtype == DType::F16 && !is_weight {
            bound.push(memory);
            continue;
        }
        let to = cx.scratch(compiled.scratch.len());
        let launches = if is_weight {
            permuted(cx, ty, TO_OHWI, Rounding::Rounded, memory, to)?
        } else {
            cast(cx, ty, DType::F16, memory, to)?
        };
        compiled.launches.extend(launches);
        compiled.scratch.push(2 * ty.numel());
        bound.push(to);
    }
    if let Some((call, folded)) = folded {
        bound.extend([cx.outputs[0], cx.scratch(WORKSPACE)]);
        bound.extend(folded.operands(cx, &mut compiled)?);
        compiled.rounded_with_result = folded.added(body);
        compiled.launches.push(launch(call, bound, true));
        return Ok(Some(compiled));
    }
    compiled.scratch[PRODUCT] = 2 * total;
    // Storing this result as `f16` changes nothing.
    compiled.has_rounded_result = is_alone && divisor == 1;
    bound.extend([cx.scratch(PRODUCT), cx.scratch(WORKSPACE)]);
    compiled.launches.push(launch(plain, bound, true));
    let factor = divisor as f32;
    let last = if columns.is_some() {
        after(product, cx.scratch(PRODUCT), factor)?
    } else {
        let &[h, w, c, o] = &body.ty(id).shape[..] else {
            return Err("a gradient by the weights has four axes".into());
        };
        let ty = TensorType::new(DType::F16, Shape::new(&[o, h, w, c])?);
        let widened = Rounding::Widened(factor);
        permuted(cx, &ty, TO_HWIO, widened, cx.scratch(PRODUCT), cx.outputs[0])?
    };
    compiled.launches.extend(last);
    Ok(Some(compiled))
}

/// Compiles the launches that compute the results of a body after its convolution. The convolution is stored in `f16`, and
/// is multiplied by `factor`.
fn after(product: &MatMulCall, stored: Memory, factor: f32) -> Result<Vec<Launch>, String> {
    let &MatMulCall { body, id, cx, .. } = product;
    let ty = body.ty(id).clone();
    let operand = Def::Operand(cx.kernel.inputs.len());
    let mut after = body.clone();
    if factor == 1.0 {
        after.nodes[id].def = operand;
    } else {
        // Operands come before their users.
        let first = [
            Node {
                def: operand,
                ty: ty.clone(),
            },
            constant(factor),
        ];
        for node in &mut after.nodes {
            if let Def::Call { inputs, .. } = &mut node.def {
                inputs.iter_mut().for_each(|input| *input += first.len());
            }
        }
        after.nodes[id].def = Def::Call {
            op: MUL,
            attrs: Attrs::new(),
            inputs: vec![0, 1],
            role: Role::Pointwise,
        };
        after.results.iter_mut().for_each(|result| *result += first.len());
        after.nodes.splice(0..0, first);
    }
    let inputs = [cx.kernel.inputs, &[TensorType::new(DType::F16, ty.shape)]].concat();
    let kernel = KernelDesc {
        inputs: &inputs,
        ..cx.kernel
    };
    let sources = [&cx.inputs[..], &[Source::Memory(stored)]].concat();
    let part = cx.part(kernel, sources, cx.outputs.clone(), 0);
    Ok(pointwise::compile(&after, &part)?.launches)
}

fn constant(number: f32) -> Node {
    Node {
        def: Def::Constant(Constant::Same(number.to_bits())),
        ty: TensorType::new(DType::F32, Shape::scalar()),
    }
}

/// The change of elements while they are permuted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rounding {
    /// Rounded to `f16`.
    Rounded,
    /// Converted to `f32`, and multiplied by a number.
    Widened(f32),
}

/// Compiles launches that permute the axes of a tensor and change its elements.
fn permuted(
    cx: &CompileCx,
    ty: &TensorType,
    axes: [i32; 4],
    rounding: Rounding,
    from: Memory,
    to: Memory,
) -> Result<Vec<Launch>, String> {
    let mut nodes: Vec<Node> = Vec::new();
    let step = |nodes: &mut Vec<Node>, name: &str, attrs: Attrs, inputs: Vec<Id>, role: Role| -> Result<(), String> {
        let op: OpRef = registry::op(name).ok_or("there is no such operator")?;
        let types: Vec<TensorType> = inputs.iter().map(|&id| nodes[id].ty.clone()).collect();
        let call = Call {
            attrs: &attrs,
            inputs: &types,
            outputs: &[],
        };
        let ty = op.infer(&call)?.swap_remove(0);
        let op = op.get().name();
        nodes.push(Node {
            def: Def::Call {
                op,
                attrs,
                inputs,
                role,
            },
            ty,
        });
        Ok(())
    };
    nodes.push(Node {
        def: Def::Operand(0),
        ty: ty.clone(),
    });
    let axes = Attrs::new().with("axes", &axes[..]);
    step(&mut nodes, PERMUTE, axes, vec![0], Role::View)?;
    match rounding {
        Rounding::Rounded => {
            let to = Attrs::new().with("to", DType::F16);
            step(&mut nodes, CAST, to, vec![1], Role::Pointwise)?;
        }
        Rounding::Widened(factor) => {
            let to = Attrs::new().with("to", DType::F32);
            step(&mut nodes, CAST, to, vec![1], Role::Pointwise)?;
            nodes.push(constant(factor));
            step(&mut nodes, MUL, Attrs::new(), vec![2, 3], Role::Pointwise)?;
        }
    }
    let last = nodes.len() - 1;
    let (inputs, outputs) = ([ty.clone()], [nodes[last].ty.clone()]);
    let attrs = Attrs::new();
    let kernel = KernelDesc {
        name: PERMUTE,
        version: 1,
        attrs: &attrs,
        inputs: &inputs,
        outputs: &outputs,
    };
    let part = cx.part(kernel, vec![Source::Memory(from)], vec![to], 0);
    let body = Body {
        nodes,
        results: vec![last],
    };
    Ok(pointwise::compile(&body, &part)?.launches)
}
