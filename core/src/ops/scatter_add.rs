//! Sums of rows that share an index.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct ScatterAdd;

impl Operator for ScatterAdd {
    fn name(&self) -> &'static str {
        "core.scatter_add"
    }

    fn doc(&self) -> Doc {
        Doc {
            formula: "y[r, j...] = sum of updates[i..., j...] over all i... with indices[i...] = r; an index >= rows is an error of the step",
            source: "the transpose of gather",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [indices, updates] = call.inputs else {
            return Err("takes indices and updates".into());
        };
        if indices.dtype != DType::U32 {
            return Err(format!("the indices must be u32, not {indices}"));
        }
        let rank = indices.shape.rank();
        if updates.shape.rank() < rank || updates.shape[..rank] != indices.shape[..] {
            return Err(format!(
                "the leading axes of the updates {updates} must be those of the indices {indices}"
            ));
        }
        let mut dims = vec![call.attrs.size("rows")?];
        dims.extend_from_slice(&updates.shape[rank..]);
        Ok(vec![TensorType::new(updates.dtype, Shape::new(&dims)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let indices = cx.operand(0);
            let dy = cx.grad(0);
            Ok(vec![None, Some(cx.gather(indices, dy).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (indices, updates) = (call.inputs[0], call.inputs[1]);
            let rows = call.int("rows") as usize;
            let mut out = vec![0.0; call.outputs[0].numel()];
            let width = out.len().checked_div(rows).unwrap_or(0);
            for (i, &r) in indices.data.iter().enumerate() {
                for j in 0..width {
                    if (r as usize) < rows {
                        out[r as usize * width + j] += updates.data[i * width + j];
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
        let (count, width, rows) = (sizes.dim(60), sizes.dim(30), sizes.dim(20));
        let cases: Vec<(Vec<usize>, Vec<usize>, usize)> = vec![
            (vec![5], vec![5, 3], 4),
            (vec![2, 3], vec![2, 3], 7),
            (vec![6], vec![6, 2, 2], 3),
            (vec![40], vec![40, 2], 1),
            (vec![count], vec![count, width], rows),
        ];
        cases
            .into_iter()
            .map(|(indices, updates, rows)| {
                let label = format!("{indices:?} {updates:?} into {rows}");
                let inputs = vec![SampleInput::below(&indices, rows), SampleInput::f32(&updates)];
                Sample::new(label, inputs, Attrs::new().with("rows", rows))
            })
            .collect()
    }
}

impl Graph {
    /// `[rows, j...]` where row `r` is the sum of the rows of `updates [i..., j...]` whose entry in
    /// `indices [i...]` (`u32`) is `r`. The order of summation is fixed.
    #[track_caller]
    pub fn scatter_add(&mut self, indices: impl Into<Value>, updates: impl Into<Value>, rows: usize) -> NodeId {
        let attrs = Attrs::new().with("rows", rows);
        self.call(OpRef::new(&ScatterAdd), attrs, vec![indices.into(), updates.into()])
    }
}
