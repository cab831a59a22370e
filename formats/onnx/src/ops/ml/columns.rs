//! Operators that select, join and name columns.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::labels::ClassLabels;
use super::{Built, expect_len, ints, ml};
use crate::element::ElementType;
use crate::import::Call;
use crate::ops::{OnnxOp, limits};
use crate::tensor::element_count;

pub(in crate::ops) const OPS: &[OnnxOp] = &[
    ml("ArrayFeatureExtractor", feature_extractor).taking_strings(),
    ml("FeatureVectorizer", vectorizer),
    ml("ZipMap", zip_map).partly("maps: the result is a tensor with one column for each key"),
];

/// Selects elements `Y` of the last axis of `X [..., features]`, as `[..., elements]`; of `[features]`, as `[1, elements]`.
fn feature_extractor(call: &mut Call) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    if call.strings(1).is_some() || dims.is_empty() {
        return Err(format!("operands {} are not supported", call.types()));
    }
    let count = element_count(&call.dims(1)?).unwrap_or(0);
    if let (Some(at), Some(&size)) = (call.tensor(1), dims.last())
        && let Some(wrong) = at.to_i64().into_iter().find(|&i| i < 0 || i >= size as i64)
    {
        return Err(format!("expected indices below {size}, found {wrong}"));
    }
    let (x, at) = (call.value(0)?, call.value(1)?);
    let graph = call.graph();
    let at = graph.cast(at, DType::U32);
    let at = graph.reshape(at, &[count]);
    let mut y = graph.gather_axis(x, at, -1);
    if dims.len() == 1 {
        y = graph.reshape(y, &[1, count]);
    }
    call.one(y, element)
}

/// Joins the columns of all operands `[rows, ...]` as `f32`. The attribute `inputdimensions` has the number of columns for
/// each operand: missing columns are 0, and additional ones are removed.
fn vectorizer(call: &mut Call) -> Built {
    let sizes = ints(call, "inputdimensions")?;
    if !sizes.is_empty() {
        expect_len("inputdimensions", sizes.len(), call.arity())?;
    }
    let mut parts: Vec<Value> = Vec::new();
    let mut expected_rows = None;
    for i in 0..call.arity() {
        let dims = call.dims(i)?;
        let (rows, columns) = match dims.as_slice() {
            [] => return Err("expected [rows, columns], found a scalar".into()),
            [columns] => (1, *columns),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        };
        if *expected_rows.get_or_insert(rows) != rows {
            return Err(format!("operands {} differ in their number of rows", call.types()));
        }
        let x = call.value(i)?;
        let x = call.as_f32(x);
        let graph = call.graph();
        let mut part = graph.reshape(x, &[rows, columns]);
        if let Some(&size) = sizes.get(i) {
            let size = usize::try_from(size).ok().filter(|&n| n > 0);
            let size =
                size.ok_or_else(|| format!("inputdimensions: expected sizes of at least 1, found {}", sizes[i]))?;
            limits::elements(&[rows, size], "an operand")?;
            if size > columns {
                part = graph.pad(part, &[0, 0], &[0, size - columns], 0.0);
            } else if size < columns {
                part = graph.slice_axis(part, 1, 0, size);
            }
        }
        parts.push(part.into());
    }
    let y = match parts.as_slice() {
        [] => return Err("expected at least one operand, found none".into()),
        [one] => *one,
        _ => call.graph().concat(&parts, 1).into(),
    };
    call.one(y, ElementType::F32)
}

/// Returns its operand `[rows, classes]`: graphs have no maps. The keys are the names of the columns.
fn zip_map(call: &mut Call) -> Built {
    let labels = ClassLabels::read(call, "classlabels_int64s", "classlabels_strings")?;
    let labels = labels.ok_or("class labels: expected one for each column, found none")?;
    let columns = call.dims(0)?.last().copied().unwrap_or(1);
    expect_len("class labels", labels.len(), columns)?;
    call.label_columns(labels.texts());
    Ok(vec![call.operand(0)?.clone()])
}
