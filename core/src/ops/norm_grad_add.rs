//! Derivatives of the normalisations of rows, plus a tensor. In one pass, they add the gradient of a residual stream
//! that flows through a normalisation and the gradient that bypasses it.

use super::norm_grad::{LayerNormGrad, RmsNormGrad, row_samples};
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::attrs::Attrs;
use crate::shape::TensorType;

/// An operator that computes a derivative and adds the last operand to its first result.
pub(super) struct NormGradAdd {
    name: &'static str,
    shapes: &'static str,
    formula: &'static str,
    ports: &'static [&'static str],
    /// Number of operands of the derivative.
    operands: usize,
    with_mean: bool,
    grad: &'static dyn Operator,
}

pub(super) static RMS_NORM_GRAD_ADD: NormGradAdd = NormGradAdd {
    name: "core.rms_norm_grad_add",
    shapes: "x [..., d], weight [d], rstd [..., 1], dy, r [..., d] -> dx [..., d], dweight [d]",
    formula: "dx = r plus the dx of core.rms_norm_grad(x, weight, rstd, dy), whose dweight is port 1",
    ports: &["dx", "dweight"],
    operands: 4,
    with_mean: false,
    grad: &RmsNormGrad,
};

pub(super) static LAYER_NORM_GRAD_ADD: NormGradAdd = NormGradAdd {
    name: "core.layer_norm_grad_add",
    shapes: "x [..., d], weight [d], mean, rstd [..., 1], dy, r [..., d] -> dx [..., d], dweight, dbias [d]",
    formula: "dx = r plus the dx of core.layer_norm_grad(x, weight, mean, rstd, dy), whose dweight and dbias are ports 1 and 2",
    ports: &["dx", "dweight", "dbias"],
    operands: 5,
    with_mean: true,
    grad: &LayerNormGrad,
};

impl Operator for NormGradAdd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: self.shapes,
            formula: self.formula,
            source: "backward pass of a residual connection around a normalisation, in one pass over memory",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(self.operands + 1)
    }

    fn ports(&self) -> &'static [&'static str] {
        self.ports
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let (x, r) = (&call.inputs[0], &call.inputs[self.operands]);
        if x != r {
            return Err(format!(
                "the addend {r} must have the type of the normalised tensor, {x}"
            ));
        }
        self.grad.infer(&Call {
            inputs: &call.inputs[..self.operands],
            ..*call
        })
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (operands, r) = (&cx.inputs[..self.operands], cx.inputs[self.operands]);
            let grads = cx.graph.call(OpRef::new(self.grad), Attrs::new(), operands.to_vec());
            let mut results = vec![cx.graph.add(grads, r).into()];
            results.extend((1..self.ports.len() as u32).map(|port| cx.graph.port(grads, port)));
            Ok(results)
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 13 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = row_samples(sizes, self.with_mean);
        for sample in &mut samples {
            let r = SampleInput::f32(&sample.inputs[0].shape);
            sample.inputs.push(r);
        }
        samples
    }
}
