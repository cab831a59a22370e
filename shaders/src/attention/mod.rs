//! Attention in dedicated kernels that never write the scores to memory. The softmax iterates over tiles of keys and
//! updates the maximum score and the sum (Milakov and Gimelshein, 2018; Dao et al., 2022). Unsupported calls, and
//! calls with few queries and many keys, are decomposed like other operators.

mod backward;
mod cached;
mod caches;
mod coop;
mod forward;
mod heads;
mod schedules;
mod tiles;

use meganeura_core::DType;
use meganeura_core::ops::AttentionDims;

use super::kernel::{CompileCx, Compiled};
use super::variants::{self, Candidate as _};
use heads::{Kind, MAX_WIDTH};
use schedules::{Attention, Variant};

/// Compiles the launches of an attention call. Returns `None` if the call should be decomposed.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    if cx.kernel.name == cached::PAGED {
        return cached::paged(cx);
    }
    let Some(kind) = Kind::of(cx.kernel.name) else {
        return Ok(None);
    };
    let call = cx.call();
    let (dims, has_kernels) = match kind {
        Kind::Cached => {
            let dims = AttentionDims::of_cached(&call)?;
            let is_float = cx.kernel.outputs[0].dtype == DType::F32;
            (dims, is_float && dims.head_dim <= cached::MAX_ELEMENTS)
        }
        Kind::Forward | Kind::Gradient => {
            let dims = AttentionDims::of(&call)?;
            let most_width = if kind == Kind::Gradient {
                backward::MAX_WIDTH
            } else {
                MAX_WIDTH
            };
            let is_float = cx.kernel.inputs[0].dtype == DType::F32;
            (dims, is_float && !cx.overwrites() && dims.head_dim <= most_width)
        }
    };
    if !has_kernels {
        return Ok(None);
    }
    if dims.batch * dims.rows_q == 0 {
        // Without queries, the gradients of the keys are zeros. The decomposition computes them.
        return Ok((kind == Kind::Cached).then(Compiled::default));
    }
    let attention = Attention { cx, kind, dims };
    let chosen = variants::chosen(
        cx,
        |precision| attention.class(precision),
        || attention.all(),
        |variant| attention.compile(variant),
    );
    match (chosen, attention.usual()) {
        (Some(compiled), _) => Ok(Some(compiled)),
        // The matmuls of the decomposition have their own variants.
        (None, Variant::Decomposed) => Ok(None),
        (None, usual) => {
            let compiled = attention.compile(&usual)?;
            Ok(Some(variants::scheduled(compiled, &usual.schedule())))
        }
    }
}
