//! Writing of rows into the blocks of a paged KV cache.

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, Call, Cost, Doc, FUSED_CACHE_WRITE, Gradient, OpRef, Operator, ProgramWrite, Semantics, cast_as,
    expect_cache_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct PagedCacheWrite;

/// Sizes of a `core.paged_cache_write` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedWriteDims {
    /// Number of rows to write.
    pub rows: usize,
    /// Number of elements of a row.
    pub width: usize,
    /// Number of rows of all blocks of the cache together.
    pub slots: usize,
}

impl PagedWriteDims {
    /// Reads the dimensions of a call.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        let [new, cache, slots] = call.inputs else {
            return Err("takes new rows, a cache and slots".into());
        };
        expect_cache_dtype(new, cache)?;
        let (&[rows, width], &[blocks, block_rows, wide]) = (new.shape.dims(), cache.shape.dims()) else {
            return Err(format!(
                "takes new rows [rows, width] and a cache [blocks, block_rows, width], not {new} and {cache}"
            ));
        };
        if width != wide {
            return Err(format!(
                "the new rows {new} do not fit the cache {cache}; their last axes must be equal"
            ));
        }
        if slots.dtype != DType::U32 || slots.shape.dims() != [rows] {
            return Err(format!(
                "the slots are {slots}, but there is one for each new row: u32 [{rows}]"
            ));
        }
        Ok(PagedWriteDims {
            rows,
            width,
            slots: blocks * block_rows,
        })
    }

    /// Returns the exclusive upper bound of slots. The bound includes one slot beyond the cache, whose writes are
    /// discarded.
    pub fn bound(&self) -> usize {
        self.slots + 1
    }
}

/// Returns a copy of the cache with the new rows in the given slots.
pub(super) fn written(g: &mut Graph, [new, cache, slots]: [Value; 3], dims: &PagedWriteDims) -> Value {
    if dims.rows == 0 {
        return cache;
    }
    let shape = g.shape(cache).to_vec();
    let new = cast_as(g, new, cache);
    let flat = g.reshape(cache, &[dims.slots, dims.width]);
    // An additional row receives the rows that must not be written.
    let spare = g.full(g.dtype(cache), 0.0, &[1, dims.width]);
    let all = g.concat(&[flat, spare], 0);
    let written = g.scatter(all, slots, new, 0);
    let kept = g.slice_axis(written, 0, 0, dims.slots);
    g.reshape(kept, &shape).into()
}

impl Operator for PagedCacheWrite {
    fn name(&self) -> &'static str {
        "core.paged_cache_write"
    }

    fn signature(&self) -> String {
        "g.paged_cache_write(new, cache, slots)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "new rows [rows, width], cache [blocks, block_rows, width], slots (u32) [rows] -> as the cache; a cache is of the rows' type, or f16 for rows of f32 of an even number of elements",
            formula: "the cache with row slots[i] % block_rows of block slots[i] / block_rows replaced by new row i, the last one where a slot repeats; the state or parameter holds it from now on. The slot blocks * block_rows writes nothing, one above is an error of the step",
            source: "the slot mapping of PagedAttention (Kwon et al., 2023), in place",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        PagedWriteDims::of(call)?;
        Ok(vec![call.inputs[1].clone()])
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(1, 0)]
    }

    fn program_write(&self) -> Option<ProgramWrite> {
        Some(ProgramWrite {
            op: FUSED_CACHE_WRITE,
            paged: true,
            before: None,
        })
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((2, PagedWriteDims::of(call).ok()?.bound()))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[new, cache, slots] = cx.inputs else {
                return Err("takes new rows, a cache and slots".into());
            };
            let dims = cx.with_call(PagedWriteDims::of)?;
            Ok(vec![written(cx.graph, [new, cache, slots], &dims)])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        // Other rows are not touched.
        Cost {
            flops: 0,
            bytes: call.inputs.first().map_or(0, |new| 2 * new.bytes() as u64),
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, blocks, block_rows, width) = (sizes.dim(20), sizes.dim(9), sizes.dim(9), sizes.dim(40));
        let cases = [
            (1, [1, 1, 1]),
            (1, [3, 4, 5]),
            // Some slots repeat, and some rows are written nowhere.
            (9, [2, 2, 3]),
            (16, [7, 8, 64]),
            // More rows, and wider ones, than a workgroup has threads.
            (300, [5, 20, 270]),
            (rows, [blocks, block_rows, width]),
        ];
        let case = |dtype, (rows, cache): (usize, [usize; 3])| {
            let [blocks, block_rows, width] = cache;
            let inputs = vec![
                SampleInput::f32(&[rows, width]),
                SampleInput::cache(dtype, &cache).state(),
                SampleInput::below(&[rows], blocks * block_rows + 1),
            ];
            Sample::new(format!("{rows} rows into {cache:?}, {dtype}"), inputs, Attrs::new()).written_to_cache(dtype)
        };
        // Rows of f16 have pairs of elements.
        let halves = cases[1..].iter().map(|&(rows, [blocks, block_rows, width])| {
            case(DType::F16, (rows, [blocks, block_rows, width.next_multiple_of(2)]))
        });
        cases
            .iter()
            .map(|&sizes| case(DType::F32, sizes))
            .chain(halves)
            .collect()
    }
}

impl Graph {
    /// Writes rows into a paged KV cache: row `i` of `new [rows, width]` becomes row
    /// `slots[i] % block_rows` of block `slots[i] / block_rows` of
    /// `cache [blocks, block_rows, width]`, a state or parameter; other rows do not change. `slots`
    /// is `u32 [rows]`; the slot `blocks * block_rows` writes nothing, for padding rows without a
    /// token. If several rows have the same slot, the last one is written. Rows of `f32` may be
    /// written into a cache of `f16`, which rounds them.
    ///
    /// The write happens in place, even if its result is unused, and later reads of `cache` see it. Returns the cache.
    /// A slot out of range is an error of the step.
    #[track_caller]
    pub fn paged_cache_write(
        &mut self,
        new: impl Into<Value>,
        cache: impl Into<Value>,
        slots: impl Into<Value>,
    ) -> NodeId {
        let operands = vec![new.into(), cache.into(), slots.into()];
        self.call(OpRef::new(&PagedCacheWrite), Attrs::new(), operands)
    }
}
