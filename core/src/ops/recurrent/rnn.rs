//! Plain recurrent layers (Elman networks), and their derivative.

use super::{
    Dims, cases, choose, cost_of, expect_operand, going, label, lengths_input, lengths_of, or_zero, stack,
    states_before, step_of, tanh_slope, weight_gradient, weight_input, with_lengths, without_lengths,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::ops::sample::{Sample, SampleInput, Sizes};
use crate::ops::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Expansion, GradCx, Gradient, Gradients, OpRef, Operator, Semantics,
};
use crate::shape::{Shape, TensorType};

pub(in crate::ops) struct Rnn;
pub(in crate::ops) struct RnnGrad;

/// Number of operations per step and element of the state, without the matmul.
const ELEMENT_FLOPS: u64 = 10;

fn attributes() -> AttrDecls {
    vec![("relu", AttrKind::Bool), ("reverse", AttrKind::Bool)]
}

fn attrs(relu: bool, reverse: bool) -> Attrs {
    Attrs::new().with("relu", relu).with("reverse", reverse)
}

/// Returns the attributes `relu` and `reverse`.
fn flags(attrs: &Attrs) -> Result<[bool; 2], String> {
    Ok([attrs.bool("relu")?, attrs.bool("reverse")?])
}

impl Operator for Rnn {
    fn name(&self) -> &'static str {
        "core.rnn"
    }

    fn signature(&self) -> String {
        "g.rnn(gates, weight, hidden, lengths, relu, reverse)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "gates [steps, batch, hidden], weight [hidden, hidden], h [batch, hidden], and lengths u32 or i32 [batch] or nothing -> hidden [steps, batch, hidden]",
            formula: "for each step t, from the last to the first if reverse: h = f(gates[t] + h weight^T), which is hidden[t], with f = max(0, x) if relu, else f = tanh(x). From its length on a sequence keeps h",
            source: "Elman, 1990; as PyTorch `RNN`, with gates = x weight_ih^T + bias_ih + bias_hh",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(3, 4)
    }

    fn attributes(&self) -> AttrDecls {
        attributes()
    }

    fn ports(&self) -> &'static [&'static str] {
        &["hidden"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        flags(call.attrs)?;
        let dims = Dims::of(call, [0, 1], "gates", 1, 1)?;
        expect_operand(call, 1, "recurrent weight", &[dims.hidden, dims.hidden])?;
        expect_operand(call, 2, "initial hidden state", &dims.state())?;
        if without_lengths(call, &dims)? != 3 {
            return Err(format!("the lengths must be u32 or i32, not {}", call.inputs[3]));
        }
        Ok(vec![call.inputs[0].clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(gradients)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(forward)
    }

    fn cost(&self, call: &Call) -> Cost {
        cost_of(call, Dims::of(call, [0, 1], "gates", 1, 1), 1, ELEMENT_FLOPS)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let sample = |(n, case): (usize, (Dims, bool, Option<_>))| {
            let (dims, reverse, lengths) = case;
            let mut inputs = vec![
                SampleInput::f32(&dims.sequence(1)),
                weight_input(1, dims.hidden),
                SampleInput::range(&dims.state(), -1.0, 1.0),
            ];
            inputs.extend(lengths.map(|dtype| lengths_input(&dims, dtype)));
            let relu = n % 4 < 2;
            Sample::new(with_activation(&case, relu), inputs, attrs(relu, reverse))
        };
        cases(sizes).into_iter().enumerate().map(sample).collect()
    }
}

fn with_activation(case: &(Dims, bool, Option<crate::DType>), relu: bool) -> String {
    format!("{}, {}", label(case), if relu { "ReLU" } else { "tanh" })
}

fn forward(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = cx.with_call(|call| Dims::of(call, [0, 1], "gates", 1, 1))?;
    dims.expect_short("core.rnn")?;
    let [relu, reverse] = flags(cx.attrs)?;
    let &[gates, weight, mut h, ..] = cx.inputs else {
        return Err("takes three operands or four".into());
    };
    let g = &mut *cx.graph;
    let lengths = lengths_of(g, cx.inputs);
    let mut hs = vec![None; dims.steps];
    for t in dims.order(reverse) {
        let going = going(g, lengths, &dims, t);
        let own = step_of(g, gates, t);
        let from_state = g.matmul_bt(h, weight);
        let sum = g.add(own, from_state);
        let hidden = if relu { g.relu(sum) } else { g.tanh(sum) };
        h = choose(g, going, hidden.into(), h);
        hs[t] = Some(h);
    }
    Ok(vec![stack(g, &hs)?])
}

fn gradients(cx: &mut GradCx) -> Gradients {
    let [relu, reverse] = flags(cx.attrs())?;
    let [weight, h] = [1, 2].map(|i| cx.operand(i));
    let lengths = (cx.arity() > 3).then(|| cx.operand(3));
    let (hidden, dhidden) = (cx.result(0), cx.grad(0));
    let operands = with_lengths(vec![weight, hidden, dhidden], lengths);
    let call = cx.call(OpRef::new(&RnnGrad), attrs(relu, reverse), operands);
    let [dgates, dh] = [0, 1].map(|port| cx.port(call, port));
    let dweight = cx.needs(1).then(|| {
        let before = states_before(cx, hidden, h, reverse);
        weight_gradient(cx, dgates, before)
    });
    let mut all = vec![Some(dgates), dweight, Some(dh)];
    all.extend(lengths.map(|_| None));
    Ok(all)
}

impl Operator for RnnGrad {
    fn name(&self) -> &'static str {
        "core.rnn_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "weight and lengths or nothing as for core.rnn, hidden its result, dhidden as hidden -> dgates [steps, batch, hidden], dh [batch, hidden]",
            formula: "for each step t, from the last to be computed to the first: with dh += dhidden[t], dgates[t] = dh (1 if hidden[t] > 0 else 0) if relu, else dgates[t] = dh (1 - hidden[t]^2); then dh = dgates[t] weight. From its length on a sequence's dgates are 0",
            source: "derivative of core.rnn",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(3, 4)
    }

    fn attributes(&self) -> AttrDecls {
        attributes()
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dgates", "dh"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        flags(call.attrs)?;
        let dims = Dims::of(call, [1, 0], "hidden states", 1, 1)?;
        expect_operand(call, 1, "hidden state after each step", &dims.sequence(1))?;
        expect_operand(call, 2, "gradient of the hidden states", &dims.sequence(1))?;
        if without_lengths(call, &dims)? != 3 {
            return Err(format!("the lengths must be u32 or i32, not {}", call.inputs[3]));
        }
        let state = TensorType::new(call.inputs[0].dtype, Shape::new(&dims.state())?);
        Ok(vec![call.inputs[1].clone(), state])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(backward)
    }

    fn cost(&self, call: &Call) -> Cost {
        cost_of(call, Dims::of(call, [1, 0], "hidden states", 1, 1), 0, ELEMENT_FLOPS)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let sample = |(n, case): (usize, (Dims, bool, Option<_>))| {
            let (dims, reverse, lengths) = case;
            let relu = n % 4 < 2;
            // Results of ReLU away from its kink, or results of tanh.
            let lowest = if relu { 0.05 } else { -0.95 };
            let mut inputs = vec![
                weight_input(1, dims.hidden),
                SampleInput::range(&dims.sequence(1), lowest, 0.95),
                SampleInput::f32(&dims.sequence(1)),
            ];
            inputs.extend(lengths.map(|dtype| lengths_input(&dims, dtype)));
            Sample::new(with_activation(&case, relu), inputs, attrs(relu, reverse))
        };
        cases(sizes).into_iter().enumerate().map(sample).collect()
    }
}

fn backward(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = cx.with_call(|call| Dims::of(call, [1, 0], "hidden states", 1, 1))?;
    dims.expect_short("core.rnn_grad")?;
    let [relu, reverse] = flags(cx.attrs)?;
    let &[weight, hidden, dhidden, ..] = cx.inputs else {
        return Err("takes three operands or four".into());
    };
    let g = &mut *cx.graph;
    let lengths = lengths_of(g, cx.inputs);
    let zero = g.scalar_of(cx.outputs[0].dtype, 0.0);
    let mut dh: Value = g.full(cx.outputs[0].dtype, 0.0, &dims.state()).into();
    let mut all = vec![None; dims.steps];
    for t in dims.order(!reverse) {
        let going = going(g, lengths, &dims, t);
        let [own, y] = [dhidden, hidden].map(|v| step_of(g, v, t));
        let total = g.add(dh, own).into();
        let gates = if relu {
            let above = g.greater_than(y, zero);
            g.select(above, total, zero).into()
        } else {
            let slope = tanh_slope(g, y);
            g.mul(total, slope).into()
        };
        let gates = or_zero(g, going, gates);
        all[t] = Some(gates);
        let from_gates = g.matmul(gates, weight).into();
        dh = choose(g, going, from_gates, total);
    }
    Ok(vec![stack(g, &all)?, dh])
}

impl Graph {
    /// Computes a plain recurrent layer over `[steps, batch, hidden]`, the contribution of the
    /// inputs (`x weight_ih^T` and all biases), with the recurrent weight `[hidden, hidden]` and
    /// the initial state `[batch, hidden]`: the state after each step, `[steps, batch, hidden]`,
    /// through ReLU if `relu`, else through tanh. `reverse` and `lengths` are as in
    /// [`Graph::lstm`].
    #[track_caller]
    pub fn rnn(
        &mut self,
        gates: impl Into<Value>,
        weight: impl Into<Value>,
        hidden: impl Into<Value>,
        lengths: Option<Value>,
        relu: bool,
        reverse: bool,
    ) -> NodeId {
        let operands = vec![gates.into(), weight.into(), hidden.into()];
        self.call(OpRef::new(&Rnn), attrs(relu, reverse), with_lengths(operands, lengths))
    }
}
