//! Sum of two tensors and its normalisation over the last axis, in one pass: a residual connection and the
//! normalisation that follows it.

use super::layer_norm::LayerNorm;
use super::rms_norm::{RmsNorm, sample_eps};
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::attrs::Attrs;
use crate::graph::Value;
use crate::shape::TensorType;

/// An operator that normalises the sum of operands 0 and 1. Its further operands are the parameters of the
/// normalisation. Port 0 is the sum; the further ports are the ports of the normalisation.
pub(super) struct AddNorm {
    name: &'static str,
    shapes: &'static str,
    formula: &'static str,
    ports: &'static [&'static str],
    /// Number of operands in addition to the two that are added: the weight, and the bias if there is one.
    parameters: usize,
    flops: u64,
    norm: &'static dyn Operator,
}

pub(super) static ADD_RMS_NORM: AddNorm = AddNorm {
    name: "core.add_rms_norm",
    shapes: "a, b [..., d], weight [d] -> sum, out [..., d], rstd [..., 1]",
    formula: "sum = a + b; out and rstd are those of core.rms_norm(sum, weight)",
    ports: &["sum", "out", "rstd"],
    parameters: 1,
    flops: 5,
    norm: &RmsNorm,
};

pub(super) static ADD_LAYER_NORM: AddNorm = AddNorm {
    name: "core.add_layer_norm",
    shapes: "a, b [..., d], weight, bias [d] -> sum, out [..., d], mean, rstd [..., 1]",
    formula: "sum = a + b; out, mean and rstd are those of core.layer_norm(sum, weight, bias)",
    ports: &["sum", "out", "mean", "rstd"],
    parameters: 2,
    flops: 9,
    norm: &LayerNorm,
};

impl Operator for AddNorm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: self.shapes,
            formula: self.formula,
            source: "a residual connection with the normalisation behind it, in one pass over memory",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2 + self.parameters)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float)]
    }

    fn ports(&self) -> &'static [&'static str] {
        self.ports
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let (a, b) = (&call.inputs[0], &call.inputs[1]);
        if a != b {
            return Err(format!("the operands that are added, {a} and {b}, must have one type"));
        }
        let mut types = vec![a.clone()];
        types.extend(self.norm.infer(&Call {
            inputs: &call.inputs[1..],
            ..*call
        })?);
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let sum: Value = cx.graph.add(cx.inputs[0], cx.inputs[1]).into();
            let mut operands = vec![sum];
            operands.extend(&cx.inputs[2..]);
            let rows = cx.graph.call(OpRef::new(self.norm), cx.attrs.clone(), operands);
            let mut results = vec![sum];
            results.extend((0..self.ports.len() as u32 - 1).map(|port| cx.graph.port(rows, port)));
            Ok(results)
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: self.flops * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let varied = sizes.shape(3, 40);
        [vec![3], vec![1, 7], vec![4, 33], vec![2, 3, 768], vec![40, 5], varied]
            .iter()
            .map(|s| {
                let row = &s[s.len() - 1..];
                let mut inputs = vec![SampleInput::f32(s); 2];
                inputs.extend(vec![SampleInput::f32(row); self.parameters]);
                Sample::new(format!("{s:?}"), inputs, Attrs::new().with("eps", sample_eps(row[0])))
            })
            .collect()
    }
}
