//! Trees as operators of a graph.
//!
//! Trees whose comparisons are all `<=` or all `<` become [`Graph::decision_trees`]. Other trees are traversed level by level:
//! "TreeTraversal" of Nakandala et al. (2020), "A Tensor Compiler for Unified Machine Learning Prediction Serving". A state
//! `[rows, trees]` contains the node of each tree. One step gathers the feature and the threshold of these nodes, compares, and
//! gathers their children. Leaves are their own children.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};
use meganeura_core::ops::NAN_IS_TRUE;

use super::forest::{Forest, Tables, Test, rounded_set};
use crate::element::ElementType;
use crate::import::Call;
use crate::ops::limits;

/// Combination of the weights of all trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

/// Operands of the tests of nodes.
struct Tests {
    /// Tests that occur at branches, without duplicates.
    present: Vec<Test>,
    /// Number of the test of each node, if several tests occur.
    kinds: Option<NodeId>,
    thresholds: NodeId,
    /// Index of the set of each node, and the sets as rows.
    sets: Option<(NodeId, NodeId)>,
    /// 1 for nodes at which NaN counts as true, if there are any.
    nan_is_true: Option<NodeId>,
}

impl Tests {
    fn new(graph: &mut Graph, forest: &Forest, tables: &Tables, element: ElementType) -> Result<Self, String> {
        let leaves = tables.leaves.len();
        let mut present = tables.tests[leaves..].to_vec();
        present.sort_unstable();
        present.dedup();
        let count = tables.tests.len();
        let kinds = (present.len() > 1).then(|| {
            let kinds = tables.tests.iter().map(|&test| test as u32).collect();
            graph.constant_u32(kinds, &[count])
        });
        let sets = if present.contains(&Test::Member) {
            let width = forest.sets.iter().map(Vec::len).max().unwrap_or(0).max(1);
            let total = limits::elements(&[forest.sets.len(), width], "membership_values")?;
            let mut members = Vec::with_capacity(total);
            for set in &forest.sets {
                let mut row = rounded_set(set, element != ElementType::F64);
                // No number equals NaN.
                row.resize(width, f32::NAN);
                members.extend(row);
            }
            let members = graph.constant(members, &[forest.sets.len(), width]);
            Some((graph.constant_u32(tables.sets.clone(), &[count]), members))
        } else {
            None
        };
        // Integers are never NaN.
        let has_nan = element.is_float() && tables.nan_is_true.contains(&true);
        let nan_is_true = has_nan.then(|| {
            let flags = tables.nan_is_true.iter().map(|&flag| flag.into()).collect();
            graph.constant_u32(flags, &[count])
        });
        Ok(Tests {
            present,
            kinds,
            thresholds: graph.constant(tables.thresholds.clone(), &[count]),
            sets,
            nan_is_true,
        })
    }

    /// Returns 1 where the test of node `at` is true for feature `x`, both `[rows, trees]`.
    fn apply(&self, graph: &mut Graph, x: NodeId, at: Value) -> NodeId {
        let threshold = graph.gather(self.thresholds, at);
        let kind = self.kinds.map(|kinds| graph.gather(kinds, at));
        let mut result: Option<NodeId> = None;
        for &test in &self.present {
            let own = match (test, self.sets) {
                (Test::AtMost, _) => graph.less_equal(x, threshold),
                (Test::Below, _) => graph.less_than(x, threshold),
                (Test::Member, Some((sets, members))) => {
                    let set = graph.gather(sets, at);
                    let members = graph.gather(members, set);
                    let shape = [graph.shape(x), &[1]].concat();
                    let x = graph.reshape(x, &shape);
                    let hits = graph.equal(x, members);
                    graph.max(hits, &[-1], false)
                }
                (Test::Equal | Test::Member, _) => graph.equal(x, threshold),
            };
            result = Some(match (result, kind) {
                (Some(others), Some(kind)) => {
                    let number = graph.scalar_of(DType::U32, f64::from(test as u32));
                    let is_own = graph.equal(kind, number);
                    graph.select(is_own, own, others)
                }
                _ => own,
            });
        }
        let result = result.unwrap_or_else(|| graph.less_equal(x, threshold));
        match self.nan_is_true {
            None => result,
            Some(flags) => {
                let flag = graph.gather(flags, at);
                let is_nan = graph.not_equal(x, x);
                graph.select(is_nan, flag, result)
            }
        }
    }
}

/// Returns the indices of the leaves, `u32 [rows, trees]`. All branches have the same comparison.
fn traverse(graph: &mut Graph, tables: &Tables, x: Value, is_strict: bool) -> Value {
    let (trees, count) = (tables.roots.len(), tables.features.len());
    let words = tables.features.iter().zip(&tables.nan_is_true);
    let words = words.map(|(&feature, &is_true)| if is_true { feature | NAN_IS_TRUE } else { feature });
    let features = graph.constant_u32(words.collect(), &[count]);
    let roots = graph.constant_u32(tables.roots.clone(), &[trees]);
    let thresholds = graph.constant(tables.thresholds.clone(), &[count]);
    let children = graph.constant_u32(tables.children.clone(), &[count, 2]);
    let leaves = graph.decision_trees(x, roots, features, thresholds, children, tables.levels, is_strict);
    leaves.into()
}

