//! Ensembles of decision trees.

mod forest;
mod lower;
mod read;

use meganeura_core::graph::{Graph, Value};

use super::labels::ClassLabels;
use super::post::{FirstScore, PostTransform};
use super::{Built, ml, rows};
use crate::element::ElementType;
use crate::import::Call;
use crate::ops::{OnnxOp, limits};
use forest::{Forest, Node};
use lower::{Aggregate, Leaves};

pub(in crate::ops) const OPS: &[OnnxOp] = &[
    OnnxOp::new("ai.onnx.ml", "TreeEnsemble", 5, ensemble),
    ml("TreeEnsembleClassifier", classifier),
    ml("TreeEnsembleRegressor", regressor),
];

/// The functions in the order of their numbers in TreeEnsemble, with their names in TreeEnsembleRegressor.
const AGGREGATES: [(Aggregate, &str); 4] = [
    (Aggregate::Average, "AVERAGE"),
    (Aggregate::Sum, "SUM"),
    (Aggregate::Min, "MIN"),
    (Aggregate::Max, "MAX"),
];

fn target_count(call: &Call) -> Result<usize, String> {
    let targets = call.int("n_targets", 1)?;
    let found = usize::try_from(targets).ok().filter(|&n| n > 0);
    let found = found.ok_or_else(|| format!("n_targets: expected at least 1, found {targets}"))?;
    limits::elements(&[found], "n_targets")
}

/// Adds a number to each column of `scores [rows, columns]`; missing numbers are 0.
fn with_base(graph: &mut Graph, scores: Value, base: &[f64]) -> Value {
    let columns = graph.shape(scores).last().copied().unwrap_or(1);
    if base.is_empty() {
        return scores;
    }
    let mut base: Vec<f32> = base.iter().map(|&v| v as f32).collect();
    base.resize(columns, 0.0);
    let base = graph.constant(base, &[columns]);
    graph.add(scores, base).into()
}

/// Returns the values `f32 [rows, targets]` of `X [rows, features]`.
fn regressor(call: &mut Call) -> Built {
    let (x, sizes) = rows(call)?;
    let targets = target_count(call)?;
    let forest = read::older(call, "target", targets)?;
    let base = read::numbers(call, "base_values")?;
    if !base.is_empty() {
        super::expect_len("base_values", base.len(), targets)?;
    }
    let name = call.string("aggregate_function", "SUM")?;
    let aggregate = AGGREGATES.iter().find(|(_, known)| *known == name);
    let &(aggregate, _) = aggregate.ok_or_else(|| {
        let known = AGGREGATES.map(|(_, name)| name).join(", ");
        format!("aggregate_function: expected one of {known}, found `{name}`")
    })?;
    let post = PostTransform::read(call)?;
    let element = call.element(0)?;
    let leaves = Leaves::find(call, &forest, x, sizes, element)?;
    let graph = call.graph();
    let y = leaves.combine(graph, targets, aggregate)?;
    let y = with_base(graph, y, &base);
    let y = post.apply(graph, y);
    call.one(y, ElementType::F32)
}

/// Returns the values `[rows, targets]` of `X [rows, features]`, in the type of `X`.
fn ensemble(call: &mut Call) -> Built {
    let (x, sizes) = rows(call)?;
    let targets = target_count(call)?;
    let forest = read::newer(call, targets)?;
    let number = call.int("aggregate_function", 1)?;
    let aggregate = usize::try_from(number).ok().and_then(|i| AGGREGATES.get(i));
    let &(aggregate, _) = aggregate.ok_or_else(|| format!("aggregate_function: expected 0 to 3, found {number}"))?;
    let post = PostTransform::from_number(call.int("post_transform", 0)?)?;
    let element = call.element(0)?;
    let leaves = Leaves::find(call, &forest, x, sizes, element)?;
    let graph = call.graph();
    let y = leaves.combine(graph, targets, aggregate)?;
    let y = post.apply(graph, y);
    let y = call.as_element(y, element);
    call.one(y, element)
}

