//! Parameter updates as operators: composites that write their parameter and their moments in place.
//!
//! Hyper-parameters are scalar operands, so changing the learning rate does not change the plan.

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Accumulate;
pub(super) struct Sgd;
pub(super) struct Momentum;
pub(super) struct Adam;

/// Checks that the first `tensors` operands have one type and the rest are scalars.
fn check(call: &Call, tensors: usize) -> Result<(), String> {
    expect_same_dtype(call)?;
    expect_float(call, 0, "the operands")?;
    let parameter = &call.inputs[0];
    if let Some(other) = call.inputs[..tensors].iter().find(|t| *t != parameter) {
        return Err(format!("{other} does not belong to the parameter {parameter}"));
    }
    match call.inputs[tensors..].iter().find(|t| t.numel() != 1) {
        Some(ty) => Err(format!("the hyper-parameter {ty} is not a scalar")),
        None => Ok(()),
    }
}

impl Operator for Accumulate {
    fn name(&self) -> &'static str {
        "optim.accumulate"
    }

    fn signature(&self) -> String {
        "g.accumulate_gradient([sum, grad], [scale, keep])".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "sum, g: one shape; scalars [] -> sum",
            formula: "sum' = scale g where keep = 0, else sum + scale g. Operands: sum, g, scale, keep",
            source: "gradient accumulation",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(4)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        check(call, 2)?;
        Ok(vec![call.inputs[0].clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::NotDifferentiable("an update step is not part of the loss")
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[sum, grad, scale, keep] = cx.inputs else {
                return Err("takes four operands".into());
            };
            let g = &mut *cx.graph;
            let new = g.mul(grad, scale);
            let more = g.add(sum, new);
            let zero = g.scalar_of(cx.outputs[0].dtype, 0.0);
            // Select instead of multiplying: 0 times a NaN of the last average would be NaN.
            let first = g.equal(keep, zero);
            Ok(vec![g.select(first, new, more).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 2)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [(vec![5], 0.0), (vec![5], 1.0), (sizes.shape(2, 60), 1.0)]
            .into_iter()
            .map(|(s, keep)| {
                let mut inputs = vec![SampleInput::f32(&s).state(), SampleInput::f32(&s)];
                inputs.extend([0.25, keep].map(scalar));
                Sample::new(format!("{s:?} keep={keep}"), inputs, Attrs::new())
            })
            .collect()
    }
}

impl Operator for Sgd {
    fn name(&self) -> &'static str {
        "optim.sgd"
    }

    fn signature(&self) -> String {
        "g.sgd_update([p, grad], [lr, weight_decay])".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "p, g: one shape; scalars [] -> p",
            formula: "p' = p - lr (g + weight_decay p). Operands: p, g, lr, weight_decay",
            source: "stochastic gradient descent (Robbins and Monro, 1951)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(4)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["parameter"]
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        check(call, 2)?;
        Ok(vec![call.inputs[0].clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::NotDifferentiable("an update step is not part of the loss")
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[p, grad, lr, decay] = cx.inputs else {
                return Err("takes four operands".into());
            };
            let g = &mut *cx.graph;
            let decayed = g.mul(p, decay);
            let direction = g.add(grad, decayed);
            let step = g.mul(direction, lr);
            Ok(vec![g.sub(p, step).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 4)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [vec![5], sizes.shape(2, 60)]
            .into_iter()
            .map(|s| {
                let mut inputs = vec![SampleInput::f32(&s).state(), SampleInput::f32(&s)];
                inputs.extend([0.1, 0.01].map(scalar));
                Sample::new(format!("{s:?}"), inputs, Attrs::new())
            })
            .collect()
    }
}

impl Operator for Momentum {
    fn name(&self) -> &'static str {
        "optim.momentum"
    }

    fn signature(&self) -> String {
        "g.momentum_update([p, grad, v], [lr, weight_decay, momentum], nesterov)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "p, g, v: one shape; scalars [] -> p, v",
            formula: "g' = g + weight_decay p; v' = momentum v + g'; p' = p - lr v', with Nesterov's momentum p - lr (g' + momentum v'). Operands: p, g, v, lr, weight_decay, momentum",
            source: "SGD with momentum (Sutskever et al., 2013), in PyTorch's form",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(6)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("nesterov", AttrKind::Bool)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["parameter", "velocity"]
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (2, 1)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        call.attrs.bool("nesterov")?;
        check(call, 3)?;
        Ok(vec![call.inputs[0].clone(); 2])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::NotDifferentiable("an update step is not part of the loss")
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let nesterov = cx.attrs.bool("nesterov")?;
            let &[p, grad, v, lr, decay, momentum] = cx.inputs else {
                return Err("takes six operands".into());
            };
            let g = &mut *cx.graph;
            let decayed = g.mul(p, decay);
            let grad = g.add(grad, decayed);
            let kept = g.mul(v, momentum);
            let velocity = g.add(kept, grad);
            let direction = if nesterov {
                let ahead = g.mul(velocity, momentum);
                g.add(grad, ahead)
            } else {
                velocity
            };
            let step = g.mul(direction, lr);
            let parameter = g.sub(p, step);
            Ok(vec![parameter.into(), velocity.into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 3)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(2, 60);
        [(vec![5], false), (s.clone(), false), (s, true)]
            .into_iter()
            .map(|(s, nesterov)| {
                let mut inputs = vec![
                    SampleInput::f32(&s).state(),
                    SampleInput::f32(&s),
                    SampleInput::f32(&s).state(),
                ];
                inputs.extend([0.1, 0.01, 0.9].map(scalar));
                let label = format!("{s:?} nesterov={nesterov}");
                Sample::new(label, inputs, Attrs::new().with("nesterov", nesterov))
            })
            .collect()
    }
}

fn scalar(value: f64) -> SampleInput {
    let fill = super::sample::Fill::Constant(f64::from(value as f32));
    SampleInput::filled(crate::DType::F32, &[], fill)
}

impl Operator for Adam {
    fn name(&self) -> &'static str {
        "optim.adam"
    }

    fn signature(&self) -> String {
        "g.adam_update([p, grad, m, v], s, decoupled)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "p, g, m, v: one shape; scalars [] -> p, m, v",
            formula: "g' = g + weight_decay p unless decoupled; m' = b1 m + (1 - b1) g'; v' = b2 v + (1 - b2) g'^2; p' = p - lr (m' / c1) / (sqrt(v' / c2) + eps), minus lr weight_decay p if decoupled, with c1 = 1 - b1^t and c2 = 1 - b2^t. Operands: p, g, m, v, lr, b1, b2, eps, weight_decay, c1, c2",
            source: "Kingma and Ba, 2015; decoupled: Loshchilov and Hutter, 2019 (AdamW)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(11)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("decoupled", AttrKind::Bool)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["parameter", "m", "v"]
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (2, 1), (3, 2)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        call.attrs.bool("decoupled")?;
        check(call, 4)?;
        Ok(vec![call.inputs[0].clone(); 3])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::NotDifferentiable("an update step is not part of the loss")
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let decoupled = cx.attrs.bool("decoupled")?;
            let &[p, grad, m, v, lr, b1, b2, eps, decay, c1, c2] = cx.inputs else {
                return Err("takes eleven operands".into());
            };
            let g = &mut *cx.graph;
            let decayed = g.mul(p, decay);
            let grad: Value = if decoupled { grad } else { g.add(grad, decayed).into() };
            let one = g.scalar_of(cx.outputs[0].dtype, 1.0);
            let blend = |g: &mut Graph, old: Value, new: Value, beta: Value| {
                let kept = g.mul(old, beta);
                let rest = g.sub(one, beta);
                let taken = g.mul(new, rest);
                g.add(kept, taken)
            };
            let m = blend(g, m, grad, b1);
            let square = g.square(grad);
            let v = blend(g, v, square.into(), b2);
            let m_hat = g.div(m, c1);
            let v_hat = g.div(v, c2);
            let root = g.sqrt(v_hat);
            let denominator = g.add(root, eps);
            let mut direction = g.div(m_hat, denominator);
            if decoupled {
                direction = g.add(direction, decayed);
            }
            let step = g.mul(direction, lr);
            let parameter = g.sub(p, step);
            Ok(vec![parameter.into(), m.into(), v.into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 6)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(2, 60);
        [(vec![5], false), (s.clone(), false), (s, true)]
            .into_iter()
            .map(|(s, decoupled)| {
                let mut inputs = vec![
                    SampleInput::f32(&s).state(),
                    SampleInput::f32(&s),
                    SampleInput::f32(&s).state(),
                    SampleInput::range(&s, 0.1, 2.0).state(),
                ];
                inputs.extend([0.01, 0.9, 0.999, 1e-8, 0.01, 0.271, 0.003].map(scalar));
                let label = format!("{s:?} decoupled={decoupled}");
                Sample::new(label, inputs, Attrs::new().with("decoupled", decoupled))
            })
            .collect()
    }
}

/// Scalar operands of an Adam update.
#[derive(Clone, Copy, Debug)]
pub struct AdamScalars {
    /// Learning rate.
    pub lr: NodeId,
    /// Decay of the first moment.
    pub beta1: NodeId,
    /// Decay of the second moment.
    pub beta2: NodeId,
    /// Number added to the denominator.
    pub eps: NodeId,
    /// Weight decay.
    pub weight_decay: NodeId,
    /// `1 - beta1^t`.
    pub correction1: NodeId,
    /// `1 - beta2^t`.
    pub correction2: NodeId,
}

impl Graph {
    /// Adds `scale * grad` to `sum` in place; if `keep` is 0, it replaces `sum` by `scale * grad`.
    #[track_caller]
    pub fn accumulate_gradient(&mut self, [sum, grad]: [Value; 2], [scale, keep]: [NodeId; 2]) -> NodeId {
        let inputs = vec![sum, grad, scale.into(), keep.into()];
        self.call(OpRef::new(&Accumulate), Attrs::new(), inputs)
    }

    /// Updates a parameter by plain SGD: writes `p` in place.
    #[track_caller]
    pub fn sgd_update(&mut self, [p, grad]: [Value; 2], [lr, weight_decay]: [NodeId; 2]) -> NodeId {
        let inputs = vec![p, grad, lr.into(), weight_decay.into()];
        self.call(OpRef::new(&Sgd), Attrs::new(), inputs)
    }

    /// Updates a parameter by SGD with momentum: writes `p` and `v` in place.
    #[track_caller]
    pub fn momentum_update(
        &mut self,
        [p, grad, v]: [Value; 3],
        [lr, weight_decay, momentum]: [NodeId; 3],
        nesterov: bool,
    ) -> NodeId {
        let inputs = vec![p, grad, v, lr.into(), weight_decay.into(), momentum.into()];
        self.call(OpRef::new(&Momentum), Attrs::new().with("nesterov", nesterov), inputs)
    }

    /// Updates a parameter by Adam (or AdamW if `decoupled`): writes `p`, `m` and `v` in place.
    #[track_caller]
    pub fn adam_update(&mut self, [p, grad, m, v]: [Value; 4], s: AdamScalars, decoupled: bool) -> NodeId {
        let mut inputs = vec![p, grad, m, v];
        let scalars = [
            s.lr,
            s.beta1,
            s.beta2,
            s.eps,
            s.weight_decay,
            s.correction1,
            s.correction2,
        ];
        inputs.extend(scalars.map(Value::from));
        self.call(OpRef::new(&Adam), Attrs::new().with("decoupled", decoupled), inputs)
    }
}
