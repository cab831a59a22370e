//! Quantised tensors: integers with a scale and a zero point.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::int8::{self, Quantized};
use super::{OnnxOp, conv, fold, ms, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::small::SmallFloat;
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("DequantizeLinear", 10, dequantize).folding(fold_dequantize),
    op("DynamicQuantizeLinear", 11, dynamic_quantize),
    op("QLinearConv", 10, qlinear_conv),
    op("QLinearMatMul", 10, qlinear_matmul),
    op("QuantizeLinear", 10, quantize),
    ms("DequantizeLinear", dequantize).folding(fold_dequantize),
    ms("DynamicQuantizeMatMul", dynamic_quantize_matmul),
    ms("MatMulIntegerToFloat", matmul_integer_to_float),
    ms("QuantizeLinear", quantize),
];

/// Returns operand `i`, a scale or zero point, in a shape that broadcasts to a tensor of `dims`. The operand has a
/// single number, one for each index of the axis, or one for each block of the axis.
fn spread(call: &mut Call, i: usize, dims: &[usize]) -> Result<Value, String> {
    let value = call.value(i)?;
    let value = call.as_f32(value);
    let own = call.dims(i)?;
    let axis = call.int("axis", 1)?;
    let block = call.int("block_size", 0)?;
    let graph = call.graph();
    if own.iter().product::<usize>() == 1 {
        return Ok(graph.reshape(value, &[]).into());
    }
    let axis = crate::import::normalize_axis(axis, dims.len())?;
    if own.len() == 1 && own[0] == dims[axis] && block == 0 {
        let mut shape = vec![1; dims.len()];
        shape[axis] = own[0];
        return Ok(graph.reshape(value, &shape).into());
    }
    let block = usize::try_from(block)
        .ok()
        .filter(|&b| b > 0 && own.len() == dims.len());
    let block = block.ok_or_else(|| format!("a scale of {own:?} does not fit {dims:?}"))?;
    if own[axis] != dims[axis].div_ceil(block) {
        return Err(format!("a scale of {own:?} does not fit {dims:?} in blocks of {block}"));
    }
    let mut split = own.clone();
    split.insert(axis + 1, 1);
    let mut repeated = own.clone();
    repeated.insert(axis + 1, block);
    let mut joined = own.clone();
    joined[axis] *= block;
    let column = graph.reshape(value, &split);
    let column = graph.expand(column, &repeated);
    let all = graph.reshape(column, &joined);
    Ok(graph.slice_axis(all, axis as i32, 0, dims[axis]).into())
}

/// Returns the type after dequantisation: the type of the scale, unless the node specifies another one.
fn result_type(call: &Call, scale: ElementType) -> Result<ElementType, String> {
    let element = match call.attributes().int("output_dtype")? {
        Some(number) if number != 0 => ElementType::from_number(number)?,
        _ => scale,
    };
    if element.is_float() {
        Ok(element)
    } else {
        Err(format!("{element} is not a floating-point type"))
    }
}

/// Builds `(x - zero) scale`.
fn dequantize(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = result_type(call, call.element(1)?)?;
    let x = call.value(0)?;
    let mut x = call.as_f32(x);
    if call.has_input(2) {
        let zero = spread(call, 2, &dims)?;
        x = call.graph().sub(x, zero).into();
    }
    let scale = spread(call, 1, &dims)?;
    let y = call.graph().mul(x, scale);
    let y = call.as_element(y.into(), element);
    call.one(y, element)
}

/// Dequantises weights once at import; they become parameters.
fn fold_dequantize(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let (Some(Some(x)), Some(Some(scale))) = (operands.first(), operands.get(1)) else {
        return Ok(None);
    };
    let zero = operands.get(2).copied().flatten();
    let dims = x.dims();
    let element = result_type(call, scale.element())?;
    if call.int("block_size", 0)? != 0 {
        return Ok(None);
    }
    let axis = match scale.len() {
        1 => 0,
        _ => crate::import::normalize_axis(call.int("axis", 1)?, dims.len())?,
    };
    if scale.len() != 1 && scale.len() != dims[axis] || zero.is_some_and(|z| z.len() != scale.len()) {
        return Err(format!("a scale of {:?} does not fit {dims:?}", scale.dims()));
    }
    let step = fold::strides(dims).get(axis).copied().unwrap_or(1);
    let (scales, zeros) = (scale.to_f64(), zero.map(|z| z.to_f64()));
    let elements = x.to_f64();
    let data = elements.iter().enumerate().map(|(i, &v)| {
        let at = if scales.len() == 1 { 0 } else { i / step % dims[axis] };
        (v - zeros.as_ref().map_or(0.0, |z| z[at])) * scales[at]
    });
    let data = data.collect();
    Ok(Some(vec![Tensor::floats(element, dims, data)]))
}

