//! Gated recurrent units, and their derivative.

use super::{
    Dims, blocks, cases, choose, cost_of, expect_operand, going, label, lengths_input, lengths_of, or_zero,
    sigmoid_slope, stack, states_before, step_of, tanh_slope, weight_gradient, weight_input, with_lengths,
    without_lengths,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::ops::sample::{Sample, SampleInput, Sizes};
use crate::ops::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Expansion, GradCx, Gradient, Gradients, OpRef, Operator, Semantics,
};
use crate::shape::{Shape, TensorType};

pub(in crate::ops) struct Gru;
pub(in crate::ops) struct GruGrad;

/// Number of operations per step and element of the state, without the matmul.
const ELEMENT_FLOPS: u64 = 32;

fn attributes() -> AttrDecls {
    vec![("linear_before_reset", AttrKind::Bool), ("reverse", AttrKind::Bool)]
}

fn attrs(linear_before_reset: bool, reverse: bool) -> Attrs {
    Attrs::new()
        .with("linear_before_reset", linear_before_reset)
        .with("reverse", reverse)
}

/// Returns the attributes `linear_before_reset` and `reverse`.
fn flags(attrs: &Attrs) -> Result<[bool; 2], String> {
    Ok([attrs.bool("linear_before_reset")?, attrs.bool("reverse")?])
}

impl Operator for Gru {
    fn name(&self) -> &'static str {
        "core.gru"
    }

    fn signature(&self) -> String {
        "g.gru(gates, weight, bias, hidden, lengths, linear_before_reset, reverse)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "gates [steps, batch, 3 hidden], weight [3 hidden, hidden], bias [hidden], h [batch, hidden], and lengths u32 or i32 [batch] or nothing -> hidden [steps, batch, hidden], activations [steps, batch, 4 hidden]",
            formula: "for each step t, from the last to the first if reverse: with blocks r, z, n of gates[t] and of weight, r = sigmoid(r + h weight_r^T) and z = sigmoid(z + h weight_z^T); if linear_before_reset q = h weight_n^T + bias and n = tanh(n + r q), else q = r h and n = tanh(n + q weight_n^T + bias); h = n + z (h - n), which is hidden[t]; activations are r, z, n, q. From its length on a sequence keeps h, and its activations are 0",
            source: "Cho et al., 2014; gates in the order of PyTorch `GRU`, which is linear_before_reset, with gates = x weight_ih^T + bias_ih and the part of bias_hh for r and z",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(4, 5)
    }

    fn attributes(&self) -> AttrDecls {
        attributes()
    }

    fn ports(&self) -> &'static [&'static str] {
        &["hidden", "activations"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        flags(call.attrs)?;
        let dims = Dims::of(call, [0, 1], "gates", 3, 3)?;
        expect_operand(call, 1, "recurrent weight", &[3 * dims.hidden, dims.hidden])?;
        expect_operand(call, 2, "bias of the candidate", &[dims.hidden])?;
        expect_operand(call, 3, "initial hidden state", &dims.state())?;
        if without_lengths(call, &dims)? != 4 {
            return Err(format!("the lengths must be u32 or i32, not {}", call.inputs[4]));
        }
        let dtype = call.inputs[0].dtype;
        let of = |blocks| Shape::new(&dims.sequence(blocks)).map(|shape| TensorType::new(dtype, shape));
        Ok(vec![of(1)?, of(4)?])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(gradients)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(forward)
    }

    fn cost(&self, call: &Call) -> Cost {
        cost_of(call, Dims::of(call, [0, 1], "gates", 3, 3), 1, ELEMENT_FLOPS)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let sample = |(n, case): (usize, (Dims, bool, Option<_>))| {
            let (dims, reverse, lengths) = case;
            let mut inputs = vec![
                SampleInput::f32(&dims.sequence(3)),
                weight_input(3, dims.hidden),
                SampleInput::f32(&[dims.hidden]),
                SampleInput::range(&dims.state(), -1.0, 1.0),
            ];
            inputs.extend(lengths.map(|dtype| lengths_input(&dims, dtype)));
            let linear = n % 4 < 2;
            let label = format!("{}, linear before reset {linear}", label(&case));
            Sample::new(label, inputs, attrs(linear, reverse))
        };
        cases(sizes).into_iter().enumerate().map(sample).collect()
    }
}

