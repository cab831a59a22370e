//! Sums of slices that have the same index, along an axis.

use super::gather::around_axis;
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct ScatterAdd;

/// Returns the indexed axis of the result.
fn axis(attrs: &Attrs, indices: &Shape, updates: &Shape) -> Result<usize, String> {
    let given = attrs.int("axis")?;
    let Some(rank) = (updates.rank() + 1).checked_sub(indices.rank()) else {
        return Err(format!(
            "the updates {updates} have fewer axes than the indices {indices}"
        ));
    };
    let axis = if given < 0 { given + rank as i64 } else { given };
    match usize::try_from(axis) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => Err(format!("axis {given} is out of range for a result with {rank} axes")),
    }
}

impl Operator for ScatterAdd {
    fn name(&self) -> &'static str {
        "core.scatter_add"
    }

    fn signature(&self) -> String {
        "g.scatter_add(updates, indices, rows)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "indices [i...] (u32), updates [o..., i..., j...] with i... from the axis on -> [o..., rows, j...]",
            formula: "y[o..., r, j...] = sum of updates[o..., i..., j...] over all i... with indices[i...] = r; an index >= rows is an error of the step",
            source: "the transpose of gather",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("rows", AttrKind::Int), ("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [indices, updates] = call.inputs else {
            return Err("takes indices and updates".into());
        };
        if indices.dtype != DType::U32 {
            return Err(format!("the indices must be u32, not {indices}"));
        }
        let axis = axis(call.attrs, &indices.shape, &updates.shape)?;
        let end = axis + indices.shape.rank();
        if updates.shape[axis..end] != indices.shape[..] {
            return Err(format!(
                "the axes of the updates {updates} from axis {axis} on must be those of the indices {indices}"
            ));
        }
        let mut dims = updates.shape[..axis].to_vec();
        dims.push(call.attrs.size("rows")?);
        dims.extend_from_slice(&updates.shape[end..]);
        Ok(vec![TensorType::new(updates.dtype, Shape::new(&dims)?)])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((0, call.attrs.size("rows").ok()?))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let indices = cx.operand(0);
            let dy = cx.grad(0);
            let axis = cx.attrs().int("axis")? as i32;
            Ok(vec![None, Some(cx.gather_axis(dy, indices, axis).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (indices, updates) = (call.inputs[0], call.inputs[1]);
            let [outer, rows, width] = around_axis(&call.outputs[0].shape, call.int("axis"));
            let mut out = vec![0.0; outer * rows * width];
            for o in 0..outer {
                for (i, &r) in indices.data.iter().enumerate() {
                    for j in 0..width {
                        if (r as usize) < rows {
                            let update = (o * indices.data.len() + i) * width + j;
                            out[(o * rows + r as usize) * width + j] += updates.data[update];
                        }
                    }
                }
            }
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let updates = &call.inputs[1];
        let streaming = Cost::streaming(call, 0);
        Cost {
            flops: updates.numel() as u64,
            // Each row that is added to is read and written once more.
            bytes: streaming.bytes.saturating_add(2 * updates.bytes() as u64),
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (count, width, rows) = (sizes.dim(60), sizes.dim(30), sizes.dim(20));
        let cases: Vec<(Vec<usize>, Vec<usize>, usize, usize)> = vec![
            (vec![5], vec![5, 3], 4, 0),
            (vec![2, 3], vec![2, 3], 7, 0),
            (vec![6], vec![6, 2, 2], 3, 0),
            (vec![40], vec![40, 2], 1, 0),
            (vec![count], vec![count, width], rows, 0),
            (vec![2, 3], vec![4, 2, 3], 5, 1),
            (vec![6], vec![2, 2, 6, 2], 3, 2),
            (vec![count], vec![3, count, width], rows, 1),
            (vec![count], vec![width, count], rows, 1),
        ];
        cases
            .into_iter()
            .map(|(indices, updates, rows, axis)| {
                let label = format!("{indices:?} {updates:?} into {rows} along {axis}");
                let inputs = vec![SampleInput::below(&indices, rows), SampleInput::f32(&updates)];
                Sample::new(label, inputs, Attrs::new().with("rows", rows).with("axis", axis))
            })
            .collect()
    }
}

impl Graph {
    /// Computes `[rows, j...]` where row `r` is the sum of the rows of `updates [i..., j...]` whose
    /// entry in `indices [i...]` (`u32`) is `r`. The order of summation is fixed.
    #[track_caller]
    pub fn scatter_add(&mut self, updates: impl Into<Value>, indices: impl Into<Value>, rows: usize) -> NodeId {
        self.scatter_add_axis(updates, indices, 0, rows)
    }

    /// Computes [`Graph::scatter_add`] along an axis: `updates [o..., i..., j...]`, whose axes from
    /// `axis` on are the axes of `indices [i...]`, summed into `[o..., rows, j...]`. A negative
    /// axis counts from the last of the result.
    #[track_caller]
    pub fn scatter_add_axis(
        &mut self,
        updates: impl Into<Value>,
        indices: impl Into<Value>,
        axis: i32,
        rows: usize,
    ) -> NodeId {
        let attrs = Attrs::new().with("rows", rows).with("axis", axis);
        let (updates, indices) = (updates.into(), indices.into());
        self.call(OpRef::new(&ScatterAdd), attrs, vec![indices, updates])
    }
}
