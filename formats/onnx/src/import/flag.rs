//! Flags: values of the graph that are not 0 (*raised*) if a 64-bit integer does not fit into 32 bits, or a category is
//! unknown.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, Value};

use crate::element::ElementType;

/// Condition of a [`Guard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardKind {
    /// All 64-bit integers fit into 32 bits.
    Overflow,
    /// All elements are categories of the node.
    Category,
}

/// Check of a node whose 64-bit integers may exceed 32 bits in a step, or whose operand may contain unknown
/// categories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Name of the node, or of its first result.
    pub place: String,
    /// Operator of the node.
    pub operator: String,
    /// Condition that the guard checks.
    pub kind: GuardKind,
    /// Element type of the result.
    pub element: ElementType,
    /// Scalar `u32` of the graph: not 0 if the condition is violated.
    pub flag: Value,
    /// Result of the node.
    pub(super) result: Value,
}

/// Returns the graph with one more result: the number of guards minus the index of the first guard with a raised flag,
/// or 0 if no flag is raised.
pub(super) fn with_code(graph: &Graph, guards: &[Guard]) -> Graph {
    let mut graph = graph.clone();
    let count = guards.len();
    let mut codes: Vec<Value> = Vec::with_capacity(count);
    for (i, guard) in guards.iter().enumerate() {
        let code = graph.scalar_of(DType::U32, (count - i) as f64);
        codes.push(graph.mul(guard.flag, code).into());
    }
    // A tree of maxima has a smaller depth than a chain.
    while codes.len() > 1 {
        codes = codes
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => graph.maximum(*a, *b).into(),
                rest => rest[0],
            })
            .collect();
    }
    let mut outputs = graph.outputs().to_vec();
    outputs.extend(codes);
    graph.set_outputs(outputs);
    graph
}
