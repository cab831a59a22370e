//! Products of operands that are dequantized from 8 bits (W8A8).
//!
//! A quantized model contains `QuantizeLinear` and `DequantizeLinear` before a product, or weights that are dequantized.
//! If both operands have 8 bits, the import builds `core.int8_matmul` or `core.int8_conv2d`. Devices may compute these
//! operators with integers. All other products are products of floats.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, Value};

use super::conv;
use super::window::Windows;
use crate::element::ElementType;
use crate::import::{Call, Operand, normalize_axis};
use crate::tensor::Tensor;

/// Maximum number of terms of a product.
const MAX_TERMS: usize = 1 << 16;

/// Activations and their quantization.
struct Activations {
    /// Numbers before they are rounded, in `f32`.
    x: Value,
    scale: Value,
    /// Zero point, `i32 []`.
    zero: Value,
    signed: bool,
}

/// Weights of 8 bits. Their values are known at import.
struct Weights {
    /// Integers minus their zero point, from -128 to 127.
    integers: Vec<i64>,
    dims: Vec<usize>,
    /// One scale, or one for each row of the words.
    scales: Vec<f64>,
}

impl Weights {
    /// Returns weights with a scale and a zero point, or `None` if they do not fit in signed bytes, or if there are
    /// several scales along an axis other than `axis`.
    fn new([x, scale, zero]: [Option<&Operand>; 3], own_axis: i64, axis: usize) -> Option<Self> {
        let (x, scales) = (x?.tensor()?, scale?.tensor()?);
        let dims = x.dims().to_vec();
        if !matches!(x.element(), ElementType::I8 | ElementType::U8) || scales.element() != ElementType::F32 {
            return None;
        }
        let zeros = match zero {
            None => vec![0],
            Some(zero) => zero.tensor()?.to_i64(),
        };
        let count = *dims.get(axis)?;
        let fits = |len: usize| len == 1 || len == count;
        let is_single = scales.len() == 1 && zeros.len() == 1;
        if !fits(scales.len()) || !fits(zeros.len()) || !is_single && normalize_axis(own_axis, dims.len()) != Ok(axis) {
            return None;
        }
        let step: usize = dims[axis + 1..].iter().product();
        let mut integers = x.to_i64();
        for (i, integer) in integers.iter_mut().enumerate() {
            let at = if zeros.len() == 1 { 0 } else { i / step % count };
            *integer -= zeros[at];
        }
        let in_range = integers.iter().all(|q| (-128..128).contains(q));
        in_range.then(|| Weights {
            integers,
            dims,
            scales: scales.to_f64(),
        })
    }

    /// Returns the scales of `count` rows.
    fn row_scales(&self, count: usize) -> Tensor {
        let scale = |i: usize| self.scales[if self.scales.len() == 1 { 0 } else { i }] as f32;
        Tensor::f32(&[count], (0..count).map(scale).collect())
    }

    /// Adds the [`words`](Weights::words) and the scales of the rows to the graph, as parameters that are not trained.
    fn leaves(
        &self,
        call: &mut Call,
        sizes: [usize; 3],
        at: impl Fn(usize, usize, usize) -> usize,
    ) -> Result<[Value; 2], String> {
        let words = call.derived("words", self.words(sizes, at));
        let scales = call.derived("scales", self.row_scales(sizes[0]));
        let (words, scales) = (call.value_of(&words)?, call.value_of(&scales)?);
        call.freeze(scales);
        Ok([words, scales])
    }

    /// Returns the words of a matrix of `rows` rows. A row has `parts` parts of `length` bytes, and each part begins with
    /// a word; `at` returns the index of a byte.
    fn words(&self, [rows, parts, length]: [usize; 3], at: impl Fn(usize, usize, usize) -> usize) -> Tensor {
        let wide = length.div_ceil(4);
        let mut words = vec![0; rows * parts * wide];
        for row in 0..rows {
            for part in 0..parts {
                for i in 0..length {
                    let byte = self.integers[at(row, part, i)] & 255;
                    words[(row * parts + part) * wide + i / 4] |= byte << (8 * (i % 4));
                }
            }
        }
        Tensor::integers(ElementType::U32, &[rows, parts * wide], words)
    }
}

