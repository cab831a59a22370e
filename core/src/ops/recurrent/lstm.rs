//! Long short-term memory, and its derivative.

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

pub(in crate::ops) struct Lstm;
pub(in crate::ops) struct LstmGrad;

/// Number of operations per step and element of the state, without the matmul.
const ELEMENT_FLOPS: u64 = 40;

impl Operator for Lstm {
    fn name(&self) -> &'static str {
        "core.lstm"
    }

    fn signature(&self) -> String {
        "g.lstm(gates, weight, hidden, cell, lengths, reverse)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "gates [steps, batch, 4 hidden], weight [4 hidden, hidden], h, c [batch, hidden], and lengths u32 or i32 [batch] or nothing -> hidden, cell [steps, batch, hidden], activations [steps, batch, 4 hidden]",
            formula: "for each step t, from the last to the first if reverse: blocks i, f, g, o of gates[t] + h weight^T; activations are i = sigmoid(i), f = sigmoid(f), g = tanh(g), o = sigmoid(o); c = f c + i g and h = o tanh(c), which are hidden[t] and cell[t]. From its length on a sequence keeps h and c, and its activations are 0",
            source: "Hochreiter and Schmidhuber, 1997, with the forget gate of Gers, Schmidhuber and Cummins, 2000; gates in the order of PyTorch `LSTM`, which has them without the product of the inputs, gates = x weight_ih^T + bias_ih + bias_hh",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(4, 5)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("reverse", AttrKind::Bool)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["hidden", "cell", "activations"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        call.attrs.bool("reverse")?;
        let dims = Dims::of(call, [0, 1], "gates", 4, 4)?;
        expect_operand(call, 1, "recurrent weight", &[4 * dims.hidden, dims.hidden])?;
        expect_operand(call, 2, "initial hidden state", &dims.state())?;
        expect_operand(call, 3, "initial cell state", &dims.state())?;
        if without_lengths(call, &dims)? != 4 {
            return Err(format!("the lengths must be u32 or i32, not {}", call.inputs[4]));
        }
        let states = TensorType::new(call.inputs[0].dtype, Shape::new(&dims.sequence(1))?);
        Ok(vec![states.clone(), states, call.inputs[0].clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(gradients)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(forward)
    }

    fn cost(&self, call: &Call) -> Cost {
        cost_of(call, Dims::of(call, [0, 1], "gates", 4, 4), 1, ELEMENT_FLOPS)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let sample = |case: (Dims, bool, Option<_>)| {
            let (dims, reverse, lengths) = case;
            let mut inputs = vec![
                SampleInput::f32(&dims.sequence(4)),
                weight_input(4, dims.hidden),
                SampleInput::range(&dims.state(), -1.0, 1.0),
                SampleInput::f32(&dims.state()),
            ];
            inputs.extend(lengths.map(|dtype| lengths_input(&dims, dtype)));
            Sample::new(label(&case), inputs, Attrs::new().with("reverse", reverse))
        };
        cases(sizes).into_iter().map(sample).collect()
    }
}

fn forward(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = cx.with_call(|call| Dims::of(call, [0, 1], "gates", 4, 4))?;
    dims.expect_short("core.lstm")?;
    let reverse = cx.attrs.bool("reverse")?;
    let &[gates, weight, mut h, mut c, ..] = cx.inputs else {
        return Err("takes four operands or five".into());
    };
    let g = &mut *cx.graph;
    let lengths = lengths_of(g, cx.inputs);
    let [mut hs, mut cs, mut all] = [const { Vec::new() }; 3].map(|mut v: Vec<Option<Value>>| {
        v.resize(dims.steps, None);
        v
    });
    for t in dims.order(reverse) {
        let going = going(g, lengths, &dims, t);
        let own = step_of(g, gates, t);
        let from_state = g.matmul_bt(h, weight);
        let sum = g.add(own, from_state).into();
        let [i, f, candidate, o] = blocks(g, sum);
        let [i, f, o] = [i, f, o].map(|gate| Value::from(g.sigmoid(gate)));
        let candidate = g.tanh(candidate).into();
        let activations = g.concat(&[i, f, candidate, o], 1).into();
        let kept = g.mul(f, c);
        let added = g.mul(i, candidate);
        let cell = g.add(kept, added);
        let shown = g.tanh(cell);
        let hidden = g.mul(o, shown).into();
        c = choose(g, going, cell.into(), c);
        h = choose(g, going, hidden, h);
        (hs[t], cs[t]) = (Some(h), Some(c));
        all[t] = Some(or_zero(g, going, activations));
    }
    Ok(vec![stack(g, &hs)?, stack(g, &cs)?, stack(g, &all)?])
}

fn gradients(cx: &mut GradCx) -> Gradients {
    let reverse = cx.attrs().bool("reverse")?;
    let [weight, h, c] = [1, 2, 3].map(|i| cx.operand(i));
    let lengths = (cx.arity() > 4).then(|| cx.operand(4));
    let (hidden, cell, activations) = (cx.result(0), cx.result(1), cx.result(2));
    let (dhidden, dcell) = (cx.grad(0), cx.grad(1));
    let mut operands = vec![weight, activations, cell, c, dhidden, dcell];
    operands.extend(cx.try_grad(2));
    let operands = with_lengths(operands, lengths);
    let call = cx.call(OpRef::new(&LstmGrad), Attrs::new().with("reverse", reverse), operands);
    let [dgates, dh, dc] = [0, 1, 2].map(|port| cx.port(call, port));
    let dweight = cx.needs(1).then(|| {
        let before = states_before(cx, hidden, h, reverse);
        weight_gradient(cx, dgates, before)
    });
    let mut all = vec![Some(dgates), dweight, Some(dh), Some(dc)];
    all.extend(lengths.map(|_| None));
    Ok(all)
}

impl Operator for LstmGrad {
    fn name(&self) -> &'static str {
        "core.lstm_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "weight, activations, cell, c as for core.lstm and of its results, dhidden and dcell as cell, dactivations as activations or nothing, lengths as there or nothing -> dgates [steps, batch, 4 hidden], dh, dc [batch, hidden]",
            formula: "for each step t, from the last to be computed to the first: with dh += dhidden[t], dc += dcell[t], u = tanh(cell[t]) and p the cell before: do = dh u, dc += dh o (1 - u^2), di = dc g, df = dc p, dg = dc i, each plus its block of dactivations and times the derivative of its activation, are the blocks of dgates[t]; then dh = dgates[t] weight and dc = dc f. From its length on a sequence's dgates are 0",
            source: "derivative of core.lstm",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(6, 8)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("reverse", AttrKind::Bool)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dgates", "dh", "dc"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        call.attrs.bool("reverse")?;
        let dims = Dims::of(call, [1, 0], "activations", 4, 4)?;
        expect_operand(call, 1, "activations", &dims.sequence(4))?;
        expect_operand(call, 2, "cell state after each step", &dims.sequence(1))?;
        expect_operand(call, 3, "initial cell state", &dims.state())?;
        expect_operand(call, 4, "gradient of the hidden states", &dims.sequence(1))?;
        expect_operand(call, 5, "gradient of the cell states", &dims.sequence(1))?;
        match without_lengths(call, &dims)? {
            6 => {}
            7 => expect_operand(call, 6, "gradient of the activations", &dims.sequence(4))?,
            _ => return Err(format!("the lengths must be u32 or i32, not {}", call.inputs[7])),
        }
        let state = TensorType::new(call.inputs[0].dtype, Shape::new(&dims.state())?);
        Ok(vec![call.inputs[1].clone(), state.clone(), state])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(backward)
    }

    fn cost(&self, call: &Call) -> Cost {
        cost_of(call, Dims::of(call, [1, 0], "activations", 4, 4), 0, ELEMENT_FLOPS)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let sample = |(n, case): (usize, (Dims, bool, Option<_>))| {
            let (dims, reverse, lengths) = case;
            let mut inputs = vec![
                weight_input(4, dims.hidden),
                SampleInput::range(&dims.sequence(4), 0.05, 0.95),
                SampleInput::f32(&dims.sequence(1)),
                SampleInput::f32(&dims.state()),
                SampleInput::f32(&dims.sequence(1)),
                SampleInput::f32(&dims.sequence(1)),
            ];
            let more = n % 2 == 1;
            inputs.extend(more.then(|| SampleInput::f32(&dims.sequence(4))));
            inputs.extend(lengths.map(|dtype| lengths_input(&dims, dtype)));
            let more = if more { ", activations with a gradient" } else { "" };
            let label = format!("{}{more}", label(&case));
            Sample::new(label, inputs, Attrs::new().with("reverse", reverse))
        };
        cases(sizes).into_iter().enumerate().map(sample).collect()
    }
}

fn backward(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = cx.with_call(|call| Dims::of(call, [1, 0], "activations", 4, 4))?;
    dims.expect_short("core.lstm_grad")?;
    let reverse = cx.attrs.bool("reverse")?;
    let &[weight, activations, cell, c, dhidden, dcell, ref more @ ..] = cx.inputs else {
        return Err("takes six to eight operands".into());
    };
    let g = &mut *cx.graph;
    let lengths = lengths_of(g, cx.inputs);
    let dactivations = more.first().copied().filter(|&v| Some(v) != lengths);
    let before = states_before(g, cell, c, reverse);
    let dtype = cx.outputs[0].dtype;
    let zero: Value = g.full(dtype, 0.0, &dims.state()).into();
    let (mut dh, mut dc) = (zero, zero);
    let mut all = vec![None; dims.steps];
    for t in dims.order(!reverse) {
        let going = going(g, lengths, &dims, t);
        let [own_dh, own_dc, cell, before, saved] =
            [dhidden, dcell, cell, before, activations].map(|v| step_of(g, v, t));
        let total_dh: Value = g.add(dh, own_dh).into();
        let total_dc: Value = g.add(dc, own_dc).into();
        let [i, f, candidate, o] = blocks(g, saved);
        let shown: Value = g.tanh(cell).into();
        let slope = tanh_slope(g, shown);
        let through_o = g.mul(total_dh, o);
        let through_o = g.mul(through_o, slope);
        let cell_gradient: Value = g.add(total_dc, through_o).into();
        let products = [
            g.mul(cell_gradient, candidate),
            g.mul(cell_gradient, before),
            g.mul(cell_gradient, i),
            g.mul(total_dh, shown),
        ];
        let mut gates: Value = g.concat(&products, 1).into();
        if let Some(dactivations) = dactivations {
            let own = step_of(g, dactivations, t);
            gates = g.add(gates, own).into();
        }
        let [i_slope, f_slope, o_slope] = [i, f, o].map(|y| sigmoid_slope(g, y));
        let slopes = [i_slope, f_slope, tanh_slope(g, candidate), o_slope];
        let slopes = g.concat(&slopes, 1);
        let gates = g.mul(gates, slopes).into();
        let gates = or_zero(g, going, gates);
        all[t] = Some(gates);
        let from_gates = g.matmul(gates, weight).into();
        dh = choose(g, going, from_gates, total_dh);
        let kept = g.mul(cell_gradient, f).into();
        dc = choose(g, going, kept, total_dc);
    }
    Ok(vec![stack(g, &all)?, dh, dc])
}

impl Graph {
    /// Computes a layer of long short-term memory over `[steps, batch, 4 hidden]`, the contribution
    /// of the inputs to the gates i, f, g and o (`x weight_ih^T` and all biases), with the
    /// recurrent weight `[4 hidden, hidden]` and the initial hidden and cell state
    /// `[batch, hidden]`: port 0 is the hidden state after each step, port 1 the cell state.
    /// `reverse` begins with the last step. With `lengths [batch]`, `u32` or `i32`, a sequence
    /// keeps its state from its length on; [`Graph::sequence_mask`] returns a mask of the valid
    /// steps.
    #[track_caller]
    pub fn lstm(
        &mut self,
        gates: impl Into<Value>,
        weight: impl Into<Value>,
        hidden: impl Into<Value>,
        cell: impl Into<Value>,
        lengths: Option<Value>,
        reverse: bool,
    ) -> NodeId {
        let operands = vec![gates.into(), weight.into(), hidden.into(), cell.into()];
        let attrs = Attrs::new().with("reverse", reverse);
        self.call(OpRef::new(&Lstm), attrs, with_lengths(operands, lengths))
    }
}