/// Returns `round(x) + zero`, saturated to the integers of a type.
pub(super) fn saturated(call: &mut Call, scaled: Value, zero: Option<Value>, element: ElementType) -> Value {
    let (low, high) = element.range();
    let graph = call.graph();
    let mut y: Value = graph.round(scaled).into();
    if let Some(zero) = zero {
        y = graph.add(y, zero).into();
    }
    let y = graph.clamp(y, low as f32, high as f32);
    let y = graph.cast(y, DType::I32);
    call.as_element(y.into(), element)
}

fn quantize(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = match (call.has_input(2), call.attributes().int("output_dtype")?) {
        (true, _) => call.element(2)?,
        (false, Some(number)) if number != 0 => ElementType::from_number(number)?,
        _ => ElementType::U8,
    };
    let small = SmallFloat::of(element);
    if element.is_float() && small.is_none() {
        return Err(format!("{element} is no integer type"));
    }
    let x = call.value(0)?;
    let x = call.as_f32(x);
    let scale = spread(call, 1, &dims)?;
    let zero = if call.has_input(2) {
        Some(spread(call, 2, &dims)?)
    } else {
        None
    };
    let scaled = call.graph().div(x, scale);
    let Some(small) = small else {
        let y = saturated(call, scaled.into(), zero, element);
        return call.one(y, element);
    };
    let scaled = match zero {
        Some(zero) => call.graph().add(scaled, zero),
        None => scaled,
    };
    let saturate = call.int("saturate", 1)? != 0;
    let y = super::small::rounded(call, scaled.into(), small, saturate);
    call.one(y, element)
}

/// Returns the quantised tensor, scale and zero point for `uint8`, from the range of a tensor, extended to contain 0.
fn dynamic(call: &mut Call, x: Value) -> (Value, Value, Value) {
    let graph = call.graph();
    let rank = graph.shape(x).len() as i32;
    let axes: Vec<i32> = (0..rank).collect();
    let zero = graph.scalar_of(DType::F32, 0.0);
    let (low, high) = (graph.min(x, &axes, false), graph.max(x, &axes, false));
    let (low, high) = (graph.minimum(low, zero), graph.maximum(high, zero));
    let range = graph.sub(high, low);
    let steps = graph.scalar_of(DType::F32, 255.0);
    let scale = graph.div(range, steps);
    let negative = graph.neg(low);
    let at = graph.div(negative, scale);
    let at = graph.round(at);
    let at = graph.clamp(at, 0.0, 255.0);
    let scaled = graph.div(x, scale);
    let y = saturated(call, scaled.into(), Some(at.into()), ElementType::U8);
    (y, scale.into(), at.into())
}

fn dynamic_quantize(call: &mut Call) -> Built {
    let x = call.value(0)?;
    let (y, scale, zero) = dynamic(call, x);
    let zero = call.graph().cast(zero, DType::U32);
    Ok(vec![
        call.result(y, ElementType::U8),
        call.result(scale, ElementType::F32),
        call.result(zero, ElementType::U8),
    ])
}

/// Returns operand `i` minus its zero point, as `i32`.
pub(super) fn centred_matrix(call: &mut Call, i: usize, zero: usize, rows: bool) -> Result<Value, String> {
    let x = call.value(i)?;
    let x = call.as_element(x, ElementType::I32);
    let Some(zero) = call.optional(zero)? else { return Ok(x) };
    let zero = call.as_element(zero, ElementType::I32);
    let graph = call.graph();
    let dims = graph.shape(zero).to_vec();
    let zero: Value = match dims.as_slice() {
        [n] if *n > 1 && rows => graph.reshape(zero, &[*n, 1]).into(),
        [1] => graph.reshape(zero, &[]).into(),
        _ => zero,
    };
    Ok(graph.sub(x, zero).into())
}

