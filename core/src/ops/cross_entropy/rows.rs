//! Cross-entropy of each row of logits against class ids, without the mean over rows.

use super::{
    checked_ids, class_mask, kept_shape, log_sum_exp, samples_with_ids, softmax_of, types_with_ids, with_lse_gradient,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::ops::sample::{Sample, Sizes};
use crate::ops::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::shape::TensorType;

pub(in crate::ops) struct CrossEntropyRows;

impl Operator for CrossEntropyRows {
    fn name(&self) -> &'static str {
        "core.cross_entropy_rows"
    }

    fn signature(&self) -> String {
        "g.cross_entropy_rows(logits, ids)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "logits [rows..., classes], ids [rows...] (u32) -> losses [rows...], log_sum_exp [rows...]",
            formula: "-log_softmax(logits)[id] of each row; port 1 is ln(sum of e^logits) of each row; an id >= classes is an error of the step",
            source: "cross-entropy with class ids; PyTorch's `reduction=\"none\"`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["losses", "log_sum_exp"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [_, rows] = types_with_ids(call)?;
        Ok(vec![rows.clone(), rows])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((1, *call.inputs[0].shape.last()?))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (logits, ids, lse) = (cx.operand(0), cx.operand(1), cx.result(1));
            let dx = match cx.try_grad(0) {
                None => {
                    let dtype = cx.dtype(logits);
                    let shape = cx.shape(logits).to_vec();
                    cx.full(dtype, 0.0, &shape)
                }
                Some(dlosses) => {
                    let kept = kept_shape(cx, logits);
                    let lse = checked_ids(cx, ids, lse, logits);
                    let softmax = softmax_of(cx, logits, lse.into());
                    let mask = class_mask(cx, ids, logits);
                    let dtype = cx.dtype(logits);
                    let one = cx.scalar_of(dtype, 1.0);
                    let without_one = cx.sub(softmax, one);
                    let difference = cx.select(mask, without_one, softmax);
                    let dlosses = cx.reshape(dlosses, &kept);
                    cx.mul(difference, dlosses)
                }
            };
            Ok(vec![Some(with_lse_gradient(cx, dx)), None])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (g, logits, ids) = (&mut *cx.graph, cx.inputs[0], cx.inputs[1]);
            let lse = log_sum_exp(g, logits);
            let kept = kept_shape(g, logits);
            let ids = g.reshape(ids, &kept);
            let chosen = g.take_along_axis(logits, ids, -1);
            let losses = g.sub(lse, chosen);
            let results = [losses, lse].map(|result| g.reshape(result, &cx.outputs[0].shape).into());
            Ok(results.into())
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

impl Graph {
    /// Computes the cross-entropy of each row of `logits [rows..., classes]` against class ids `u32 [rows...]`, of shape
    /// `[rows...]`. [`Graph::cross_entropy_loss`] computes their mean. A class id that is out of range is an error of the
    /// step.
    #[track_caller]
    pub fn cross_entropy_rows(&mut self, logits: impl Into<Value>, ids: impl Into<Value>) -> NodeId {
        self.call(
            OpRef::new(&CrossEntropyRows),
            Attrs::new(),
            vec![logits.into(), ids.into()],
        )
    }
}
