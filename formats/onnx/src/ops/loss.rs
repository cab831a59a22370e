//! Losses.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::{OnnxOp, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("NegativeLogLikelihoodLoss", 12, |c| {
        let x = c.value(0)?;
        let element = c.element(0)?;
        let loss = likelihood(c, x, element)?;
        c.one(loss, element)
    }),
    op("SoftmaxCrossEntropyLoss", 12, cross_entropy),
];

fn cross_entropy(call: &mut Call) -> Built {
    let (x, element) = (call.value(0)?, call.element(0)?);
    let log = call.graph().log_softmax(x, 1);
    let loss = likelihood(call, log.into(), element)?;
    Ok(vec![call.result(loss, element), call.result(log, element)])
}

/// Returns `-weight[t] x[n, t, ...]` for the targets t, reduced by `reduction`; targets equal to `ignore_index` contribute 0.
fn likelihood(call: &mut Call, x: Value, element: ElementType) -> Result<Value, String> {
    let dims = call.dims(0)?;
    let classes = *dims.get(1).ok_or("operand 0 has no classes")?;
    let target_type = call.element(1)?;
    let targets = call.value(1)?;
    let weights = call.optional(2)?;
    let ignored = call.attributes().int("ignore_index")?;
    let targets = super::cast::convert(call, targets, target_type, ElementType::I32);
    let keep = match ignored {
        None => None,
        Some(ignored) => {
            let ignored = call.scalar(ElementType::I32, ignored as f64);
            Some(call.graph().not_equal(targets, ignored))
        }
    };
    let graph = call.graph();
    let zero = graph.scalar_of(DType::I32, 0.0);
    let at = match keep {
        Some(keep) => graph.select(keep, targets, zero).into(),
        None => targets,
    };
    let at = graph.cast(at, DType::U32);
    let shape = graph.shape(at).to_vec();
    let mut column = shape.clone();
    column.insert(1.min(column.len()), 1);
    let spread = graph.reshape(at, &column);
    let chosen = graph.take_along_axis(x, spread, 1);
    let chosen = graph.reshape(chosen, &shape);
    let mut loss: Value = graph.neg(chosen).into();
    let mut weight: Option<Value> = None;
    if let Some(weights) = weights {
        let flat = graph.reshape(weights, &[classes]);
        weight = Some(graph.gather_axis(flat, at, 0).into());
    }
    if let Some(keep) = keep {
        let dtype = element.dtype();
        let kept = graph.cast(keep, dtype);
        weight = Some(match weight {
            Some(weight) => graph.mul(weight, kept).into(),
            None => kept.into(),
        });
    }
    if let Some(weight) = weight {
        loss = graph.mul(loss, weight).into();
    }
    match &*call.string("reduction", "mean")? {
        "none" => Ok(loss),
        "sum" => Ok(call.graph().sum_all(loss).into()),
        "mean" => {
            let graph = call.graph();
            Ok(match weight {
                None => graph.mean_all(loss).into(),
                Some(weight) => {
                    let (sum, total) = (graph.sum_all(loss), graph.sum_all(weight));
                    graph.div(sum, total).into()
                }
            })
        }
        other => Err(format!("reduction `{other}` is not known")),
    }
}
