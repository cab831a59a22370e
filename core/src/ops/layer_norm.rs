//! Layer normalisation over the last axis.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float, expect_same_dtype};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct LayerNorm;

/// Shape of the saved statistics: one entry for each row, the last axis kept.
fn row_shape(x: &TensorType) -> Result<Shape, String> {
    let mut dims = x.shape.to_vec();
    match dims.last_mut() {
        Some(last) if *last > 0 => *last = 1,
        _ => return Err(format!("{x} has no rows to normalise")),
    }
    Shape::new(&dims)
}

impl Operator for LayerNorm {
    fn name(&self) -> &'static str {
        "core.layer_norm"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., d], weight [d], bias [d] -> out [..., d], mean [..., 1], rstd [..., 1]",
            formula: "(x - mean) * rstd * weight + bias over the last axis, rstd = 1 / sqrt(var + eps) with the biased variance; ports 1 and 2 are mean and rstd",
            source: "Ba, Kiros and Hinton, 2016",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", "mean", "rstd"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        let x = &call.inputs[0];
        let rows = TensorType::new(x.dtype, row_shape(x)?);
        for (what, ty) in [("weight", &call.inputs[1]), ("bias", &call.inputs[2])] {
            if ty.shape.rank() != 1 || ty.shape.last() != x.shape.last() {
                return Err(format!("the {what} {ty} does not fit the last axis of {x}"));
            }
        }
        if call.attrs.float("eps")? < 0.0 {
            return Err("eps must not be negative".into());
        }
        Ok(vec![x.clone(), rows.clone(), rows])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            if cx.try_grad(1).is_some() || cx.try_grad(2).is_some() {
                return Err("the loss depends on the saved mean or rstd; use the operand's own `mean`".into());
            }
            let (x, weight) = (cx.operand(0), cx.operand(1));
            let (mean, rstd) = (cx.result(1), cx.result(2));
            let dy = cx.grad(0);
            let centred = cx.sub(x, mean);
            let xhat = cx.mul(centred, rstd);
            let weighted = cx.mul(dy, xhat);
            let mut grads = vec![None; 3];
            if cx.needs(0) {
                // rstd (d - mean(d) - xhat mean(d xhat)), d = dy weight
                let d = cx.mul(dy, weight);
                let mean_d = cx.mean(d, &[-1], true);
                let dx = cx.mul(d, xhat);
                let mean_dx = cx.mean(dx, &[-1], true);
                let along = cx.mul(xhat, mean_dx);
                let inner = cx.sub(d, mean_d);
                let inner = cx.sub(inner, along);
                grads[0] = Some(cx.mul(inner, rstd).into());
            }
            if cx.needs(1) {
                grads[1] = Some(cx.unbroadcast(weighted.into(), weight));
            }
            if cx.needs(2) {
                let bias = cx.operand(2);
                grads[2] = Some(cx.unbroadcast(dy, bias));
            }
            Ok(grads)
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let eps = cx.attrs.float("eps")?;
            let (g, x) = (&mut *cx.graph, cx.inputs[0]);
            let mean = g.mean(x, &[-1], true);
            let centred = g.sub(x, mean);
            let square = g.square(centred);
            let var = g.mean(square, &[-1], true);
            let eps = g.scalar_of(cx.outputs[0].dtype, eps);
            let var = g.add(var, eps);
            let rstd = g.rsqrt(var);
            let xhat = g.mul(centred, rstd);
            let scaled = g.mul(xhat, cx.inputs[1]);
            let y = g.add(scaled, cx.inputs[2]);
            Ok(vec![y.into(), mean.into(), rstd.into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 8 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [vec![3], vec![1, 7], vec![4, 33], vec![2, 3, 768], sizes.shape(3, 40)]
            .iter()
            .map(|s| {
                // A row of one element has no variance: its gradient is dominated by eps.
                let eps = if s[s.len() - 1] < 3 { 0.5 } else { 1e-5 };
                let width = [s[s.len() - 1]];
                let inputs = vec![SampleInput::f32(s), SampleInput::f32(&width), SampleInput::f32(&width)];
                Sample::new(format!("{s:?}"), inputs, Attrs::new().with("eps", eps))
            })
            .collect()
    }
}

impl Graph {
    /// Normalises the last axis of `x [..., d]` to mean 0 and variance 1, then scales by `weight [d]` and
    /// shifts by `bias [d]`.
    #[track_caller]
    pub fn layer_norm(
        &mut self,
        x: impl Into<Value>,
        weight: impl Into<Value>,
        bias: impl Into<Value>,
        eps: f32,
    ) -> NodeId {
        let inputs = vec![x.into(), weight.into(), bias.into()];
        self.call(OpRef::new(&LayerNorm), Attrs::new().with("eps", eps), inputs)
    }
}
