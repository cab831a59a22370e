//! Quantized weights: dequantization, and products with block-quantized weights.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::quantization::{BLOCK, BlockFormat};
use crate::shape::{Shape, TensorType};

pub(super) struct Dequantize;
pub(super) struct QuantizedMatMul;
pub(super) struct QuantizedMatMulAdd;

/// Returns the format of weights with these words and scales, and the type of the dequantized weights.
pub(super) fn expanded(words: &TensorType, scales: &TensorType) -> Result<(BlockFormat, TensorType), String> {
    if words.dtype != DType::U32 || !scales.dtype.is_float() {
        return Err(format!(
            "quantised weights are u32 words and floating-point scales, not {words} and {scales}"
        ));
    }
    let ([rows @ .., of_words], [same @ .., of_scales]) = (words.shape.dims(), scales.shape.dims()) else {
        return Err(format!("the words {words} and the scales {scales} need an axis"));
    };
    let (Some(format), true) = (BlockFormat::of(*of_words, *of_scales), rows == same) else {
        let known = BlockFormat::ALL.map(|f| format!("{} and {} ({f:?})", f.words(), f.scales()));
        return Err(format!(
            "the words {words} and the scales {scales} do not fit: all axes but the last must be equal, and a block has {} \
             words and scales",
            known.join(", ")
        ));
    };
    let blocks = of_scales / format.scales();
    let length = blocks.checked_mul(BLOCK).ok_or("there are too many blocks")?;
    Ok((
        format,
        TensorType::new(DType::F32, Shape::new(&[rows, &[length]].concat())?),
    ))
}

/// Sizes of a [`Graph::quantized_matmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedDims {
    /// Number of rows of the left operand, summed over all batches.
    pub m: usize,
    /// Number of columns of the result; equals the number of rows of the weight.
    pub n: usize,
    /// Size of the summed dimension.
    pub k: usize,
    /// Format of the weight; `None` if it is plain floating-point numbers.
    pub format: Option<BlockFormat>,
}

impl QuantizedDims {
    /// Reads the sizes of a call.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        let (x, format, weight) = match call.inputs {
            [x, weight] => (x, None, weight.clone()),
            [x, words, scales] => {
                let (format, weight) = expanded(words, scales)?;
                (x, Some(format), weight)
            }
            _ => return Err("takes rows and a weight, which may be words and scales".into()),
        };
        if x.dtype != DType::F32 {
            return Err(format!(
                "the left operand must be f32, not {x}; use `cast` to convert it"
            ));
        }
        if !weight.dtype.is_float() {
            return Err(format!("a weight without scales must be floating point, not {weight}"));
        }
        let (&[n, wide], [rows @ .., k]) = (weight.shape.dims(), x.shape.dims()) else {
            return Err(format!("the weight must be a matrix [n, k], but is {weight}"));
        };
        if rows.is_empty() || *k != wide {
            return Err(format!(
                "the rows {x} do not fit the weight [{n}, {wide}]: they are [..., m, {wide}]"
            ));
        }
        let m = rows.iter().product();
        Ok(QuantizedDims { m, n, k: wide, format })
    }
}

