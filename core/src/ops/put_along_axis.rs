//! Scatter-add of single elements at indices along an axis.

use super::gather::around_axis;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::reference::wrap;
use crate::shape::{Shape, TensorType};

pub(super) struct PutAlongAxis;

impl Operator for PutAlongAxis {
    fn name(&self) -> &'static str {
        "core.put_along_axis"
    }

    fn signature(&self) -> String {
        "g.put_along_axis(updates, indices, axis, size)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "indices [o..., i, j...] (u32), updates of that shape -> [o..., size, j...], size at the axis",
            formula: "y[o..., r, j...] = sum of updates[o..., i, j...] over all i with indices[o..., i, j...] = r; integers wrap; an index >= size is an error of the step",
            source: "the transpose of take_along_axis; PyTorch `scatter_add` into zeros",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("size", AttrKind::Int), ("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [indices, updates] = call.inputs else {
            return Err("takes indices and updates".into());
        };
        if indices.dtype != DType::U32 {
            return Err(format!("the indices must be u32, not {indices}"));
        }
        if indices.shape != updates.shape {
            return Err(format!(
                "the indices {indices} and the updates {updates} must have the same shape"
            ));
        }
        let axis = updates.shape.axis(call.attrs.int("axis")?)?;
        let mut dims = updates.shape.to_vec();
        dims[axis] = call.attrs.size("size")?;
        Ok(vec![TensorType::new(updates.dtype, Shape::new(&dims)?)])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((0, call.attrs.size("size").ok()?))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let axis = cx.attrs().int("axis")? as i32;
            let indices = cx.operand(0);
            let dy = cx.grad(0);
            Ok(vec![None, Some(cx.take_along_axis(dy, indices, axis).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (indices, updates) = (call.inputs[0], call.inputs[1]);
            let axis = call.int("axis");
            let [_, count, inner] = around_axis(&indices.ty.shape, axis);
            let [_, size, _] = around_axis(&call.outputs[0].shape, axis);
            let dtype = call.outputs[0].dtype;
            let mut out = vec![0.0; call.outputs[0].numel()];
            for (at, (&index, &update)) in indices.data.iter().zip(&updates.data).enumerate() {
                let (o, i) = (at / (count * inner), at % inner);
                if (index as usize) < size {
                    let slot = &mut out[(o * size + index as usize) * inner + i];
                    *slot += update;
                    if dtype.is_integer() {
                        *slot = wrap(dtype, *slot as i128);
                    }
                }
            }
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = call.inputs[1].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (a, b, n, count) = (sizes.dim(20), sizes.dim(40), sizes.dim(30), sizes.dim(50));
        let cases: Vec<(Vec<usize>, usize, i64)> = vec![
            (vec![7], 3, 0),
            (vec![3, 4], 6, 1),
            (vec![4, 3], 2, 0),
            (vec![2, 3, 4], 5, -2),
            (vec![a, count, b], n, 1),
            (vec![a, count], n, 1),
            (vec![count, b], n, 0),
        ];
        let attrs = |size: usize, axis: i64| Attrs::new().with("size", size).with("axis", axis);
        let mut samples: Vec<Sample> = cases
            .into_iter()
            .map(|(shape, size, axis)| {
                let inputs = vec![SampleInput::below(&shape, size), SampleInput::f32(&shape)];
                Sample::new(format!("{shape:?} into {size} along {axis}"), inputs, attrs(size, axis))
            })
            .collect();
        let updates = SampleInput::filled(DType::U32, &[3, 9], Fill::Below(1 << 31));
        let inputs = vec![SampleInput::below(&[3, 9], 4), updates];
        samples.push(Sample::new("u32", inputs, attrs(4, 1)));
        samples
    }
}

impl Graph {
    /// Adds each element of `updates` to zeros, at its index in `indices` along the axis. `indices` (`u32`) has the
    /// shape of `updates`; the result has `size` elements along the axis, and the other sizes of `updates`. An index
    /// that is not below `size` is an error of the step. The order of summation is fixed.
    #[track_caller]
    pub fn put_along_axis(
        &mut self,
        updates: impl Into<Value>,
        indices: impl Into<Value>,
        axis: i32,
        size: usize,
    ) -> NodeId {
        let attrs = Attrs::new().with("size", size).with("axis", axis);
        let (updates, indices) = (updates.into(), indices.into());
        self.call(OpRef::new(&PutAlongAxis), attrs, vec![indices, updates])
    }
}
