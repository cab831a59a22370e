//! Writing of rows into a cache at a position given at run time.

use super::positions::{checked, expect_positions, first_rows};
use super::rope::RopeCacheWrite;
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, Call, Cost, Doc, FUSED_CACHE_WRITE, FusedWrite, Gradient, OpRef, Operator, ProgramWrite, Semantics, cast_as,
    expect_cache_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct CacheWrite;

/// Sizes of a `core.cache_write` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheDims {
    /// Number of sequences: the product of the leading axes.
    pub batch: usize,
    /// Number of rows written for each sequence, at least one.
    pub rows: usize,
    /// Number of rows of the cache of a sequence.
    pub capacity: usize,
    /// Number of elements of a row.
    pub width: usize,
}

impl CacheDims {
    /// Reads the dimensions of a call.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        let [new, cache, positions] = call.inputs else {
            return Err("takes new rows, a cache and positions".into());
        };
        expect_cache_dtype(new, cache)?;
        let ([batch @ .., rows, width], [of_cache @ .., capacity, wide]) = (new.shape.dims(), cache.shape.dims())
        else {
            return Err(format!(
                "the new rows {new} and the cache {cache} need at least two axes: [..., rows, width]"
            ));
        };
        if batch != of_cache || width != wide {
            return Err(format!(
                "the new rows {new} do not fit the cache {cache}; all axes but the one before the last must be equal"
            ));
        }
        if *rows == 0 {
            return Err(format!("there are no rows to write: {new}"));
        }
        if rows > capacity {
            return Err(format!(
                "{rows} rows ({new}) do not fit into the {capacity} of the cache {cache}"
            ));
        }
        expect_positions("the position of the first row", positions, batch)?;
        Ok(CacheDims {
            batch: batch.iter().product(),
            rows: *rows,
            capacity: *capacity,
            width: *width,
        })
    }

    /// Returns the exclusive upper bound of the position of the first row.
    pub fn bound(&self) -> usize {
        first_rows(self.capacity, self.rows)
    }
}

/// Returns a copy of the cache with the new rows at the position.
pub(super) fn written(g: &mut Graph, [new, cache, position]: [Value; 3], dims: &CacheDims) -> Value {
    let &CacheDims {
        batch,
        rows,
        capacity,
        width,
    } = dims;
    if batch == 0 {
        return cache;
    }
    let shape = g.shape(cache).to_vec();
    let new = cast_as(g, new, cache);
    let cache = g.reshape(cache, &[batch, capacity, width]);
    let new = g.reshape(new, &[batch * rows, width]);
    let first = checked(g, position, dims.bound());
    let first = g.reshape(first, &[batch, 1]);
    // Index of the new row for each row of the cache; rows before the first wrap to large numbers.
    let all = g.constant_u32((0..capacity).map(|i| i as u32).collect(), &[capacity]);
    let relative = g.sub(all, first);
    let count = g.scalar_of(DType::U32, rows as f64);
    let inside = g.less_than(relative, count);
    let none = g.scalar_of(DType::U32, 0.0);
    let row = g.select(inside, relative, none);
    let count = g.scalar_of(DType::U32, rows as f64);
    let sequences = g.constant_u32((0..batch).map(|i| i as u32).collect(), &[batch, 1]);
    let start = g.mul(sequences, count);
    let row = g.add(row, start);
    let taken = g.gather(new, row);
    let inside = g.reshape(inside, &[batch, capacity, 1]);
    let written = g.select(inside, taken, cache);
    g.reshape(written, &shape).into()
}

