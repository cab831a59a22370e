//! Decision trees, and their tables for a traversal level by level.

use std::collections::HashMap;

use crate::ops::limits;

/// Maximum number of levels of a tree: each level adds about eight nodes to the graph.
const MAX_LEVELS: usize = limits::MAX_PARTS;

/// Comparison of a feature with a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    AtMost,
    Below,
    AtLeast,
    Above,
    Equal,
    NotEqual,
    /// The feature is an element of a set.
    Member,
}

/// The modes in the order of their numbers in TreeEnsemble, with their names in the older operators.
pub(super) const MODES: [(Mode, &str); 7] = [
    (Mode::AtMost, "BRANCH_LEQ"),
    (Mode::Below, "BRANCH_LT"),
    (Mode::AtLeast, "BRANCH_GTE"),
    (Mode::Above, "BRANCH_GT"),
    (Mode::Equal, "BRANCH_EQ"),
    (Mode::NotEqual, "BRANCH_NEQ"),
    (Mode::Member, "BRANCH_MEMBER"),
];

/// A node with two children.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) feature: usize,
    pub(super) mode: Mode,
    pub(super) threshold: f64,
    /// Index of the set of [`Mode::Member`].
    pub(super) set: usize,
    /// Indices of the nodes for a false and a true comparison.
    pub(super) children: [usize; 2],
    /// True if NaN counts as a true comparison.
    pub(super) nan_is_true: bool,
}

/// A node of a tree.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Targets with their weights.
    Leaf(Vec<(usize, f64)>),
    Branch(Branch),
}

/// Trees that share a list of nodes.
#[derive(Debug, Default)]
pub(super) struct Forest {
    pub(super) nodes: Vec<Node>,
    /// Indices of the roots, one for each tree.
    pub(super) roots: Vec<usize>,
    /// Sets of [`Mode::Member`].
    pub(super) sets: Vec<Vec<f64>>,
}

/// Comparison of the traversal. All are false for NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Test {
    AtMost,
    Below,
    Equal,
    Member,
}

/// Tables of the reachable nodes of a forest. Leaves come first, and each is its own child.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Place of each root.
    pub(super) roots: Vec<u32>,
    /// Weights of each leaf.
    pub(super) leaves: Vec<Vec<(usize, f64)>>,
    /// Feature of each node.
    pub(super) features: Vec<u32>,
    /// Test of each node.
    pub(super) tests: Vec<Test>,
    pub(super) thresholds: Vec<f32>,
    /// Set of each node.
    pub(super) sets: Vec<u32>,
    /// True for nodes at which NaN goes to the second child.
    pub(super) nan_is_true: Vec<bool>,
    /// Places of the children of node `i` at `2 i` (the test is false) and `2 i + 1`.
    pub(super) children: Vec<u32>,
    /// Number of levels of the deepest tree, without its leaves.
    pub(super) levels: usize,
    /// Target of each tree whose leaves all belong to one target; `None` for other trees.
    pub(super) targets: Vec<Option<usize>>,
}

/// Targets of the leaves of a subtree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Targets {
    One(usize),
    /// Several targets, or a leaf without a weight.
    Mixed,
}

/// Visit of a node by [`Walk`].
#[derive(Clone, Copy)]
enum Visit {
    Open,
    Done { height: usize, targets: Targets },
}

/// Depth-first walk over the nodes.
struct Walk<'f> {
    forest: &'f Forest,
    visits: HashMap<usize, Visit>,
    /// Reachable branches and leaves in the order of their last visit.
    branches: Vec<usize>,
    leaves: Vec<usize>,
}

impl Walk<'_> {
    /// Visits all nodes below `root`.
    fn visit(&mut self, root: usize) -> Result<(usize, Targets), String> {
        let mut open = vec![root];
        while let Some(&at) = open.last() {
            let node = self.forest.nodes.get(at);
            let node = node.ok_or_else(|| format!("expected nodes below {}, found {at}", self.forest.nodes.len()))?;
            if let Some(Visit::Done { .. }) = self.visits.get(&at) {
                open.pop();
                continue;
            }
            let done = match node {
                Node::Leaf(weights) => {
                    self.leaves.push(at);
                    let targets = match weights.as_slice() {
                        [(target, _)] => Targets::One(*target),
                        _ => Targets::Mixed,
                    };
                    Visit::Done { height: 0, targets }
                }
                Node::Branch(branch) => {
                    let is_new = self.visits.insert(at, Visit::Open).is_none();
                    let visits = branch.children.map(|child| self.visits.get(&child).copied());
                    match visits {
                        [
                            Some(Visit::Done { height: a, targets: s }),
                            Some(Visit::Done { height: b, targets: t }),
                        ] => {
                            self.branches.push(at);
                            let height = a.max(b) + 1;
                            if height > MAX_LEVELS {
                                return Err(format!(
                                    "expected trees of at most {MAX_LEVELS} levels, found a deeper tree"
                                ));
                            }
                            let targets = if s == t { s } else { Targets::Mixed };
                            Visit::Done { height, targets }
                        }
                        _ if !is_new => return Err(cycle(at)),
                        _ => {
                            for (child, visit) in branch.children.into_iter().zip(visits) {
                                match visit {
                                    Some(Visit::Open) => return Err(cycle(child)),
                                    Some(Visit::Done { .. }) => {}
                                    None => open.push(child),
                                }
                            }
                            continue;
                        }
                    }
                }
            };
            self.visits.insert(at, done);
            open.pop();
        }
        match self.visits.get(&root) {
            Some(Visit::Done { height, targets }) => Ok((*height, *targets)),
            _ => Err(cycle(root)),
        }
    }
}

