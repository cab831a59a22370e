//! Operators of the domain `ai.onnx.ml`: models of scikit-learn, XGBoost and LightGBM.
//!
//! Results follow ONNX's specification. Where the specification leaves a case open (classifiers with one column of
//! scores, for example), they follow ONNX Runtime.

pub(super) mod columns;
pub(super) mod encode;
mod labels;
pub(super) mod linear;
mod post;
mod probability;
pub(super) mod scale;
pub(super) mod svm;
pub(super) mod trees;

use meganeura_core::graph::Value;

use super::{Build, OnnxOp};
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

/// Creates an operator of `ai.onnx.ml`.
const fn ml(name: &'static str, build: Build) -> OnnxOp {
    OnnxOp::new("ai.onnx.ml", name, 1, build)
}

/// Returns operand 0 as `f32 [rows, features]`, with these sizes. One axis is one row.
fn rows(call: &mut Call) -> Result<(Value, [usize; 2]), String> {
    let dims = call.dims(0)?;
    let sizes = match dims.as_slice() {
        [features] => [1, *features],
        [rows, features] => [*rows, *features],
        _ => return Err(format!("expected [rows, features], found {dims:?}")),
    };
    if sizes.contains(&0) {
        return Err(format!("expected at least one row and one feature, found {dims:?}"));
    }
    let x = call.value(0)?;
    let x = call.as_f32(x);
    let x = call.graph().reshape(x, &sizes);
    Ok((x.into(), sizes))
}

/// Returns a list of numbers; an attribute that is missing is empty.
fn floats<'m>(call: &Call<'_, 'm>, name: &str) -> Result<&'m [f32], String> {
    Ok(call.attributes().floats(name)?.unwrap_or_default())
}

/// Returns a list of integers; an attribute that is missing is empty.
fn ints<'m>(call: &Call<'_, 'm>, name: &str) -> Result<&'m [i64], String> {
    Ok(call.attributes().ints(name)?.unwrap_or_default())
}

/// Checks the number of elements of an attribute.
fn expect_len(name: &str, found: usize, expected: usize) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{name}: expected {expected} elements, found {found}"))
    }
}

/// Returns a matrix `[columns, rows]` of a row-major matrix `[rows, columns]`.
fn transposed(data: &[f32], columns: usize) -> Vec<f32> {
    (0..columns)
        .flat_map(|column| data.iter().skip(column).step_by(columns).copied())
        .collect()
}
