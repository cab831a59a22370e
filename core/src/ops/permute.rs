//! Reordering of axes.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::reference::{for_each_index, offset};
use crate::shape::{Shape, TensorType};

pub(super) struct Permute;

/// Returns the permutation of a call, checked against the operand's shape. The axes of a call must
/// not be negative, as kernels use them directly; [`Graph::permute`] resolves negative ones.
fn permutation(attrs: &Attrs, shape: &Shape) -> Result<Vec<usize>, String> {
    let axes = attrs.ints("axes")?;
    let mut order = Vec::with_capacity(axes.len());
    for &a in axes {
        let axis = shape.axis(a)?;
        if a < 0 {
            return Err(format!("axis {a} of a call must count from the first axis, as {axis}"));
        }
        if order.contains(&axis) {
            return Err(format!("the axes {axes:?} name axis {axis} twice"));
        }
        order.push(axis);
    }
    if order.len() != shape.rank() {
        return Err(format!(
            "the axes {axes:?} are not all axes of shape {shape}; a permutation names each once"
        ));
    }
    Ok(order)
}

impl Operator for Permute {
    fn name(&self) -> &'static str {
        "core.permute"
    }

    fn signature(&self) -> String {
        "g.permute(x, axes)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape; axes: all axes of x in some order -> the sizes in that order",
            formula: "y[i_axes[0], i_axes[1], ...] = x[i_0, i_1, ...]: axis k of y is axis axes[k] of x",
            source: "NumPy `transpose`",
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
        let axes = permutation(call.attrs, &x.shape)?;
        let dims: Vec<usize> = axes.iter().map(|&a| x.shape[a]).collect();
        Ok(vec![TensorType::new(x.dtype, Shape::new(&dims)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let axes = permutation(cx.attrs(), &Shape::new(cx.shape(cx.operand(0)))?)?;
            let mut inverse = vec![0; axes.len()];
            for (k, &a) in axes.iter().enumerate() {
                inverse[a] = k as i32;
            }
            let dy = cx.grad(0);
            Ok(vec![Some(cx.permute(dy, &inverse).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let x = call.inputs[0];
            let axes = call.ints("axes");
            let mut out = Vec::with_capacity(x.data.len());
            let mut source = vec![0; axes.len()];
            for_each_index(&call.outputs[0].shape, |index| {
                for (&a, &i) in axes.iter().zip(index) {
                    source[a as usize] = i;
                }
                out.push(x.data[offset(x.shape(), &source)]);
            });
            vec![out]
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::View
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s2 = sizes.shape(2, 70);
        let s4 = sizes.shape(4, 9);
        let cases: Vec<(Vec<usize>, Vec<i64>)> = vec![
            (vec![5], vec![0]),
            (vec![3, 4], vec![1, 0]),
            (s2, vec![1, 0]),
            (vec![2, 3, 4], vec![2, 0, 1]),
            (s4.clone(), vec![0, 2, 1, 3]),
            (s4, vec![3, 1, 0, 2]),
        ];
        cases
            .into_iter()
            .map(|(shape, axes)| {
                let label = format!("{shape:?} by {axes:?}");
                Sample::new(label, vec![SampleInput::f32(&shape)], Attrs::new().with("axes", axes))
            })
            .collect()
    }
}

impl Graph {
    /// Reorders the axes: axis `k` of the result is axis `axes[k]` of `x` (negative axes count from the last).
    ///
    /// Rejected: an axis out of range, one that is named twice, one that is missing.
    #[track_caller]
    pub fn permute(&mut self, x: impl Into<Value>, axes: &[i32]) -> NodeId {
        let x = x.into();
        // An axis out of range stays as given, so that the error names it.
        let rank = self.ty(x).map_or(0, |ty| ty.shape.rank() as i64);
        let resolve = |&a: &i32| match i64::from(a) {
            a if (-rank..0).contains(&a) => a + rank,
            a => a,
        };
        let axes: Vec<i64> = axes.iter().map(resolve).collect();
        self.call(OpRef::new(&Permute), Attrs::new().with("axes", axes), vec![x])
    }

    /// Swaps the last two axes.
    #[track_caller]
    pub fn transpose(&mut self, x: impl Into<Value>) -> NodeId {
        let x = x.into();
        let rank = self.shape(x).len() as i32;
        if rank < 2 && self.ty(x).is_some() {
            return self.report("transpose", "a tensor with less than two axes has nothing to swap", "");
        }
        let mut axes: Vec<i32> = (0..rank).collect();
        let len = axes.len();
        if len >= 2 {
            axes.swap(len - 1, len - 2);
        }
        self.permute(x, &axes)
    }
}
