//! Products of activations that are rounded to 8 bits, with weights of 8 bits (W8A8).
//!
//! An activation `x` is rounded to the integer `q = clamp(round(x / scale) + zero, low, high)`, where `[low, high]` is
//! the range of a signed or an unsigned byte. It represents the number `scale (q - zero)`. Weights are signed bytes with
//! a scale for each output channel. Sums of products are integers, so kernels may add them up in any order.
//! ONNX's `QuantizeLinear` and `DequantizeLinear` define the same numbers.

use super::conv2d::{Conv2dDims, Conv2dOptions, ImageLayout};
use super::quantized::bits;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Expansion, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Int8MatMul;
pub(super) struct Int8Conv2d;

/// Number of weights in a word.
const BYTES: usize = 4;

/// Sizes of a [`Graph::int8_matmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int8MatMulDims {
    /// Number of rows of the left operand, summed over all batches.
    pub m: usize,
    /// Number of rows of the weight, and of columns of the result.
    pub n: usize,
    /// Number of terms of a sum.
    pub k: usize,
}

/// Checks the operands after the activations, and returns the numbers of rows and words of the weight.
fn weight_of(inputs: &[TensorType]) -> Result<[usize; 2], String> {
    let [_, scale, zero, words, scales] = inputs else {
        return Err("takes activations, their scale and zero point, words and scales".into());
    };
    if scale.dtype != DType::F32 || scale.shape.rank() != 0 {
        return Err(format!("the scale of the activations must be f32 [], not {scale}"));
    }
    if zero.dtype != DType::I32 || zero.shape.rank() != 0 {
        return Err(format!("the zero point must be i32 [], not {zero}"));
    }
    let &[n, wide] = words.shape.dims() else {
        return Err(format!("the words must be a matrix, not {words}"));
    };
    if words.dtype != DType::U32 {
        return Err(format!("the words must be u32, not {words}"));
    }
    if scales.dtype != DType::F32 || scales.shape.dims() != [n] {
        return Err(format!("the scales of the weights must be f32 [{n}], not {scales}"));
    }
    Ok([n, wide])
}

/// Checks that rows with `parts` parts of `length` weights take `words` words.
fn expect_words([parts, length]: [usize; 2], words: usize) -> Result<(), String> {
    match parts.checked_mul(length.div_ceil(BYTES)) {
        Some(expected) if expected == words => Ok(()),
        Some(expected) => Err(format!(
            "a row with {parts} times {length} weights takes {expected} words, not {words}"
        )),
        None => Err("the kernel is too large".into()),
    }
}

impl Int8MatMulDims {
    /// Returns the sizes of a call.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        let [n, words] = weight_of(call.inputs)?;
        let x = &call.inputs[0];
        let [rows @ .., k] = x.shape.dims() else {
            return Err(format!("the activations must have rows, but are {x}"));
        };
        if x.dtype != DType::F32 || rows.is_empty() {
            return Err(format!("the activations must be f32 [..., m, k], not {x}"));
        }
        expect_words([1, *k], words)?;
        Ok(Int8MatMulDims {
            m: rows.iter().product(),
            n,
            k: *k,
        })
    }
}

/// Returns the sizes of a call of [`Graph::int8_conv2d`], which has one group.
///
/// # Errors
/// Operands that do not match.
pub fn int8_conv2d_dims(call: &Call) -> Result<Conv2dDims, String> {
    let [o, words] = weight_of(call.inputs)?;
    let x = &call.inputs[0];
    let &[_, c, _, _] = x.shape.dims() else {
        return Err(format!("the images must have four axes, but are {x}"));
    };
    if x.dtype != DType::F32 {
        return Err(format!("the images must be f32, not {x}"));
    }
    let [height, width] = call.attrs.sizes("kernel_size")?;
    let options = Conv2dOptions::of(call.attrs)?;
    if options.groups != 1 {
        return Err(format!("it has one group, not {}", options.groups));
    }
    expect_words([height.saturating_mul(width), c], words)?;
    let w = Shape::new(&[o, c, height, width])?;
    Conv2dDims::forward(ImageLayout::Nchw, &x.shape, &w, options)
}

/// Returns the integers of activations minus their zero point, as `f32`.
fn centred(g: &mut Graph, [x, scale, zero]: [Value; 3], signed: bool) -> NodeId {
    let (low, high) = if signed { (-128.0, 127.0) } else { (0.0, 255.0) };
    let zero = g.cast(zero, DType::F32);
    let zero = g.clamp(zero, low, high);
    let q = g.div(x, scale);
    let q = g.round(q);
    let q = g.add(q, zero);
    let q = g.clamp(q, low, high);
    g.sub(q, zero)
}

