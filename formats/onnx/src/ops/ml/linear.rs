//! Linear models.

use meganeura_core::graph::{Graph, NodeId, Value};

use super::labels::ClassLabels;
use super::post::{FirstScore, PostTransform};
use super::{Built, expect_len, floats, ml, rows, transposed};
use crate::element::ElementType;
use crate::import::Call;
use crate::ops::{OnnxOp, limits};

pub(in crate::ops) const OPS: &[OnnxOp] = &[ml("LinearClassifier", classifier), ml("LinearRegressor", regressor)];

/// Returns `x w^T + b` as `[rows, targets]`, for `w [targets, features]` and `b [targets]`, which may be empty.
fn affine(graph: &mut Graph, x: Value, w: &[f32], b: &[f32], [targets, features]: [usize; 2]) -> NodeId {
    let weight = graph.constant(transposed(w, features), &[features, targets]);
    let y = graph.matmul(x, weight);
    if b.is_empty() {
        return y;
    }
    let bias = graph.constant(b.to_vec(), &[targets]);
    graph.add(y, bias)
}

fn classifier(call: &mut Call) -> Built {
    let (x, [rows, features]) = rows(call)?;
    let (coefficients, intercepts) = (floats(call, "coefficients")?, floats(call, "intercepts")?);
    let post = PostTransform::read(call)?;
    let classes = coefficients.len() / features;
    if classes == 0 || coefficients.len() != classes * features {
        let found = coefficients.len();
        return Err(format!(
            "coefficients: expected a multiple of {features} elements (the features), found {found}"
        ));
    }
    limits::elements(&[classes, features], "coefficients")?;
    if !intercepts.is_empty() {
        expect_len("intercepts", intercepts.len(), classes)?;
    }
    let labels = ClassLabels::read(call, "classlabels_ints", "classlabels_strings")?;
    if let Some(labels) = &labels {
        expect_len("class labels", labels.len(), classes.max(2))?;
    } else if classes > 1 {
        return Err(format!("class labels: expected {classes} elements, found 0"));
    }
    let graph = call.graph();
    let scores: Value = affine(graph, x, coefficients, intercepts, [classes, features]).into();
    let at = if classes == 1 {
        let zero = graph.scalar(0.0);
        let positive = graph.greater_than(scores, zero);
        graph.reshape(positive, &[rows])
    } else {
        graph.argmax(scores, 1)
    };
    let scores = match &labels {
        Some(_) if classes == 1 => post.two_classes(graph, scores, FirstScore::Complement)?,
        _ => post.apply(graph, scores),
    };
    let labels = labels.unwrap_or(ClassLabels::Ints(vec![0, 1]));
    let label = labels.select(call, at.into())?;
    Ok(vec![label, call.result(scores, ElementType::F32)])
}

fn regressor(call: &mut Call) -> Built {
    let (x, [_, features]) = rows(call)?;
    let (coefficients, intercepts) = (floats(call, "coefficients")?, floats(call, "intercepts")?);
    let post = PostTransform::read(call)?;
    let targets = call.int("targets", 1)?;
    let targets = usize::try_from(targets)
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| format!("targets: expected at least 1, found {targets}"))?;
    let expected = limits::elements(&[targets, features], "coefficients")?;
    expect_len("coefficients", coefficients.len(), expected)?;
    if !intercepts.is_empty() {
        expect_len("intercepts", intercepts.len(), targets)?;
    }
    let graph = call.graph();
    let y = affine(graph, x, coefficients, intercepts, [targets, features]);
    let y = post.apply(graph, y.into());
    call.one(y, ElementType::F32)
}
