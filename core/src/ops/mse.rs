//! Mean squared error.

use super::loss::{PAIR_SHAPES, infer_pair, pair_samples};
use super::sample::{Sample, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Mse;

impl Operator for Mse {
    fn name(&self) -> &'static str {
        "core.mse"
    }

    fn signature(&self) -> String {
        "g.mse_loss(prediction, target)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: PAIR_SHAPES,
            formula: "mean of (prediction - target)^2 over all elements",
            source: "mean squared error",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer_pair(call, ["prediction", "target"])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            // 2 (p - t) dy / n
            let (p, t, dy) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let count: usize = cx.shape(p).iter().product();
            let dtype = cx.dtype(p);
            let factor = cx.scalar_of(dtype, 2.0 / count as f64);
            let scale = cx.mul(dy, factor);
            let difference = cx.sub(p, t);
            let dp = cx.mul(difference, scale);
            let dt = cx.needs(1).then(|| cx.neg(dp).into());
            Ok(vec![Some(dp.into()), dt])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (g, p, t) = (&mut *cx.graph, cx.inputs[0], cx.inputs[1]);
            let difference = g.sub(p, t);
            let square = g.square(difference);
            Ok(vec![g.mean_all(square).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 3 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        pair_samples(sizes, [(-2.0, 2.0); 2], &Attrs::new())
    }
}

impl Graph {
    /// Computes the mean of `(prediction - target)^2` over all elements, of shape `[]`.
    #[track_caller]
    pub fn mse_loss(&mut self, prediction: impl Into<Value>, target: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&Mse), Attrs::new(), vec![prediction.into(), target.into()])
    }
}
