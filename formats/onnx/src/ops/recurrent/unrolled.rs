//! Recurrent layers that no operator of graphs supports, as the nodes of one round after the other.

use meganeura_core::graph::{Graph, Value};

use super::{Direction, Kind, Layer, Lengths};

/// Builds the layer. Returns the results `[rounds, 1, batch, hidden]`, the last output and the last cell `[1, batch, hidden]`.
pub(super) fn run(g: &mut Graph, layer: &Layer, x: Value, d: &Direction) -> Result<(Value, Value, Value), String> {
    let (hidden, gates, batch, rounds) = (layer.hidden, layer.kind.gates(), layer.batch, layer.rounds);
    // Projects the inputs of all rounds in one product.
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
    let order: Vec<usize> = if d.reverse {
        (0..rounds).rev().collect()
    } else {
        (0..rounds).collect()
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
                // Sequences that have ended keep their state and return zeros.
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

/// Returns column block `i` of a value `[batch, gates * hidden]`.
fn gate(g: &mut Graph, x: Value, i: usize, hidden: usize) -> Value {
    g.slice_axis(x, 1, i * hidden, (i + 1) * hidden).into()
}

/// Returns `f(x W + h R + b)`.
fn plain(g: &mut Graph, layer: &Layer, d: &Direction, x: Value, h: Value) -> Result<Value, String> {
    let product = g.matmul_bt(h, d.r);
    let sum = g.add(x, product);
    let sum = clipped(g, layer, sum.into());
    d.activations[0].apply(g, sum)
}

/// Computes the gates z and r, and the candidate: `(1 - z) candidate + z h`.
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

/// Computes the gates i, o, f and the candidate c: new cell `f c + i candidate`, new output `o h(cell)`.
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
    let f = if layer.input_forget {
        let one = g.scalar_of(g.dtype(i), 1.0);
        g.sub(one, i).into()
    } else {
        d.activations[0].apply(g, f)?
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

fn clipped(g: &mut Graph, layer: &Layer, x: Value) -> Value {
    match layer.clip {
        Some(limit) => g.clamp(x, -limit, limit).into(),
        None => x,
    }
}
