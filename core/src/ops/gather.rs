//! Selection of slices of a tensor along an axis, by index.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Gather;

impl Operator for Gather {
    fn name(&self) -> &'static str {
        "core.gather"
    }

    fn signature(&self) -> String {
        "g.gather(x, indices)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "indices [i...] (u32), x [o..., n, j...] with n at the axis -> [o..., i..., j...]",
            formula: "y[o..., i..., j...] = x[o..., indices[i...], j...]; an index outside of the axis is an error of the step",
            source: "NumPy `take`; an embedding lookup along axis 0",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [indices, table] = call.inputs else {
            return Err("takes indices and a table".into());
        };
        if indices.dtype != DType::U32 {
            return Err(format!(
                "the indices must be u32, not {indices}; feed them with `input_u32`"
            ));
        }
        if table.shape.rank() == 0 {
            return Err("the table is a scalar; it needs rows".into());
        }
        let axis = table.shape.axis(call.attrs.int("axis")?)?;
        let mut dims = table.shape[..axis].to_vec();
        dims.extend_from_slice(&indices.shape);
        dims.extend_from_slice(&table.shape[axis + 1..]);
        Ok(vec![TensorType::new(table.dtype, Shape::new(&dims)?)])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        let [_, rows, _] = around_axis(&call.inputs[1].shape, call.attrs.int("axis").ok()?);
        Some((0, rows))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (indices, table) = (cx.operand(0), cx.operand(1));
            let shape = Shape::new(cx.shape(table))?;
            let axis = shape.axis(cx.attrs().int("axis")?)?;
            let dy = cx.grad(0);
            let rows = shape[axis];
            Ok(vec![
                None,
                Some(cx.scatter_add_axis(dy, indices, axis as i32, rows).into()),
            ])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (indices, table) = (call.inputs[0], call.inputs[1]);
            let [outer, rows, row] = around_axis(&table.ty.shape, call.int("axis"));
            let mut out = Vec::new();
            for o in 0..outer {
                for &i in &indices.data {
                    let i = i as usize;
                    let start = (o * rows + i) * row;
                    match table.data.get(start..start + row).filter(|_| i < rows) {
                        Some(data) => out.extend_from_slice(data),
                        None => out.extend(std::iter::repeat_n(f64::NAN, row)),
                    }
                }
            }
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let bytes = call.inputs[0].bytes() + 2 * call.outputs[0].bytes();
        Cost {
            flops: 0,
            bytes: bytes as u64,
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, width, count) = (sizes.dim(60), sizes.dim(40), sizes.dim(50));
        let cases: Vec<(Vec<usize>, Vec<usize>, usize)> = vec![
            (vec![5], vec![3, 4], 0),
            (vec![2, 3], vec![7, 2], 0),
            (vec![], vec![4, 2], 0),
            (vec![6], vec![9], 0),
            (vec![3], vec![4, 2, 3], 0),
            (vec![count], vec![rows, width], 0),
            (vec![3], vec![4, 2, 3], 1),
            (vec![2, 2], vec![4, 5], 1),
            (vec![count], vec![3, rows, width], 1),
            (vec![count], vec![width, rows], 1),
        ];
        cases
            .into_iter()
            .map(|(indices, table, axis)| {
                let inputs = vec![SampleInput::below(&indices, table[axis]), SampleInput::f32(&table)];
                let label = format!("{indices:?} of {table:?} along {axis}");
                Sample::new(label, inputs, Attrs::new().with("axis", axis))
            })
            .collect()
    }
}

/// Returns the numbers of elements before, at and after an axis that `infer` has accepted.
pub(super) fn around_axis(shape: &Shape, axis: i64) -> [usize; 3] {
    let axis = shape.axis(axis).unwrap_or(0);
    let product = |dims: &[usize]| dims.iter().product();
    [product(&shape[..axis]), shape[axis], product(&shape[axis + 1..])]
}

impl Graph {
    /// Gathers rows `indices [i...]` (`u32`) of `x [rows, j...]` as `[i..., j...]`. An index
    /// outside of the rows is an error of the step.
    #[track_caller]
    pub fn gather(&mut self, x: impl Into<Value>, indices: impl Into<Value>) -> NodeId {
        self.gather_axis(x, indices, 0)
    }

    /// Gathers parts `indices [i...]` (`u32`) of `x [o..., n, j...]` along the axis of size `n`, as
    /// `[o..., i..., j...]`; a negative axis counts from the last. An index outside of the axis is
    /// an error of the step.
    #[track_caller]
    pub fn gather_axis(&mut self, x: impl Into<Value>, indices: impl Into<Value>, axis: i32) -> NodeId {
        let (x, indices) = (x.into(), indices.into());
        self.call(OpRef::new(&Gather), Attrs::new().with("axis", axis), vec![indices, x])
    }

    /// Looks up embeddings: [`Graph::gather`] under its usual name, with the usual order of
    /// arguments.
    #[track_caller]
    pub fn embedding(&mut self, indices: impl Into<Value>, table: impl Into<Value>) -> NodeId {
        self.gather(table, indices)
    }
}
