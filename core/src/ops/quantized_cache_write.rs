//! Writing of rows into a quantized KV cache: 8-bit integers with a scale for each block of 32.

use super::attention::quantized;
use super::cache_write::{self, CacheDims};
use super::paged_cache_write::{self, PagedWriteDims};
use super::positions::first_rows;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::quantization::BLOCK;
use crate::shape::TensorType;

pub(super) struct QuantizedCacheWrite;

/// Sizes of a `core.quantized_cache_write` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedWriteDims {
    /// Number of rows to write.
    pub rows: usize,
    /// Number of elements of a row, a multiple of 64.
    pub width: usize,
    /// Number of rows of the cache.
    pub slots: usize,
    /// Sizes of a sequence if the call has the position of the first row of each sequence; `None` if it has the slot of each
    /// row.
    pub sequence: Option<SequenceRows>,
}

/// Sizes of a sequence in a cache whose sequences are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceRows {
    /// Number of rows to write, at least one.
    pub rows: usize,
    /// Number of rows of the cache.
    pub capacity: usize,
}

impl QuantizedWriteDims {
    /// Reads the dimensions of a call.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        let [new, words, scales, places] = call.inputs else {
            return Err("takes new rows, words, scales, and positions or slots".into());
        };
        if new.dtype != DType::F32 {
            return Err(format!("the new rows must be f32, found {new}"));
        }
        let numbers = quantized(words, scales)?;
        // The operands of the write of plain numbers.
        let plain = Call {
            inputs: &[new.clone(), numbers, places.clone()],
            ..*call
        };
        if call.attrs.bool("paged")? {
            let PagedWriteDims { rows, width, slots } = PagedWriteDims::of(&plain)?;
            return Ok(QuantizedWriteDims {
                rows,
                width,
                slots,
                sequence: None,
            });
        }
        let CacheDims {
            batch,
            rows,
            capacity,
            width,
        } = CacheDims::of(&plain)?;
        Ok(QuantizedWriteDims {
            rows: batch * rows,
            width,
            slots: batch * capacity,
            sequence: Some(SequenceRows { rows, capacity }),
        })
    }

    /// Returns the exclusive upper bound of positions, or of slots. The latter includes one slot beyond the cache, whose
    /// writes are discarded.
    pub fn bound(&self) -> usize {
        match self.sequence {
            Some(SequenceRows { rows, capacity }) => first_rows(capacity, rows),
            None => self.slots + 1,
        }
    }

    /// Returns the index of the cache row for the new row `row`. Returns `None` if the write is discarded. `places` contains
    /// the positions or slots of the call, which must be below the [bound](Self::bound).
    pub fn slot(&self, row: usize, places: &[u32]) -> Option<usize> {
        match self.sequence {
            Some(SequenceRows { rows, capacity }) => {
                let sequence = row / rows;
                Some(sequence * capacity + places[sequence] as usize + row % rows)
            }
            None => Some(places[row] as usize).filter(|&slot| slot < self.slots),
        }
    }
}

/// Quantizes rows: returns the words `[rows, width / 4]` and the scales `[rows, width / 32]`.
fn quantize(g: &mut Graph, new: Value, dims: &QuantizedWriteDims) -> [NodeId; 2] {
    let &QuantizedWriteDims { rows, width, .. } = dims;
    let blocks = rows * width / BLOCK;
    let [zero, most, infinity] = [0.0, 127.0, f32::INFINITY].map(|x| g.scalar(x));
    let x = g.reshape(new, &[blocks, BLOCK]);
    let magnitude = g.abs(x);
    let greatest = g.max(magnitude, &[-1], true);
    let scale = g.div(greatest, most);
    // A block of zeros has the scale 0, and one with infinity or NaN a scale that is not finite.
    let above = g.less_than(zero, scale);
    let below = g.less_than(scale, infinity);
    let is_usable = g.mul(above, below);
    let q = g.div(x, scale);
    let q = g.round(q);
    let q = g.select(is_usable, q, zero);
    let least = g.neg(most);
    let q = g.maximum(q, least);
    let q = g.minimum(q, most);
    // Two's complement.
    let modulus = g.scalar(256.0);
    let wrapped = g.add(q, modulus);
    let is_negative = g.less_than(q, zero);
    let q = g.select(is_negative, wrapped, q);
    let bytes = g.cast(q, DType::U32);
    let bytes = g.reshape(bytes, &[rows, width / 4, 4]);
    let shifts = g.constant_u32(vec![0, 8, 16, 24], &[4]);
    let shifted = g.shift_left(bytes, shifts);
    let parts = [0, 1, 2, 3].map(|byte| g.slice_axis(shifted, -1, byte, byte + 1));
    let [low, high] = [[0, 1], [2, 3]].map(|pair| g.bit_or(parts[pair[0]], parts[pair[1]]));
    let words = g.bit_or(low, high);
    let scale = g.cast(scale, DType::F16);
    [
        g.reshape(words, &[rows, width / 4]),
        g.reshape(scale, &[rows, width / BLOCK]),
    ]
}

