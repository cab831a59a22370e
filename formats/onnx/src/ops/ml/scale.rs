//! Operators that change each feature: scaling, missing values, norms, thresholds.

use meganeura_core::graph::Value;

use super::{Built, floats, ints, ml};
use crate::element::ElementType;
use crate::import::Call;
use crate::ops::OnnxOp;
use crate::tensor::Tensor;

pub(in crate::ops) const OPS: &[OnnxOp] = &[
    ml("Binarizer", binarizer),
    ml("Imputer", imputer),
    ml("Normalizer", normalizer),
    ml("Scaler", scaler),
];

/// Checks that an attribute has one element, or one for each feature (element of the last axis).
fn per_feature(name: &str, found: usize, dims: &[usize]) -> Result<(), String> {
    let features = dims.last().copied().unwrap_or(1);
    if found == 1 || found == features {
        Ok(())
    } else {
        Err(format!("{name}: expected 1 or {features} elements, found {found}"))
    }
}

/// Returns a constant of one number, or one for each feature.
fn features(call: &mut Call, name: &str, list: &[f32], dims: &[usize]) -> Result<Value, String> {
    per_feature(name, list.len(), dims)?;
    Ok(call.graph().constant(list.to_vec(), &[list.len()]).into())
}

/// Returns `(x - offset) * scale` as `f32`, for numbers of any type.
fn scaler(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let (offset, scale) = (floats(call, "offset")?, floats(call, "scale")?);
    let x = call.value(0)?;
    let mut y = call.as_f32(x);
    if !offset.is_empty() {
        let offset = features(call, "offset", offset, &dims)?;
        y = call.graph().sub(y, offset).into();
    }
    if !scale.is_empty() {
        let scale = features(call, "scale", scale, &dims)?;
        y = call.graph().mul(y, scale).into();
    }
    let y = call.graph().reshape(y, &dims);
    call.one(y, ElementType::F32)
}

/// Replaces the elements that equal a number (or NaN) by one number, or by one for each feature.
fn imputer(call: &mut Call) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    let (name, replaced, imputed) = if element.is_float() {
        let list = floats(call, "imputed_value_floats")?;
        let replaced = f64::from(call.float("replaced_value_float", 0.0)?);
        let list = list.iter().map(|&v| v.into()).collect();
        let list = Tensor::floats(element, &[floats(call, "imputed_value_floats")?.len()], list);
        ("imputed_value_floats", replaced, list)
    } else {
        let list = ints(call, "imputed_value_int64s")?;
        let replaced = call.int("replaced_value_int64", 0)?;
        let list = Tensor::integers(element, &[list.len()], list.to_vec());
        let fits = element
            .graph_range()
            .is_some_and(|(low, high)| (low..=high).contains(&replaced));
        if !fits && !list.is_empty() {
            // No element of a graph has this value.
            return Ok(vec![call.operand(0)?.clone()]);
        }
        ("imputed_value_int64s", replaced as f64, list)
    };
    if imputed.is_empty() {
        return Err(format!("{name}: expected numbers for {element}, found none"));
    }
    per_feature(name, imputed.len(), &dims)?;
    let count = imputed.len();
    let imputed = imputed.to_constant()?;
    let x = call.value(0)?;
    let replaced_value = call.scalar(element, replaced);
    let graph = call.graph();
    let imputed = graph.constant_data(imputed, &[count]);
    let missing = if replaced.is_nan() {
        graph.not_equal(x, x)
    } else {
        graph.equal(x, replaced_value)
    };
    let y = graph.select(missing, imputed, x);
    let y = graph.reshape(y, &dims);
    call.one(y, element)
}

/// Divides each row (last axis) by its maximum, or by its L1 or L2 norm. Rows with a divisor of 0 remain.
fn normalizer(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    if dims.is_empty() || dims.contains(&0) {
        return Err(format!("expected at least one row and one feature, found {dims:?}"));
    }
    let norm = call.string("norm", "MAX")?.into_owned();
    let x = call.value(0)?;
    let x = call.as_f32(x);
    let graph = call.graph();
    let divisor = match norm.as_str() {
        "MAX" => graph.max(x, &[-1], true),
        "L1" => {
            let sizes = graph.abs(x);
            graph.sum(sizes, &[-1], true)
        }
        "L2" => {
            let squares = graph.square(x);
            let sum = graph.sum(squares, &[-1], true);
            graph.sqrt(sum)
        }
        other => return Err(format!("norm: expected MAX, L1 or L2, found `{other}`")),
    };
    let [zero, one] = [0.0, 1.0].map(|v| graph.scalar(v));
    let is_zero = graph.equal(divisor, zero);
    let divisor = graph.select(is_zero, one, divisor);
    let y = graph.div(x, divisor);
    call.one(y, ElementType::F32)
}

/// Returns 1 for values above a threshold, otherwise 0, in the type of the operand.
fn binarizer(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let threshold = call.float("threshold", 0.0)?;
    let x = call.value(0)?;
    let wide = call.as_f32(x);
    let graph = call.graph();
    let threshold = graph.scalar(threshold);
    let larger = graph.greater_than(wide, threshold);
    let y = call.as_element(larger.into(), element);
    call.one(y, element)
}
