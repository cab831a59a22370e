//! Cases of calls that exceed the limits of a single kernel: operands, ranks, elements, steps.

use std::fmt::Display;

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use super::exact::{case, feeds, outputs};
use crate::case::{Case, CaseRun, SharedDevice};
use crate::harness::Feeds;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("limits/9 operands of a concatenation", |device| concatenated(device, 9)),
        case("limits/600 operands of a concatenation", |device| {
            concatenated(device, 600)
        }),
        case("limits/9 empty operands of a concatenation", nothing_concatenated),
        case("limits/40 inputs of elementwise calls", many_inputs),
        case("limits/40 outputs of elementwise calls", many_outputs),
        case("limits/500 elementwise calls", long_chain),
        case("limits/14 axes", many_axes),
        case("limits/9 steps of an LSTM", recurrent_steps),
        case("limits/more workgroups than one axis has", many_workgroups),
        case("limits/rounding between casts", rounding_between_casts),
    ]
}

/// Adds inputs `x0`, `x1` ... of a shape. Returns them, their values (0, 1, 2 ... over all inputs) by name, and all
/// values.
fn inputs(g: &mut Graph, count: usize, shape: &[usize]) -> (Vec<NodeId>, Feeds, Vec<f64>) {
    let elements: usize = shape.iter().product();
    let mut given = Feeds::new();
    let mut nodes = Vec::new();
    let all: Vec<f64> = (0..count * elements).map(|i| i as f64).collect();
    for i in 0..count {
        nodes.push(g.input(&name(i), shape));
        given.insert(name(i), all[i * elements..(i + 1) * elements].to_vec());
    }
    (nodes, given, all)
}

fn name(i: impl Display) -> String {
    format!("x{i}")
}

fn concatenated(device: &SharedDevice, count: usize) -> CaseRun {
    let mut g = Graph::new();
    let (nodes, given, all) = inputs(&mut g, count, &[1, 2]);
    let rows = g.concat(&nodes, 0);
    let columns = g.concat(&nodes, 1);
    g.set_outputs(vec![rows, columns]);
    outputs(device, &g, &given, &[&all, &all])
}

fn nothing_concatenated(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let (mut nodes, given, all) = inputs(&mut g, 1, &[2, 1]);
    for _ in 0..9 {
        nodes.push(g.constant(Vec::new(), &[2, 0]));
    }
    let y = g.concat(&nodes, 1);
    g.set_outputs(vec![y]);
    outputs(device, &g, &given, &[&all])
}

fn many_inputs(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let (nodes, given, all) = inputs(&mut g, 40, &[1]);
    let mut sum: Value = nodes[0].into();
    for &x in &nodes[1..] {
        sum = g.add(sum, x).into();
    }
    g.set_outputs(vec![sum]);
    outputs(device, &g, &given, &[&[all.iter().sum()]])
}

fn many_outputs(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[1]);
    let mut at: Value = x.into();
    let mut results = Vec::new();
    for _ in 0..40 {
        at = g.add(at, x).into();
        results.push(at);
    }
    g.set_outputs(results);
    let expected: Vec<[f64; 1]> = (2..42).map(|i| [f64::from(i)]).collect();
    let expected: Vec<&[f64]> = expected.iter().map(|e| &e[..]).collect();
    outputs(device, &g, &feeds([("x", &[1.0])]), &expected)
}

fn long_chain(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let mut at: Value = x.into();
    for _ in 0..250 {
        let more = g.add(at, x);
        at = g.abs(more).into();
    }
    g.set_outputs(vec![at]);
    outputs(device, &g, &feeds([("x", &[1.0, 2.0, 0.0])]), &[&[251.0, 502.0, 0.0]])
}

fn many_axes(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let shape = [2, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 1, 1, 2];
    let x = g.input("x", &shape);
    let order: Vec<i32> = (0..shape.len() as i32).rev().collect();
    let turned = g.permute(x, &order);
    let sum = g.sum(turned, &[0, 6], false);
    let column = g.input("column", &[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    let y = g.add(x, column);
    let y = g.relu(y);
    g.set_outputs(vec![turned, sum, y]);
    let data: Vec<f64> = (0..16).map(f64::from).collect();
    // Element (a, b, c, d) of the operand is 8 a + 4 b + 2 c + d.
    let bits = |i: u32| [i & 1, i >> 1 & 1, i >> 2 & 1, i >> 3 & 1].map(f64::from);
    let reversed: Vec<f64> = (0..16)
        .map(|i| {
            let [a, b, c, d] = bits(i);
            8.0 * a + 4.0 * b + 2.0 * c + d
        })
        .collect();
    let summed: Vec<f64> = (0..4)
        .map(|i| {
            let [a, b, ..] = bits(i);
            4.0 * (8.0 * a + 4.0 * b) + 2.0 * (2.0 + 1.0)
        })
        .collect();
    let moved: Vec<f64> = (0..16)
        .map(|i| f64::from(i) + if i < 8 { 1.0 } else { 100.0 })
        .collect();
    let given = feeds([("x", &data), ("column", &[1.0, 100.0])]);
    outputs(device, &g, &given, &[&reversed, &summed, &moved])
}

fn recurrent_steps(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let gates = g.input("gates", &[9, 1, 4]);
    let weight = g.input("weight", &[4, 1]);
    let start = g.input("start", &[1, 1]);
    let y = g.lstm(gates, weight, start, start, None, false);
    g.set_outputs(vec![y]);
    // All gates are closed: the sigmoid of -1000 is 0.
    let given = feeds([("gates", &[-1000.0; 36]), ("weight", &[0.0; 4]), ("start", &[0.0])]);
    outputs(device, &g, &given, &[&[0.0; 9]])
}

fn many_workgroups(device: &SharedDevice) -> CaseRun {
    // 65,535 workgroups of 256 threads cover fewer elements.
    const ELEMENTS: usize = (1 << 24) + 3;
    let mut g = Graph::new();
    let x = g.input("x", &[1]);
    let wide = g.expand(x, &[ELEMENTS]);
    let y = g.neg(wide);
    g.set_outputs(vec![y]);
    outputs(device, &g, &feeds([("x", &[2.0])]), &[&vec![-2.0; ELEMENTS]])
}

/// Checks that casts to half precision round, although a single kernel computes all of these calls.
fn rounding_between_casts(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[5]);
    let mut results: Vec<NodeId> = Vec::new();
    for half in [DType::F16, DType::BF16] {
        let narrow = g.cast(x, half);
        let wide = g.cast(narrow, DType::F32);
        results.push(g.neg(wide));
        let other = if half == DType::F16 { DType::BF16 } else { DType::F16 };
        let again = g.cast(narrow, other);
        let wide = g.cast(again, DType::F32);
        results.push(g.neg(wide));
    }
    g.set_outputs(results);
    let expected: [&[f64]; 4] = [
        &[-2048.0, -65504.0, f64::NEG_INFINITY, -257.0, 0.0],
        &[-2048.0, -65536.0, f64::NEG_INFINITY, -256.0, 0.0],
        &[-2048.0, -65536.0, -65536.0, -256.0, 0.0],
        &[-2048.0, f64::NEG_INFINITY, f64::NEG_INFINITY, -256.0, 0.0],
    ];
    let given = [2049.0, 65519.0, 65520.0, 257.0, 0.0];
    outputs(device, &g, &feeds([("x", &given)]), &expected)
}