impl Operator for QuantizedCacheWrite {
    fn name(&self) -> &'static str {
        "core.quantized_cache_write"
    }

    fn signature(&self) -> String {
        "g.quantized_cache_write(new, words, scales, kv_pos)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "new rows [batch..., rows, width] with a width that is a multiple of 64, words (u32) [batch..., capacity, width / 4] and scales (f16) [batch..., capacity, width / 32] of the cache, position (u32) [batch...], or [1] without batch -> as words, as scales; paged: new rows [rows, width], slots (u32) [rows] instead of positions; the cache has [blocks, block_rows, ...]",
            formula: "core.cache_write, or if paged core.paged_cache_write, of rows in blocks of 32 numbers x as Q8_0 of core.dequantize: the scale s is max |x| / 127, and the integers are x / s, rounded to nearest even; then s is rounded to f16. A block with NaN or infinity has a scale that is not finite, and integers of 0",
            source: "the key-value cache of Pope et al., 2022, in place, with the format Q8_0 of GGUF",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(4)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("paged", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        QuantizedWriteDims::of(call)?;
        Ok(call.inputs[1..3].to_vec())
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(1, 0), (2, 1)]
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((3, QuantizedWriteDims::of(call).ok()?.bound()))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[new, words, scales, places] = cx.inputs else {
                return Err("takes new rows, words, scales, and positions or slots".into());
            };
            let dims = cx.with_call(QuantizedWriteDims::of)?;
            if dims.rows == 0 || dims.width == 0 || dims.slots == 0 {
                return Ok(vec![words, scales]);
            }
            let shape = cx.graph.shape(new).to_vec();
            let parts = quantize(cx.graph, new, &dims);
            let of = |g: &mut Graph, new: NodeId, cache: Value, width: usize| match dims.sequence {
                Some(SequenceRows { rows, capacity }) => {
                    let dims = CacheDims {
                        batch: dims.rows / rows,
                        rows,
                        capacity,
                        width,
                    };
                    let leading = &shape[..shape.len() - 1];
                    let new = g.reshape(new, &[leading, &[width]].concat());
                    cache_write::written(g, [new.into(), cache, places], &dims)
                }
                None => {
                    let dims = PagedWriteDims {
                        rows: dims.rows,
                        width,
                        slots: dims.slots,
                    };
                    paged_cache_write::written(g, [new.into(), cache, places], &dims)
                }
            };
            Ok(vec![
                of(cx.graph, parts[0], words, dims.width / 4),
                of(cx.graph, parts[1], scales, dims.width / BLOCK),
            ])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        // Other rows are not touched.
        let bytes = call.inputs.first().map_or(0, |new| new.bytes() as u64);
        Cost {
            flops: bytes,
            bytes: bytes + bytes / 4,
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, more, blocks, pairs) = (sizes.dim(20), sizes.below(40), sizes.dim(9), sizes.dim(5));
        // Axes of the new rows, axes of the cache, and pairs of blocks of a row.
        let paged = [
            (vec![1], vec![1, 1], 1),
            (vec![1], vec![3, 3], 3),
            // Some slots repeat, and some rows are written nowhere.
            (vec![9], vec![2, 2], 1),
            (vec![16], vec![7, 8], 2),
            // More rows, and wider ones, than a workgroup has threads.
            (vec![300], vec![5, 20], 1),
            (vec![3], vec![4, 1], 70),
            (vec![rows], vec![blocks, 5], pairs),
        ];
        let contiguous = [
            (vec![1], vec![9], 2),
            (vec![5], vec![5], 1),
            (vec![3, 1], vec![3, 7], 1),
            (vec![2, 2, 2], vec![2, 2, 6], 3),
            (vec![2, rows], vec![2, rows + more], pairs),
        ];
        let case = |(of_new, of_cache, pairs): (Vec<usize>, Vec<usize>, usize), is_paged: bool| {
            let width = 2 * BLOCK * pairs;
            let shape = |rows: &[usize], width: usize| [rows, &[width]].concat();
            let (rows, batch) = of_new.split_last().map_or((0, &[][..]), |(rows, batch)| (*rows, batch));
            let places = if is_paged {
                SampleInput::below(&[rows], of_cache.iter().product::<usize>() + 1)
            } else {
                let capacity = of_cache.last().copied().unwrap_or(0);
                let sequences = if batch.is_empty() { &[1] } else { batch };
                SampleInput::below(sequences, first_rows(capacity, rows))
            };
            let inputs = vec![
                // If the largest of integers is odd, no quotient is close to the middle of two integers.
                SampleInput::filled(DType::F32, &shape(&of_new, width), Fill::Odd(89)),
                SampleInput::below(&shape(&of_cache, width / 4), u32::MAX as usize).state(),
                SampleInput::filled(DType::F16, &shape(&of_cache, width / BLOCK), Fill::Below(60)).state(),
                places,
            ];
            let label = format!("{of_new:?} rows of {width} into {of_cache:?}, paged {is_paged}");
            Sample::new(label, inputs, Attrs::new().with("paged", is_paged)).written_to_cache(DType::F16)
        };
        let paged = paged.into_iter().map(|sizes| case(sizes, true));
        let contiguous = contiguous.into_iter().map(|sizes| case(sizes, false));
        paged.chain(contiguous).collect()
    }
}

