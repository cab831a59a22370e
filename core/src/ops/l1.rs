//! Mean absolute error.

use super::loss::{PAIR_SHAPES, infer_pair, pair_samples};
use super::sample::{Sample, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct L1Loss;

impl Operator for L1Loss {
    fn name(&self) -> &'static str {
        "core.l1_loss"
    }

    fn signature(&self) -> String {
        "g.l1_loss(prediction, target)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: PAIR_SHAPES,
            formula: "mean of |prediction - target| over all elements; the derivative at 0 is 0",
            source: "mean absolute error",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer_pair(call, ["prediction", "target"])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let difference = cx.graph.sub(cx.inputs[0], cx.inputs[1]);
            let size = cx.graph.abs(difference);
            Ok(vec![cx.graph.mean_all(size).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 3 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        // Separate ranges, so that no difference is near the kink.
        pair_samples(sizes, [(-2.0, 2.0), (2.1, 3.0)], &Attrs::new())
    }
}

impl Graph {
    /// Computes the mean of `|prediction - target|` over all elements, of shape `[]`.
    #[track_caller]
    pub fn l1_loss(&mut self, prediction: impl Into<Value>, target: impl Into<Value>) -> NodeId {
        self.call(
            OpRef::new(&L1Loss),
            Attrs::new(),
            vec![prediction.into(), target.into()],
        )
    }
}
