//! Cross-entropy of logits against class probabilities or class ids, averaged over rows.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Expansion, GradCx, Gradient, OpRef, Operator, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct CrossEntropy;
pub(super) struct CrossEntropyIds;
pub(super) use grad::{CrossEntropyGrad, CrossEntropyIdsGrad};
pub(super) use rows::CrossEntropyRows;

mod grad;
mod rows;

/// Returns the types of the loss and of the log-sum-exp.
fn types(logits: &TensorType) -> Result<[TensorType; 2], String> {
    let rank = logits.shape.rank();
    if rank == 0 || logits.numel() == 0 {
        return Err(format!("the logits {logits} need rows of at least one class"));
    }
    let rows = Shape::new(&logits.shape[..rank - 1])?;
    Ok([
        TensorType::new(logits.dtype, Shape::scalar()),
        TensorType::new(logits.dtype, rows),
    ])
}

/// Returns the types of the loss and of the log-sum-exp for logits and class ids, after a check of both.
fn types_with_ids(call: &Call) -> Result<[TensorType; 2], String> {
    expect_float(call, 0, "the logits")?;
    let (logits, ids) = (&call.inputs[0], &call.inputs[1]);
    let types = types(logits)?;
    if ids.dtype != DType::U32 || ids.shape != types[1].shape {
        return Err(format!(
            "the class ids are {ids}; logits {logits} need u32{}",
            types[1].shape
        ));
    }
    Ok(types)
}

/// Returns samples of logits and class ids.
fn samples_with_ids(sizes: &mut Sizes) -> Vec<Sample> {
    let shapes = [vec![1, 1], vec![4, 10], vec![3], vec![2, 3, 5], sizes.shape(2, 70)];
    shapes
        .iter()
        .map(|s| {
            let ids = SampleInput::below(&s[..s.len() - 1], s[s.len() - 1]);
            Sample::new(format!("{s:?}"), vec![SampleInput::f32(s), ids], Attrs::new())
        })
        .collect()
}

/// Returns `ln(sum of e^x)` over the last axis, kept as an axis of size 1.
fn log_sum_exp(g: &mut Graph, logits: Value) -> NodeId {
    let max = g.max(logits, &[-1], true);
    let shifted = g.sub(logits, max);
    let e = g.exp(shifted);
    let sum = g.sum(e, &[-1], true);
    let log = g.log(sum);
    g.add(log, max)
}

fn rows_of(g: &Graph, logits: Value) -> usize {
    let shape = g.shape(logits);
    shape[..shape.len() - 1].iter().product()
}

/// Adds the contribution of the log-sum-exp port (softmax times its gradient) to the gradient of the logits.
fn with_lse_gradient(cx: &mut GradCx, dx: NodeId) -> Value {
    let Some(dlse) = cx.try_grad(1) else {
        return dx.into();
    };
    let (logits, lse) = (cx.operand(0), cx.result(1));
    let softmax = softmax_of(cx, logits, lse);
    let kept = kept_shape(cx, logits);
    let dlse = cx.reshape(dlse, &kept);
    let through = cx.mul(softmax, dlse);
    cx.add(dx, through).into()
}

/// Returns the shape of the logits with 1 as the last size.
fn kept_shape(g: &Graph, logits: Value) -> Vec<usize> {
    let mut kept = g.shape(logits).to_vec();
    if let Some(last) = kept.last_mut() {
        *last = 1;
    }
    kept
}

/// Returns the softmax of the logits from their log-sum-exp `[rows...]`.
fn softmax_of(g: &mut Graph, logits: Value, lse: Value) -> NodeId {
    let kept = kept_shape(g, logits);
    let lse = g.reshape(lse, &kept);
    let shifted = g.sub(logits, lse);
    g.exp(shifted)
}

/// Returns the gradient of the loss divided by the number of rows.
fn per_row(g: &mut Graph, logits: Value, dloss: Value) -> NodeId {
    let rows = rows_of(g, logits);
    let dtype = g.dtype(logits);
    let factor = g.scalar_of(dtype, 1.0 / rows as f64);
    g.mul(dloss, factor)
}

fn negative_mean(cx: &mut Expansion, per_row_terms: NodeId) -> NodeId {
    let rows = rows_of(cx.graph, cx.inputs[0]);
    let sum = cx.graph.sum_all(per_row_terms);
    let factor = cx.graph.scalar_of(cx.outputs[0].dtype, -1.0 / rows as f64);
    cx.graph.mul(sum, factor)
}

