//! Rows of a table, chosen by index.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
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

    fn doc(&self) -> Doc {
        Doc {
            formula: "y[i..., j...] = table[indices[i...], j...]; an index outside of the table is an error of the step",
            source: "NumPy `take` along axis 0; an embedding lookup",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
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
        let mut dims = indices.shape.to_vec();
        dims.extend_from_slice(&table.shape[1..]);
        Ok(vec![TensorType::new(table.dtype, Shape::new(&dims)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (indices, table) = (cx.operand(0), cx.operand(1));
            let rows = cx.shape(table)[0];
            let dy = cx.grad(0);
            Ok(vec![None, Some(cx.scatter_add(indices, dy, rows).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (indices, table) = (call.inputs[0], call.inputs[1]);
            let row: usize = table.shape()[1..].iter().product();
            let mut out = Vec::new();
            for &i in &indices.data {
                let start = i as usize * row;
                match table.data.get(start..start + row) {
                    Some(data) => out.extend_from_slice(data),
                    None => out.extend(std::iter::repeat_n(f64::NAN, row)),
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
        let cases: Vec<(Vec<usize>, Vec<usize>)> = vec![
            (vec![5], vec![3, 4]),
            (vec![2, 3], vec![7, 2]),
            (vec![], vec![4, 2]),
            (vec![6], vec![9]),
            (vec![3], vec![4, 2, 3]),
            (vec![count], vec![rows, width]),
        ];
        cases
            .into_iter()
            .map(|(indices, table)| {
                let inputs = vec![SampleInput::below(&indices, table[0]), SampleInput::f32(&table)];
                Sample::new(format!("{indices:?} of {table:?}"), inputs, Attrs::new())
            })
            .collect()
    }
}

impl Graph {
    /// Rows `indices [i...]` (`u32`) of `table [rows, j...]` as `[i..., j...]`. An index outside of the
    /// table is an error of the step that meets it.
    #[track_caller]
    pub fn gather(&mut self, indices: impl Into<Value>, table: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&Gather), Attrs::new(), vec![indices.into(), table.into()])
    }

    /// Embedding lookup: [`Graph::gather`] under its usual name.
    #[track_caller]
    pub fn embedding(&mut self, indices: impl Into<Value>, table: impl Into<Value>) -> NodeId {
        self.gather(indices, table)
    }
}
