//! Sum of the squares of all elements.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct SumSquares;

impl Operator for SumSquares {
    fn name(&self) -> &'static str {
        "core.sum_squares"
    }

    fn signature(&self) -> String {
        "g.sum_squares(x)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> []",
            formula: "sum of x^2 over all elements",
            source: "the square of the Euclidean norm",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        Ok(vec![TensorType::new(call.inputs[0].dtype, Shape::scalar())])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (x, dy) = (cx.operand(0), cx.grad(0));
            let dtype = cx.dtype(x);
            let two = cx.scalar_of(dtype, 2.0);
            let dy = cx.mul(dy, two);
            Ok(vec![Some(cx.mul(x, dy).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let square = cx.graph.square(cx.inputs[0]);
            Ok(vec![cx.graph.sum_all(square).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 2 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [vec![], vec![1], vec![3, 5], vec![0], vec![40_009], sizes.shape(3, 40)]
            .iter()
            .map(|s| Sample::new(format!("{s:?}"), vec![SampleInput::f32(s)], Attrs::new()))
            .collect()
    }
}

impl Graph {
    /// Computes the sum of the squares of all elements, of shape `[]`.
    #[track_caller]
    pub fn sum_squares(&mut self, x: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&SumSquares), Attrs::new(), vec![x.into()])
    }
}