/// Splits the weight into its rows for the gates r and z and its rows for the candidate n.
fn rows_of(g: &mut Graph, weight: Value, hidden: usize) -> [Value; 2] {
    let gates = g.slice_axis(weight, 0, 0, 2 * hidden);
    let candidate = g.slice_axis(weight, 0, 2 * hidden, 3 * hidden);
    [gates.into(), candidate.into()]
}

fn forward(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = cx.with_call(|call| Dims::of(call, [0, 1], "gates", 3, 3))?;
    dims.expect_short("core.gru")?;
    let [linear, reverse] = flags(cx.attrs)?;
    let &[gates, weight, bias, mut h, ..] = cx.inputs else {
        return Err("takes four operands or five".into());
    };
    let g = &mut *cx.graph;
    let lengths = lengths_of(g, cx.inputs);
    let [of_gates, of_candidate] = rows_of(g, weight, dims.hidden);
    let (mut hs, mut all) = (vec![None; dims.steps], vec![None; dims.steps]);
    for t in dims.order(reverse) {
        let going = going(g, lengths, &dims, t);
        let own = step_of(g, gates, t);
        let [r, z, n] = blocks(g, own);
        let from_state = g.matmul_bt(h, of_gates).into();
        let [from_r, from_z] = blocks(g, from_state);
        let [r, z] = [(r, from_r), (z, from_z)].map(|(own, from_state)| {
            let sum = g.add(own, from_state);
            Value::from(g.sigmoid(sum))
        });
        let (q, added): (Value, Value) = if linear {
            let product = g.matmul_bt(h, of_candidate);
            let q = g.add(product, bias);
            (q.into(), g.mul(r, q).into())
        } else {
            let q = g.mul(r, h);
            let product = g.matmul_bt(q, of_candidate);
            (q.into(), g.add(product, bias).into())
        };
        let sum = g.add(n, added);
        let n = g.tanh(sum).into();
        let activations = g.concat(&[r, z, n, q], 1).into();
        all[t] = Some(or_zero(g, going, activations));
        let difference = g.sub(h, n);
        let part = g.mul(z, difference);
        let hidden = g.add(n, part).into();
        h = choose(g, going, hidden, h);
        hs[t] = Some(h);
    }
    Ok(vec![stack(g, &hs)?, stack(g, &all)?])
}

fn gradients(cx: &mut GradCx) -> Gradients {
    let [linear, reverse] = flags(cx.attrs())?;
    let (weight, bias, h) = (cx.operand(1), cx.operand(2), cx.operand(3));
    let lengths = (cx.arity() > 4).then(|| cx.operand(4));
    let (hidden, activations) = (cx.result(0), cx.result(1));
    let dhidden = cx.grad(0);
    let dactivations = cx.try_grad(1);
    let mut operands = vec![weight, activations, hidden, h, dhidden];
    operands.extend(dactivations);
    let operands = with_lengths(operands, lengths);
    let call = cx.call(OpRef::new(&GruGrad), attrs(linear, reverse), operands);
    let [dgates, dh] = [0, 1].map(|port| cx.port(call, port));
    let g: &mut Graph = cx;
    let [r, _, _, q] = blocks(g, activations);
    let [dr, dz, dn] = blocks(g, dgates);
    let before = states_before(g, hidden, h, reverse);
    let (dweight, dbias) = if linear {
        // The path through q = h weight_n^T + bias, which r multiplies and which is also a result.
        let mut dq: Value = g.mul(dn, r).into();
        if let Some(dactivations) = dactivations {
            let [_, _, _, own] = blocks(g, dactivations);
            let own = masked(g, own, lengths);
            dq = g.add(dq, own).into();
        }
        let products = g.concat(&[dr, dz, dq], 2).into();
        (weight_gradient(g, products, before), g.unbroadcast(dq, bias))
    } else {
        let of_gates = g.concat(&[dr, dz], 2).into();
        let parts = [weight_gradient(g, of_gates, before), weight_gradient(g, dn, q)];
        (g.concat(&parts, 0).into(), g.unbroadcast(dn, bias))
    };
    let mut all = vec![Some(dgates), Some(dweight), Some(dbias), Some(dh)];
    all.extend(lengths.map(|_| None));
    Ok(all)
}

