//! Tests of recurrent layers against independent loops.

use std::collections::HashMap;

use meganeura_core::graph::{NodeKind, Value};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{Graph, NodeId};
use meganeura_nn::layers::{RecurrentConfig, RnnActivation};

const STEPS: usize = 5;
const BATCH: usize = 2;
const INPUTS: usize = 3;
const HIDDEN: usize = 4;

/// Returns random values of all leaves.
fn random_leaves(g: &Graph) -> HashMap<String, Vec<f64>> {
    let mut rng = SplitMix64::new(7);
    let leaves = g.nodes().iter().filter(|node| node.is_named_leaf());
    leaves
        .map(|node| {
            let len = node.outputs[0].numel();
            let values = (0..len).map(|_| rng.unit() * 2.0 - 1.0).collect();
            (node.name.as_deref().expect("a name").to_owned(), values)
        })
        .collect()
}

fn values(g: &mut Graph, results: &[NodeId], feeds: &HashMap<String, Vec<f64>>) -> Vec<Vec<f64>> {
    g.set_outputs(results.to_vec());
    g.verify().expect("a valid graph");
    let values = evaluate(g, feeds).expect("evaluates");
    let of = |&node: &NodeId| values.get(Value::from(node)).expect("a value").data.clone();
    results.iter().map(of).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn close(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!((f - w).abs() < 1e-9, "[{i}]: {f}, not {w}");
    }
}

/// Returns row `row` of `matrix [.., x.len()]` times `x`.
fn dot(matrix: &[f64], row: usize, x: &[f64]) -> f64 {
    let row = &matrix[row * x.len()..(row + 1) * x.len()];
    row.iter().zip(x).map(|(a, b)| a * b).sum()
}

/// Returns the parameters of a layer in the order weight_ih, weight_hh, bias_ih, bias_hh.
fn parameters<'a>(feeds: &'a HashMap<String, Vec<f64>>, suffix: &str) -> [&'a [f64]; 4] {
    ["weight_ih", "weight_hh", "bias_ih", "bias_hh"].map(|name| feeds[&format!("rnn.{name}_l0{suffix}")].as_slice())
}

#[test]
fn an_lstm_computes_its_formula() {
    for reverse in [false, true] {
        let mut g = Graph::new();
        let x = g.input("x", &[STEPS, BATCH, INPUTS]);
        let layer = RecurrentConfig::new(INPUTS, HIDDEN)
            .reverse(reverse)
            .lstm(&mut g, "rnn");
        let states = layer.forward(&mut g, x);
        assert_eq!(g.shape(states.steps), [STEPS, BATCH, HIDDEN]);
        assert_eq!(g.shape(states.cell), [BATCH, HIDDEN]);
        let feeds = random_leaves(&g);
        let found = values(&mut g, &[states.steps, states.hidden, states.cell], &feeds);
        let [w, u, b, d] = parameters(&feeds, if reverse { "_reverse" } else { "" });
        let mut steps = vec![0.0; STEPS * BATCH * HIDDEN];
        let (mut last_h, mut last_c) = (Vec::new(), Vec::new());
        for batch in 0..BATCH {
            let (mut h, mut c) = (vec![0.0; HIDDEN], vec![0.0; HIDDEN]);
            for n in 0..STEPS {
                let t = if reverse { STEPS - 1 - n } else { n };
                let at = (t * BATCH + batch) * INPUTS;
                let x = &feeds["x"][at..at + INPUTS];
                let gate = |block: usize, i: usize| {
                    let row = block * HIDDEN + i;
                    dot(w, row, x) + b[row] + dot(u, row, &h) + d[row]
                };
                let new: Vec<(f64, f64)> = (0..HIDDEN)
                    .map(|i| {
                        let cell = sigmoid(gate(1, i)) * c[i] + sigmoid(gate(0, i)) * gate(2, i).tanh();
                        (sigmoid(gate(3, i)) * cell.tanh(), cell)
                    })
                    .collect();
                (h, c) = new.into_iter().unzip();
                let at = (t * BATCH + batch) * HIDDEN;
                steps[at..at + HIDDEN].copy_from_slice(&h);
            }
            last_h.extend(h);
            last_c.extend(c);
        }
        close(&found[0], &steps);
        close(&found[1], &last_h);
        close(&found[2], &last_c);
    }
}