fn cycle(node: usize) -> String {
    format!("expected trees, found a cycle through the node at position {node}")
}

impl Forest {
    /// Checks the nodes, and returns their tables. `is_exact` is true if the features are numbers of `f32` (or smaller
    /// types): thresholds of `f64` are then rounded such that no comparison changes.
    pub(super) fn tables(&self, features: usize, is_exact: bool) -> Result<Tables, String> {
        limits::elements(&[2, self.nodes.len()], "nodes")?;
        if self.roots.is_empty() {
            return Err("expected at least one tree, found none".into());
        }
        limits::elements(&[self.roots.len()], "roots")?;
        let mut walk = Walk {
            forest: self,
            visits: HashMap::new(),
            branches: Vec::new(),
            leaves: Vec::new(),
        };
        let mut tables = Tables::default();
        for &root in &self.roots {
            let (height, targets) = walk.visit(root)?;
            tables.levels = tables.levels.max(height);
            tables.targets.push(match targets {
                Targets::One(target) => Some(target),
                Targets::Mixed => None,
            });
        }
        let order = walk.leaves.iter().chain(&walk.branches);
        let places: HashMap<usize, u32> = order.clone().enumerate().map(|(i, &node)| (node, i as u32)).collect();
        let place = |node: usize| places.get(&node).copied().unwrap_or(0);
        tables.roots = self.roots.iter().map(|&root| place(root)).collect();
        for &at in order {
            match &self.nodes[at] {
                Node::Leaf(weights) => {
                    tables.leaves.push(weights.clone());
                    tables.push(None, is_exact);
                    tables.children.extend([place(at); 2]);
                }
                Node::Branch(branch) => {
                    if branch.feature >= features {
                        let found = branch.feature;
                        return Err(format!("feature ids: expected numbers below {features}, found {found}"));
                    }
                    let is_swapped = tables.push(Some(branch), is_exact);
                    let mut children = branch.children.map(place);
                    if is_swapped {
                        children.reverse();
                    }
                    tables.children.extend(children);
                }
            }
        }
        Ok(tables)
    }
}

impl Tables {
    /// Adds a node without its children. Returns true if the children are exchanged: the test is the opposite of the mode.
    fn push(&mut self, branch: Option<&Branch>, is_exact: bool) -> bool {
        let Some(branch) = branch else {
            // A leaf is its own child, so the result of its test does not matter.
            self.features.push(0);
            self.tests.push(Test::AtMost);
            self.thresholds.push(0.0);
            self.sets.push(0);
            self.nan_is_true.push(false);
            return false;
        };
        let (test, is_swapped) = match branch.mode {
            Mode::AtMost => (Test::AtMost, false),
            Mode::Above => (Test::AtMost, true),
            Mode::Below => (Test::Below, false),
            Mode::AtLeast => (Test::Below, true),
            Mode::Equal => (Test::Equal, false),
            Mode::NotEqual => (Test::Equal, true),
            Mode::Member => (Test::Member, false),
        };
        self.features.push(branch.feature as u32);
        self.tests.push(test);
        self.thresholds.push(rounded(branch.threshold, test, is_exact));
        self.sets.push(branch.set as u32);
        self.nan_is_true.push(match branch.mode {
            // NaN differs from every number.
            Mode::NotEqual => false,
            _ => branch.nan_is_true != is_swapped,
        });
        is_swapped
    }
}

/// Returns the threshold as `f32`, such that comparisons of `f32` numbers have the same result.
fn rounded(threshold: f64, test: Test, is_exact: bool) -> f32 {
    let nearest = threshold as f32;
    let difference = f64::from(nearest) - threshold;
    match test {
        _ if !is_exact || difference == 0.0 || threshold.is_nan() => nearest,
        Test::AtMost if difference > 0.0 => nearest.next_down(),
        Test::Below if difference < 0.0 => nearest.next_up(),
        // No `f32` number equals the threshold.
        Test::Equal | Test::Member => f32::NAN,
        _ => nearest,
    }
}

/// Returns a set with its numbers rounded like thresholds.
pub(super) fn rounded_set(set: &[f64], is_exact: bool) -> Vec<f32> {
    set.iter().map(|&v| rounded(v, Test::Member, is_exact)).collect()
}
