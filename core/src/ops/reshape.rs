//! Reshaping of a tensor.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Reshape;

impl Operator for Reshape {
    fn name(&self) -> &'static str {
        "core.reshape"
    }

    fn signature(&self) -> String {
        "g.reshape(x, shape)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape; shape: as many elements -> that shape",
            formula: "the elements of x in row-major order, in another shape",
            source: "NumPy `reshape`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("shape", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let dims = call.attrs.dims("shape")?;
        let shape = Shape::new(&dims)?;
        let from = &call.inputs[0];
        if shape.numel() != from.numel() {
            return Err(format!(
                "cannot reshape {from} with {} elements to {shape} with {}",
                from.numel(),
                shape.numel()
            ));
        }
        Ok(vec![TensorType::new(from.dtype, shape)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let x = cx.operand(0);
            let shape = cx.shape(x).to_vec();
            let dy = cx.grad(0);
            Ok(vec![Some(cx.reshape(dy, &shape).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| vec![call.inputs[0].data.clone()])
    }

    fn alias(&self) -> Option<usize> {
        Some(0)
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::View
    }

    fn cost(&self, _: &Call) -> Cost {
        Cost::default()
    }

    fn samples(&self, _: &mut Sizes) -> Vec<Sample> {
        let cases: [(&[usize], &[usize]); 4] =
            [(&[], &[1, 1]), (&[6], &[2, 3]), (&[4, 3, 5], &[12, 5]), (&[1, 7], &[7])];
        cases
            .iter()
            .map(|(from, to)| {
                let attrs = Attrs::new().with("shape", *to);
                Sample::new(format!("{from:?} to {to:?}"), vec![SampleInput::f32(from)], attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Reshapes `x` without moving data: its elements keep their row-major order. Returns the operand itself if it has
    /// that shape.
    #[track_caller]
    pub fn reshape(&mut self, x: impl Into<Value>, shape: &[usize]) -> NodeId {
        let x = x.into();
        if x.port == 0 && self.ty(x).is_some_and(|t| t.shape.dims() == shape) {
            return self.current_value(x).node;
        }
        self.call(OpRef::new(&Reshape), Attrs::new().with("shape", shape), vec![x])
    }

    /// Reshapes to `[rows, rest]`: joins all axes except the first.
    #[track_caller]
    pub fn flatten(&mut self, x: impl Into<Value>) -> NodeId {
        let x = x.into();
        let shape = self.shape(x);
        let rows = shape.first().copied().unwrap_or(1);
        let rest = shape.iter().skip(1).product();
        self.reshape(x, &[rows, rest])
    }
}
