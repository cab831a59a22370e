//! Operators on the training state of mixed precision: the loss scale, and corrections that depend
//! on the number of updates made.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Composite, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_same_dtype};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::loss_scaling::MAX_SCALE;
use crate::shape::TensorType;

pub(super) struct LossScale;

pub(super) static BIAS_CORRECTION: Composite = Composite::new(
    "optim.bias_correction",
    2,
    "1 - b^t, computed as -expm1(t ln b). Operands: t, ln b",
    |g, x, _| {
        let exponent = g.mul(x[0], x[1]);
        // 1 - b^t itself would lose four of seven digits for the first updates.
        let negative = g.expm1(exponent);
        Ok(vec![g.neg(negative).into()])
    },
)
.with_doc("t, ln b: [] -> []", "Kingma and Ba, 2015")
.with_signature("g.bias_correction(number, log_beta)")
.with_samples(|_| {
    let cases = [(1.0, 0.9f64), (1.0, 0.999), (200.0, 0.999), (3.0, 1e-30)];
    let sample = |(t, beta): (f64, f64)| {
        Sample::new(
            format!("t={t} b={beta}"),
            vec![number(t), number(beta.ln())],
            Attrs::new(),
        )
    };
    cases.map(sample).into()
});

impl Operator for LossScale {
    fn name(&self) -> &'static str {
        "optim.loss_scale"
    }

    fn signature(&self) -> String {
        "g.update_loss_scale([scale, inverse, good, skipped], found, interval)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "all: [] -> scale, inverse, good, skipped",
            formula: "found = 0: good' = good + 1, and where that is the interval, good' = 0, scale' = 2 scale and inverse' = inverse / 2. Else good' = 0, skipped' = skipped + 1, scale' = scale / 2 and inverse' = 2 inverse. With an interval of 0, scale and inverse stay. Both stay within 2^-24 and 2^24. Operands: scale, found, inverse, good, skipped, interval",
            source: "dynamic loss scaling (Micikevicius et al., 2018, section 3.2)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(6)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["scale", "inverse", "good", "skipped"]
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (2, 1), (3, 2), (4, 3)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        match call
            .inputs
            .iter()
            .find(|ty| ty.dtype != DType::F32 || !ty.shape.is_empty())
        {
            Some(ty) => Err(format!("{ty} is not f32 []")),
            None => Ok(vec![call.inputs[0].clone(); 4]),
        }
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::NotDifferentiable("an update step is not part of the loss")
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[scale, found, inverse, good, skipped, interval] = cx.inputs else {
                return Err("takes six operands".into());
            };
            let g = &mut *cx.graph;
            let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
            let fine = g.equal(found, zero);
            let fixed = g.equal(interval, zero);
            let more = g.add(good, one);
            let enough = g.greater_equal(more, interval);
            // Powers of two, so that products are exact and the two remain inverse to each other.
            let doubled = |g: &mut Graph, x: Value| {
                let two = g.scalar(2.0);
                let doubled = g.mul(x, two);
                let most = g.scalar(MAX_SCALE);
                g.minimum(doubled, most)
            };
            let (scale_up, inverse_up) = (doubled(g, scale), doubled(g, inverse));
            let halved = |g: &mut Graph, x: Value| {
                let half = g.scalar(0.5);
                let halved = g.mul(x, half);
                let least = g.scalar(1.0 / MAX_SCALE);
                g.maximum(halved, least)
            };
            let (scale_down, inverse_down) = (halved(g, scale), halved(g, inverse));
            let changed = |g: &mut Graph, now: Value, grown: NodeId, fallen: NodeId| -> Value {
                let after_good = g.select(enough, grown, now);
                let changed = g.select(fine, after_good, fallen);
                g.select(fixed, now, changed).into()
            };
            let new_scale = changed(g, scale, scale_up, scale_down);
            let new_inverse = changed(g, inverse, inverse_down, inverse_up);
            let counted = g.select(enough, zero, more);
            let good = g.select(fine, counted, zero);
            let left_out = g.add(skipped, one);
            let skipped = g.select(fine, skipped, left_out);
            Ok(vec![new_scale, new_inverse, good.into(), skipped.into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 16)
    }

    fn samples(&self, _: &mut Sizes) -> Vec<Sample> {
        let cases = [
            ("counts", 1024.0, 0.0, 3.0, 7.0),
            ("grows", 1024.0, 0.0, 6.0, 7.0),
            ("falls", 1024.0, 2.0, 3.0, 7.0),
            ("fixed", 1024.0, 0.0, 0.0, 0.0),
            ("fixed, found", 1024.0, 1.0, 0.0, 0.0),
            ("at the top", f64::from(MAX_SCALE), 0.0, 0.0, 1.0),
            ("at the bottom", f64::from(1.0 / MAX_SCALE), 5.0, 0.0, 1.0),
        ];
        let sample = |(label, scale, found, good, interval): (&str, f64, f64, f64, f64)| {
            let inputs = vec![
                number(scale).state(),
                number(found),
                number(1.0 / scale).state(),
                number(good).state(),
                number(11.0).state(),
                number(interval),
            ];
            Sample::new(label, inputs, Attrs::new())
        };
        cases.map(sample).into()
    }
}

/// Returns a sample operand `f32 []` with this value.
fn number(value: f64) -> SampleInput {
    SampleInput::filled(DType::F32, &[], Fill::Constant(f64::from(value as f32)))
}

impl Graph {
    /// Updates four states in place after an update with `found` non-finite gradient elements: the loss scale, its
    /// inverse, the number of consecutive successful updates, and the number of skipped updates.
    #[track_caller]
    pub fn update_loss_scale(
        &mut self,
        [scale, inverse, good, skipped]: [Value; 4],
        found: Value,
        interval: NodeId,
    ) -> NodeId {
        let inputs = vec![scale, found, inverse, good, skipped, interval.into()];
        self.call(OpRef::new(&LossScale), Attrs::new(), inputs)
    }

    /// Computes `1 - beta^t` from the number `t` of an update and the logarithm of the decay `beta`, both `f32 []`.
    #[track_caller]
    pub fn bias_correction(&mut self, number: NodeId, log_beta: NodeId) -> NodeId {
        let inputs = vec![number.into(), log_beta.into()];
        self.call(OpRef::new(&BIAS_CORRECTION), Attrs::new(), inputs)
    }
}
