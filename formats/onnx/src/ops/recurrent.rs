//! Recurrent layers: their rounds one after the other.

use meganeura_core::graph::{Graph, Value};

use super::{OnnxOp, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

/// Sequences that are longer are refused: every round is nodes of its own.
const MAX_ROUNDS: usize = 512;

pub(super) const OPS: &[OnnxOp] = &[
    op("GRU", 7, |c| layer(c, Kind::Gru)).partly("more than 512 rounds, lengths that depend on the data of an input"),
    op("LSTM", 7, |c| layer(c, Kind::Lstm)).partly("more than 512 rounds, lengths that depend on the data of an input"),
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
    /// Rounds of each sequence of the batch, if they differ.
    lengths: Option<Vec<usize>>,
    element: ElementType,
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
    if rounds == 0 || rounds > MAX_ROUNDS {
        return Err(format!("{rounds} rounds are not supported, only 1 to {MAX_ROUNDS}"));
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
    let lengths = call.known_ints(4, "the lengths")?;
    let lengths: Option<Vec<usize>> = lengths.map(|l| l.iter().map(|&n| n.clamp(0, rounds as i64) as usize).collect());
    let lengths = lengths.filter(|l| l.iter().any(|&n| n != rounds));
    if lengths.as_ref().is_some_and(|l| l.len() != batch) {
        return Err(format!("operands {} do not fit", call.types()));
    }
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
    let activations = activations(call, kind, count)?;
    let (mut ys, mut hs, mut cs) = (Vec::new(), Vec::new(), Vec::new());
    for (d, (&reverse, activations)) in reversed.iter().zip(activations).enumerate() {
        let direction = direction(call, &layer, d, reverse, activations, by_batch)?;
        let (y, h, c) = run(call.graph(), &layer, x, &direction)?;
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
            Some(lengths) => {
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
