//! Kullback-Leibler divergence of predicted log-probabilities from target probabilities.

use super::loss::infer_pair;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct KlDivLoss;

/// Returns `1 / rows`, as a scalar of the operands' type.
fn per_row(g: &mut Graph, like: Value) -> NodeId {
    let shape = g.shape(like);
    let rows: usize = shape.iter().rev().skip(1).product();
    let dtype = g.dtype(like);
    g.scalar_of(dtype, 1.0 / rows as f64)
}

/// Returns `ln t`, or 0 where `t` is 0, because `t ln t` is 0 there.
fn log_or_zero(g: &mut Graph, t: Value) -> NodeId {
    let dtype = g.dtype(t);
    let zero = g.scalar_of(dtype, 0.0);
    let one = g.scalar_of(dtype, 1.0);
    let positive = g.greater_than(t, zero);
    let t = g.select(positive, t, one);
    g.log(t)
}

impl Operator for KlDivLoss {
    fn name(&self) -> &'static str {
        "core.kl_div_loss"
    }

    fn signature(&self) -> String {
        "g.kl_div_loss(log_probabilities, targets)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "log_probabilities, targets [rows..., classes] -> []",
            formula: "1/rows * sum over rows and classes of t (ln t - log_probability), where t ln t is 0 for t = 0",
            source: "Kullback and Leibler, 1951; PyTorch's `batchmean`, with all axes but the last as rows",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let types = infer_pair(call, ["log-probabilities", "targets"])?;
        if call.inputs[0].shape.rank() == 0 {
            return Err("a scalar has no classes; give rows of log-probabilities".into());
        }
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (log, t, dy) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let scale = per_row(cx, log);
            let scale = cx.mul(dy, scale);
            let dlog = cx.mul(t, scale);
            let dlog = cx.neg(dlog);
            let dt = if cx.needs(1) {
                // ln t + 1 - log_probability; 0 at t = 0, where it is not defined.
                let dtype = cx.dtype(t);
                let log_t = log_or_zero(cx, t);
                let one = cx.scalar_of(dtype, 1.0);
                let slope = cx.sub(log_t, log);
                let slope = cx.add(slope, one);
                let zero = cx.scalar_of(dtype, 0.0);
                let positive = cx.greater_than(t, zero);
                let slope = cx.select(positive, slope, zero);
                Some(cx.mul(slope, scale).into())
            } else {
                None
            };
            Ok(vec![Some(dlog.into()), dt])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (g, log, t) = (&mut *cx.graph, cx.inputs[0], cx.inputs[1]);
            let log_t = log_or_zero(g, t);
            let difference = g.sub(log_t, log);
            let each = g.mul(t, difference);
            // Select instead of multiplying: 0 times the -inf of an impossible class would be NaN.
            let zero = g.scalar_of(cx.outputs[0].dtype, 0.0);
            let absent = g.equal(t, zero);
            let each = g.select(absent, zero, each);
            let sum = g.sum_all(each);
            let scale = per_row(g, log);
            Ok(vec![g.mul(sum, scale).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 12 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [vec![1], vec![4, 3], vec![2, 3, 5], sizes.shape(2, 40)]
            .iter()
            .map(|s| {
                let targets = SampleInput::filled(DType::F32, s, Fill::Probabilities);
                let inputs = vec![SampleInput::range(s, -4.0, -0.1), targets];
                Sample::new(format!("{s:?}"), inputs, Attrs::new())
            })
            .collect()
    }
}

impl Graph {
    /// Computes the Kullback-Leibler divergence `KL(targets || exp(log_probabilities))`: the sum over classes of
    /// `targets * (ln(targets) - log_probabilities)`, averaged over the rows. Both operands are `[rows..., classes]`;
    /// `log_probabilities` come from [`Graph::log_softmax`] or similar, `targets` are probabilities.
    #[track_caller]
    pub fn kl_div_loss(&mut self, log_probabilities: impl Into<Value>, targets: impl Into<Value>) -> NodeId {
        let inputs = vec![log_probabilities.into(), targets.into()];
        self.call(OpRef::new(&KlDivLoss), Attrs::new(), inputs)
    }
}
