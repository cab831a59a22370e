//! Selection of one element along an axis for each entry of an index tensor.

use super::gather::around_axis;
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct TakeAlongAxis;

/// Returns `true` if two shapes are equal except for one axis.
pub(super) fn equal_but(a: &[usize], b: &[usize], axis: usize) -> bool {
    a.len() == b.len() && (0..a.len()).all(|i| i == axis || a[i] == b[i])
}

impl Operator for TakeAlongAxis {
    fn name(&self) -> &'static str {
        "core.take_along_axis"
    }

    fn signature(&self) -> String {
        "g.take_along_axis(x, indices, axis)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [o..., n, j...] with n at the axis, indices [o..., i, j...] (u32) -> the shape of the indices",
            formula: "y[o..., i, j...] = x[o..., indices[o..., i, j...], j...]; an index outside of the axis is an error of the step",
            source: "NumPy `take_along_axis`, PyTorch `gather`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [x, indices] = call.inputs else {
            return Err("takes a tensor and indices".into());
        };
        if indices.dtype != DType::U32 {
            return Err(format!(
                "the indices must be u32, not {indices}; feed them with `input_u32`"
            ));
        }
        let axis = x.shape.axis(call.attrs.int("axis")?)?;
        if !equal_but(&x.shape, &indices.shape, axis) {
            return Err(format!(
                "the indices {indices} must have the shape of {x} but for axis {axis}"
            ));
        }
        Ok(vec![TensorType::new(x.dtype, indices.shape.clone())])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        let [_, len, _] = around_axis(&call.inputs[0].shape, call.attrs.int("axis").ok()?);
        Some((1, len))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let axis = cx.attrs().int("axis")?;
            let [_, len, _] = around_axis(&crate::Shape::new(cx.shape(cx.operand(0)))?, axis);
            let indices = cx.operand(1);
            let dy = cx.grad(0);
            let dx = cx.put_along_axis(dy, indices, axis as i32, len);
            Ok(vec![Some(dx.into()), None])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (x, indices) = (call.inputs[0], call.inputs[1]);
            let axis = call.int("axis");
            let [_, len, inner] = around_axis(&x.ty.shape, axis);
            let [_, count, _] = around_axis(&indices.ty.shape, axis);
            let element = |(at, &index): (usize, &f64)| {
                let (o, i) = (at / (count * inner), at % inner);
                let index = index as usize;
                let found = x.data.get((o * len + index) * inner + i);
                // An index out of range fails the step, so the oracle may return NaN.
                found.copied().filter(|_| index < len).unwrap_or(f64::NAN)
            };
            vec![indices.data.iter().enumerate().map(element).collect()]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let bytes = call.inputs[1].bytes() + 2 * call.outputs[0].bytes();
        Cost {
            flops: 0,
            bytes: bytes as u64,
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (a, b, n, count) = (sizes.dim(20), sizes.dim(40), sizes.dim(30), sizes.dim(50));
        let cases: Vec<(Vec<usize>, usize, i64)> = vec![
            (vec![7], 3, 0),
            (vec![3, 4], 6, 1),
            (vec![4, 3], 2, 0),
            (vec![2, 3, 4], 5, -2),
            (vec![a, n, b], count, 1),
            (vec![a, n], count, 1),
            (vec![n, b], count, 0),
        ];
        cases
            .into_iter()
            .map(|(shape, count, axis)| {
                let at = axis.rem_euclid(shape.len() as i64) as usize;
                let mut chosen = shape.clone();
                chosen[at] = count;
                let inputs = vec![SampleInput::f32(&shape), SampleInput::below(&chosen, shape[at])];
                let label = format!("{chosen:?} of {shape:?} along {axis}");
                Sample::new(label, inputs, Attrs::new().with("axis", axis))
            })
            .collect()
    }
}

impl Graph {
    /// Takes the element of `x` at each index along the axis. `indices` (`u32`) has the shape of `x` except for the
    /// axis; the result has the shape of `indices`. A negative axis counts from the last. An index out of range is an
    /// error of the step.
    #[track_caller]
    pub fn take_along_axis(&mut self, x: impl Into<Value>, indices: impl Into<Value>, axis: i32) -> NodeId {
        let attrs = Attrs::new().with("axis", axis);
        self.call(OpRef::new(&TakeAlongAxis), attrs, vec![x.into(), indices.into()])
    }
}