impl Graph {
    /// Writes rows into a quantized KV cache: `new [batch..., rows, width]` (`f32`) becomes rows `kv_pos .. kv_pos + rows` of
    /// the cache, whose rows have `words [batch..., capacity, width / 4]` (`u32`) and
    /// `scales [batch..., capacity, width / 32]` (`f16`), both states or parameters; other rows do not change. `kv_pos` is
    /// as for [`Graph::cache_write`]. `width` is a multiple of 64.
    ///
    /// Each block of 32 numbers of a row becomes 8-bit integers with a common scale, the largest magnitude divided by
    /// 127, so that a number is off by at most 1/254 of the largest magnitude, plus the rounding of the scale to `f16`
    /// (Q8_0, as in [`Graph::dequantize`]). The scale is infinite if the largest magnitude is above 8.3e6.
    ///
    /// The write happens in place, even if its results are unused, and later reads of the cache see it. Returns words and
    /// scales. If the rows do not fit into the cache, the step returns an error.
    #[track_caller]
    pub fn quantized_cache_write(
        &mut self,
        new: impl Into<Value>,
        words: impl Into<Value>,
        scales: impl Into<Value>,
        kv_pos: impl Into<Value>,
    ) -> [Value; 2] {
        let operands = vec![new.into(), words.into(), scales.into(), kv_pos.into()];
        self.write_quantized(operands, false)
    }

    /// Writes rows into the blocks of a quantized KV cache, like [`Graph::quantized_cache_write`]: row `i` of
    /// `new [rows, width]` becomes row `slots[i]` of all rows of the cache, with `slots` as for
    /// [`Graph::paged_cache_write`]. Words and scales are `[blocks, block_rows, ...]`.
    #[track_caller]
    pub fn quantized_paged_cache_write(
        &mut self,
        new: impl Into<Value>,
        words: impl Into<Value>,
        scales: impl Into<Value>,
        slots: impl Into<Value>,
    ) -> [Value; 2] {
        let operands = vec![new.into(), words.into(), scales.into(), slots.into()];
        self.write_quantized(operands, true)
    }

    #[track_caller]
    fn write_quantized(&mut self, operands: Vec<Value>, is_paged: bool) -> [Value; 2] {
        let attrs = Attrs::new().with("paged", is_paged);
        let node = self.call(OpRef::new(&QuantizedCacheWrite), attrs, operands);
        [0, 1].map(|port| Value { node, port })
    }
}