/// Returns the class of each row of `X [rows, features]` as `[rows]`, and scores `f32 [rows, classes]`.
fn classifier(call: &mut Call) -> Built {
    let (x, sizes) = rows(call)?;
    let labels = ClassLabels::read(call, "classlabels_int64s", "classlabels_strings")?;
    let classes = labels.as_ref().map_or(0, ClassLabels::len);
    let Some(labels) = labels.filter(|_| classes >= 2) else {
        return Err(format!("class labels: expected at least 2, found {classes}"));
    };
    let mut forest = read::older(call, "class", classes)?;
    let base = read::numbers(call, "base_values")?;
    if base.len() > classes {
        let found = base.len();
        return Err(format!(
            "base_values: expected at most {classes} elements, found {found}"
        ));
    }
    let post = PostTransform::read(call)?;
    let used = used_targets(&forest, classes);
    let only = match used.as_slice() {
        [true, false] => Some(0),
        [false, true] => Some(1),
        _ => None,
    };
    if !used.contains(&true) {
        return Err("class_ids: expected the class of at least one leaf, found none".into());
    }
    let element = call.element(0)?;
    let (at, scores) = match only {
        Some(class) => {
            let are_positive = weights(&mut forest).fold(true, |all, (target, weight)| {
                *target = 0;
                all && *weight >= 0.0
            });
            let leaves = Leaves::find(call, &forest, x, sizes, element)?;
            let binary = Binary {
                class,
                are_positive,
                base,
                post,
            };
            let graph = call.graph();
            let score = leaves.combine(graph, 1, Aggregate::Sum)?;
            binary.build(graph, score, sizes[0])?
        }
        None => {
            let leaves = Leaves::find(call, &forest, x, sizes, element)?;
            let graph = call.graph();
            let scores = leaves.combine(graph, classes, Aggregate::Sum)?;
            let scores = with_base(graph, scores, &base);
            // A class without any weight is never chosen.
            let missing = |(class, is_used): (usize, &bool)| {
                if *is_used || class < base.len() {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            };
            let bounds: Vec<f32> = used.iter().enumerate().map(missing).collect();
            let mut chosen = scores;
            if bounds.iter().any(|v| *v != 0.0) {
                let bounds = graph.constant(bounds, &[classes]);
                chosen = graph.add(scores, bounds).into();
            }
            let at = graph.argmax(chosen, 1);
            (at.into(), post.apply(graph, scores))
        }
    };
    let label = labels.select(call, at)?;
    Ok(vec![label, call.result(scores, ElementType::F32)])
}

/// Returns the weights of all leaves, with their targets.
fn weights(forest: &mut Forest) -> impl Iterator<Item = &mut (usize, f64)> {
    forest.nodes.iter_mut().flat_map(|node| match node {
        Node::Leaf(weights) => weights.as_mut_slice(),
        Node::Branch(_) => &mut [],
    })
}

/// Returns, for each target, true if a leaf has a weight for it.
fn used_targets(forest: &Forest, targets: usize) -> Vec<bool> {
    let mut used = vec![false; targets];
    for node in &forest.nodes {
        if let Node::Leaf(weights) = node {
            weights.iter().for_each(|(target, _)| used[*target] = true);
        }
    }
    used
}

/// A classifier of two classes with the weights of one class only, as XGBoost and LightGBM export it. The specification
/// does not define its scores; these are the rules of ONNX Runtime.
struct Binary {
    /// Class in the attribute `class_ids`.
    class: usize,
    /// True if no weight is negative: the score is a probability, and the threshold is 0.5 instead of 0.
    are_positive: bool,
    base: Vec<f64>,
    post: PostTransform,
}

impl Binary {
    /// Returns the index of the class `[rows]`, and the scores `[rows, 2]`, from the sum of the weights `[rows, 1]`.
    fn build(&self, graph: &mut Graph, sum: Value, rows: usize) -> Result<(Value, Value), String> {
        let base = match (self.class, self.base.as_slice()) {
            (1, [_]) => &[],
            (class, [_, _]) => &self.base[class..=class],
            (_, base) => base,
        };
        let score = with_base(graph, sum, base);
        let threshold = graph.scalar(if self.are_positive { 0.5 } else { 0.0 });
        let is_second = graph.greater_than(score, threshold);
        let at = graph.reshape(is_second, &[rows]);
        if self.class == 0 && self.base.len() < 2 {
            let first = if self.are_positive {
                FirstScore::Complement
            } else {
                FirstScore::Negative
            };
            return Ok((at.into(), self.post.two_classes(graph, score, first)?));
        }
        let other = match (self.class, self.base.as_slice()) {
            (1, [first, _]) => *first as f32,
            _ => 0.0,
        };
        let other = graph.scalar(other);
        let other = graph.expand(other, &[rows, 1]);
        let pair = match self.class {
            0 => [score, other.into()],
            _ => [other.into(), score],
        };
        let scores = graph.concat(&pair, 1);
        Ok((at.into(), self.post.apply(graph, scores.into())))
    }
}
