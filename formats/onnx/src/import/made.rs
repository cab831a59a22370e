//! What an import has made, beside what the file holds.

use meganeura_core::files::free_memory;
use meganeura_core::graph::{Graph, NodeKind};

use super::Operand;

/// Bytes after which the memory that is left is looked at again.
const STEP: u64 = 256 << 20;
/// Bytes that have to be left then: what one more node may make.
const RESERVE: u64 = 512 << 20;
/// About what a node of the graph takes.
const NODE: u64 = 512;

/// Counts what nodes make. Each of them makes a bounded part; many of a small file could make more than there is memory.
#[derive(Default)]
pub(super) struct Made {
    /// Nodes of the graph that were counted.
    nodes: usize,
    /// Bytes since the memory was looked at.
    bytes: u64,
    /// Whether there was too little left.
    is_too_much: bool,
}

impl Made {
    /// Counts what the graph and the results of a node have more than before.
    ///
    /// # Errors
    /// There is hardly any memory left.
    pub(super) fn count(&mut self, graph: &Graph, results: &[Operand]) -> Result<(), String> {
        let new = graph.nodes().get(self.nodes..).unwrap_or_default();
        self.nodes = graph.nodes().len();
        let constants = new.iter().map(|node| match &node.kind {
            NodeKind::Constant(data) => NODE + data.bytes().len() as u64,
            _ => NODE,
        });
        // Integers and floats of known tensors have 64 bits.
        let known = results.iter().filter_map(Operand::determined);
        let known = known.map(|tensor| 8 * tensor.len() as u64);
        self.bytes = constants.chain(known).fold(self.bytes, u64::saturating_add);
        if self.bytes < STEP {
            return Ok(());
        }
        self.bytes = 0;
        match free_memory() {
            Some(free) if free < RESERVE => {
                self.is_too_much = true;
                Err(format!(
                    "what this node and those before it make of their own leaves {} MB of memory, too little to go on",
                    free / 1_000_000
                ))
            }
            _ => Ok(()),
        }
    }

    /// Whether nothing more may be made.
    pub(super) fn is_too_much(&self) -> bool {
        self.is_too_much
    }
}
