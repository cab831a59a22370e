//! Recurrent layers: `core.lstm` and `core.gru` where these compute the same, else the rounds one after the other.

use meganeura_core::graph::{Graph, Value};

use super::{OnnxOp, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

/// Longer sequences are refused where every round is nodes of its own.
const MAX_ROUNDS: usize = 512;

/// What an unrolled layer cannot be; GPUs unroll all of them.
const GRU_LIMITS: &str = "more than 512 rounds on a GPU; with other activations than the default ones or `clip`, more than \
                          512 rounds and lengths that depend on the data of an input";
const LSTM_LIMITS: &str = "more than 512 rounds on a GPU; with peepholes, `input_forget`, other activations than the default \
                           ones or `clip`, more than 512 rounds and lengths that depend on the data of an input";

pub(super) const OPS: &[OnnxOp] = &[
    op("GRU", 7, |c| layer(c, Kind::Gru)).partly(GRU_LIMITS),
    op("LSTM", 7, |c| layer(c, Kind::Lstm)).partly(LSTM_LIMITS),
    op("RNN", 7, |c| layer(c, Kind::Plain)).partly("more than 512 rounds, lengths that depend on the data of an input"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Gru,
    Lstm,
}

impl Kind {
    /// Blocks of the weights: gates and candidates.
    fn gates(self) -> usize {
        match self {
            Kind::Plain => 1,
            Kind::Gru => 3,
            Kind::Lstm => 4,
        }
    }

    /// Activations of a direction.
    fn defaults(self) -> &'static [&'static str] {
        match self {
            Kind::Plain => &["Tanh"],
            Kind::Gru => &["Sigmoid", "Tanh"],
            Kind::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// An activation with its parameters.
#[derive(Clone, Debug)]
struct Activation {
    name: String,
    alpha: Option<f32>,
    beta: Option<f32>,
}

impl Activation {
    fn apply(&self, g: &mut Graph, x: Value) -> Result<Value, String> {
        let number = |g: &mut Graph, v: f32| -> Value { g.scalar_of(g.dtype(x), v.into()).into() };
        let (alpha, beta) = (self.alpha, self.beta);
        Ok(match self.name.to_ascii_lowercase().as_str() {
            "relu" => g.relu(x),
            "tanh" => g.tanh(x),
            "sigmoid" => g.sigmoid(x),
            "softplus" => g.softplus(x),
            "elu" => g.elu(x, alpha.unwrap_or(1.0)),
            "leakyrelu" => g.leaky_relu(x, alpha.unwrap_or(0.01)),
            "softsign" => super::activation::softsign(g, x),
            "affine" => {
                let (alpha, beta) = (number(g, alpha.unwrap_or(1.0)), number(g, beta.unwrap_or(0.0)));
                let scaled = g.mul(x, alpha);
                g.add(scaled, beta)
            }
            "hardsigmoid" => {
                let (alpha, beta) = (number(g, alpha.unwrap_or(0.2)), number(g, beta.unwrap_or(0.5)));
                let scaled = g.mul(x, alpha);
                let moved = g.add(scaled, beta);
                g.clamp(moved, 0.0, 1.0)
            }
            "scaledtanh" => {
                let (alpha, beta) = (number(g, alpha.unwrap_or(1.0)), number(g, beta.unwrap_or(1.0)));
                let scaled = g.mul(x, beta);
                let tanh = g.tanh(scaled);
                g.mul(tanh, alpha)
            }
            "thresholdedrelu" => {
                let (alpha, zero) = (number(g, alpha.unwrap_or(1.0)), number(g, 0.0));
                let above = g.greater_than(x, alpha);
                g.select(above, x, zero)
            }
            other => return Err(format!("activation `{other}` is not supported")),
        }
        .into())
    }
}

/// What a node says about all of its directions.
struct Layer {
    kind: Kind,
    hidden: usize,
    rounds: usize,
    batch: usize,
    clip: Option<f32>,
    linear_before_reset: bool,
    input_forget: bool,
    lengths: Option<Lengths>,
    element: ElementType,
}

/// Rounds of each sequence of the batch, if they differ.
enum Lengths {
    Known(Vec<usize>),
    /// They depend on the data of an input.
    Given(Value),
}

/// Weights and states of one direction.
struct Direction {
    /// `[gates * hidden, input]`.
    w: Value,
    /// `[gates * hidden, hidden]`.
    r: Value,
    /// `[gates * hidden]` each.
    bias: Option<(Value, Value)>,
    /// `[batch, hidden]`.
    h: Value,
    c: Value,
    /// `[hidden]` for the gates i, o, f.
    peepholes: Option<[Value; 3]>,
    activations: Vec<Activation>,
    reverse: bool,
}

fn activations(call: &Call, kind: Kind, directions: usize) -> Result<Vec<Vec<Activation>>, String> {
    let names: Vec<String> = match call.attributes().strings("activations")? {
        Some(names) => names.into_iter().map(str::to_owned).collect(),
        None => kind
            .defaults()
            .iter()
            .cycle()
            .take(kind.defaults().len() * directions)
            .map(|s| (*s).to_owned())
            .collect(),
    };
    let each = kind.defaults().len();
    if names.len() != each * directions {
        return Err(format!(
            "{} activations for {directions} directions of {each}",
            names.len()
        ));
    }
    // Parameters are listed for those activations alone that have any.
    let mut alphas = call
        .attributes()
        .floats("activation_alpha")?
        .unwrap_or(&[])
        .iter()
        .copied();
    let mut betas = call
        .attributes()
        .floats("activation_beta")?
        .unwrap_or(&[])
        .iter()
        .copied();
    let all: Vec<Activation> = names
        .into_iter()
        .map(|name| {
            let lower = name.to_ascii_lowercase();
            let has_beta = matches!(lower.as_str(), "affine" | "hardsigmoid" | "scaledtanh");
            let has_alpha = has_beta || matches!(lower.as_str(), "elu" | "leakyrelu" | "thresholdedrelu");
            Activation {
                name,
                alpha: if has_alpha { alphas.next() } else { None },
                beta: if has_beta { betas.next() } else { None },
            }
        })
        .collect();
    Ok(all.chunks(each).map(<[Activation]>::to_vec).collect())
}

fn layer(call: &mut Call, kind: Kind) -> Built {
    let element = call.element(0)?;
    let hidden = usize::try_from(call.int("hidden_size", 0)?).map_err(|_| "hidden_size is negative")?;
    let by_batch = call.int("layout", 0)? != 0;
    let mut x = call.value(0)?;
    if by_batch {
        x = call.graph().permute(x, &[1, 0, 2]).into();
    }
    let dims = call.graph().shape(x).to_vec();
    let [rounds, batch, width] = dims.as_slice() else {
        return Err(format!("operands {} are not supported", call.types()));
    };
    let (rounds, batch, width) = (*rounds, *batch, *width);
    if rounds == 0 {
        return Err("a sequence without rounds is not supported".into());
    }
    let reversed: &[bool] = match &*call.string("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(format!("direction `{other}` is not known")),
    };
    let gates = kind.gates();
    let count = reversed.len();
    let wanted = [vec![count, gates * hidden, width], vec![count, gates * hidden, hidden]];
    if call.dims(1)? != wanted[0] || call.dims(2)? != wanted[1] || hidden == 0 {
        return Err(format!("operands {} do not fit {hidden} hidden values", call.types()));
    }
    let activations = activations(call, kind, count)?;
    let special = unrolled_for(call, kind, &activations)?;
    if special.is_some() && rounds > MAX_ROUNDS {
        let what = special.unwrap_or_default();
        return Err(format!(
            "{rounds} rounds with {what} are not supported, only 1 to {MAX_ROUNDS}"
        ));
    }
    let lengths = lengths(call, [rounds, batch], special.is_none())?;
    let layer = Layer {
        kind,
        hidden,
        rounds,
        batch,
        clip: call.attributes().float("clip")?,
        linear_before_reset: call.int("linear_before_reset", 0)? != 0,
        input_forget: call.int("input_forget", 0)? != 0,
        lengths,
        element,
    };
    let (mut ys, mut hs, mut cs) = (Vec::new(), Vec::new(), Vec::new());
    for (d, (&reverse, activations)) in reversed.iter().zip(activations).enumerate() {
        let direction = direction(call, &layer, d, reverse, activations, by_batch)?;
        let graph = call.graph();
        let (y, h, c) = match special {
            None => in_one(graph, &layer, x, &direction),
            Some(_) => run(graph, &layer, x, &direction)?,
        };
        ys.push(y);
        hs.push(h);
        cs.push(c);
    }
    let graph = call.graph();
    // [rounds, directions, batch, hidden] and [directions, batch, hidden].
    let mut join = |parts: &[Value], axis: i32| match parts {
        [one] => *one,
        parts => graph.concat(parts, axis).into(),
    };
    let (mut y, mut h, mut c) = (join(&ys, 1), join(&hs, 0), join(&cs, 0));
    if by_batch {
        let graph = call.graph();
        y = graph.permute(y, &[2, 0, 1, 3]).into();
        h = graph.permute(h, &[1, 0, 2]).into();
        c = graph.permute(c, &[1, 0, 2]).into();
    }
    let mut results = vec![call.result(y, element), call.result(h, element)];
    if kind == Kind::Lstm {
        results.push(call.result(c, element));
    }
    Ok(results)
}

/// What no operator computes, so that the layer is unrolled.
fn unrolled_for(call: &Call, kind: Kind, activations: &[Vec<Activation>]) -> Result<Option<&'static str>, String> {
    let usual = |own: &Vec<Activation>| {
        let names = own.iter().map(|a| a.name.as_str());
        names
            .zip(kind.defaults())
            .all(|(name, default)| name.eq_ignore_ascii_case(default))
    };
    Ok(if kind == Kind::Plain {
        Some("a plain recurrence")
    } else if !activations.iter().all(usual) {
        Some("other activations than the default ones")
    } else if call.attributes().float("clip")?.is_some() {
        Some("`clip`")
    } else if kind == Kind::Lstm && call.int("input_forget", 0)? != 0 {
        Some("`input_forget`")
    } else if kind == Kind::Lstm && call.has_input(7) {
        Some("peepholes")
    } else {
        None
    })
}

/// The lengths of the sequences; `or_given` if they need not be known.
fn lengths(call: &mut Call, [rounds, batch]: [usize; 2], or_given: bool) -> Result<Option<Lengths>, String> {
    if or_given && call.has_input(4) && call.tensor(4).is_none() {
        if call.dims(4)? != [batch] {
            return Err(format!("operands {} do not fit", call.types()));
        }
        return Ok(Some(Lengths::Given(call.value(4)?)));
    }
    let Some(known) = call.known_ints(4, "the lengths")? else {
        return Ok(None);
    };
    if known.len() != batch {
        return Err(format!("operands {} do not fit", call.types()));
    }
    let known: Vec<usize> = known.iter().map(|&n| n.clamp(0, rounds as i64) as usize).collect();
    Ok(known.iter().any(|&n| n != rounds).then_some(Lengths::Known(known)))
}

fn direction(
    call: &mut Call,
    layer: &Layer,
    d: usize,
    reverse: bool,
    activations: Vec<Activation>,
    by_batch: bool,
) -> Result<Direction, String> {
    let (hidden, gates) = (layer.hidden, layer.kind.gates());
    let part = |call: &mut Call, i: usize| -> Result<Option<Value>, String> {
        let Some(value) = call.optional(i)? else {
            return Ok(None);
        };
        let graph = call.graph();
        let dims = graph.shape(value).to_vec();
        let one = graph.slice_axis(value, 0, d, d + 1);
        Ok(Some(graph.reshape(one, dims.get(1..).unwrap_or(&[])).into()))
    };
    let w = part(call, 1)?.ok_or("the weights are missing")?;
    let r = part(call, 2)?.ok_or("the recurrent weights are missing")?;
    let bias = part(call, 3)?.map(|b| {
        let graph = call.graph();
        let first = graph.slice(b, &[0], &[gates * hidden]);
        let second = graph.slice(b, &[gates * hidden], &[2 * gates * hidden]);
        (first.into(), second.into())
    });
    let state = |call: &mut Call, i: usize| -> Result<Value, String> {
        let Some(value) = call.optional(i)? else {
            let zero = call.scalar(layer.element, 0.0);
            return Ok(call.graph().expand(zero, &[layer.batch, hidden]).into());
        };
        let graph = call.graph();
        let one = match by_batch {
            true => graph.slice_axis(value, 1, d, d + 1),
            false => graph.slice_axis(value, 0, d, d + 1),
        };
        Ok(graph.reshape(one, &[layer.batch, hidden]).into())
    };
    let h = state(call, 5)?;
    let is_lstm = layer.kind == Kind::Lstm;
    let c = if is_lstm { state(call, 6)? } else { h };
    let peepholes = match is_lstm {
        true => part(call, 7)?,
        false => None,
    };
    let peepholes = peepholes.map(|p| {
        let graph = call.graph();
        [0, 1, 2].map(|i| graph.slice(p, &[i * hidden], &[(i + 1) * hidden]).into())
    });
    Ok(Direction {
        w,
        r,
        bias,
        h,
        c,
        peepholes,
        activations,
        reverse,
    })
}

fn clipped(g: &mut Graph, layer: &Layer, x: Value) -> Value {
    match layer.clip {
        Some(limit) => g.clamp(x, -limit, limit).into(),
        None => x,
    }
}

/// Blocks of the first axis in another order.
fn reordered(g: &mut Graph, x: Value, hidden: usize, order: &[usize]) -> Value {
    let parts: Vec<Value> = order
        .iter()
        .map(|&block| g.slice_axis(x, 0, block * hidden, (block + 1) * hidden).into())
        .collect();
    g.concat(&parts, 0).into()
}

/// The same as [`run`] by the operator of the layer, which has its gates in another order.
fn in_one(g: &mut Graph, layer: &Layer, x: Value, d: &Direction) -> (Value, Value, Value) {
    let (hidden, gates, batch, rounds) = (layer.hidden, layer.kind.gates(), layer.batch, layer.rounds);
    // ONNX has i, o, f, c and z, r, h; the operators have i, f, c, o and r, z, h.
    let order: &[usize] = match layer.kind {
        Kind::Lstm => &[0, 2, 3, 1],
        Kind::Gru => &[1, 0, 2],
        Kind::Plain => &[0],
    };
    let [w, r] = [d.w, d.r].map(|weight| reordered(g, weight, hidden, order));
    // The inputs' part of all rounds in one product.
    let width = g.shape(x).get(2).copied().unwrap_or(0);
    let rows = g.reshape(x, &[rounds * batch, width]);
    let mut projected: Value = g.matmul_bt(rows, w).into();
    let dtype = g.dtype(projected);
    let mut candidate_bias: Option<Value> = None;
    if let Some((input, recurrent)) = d.bias {
        let [mut input, recurrent] = [input, recurrent].map(|bias| reordered(g, bias, hidden, order));
        if layer.kind == Kind::Gru {
            // The recurrent bias of the candidate may be multiplied by the reset gate.
            let both = g.slice_axis(recurrent, 0, 0, 2 * hidden);
            let zeros = g.full(dtype, 0.0, &[hidden]);
            let both = g.concat(&[both, zeros], 0);
            candidate_bias = Some(g.slice_axis(recurrent, 0, 2 * hidden, 3 * hidden).into());
            input = g.add(input, both).into();
        } else {
            input = g.add(input, recurrent).into();
        }
        projected = g.add(projected, input).into();
    }
    let projected = g.reshape(projected, &[rounds, batch, gates * hidden]);
    let lengths: Option<Value> = layer.lengths.as_ref().map(|lengths| match lengths {
        Lengths::Given(lengths) => *lengths,
        Lengths::Known(lengths) => {
            let lengths = lengths.iter().map(|&n| n as u32).collect();
            g.constant_u32(lengths, &[batch]).into()
        }
    });
    let call = match layer.kind {
        Kind::Lstm => g.lstm(projected, r, d.h, d.c, lengths, d.reverse),
        _ => {
            let bias = candidate_bias.unwrap_or_else(|| g.full(dtype, 0.0, &[hidden]).into());
            g.gru(projected, r, bias, d.h, lengths, layer.linear_before_reset, d.reverse)
        }
    };
    let states = g.port(call, 0);
    let last = if d.reverse { 0 } else { rounds - 1 };
    let h = g.slice_axis(states, 0, last, last + 1).into();
    let c = match layer.kind {
        Kind::Lstm => {
            let cells = g.port(call, 1);
            g.slice_axis(cells, 0, last, last + 1).into()
        }
        _ => h,
    };
    let mut y = states;
    if let Some(lengths) = lengths {
        let there = g.sequence_mask(lengths, rounds);
        let zero = g.scalar_of(dtype, 0.0);
        y = g.select(there, y, zero).into();
    }
    (g.reshape(y, &[rounds, 1, batch, hidden]).into(), h, c)
}

/// Results `[rounds, 1, batch, hidden]`, last output and last cell `[1, batch, hidden]`.
fn run(g: &mut Graph, layer: &Layer, x: Value, d: &Direction) -> Result<(Value, Value, Value), String> {
    let (hidden, gates, batch, rounds) = (layer.hidden, layer.kind.gates(), layer.batch, layer.rounds);
    // The inputs' part of all rounds in one product.
    let width = g.shape(x).get(2).copied().unwrap_or(0);
    let rows = g.reshape(x, &[rounds * batch, width]);
    let mut projected: Value = g.matmul_bt(rows, d.w).into();
    let mut recurrent_bias = None;
    if let Some((input, recurrent)) = d.bias {
        projected = g.add(projected, input).into();
        if layer.kind == Kind::Gru && layer.linear_before_reset {
            recurrent_bias = Some(recurrent);
        } else {
            projected = g.add(projected, recurrent).into();
        }
    }
    let projected = g.reshape(projected, &[rounds, batch, gates * hidden]);
    let (mut h, mut c) = (d.h, d.c);
    let mut outputs: Vec<Option<Value>> = vec![None; rounds];
    let order: Vec<usize> = match d.reverse {
        true => (0..rounds).rev().collect(),
        false => (0..rounds).collect(),
    };
    for t in order {
        let round = g.slice_axis(projected, 0, t, t + 1);
        let round = g.reshape(round, &[batch, gates * hidden]);
        let (new_h, new_c) = match layer.kind {
            Kind::Plain => (plain(g, layer, d, round.into(), h)?, c),
            Kind::Gru => (gru(g, layer, d, round.into(), h, recurrent_bias)?, c),
            Kind::Lstm => lstm(g, layer, d, round.into(), h, c)?,
        };
        let mut output = new_h;
        (h, c) = match &layer.lengths {
            None => (new_h, new_c),
            Some(Lengths::Given(_)) => return Err("the lengths of an unrolled layer must be known".into()),
            Some(Lengths::Known(lengths)) => {
                // Sequences that have ended keep their state and give zeros.
                let going: Vec<u32> = lengths.iter().map(|&n| u32::from(t < n)).collect();
                let going = g.constant_u32(going, &[batch, 1]);
                let zero = g.scalar_of(g.dtype(new_h), 0.0);
                output = g.select(going, new_h, zero).into();
                (g.select(going, new_h, h).into(), g.select(going, new_c, c).into())
            }
        };
        outputs[t] = Some(g.reshape(output, &[1, 1, batch, hidden]).into());
    }
    let parts: Option<Vec<Value>> = outputs.into_iter().collect();
    let parts = parts.ok_or("a sequence without rounds")?;
    let y = match parts.as_slice() {
        [one] => *one,
        parts => g.concat(parts, 0).into(),
    };
    let last = |g: &mut Graph, v: Value| -> Value { g.reshape(v, &[1, batch, hidden]).into() };
    let (h, c) = (last(g, h), last(g, c));
    Ok((y, h, c))
}

/// Column block `i` of a value `[batch, gates * hidden]`.
fn gate(g: &mut Graph, x: Value, i: usize, hidden: usize) -> Value {
    g.slice_axis(x, 1, i * hidden, (i + 1) * hidden).into()
}

/// `f(x W + h R + b)`.
fn plain(g: &mut Graph, layer: &Layer, d: &Direction, x: Value, h: Value) -> Result<Value, String> {
    let product = g.matmul_bt(h, d.r);
    let sum = g.add(x, product);
    let sum = clipped(g, layer, sum.into());
    d.activations[0].apply(g, sum)
}

/// Gates z and r, and the candidate: `(1 - z) candidate + z h`.
fn gru(
    g: &mut Graph,
    layer: &Layer,
    d: &Direction,
    x: Value,
    h: Value,
    recurrent_bias: Option<Value>,
) -> Result<Value, String> {
    let hidden = layer.hidden;
    let rows = |g: &mut Graph, from: usize, to: usize| g.slice_axis(d.r, 0, from * hidden, to * hidden);
    let r_gates = rows(g, 0, 2);
    let r_candidate = rows(g, 2, 3);
    let mut gates: Value = g.matmul_bt(h, r_gates).into();
    if let Some(bias) = recurrent_bias {
        let part = g.slice(bias, &[0], &[2 * hidden]);
        gates = g.add(gates, part).into();
    }
    let own = g.slice_axis(x, 1, 0, 2 * hidden);
    let sum = g.add(own, gates);
    let sum = clipped(g, layer, sum.into());
    let active = d.activations[0].apply(g, sum)?;
    let (z, r) = (gate(g, active, 0, hidden), gate(g, active, 1, hidden));
    let own = gate(g, x, 2, hidden);
    let from_state: Value = if layer.linear_before_reset {
        let mut product: Value = g.matmul_bt(h, r_candidate).into();
        if let Some(bias) = recurrent_bias {
            let part = g.slice(bias, &[2 * hidden], &[3 * hidden]);
            product = g.add(product, part).into();
        }
        g.mul(r, product).into()
    } else {
        let reset = g.mul(r, h);
        g.matmul_bt(reset, r_candidate).into()
    };
    let sum = g.add(own, from_state);
    let sum = clipped(g, layer, sum.into());
    let candidate = d.activations[1].apply(g, sum)?;
    // candidate + z (h - candidate)
    let difference = g.sub(h, candidate);
    let part = g.mul(z, difference);
    Ok(g.add(candidate, part).into())
}

/// Gates i, o, f and the candidate c: new cell `f c + i candidate`, new output `o h(cell)`.
fn lstm(g: &mut Graph, layer: &Layer, d: &Direction, x: Value, h: Value, c: Value) -> Result<(Value, Value), String> {
    let hidden = layer.hidden;
    let product = g.matmul_bt(h, d.r);
    let sum: Value = g.add(x, product).into();
    let [mut i, mut o, mut f, candidate] = [0, 1, 2, 3].map(|k| gate(g, sum, k, hidden));
    let peep = |g: &mut Graph, gate: Value, weight: Value, cell: Value| -> Value {
        let part = g.mul(weight, cell);
        g.add(gate, part).into()
    };
    if let Some([pi, _, pf]) = d.peepholes {
        i = peep(g, i, pi, c);
        f = peep(g, f, pf, c);
    }
    let (i, f) = (clipped(g, layer, i), clipped(g, layer, f));
    let candidate = clipped(g, layer, candidate);
    let i = d.activations[0].apply(g, i)?;
    let f = match layer.input_forget {
        true => {
            let one = g.scalar_of(g.dtype(i), 1.0);
            g.sub(one, i).into()
        }
        false => d.activations[0].apply(g, f)?,
    };
    let candidate = d.activations[1].apply(g, candidate)?;
    let kept = g.mul(f, c);
    let added = g.mul(i, candidate);
    let cell: Value = g.add(kept, added).into();
    if let Some([_, po, _]) = d.peepholes {
        o = peep(g, o, po, cell);
    }
    let o = clipped(g, layer, o);
    let o = d.activations[0].apply(g, o)?;
    let shown = d.activations[2].apply(g, cell)?;
    Ok((g.mul(o, shown).into(), cell))
}