/// Returns a scale for rows or columns of a matrix.
pub(super) fn matrix_scale(call: &mut Call, i: usize, rows: bool) -> Result<Value, String> {
    let scale = call.value(i)?;
    let scale = call.as_f32(scale);
    let graph = call.graph();
    let dims = graph.shape(scale).to_vec();
    Ok(match dims.as_slice() {
        [n] if *n > 1 && rows => graph.reshape(scale, &[*n, 1]).into(),
        [1] => graph.reshape(scale, &[]).into(),
        _ => scale,
    })
}

/// Returns the product of two integer matrices minus their zero points, in `f32`.
fn float_product(call: &mut Call, a: Quantized, b: Quantized) -> Result<Value, String> {
    if let Some(y) = int8::integer_matmul(call, a, b, false)? {
        return Ok(y);
    }
    let a = centred_matrix(call, a[0], a[1], true)?;
    let b = centred_matrix(call, b[0], b[1], false)?;
    let product = super::matmul::integer_product(call, a, b)?;
    Ok(call.as_f32(product))
}

fn qlinear_matmul(call: &mut Call) -> Built {
    let element = call.element(7)?;
    let product = float_product(call, [0, 2], [3, 5])?;
    let (a_scale, b_scale) = (matrix_scale(call, 1, true)?, matrix_scale(call, 4, false)?);
    let (y_scale, y_zero) = (matrix_scale(call, 6, true)?, matrix_scale(call, 7, true)?);
    let graph = call.graph();
    let factor = graph.mul(a_scale, b_scale);
    let factor = graph.div(factor, y_scale);
    let scaled = graph.mul(product, factor);
    let y = saturated(call, scaled.into(), Some(y_zero), element);
    call.one(y, element)
}

fn qlinear_conv(call: &mut Call) -> Built {
    let element = call.element(7)?;
    let mut y = conv::integer_convolution(call, [0, 2], [3, 5])?;
    if let Some(bias) = call.optional(8)? {
        let bias = call.as_f32(bias);
        y = conv::add_channels(call, y, bias);
    }
    let (x_scale, y_scale, y_zero) = (
        matrix_scale(call, 1, false)?,
        matrix_scale(call, 6, false)?,
        matrix_scale(call, 7, false)?,
    );
    let w_scale = call.value(4)?;
    let graph = call.graph();
    let count: usize = graph.shape(w_scale).iter().product();
    let rank = graph.shape(y).len();
    let w_scale = match count {
        1 => graph.reshape(w_scale, &[]),
        count => {
            let mut shape = vec![1; rank];
            shape[1] = count;
            graph.reshape(w_scale, &shape)
        }
    };
    let factor = graph.mul(x_scale, w_scale);
    let factor = graph.div(factor, y_scale);
    let scaled = graph.mul(y, factor);
    let y = saturated(call, scaled.into(), Some(y_zero), element);
    call.one(y, element)
}

/// Builds `a_scale b_scale (a - a_zero) (b - b_zero) + bias`.
fn matmul_integer_to_float(call: &mut Call) -> Built {
    let product = float_product(call, [0, 4], [1, 5])?;
    let (a_scale, b_scale) = (matrix_scale(call, 2, true)?, matrix_scale(call, 3, false)?);
    let graph = call.graph();
    let factor = graph.mul(a_scale, b_scale);
    let mut y: Value = graph.mul(product, factor).into();
    if let Some(bias) = call.optional(6)? {
        y = call.graph().add(y, bias).into();
    }
    call.one(y, ElementType::F32)
}

/// Builds a product whose first operand is quantised in each step, with a result in floats.
fn dynamic_quantize_matmul(call: &mut Call) -> Built {
    let x = call.value(0)?;
    let (a, a_scale, a_zero) = dynamic(call, x);
    let a = call.as_element(a, ElementType::I32);
    let a_zero = call.as_element(a_zero, ElementType::I32);
    let a = call.graph().sub(a, a_zero);
    let b = centred_matrix(call, 1, 3, false)?;
    let product = super::matmul::integer_product(call, a.into(), b)?;
    let product = call.as_f32(product);
    let b_scale = matrix_scale(call, 2, false)?;
    let graph = call.graph();
    let factor = graph.mul(a_scale, b_scale);
    let mut y: Value = graph.mul(product, factor).into();
    if let Some(bias) = call.optional(4)? {
        y = call.graph().add(y, bias).into();
    }
    call.one(y, ElementType::F32)
}