/// Returns the weights `[rows, length]` of words, as `f32` without their scales.
fn integers(g: &mut Graph, words: Value, [rows, length]: [usize; 2]) -> NodeId {
    let wide = length.div_ceil(BYTES);
    let flat = g.reshape(words, &[rows * wide, 1]);
    // Two's complement with its sign bit flipped is the number plus 128.
    let bytes = bits(g, flat.into(), 8, &[0, 8, 16, 24]);
    let sign = g.scalar_of(DType::U32, 128.0);
    let bytes = g.bit_xor(bytes, sign);
    let w = g.cast(bytes, DType::F32);
    let offset = g.scalar(128.0);
    let w = g.sub(w, offset);
    let w = g.reshape(w, &[rows, wide * BYTES]);
    g.slice_axis(w, -1, 0, length)
}

fn matmul(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = cx.with_call(Int8MatMulDims::of)?;
    let &[x, scale, zero, words, scales] = cx.inputs else {
        return Err("takes five operands".into());
    };
    let signed = cx.attrs.bool("signed")?;
    let g = &mut *cx.graph;
    let q = centred(g, [x, scale, zero], signed);
    let w = integers(g, words, [dims.n, dims.k]);
    let y = g.matmul_bt(q, w);
    let factor = g.mul(scales, scale);
    Ok(vec![g.mul(y, factor).into()])
}

fn conv2d(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let d = cx.with_call(int8_conv2d_dims)?;
    let &[x, scale, zero, words, scales] = cx.inputs else {
        return Err("takes five operands".into());
    };
    let (signed, options) = (cx.attrs.bool("signed")?, Conv2dOptions::of(cx.attrs)?);
    let g = &mut *cx.graph;
    let q = centred(g, [x, scale, zero], signed);
    let [height, width] = d.kernel;
    let w = integers(g, words, [d.o * height * width, d.c]);
    let w = g.reshape(w, &[d.o, height, width, d.c]);
    let w = g.permute(w, &[0, 3, 1, 2]);
    let y = g.conv2d(q, w, options);
    let factor = g.mul(scales, scale);
    let factor = g.reshape(factor, &[d.o, 1, 1]);
    Ok(vec![g.mul(y, factor).into()])
}

/// Returns the operands of a sample. Activations are integers, and their scale is 0.75. Quotients are therefore at least 1/6
/// away from ties, and all devices round them to the same integers. Some quotients are out of range.
fn operands(x: &[usize], bound: u32, zero: i32, words: [usize; 2]) -> Vec<SampleInput> {
    vec![
        SampleInput::filled(DType::F32, x, Fill::Below(bound)),
        SampleInput::filled(DType::F32, &[], Fill::Constant(0.75)),
        SampleInput::filled(DType::I32, &[], Fill::Constant(f64::from(zero))),
        SampleInput::below(&words, u32::MAX as usize),
        SampleInput::range(&words[..1], 0.01, 0.02),
    ]
}

