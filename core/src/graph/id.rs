//! Node ids, and the graphs that they belong to.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering as MemoryOrder};

use serde::{Deserialize, Serialize};

/// Index of a node; as an operand it means the node's port 0.
///
/// An id contains the graph that created it, so that a graph rejects nodes of another one. That is
/// only a check: comparisons, hashes and files use only the index, so equal graphs have equal
/// plans. Clones of a graph share ids, because their common nodes are the same.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(into = "StoredId", from = "StoredId")]
pub struct NodeId(pub u32, Owner);

/// Representation in files.
#[derive(Serialize, Deserialize)]
#[serde(rename = "NodeId")]
struct StoredId(u32);

/// The graph that an id belongs to; zero if it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u32);

impl Default for Owner {
    /// Returns a new value at each call, so that each new graph gets its own.
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Owner(NEXT.fetch_add(1, MemoryOrder::Relaxed).max(1))
    }
}

impl NodeId {
    /// Creates the id of the node with this index, valid for any graph.
    pub const fn new(index: u32) -> Self {
        NodeId(index, Owner(0))
    }

    pub(super) fn of(owner: Owner, index: u32) -> Self {
        NodeId(index, owner)
    }

    pub(super) fn may_belong_to(self, owner: Owner) -> bool {
        self.1 == owner || self.1 == Owner(0)
    }

    /// Returns the id as a list index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({})", self.0)
    }
}

impl PartialEq for NodeId {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for NodeId {}

impl Hash for NodeId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialOrd for NodeId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NodeId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl From<NodeId> for StoredId {
    fn from(id: NodeId) -> Self {
        StoredId(id.0)
    }
}

impl From<StoredId> for NodeId {
    fn from(StoredId(index): StoredId) -> Self {
        NodeId::new(index)
    }
}
