//! Replacement of persistent data.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Assign;

impl Operator for Assign {
    fn name(&self) -> &'static str {
        "core.assign"
    }

    fn signature(&self) -> String {
        "g.assign(state, value)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "target, value: one shape -> the same",
            formula: "value; the state or parameter holds it from now on",
            source: "assignment",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let (state, value) = (&call.inputs[0], &call.inputs[1]);
        if state != value {
            return Err(format!("cannot assign {value} to {state}"));
        }
        Ok(vec![value.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let dy = cx.grad(0);
            Ok(vec![None, Some(dy)])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| vec![call.inputs[1].data.clone()])
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn cost(&self, call: &Call) -> Cost {
        let bytes = 2 * call.outputs[0].bytes() as u64;
        Cost { flops: 0, bytes }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(2, 60);
        let inputs = vec![SampleInput::f32(&s).state(), SampleInput::f32(&s)];
        vec![Sample::new(format!("{s:?}"), inputs, Attrs::new())]
    }
}

impl Graph {
    /// Replaces the contents of a state (or parameter) by `value`, of the same type. The write happens
    /// even if its result is unused, and later reads of `state` see it. Returns the new value.
    #[track_caller]
    pub fn assign(&mut self, state: impl Into<Value>, value: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&Assign), Attrs::new(), vec![state.into(), value.into()])
    }
}
