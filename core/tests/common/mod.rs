//! Shared code of operator tests: sample calls as graphs with values.

use std::collections::HashMap;

use meganeura_core::graph::{Graph, NodeId};
use meganeura_core::ops::OpRef;
use meganeura_core::ops::sample::Sample;
use meganeura_core::random::SplitMix64;

/// A sample case as a graph, with the values of its inputs.
pub(crate) struct Case {
    pub(crate) graph: Graph,
    pub(crate) call: NodeId,
    pub(crate) operands: Vec<NodeId>,
    pub(crate) feeds: HashMap<String, Vec<f64>>,
}

/// Builds the call of a sample case on inputs (or states) named `operand0`, `operand1` ...
pub(crate) fn case(op: OpRef, sample: &Sample, seed: u64) -> Case {
    let mut graph = Graph::new();
    let mut rng = SplitMix64::new(seed);
    let mut feeds = HashMap::new();
    let operands: Vec<NodeId> = sample
        .inputs
        .iter()
        .enumerate()
        .map(|(i, input)| {
            let name = format!("operand{i}");
            feeds.insert(name.clone(), input.values(&mut rng));
            input.leaf(&mut graph, &name, input.dtype)
        })
        .collect();
    let call = graph.call(op, sample.attrs.clone(), operands.iter().map(|&o| o.into()).collect());
    Case {
        graph,
        call,
        operands,
        feeds,
    }
}