/// Dequantizes words and scales.
fn dequantize(g: &mut Graph, words: Value, scales: Value, format: BlockFormat, shape: &[usize]) -> NodeId {
    let blocks = shape.iter().product::<usize>() / BLOCK;
    let words = g.reshape(words, &[blocks, format.words()]);
    let mut q = match format {
        BlockFormat::Q8_0 => {
            // Two's complement with its sign bit flipped is the number plus 128.
            let bytes = bits(g, words.into(), 8, &[0, 8, 16, 24]);
            let sign = g.scalar_of(DType::U32, 128.0);
            g.bit_xor(bytes, sign)
        }
        _ => {
            let low = g.slice_axis(words, -1, 0, 4);
            // The low nibbles of all bytes are the first half of a block, the high nibbles the
            // second.
            bits(g, low.into(), 4, &[0, 8, 16, 24, 4, 12, 20, 28])
        }
    };
    q = g.reshape(q, &[blocks, BLOCK]);
    // Add the bits above the lower four: their width, and the rounds and words that contain them.
    let above = match format {
        BlockFormat::Q6 => Some((2, [4, 2])),
        BlockFormat::Q5_1 | BlockFormat::Q5_0 => Some((1, [8, 1])),
        BlockFormat::Q8_0 | BlockFormat::Q4_1 | BlockFormat::Q4_0 => None,
    };
    if let Some((width, [rounds, count])) = above {
        let high = g.slice_axis(words, -1, 4, 4 + count);
        let shifts: Vec<u32> = (0..rounds as u32)
            .flat_map(|round| [0, 8, 16, 24].map(|byte| byte + round * width))
            .collect();
        let high = bits(g, high.into(), width, &shifts);
        let high = g.reshape(high, &[blocks, BLOCK]);
        let four = g.scalar_of(DType::U32, 4.0);
        let high = g.shift_left(high, four);
        q = g.bit_or(q, high);
    }
    let q = g.cast(q, DType::F32);
    let offset = match format {
        BlockFormat::Q8_0 => 128.0,
        _ => f32::from(format.offset()),
    };
    let offset = g.scalar(offset);
    let q = g.sub(q, offset);
    let scales = g.cast(scales, DType::F32);
    let scales = g.reshape(scales, &[blocks, format.scales()]);
    let y = match format {
        BlockFormat::Q6 => {
            let q = g.reshape(q, &[blocks, 2, BLOCK / 2]);
            let scales = g.reshape(scales, &[blocks, 2, 1]);
            g.mul(q, scales)
        }
        BlockFormat::Q5_1 | BlockFormat::Q4_1 => {
            let [scale, minimum] = [0, 1].map(|i| g.slice_axis(scales, -1, i, i + 1));
            let y = g.mul(q, scale);
            g.add(y, minimum)
        }
        BlockFormat::Q8_0 | BlockFormat::Q5_0 | BlockFormat::Q4_0 => g.mul(q, scales),
    };
    g.reshape(y, shape)
}

/// Extracts numbers of `width` bits from words `[blocks, words]`, giving `[blocks, rounds, words, 4]`: each round
/// extracts four numbers of each word, with the next four of `shifts`.
pub(super) fn bits(g: &mut Graph, words: Value, width: u32, shifts: &[u32]) -> NodeId {
    let (rounds, count) = (shifts.len() / 4, g.shape(words).last().copied().unwrap_or(0));
    let blocks = g.shape(words).first().copied().unwrap_or(0);
    let words = g.reshape(words, &[blocks, 1, count, 1]);
    let shifts = g.constant_u32(shifts.to_vec(), &[rounds, 1, 4]);
    let q = g.shift_right(words, shifts);
    let mask = g.scalar_of(DType::U32, f64::from((1 << width) - 1));
    g.bit_and(q, mask)
}

/// Returns random words and scales, as two operands of a sample, whose dequantized numbers are exact in `f16`. In
/// formats without minima, numbers have both signs, because the stored integers are signed.
pub(super) fn packed(shape: &[usize], format: BlockFormat) -> [SampleInput; 2] {
    let (rows, blocks) = shape.split_at(shape.len() - 1);
    let last = |count: usize| [rows, &[blocks[0] * count]].concat();
    [
        SampleInput::below(&last(format.words()), u32::MAX as usize),
        SampleInput::filled(DType::F16, &last(format.scales()), Fill::Below(60)),
    ]
}

