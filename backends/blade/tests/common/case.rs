//! Graphs of inputs with random values, and what the oracle makes of them.

use std::collections::HashMap;

use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::sample::SampleInput;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{NodeId, Session};

/// A graph whose outputs are known.
pub(crate) struct Case {
    /// Shapes of the inputs, for messages.
    label: String,
    pub(crate) graph: Graph,
    feeds: HashMap<String, Vec<f64>>,
    expected: Vec<Vec<f64>>,
}

impl Case {
    /// A graph of inputs of these shapes.
    pub(crate) fn new(shapes: &[&[usize]], build: impl Fn(&mut Graph, &[NodeId]) -> Vec<NodeId>) -> Self {
        let mut graph = Graph::new();
        let name = |i: usize| format!("x{i}");
        let inputs: Vec<NodeId> = shapes
            .iter()
            .enumerate()
            .map(|(i, s)| graph.input(&name(i), s))
            .collect();
        let outputs = build(&mut graph, &inputs);
        graph.set_outputs(outputs.clone());
        let values = |(i, shape): (usize, &&[usize])| {
            let values = SampleInput::f32(shape).values(&mut SplitMix64::new(i as u64));
            (name(i), values)
        };
        let feeds = shapes.iter().enumerate().map(values).collect();
        let evaluation = evaluate(&graph, &feeds).expect("the oracle evaluates it");
        let expected = outputs.iter().map(|&output| {
            let value = evaluation.get(Value::from(output)).expect("a value");
            value.data.clone()
        });
        Case {
            label: format!("{shapes:?}"),
            expected: expected.collect(),
            graph,
            feeds,
        }
    }

    /// Runs a step, and compares every output with the oracle's: no element may be off by more than the tolerance
    /// times the largest one.
    pub(crate) fn check(&self, mut session: Session, tolerance: f64) {
        for (name, values) in &self.feeds {
            let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            session.set_input(name, &values);
        }
        session.step();
        for (i, expected) in self.expected.iter().enumerate() {
            let mut found = vec![0.0; expected.len()];
            session.read_output_by_index(i, &mut found);
            let scale = expected.iter().fold(0.01, |m: f64, v| m.max(v.abs()));
            for (at, (e, &f)) in expected.iter().zip(&found).enumerate() {
                let error = (e - f64::from(f)).abs();
                assert!(
                    error <= tolerance * scale,
                    "{}, output {i} [{at}]: {f}, not {e}, of {scale}",
                    self.label
                );
            }
        }
    }
}
