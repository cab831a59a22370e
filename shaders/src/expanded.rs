//! Matmuls of many rows with a packed matrix. One launch expands the matrix to `f16` once, and the matmul reads it
//! from scratch. Otherwise each workgroup along the rows would expand it again.

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::{DType, TensorType};

use super::body::{Def, Node};
use super::contraction::Sizes;
use super::epilogue::Results;
use super::kernel::{Compiled, Source};
use super::roles::Role;
use super::tiled::schedules::MatMulCall;
use super::{matmul, tiled};

/// The matrix is expanded before the matmul if there are at least this number of rows. On an H200, expansion made 128 rows 8 %
/// slower, and 512 rows a quarter faster.
const MIN_ROWS: usize = 192;
/// Maximum size of the expanded matrix in bytes: a common limit of storage buffers.
const MAX_BYTES: usize = 1 << 30;

/// Compiles the launches of a matmul whose second operand is packed. Returns `None` unless the matmul has many rows
/// and may round its operands to `f16`.
pub(super) fn compile(product: &MatMulCall, results: &Results) -> Result<Option<Compiled>, String> {
    let &MatMulCall {
        body, cx, contraction, ..
    } = product;
    let Sizes { batch, m, n, k } = contraction.sizes();
    let Some(packed) = contraction.packed(1).filter(|_| batch == 1 && m >= MIN_ROWS) else {
        return Ok(None);
    };
    let may_round = cx.coop.is_some_and(|config| config.use_f16_input);
    if !may_round || product.reduces || 2 * n * k > MAX_BYTES {
        return Ok(None);
    }
    let is_packed = |node: &Node| match &node.def {
        Def::Call { inputs, role, .. } => *role == Role::Packed && inputs[..] == [packed.words, packed.scales],
        _ => false,
    };
    let Some(matrix) = body.nodes.iter().position(is_packed) else {
        return Ok(None);
    };
    let readers = body.nodes.iter().filter(|node| match &node.def {
        Def::Call { inputs, .. } => inputs.contains(&packed.words) || inputs.contains(&matrix),
        _ => false,
    });
    if readers.count() != 2 {
        return Ok(None);
    }
    let ty = body.ty(matrix).clone();
    let expanded = cx.scratch(0);
    let mut launches = vec![packed.expand_to_f16(body, cx, n * k, expanded)?];

    // The expanded matrix replaces the packed words. Operands are the first nodes of a body, in their order.
    let stored = TensorType::new(DType::F16, ty.shape.clone());
    let mut body = body.clone();
    body.nodes[packed.words].ty = stored.clone();
    body.nodes[matrix] = Node {
        def: Def::Call {
            op: "core.cast",
            attrs: Attrs::new().with("to", DType::F32),
            inputs: vec![packed.words],
            role: Role::Pointwise,
        },
        ty,
    };
    let mut inputs = cx.kernel.inputs.to_vec();
    inputs[packed.words] = stored;
    let kernel = KernelDesc {
        inputs: &inputs,
        ..cx.kernel
    };
    let mut sources = cx.inputs.clone();
    sources[packed.words] = Source::Memory(expanded);
    let part = cx.part(kernel, sources, cx.outputs.clone(), cx.first_scratch + 1);
    let contraction = matmul::product(&body, product.id, &part)?;
    let stored = MatMulCall {
        body: &body,
        cx: &part,
        contraction: &contraction,
        ..*product
    };
    let compiled = tiled::compile_call(&stored, results)?;
    launches.extend(compiled.launches);
    let mut scratch = vec![2 * n * k];
    scratch.extend(compiled.scratch);
    Ok(Some(Compiled {
        launches,
        scratch,
        // The packed words in memory are not rounded.
        rounded: compiled
            .rounded
            .into_iter()
            .filter(|&operand| operand != packed.words)
            .collect(),
        rounded_with_result: compiled.rounded_with_result,
        has_rounded_result: compiled.has_rounded_result,
    }))
}
