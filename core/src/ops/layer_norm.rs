//! Layer normalisation over the last axis.

use super::norm_grad::{LayerNormGrad, SavedStatistics, through_statistics};
use super::rms_norm::sample_eps;
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics, expect_float,
    expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct LayerNorm;

/// Returns the type of the saved statistics: one number per row, with 1 as the last size.
pub(super) fn row_type(x: &TensorType) -> Result<TensorType, String> {
    let mut dims = x.shape.to_vec();
    match dims.last_mut() {
        Some(last) if *last > 0 => *last = 1,
        _ => return Err(format!("{x} has no rows to normalise")),
    }
    Ok(TensorType::new(x.dtype, Shape::new(&dims)?))
}

/// Returns an error unless the operands have one entry for each element of a row of `x`.
pub(super) fn expect_rows(x: &TensorType, operands: &[(&str, &TensorType)]) -> Result<(), String> {
    for (what, ty) in operands {
        if ty.shape.rank() != 1 || ty.shape.last() != x.shape.last() {
            return Err(format!("the {what} {ty} does not fit the last axis of {x}"));
        }
    }
    Ok(())
}

/// Returns an error unless `eps` is a number that is not negative.
pub(super) fn expect_eps(call: &Call) -> Result<(), String> {
    let eps = call.attrs.float("eps")?;
    if eps >= 0.0 && eps.is_finite() {
        Ok(())
    } else {
        Err(format!("eps must not be negative, but finite; it is {eps}"))
    }
}

impl Operator for LayerNorm {
    fn name(&self) -> &'static str {
        "core.layer_norm"
    }

    fn signature(&self) -> String {
        "g.layer_norm(x, weight, bias, eps)".into()
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

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", "mean", "rstd"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        let x = &call.inputs[0];
        let rows = row_type(x)?;
        expect_rows(x, &[("weight", &call.inputs[1]), ("bias", &call.inputs[2])])?;
        expect_eps(call)?;
        Ok(vec![x.clone(), rows.clone(), rows])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (x, dy) = (cx.operand(0), cx.grad(0));
            let (mean, rstd) = (cx.result(1), cx.result(2));
            if !cx.needs(0) && !cx.needs(1) {
                let bias = cx.operand(2);
                return Ok(vec![None, None, Some(cx.unbroadcast(dy, bias))]);
            }
            let operands = vec![x, cx.operand(1), mean, rstd, dy];
            let call = cx.call(OpRef::new(&LayerNormGrad), Attrs::new(), operands);
            let [dx, dweight, dbias] = [0, 1, 2].map(|port| cx.port(call, port));
            let saved = SavedStatistics {
                mean: Some(mean),
                rstd,
                dmean: cx.try_grad(1),
                drstd: cx.try_grad(2),
                count: cx.shape(x).last().copied().unwrap_or(1),
            };
            let dx = through_statistics(cx, x, dx, &saved);
            Ok(vec![Some(dx), Some(dweight), Some(dbias)])
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

    fn fusing(&self) -> FusionRole {
        FusionRole::Rows
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [vec![3], vec![1, 7], vec![4, 33], vec![2, 3, 768], sizes.shape(3, 40)]
            .iter()
            .map(|s| {
                let width = [s[s.len() - 1]];
                let eps = sample_eps(width[0]);
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
