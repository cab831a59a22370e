//! Replacement of slices of a tensor along an axis.

use super::gather::around_axis;
use super::sample::{Sample, SampleInput, Sizes};
use super::take_along_axis::equal_but;
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Scatter;

/// Returns 1 for each index that no later index repeats, so that its slice is not overwritten. To find these, it
/// scatters positions: every row of the result then contains the last position that was written to it.
fn is_last(g: &mut Graph, indices: Value, rows: usize) -> NodeId {
    let count = g.shape(indices).iter().product::<usize>();
    let positions = g.constant_u32((0..count as u32).collect(), &[count]);
    let none = g.full(DType::U32, 0.0, &[rows]);
    let last = g.scatter(none, indices, positions, 0);
    let winner = g.gather(last, indices);
    g.equal(winner, positions)
}

impl Operator for Scatter {
    fn name(&self) -> &'static str {
        "core.scatter"
    }

    fn signature(&self) -> String {
        "g.scatter(x, indices, updates, axis)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [o..., n, j...] with n at the axis, indices [i] (u32), updates [o..., i, j...] -> the shape of x",
            formula: "y[o..., indices[i], j...] = updates[o..., i, j...], the last one where an index repeats, and x elsewhere; an index outside of the axis is an error of the step",
            source: "ONNX `ScatterElements` along one axis; NumPy assignment by an index list",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [x, indices, updates] = call.inputs else {
            return Err("takes a tensor, indices and updates".into());
        };
        if indices.dtype != DType::U32 {
            return Err(format!(
                "the indices must be u32, not {indices}; feed them with `input_u32`"
            ));
        }
        if indices.shape.rank() != 1 {
            return Err(format!("the indices {indices} must have one axis"));
        }
        if x.dtype != updates.dtype {
            return Err(format!(
                "the updates {updates} have another element type than {x}; use `cast` to convert one"
            ));
        }
        let axis = x.shape.axis(call.attrs.int("axis")?)?;
        if !equal_but(&x.shape, &updates.shape, axis) || updates.shape[axis] != indices.shape[0] {
            return Err(format!(
                "the updates {updates} must have the shape of {x}, but the {} elements of the indices at axis {axis}",
                indices.shape[0]
            ));
        }
        if u32::try_from(indices.shape[0]).is_err() {
            return Err(format!("there are too many indices: {indices}"));
        }
        Ok(vec![x.clone()])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        let [_, rows, _] = around_axis(&call.inputs[0].shape, call.attrs.int("axis").ok()?);
        Some((1, rows))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (x, indices, updates) = (cx.operand(0), cx.operand(1), cx.operand(2));
            let shape = Shape::new(cx.shape(x))?;
            let axis = shape.axis(cx.attrs().int("axis")?)?;
            let dy = cx.grad(0);
            let dtype = cx.dtype(dy);
            let mut grads = vec![None; 3];
            if cx.needs(0) {
                let replaced = cx.shape(updates).to_vec();
                let zeros = cx.full(dtype, 0.0, &replaced);
                grads[0] = Some(cx.scatter(dy, indices, zeros, axis as i32).into());
            }
            if cx.needs(2) {
                let count = cx.shape(indices)[0];
                let wins = is_last(cx, indices, shape[axis]);
                let mut column = vec![1; shape.rank() - axis];
                column[0] = count;
                let wins = cx.reshape(wins, &column);
                let taken = cx.gather_axis(dy, indices, axis as i32);
                let zero = cx.scalar_of(dtype, 0.0);
                grads[2] = Some(cx.select(wins, taken, zero).into());
            }
            Ok(grads)
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (x, indices, updates) = (call.inputs[0], call.inputs[1], call.inputs[2]);
            let [outer, rows, inner] = around_axis(&x.ty.shape, call.int("axis"));
            let count = indices.data.len();
            let mut out = x.data.clone();
            for o in 0..outer {
                for (i, &row) in indices.data.iter().enumerate() {
                    let row = row as usize;
                    if row < rows {
                        let from = (o * count + i) * inner;
                        let to = (o * rows + row) * inner;
                        out[to..to + inner].copy_from_slice(&updates.data[from..from + inner]);
                    }
                }
            }
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (a, b, n, count) = (sizes.dim(20), sizes.dim(40), sizes.dim(30), sizes.dim(50));
        let cases: Vec<(Vec<usize>, usize, i64)> = vec![
            (vec![7], 3, 0),
            (vec![3, 4], 6, 1),
            (vec![4, 3], 1, 0),
            (vec![2, 3, 4], 5, -2),
            (vec![a, n, b], count, 1),
            (vec![a, n], count, -1),
            (vec![n, b], count, 0),
        ];
        cases
            .into_iter()
            .map(|(shape, count, axis)| {
                let at = axis.rem_euclid(shape.len() as i64) as usize;
                let mut updates = shape.clone();
                updates[at] = count;
                let inputs = vec![
                    SampleInput::f32(&shape),
                    SampleInput::below(&[count], shape[at]),
                    SampleInput::f32(&updates),
                ];
                let label = format!("{count} into {shape:?} along {axis}");
                Sample::new(label, inputs, Attrs::new().with("axis", axis))
            })
            .collect()
    }
}

impl Graph {
    /// Replaces the slices of `x` along the axis at `indices [i]` (`u32`) by those of `updates`,
    /// which has size `i` at the axis; if an index repeats, the last slice counts. A negative axis
    /// counts from the last. An index out of range is an error of the step.
    #[track_caller]
    pub fn scatter(
        &mut self,
        x: impl Into<Value>,
        indices: impl Into<Value>,
        updates: impl Into<Value>,
        axis: i32,
    ) -> NodeId {
        let operands = vec![x.into(), indices.into(), updates.into()];
        self.call(OpRef::new(&Scatter), Attrs::new().with("axis", axis), operands)
    }
}