/// Returns the indices of the leaves, `u32 [rows, trees]`, for all kinds of comparisons.
fn step_down(
    graph: &mut Graph,
    forest: &Forest,
    tables: &Tables,
    x: Value,
    rows: usize,
    element: ElementType,
) -> Result<Value, String> {
    let (trees, count) = (tables.roots.len(), tables.features.len());
    let roots = graph.constant_u32(tables.roots.clone(), &[1, trees]);
    let mut at: Value = graph.expand(roots, &[rows, trees]).into();
    if tables.levels > 0 {
        let tests = Tests::new(graph, forest, tables, element)?;
        let features = graph.constant_u32(tables.features.clone(), &[count]);
        let children = graph.constant_u32(tables.children.clone(), &[2 * count]);
        let two = graph.scalar_of(DType::U32, 2.0);
        for _ in 0..tables.levels {
            let feature = graph.gather(features, at);
            let value = graph.take_along_axis(x, feature, 1);
            let is_true = tests.apply(graph, value, at);
            let first = graph.mul(at, two);
            let child = graph.add(first, is_true);
            at = graph.gather(children, child).into();
        }
    }
    Ok(at)
}

/// Leaves that the rows of a batch reach.
pub(super) struct Leaves {
    pub(super) tables: Tables,
    /// Place of the leaf for each row and tree, `u32 [rows, trees]`.
    at: Value,
}

impl Leaves {
    /// Traverses the trees of `forest` for `x [rows, features]`, whose type in the model is `element`.
    pub(super) fn find(
        call: &mut Call,
        forest: &Forest,
        x: Value,
        [rows, features]: [usize; 2],
        element: ElementType,
    ) -> Result<Self, String> {
        let tables = forest.tables(features, element != ElementType::F64)?;
        let graph = call.graph();
        let branches = &tables.tests[tables.leaves.len()..];
        let has_only = |test: Test| branches.iter().all(|own| *own == test);
        let at = if tables.levels > 0 && has_only(Test::AtMost) {
            traverse(graph, &tables, x, false)
        } else if tables.levels > 0 && has_only(Test::Below) {
            traverse(graph, &tables, x, true)
        } else {
            step_down(graph, forest, &tables, x, rows, element)?
        };
        Ok(Leaves { tables, at })
    }

    /// Combines the weights of the leaves for each target, as `f32 [rows, targets]`.
    pub(super) fn combine(&self, graph: &mut Graph, targets: usize, aggregate: Aggregate) -> Result<Value, String> {
        let (leaves, trees) = (self.tables.leaves.len(), self.tables.roots.len());
        let sums = matches!(aggregate, Aggregate::Sum | Aggregate::Average);
        let of_trees: Option<Vec<usize>> = self.tables.targets.iter().copied().collect();
        let weights = self.tables.leaves.iter().flatten();
        let are_finite = weights.clone().all(|(_, weight)| (*weight as f32).is_finite());
        let y: Value = match of_trees {
            Some(of_trees) if targets == 1 || (sums && are_finite) => {
                // Every leaf has exactly one weight.
                let table = weights.map(|&(_, weight)| weight as f32).collect();
                let table = graph.constant(table, &[leaves]);
                let found = graph.gather(table, self.at);
                match aggregate {
                    Aggregate::Min => graph.min(found, &[1], true).into(),
                    Aggregate::Max => graph.max(found, &[1], true).into(),
                    _ if targets == 1 => graph.sum(found, &[1], true).into(),
                    _ => {
                        let total = limits::elements(&[trees, targets], "targets of trees")?;
                        let mut owners = vec![0.0; total];
                        for (tree, target) in of_trees.into_iter().enumerate() {
                            owners[tree * targets + target] = 1.0;
                        }
                        let owners = graph.constant(owners, &[trees, targets]);
                        graph.matmul(found, owners).into()
                    }
                }
            }
            _ => self.combine_rows(graph, targets, aggregate)?,
        };
        Ok(match aggregate {
            Aggregate::Average => {
                let count = graph.scalar(trees as f32);
                graph.div(y, count).into()
            }
            _ => y,
        })
    }

    /// Combines rows of a table with a weight of each leaf for each target.
    fn combine_rows(&self, graph: &mut Graph, targets: usize, aggregate: Aggregate) -> Result<Value, String> {
        let leaves = self.tables.leaves.len();
        let total = limits::elements(&[leaves, targets], "weights")?;
        let start = match aggregate {
            Aggregate::Min => f32::INFINITY,
            Aggregate::Max => f32::NEG_INFINITY,
            Aggregate::Sum | Aggregate::Average => 0.0,
        };
        let mut table = vec![start; total];
        for (leaf, weights) in self.tables.leaves.iter().enumerate() {
            for &(target, weight) in weights {
                let place = &mut table[leaf * targets + target];
                let weight = weight as f32;
                *place = match aggregate {
                    Aggregate::Min => place.min(weight),
                    Aggregate::Max => place.max(weight),
                    Aggregate::Sum | Aggregate::Average => *place + weight,
                };
            }
        }
        let table = graph.constant(table, &[leaves, targets]);
        let found = graph.gather(table, self.at);
        let y = match aggregate {
            Aggregate::Min => graph.min(found, &[1], false),
            Aggregate::Max => graph.max(found, &[1], false),
            Aggregate::Sum | Aggregate::Average => return Ok(graph.sum(found, &[1], false).into()),
        };
        // A target without any weight has the score 0.
        let (nothing, zero) = (graph.scalar(start), graph.scalar(0.0));
        let is_missing = graph.equal(y, nothing);
        Ok(graph.select(is_missing, zero, y).into())
    }
}
