//! Graphs whose inputs have random values, with the expected results of the oracle.

use std::collections::HashMap;

use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::sample::SampleInput;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{NodeId, Session};

/// A graph with its inputs and the expected outputs.
pub(crate) struct Case {
    /// Label for messages: initially the shapes of the inputs.
    pub(crate) label: String,
    pub(crate) graph: Graph,
    feeds: HashMap<String, Vec<f64>>,
    expected: Vec<Vec<f64>>,
}

impl Case {
    /// Creates a graph whose inputs have these shapes.
    pub(crate) fn new<V: Into<Value> + Copy>(
        shapes: &[&[usize]],
        build: impl Fn(&mut Graph, &[NodeId]) -> Vec<V>,
    ) -> Self {
        let inputs: Vec<SampleInput> = shapes.iter().map(|shape| SampleInput::f32(shape)).collect();
        Case::with(&inputs, build, |_, _, value| value)
    }

    /// Creates a graph with these inputs. `change` returns the new value of an element, given the index of the input,
    /// the index of the element, and the original value.
    pub(crate) fn with<V: Into<Value> + Copy>(
        inputs: &[SampleInput],
        build: impl Fn(&mut Graph, &[NodeId]) -> Vec<V>,
        change: impl Fn(usize, usize, f64) -> f64,
    ) -> Self {
        let mut graph = Graph::new();
        let name = |i: usize| format!("x{i}");
        let nodes: Vec<NodeId> = (0..)
            .zip(inputs)
            .map(|(i, x)| graph.input(&name(i), &x.shape))
            .collect();
        let outputs = build(&mut graph, &nodes);
        graph.set_outputs(outputs.clone());
        let values = |(i, input): (usize, &SampleInput)| {
            let values = input.values(&mut SplitMix64::new(i as u64)).into_iter();
            (name(i), values.enumerate().map(|(at, v)| change(i, at, v)).collect())
        };
        let feeds = inputs.iter().enumerate().map(values).collect();
        let evaluation = evaluate(&graph, &feeds).expect("the oracle evaluates it");
        let expected = outputs.iter().map(|&output| {
            let value = evaluation.get(output.into()).expect("a value");
            value.data.clone()
        });
        let shapes: Vec<&[usize]> = inputs.iter().map(|x| &x.shape[..]).collect();
        Case {
            label: format!("{shapes:?}"),
            expected: expected.collect(),
            graph,
            feeds,
        }
    }

    /// Returns the expected outputs.
    pub(crate) fn expected(&self) -> &[Vec<f64>] {
        &self.expected
    }

    /// Runs a step and returns the outputs.
    pub(crate) fn run(&self, session: &mut Session) -> Vec<Vec<f32>> {
        for (name, values) in &self.feeds {
            let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            session.set_input(name, &values);
        }
        session.step();
        let read = |(i, expected): (usize, &Vec<f64>)| {
            let mut found = vec![0.0; expected.len()];
            session.read_output_by_index(i, &mut found);
            found
        };
        self.expected.iter().enumerate().map(read).collect()
    }

    /// Runs a step, and compares every output with that of the oracle. No element may differ by more than the
    /// tolerance times the largest element, and NaN must match.
    pub(crate) fn check(&self, mut session: Session, tolerance: f64) {
        let found = self.run(&mut session);
        for (i, (expected, found)) in self.expected().iter().zip(&found).enumerate() {
            let scale = expected.iter().fold(0.01, |m: f64, v| m.max(v.abs()));
            for (at, (&e, &f)) in expected.iter().zip(found).enumerate() {
                let error = (e - f64::from(f)).abs();
                assert!(
                    error <= tolerance * scale || e.is_nan() && f.is_nan(),
                    "{}, output {i} [{at}]: {f}, not {e}, of {scale}",
                    self.label
                );
            }
        }
    }
}