/// Returns a value as a scalar of a type.
fn scalar(call: &mut Call, operand: &Operand, element: ElementType) -> Result<Value, String> {
    let value = call.value_of(operand)?;
    let value = call.as_element(value, element);
    Ok(call.graph().reshape(value, &[]).into())
}

/// Returns the quantization of operand `i`, if `DequantizeLinear` computes it from bytes with one scale.
fn activations(call: &mut Call, i: usize) -> Result<Option<Activations>, String> {
    let Some(dequantize) = call.quantizer(None, i, "DequantizeLinear") else {
        return Ok(None);
    };
    let [q, scale, zero] = call.operands_of(dequantize, [0, 1, 2]);
    let (Some(q), Some(scale)) = (q, scale) else {
        return Ok(None);
    };
    let single = |operand: &Operand| operand.elements() == 1;
    let is_bytes = matches!(q.element, ElementType::I8 | ElementType::U8) && scale.element == ElementType::F32;
    if !is_bytes || !single(&scale) || !zero.as_ref().is_none_or(single) || q.tensor().is_some() {
        return Ok(None);
    }
    // The numbers before they were rounded, if they were rounded to the same integers.
    let before = call.quantizer(Some(dequantize), 0, "QuantizeLinear");
    let before = before.filter(|quantize| quantize.input.get(1..) == dequantize.input.get(1..));
    let x = match before.map(|quantize| call.operands_of(quantize, [0])) {
        Some([Some(x)]) if x.element == ElementType::F32 => call.value_of(&x)?,
        _ => call.value(i)?,
    };
    Ok(Some(Activations {
        x,
        scale: scalar(call, &scale, ElementType::F32)?,
        zero: zero_point(call, zero.as_ref())?,
        signed: q.element == ElementType::I8,
    }))
}

fn zero_point(call: &mut Call, zero: Option<&Operand>) -> Result<Value, String> {
    match zero {
        Some(zero) => scalar(call, zero, ElementType::I32),
        None => Ok(call.scalar(ElementType::I32, 0.0)),
    }
}

/// Returns the weights of operand `i`, if `DequantizeLinear` computes them.
fn weights(call: &Call, i: usize, axis: usize) -> Option<Weights> {
    let node = call.quantizer(None, i, "DequantizeLinear")?;
    if call.int_of(node, "block_size", 0) != Some(0) {
        return None;
    }
    let [x, scale, zero] = call.operands_of(node, [0, 1, 2]);
    Weights::new(
        [x.as_ref(), scale.as_ref(), zero.as_ref()],
        call.int_of(node, "axis", 1)?,
        axis,
    )
}

/// Builds the product of rows of activations and a matrix. Its second axis is summed over if `transposed`.
fn rows_by_matrix(call: &mut Call, a: &Activations, w: &Weights, transposed: bool) -> Result<Option<Value>, String> {
    let &[first, second] = w.dims.as_slice() else {
        return Ok(None);
    };
    let (n, k) = if transposed { (first, second) } else { (second, first) };
    let rank = call.graph().shape(a.x).len();
    if rank < 2 || call.graph().shape(a.x)[rank - 1] != k || k > MAX_TERMS || n == 0 {
        return Ok(None);
    }
    let at = |row: usize, i: usize| if transposed { row * k + i } else { i * n + row };
    let [words, scales] = w.leaves(call, [n, 1, k], |row, _, i| at(row, i))?;
    let graph = call.graph();
    Ok(Some(
        graph.int8_matmul(a.x, a.scale, a.zero, words, scales, a.signed).into(),
    ))
}

/// Returns `matmul` of operands 0 and 1, if both are dequantized from 8 bits. `transposed`: operand 1 is `[n, k]`.
pub(super) fn matmul(call: &mut Call, transposed: bool) -> Result<Option<Value>, String> {
    let Some(w) = weights(call, 1, usize::from(!transposed)) else {
        return Ok(None);
    };
    match activations(call, 0)? {
        Some(a) => rows_by_matrix(call, &a, &w, transposed),
        None => Ok(None),
    }
}

