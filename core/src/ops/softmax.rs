//! Softmax and its logarithm along one axis.

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics, expect_float,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Softmax;
pub(super) struct LogSoftmax;

fn infer(call: &Call) -> Result<Vec<TensorType>, String> {
    expect_float(call, 0, "the operand")?;
    let x = &call.inputs[0];
    let axis = x.shape.axis(call.attrs.int("axis")?)?;
    if x.shape[axis] == 0 {
        return Err(format!("axis {axis} of {x} has no elements"));
    }
    Ok(vec![x.clone()])
}

fn axis(attrs: &Attrs) -> Result<i32, String> {
    Ok(attrs.int("axis")? as i32)
}

fn samples(sizes: &mut Sizes) -> Vec<Sample> {
    let s = sizes.shape(3, 50);
    let cases: Vec<(Vec<usize>, i64)> = vec![
        (vec![1], 0),
        (vec![7], 0),
        (vec![4, 10], 1),
        (vec![4, 10], 0),
        (vec![3, 1025], -1),
        (s.clone(), -1),
        (s, 1),
    ];
    let mut samples: Vec<Sample> = cases
        .into_iter()
        .map(|(shape, axis)| {
            let label = format!("{shape:?} along {axis}");
            Sample::new(label, vec![SampleInput::f32(&shape)], Attrs::new().with("axis", axis))
        })
        .collect();
    // Large logits: a kernel that does not subtract the maximum overflows.
    let input = SampleInput::range(&[3, 9], 80.0, 120.0);
    samples.push(Sample::new(
        "large logits",
        vec![input],
        Attrs::new().with("axis", -1i64),
    ));
    samples
}

impl Operator for Softmax {
    fn name(&self) -> &'static str {
        "core.softmax"
    }

    fn signature(&self) -> String {
        "g.softmax(x, axis)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape with at least one axis -> the same",
            formula: "e^(x - max) / sum of e^(x - max), along an axis",
            source: "Bridle, 1990; shifted by the maximum against overflow",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            // dx = y (dy - sum(dy y))
            let axis = axis(cx.attrs())?;
            let y = cx.result(0);
            let dy = cx.grad(0);
            let weighted = cx.mul(dy, y);
            let sum = cx.sum(weighted, &[axis], true);
            let centred = cx.sub(dy, sum);
            Ok(vec![Some(cx.mul(y, centred).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let axis = axis(cx.attrs)?;
            let (g, x) = (&mut *cx.graph, cx.inputs[0]);
            let max = g.max(x, &[axis], true);
            let shifted = g.sub(x, max);
            let e = g.exp(shifted);
            let sum = g.sum(e, &[axis], true);
            Ok(vec![g.div(e, sum).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 12)
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Rows
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes)
    }
}

impl Operator for LogSoftmax {
    fn name(&self) -> &'static str {
        "core.log_softmax"
    }

    fn signature(&self) -> String {
        "g.log_softmax(x, axis)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape with at least one axis -> the same",
            formula: "x - max - ln(sum of e^(x - max)), along an axis",
            source: "logarithm of softmax, without its underflow",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            // dx = dy - e^y sum(dy)
            let axis = axis(cx.attrs())?;
            let y = cx.result(0);
            let dy = cx.grad(0);
            let sum = cx.sum(dy, &[axis], true);
            let p = cx.exp(y);
            let r = cx.mul(p, sum);
            Ok(vec![Some(cx.sub(dy, r).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let axis = axis(cx.attrs)?;
            let (g, x) = (&mut *cx.graph, cx.inputs[0]);
            let max = g.max(x, &[axis], true);
            let shifted = g.sub(x, max);
            let e = g.exp(shifted);
            let sum = g.sum(e, &[axis], true);
            let log = g.log(sum);
            Ok(vec![g.sub(shifted, log).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 12)
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Rows
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes)
    }
}

impl Graph {
    /// Computes the softmax along an axis (negative axes count from the last).
    #[track_caller]
    pub fn softmax(&mut self, x: impl Into<Value>, axis: i32) -> NodeId {
        self.call(OpRef::new(&Softmax), Attrs::new().with("axis", axis), vec![x.into()])
    }

    /// Computes the logarithm of the softmax along an axis (negative axes count from the last).
    #[track_caller]
    pub fn log_softmax(&mut self, x: impl Into<Value>, axis: i32) -> NodeId {
        self.call(OpRef::new(&LogSoftmax), Attrs::new().with("axis", axis), vec![x.into()])
    }
}