/// Sets the steps after the end of each sequence to zero.
fn masked(g: &mut Graph, x: Value, lengths: Option<Value>) -> Value {
    let Some(lengths) = lengths else { return x };
    let steps = g.shape(x).first().copied().unwrap_or(0);
    let there = g.sequence_mask(lengths, steps).into();
    or_zero(g, Some(there), x)
}

impl Operator for GruGrad {
    fn name(&self) -> &'static str {
        "core.gru_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "weight, activations, hidden, h as for core.gru and of its results, dhidden as hidden, dactivations as activations or nothing, lengths as there or nothing -> dgates [steps, batch, 3 hidden], dh [batch, hidden]",
            formula: "for each step t, from the last to be computed to the first, with p the hidden state before: d = dh + dhidden[t], dn = d (1 - z), dz = d (p - n), each plus its block of dactivations; dn = dn (1 - n^2), dz = dz z (1 - z); if linear_before_reset dq = dn r, dr = dn q, else dq = dn weight_n, dr = dq p, where blocks of dactivations are added to dq and dr; dr = dr r (1 - r); dgates[t] = dr, dz, dn; dh = d z + dr weight_r + dz weight_z + (dq weight_n if linear_before_reset, else dq r). From its length on a sequence's dgates are 0",
            source: "derivative of core.gru",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(5, 7)
    }

    fn attributes(&self) -> AttrDecls {
        attributes()
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dgates", "dh"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        flags(call.attrs)?;
        let dims = Dims::of(call, [1, 0], "activations", 4, 3)?;
        expect_operand(call, 1, "activations", &dims.sequence(4))?;
        expect_operand(call, 2, "hidden state after each step", &dims.sequence(1))?;
        expect_operand(call, 3, "initial hidden state", &dims.state())?;
        expect_operand(call, 4, "gradient of the hidden states", &dims.sequence(1))?;
        match without_lengths(call, &dims)? {
            5 => {}
            6 => expect_operand(call, 5, "gradient of the activations", &dims.sequence(4))?,
            _ => return Err(format!("the lengths must be u32 or i32, not {}", call.inputs[6])),
        }
        let dtype = call.inputs[0].dtype;
        let dgates = TensorType::new(dtype, Shape::new(&dims.sequence(3))?);
        Ok(vec![dgates, TensorType::new(dtype, Shape::new(&dims.state())?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(backward)
    }

    fn cost(&self, call: &Call) -> Cost {
        cost_of(call, Dims::of(call, [1, 0], "activations", 4, 3), 0, ELEMENT_FLOPS)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let sample = |(n, case): (usize, (Dims, bool, Option<_>))| {
            let (dims, reverse, lengths) = case;
            let mut inputs = vec![
                weight_input(3, dims.hidden),
                SampleInput::range(&dims.sequence(4), 0.05, 0.95),
                SampleInput::range(&dims.sequence(1), -1.0, 1.0),
                SampleInput::range(&dims.state(), -1.0, 1.0),
                SampleInput::f32(&dims.sequence(1)),
            ];
            let more = n % 2 == 1;
            inputs.extend(more.then(|| SampleInput::f32(&dims.sequence(4))));
            inputs.extend(lengths.map(|dtype| lengths_input(&dims, dtype)));
            let linear = n % 4 < 2;
            let more = if more { ", activations with a gradient" } else { "" };
            let label = format!("{}, linear before reset {linear}{more}", label(&case));
            Sample::new(label, inputs, attrs(linear, reverse))
        };
        cases(sizes).into_iter().enumerate().map(sample).collect()
    }
}

fn backward(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = cx.with_call(|call| Dims::of(call, [1, 0], "activations", 4, 3))?;
    dims.expect_short("core.gru_grad")?;
    let [linear, reverse] = flags(cx.attrs)?;
    let &[weight, activations, hidden, h, dhidden, ref more @ ..] = cx.inputs else {
        return Err("takes five to seven operands".into());
    };
    let g = &mut *cx.graph;
    let lengths = lengths_of(g, cx.inputs);
    let dactivations = more.first().copied().filter(|&v| Some(v) != lengths);
    let [of_gates, of_candidate] = rows_of(g, weight, dims.hidden);
    let before = states_before(g, hidden, h, reverse);
    let dtype = cx.outputs[0].dtype;
    let mut dh: Value = g.full(dtype, 0.0, &dims.state()).into();
    let one = g.scalar_of(dtype, 1.0);
    let mut all = vec![None; dims.steps];
    for t in dims.order(!reverse) {
        let going = going(g, lengths, &dims, t);
        let [own, before, saved] = [dhidden, before, activations].map(|v| step_of(g, v, t));
        let more: Option<[Value; 4]> = dactivations.map(|v| {
            let own = step_of(g, v, t);
            blocks(g, own)
        });
        let plus = |g: &mut Graph, x: NodeId, block: usize| -> Value {
            more.map_or(x.into(), |more| g.add(x, more[block]).into())
        };
        let total: Value = g.add(dh, own).into();
        let [r, z, n, q] = blocks(g, saved);
        let rest = g.sub(one, z);
        let dn = g.mul(total, rest);
        let dn = plus(g, dn, 2);
        let slope = tanh_slope(g, n);
        let dn: Value = g.mul(dn, slope).into();
        let difference = g.sub(before, n);
        let dz = g.mul(total, difference);
        let dz = plus(g, dz, 1);
        let slope = sigmoid_slope(g, z);
        let dz: Value = g.mul(dz, slope).into();
        let (dr, through_q): (NodeId, NodeId) = if linear {
            let dq = g.mul(dn, r);
            let dq = plus(g, dq, 3);
            (g.mul(dn, q), g.matmul(dq, of_candidate))
        } else {
            let dq = g.matmul(dn, of_candidate);
            let dq = plus(g, dq, 3);
            (g.mul(dq, before), g.mul(dq, r))
        };
        let dr = plus(g, dr, 0);
        let slope = sigmoid_slope(g, r);
        let dr: Value = g.mul(dr, slope).into();
        let gates = g.concat(&[dr, dz, dn], 1).into();
        all[t] = Some(or_zero(g, going, gates));
        let of_both = g.concat(&[dr, dz], 1);
        let through_gates = g.matmul(of_both, of_gates);
        let kept = g.mul(total, z);
        let sum = g.add(kept, through_gates);
        let sum = g.add(sum, through_q).into();
        dh = choose(g, going, sum, total);
    }
    Ok(vec![stack(g, &all)?, dh])
}

impl Graph {
    /// Computes a layer of gated recurrent units over `[steps, batch, 3 hidden]`, the contribution
    /// of the inputs to the gates r and z and the candidate n (`x weight_ih^T` and the biases),
    /// with the recurrent weight `[3 hidden, hidden]`, the recurrent bias of the candidate
    /// `[hidden]` and the initial state `[batch, hidden]`: port 0 holds the state after each step.
    /// The reset gate multiplies the candidate's product with the state if `linear_before_reset`,
    /// as in PyTorch, else the state itself. `lengths` and `reverse` are as in [`Graph::lstm`].
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "five tensors and two flags")]
    pub fn gru(
        &mut self,
        gates: impl Into<Value>,
        weight: impl Into<Value>,
        bias: impl Into<Value>,
        hidden: impl Into<Value>,
        lengths: Option<Value>,
        linear_before_reset: bool,
        reverse: bool,
    ) -> NodeId {
        let operands = vec![gates.into(), weight.into(), bias.into(), hidden.into()];
        let attrs = attrs(linear_before_reset, reverse);
        self.call(OpRef::new(&Gru), attrs, with_lengths(operands, lengths))
    }
}
