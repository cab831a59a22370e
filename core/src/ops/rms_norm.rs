//! Root-mean-square normalisation over the last axis.

use super::layer_norm::{expect_eps, expect_rows, row_type};
use super::norm_grad::{RmsNormGrad, SavedStatistics, through_statistics};
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics, expect_float,
    expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct RmsNorm;

/// Returns the `eps` of a sample case with rows of `width` elements. It is so large that it dominates the gradient of
/// the shortest rows.
pub(super) fn sample_eps(width: usize) -> f64 {
    if width < 3 { 0.5 } else { 1e-5 }
}

impl Operator for RmsNorm {
    fn name(&self) -> &'static str {
        "core.rms_norm"
    }

    fn signature(&self) -> String {
        "g.rms_norm(x, weight, eps)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., d], weight [d] -> out [..., d], rstd [..., 1]",
            formula: "x * rstd * weight over the last axis, rstd = 1 / sqrt(mean(x^2) + eps); port 1 is rstd",
            source: "Zhang and Sennrich, 2019",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", "rstd"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        let x = &call.inputs[0];
        let rows = row_type(x)?;
        expect_rows(x, &[("weight", &call.inputs[1])])?;
        expect_eps(call)?;
        Ok(vec![x.clone(), rows])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (x, rstd, dy) = (cx.operand(0), cx.result(1), cx.grad(0));
            let operands = vec![x, cx.operand(1), rstd, dy];
            let call = cx.call(OpRef::new(&RmsNormGrad), Attrs::new(), operands);
            let [dx, dweight] = [0, 1].map(|port| cx.port(call, port));
            let saved = SavedStatistics {
                mean: None,
                rstd,
                dmean: None,
                drstd: cx.try_grad(1),
                count: cx.shape(x).last().copied().unwrap_or(1),
            };
            let dx = through_statistics(cx, x, dx, &saved);
            Ok(vec![Some(dx), Some(dweight)])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let eps = cx.attrs.float("eps")?;
            let (g, x) = (&mut *cx.graph, cx.inputs[0]);
            let square = g.square(x);
            let mean = g.mean(square, &[-1], true);
            let eps = g.scalar_of(cx.outputs[0].dtype, eps);
            let shifted = g.add(mean, eps);
            let rstd = g.rsqrt(shifted);
            let xhat = g.mul(x, rstd);
            let y = g.mul(xhat, cx.inputs[1]);
            Ok(vec![y.into(), rstd.into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 4 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Rows
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [
            vec![3],
            vec![1, 7],
            vec![4, 33],
            vec![4, 64],
            vec![2, 3, 768],
            sizes.shape(3, 40),
        ]
        .iter()
        .map(|s| {
            let width = [s[s.len() - 1]];
            let eps = sample_eps(width[0]);
            let inputs = vec![SampleInput::f32(s), SampleInput::f32(&width)];
            Sample::new(format!("{s:?}"), inputs, Attrs::new().with("eps", eps))
        })
        .collect()
    }
}

impl Graph {
    /// Divides each row (last axis) of `x [..., d]` by its root mean square and scales by `weight [d]`:
    /// `x * rstd * weight` with `rstd = 1 / sqrt(mean(x^2) + eps)`; port 1 is `rstd`, `[..., 1]`.
    #[track_caller]
    pub fn rms_norm(&mut self, x: impl Into<Value>, weight: impl Into<Value>, eps: f32) -> NodeId {
        let attrs = Attrs::new().with("eps", eps);
        self.call(OpRef::new(&RmsNorm), attrs, vec![x.into(), weight.into()])
    }
}