impl Operator for Dequantize {
    fn name(&self) -> &'static str {
        "core.dequantize"
    }

    fn signature(&self) -> String {
        "g.dequantize(words, scales)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "words (u32) [..., words of a block * blocks], scales (float) [..., scales of a block * blocks] -> f32 [..., 32 blocks]; a block has 8 words and 1 scale (Q8_0), 6 and 2 (Q6), 5 and 2 (Q5_1), 5 and 1 (Q5_0), 4 and 2 (Q4_1), or 4 and 1 (Q4_0)",
            formula: "y[..., 32 b + i] = s q_i + m, where q_i is byte i of the block's words as a signed number (Q8_0), or has the lower half of byte i (i < 16) or the upper half of byte i - 16 as its lower four bits: minus 8 (Q4_0); as it is, with the second scale as m (Q4_1); with bit i / 4 of byte 16 + i % 4 above, minus 16 (Q5_0), or as it is with the second scale as m (Q5_1); or with bits 2 (i / 8) and the next of byte 16 + i % 8 above, minus 32, where s is the second scale from i = 16 on (Q6). s is the first scale, and m = 0, where nothing else is said",
            source: "the formats Q8_0, Q5_1, Q5_0, Q4_1 and Q4_0 of GGUF, with bits above four in another order; Q6 has the numbers of Q6_K",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [words, scales] = call.inputs else {
            return Err("takes words and scales".into());
        };
        Ok(vec![expanded(words, scales)?.1])
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Prologue
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let (words, scales) = (call.inputs[0], call.inputs[1]);
                let format = BlockFormat::of(words.data.len(), scales.data.len()).unwrap_or(BlockFormat::Q8_0);
                let blocks = words.data.chunks_exact(format.words());
                let blocks = blocks.zip(scales.data.chunks_exact(format.scales()));
                let numbers = blocks.flat_map(|(words, scales)| {
                    let bytes: Vec<u8> = words.iter().flat_map(|&w| (w as u32).to_le_bytes()).collect();
                    format.numbers(&bytes, scales)
                });
                vec![numbers.collect()]
            },
            |cx| {
                let &[words, scales] = cx.inputs else {
                    return Err("takes words and scales".into());
                };
                let (format, ty) = cx.with_call(|call| expanded(&call.inputs[0], &call.inputs[1]))?;
                Ok(vec![dequantize(cx.graph, words, scales, format, &ty.shape).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 2)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let varied = vec![sizes.dim(20), sizes.dim(9)];
        let mut samples = Vec::new();
        for format in BlockFormat::ALL {
            for shape in [vec![1], vec![3, 2], vec![2, 1, 5], varied.clone()] {
                let label = format!("{shape:?} blocks of {format:?}");
                samples.push(Sample::new(label, packed(&shape, format).to_vec(), Attrs::new()));
            }
        }
        samples
    }
}

impl Operator for QuantizedMatMul {
    fn name(&self) -> &'static str {
        "core.quantized_matmul"
    }

    fn signature(&self) -> String {
        "g.quantized_matmul(x, weight, scales)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., m, k], weight (any float) [n, k], or words [n, ...] and scales [n, ...] as core.dequantize has them -> f32 [..., m, n]",
            formula: "core.matmul of x and the weight transposed, which is converted to f32, or dequantized, inside the kernel",
            source: "Dettmers et al., 2022 (LLM.int8()), with weights dequantized instead of rows rounded",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(2, 3)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let dims = QuantizedDims::of(call)?;
        let mut shape = call.inputs[0].shape.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = dims.n;
        }
        Ok(vec![TensorType::new(DType::F32, Shape::new(&shape)?)])
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Contraction
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let weight = match *cx.inputs {
                [_, weight] => cx.graph.cast(weight, DType::F32),
                [_, words, scales] => {
                    let operands = vec![words, scales];
                    cx.graph.call(OpRef::new(&Dequantize), Attrs::new(), operands)
                }
                _ => return Err("takes rows and a weight".into()),
            };
            Ok(vec![cx.graph.matmul_bt(cx.inputs[0], weight).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let k = QuantizedDims::of(call).map_or(0, |d| d.k as u64);
        Cost::streaming(call, 2 * k)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = Vec::new();
        let varied = (vec![sizes.dim(40)], sizes.dim(70), 1 + sizes.below(6));
        let shapes = [
            (vec![1], 1, 1),
            (vec![1], 67, 3),
            (vec![3], 5, 2),
            (vec![2, 3], 5, 2),
            (vec![5], 33, 1),
            (vec![19], 130, 18),
            varied,
        ];
        for (rows, n, blocks) in shapes {
            let x = SampleInput::f32(&[&rows[..], &[BLOCK * blocks]].concat());
            for format in BlockFormat::ALL {
                let [words, scales] = packed(&[n, blocks], format);
                let label = format!("{rows:?} rows of {} by [{n}] of {format:?}", BLOCK * blocks);
                samples.push(Sample::new(label, vec![x.clone(), words, scales], Attrs::new()));
            }
        }
        let varied = (vec![2, sizes.dim(20), 45], sizes.dim(70), DType::F16);
        let plain = [
            (vec![1, 1], 1, DType::F16),
            (vec![1, 67], 70, DType::F16),
            (vec![3, 64], 9, DType::F16),
            (vec![2, 3, 33], 5, DType::BF16),
            (vec![20, 600], 35, DType::F16),
            (vec![4, 7], 3, DType::F32),
            varied,
        ];
        for (x, n, dtype) in plain {
            let weight = [n, x[x.len() - 1]];
            let inputs = vec![
                SampleInput::f32(&x),
                SampleInput::filled(dtype, &weight, Fill::Below(200)),
            ];
            samples.push(Sample::new(
                format!("{x:?} by {weight:?} of {dtype}"),
                inputs,
                Attrs::new(),
            ));
        }
        samples
    }
}

