//! The operator for the index of the smallest element along an axis.

use super::arg_reduce::Argmax;
use super::sample::{Sample, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Argmin;

/// Returns values whose order is the reverse of that of `x`: the negated floats, or the bitwise complement of integers,
/// as negation could overflow.
pub(super) fn reversed_order(graph: &mut Graph, x: Value) -> NodeId {
    if graph.dtype(x).is_integer() {
        graph.bit_not(x)
    } else {
        graph.neg(x)
    }
}

impl Operator for Argmin {
    fn name(&self) -> &'static str {
        "core.argmin"
    }

    fn signature(&self) -> String {
        "g.argmin(x, axis)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape with at least one axis -> x without the axis",
            formula: "u32 index of the first smallest element along an axis, which is removed; a NaN counts as smallest",
            source: "NumPy `argmin`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        Argmax.infer(call)
    }

    fn index_result(&self, call: &Call) -> Option<(usize, usize)> {
        Argmax.index_result(call)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let axis = cx.attrs.int("axis")? as i32;
            let reversed = reversed_order(cx.graph, cx.inputs[0]);
            Ok(vec![cx.graph.argmax(reversed, axis).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Argmax.cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        Argmax.samples(sizes)
    }
}

impl Graph {
    /// Returns the index (`u32`) of the first smallest element along an axis; the axis is removed.
    #[track_caller]
    pub fn argmin(&mut self, x: impl Into<Value>, axis: i32) -> NodeId {
        self.call(OpRef::new(&Argmin), Attrs::new().with("axis", axis), vec![x.into()])
    }
}