/// Returns the convolution of operands 0 and 1, if both are dequantized from 8 bits.
pub(super) fn convolution(call: &mut Call) -> Result<Option<Value>, String> {
    let Some(w) = weights(call, 1, 0) else { return Ok(None) };
    match activations(call, 0)? {
        Some(a) => images_by_kernels(call, &a, &w),
        None => Ok(None),
    }
}

fn images_by_kernels(call: &mut Call, a: &Activations, w: &Weights) -> Result<Option<Value>, String> {
    let x_dims = call.graph().shape(a.x).to_vec();
    let (&[o, c, height, width], &[_, channels, _, _]) = (w.dims.as_slice(), x_dims.as_slice()) else {
        return Ok(None);
    };
    let is_large = c.saturating_mul(height).saturating_mul(width) > MAX_TERMS;
    if conv::groups(call)? != 1 || channels != c || is_large || w.integers.is_empty() {
        return Ok(None);
    }
    let windows = Windows::of(call, &x_dims[2..], &[height, width], false)?;
    let (x, padding) = conv::padded(call, a.x, &windows, true);
    let options = conv::conv2d_options(&windows, &padding, 0, 1);
    let taps = height * width;
    let at = |row: usize, tap: usize, channel: usize| (row * c + channel) * taps + tap;
    let [words, scales] = w.leaves(call, [o, taps, c], at)?;
    let graph = call.graph();
    let y = graph.int8_conv2d(x, a.scale, a.zero, words, scales, a.signed, [height, width], options);
    Ok(Some(y.into()))
}

/// Operands of a quantized operator: an integer tensor and its zero point.
pub(super) type Quantized = [usize; 2];

/// Returns operand `i` minus its zero point as activations with the scale 1, if it has bytes and one zero point.
fn integers(call: &mut Call, [i, zero]: Quantized) -> Result<Option<Activations>, String> {
    let element = call.element(i)?;
    let is_bytes = matches!(element, ElementType::I8 | ElementType::U8);
    let zero = if call.has_input(zero) {
        Some(call.operand(zero)?.clone())
    } else {
        None
    };
    if !is_bytes || zero.as_ref().is_some_and(|zero| zero.elements() != 1) {
        return Ok(None);
    }
    let x = call.value(i)?;
    let x = call.as_f32(x);
    let zero = zero_point(call, zero.as_ref())?;
    let graph: &mut Graph = call.graph();
    let offset = graph.cast(zero, DType::F32);
    Ok(Some(Activations {
        x: graph.sub(x, offset).into(),
        scale: graph.scalar(1.0).into(),
        zero,
        signed: element == ElementType::I8,
    }))
}

/// Returns operand `i` minus its zero points along an axis, with the scale 1; `None` if it is not known at import.
fn known(call: &Call, [i, zero]: Quantized, axis: usize) -> Option<Weights> {
    let (x, zero) = (call.operand(i).ok()?, call.operand(zero).ok());
    let scale = Operand::known(Tensor::f32(&[], vec![1.0]), String::new(), false);
    Weights::new([Some(x), Some(&scale), zero], axis as i64, axis)
}

/// Returns the product of integers as `f32`; `None` if the second operand is not a matrix that is known at import.
pub(super) fn integer_matmul(
    call: &mut Call,
    a: Quantized,
    b: Quantized,
    transposed: bool,
) -> Result<Option<Value>, String> {
    let Some(w) = known(call, b, usize::from(!transposed)) else {
        return Ok(None);
    };
    match integers(call, a)? {
        Some(a) => rows_by_matrix(call, &a, &w, transposed),
        None => Ok(None),
    }
}

/// Returns the convolution of integers as `f32`; `None` if the weights are not known at import.
pub(super) fn integer_convolution(call: &mut Call, x: Quantized, w: Quantized) -> Result<Option<Value>, String> {
    let Some(w) = known(call, w, 0) else { return Ok(None) };
    match integers(call, x)? {
        Some(x) => images_by_kernels(call, &x, &w),
        None => Ok(None),
    }
}
