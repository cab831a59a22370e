//! The extractor's input: an e-graph as plain numbers.

/// One way to compute a class: an e-node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Number of operator and attributes: equal for equal operators with equal attributes.
    pub label: u32,
    /// Cost of this computation without its operands, in picoseconds.
    pub cost: u64,
    /// Classes of its operands, sorted, each once.
    pub children: Vec<u32>,
}

/// A problem: classes, the ways to compute each, and the roots. A solution chooses one way for each needed class,
/// without a cycle. Its cost is the sum over the needed classes, each counted once.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    /// Ways to compute each class.
    pub classes: Vec<Vec<Choice>>,
    /// Classes that a solution must compute.
    pub roots: Vec<u32>,
    /// Sets of classes that exclude each other: a solution may use at most one class of each set. For example, two
    /// packings of one parameter form such a set.
    pub exclusive: Vec<Vec<u32>>,
}

/// Index of the chosen way for each class; `None` if the class is not needed.
pub type Selection = Vec<Option<u32>>;
