//! Running sums along an axis.

use super::gather::around_axis;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, RefCall, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::reference::wrap;
use crate::shape::{Shape, TensorType};

pub(super) struct Cumsum;

fn reference(call: &RefCall) -> Vec<f64> {
    let x = call.inputs[0];
    let [outer, len, inner] = around_axis(&x.ty.shape, call.int("axis"));
    let (exclusive, reverse) = (call.bool("exclusive"), call.bool("reverse"));
    let dtype = x.ty.dtype;
    let mut out = vec![0.0; x.data.len()];
    for o in 0..outer {
        for i in 0..inner {
            let mut sum = 0.0;
            for k in 0..len {
                let k = if reverse { len - 1 - k } else { k };
                let at = (o * len + k) * inner + i;
                let before = sum;
                sum += x.data[at];
                if dtype.is_integer() {
                    sum = wrap(dtype, sum as i128);
                }
                out[at] = if exclusive { before } else { sum };
            }
        }
    }
    out
}

/// Shifts `x` by `by` elements along an axis, and fills the start (the end if `reverse`) with zeros.
fn shifted(g: &mut Graph, x: Value, axis: usize, by: usize, reverse: bool) -> NodeId {
    let shape = g.shape(x).to_vec();
    let len = shape[axis];
    let (mut low, mut high) = (vec![0; shape.len()], vec![0; shape.len()]);
    if reverse {
        high[axis] = by;
        let kept = g.slice_axis(x, axis as i32, by, len);
        g.pad(kept, &low, &high, 0.0)
    } else {
        low[axis] = by;
        let kept = g.slice_axis(x, axis as i32, 0, len - by);
        g.pad(kept, &low, &high, 0.0)
    }
}

impl Operator for Cumsum {
    fn name(&self) -> &'static str {
        "core.cumsum"
    }

    fn signature(&self) -> String {
        "g.cumsum(x, axis, exclusive, reverse)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape with at least one axis -> the same",
            formula: "y[k] = sum of x[i] along the axis over i <= k; over i < k if exclusive; with > for < if reverse; integers wrap",
            source: "NumPy `cumsum`; `exclusive` and `reverse` as in ONNX `CumSum`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("axis", AttrKind::Int),
            ("exclusive", AttrKind::Bool),
            ("reverse", AttrKind::Bool),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        x.shape.axis(call.attrs.int("axis")?)?;
        call.attrs.bool("exclusive")?;
        call.attrs.bool("reverse")?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let axis = cx.attrs().int("axis")? as i32;
            let (exclusive, reverse) = (cx.attrs().bool("exclusive")?, cx.attrs().bool("reverse")?);
            let dy = cx.grad(0);
            Ok(vec![Some(cx.cumsum(dy, axis, exclusive, !reverse).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| vec![reference(call)],
            |cx| {
                // Sums over 1, 2, 4 ... elements (Hillis and Steele, 1986).
                let mut y = cx.inputs[0];
                let shape = Shape::new(cx.graph.shape(y))?;
                let axis = shape.axis(cx.attrs.int("axis")?)?;
                let reverse = cx.attrs.bool("reverse")?;
                let len = shape[axis];
                if cx.attrs.bool("exclusive")? && len > 0 {
                    y = shifted(cx.graph, y, axis, 1, reverse).into();
                }
                let mut by = 1;
                while by < len {
                    let other = shifted(cx.graph, y, axis, by, reverse);
                    y = cx.graph.add(y, other).into();
                    by *= 2;
                }
                Ok(vec![y])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 1)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 40);
        let cases: Vec<(Vec<usize>, i64)> = vec![
            (vec![1], 0),
            (vec![17], 0),
            (vec![3, 5], -1),
            (vec![5, 3], 0),
            (s.clone(), 1),
            (s, 2),
            (vec![2, 531], 1),
            (vec![67, 70], 0),
        ];
        let mut samples = Vec::new();
        for (i, (shape, axis)) in cases.into_iter().enumerate() {
            let (exclusive, reverse) = (i % 2 == 1, i / 2 % 2 == 1);
            let label = format!("{shape:?} along {axis}, exclusive {exclusive}, reverse {reverse}");
            let attrs = Attrs::new()
                .with("axis", axis)
                .with("exclusive", exclusive)
                .with("reverse", reverse);
            samples.push(Sample::new(label, vec![SampleInput::f32(&shape)], attrs.clone()));
            if i < 4 {
                let dtype = if i % 2 == 0 { DType::U32 } else { DType::I32 };
                let input = SampleInput::filled(dtype, &shape, Fill::Below(1 << 31));
                samples.push(Sample::new(format!("{dtype} {shape:?}"), vec![input], attrs));
            }
        }
        samples
    }
}

impl Graph {
    /// Computes the running sums along an axis (a negative one counts from the last): up to and
    /// including each element, or up to it if `exclusive`; from the end if `reverse`.
    #[track_caller]
    pub fn cumsum(&mut self, x: impl Into<Value>, axis: i32, exclusive: bool, reverse: bool) -> NodeId {
        let attrs = Attrs::new()
            .with("axis", axis)
            .with("exclusive", exclusive)
            .with("reverse", reverse);
        self.call(OpRef::new(&Cumsum), attrs, vec![x.into()])
    }
}