/// Splits the operands of a [`QuantizedMatMulAdd`] into those of the product and the addend.
fn apart<T: Clone>(inputs: &[T]) -> Result<(Vec<T>, T), String> {
    let [x, addend, weight @ ..] = inputs else {
        return Err("takes rows, an addend, and a weight, which may be words and scales".into());
    };
    Ok(([std::slice::from_ref(x), weight].concat(), addend.clone()))
}

impl Operator for QuantizedMatMulAdd {
    fn name(&self) -> &'static str {
        "core.quantized_matmul_add"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., m, k], addend f32 [..., m, n], then the weight of core.quantized_matmul -> f32 [..., m, n]",
            formula: "core.quantized_matmul of x and the weight, plus the addend",
            source: "residual connections; a rewrite introduces it where that is faster",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(3, 4)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let (product, addend) = apart(call.inputs)?;
        let types = QuantizedMatMul.infer(&Call {
            inputs: &product,
            ..*call
        })?;
        if types[0] != addend {
            return Err(format!(
                "the addend {addend} does not have the type of the matmul's result, {}",
                types[0]
            ));
        }
        Ok(types)
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Contraction
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (product, addend) = apart(cx.inputs)?;
            let y = cx.graph.call(OpRef::new(&QuantizedMatMul), Attrs::new(), product);
            Ok(vec![cx.graph.add(y, addend).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let k = apart(call.inputs).ok().and_then(|(inputs, _)| {
            let dims = QuantizedDims::of(&Call {
                inputs: &inputs,
                ..*call
            });
            dims.ok().map(|d| d.k as u64)
        });
        Cost::streaming(call, 2 * k.unwrap_or(0) + 1)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let with_addend = |sample: Sample| {
            let rows = &sample.inputs[0].shape;
            let result = [&rows[..rows.len() - 1], &[sample.inputs[1].shape[0]]].concat();
            sample.with_second(SampleInput::f32(&result))
        };
        QuantizedMatMul.samples(sizes).into_iter().map(with_addend).collect()
    }
}

impl Graph {
    /// Dequantizes weights to `f32 [..., 32 blocks]`: see [`crate::quantization`]. `words` are
    /// `u32 [..., blocks * words per block]`, `scales` are `[..., blocks * scales per block]`; their sizes determine
    /// the format.
    #[track_caller]
    pub fn dequantize(&mut self, words: impl Into<Value>, scales: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&Dequantize), Attrs::new(), vec![words.into(), scales.into()])
    }

    /// Multiplies `x [..., m, k]` by a weight, transposed, `-> f32 [..., m, n]`. The weight is `[n, k]` in any float
    /// type, or with `scales` the words of [`Graph::dequantize`], and is dequantized within the product, so only the
    /// stored bytes are read from memory. Gradients flow to `x` and to the floating-point operands.
    #[track_caller]
    pub fn quantized_matmul(&mut self, x: impl Into<Value>, weight: impl Into<Value>, scales: Option<Value>) -> NodeId {
        let mut operands = vec![x.into(), weight.into()];
        operands.extend(scales);
        self.call(OpRef::new(&QuantizedMatMul), Attrs::new(), operands)
    }
}
