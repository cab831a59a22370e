//! Negative log-likelihood of classes, given log-probabilities.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct NllLoss;

impl Operator for NllLoss {
    fn name(&self) -> &'static str {
        "core.nll_loss"
    }

    fn signature(&self) -> String {
        "g.nll_loss(log_probabilities, ids)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "log_probabilities [rows..., classes], ids [rows...] (u32) -> []",
            formula: "-1/rows * sum over rows of log_probabilities[id]; an id >= classes is an error of the step",
            source: "negative log-likelihood; of log_softmax it is the cross-entropy",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the log-probabilities")?;
        let (log, ids) = (&call.inputs[0], &call.inputs[1]);
        let rank = log.shape.rank();
        if rank == 0 || log.numel() == 0 {
            return Err(format!("the log-probabilities {log} need rows of at least one class"));
        }
        let rows = &log.shape[..rank - 1];
        if ids.dtype != DType::U32 || ids.shape[..] != *rows {
            let rows = Shape::new(rows)?;
            return Err(format!(
                "the class ids are {ids}; log-probabilities {log} need u32{rows}"
            ));
        }
        Ok(vec![TensorType::new(log.dtype, Shape::scalar())])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((1, *call.inputs[0].shape.last()?))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (g, log, ids) = (&mut *cx.graph, cx.inputs[0], cx.inputs[1]);
            let mut column = g.shape(ids).to_vec();
            column.push(1);
            let column = g.reshape(ids, &column);
            let chosen = g.take_along_axis(log, column, -1);
            let mean = g.mean_all(chosen);
            Ok(vec![g.neg(mean).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let rows = call.inputs[1].numel() as u64;
        Cost {
            flops: rows,
            bytes: 8 * rows,
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [vec![1, 1], vec![4, 10], vec![3], vec![2, 3, 5], sizes.shape(2, 70)]
            .iter()
            .map(|s| {
                let ids = SampleInput::below(&s[..s.len() - 1], s[s.len() - 1]);
                let inputs = vec![SampleInput::range(s, -4.0, -0.1), ids];
                Sample::new(format!("{s:?}"), inputs, Attrs::new())
            })
            .collect()
    }
}

impl Graph {
    /// Computes the mean over rows of minus the log-probability of each row's class:
    /// `log_probabilities [rows..., classes]` (such as the result of [`Graph::log_softmax`]) at `ids [rows...]`
    /// (`u32`). A class id that is out of range is an error of the step. [`Graph::cross_entropy_loss`] takes logits and
    /// is more accurate.
    #[track_caller]
    pub fn nll_loss(&mut self, log_probabilities: impl Into<Value>, ids: impl Into<Value>) -> NodeId {
        let inputs = vec![log_probabilities.into(), ids.into()];
        self.call(OpRef::new(&NllLoss), Attrs::new(), inputs)
    }
}
