//! Dropout.

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, ChannelsLast, Cost, Doc, FusionRole, Gradient, InferenceForm, OpRef, Operator,
    Semantics, expect_float,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Dropout;

/// Returns the threshold `p` in 32-bit fixed point: elements whose random word is below it are dropped.
pub fn drop_threshold(p: f64) -> u32 {
    (p * 4_294_967_296.0) as u32
}

impl Operator for Dropout {
    fn name(&self) -> &'static str {
        "core.dropout"
    }

    fn signature(&self) -> String {
        "g.dropout(x, p)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape; seed, step: [] -> x",
            formula: "0 with probability p, else x / (1 - p); the choice depends on (seed, uid, step, element)",
            source: "Srivastava et al., 2014, in its inverted form",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("p", AttrKind::Float), ("uid", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        let p = call.attrs.float("p")?;
        if !(0.0..1.0).contains(&p) {
            return Err(format!("the probability {p} is not in [0, 1)"));
        }
        call.attrs.size("uid")?;
        for (what, ty) in ["seed", "step"].iter().zip(&call.inputs[1..]) {
            if ty.dtype != DType::U32 || ty.numel() != 1 {
                return Err(format!("the {what} must be one u32, not {ty}"));
            }
        }
        let x = &call.inputs[0];
        if u32::try_from(x.numel()).is_err() {
            return Err(format!("{x} has more elements than a u32 counter can number"));
        }
        Ok(vec![x.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        // Dropout is linear in x, and the same counter gives the same mask.
        Gradient::rule(|cx| {
            let dy = cx.grad(0);
            let attrs = cx.attrs().clone();
            let inputs = vec![dy, cx.operand(1), cx.operand(2)];
            Ok(vec![
                Some(cx.call(OpRef::new(&Dropout), attrs, inputs).into()),
                None,
                None,
            ])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (p, uid) = (cx.attrs.float("p")?, cx.attrs.size("uid")? as u32);
            let dtype = cx.outputs[0].dtype;
            let (g, x) = (&mut *cx.graph, cx.inputs[0]);
            let shape = g.shape(x).to_vec();
            let bits = g.random_bits_of(cx.inputs[1], cx.inputs[2], uid, &shape);
            let threshold = g.scalar_of(DType::U32, drop_threshold(p).into());
            let dropped = g.less_than(bits, threshold);
            let scale = g.scalar_of(dtype, 1.0 / (1.0 - p));
            let scaled = g.mul(x, scale);
            let zero = g.scalar_of(dtype, 0.0);
            Ok(vec![g.select(dropped, zero, scaled).into()])
        })
    }

    fn inference(&self) -> InferenceForm<'_> {
        InferenceForm::Rewrite(Box::new(|cx| Ok(vec![cx.inputs[0]])))
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        // The mask depends on the indices of elements.
        ChannelsLast::No
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 22)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(2, 60);
        [(vec![100], 0.5), (vec![7], 0.0), (s, 0.1)]
            .into_iter()
            .map(|(s, p)| {
                let inputs = vec![
                    SampleInput::f32(&s),
                    SampleInput::below(&[], 1 << 30),
                    SampleInput::below(&[], 100),
                ];
                let attrs = Attrs::new().with("p", p).with("uid", 3i64);
                Sample::new(format!("{s:?} p={p}"), inputs, attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Zeroes each element with probability `p` (in `[0, 1)`) in training, and scales the remaining ones by
    /// `1 / (1 - p)`. Each step draws new random numbers. In inference sessions, it is the identity.
    #[track_caller]
    pub fn dropout(&mut self, x: impl Into<Value>, p: f32) -> NodeId {
        let [seed, step] = self.random_scalars();
        let uid = self.fresh_uid();
        let attrs = Attrs::new().with("p", p).with("uid", uid);
        self.call(OpRef::new(&Dropout), attrs, vec![x.into(), seed, step])
    }
}
