//! An identity operator through which no gradient flows.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, FusionRole, Gradient, InferenceForm, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct StopGradient;

impl Operator for StopGradient {
    fn name(&self) -> &'static str {
        "core.stop_gradient"
    }

    fn signature(&self) -> String {
        "g.stop_gradient(x)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> the same",
            formula: "x; treated as a constant by differentiation",
            source: "common; also called detach",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        Ok(call.inputs.to_vec())
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| vec![call.inputs[0].data.clone()])
    }

    fn alias(&self) -> Option<usize> {
        Some(0)
    }

    fn inference(&self) -> InferenceForm<'_> {
        InferenceForm::Rewrite(Box::new(|cx| Ok(vec![cx.inputs[0]])))
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::View
    }

    fn cost(&self, _: &Call) -> Cost {
        Cost::default()
    }

    fn samples(&self, _: &mut Sizes) -> Vec<Sample> {
        vec![Sample::new("[3, 4]", vec![SampleInput::f32(&[3, 4])], Attrs::new())]
    }
}

impl Graph {
    /// Treats `x` as a constant for differentiation.
    #[track_caller]
    pub fn stop_gradient(&mut self, x: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&StopGradient), Attrs::new(), vec![x.into()])
    }
}
