//! Reversal of the order along axes.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::reference::{for_each_index, offset};
use crate::shape::{Shape, TensorType};

pub(super) struct Flip;

impl Operator for Flip {
    fn name(&self) -> &'static str {
        "core.flip"
    }

    fn signature(&self) -> String {
        "g.flip(x, axes)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape; axes: distinct axes of x, negative ones count from the last, none means all -> the same",
            formula: "y[i] = x[size - 1 - i] on each of the axes",
            source: "NumPy `flip`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axes", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let axes = x.shape.axes(call.attrs.ints("axes")?)?;
        // The decomposition stores positions as u32.
        if let Some(&axis) = axes.iter().find(|&&a| u32::try_from(x.shape[a]).is_err()) {
            return Err(format!("axis {axis} of {x} is too long to be reversed"));
        }
        Ok(vec![x.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let axes: Vec<i32> = cx.attrs().ints("axes")?.iter().map(|&a| a as i32).collect();
            let dy = cx.grad(0);
            Ok(vec![Some(cx.flip(dy, &axes).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let x = call.inputs[0];
                let axes = x.ty.shape.axes(call.ints("axes")).unwrap_or_default();
                let mut out = Vec::with_capacity(x.data.len());
                for_each_index(x.shape(), |index| {
                    let mut source = index.to_vec();
                    for &axis in &axes {
                        source[axis] = x.shape()[axis] - 1 - index[axis];
                    }
                    out.push(x.data[offset(x.shape(), &source)]);
                });
                vec![out]
            },
            |cx| {
                let mut y = cx.inputs[0];
                let shape = Shape::new(cx.graph.shape(y))?;
                for axis in shape.axes(cx.attrs.ints("axes")?)? {
                    let len = shape[axis];
                    let backwards = (0..len as u32).rev().collect();
                    let indices = cx.graph.constant_u32(backwards, &[len]);
                    y = cx.graph.gather_axis(y, indices, axis as i32).into();
                }
                Ok(vec![y])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 20);
        let cases: Vec<(Vec<usize>, Vec<i64>)> = vec![
            (vec![1], vec![0]),
            (vec![9], vec![0]),
            (vec![3, 4], vec![0]),
            (vec![3, 4], vec![-1]),
            (vec![2, 3, 5], vec![]),
            (s.clone(), vec![2, 0]),
            (s, vec![1]),
        ];
        cases
            .into_iter()
            .map(|(shape, axes)| {
                let label = format!("{shape:?} along {axes:?}");
                Sample::new(label, vec![SampleInput::f32(&shape)], Attrs::new().with("axes", axes))
            })
            .collect()
    }
}

impl Graph {
    /// Reverses the order of `x` along `axes` (negative ones count from the last; none means all).
    #[track_caller]
    pub fn flip(&mut self, x: impl Into<Value>, axes: &[i32]) -> NodeId {
        self.call(OpRef::new(&Flip), Attrs::new().with("axes", axes), vec![x.into()])
    }
}
