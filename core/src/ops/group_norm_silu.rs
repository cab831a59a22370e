//! Group normalisation followed by SiLU, for inference: a common block of diffusion networks.

use super::group_norm::GroupNorm;
use super::sample::{Sample, Sizes};
use super::{Arity, AttrDecls, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::shape::TensorType;

pub(super) struct GroupNormSilu;

impl Operator for GroupNormSilu {
    fn name(&self) -> &'static str {
        "core.group_norm_silu"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, c, ...], weight, bias [c]; groups divide c -> as x",
            formula: "silu(core.group_norm(x, weight, bias)); without the statistics, which only a derivative needs",
            source: "Ho, Jain and Abbeel, 2020 (the residual block)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        GroupNorm.attributes()
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let mut types = GroupNorm.infer(call)?;
        types.truncate(1);
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let rows = cx
                .graph
                .call(OpRef::new(&GroupNorm), cx.attrs.clone(), cx.inputs.to_vec());
            Ok(vec![cx.graph.silu(rows).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 21 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        GroupNorm.samples(sizes)
    }
}
