//! Node ids, and the graphs that they belong to.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering as MemoryOrder};

use serde::{Deserialize, Serialize};

/// Index of a node; as an operand it means the node's port 0.
///
/// An id remembers the graph that returned it, so that a graph refuses the nodes of another one. That is a check and no
/// part of the id's value: comparisons, hashes and files know the index alone, so that equal graphs have equal plans.
/// Clones of a graph share their ids, because the nodes that they have in common are the same.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(into = "Stored", from = "Stored")]
pub struct NodeId(pub u32, Owner);

/// How files have it.
#[derive(Serialize, Deserialize)]
#[serde(rename = "NodeId")]
struct Stored(u32);

/// Which graph an id belongs to; zero where that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u32);

impl Default for Owner {
    /// Another one at each call, as each new graph needs.
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Owner(NEXT.fetch_add(1, MemoryOrder::Relaxed).max(1))
    }
}

impl NodeId {
    /// The node at that place of a graph's list, whichever graph it is used with.
    pub const fn new(index: u32) -> Self {
        NodeId(index, Owner(0))
    }

    pub(super) fn of(owner: Owner, index: u32) -> Self {
        NodeId(index, owner)
    }

    pub(super) fn may_belong_to(self, owner: Owner) -> bool {
        self.1 == owner || self.1 == Owner(0)
    }

    /// As a list index.
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

impl From<NodeId> for Stored {
    fn from(id: NodeId) -> Self {
        Stored(id.0)
    }
}

impl From<Stored> for NodeId {
    fn from(Stored(index): Stored) -> Self {
        NodeId::new(index)
    }
}