impl Operator for CrossEntropy {
    fn name(&self) -> &'static str {
        "core.cross_entropy"
    }

    fn signature(&self) -> String {
        "g.cross_entropy_loss(logits, labels)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "logits [rows..., classes], labels [rows..., classes] -> loss [], log_sum_exp [rows...]",
            formula: "-1/rows * sum over rows and classes of labels * log_softmax(logits); port 1 is ln(sum of e^logits) of each row",
            source: "cross-entropy with class probabilities",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["loss", "log_sum_exp"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the logits")?;
        let (logits, labels) = (&call.inputs[0], &call.inputs[1]);
        if logits != labels {
            return Err(format!(
                "the labels are {labels}, the logits {logits}: give one probability for each logit, or u32 class ids"
            ));
        }
        Ok(types(logits)?.into())
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (logits, labels, dloss) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let inputs = vec![logits, labels, cx.result(1), dloss];
            let dx = cx.call(OpRef::new(&CrossEntropyGrad), Attrs::new(), inputs);
            let mut grads = vec![Some(with_lse_gradient(cx, dx)), None];
            if cx.needs(1) {
                let log = cx.log_softmax(logits, -1);
                let scale = per_row(cx, logits, dloss);
                let d = cx.mul(log, scale);
                grads[1] = Some(cx.neg(d).into());
            }
            Ok(grads)
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (logits, labels) = (cx.inputs[0], cx.inputs[1]);
            let lse = log_sum_exp(cx.graph, logits);
            let log = cx.graph.sub(logits, lse);
            let terms = cx.graph.mul(labels, log);
            let loss = negative_mean(cx, terms);
            let lse = cx.graph.reshape(lse, &cx.outputs[1].shape);
            Ok(vec![loss.into(), lse.into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 12 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let shapes = [vec![1, 1], vec![4, 10], vec![3], vec![2, 3, 5], sizes.shape(2, 70)];
        shapes
            .iter()
            .map(|s| {
                let labels = SampleInput::filled(DType::F32, s, Fill::Probabilities);
                Sample::new(format!("{s:?}"), vec![SampleInput::f32(s), labels], Attrs::new())
            })
            .collect()
    }
}

impl Operator for CrossEntropyIds {
    fn name(&self) -> &'static str {
        "core.cross_entropy_ids"
    }

    fn signature(&self) -> String {
        "g.cross_entropy_loss(logits, labels)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "logits [rows..., classes], ids [rows...] -> loss [], log_sum_exp [rows...]",
            formula: "-1/rows * sum over rows of log_softmax(logits)[id]; port 1 is ln(sum of e^logits) of each row; an id >= classes is an error of the step",
            source: "cross-entropy with class ids",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["loss", "log_sum_exp"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        Ok(types_with_ids(call)?.into())
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((1, *call.inputs[0].shape.last()?))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let inputs = vec![cx.operand(0), cx.operand(1), cx.result(1), cx.grad(0)];
            let dx = cx.call(OpRef::new(&CrossEntropyIdsGrad), Attrs::new(), inputs);
            Ok(vec![Some(with_lse_gradient(cx, dx)), None])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (logits, ids) = (cx.inputs[0], cx.inputs[1]);
            let lse = log_sum_exp(cx.graph, logits);
            // Select instead of multiplying: 0 * -inf of an impossible class would be NaN.
            let kept = kept_shape(cx.graph, logits);
            let ids = cx.graph.reshape(ids, &kept);
            let chosen = cx.graph.take_along_axis(logits, ids, -1);
            let terms = cx.graph.sub(chosen, lse);
            let loss = negative_mean(cx, terms);
            let lse = cx.graph.reshape(lse, &cx.outputs[1].shape);
            Ok(vec![loss.into(), lse.into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 10 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples_with_ids(sizes)
    }
}

/// Returns the log-sum-exp of each row plus 0 from a lookup with the class ids, which reports ids out of range.
fn checked_ids(g: &mut Graph, ids: Value, lse: impl Into<Value>, logits: Value) -> NodeId {
    let lse = lse.into();
    let classes = g.shape(logits).last().copied().unwrap_or(1);
    let dtype = g.dtype(lse);
    let zeros = g.full(dtype, 0.0, &[classes]);
    let zero = g.gather(zeros, ids);
    let shape = g.shape(lse).to_vec();
    let zero = g.reshape(zero, &shape);
    g.add(lse, zero)
}

/// Returns a `u32` mask `[rows..., classes]` that is 1 at each row's class.
fn class_mask(g: &mut Graph, ids: Value, like: Value) -> NodeId {
    let shape = g.shape(like).to_vec();
    let classes = shape.last().copied().unwrap_or(1);
    let iota = g.constant_u32((0..classes as u32).collect(), &[classes]);
    let mut column = g.shape(ids).to_vec();
    column.push(1);
    let column = g.reshape(ids, &column);
    g.equal(iota, column)
}

impl Graph {
    /// Computes the mean over rows of the cross-entropy of `logits [rows..., classes]`, of shape
    /// `[]`.
    ///
    /// `labels` are class probabilities of the same shape (one-hot rows included), or `u32` class ids of
    /// shape `[rows...]`.
    #[track_caller]
    pub fn cross_entropy_loss(&mut self, logits: impl Into<Value>, labels: impl Into<Value>) -> NodeId {
        let (logits, labels) = (logits.into(), labels.into());
        let op = match self.ty(labels) {
            Some(ty) if ty.dtype == DType::U32 => OpRef::new(&CrossEntropyIds),
            _ => OpRef::new(&CrossEntropy),
        };
        self.call(op, Attrs::new(), vec![logits, labels])
    }
}
