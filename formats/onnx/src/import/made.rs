//! Limit for the memory that an import uses in addition to the file's contents.

use meganeura_core::files::free_memory;
use meganeura_core::graph::{Graph, NodeKind};

use super::Operand;

/// Number of bytes that nodes may use between two memory checks.
const STEP: u64 = 256 << 20;
/// Bytes that must be available at a check: the maximum that one more node may create.
const RESERVE: u64 = 512 << 20;
/// Estimated bytes of a node of the graph.
const NODE: u64 = 512;

/// Counter of the memory that nodes use. Each node creates a bounded amount, but many nodes of a small file could exceed the
/// memory.
#[derive(Default)]
pub(super) struct MemoryLimit {
    /// Number of nodes of the graph that were counted.
    nodes: usize,
    /// Number of bytes since the last memory check.
    bytes: u64,
    /// True if too little memory was available.
    is_too_much: bool,
}

impl MemoryLimit {
    /// Counts the new nodes of the graph and the results of a node.
    ///
    /// # Errors
    /// Almost no memory is available.
    pub(super) fn count(&mut self, graph: &Graph, results: &[Operand]) -> Result<(), String> {
        let new = graph.nodes().get(self.nodes..).unwrap_or_default();
        self.nodes = graph.nodes().len();
        let constants = new.iter().map(|node| match &node.kind {
            NodeKind::Constant(data) => NODE + data.bytes().len() as u64,
            _ => NODE,
        });
        // Tensors on the host have elements of 64 bits.
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
                    "the constants computed up to this node leave {} MB of memory, too little to continue",
                    free / 1_000_000
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the import must stop, because too little memory is available.
    pub(super) fn is_too_much(&self) -> bool {
        self.is_too_much
    }
}
