//! Recurrent layers. They become calls of `core.lstm`, `core.gru` or `core.rnn` if these compute the same, and are
//! unrolled otherwise: each round (time step) becomes separate nodes.
//!
//! Layers with peepholes, `clip` or `input_forget` of an LSTM are unrolled: the LSTMs of PyTorch and Keras do not have these, so
//! operands of `core.lstm` for them would make its kernels and its gradient larger without a model that needs them.

mod unrolled;

use meganeura_core::graph::{Graph, Value};

use super::{OnnxOp, ms, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

/// Maximum length of an unrolled sequence, whose rounds are separate nodes.
const MAX_ROUNDS: usize = 512;

/// Unsupported cases of layers; GPUs unroll all layers.
const GRU_LIMITS: &str = "more than 512 rounds on a GPU; with other activations than the default ones or `clip`, more than \
                          512 rounds and lengths that depend on the data of an input";
const LSTM_LIMITS: &str = "more than 512 rounds on a GPU; with peepholes, `input_forget`, other activations than the default \
                           ones or `clip`, more than 512 rounds and lengths that depend on the data of an input";

const RNN_LIMITS: &str = "more than 512 rounds on a GPU; with other activations than `Tanh` and `Relu` or `clip`, more than 512 \
                          rounds and lengths that depend on the data of an input";

const QUANTIZED_LIMITS: &str = "what LSTM does not, and rounding of inputs and states to 8 bits: they stay `f32`";

pub(super) const OPS: &[OnnxOp] = &[
    op("GRU", 7, |c| layer(c, Kind::Gru, given)).partly(GRU_LIMITS),
    op("LSTM", 7, |c| layer(c, Kind::Lstm, given)).partly(LSTM_LIMITS),
    op("RNN", 7, |c| layer(c, Kind::Plain, given)).partly(RNN_LIMITS),
    ms("DynamicQuantizeLSTM", |c| layer(c, Kind::Lstm, dequantized)).partly(QUANTIZED_LIMITS),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Gru,
    Lstm,
}

impl Kind {
    /// Returns the number of blocks of the weights: gates and candidates.
    fn gates(self) -> usize {
        match self {
            Kind::Plain => 1,
            Kind::Gru => 3,
            Kind::Lstm => 4,
        }
    }

    /// Returns the default activations of a direction.
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

/// Properties of a node that apply to all of its directions.
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

/// Number of rounds of each sequence of the batch, if the numbers differ.
enum Lengths {
    Known(Vec<usize>),
    /// Lengths that depend on the data of an input.
    Given(Value),
}

/// Weights and states of one direction.
struct Direction {
    /// Weights of the inputs, `[gates * hidden, input]`.
    w: Value,
    /// Weights of the states, `[gates * hidden, hidden]`.
    r: Value,
    /// Biases of inputs and states, `[gates * hidden]` each.
    bias: Option<(Value, Value)>,
    /// Initial state, `[batch, hidden]`.
    h: Value,
    c: Value,
    /// Peephole weights of the gates i, o and f, `[hidden]` each.
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
    // The list contains parameters only for activations that have any.
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

/// Function that returns the weights of inputs and states, `[directions, gates * hidden, inputs]` and `[directions, gates *
/// hidden, hidden]`.
type Weights = fn(&mut Call) -> Result<[Value; 2], String>;

/// Returns operands 1 and 2 unchanged.
fn given(call: &mut Call) -> Result<[Value; 2], String> {
    Ok([call.value(1)?, call.value(2)?])
}

/// Dequantises integers `[directions, inputs, gates * hidden]` with scales and zero points, one for each direction or for each
/// column, in the operands 8 to 11.
fn dequantized(call: &mut Call) -> Result<[Value; 2], String> {
    let mut weights = [given(call)?[0]; 2];
    for (n, weight) in weights.iter_mut().enumerate() {
        let dims = call.dims(n + 1)?;
        let integers = call.value(n + 1)?;
        let mut value = call.as_f32(integers);
        let meets = |call: &mut Call, i: usize| -> Result<Value, String> {
            let own = call.dims(i)?;
            let shape = match (own.as_slice(), dims.as_slice()) {
                (&[directions], &[wanted, _, _]) if directions == wanted => [directions, 1, 1],
                (&[directions, columns], &[wanted, _, all]) if [directions, columns] == [wanted, all] => {
                    [directions, 1, columns]
                }
                _ => return Err(format!("operands {} do not fit", call.types())),
            };
            let one = call.value(i)?;
            let one = call.as_f32(one);
            Ok(call.graph().reshape(one, &shape).into())
        };
        let (scale, zero) = (8 + 2 * n, 9 + 2 * n);
        if call.has_input(zero) {
            let zero = meets(call, zero)?;
            value = call.graph().sub(value, zero).into();
        }
        let scale = meets(call, scale)?;
        let graph = call.graph();
        let scaled = graph.mul(value, scale);
        *weight = graph.permute(scaled, &[0, 2, 1]).into();
    }
    Ok(weights)
}

fn layer(call: &mut Call, kind: Kind, weights: Weights) -> Built {
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
    let weights = weights(call)?;
    if weights.map(|w| call.graph().shape(w).to_vec()) != wanted || hidden == 0 {
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
        let direction = direction(call, &layer, weights, d, reverse, activations, by_batch)?;
        let graph = call.graph();
        let (y, h, c) = match special {
            None => in_one(graph, &layer, x, &direction),
            Some(_) => unrolled::run(graph, &layer, x, &direction)?,
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

/// Returns the feature of a layer that no recurrent operator supports, if there is one. Such a layer must be unrolled.
fn unrolled_for(call: &Call, kind: Kind, activations: &[Vec<Activation>]) -> Result<Option<&'static str>, String> {
    let usual = |own: &Vec<Activation>| {
        let names = own.iter().map(|a| a.name.as_str());
        let mut with_default = names.clone().zip(kind.defaults());
        with_default.all(|(name, default)| name.eq_ignore_ascii_case(default))
            || kind == Kind::Plain && names.clone().all(|name| name.eq_ignore_ascii_case("relu"))
    };
    Ok(if !activations.iter().all(usual) {
        Some(match kind {
            Kind::Plain => "other activations than `Tanh` and `Relu`",
            _ => "other activations than the default ones",
        })
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

/// Returns the lengths of the sequences; with `or_given`, they need not be known at import.
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
    weights: [Value; 2],
    d: usize,
    reverse: bool,
    activations: Vec<Activation>,
    by_batch: bool,
) -> Result<Direction, String> {
    let (hidden, gates) = (layer.hidden, layer.kind.gates());
    let own = |graph: &mut Graph, value: Value| -> Value {
        let dims = graph.shape(value).to_vec();
        let one = graph.slice_axis(value, 0, d, d + 1);
        graph.reshape(one, dims.get(1..).unwrap_or(&[])).into()
    };
    let part = |call: &mut Call, i: usize| -> Result<Option<Value>, String> {
        let value = call.optional(i)?;
        Ok(value.map(|value| own(call.graph(), value)))
    };
    let [w, r] = weights.map(|weight| own(call.graph(), weight));
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
        let one = if by_batch {
            graph.slice_axis(value, 1, d, d + 1)
        } else {
            graph.slice_axis(value, 0, d, d + 1)
        };
        Ok(graph.reshape(one, &[layer.batch, hidden]).into())
    };
    let h = state(call, 5)?;
    let is_lstm = layer.kind == Kind::Lstm;
    let c = if is_lstm { state(call, 6)? } else { h };
    let peepholes = if is_lstm { part(call, 7)? } else { None };
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

/// Reorders blocks of the first axis.
fn reordered(g: &mut Graph, x: Value, hidden: usize, order: &[usize]) -> Value {
    let parts: Vec<Value> = order
        .iter()
        .map(|&block| g.slice_axis(x, 0, block * hidden, (block + 1) * hidden).into())
        .collect();
    g.concat(&parts, 0).into()
}

/// Computes the results of [`unrolled::run`] by one recurrent operator of the graph, whose gates are in another order.
fn in_one(g: &mut Graph, layer: &Layer, x: Value, d: &Direction) -> (Value, Value, Value) {
    let (hidden, gates, batch, rounds) = (layer.hidden, layer.kind.gates(), layer.batch, layer.rounds);
    // ONNX has i, o, f, c and z, r, h; the operators have i, f, c, o and r, z, h.
    let order: &[usize] = match layer.kind {
        Kind::Lstm => &[0, 2, 3, 1],
        Kind::Gru => &[1, 0, 2],
        Kind::Plain => &[0],
    };
    let [w, r] = [d.w, d.r].map(|weight| reordered(g, weight, hidden, order));
    // Projects the inputs of all rounds in one product.
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
        Kind::Plain => {
            let relu = d.activations.iter().any(|a| a.name.eq_ignore_ascii_case("relu"));
            g.rnn(projected, r, d.h, lengths, relu, d.reverse)
        }
        Kind::Gru => {
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