#[test]
fn a_gru_computes_its_formula_up_to_each_length() {
    let lengths = [3, 5];
    let mut g = Graph::new();
    let x = g.input("x", &[STEPS, BATCH, INPUTS]);
    let h = g.input("h", &[BATCH, HIDDEN]);
    let given = g.constant_u32(lengths.to_vec(), &[BATCH]).into();
    let layer = RecurrentConfig::new(INPUTS, HIDDEN).gru(&mut g, "rnn");
    let states = layer.forward_from(&mut g, x, h, Some(given));
    let feeds = random_leaves(&g);
    let found = values(&mut g, &[states.hidden], &feeds);
    let [w, u, b, d] = parameters(&feeds, "");
    let mut last = Vec::new();
    for (batch, &length) in lengths.iter().enumerate() {
        let mut h = feeds["h"][batch * HIDDEN..(batch + 1) * HIDDEN].to_vec();
        for t in 0..length as usize {
            let at = (t * BATCH + batch) * INPUTS;
            let x = &feeds["x"][at..at + INPUTS];
            let input = |row: usize| dot(w, row, x) + b[row];
            let state = |row: usize| dot(u, row, &h) + d[row];
            let gate = |row: usize| sigmoid(input(row) + state(row));
            let new = |i: usize| {
                let candidate = (input(2 * HIDDEN + i) + gate(i) * state(2 * HIDDEN + i)).tanh();
                let z = gate(HIDDEN + i);
                (1.0 - z) * candidate + z * h[i]
            };
            h = (0..HIDDEN).map(new).collect();
        }
        last.extend(h);
    }
    close(&found[0], &last);
}

#[test]
fn an_rnn_computes_its_formula_up_to_each_length() {
    let lengths = [4, 5];
    for (activation, reverse) in [(RnnActivation::Tanh, false), (RnnActivation::Relu, true)] {
        let mut g = Graph::new();
        let x = g.input("x", &[STEPS, BATCH, INPUTS]);
        let h = g.input("h", &[BATCH, HIDDEN]);
        let given = g.constant_u32(lengths.to_vec(), &[BATCH]).into();
        let config = RecurrentConfig::new(INPUTS, HIDDEN).reverse(reverse);
        let layer = config.rnn(&mut g, "rnn", activation);
        let states = layer.forward_from(&mut g, x, h, Some(given));
        let feeds = random_leaves(&g);
        let found = values(&mut g, &[states.steps, states.hidden], &feeds);
        let [w, u, b, d] = parameters(&feeds, if reverse { "_reverse" } else { "" });
        let mut steps = vec![0.0; STEPS * BATCH * HIDDEN];
        let mut last = Vec::new();
        for (batch, &length) in lengths.iter().enumerate() {
            let mut h = feeds["h"][batch * HIDDEN..(batch + 1) * HIDDEN].to_vec();
            for n in 0..STEPS {
                let t = if reverse { STEPS - 1 - n } else { n };
                let at = (t * BATCH + batch) * INPUTS;
                let x = &feeds["x"][at..at + INPUTS];
                let new = |i: usize| {
                    let sum = dot(w, i, x) + b[i] + dot(u, i, &h) + d[i];
                    match activation {
                        RnnActivation::Tanh => sum.tanh(),
                        RnnActivation::Relu => sum.max(0.0),
                    }
                };
                if t < length as usize {
                    h = (0..HIDDEN).map(new).collect();
                }
                let at = (t * BATCH + batch) * HIDDEN;
                steps[at..at + HIDDEN].copy_from_slice(&h);
            }
            last.extend(h);
        }
        close(&found[0], &steps);
        close(&found[1], &last);
    }
}

#[test]
fn parameters_have_the_names_and_shapes_of_pytorch() {
    let mut g = Graph::new();
    RecurrentConfig::new(3, 4).lstm(&mut g, "a");
    RecurrentConfig::new(3, 4).reverse(true).bias(false).gru(&mut g, "b");
    RecurrentConfig::new(3, 4)
        .bias(false)
        .rnn(&mut g, "c", RnnActivation::Tanh);
    let found: Vec<(&str, Vec<usize>)> = g
        .nodes()
        .iter()
        .filter(|node| matches!(node.kind, NodeKind::Parameter { .. }))
        .map(|node| (node.name.as_deref().expect("a name"), node.outputs[0].shape.to_vec()))
        .collect();
    let wanted = [
        ("a.weight_ih_l0", vec![16, 3]),
        ("a.weight_hh_l0", vec![16, 4]),
        ("a.bias_ih_l0", vec![16]),
        ("a.bias_hh_l0", vec![16]),
        ("b.weight_ih_l0_reverse", vec![12, 3]),
        ("b.weight_hh_l0_reverse", vec![12, 4]),
        ("c.weight_ih_l0", vec![4, 3]),
        ("c.weight_hh_l0", vec![4, 4]),
    ];
    assert_eq!(found, wanted);
}
