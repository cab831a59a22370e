//! Binary cross-entropy of probabilities, and of logits.

use super::loss::{PAIR_SHAPES, element_scale, infer_pair, pair_samples};
use super::sample::{Sample, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct BceLoss;
pub(super) struct BceWithLogitsLoss;

/// Minimum of the logarithms, so that a confident wrong prediction has a finite loss.
const LOG_LIMIT: f64 = -100.0;
/// Minimum denominator of the derivative with respect to a probability.
const MIN_VARIANCE: f64 = 1e-12;

impl Operator for BceLoss {
    fn name(&self) -> &'static str {
        "core.bce_loss"
    }

    fn signature(&self) -> String {
        "g.bce_loss(probabilities, targets)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: PAIR_SHAPES,
            formula: "mean of -(t ln p + (1 - t) ln(1 - p)), logarithms limited to -100 from below; the derivative by p is (p - t) / max(p (1 - p), 1e-12)",
            source: "binary cross-entropy of probabilities, with PyTorch's limits",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer_pair(call, ["probabilities", "targets"])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (p, t, dy) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let scale = element_scale(cx, p, dy);
            let dtype = cx.dtype(p);
            let one = cx.scalar_of(dtype, 1.0);
            let rest = cx.sub(one, p);
            let variance = cx.mul(p, rest);
            let least = cx.scalar_of(dtype, MIN_VARIANCE);
            let variance = cx.maximum(variance, least);
            let difference = cx.sub(p, t);
            let slope = cx.div(difference, variance);
            let dp = cx.mul(slope, scale);
            let dt = if cx.needs(1) {
                let [log, log_rest] = logs(cx, p);
                let d = cx.sub(log_rest, log);
                Some(cx.mul(d, scale).into())
            } else {
                None
            };
            Ok(vec![Some(dp.into()), dt])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (g, p, t) = (&mut *cx.graph, cx.inputs[0], cx.inputs[1]);
            let [log, log_rest] = logs(g, p);
            let yes = g.mul(t, log);
            let one = g.scalar_of(cx.outputs[0].dtype, 1.0);
            let rest = g.sub(one, t);
            let no = g.mul(rest, log_rest);
            let sum = g.add(yes, no);
            let mean = g.mean_all(sum);
            Ok(vec![g.neg(mean).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 22 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        pair_samples(sizes, [(0.05, 0.95), (0.0, 1.0)], &Attrs::new())
    }
}

/// Returns `ln p` and `ln(1 - p)`, both at least [`LOG_LIMIT`].
fn logs(g: &mut Graph, p: Value) -> [NodeId; 2] {
    let dtype = g.dtype(p);
    let one = g.scalar_of(dtype, 1.0);
    let limit = g.scalar_of(dtype, LOG_LIMIT);
    let rest = g.sub(one, p);
    [p, rest.into()].map(|p| {
        let log = g.log(p);
        g.maximum(log, limit)
    })
}

impl Operator for BceWithLogitsLoss {
    fn name(&self) -> &'static str {
        "core.bce_with_logits_loss"
    }

    fn signature(&self) -> String {
        "g.bce_with_logits_loss(logits, targets)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: PAIR_SHAPES,
            formula: "mean of ln(1 + e^x) - t x, which is the binary cross-entropy of sigmoid(x)",
            source: "binary cross-entropy of logits, in a form that does not overflow",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer_pair(call, ["logits", "targets"])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (x, t, dy) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let scale = element_scale(cx, x, dy);
            let p = cx.sigmoid(x);
            let difference = cx.sub(p, t);
            let dx = cx.mul(difference, scale);
            let dt = if cx.needs(1) {
                let d = cx.mul(x, scale);
                Some(cx.neg(d).into())
            } else {
                None
            };
            Ok(vec![Some(dx.into()), dt])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (g, x, t) = (&mut *cx.graph, cx.inputs[0], cx.inputs[1]);
            let all = g.softplus(x);
            let own = g.mul(t, x);
            let difference = g.sub(all, own);
            Ok(vec![g.mean_all(difference).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 23 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        pair_samples(sizes, [(-4.0, 4.0), (0.0, 1.0)], &Attrs::new())
    }
}

impl Graph {
    /// Computes the mean binary cross-entropy in nats of `probabilities` against `targets`, both in
    /// `[0, 1]` and of one shape. Prefer [`Graph::bce_with_logits_loss`] where the probabilities
    /// come out of a sigmoid.
    #[track_caller]
    pub fn bce_loss(&mut self, probabilities: impl Into<Value>, targets: impl Into<Value>) -> NodeId {
        let inputs = vec![probabilities.into(), targets.into()];
        self.call(OpRef::new(&BceLoss), Attrs::new(), inputs)
    }

    /// Computes the mean binary cross-entropy in nats of `sigmoid(logits)` against `targets` in
    /// `[0, 1]`, of one shape.
    #[track_caller]
    pub fn bce_with_logits_loss(&mut self, logits: impl Into<Value>, targets: impl Into<Value>) -> NodeId {
        let inputs = vec![logits.into(), targets.into()];
        self.call(OpRef::new(&BceWithLogitsLoss), Attrs::new(), inputs)
    }
}