impl Operator for CacheWrite {
    fn name(&self) -> &'static str {
        "core.cache_write"
    }

    fn signature(&self) -> String {
        "g.cache_write(new, cache, kv_pos)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "new rows [batch..., rows, width], cache [batch..., capacity, width], position (u32) [batch...], or [1] without batch -> as the cache; a cache is of the rows' type, or f16 for rows of f32 of an even number of elements",
            formula: "the cache with rows position .. position + rows - 1 of each sequence replaced by the new ones; the state or parameter holds it from now on. A position above capacity - rows is an error of the step, which writes nothing",
            source: "the key-value cache of Pope et al., 2022, in place",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        CacheDims::of(call)?;
        Ok(vec![call.inputs[1].clone()])
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(1, 0)]
    }

    fn fused_write(&self) -> Option<FusedWrite> {
        Some(FusedWrite {
            producer: "core.rope_dynamic_offset",
            same: &[(1, 2)],
            op: OpRef::new(&RopeCacheWrite),
        })
    }

    fn program_write(&self) -> Option<ProgramWrite> {
        Some(ProgramWrite {
            op: FUSED_CACHE_WRITE,
            paged: false,
            before: None,
        })
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((2, CacheDims::of(call).ok()?.bound()))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let [new, cache, positions] = call.inputs else {
                    return Vec::new();
                };
                let [.., rows, width] = *new.shape() else {
                    return Vec::new();
                };
                let [.., capacity, _] = *cache.shape() else {
                    return Vec::new();
                };
                let mut out = cache.data.clone();
                for (sequence, &position) in positions.data.iter().enumerate() {
                    // A position out of range writes nothing.
                    if position as usize + rows <= capacity {
                        let to = (sequence * capacity + position as usize) * width;
                        let from = sequence * rows * width;
                        out[to..to + rows * width].copy_from_slice(&new.data[from..from + rows * width]);
                    }
                }
                vec![out]
            },
            |cx| {
                let &[new, cache, position] = cx.inputs else {
                    return Err("takes new rows, a cache and positions".into());
                };
                let dims = cx.with_call(CacheDims::of)?;
                Ok(vec![written(cx.graph, [new, cache, position], &dims)])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        // Other rows are not touched.
        Cost {
            flops: 0,
            bytes: call.inputs.first().map_or(0, |new| 2 * new.bytes() as u64),
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, more, width) = (sizes.dim(9), sizes.below(40), sizes.dim(40));
        let cases: [(&[usize], usize, usize, usize); 7] = [
            (&[], 1, 1, 1),
            (&[], 1, 9, 4),
            (&[], 4, 9, 3),
            (&[], 5, 5, 2),
            (&[3], 1, 7, 5),
            (&[2, 2], 2, 6, 3),
            (&[2], rows, rows + more, width),
        ];
        let case = |dtype, (batch, rows, capacity, width): (&[usize], usize, usize, usize)| {
            let shape = |rows| [batch, &[rows, width]].concat();
            let positions = if batch.is_empty() { &[1] } else { batch };
            let inputs = vec![
                SampleInput::f32(&shape(rows)),
                SampleInput::cache(dtype, &shape(capacity)).state(),
                SampleInput::below(positions, first_rows(capacity, rows)),
            ];
            let label = format!("{rows} of {capacity} rows of {width}, batch {batch:?}, {dtype}");
            Sample::new(label, inputs, Attrs::new()).written_to_cache(dtype)
        };
        // Rows of f16 have pairs of elements.
        let halves = cases[1..].iter().map(|&(batch, rows, capacity, width)| {
            case(DType::F16, (batch, rows, capacity, width.next_multiple_of(2)))
        });
        cases
            .iter()
            .map(|&sizes| case(DType::F32, sizes))
            .chain(halves)
            .collect()
    }
}

impl Graph {
    /// Writes rows into a KV cache: `new [batch..., rows, width]` becomes rows
    /// `kv_pos .. kv_pos + rows` of `cache [batch..., capacity, width]`, a state or parameter;
    /// other rows do not change. `kv_pos` is the number of rows already in the cache: `u32 [1]`, or
    /// with batch axes one for each sequence, `u32 [batch...]`. Rows of `f32` may be written into a
    /// cache of `f16`, which rounds them.
    ///
    /// The write happens in place, even if its result is unused, and later reads of `cache` see it. Returns the cache.
    /// A position from which the rows do not fit is an error of the step, which then writes nothing
    /// to the cache.
    #[track_caller]
    pub fn cache_write(&mut self, new: impl Into<Value>, cache: impl Into<Value>, kv_pos: impl Into<Value>) -> NodeId {
        let operands = vec![new.into(), cache.into(), kv_pos.into()];
        self.call(OpRef::new(&CacheWrite), Attrs::new(), operands)
    }
}
