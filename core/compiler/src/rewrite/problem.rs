//! What the extractor works on: an e-graph as plain numbers.

/// A way to compute a class: an e-node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Equal for equal operators with equal attributes.
    pub label: u32,
    /// Cost of this computation alone, in picoseconds.
    pub cost: u64,
    /// Classes of its operands, sorted, each once.
    pub children: Vec<u32>,
}

/// Classes, the ways to compute each, and which are wanted. A solution chooses one way for each class that is
/// needed, without a cycle; its cost is the sum over the classes needed, each counted once.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    /// Ways to compute each class.
    pub classes: Vec<Vec<Choice>>,
    /// Classes that are wanted.
    pub roots: Vec<u32>,
    /// Sets of classes of which a solution may use at most one: two packings of one parameter.
    pub exclusive: Vec<Vec<u32>>,
}

/// For each class the index of the way chosen; `None` where the class is not needed.
pub type Selection = Vec<Option<u32>>;
