//! Quantised operators that dequantise their operands, compute in floats, and quantise their results.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, Value};

use super::quantized::{centred_matrix, matrix_scale, saturated};
use super::{OnnxOp, conv, int8, matmul, ms};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    ms("QGemm", gemm),
    ms("QLinearAdd", |c| binary(c, |g, a, b| g.add(a, b).into())),
    ms("QLinearConcat", concat),
    ms("QLinearGlobalAveragePool", global_average_pool).partly("channels_last"),
    ms("QLinearLeakyRelu", |c| {
        let slope = c.float("alpha", 0.01)?;
        unary(c, |g, x| g.leaky_relu(x, slope).into())
    }),
    ms("QLinearMul", |c| binary(c, |g, a, b| g.mul(a, b).into())),
    ms("QLinearSigmoid", |c| unary(c, |g, x| g.sigmoid(x).into())),
    ms("QLinearSoftmax", softmax),
    ms("QLinearWhere", choose),
];

/// Returns operand `i` in floats; its scale and zero point are the next two operands.
fn dequantized(call: &mut Call, i: usize) -> Result<Value, String> {
    let x = conv::centred(call, i, i + 2)?;
    let scale = matrix_scale(call, i + 1, false)?;
    Ok(call.graph().mul(x, scale).into())
}

/// Quantises a result to integers of this type, with its scale and zero point in the operands `scale` and `scale + 1`.
fn quantized(call: &mut Call, y: Value, scale: usize, element: ElementType) -> Built {
    let zero = if call.has_input(scale + 1) {
        Some(matrix_scale(call, scale + 1, false)?)
    } else {
        None
    };
    let scale = matrix_scale(call, scale, false)?;
    let scaled = call.graph().div(y, scale);
    let y = saturated(call, scaled.into(), zero, element);
    call.one(y, element)
}

fn unary(call: &mut Call, f: impl FnOnce(&mut Graph, Value) -> Value) -> Built {
    let element = call.element(0)?;
    let x = dequantized(call, 0)?;
    let y = f(call.graph(), x);
    quantized(call, y, 3, element)
}

fn binary(call: &mut Call, f: fn(&mut Graph, Value, Value) -> Value) -> Built {
    let element = call.element(0)?;
    let (a, b) = (dequantized(call, 0)?, dequantized(call, 3)?);
    let y = f(call.graph(), a, b);
    quantized(call, y, 6, element)
}

/// Builds a concatenation. The first two operands are the scale and zero point of the result; each part has three operands.
fn concat(call: &mut Call) -> Built {
    let element = call.element(1)?;
    let count = call.arity().saturating_sub(2);
    if count == 0 || !count.is_multiple_of(3) {
        return Err(format!(
            "operands {} are not tensors with scales and zero points",
            call.types()
        ));
    }
    let axis = call.axis(call.int("axis", 0)?, call.dims(2)?.len())?;
    let parts: Result<Vec<Value>, String> = (0..count / 3).map(|n| dequantized(call, 2 + 3 * n)).collect();
    let y = call.graph().concat(&parts?, axis as i32).into();
    quantized(call, y, 0, element)
}

fn global_average_pool(call: &mut Call) -> Built {
    let rank = call.dims(0)?.len();
    if call.int("channels_last", 0)? != 0 || rank < 3 {
        return Err(format!(
            "operands {} with channels_last are not supported",
            call.types()
        ));
    }
    let axes: Vec<i32> = (2..rank as i32).collect();
    unary(call, |g, x| g.mean(x, &axes, true).into())
}

/// Builds a softmax. If `opset` is below 13, all axes from `axis` on are one axis.
fn softmax(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let axis = call.axis(call.int("axis", -1)?, dims.len())?;
    let joined = call.int("opset", 13)? < 13;
    unary(call, |g, x| {
        if !joined {
            return g.softmax(x, axis as i32).into();
        }
        let rows = [dims[..axis].iter().product(), dims[axis..].iter().product()];
        let x = g.reshape(x, &rows);
        let y = g.softmax(x, 1);
        g.reshape(y, &dims).into()
    })
}

fn choose(call: &mut Call) -> Built {
    let element = call.element(1)?;
    let condition = call.value(0)?;
    let (x, y) = (dequantized(call, 1)?, dequantized(call, 4)?);
    let z = call.graph().select(condition, x, y).into();
    quantized(call, z, 7, element)
}

/// Builds `alpha a_scale b_scale (op(A) op(B) + C)`, quantised if there is a scale for the result, otherwise in floats.
fn gemm(call: &mut Call) -> Built {
    let transposed = [call.int("transA", 0)? != 0, call.int("transB", 0)? != 0];
    let alpha = call.float("alpha", 1.0)?;
    let of_bytes = if transposed[0] {
        None
    } else {
        int8::integer_matmul(call, [0, 2], [3, 5], transposed[1])?
    };
    let mut product = match of_bytes {
        Some(product) => call.graph().cast(product, DType::I32).into(),
        None => {
            let a = centred_matrix(call, 0, 2, false)?;
            // If B is transposed, zero points for the product's columns form a column.
            let b = centred_matrix(call, 3, 5, transposed[1])?;
            let [a, b] = [(a, transposed[0]), (b, transposed[1])]
                .map(|(x, swapped)| if swapped { matmul::swap_last(call, x) } else { x });
            matmul::integer_product(call, a, b)?
        }
    };
    if let Some(c) = call.optional(6)? {
        let c = call.as_element(c, ElementType::I32);
        product = call.graph().add(product, c).into();
    }
    let product = call.as_f32(product);
    let (a_scale, b_scale) = (matrix_scale(call, 1, false)?, matrix_scale(call, 4, false)?);
    let alpha = call.scalar(ElementType::F32, alpha.into());
    let graph = call.graph();
    let factor = graph.mul(a_scale, b_scale);
    let factor = graph.mul(factor, alpha);
    let y = graph.mul(product, factor).into();
    if !call.has_input(7) {
        return call.one(y, ElementType::F32);
    }
    let element = call.element(if call.has_input(8) { 8 } else { 0 })?;
    quantized(call, y, 7, element)
}