impl Operator for Int8MatMul {
    fn name(&self) -> &'static str {
        "core.int8_matmul"
    }

    fn signature(&self) -> String {
        "g.int8_matmul(x, scale, zero, words, scales, signed)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x f32 [..., m, k], scale f32 [], zero i32 [], words u32 [n, k / 4 rounded up], scales f32 [n] -> f32 [..., m, n]",
            formula: "y[i, j] = scale scales[j] (sum over l of (q[i, l] - zero) w[j, l]) with q = clamp(round(x / scale) + zero, low, high); w[j, l] is byte l of row j of the words, with a sign; [low, high] is [-128, 127] if signed, else [0, 255]; ties are rounded to even; zero is clamped to the range",
            source: "ONNX `QuantizeLinear`, `DequantizeLinear` and `MatMul`; Jacob et al., 2018",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("signed", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        call.attrs.bool("signed")?;
        let n = Int8MatMulDims::of(call)?.n;
        let mut shape = call.inputs[0].shape.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = n;
        }
        Ok(vec![TensorType::new(DType::F32, Shape::new(&shape)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(matmul)
    }

    fn expands_before_rewriting(&self) -> bool {
        true
    }

    fn cost(&self, call: &Call) -> Cost {
        let k = Int8MatMulDims::of(call).map_or(0, |d| d.k as u64);
        Cost::streaming(call, 2 * k)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let varied = (vec![sizes.dim(20)], sizes.dim(40), sizes.dim(200));
        let shapes = [
            (vec![1], 1, 1),
            (vec![1], 67, 64),
            (vec![2, 3], 5, 67),
            (vec![19], 33, 130),
            (vec![4], 4, 515),
            varied,
        ];
        let ranges = [(false, 0), (false, 7), (true, 0), (true, -128)];
        let mut samples = Vec::new();
        for (i, (rows, n, k)) in shapes.into_iter().enumerate() {
            let (signed, zero) = ranges[i % ranges.len()];
            let x = [&rows[..], &[k]].concat();
            let label = format!("{x:?} by [{n}, {k}], zero point {zero}, signed {signed}");
            let inputs = operands(&x, 220, zero, [n, k.div_ceil(BYTES)]);
            samples.push(Sample::new(label, inputs, Attrs::new().with("signed", signed)));
        }
        samples
    }
}

impl Operator for Int8Conv2d {
    fn name(&self) -> &'static str {
        "core.int8_conv2d"
    }

    fn signature(&self) -> String {
        "g.int8_conv2d(x, scale, zero, words, scales, signed, kernel_size, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x f32 [n, c, h, w], scale f32 [], zero i32 [], words u32 [o, kh kw (c / 4 rounded up)], scales f32 [o] -> f32 [n, o, oh, ow]",
            formula: "core.conv2d of scale (q - zero), with q as in core.int8_matmul, and weights of one group; the weights of row i and column j of the kernel are the first c bytes of part i kw + j of a row of words, with a sign, times its scale",
            source: "ONNX `QuantizeLinear`, `DequantizeLinear` and `Conv`; Jacob et al., 2018",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("stride", AttrKind::Ints),
            ("padding", AttrKind::Ints),
            ("dilation", AttrKind::Ints),
            ("groups", AttrKind::Int),
            ("signed", AttrKind::Bool),
            ("kernel_size", AttrKind::Ints),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        call.attrs.bool("signed")?;
        let dims = int8_conv2d_dims(call)?;
        Ok(vec![TensorType::new(DType::F32, Shape::new(&dims.y_shape())?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(conv2d)
    }

    fn expands_before_rewriting(&self) -> bool {
        true
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = int8_conv2d_dims(call).map_or(0, |d| d.flops());
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let plain = Conv2dOptions::default();
        let padded = Conv2dOptions {
            padding: [1, 1],
            ..plain
        };
        let strided = Conv2dOptions {
            stride: [2, 2],
            padding: [1, 0],
            ..plain
        };
        let dilated = Conv2dOptions {
            dilation: [2, 1],
            padding: [2, 1],
            ..plain
        };
        let calls = [
            ([1, 1, 1, 1], 1, [1, 1], plain, (false, 0)),
            ([2, 3, 5, 7], 4, [3, 3], padded, (false, 7)),
            ([1, 16, 9, 8], 17, [1, 1], plain, (true, 0)),
            ([1, 5, 11, 10], 9, [3, 2], strided, (true, -128)),
            ([1, 7, 8, 9], 6, [3, 3], dilated, (false, 130)),
            ([1, sizes.dim(20), 6, 6], sizes.dim(20), [3, 3], padded, (true, 3)),
        ];
        calls
            .into_iter()
            .map(|(x, o, kernel, options, (signed, zero))| {
                let label = format!("{x:?} with {o} kernels of {kernel:?}, {options:?}, zero point {zero}");
                let words = kernel[0] * kernel[1] * x[1].div_ceil(BYTES);
                let attrs = int8_attrs(signed, kernel, options);
                Sample::new(label, operands(&x, 220, zero, [o, words]), attrs)
            })
            .collect()
    }
}

fn int8_attrs(signed: bool, kernel: [usize; 2], options: Conv2dOptions) -> Attrs {
    options.attrs().with("signed", signed).with("kernel_size", kernel)
}

impl Graph {
    /// Computes the matrix product of activations, rounded to 8 bits, and transposed weights of 8 bits.
    ///
    /// `x` is `f32 [..., m, k]`; `scale` (`f32 []`) and `zero` (`i32 []`) are the value of one step and the integer of 0.
    /// Integers are from -128 to 127 if `signed`, otherwise from 0 to 255. `words` (`u32 [n, k / 4 rounded up]`) contain
    /// the weights as signed bytes, the first in the lowest bits, and `scales` (`f32 [n]`) the scale of each row. Returns
    /// `f32 [..., m, n]`. Rounding has no gradient.
    #[track_caller]
    pub fn int8_matmul(
        &mut self,
        x: impl Into<Value>,
        scale: impl Into<Value>,
        zero: impl Into<Value>,
        words: impl Into<Value>,
        scales: impl Into<Value>,
        signed: bool,
    ) -> NodeId {
        let inputs = vec![x.into(), scale.into(), zero.into(), words.into(), scales.into()];
        self.call(OpRef::new(&Int8MatMul), Attrs::new().with("signed", signed), inputs)
    }

    /// Computes the convolution of images `[n, c, h, w]`, rounded to 8 bits, with weights of 8 bits.
    ///
    /// The operands are as in [`Graph::int8_matmul`]. A row of `words` has the weights of an output channel in the order
    /// `[kernel height, kernel width, c]`, where the channels of each element of the kernel begin with a word. `options` must have one group. Returns `f32 [n, o, oh, ow]`.
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "the operands of a quantized convolution")]
    pub fn int8_conv2d(
        &mut self,
        x: impl Into<Value>,
        scale: impl Into<Value>,
        zero: impl Into<Value>,
        words: impl Into<Value>,
        scales: impl Into<Value>,
        signed: bool,
        kernel_size: [usize; 2],
        options: Conv2dOptions,
    ) -> NodeId {
        let inputs = vec![x.into(), scale.into(), zero.into(), words.into(), scales.into()];
        self.call(
            OpRef::new(&Int8Conv2d),
            int8_attrs(signed, kernel_size, options),
            inputs,
        )
    }
}
