//! Rotation of rows (RoPE) while they are written to a cache, as for the keys of a decode step.

use super::dynamic::{RopeDynamicOffset, attrs};
use super::{RopeDims, RopeScaling};
use crate::dtype::DType;
use crate::ops::cache_write::{self, CacheWrite};
use crate::ops::sample::{Sample, SampleInput, Sizes};
use crate::ops::{
    Arity, AttrDecls, Call, Cost, Doc, FUSED_CACHE_WRITE, Gradient, OpRef, Operator, ProgramWrite, Semantics,
};
use crate::shape::TensorType;

pub(in crate::ops) struct RopeCacheWrite;

impl Operator for RopeCacheWrite {
    fn name(&self) -> &'static str {
        "core.rope_cache_write"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "new rows [batch..., rows, heads * head_dim], cache [batch..., capacity, heads * head_dim], position (u32) [batch...], or [1] without batch -> as the cache; a cache is of the rows' type, or f16 for rows of f32 of an even number of elements",
            formula: "core.cache_write of core.rope_dynamic_offset(new rows, position), into the cache at the position",
            source: "rotated rows are written only to the cache; replaces the two calls where that is faster",
        }
    }

    fn arity(&self) -> Arity {
        CacheWrite.arity()
    }

    fn attributes(&self) -> AttrDecls {
        RopeDynamicOffset.attributes()
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let types = CacheWrite.infer(call)?;
        RopeDims::of_dynamic(call)?;
        Ok(types)
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        CacheWrite.writes()
    }

    fn program_write(&self) -> Option<ProgramWrite> {
        Some(ProgramWrite {
            op: FUSED_CACHE_WRITE,
            paged: false,
            before: Some(OpRef::new(&RopeDynamicOffset)),
        })
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        CacheWrite.index_bound(call)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[new, cache, position] = cx.inputs else {
                return Err("takes new rows, a cache and positions".into());
            };
            let dims = cx.with_call(cache_write::CacheDims::of)?;
            let rope = OpRef::new(&RopeDynamicOffset);
            let turned = cx.graph.call(rope, cx.attrs.clone(), vec![new, position]);
            let written = cache_write::written(cx.graph, [turned.into(), cache, position], &dims);
            Ok(vec![written])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: call.inputs.first().map_or(0, |new| 3 * new.numel() as u64),
            ..CacheWrite.cost(call)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, more) = (sizes.dim(9), sizes.below(40));
        let (heads, half) = (sizes.dim(5), sizes.dim(20));
        let scaled = RopeScaling::Linear { factor: 4.0 };
        let cases = [
            (vec![], [1, 1], 1, 2, RopeScaling::None),
            (vec![], [1, 9], 3, 4, RopeScaling::None),
            (vec![], [4, 9], 1, 6, scaled),
            (vec![3], [1, 7], 2, 64, RopeScaling::None),
            (vec![2, 2], [2, 6], 1, 34, scaled),
            (vec![2], [rows, rows + more], heads, 2 * half, RopeScaling::None),
        ];
        let mut samples = Vec::new();
        for dtype in [DType::F32, DType::F16] {
            for (batch, [rows, capacity], heads, head_dim, scaling) in &cases {
                let (rows, capacity, heads, head_dim) = (*rows, *capacity, *heads, *head_dim);
                let shape = |rows| [&batch[..], &[rows, heads * head_dim]].concat();
                let positions = if batch.is_empty() { &[1][..] } else { batch };
                let inputs = vec![
                    SampleInput::f32(&shape(rows)),
                    SampleInput::cache(dtype, &shape(capacity)).state(),
                    SampleInput::below(positions, capacity + 1 - rows),
                ];
                let label = format!(
                    "{rows} of {capacity} rows of {heads} heads of {head_dim}, batch {batch:?}, {scaling:?}, {dtype}"
                );
                let sample = Sample::new(label, inputs, attrs(10_000.0, head_dim as u32, *scaling));
                samples.push(sample.written_to_cache(dtype));
            }
        }
        samples
    }
}
