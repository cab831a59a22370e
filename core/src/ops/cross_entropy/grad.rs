//! Gradients of the cross-entropies with respect to the logits, in one pass and without one-hot rows.

use super::{checked_ids, class_mask, per_row, softmax_of, types};
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::ops::sample::{Fill, Sample, SampleInput, Sizes};
use crate::ops::{Arity, Call, Cost, Doc, Gradient, Operator, Semantics, expect_float};
use crate::shape::TensorType;

pub(in crate::ops) struct CrossEntropyGrad;
pub(in crate::ops) struct CrossEntropyIdsGrad;

/// Checks logits, log-sum-exp and the gradient of the loss (operands 0, 2 and 3).
fn check(call: &Call) -> Result<Vec<TensorType>, String> {
    expect_float(call, 0, "the logits")?;
    let (logits, lse, dloss) = (&call.inputs[0], &call.inputs[2], &call.inputs[3]);
    let [loss, rows] = types(logits)?;
    if *lse != rows || *dloss != loss {
        return Err(format!(
            "the log-sum-exp {lse} and the gradient of the loss {dloss} must be {rows} and {loss} for logits {logits}"
        ));
    }
    Ok(vec![logits.clone()])
}

/// Returns a sample with logits of this shape, the labels, any log-sum-exp, and the gradient of the loss.
fn sample(shape: &[usize], labels: SampleInput) -> Sample {
    let rows = &shape[..shape.len() - 1];
    let inputs = vec![
        SampleInput::f32(shape),
        labels,
        SampleInput::range(rows, 2.0, 4.0),
        SampleInput::f32(&[]),
    ];
    Sample::new(format!("{shape:?}"), inputs, Attrs::new())
}

fn shapes(sizes: &mut Sizes) -> [Vec<usize>; 5] {
    [vec![1, 1], vec![4, 10], vec![3], vec![2, 3, 5], sizes.shape(2, 70)]
}

impl Operator for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "core.cross_entropy_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "logits, labels [rows..., classes], lse [rows...], dloss [] -> [rows..., classes]",
            formula: "(e^(logits - lse) sum of the row's labels - labels) dloss / rows",
            source: "the derivative of cross_entropy by the logits; rows need not sum to one",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(4)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let (logits, labels) = (&call.inputs[0], &call.inputs[1]);
        if logits != labels {
            return Err(format!("the labels {labels} must be of the logits' type {logits}"));
        }
        check(call)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[logits, labels, lse, dloss] = cx.inputs else {
                return Err("takes four operands".into());
            };
            let g = &mut *cx.graph;
            let softmax = softmax_of(g, logits, lse);
            let total = g.sum(labels, &[-1], true);
            let scaled = g.mul(softmax, total);
            let difference = g.sub(scaled, labels);
            let scale = per_row(g, logits, dloss);
            Ok(vec![g.mul(difference, scale).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 12)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let labels = |s: &[usize]| SampleInput::filled(DType::F32, s, Fill::Probabilities);
        shapes(sizes).iter().map(|s| sample(s, labels(s))).collect()
    }
}

impl Operator for CrossEntropyIdsGrad {
    fn name(&self) -> &'static str {
        "core.cross_entropy_ids_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "logits [rows..., classes], ids, lse [rows...], dloss [] -> [rows..., classes]",
            formula: "(e^(logits - lse) - 1 at the row's id) dloss / rows; an id >= classes is an error of the step",
            source: "the derivative of cross_entropy_ids by the logits",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(4)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let types = check(call)?;
        let (ids, lse) = (&call.inputs[1], &call.inputs[2]);
        if ids.dtype != DType::U32 || ids.shape != lse.shape {
            return Err(format!("the class ids are {ids}; they must be u32{}", lse.shape));
        }
        Ok(types)
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((1, *call.inputs[0].shape.last()?))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[logits, ids, lse, dloss] = cx.inputs else {
                return Err("takes four operands".into());
            };
            let g = &mut *cx.graph;
            let lse = checked_ids(g, ids, lse, logits);
            let softmax = softmax_of(g, logits, lse.into());
            let mask = class_mask(g, ids, logits);
            let dtype = g.dtype(logits);
            let one_hot = g.cast(mask, dtype);
            let difference = g.sub(softmax, one_hot);
            let scale = per_row(g, logits, dloss);
            Ok(vec![g.mul(difference, scale).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 10)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let ids = |s: &[usize]| SampleInput::below(&s[..s.len() - 1], s[s.len() - 1]);
        shapes(sizes).iter().map(|s| sample(s, ids(s))).collect()
    }
}
