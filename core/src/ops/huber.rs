//! Huber loss: quadratic near zero, linear far from it.

use super::loss::{PAIR_SHAPES, element_scale, infer_pair, pair_samples};
use super::sample::{Sample, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct HuberLoss;

impl Operator for HuberLoss {
    fn name(&self) -> &'static str {
        "core.huber_loss"
    }

    fn signature(&self) -> String {
        "g.huber_loss(prediction, target, delta)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: PAIR_SHAPES,
            formula: "mean of d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = prediction - target",
            source: "Huber, 1964",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("delta", AttrKind::Float)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let delta = call.attrs.float("delta")?;
        if !(delta.is_finite() && delta > 0.0) {
            return Err(format!("delta is {delta}; it must be a finite number above 0"));
        }
        infer_pair(call, ["prediction", "target"])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            // The difference, limited to delta.
            let delta = cx.attrs().float("delta")? as f32;
            let (p, t, dy) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let scale = element_scale(cx, p, dy);
            let difference = cx.sub(p, t);
            let limited = cx.clamp(difference, -delta, delta);
            let dp = cx.mul(limited, scale);
            let dt = cx.needs(1).then(|| cx.neg(dp).into());
            Ok(vec![Some(dp.into()), dt])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let delta = cx.attrs.float("delta")?;
            let dtype = cx.outputs[0].dtype;
            let g = &mut *cx.graph;
            // With c = min(|d|, delta) both cases are c (|d| - c / 2).
            let difference = g.sub(cx.inputs[0], cx.inputs[1]);
            let size = g.abs(difference);
            let delta = g.scalar_of(dtype, delta);
            let limited = g.minimum(size, delta);
            let half = g.scalar_of(dtype, 0.5);
            let half = g.mul(limited, half);
            let rest = g.sub(size, half);
            let each = g.mul(limited, rest);
            Ok(vec![g.mean_all(each).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 7 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [0.75, 10.0]
            .into_iter()
            .flat_map(|delta| pair_samples(sizes, [(-2.0, 2.0); 2], &Attrs::new().with("delta", delta)))
            .collect()
    }
}

impl Graph {
    /// Computes the mean Huber loss of `prediction` and `target` of one shape: half of the squared
    /// difference `d` where `|d| <= delta`, else `delta (|d| - delta / 2)`. `delta` is above 0;
    /// PyTorch's default is 1.
    #[track_caller]
    pub fn huber_loss(&mut self, prediction: impl Into<Value>, target: impl Into<Value>, delta: f32) -> NodeId {
        let attrs = Attrs::new().with("delta", delta);
        self.call(OpRef::new(&HuberLoss), attrs, vec![prediction.into(), target.into()])
    }
}
