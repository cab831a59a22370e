//! Check of a rule on a witness (values for its variables, so that it matches): builds both sides and compares their
//! values, as the oracle computes them.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::leaf::Leaf;
use super::search::{Witness, scalar};
use crate::rewrite::attr;
use crate::rewrite::clean::clean;
use crate::rewrite::matcher::{Plan, Search, World, eval_plain};
use crate::rewrite::pattern::{Build, LeafKind, Pattern, Shape, Step};
use crate::rewrite::scalar::Scalar;
use crate::rewrite::terms::Terms;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::dtype::DType;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId, NodeKind, Value};
use meganeura_core::ops::Call;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::{Extent, RefTensor, evaluate, extent};

/// Maximum number of elements of a value on the right-hand side.
const MAX_ELEMENTS: usize = 1 << 16;
/// Maximum cost of evaluating both sides.
const MAX_EXTENT: Extent = Extent {
    elements: 1 << 23,
    work: 1 << 29,
};
/// Maximum number of elements of a leaf that the message of a failing case contains.
const SHOWN: usize = 24;

/// Result of checking a rule on a witness.
pub(super) enum Finding {
    /// Both sides agree.
    Same(RuleSides),
    /// The check has no result: both sides are finite nowhere, or the right-hand side has no value here.
    Nothing,
    /// The values of the two sides differ; with the difference.
    Wrong(RuleSides, String),
    /// The right-hand side is not well typed, or has another type; with the error.
    IllTyped(RuleSides, String),
}

/// Both sides of a rule, as the text of graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSides {
    /// The left-hand side.
    pub before: String,
    /// The right-hand side.
    pub after: String,
}

enum SkippedCheck {
    IllTyped(String),
    NoValue,
}

/// A witness as a graph that the left-hand side matches.
struct Case<'p> {
    pattern: &'p Pattern,
    graph: Graph,
    /// For each variable, its value in the graph; `None` for numbers and flags.
    values: Vec<Option<Value>>,
    /// The witness, with all numbers and flags, including the ones that the head defines.
    witness: Witness,
    /// Pairs of values that the rule states to be equal.
    pairs: Vec<(Value, Value)>,
}

/// Compares both sides on one witness, and also their derivatives if `gradients`.
pub(super) fn check(
    pattern: &Pattern,
    order: &[usize],
    witness: &Witness,
    gradients: bool,
    tolerance: f64,
) -> Result<Finding> {
    let Some(mut case) = Case::new(pattern, order, witness) else {
        return Ok(Finding::Nothing);
    };
    let left = case.graph.clone();
    if !case.matches()? {
        return Ok(Finding::Nothing);
    }
    if let Err(refused) = case.act() {
        let sides = RuleSides {
            before: case.text(&left, &case.left_values())?,
            after: String::new(),
        };
        return Ok(match refused {
            SkippedCheck::IllTyped(message) => Finding::IllTyped(sides, message),
            SkippedCheck::NoValue => Finding::Nothing,
        });
    }
    let sides = case.sides()?;
    for &(a, b) in &case.pairs {
        if let (Some(a), Some(b)) = (case.graph.ty(a), case.graph.ty(b))
            && a != b
        {
            return Ok(Finding::IllTyped(sides, format!("it equates {a} with {b}")));
        }
    }
    if extent(&case.graph, MAX_EXTENT).is_err() {
        return Ok(Finding::Nothing);
    }
    let mut evidence = false;
    // Any numbers; positive ones for roots and logarithms; small and large ones, where other cases
    // may apply.
    for (seed, low, high) in [(1, -2.0, 2.0), (2, 0.2, 1.8), (3, -1e-3, 1e-3), (4, -80.0, 80.0)] {
        let feeds = case.feeds(seed, low, high);
        match case.compare(&feeds, tolerance)? {
            ComparisonResult::Same(finite) => evidence |= finite,
            ComparisonResult::Differs(message) => return Ok(Finding::Wrong(sides, case.with_feeds(&message, &feeds))),
        }
        if gradients && let Some(message) = case.compare_gradients(&feeds, tolerance)? {
            return Ok(Finding::Wrong(sides, case.with_feeds(&message, &feeds)));
        }
    }
    Ok(if evidence {
        Finding::Same(sides)
    } else {
        Finding::Nothing
    })
}

enum ComparisonResult {
    /// No difference was found; `true` if there were finite numbers to compare.
    Same(bool),
    Differs(String),
}

impl<'p> Case<'p> {
    fn new(pattern: &'p Pattern, order: &[usize], witness: &Witness) -> Option<Self> {
        let mut case = Case {
            pattern,
            graph: Graph::new(),
            values: vec![None; pattern.variables.len()],
            witness: witness.clone(),
            pairs: Vec::new(),
        };
        let mut leaves: Vec<&Leaf> = witness.leaves.iter().collect();
        leaves.sort_by_key(|leaf| leaf.slot);
        for leaf in leaves {
            case.leaf(leaf);
        }
        for &a in order {
            let atom = &pattern.atoms[a];
            if let Shape::Leaf(_) = atom.shape {
                continue;
            }
            let operands: Vec<Value> = atom.children.iter().map(|&c| case.values[c]).collect::<Option<_>>()?;
            let scalars: Vec<Scalar> = atom
                .scalars
                .iter()
                .map(|s| scalar(s, &witness.bindings))
                .collect::<Option<_>>()?;
            case.values[atom.root] = Some(case.node(atom.shape, &scalars, operands).ok()?);
        }
        case.graph.errors().is_empty().then_some(case)
    }

    fn leaf(&mut self, leaf: &Leaf) {
        let names = &self.pattern.variables;
        let name = match names[leaf.var].name.as_deref() {
            Some(name) if self.graph.leaf_named(name).is_none() => name.to_owned(),
            _ => format!("leaf{}", leaf.slot),
        };
        let dims = leaf.ty.shape.dims();
        let g = &mut self.graph;
        let id = match leaf.kind {
            LeafKind::Input => {
                let id = g.input_typed(&name, dims, leaf.ty.dtype);
                if leaf.ty.dtype.is_float() {
                    g.require_grad(id)
                } else {
                    id
                }
            }
            LeafKind::Parameter => g.parameter(&name, dims),
            LeafKind::State => g.state(&name, dims),
            LeafKind::Scalar => g.scalar_input(&name, leaf.ty.dtype),
            LeafKind::Constant => g.constant_data(leaf.data(), dims),
        };
        self.values[leaf.var] = Some(id.into());
    }

    /// Returns the value of a call, of the selection of a result, or of a leaf with a number; adds the node if
    /// necessary.
    fn node(&mut self, shape: Shape, scalars: &[Scalar], operands: Vec<Value>) -> Result<Value, SkippedCheck> {
        match (shape, scalars, operands.as_slice()) {
            (Shape::Call(constructor), _, _) => {
                let op = constructor.op;
                let literals: Vec<_> = scalars.iter().map(Scalar::to_literal).collect();
                let attrs = attr::attrs(op, &literals)
                    .ok_or_else(|| SkippedCheck::IllTyped(format!("{shape}: an attribute has no valid value")))?;
                let types: Vec<_> = operands.iter().filter_map(|&v| self.graph.ty(v).cloned()).collect();
                let call = Call {
                    attrs: &attrs,
                    inputs: &types,
                    outputs: &[],
                };
                let results = op
                    .arity()
                    .check(types.len())
                    .and_then(|()| op.infer(&call))
                    .map_err(|message| SkippedCheck::IllTyped(format!("{}: {message}", op.name())))?;
                if results.iter().any(|t| t.numel() > MAX_ELEMENTS) {
                    return Err(SkippedCheck::NoValue);
                }
                Ok(self.graph.call(op, attrs, operands).into())
            }
            (Shape::Get, [Scalar::Int(port)], [tuple]) => {
                let results = &self.graph.nodes()[tuple.node.index()].outputs;
                match u32::try_from(*port) {
                    Ok(port) if (port as usize) < results.len() => Ok(self.graph.port(tuple.node, port)),
                    _ => Err(SkippedCheck::IllTyped(format!("there is no result {port}"))),
                }
            }
            (Shape::Leaf(_), [Scalar::Int(number)], []) => match u32::try_from(*number) {
                Ok(n) if self.graph.nodes().get(n as usize).is_some_and(|n| !n.is_op()) => Ok(NodeId::new(n).into()),
                _ => Err(SkippedCheck::NoValue),
            },
            _ => Err(SkippedCheck::NoValue),
        }
    }

    /// Returns `true` if the matcher finds a match of the rule in the graph.
    fn matches(&self) -> Result<bool> {
        let Some(plan) = Plan::new(self.pattern) else {
            return Ok(false);
        };
        let mut graph = self.graph.clone();
        graph.set_outputs(self.left_values());
        let terms = Terms::new(&graph, &|_, _| 1, &[])?;
        let group = |id: NodeId| {
            let parameter = matches!(graph.nodes()[id.index()].kind, NodeKind::Parameter { .. });
            parameter.then_some(1)
        };
        let world = World {
            caps: ["training", "inference"].map(str::to_owned).into(),
            pack_group: &group,
            invariant: Vec::new(),
        };
        let mut search = Search {
            terms: &terms,
            world: &world,
            pattern: self.pattern,
            steps: 0,
            limit: 100_000,
        };
        let mut places = terms.needed().into_iter();
        Ok(places.any(|place| !search.matches(&plan, place, 1).is_empty()))
    }

    /// Returns the results of all calls of the left-hand side.
    fn left_values(&self) -> Vec<Value> {
        let roots = self.pattern.atoms.iter().map(|a| self.values[a.root]);
        roots.flatten().collect()
    }

    /// Applies the rule's actions.
    fn act(&mut self) -> Result<(), SkippedCheck> {
        let pattern = self.pattern;
        for step in &pattern.head {
            match step {
                Step::LetScalar(v, expr) => {
                    self.witness.bindings[*v] =
                        Some(eval_plain(expr, &self.witness.bindings).ok_or(SkippedCheck::NoValue)?);
                }
                Step::Let(v, build) => self.values[*v] = Some(self.build(build)?),
                Step::Make(build) => {
                    self.build(build)?;
                }
                Step::Union(a, b) => {
                    let (a, b) = (self.build(a)?, self.build(b)?);
                    let results = |v: Value| self.graph.nodes()[v.node.index()].outputs.len() as u32;
                    if self.is_tuple(step) && results(a) == results(b) {
                        let ports = 0..results(a);
                        let pairs = ports.map(|p| (self.graph.port(a.node, p), self.graph.port(b.node, p)));
                        self.pairs.extend(pairs.collect::<Vec<_>>());
                    } else {
                        self.pairs.push((a, b));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns `true` if a union equates all results of two calls with several results.
    fn is_tuple(&self, step: &Step) -> bool {
        let Step::Union(a, _) = step else { return false };
        match a {
            Build::Var(v) => self.pattern.variables[*v].sort == crate::rewrite::scalar::Sort::Tuple,
            Build::Node { shape, .. } => matches!(shape, Shape::Call(c) if c.is_tuple()),
        }
    }

    fn build(&mut self, build: &Build) -> Result<Value, SkippedCheck> {
        match build {
            Build::Var(v) => self.values[*v].ok_or(SkippedCheck::NoValue),
            Build::Node {
                shape,
                scalars,
                children,
            } => {
                let mut operands = Vec::with_capacity(children.len());
                for child in children {
                    operands.push(self.build(child)?);
                }
                let scalars: Option<Vec<Scalar>> = scalars.iter().map(|s| scalar(s, &self.witness.bindings)).collect();
                self.node(*shape, &scalars.ok_or(SkippedCheck::NoValue)?, operands)
            }
        }
    }

    fn text(&self, graph: &Graph, outputs: &[Value]) -> Result<String> {
        let mut graph = graph.clone();
        graph.set_outputs(outputs.to_vec());
        Ok(clean(&graph)?.0.to_string())
    }

    fn sides(&self) -> Result<RuleSides> {
        let (a, b): (Vec<Value>, Vec<Value>) = self.pairs.iter().copied().unzip();
        Ok(RuleSides {
            before: self.text(&self.graph, &a)?,
            after: self.text(&self.graph, &b)?,
        })
    }

    /// Draws random values for all leaves that are not constants.
    fn feeds(&self, seed: u64, low: f64, high: f64) -> HashMap<String, Vec<f64>> {
        let mut rng = SplitMix64::new(seed);
        let mut feeds = HashMap::new();
        for id in self.graph.node_ids() {
            let node = &self.graph.nodes()[id.index()];
            let (true, Some(name), [ty]) = (node.is_named_leaf(), node.name.as_deref(), node.outputs.as_slice()) else {
                continue;
            };
            let bound = self.index_bound(id).unwrap_or(3).min(9);
            let mut one = || match ty.dtype {
                DType::U32 => rng.below(bound) as f64,
                DType::I32 => rng.below(9) as f64 - 4.0,
                _ => {
                    let v = low + (high - low) * rng.unit();
                    // Avoid zero and the integers, where functions have kinks and steps.
                    let away = f64::min(0.02, (high - low) / 200.0);
                    f64::from(if (v - v.round()).abs() < away {
                        v + 2.0 * away
                    } else {
                        v
                    } as f32)
                }
            };
            feeds.insert(name.to_owned(), (0..ty.numel()).map(|_| one()).collect());
        }
        feeds
    }

    /// Returns the exclusive upper bound of the elements of a leaf with indices.
    fn index_bound(&self, leaf: NodeId) -> Option<usize> {
        let nodes = self.graph.nodes().iter();
        let bounds = nodes.filter_map(|node| {
            let (op, attrs) = node.op()?;
            let inputs: Vec<_> = node.inputs.iter().filter_map(|&v| self.graph.ty(v).cloned()).collect();
            let call = Call {
                attrs,
                inputs: &inputs,
                outputs: &node.outputs,
            };
            let (operand, bound) = op.index_bound(&call)?;
            (node.inputs.get(operand)?.node == leaf).then_some(bound)
        });
        bounds.min()
    }

    fn compare(&self, feeds: &HashMap<String, Vec<f64>>, tolerance: f64) -> Result<ComparisonResult> {
        let mut graph = self.graph.clone();
        graph.set_outputs(self.pairs.iter().flat_map(|&(a, b)| [a, b]).collect());
        let values = evaluate(&graph, feeds)?;
        let mut finite = false;
        for (i, &(a, b)) in self.pairs.iter().enumerate() {
            if let (Some(before), Some(after)) = (values.get(a), values.get(b)) {
                finite |= before.data.iter().any(|v| v.is_finite());
                if let Some(difference) = difference(before, after, tolerance) {
                    return Ok(ComparisonResult::Differs(format!("output {i} differs {difference}")));
                }
            }
        }
        Ok(ComparisonResult::Same(finite))
    }

    /// Finds the first difference between the gradients of a weighted sum of the left-hand sides
    /// and of the right-hand sides.
    fn compare_gradients(&self, feeds: &HashMap<String, Vec<f64>>, tolerance: f64) -> Result<Option<String>> {
        let (a, b): (Vec<Value>, Vec<Value>) = self.pairs.iter().copied().unzip();
        let (Some(before), Some(after)) = (self.weighted(&a), self.weighted(&b)) else {
            return Ok(None);
        };
        let before = match try_differentiate(&before) {
            Ok(graph) => graph,
            Err(Error::NotDifferentiable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let after = match try_differentiate(&after) {
            Ok(graph) => graph,
            Err(Error::NotDifferentiable { reason, .. }) => {
                return Ok(Some(format!("only the left-hand side has a derivative: {reason}")));
            }
            Err(error) => return Err(error),
        };
        let (left, right) = (evaluate(&before, feeds)?, evaluate(&after, feeds)?);
        for (&(leaf, a), &(_, b)) in before.gradients().iter().zip(after.gradients()) {
            if let (Some(a), Some(b)) = (left.get(a), right.get(b))
                && let Some(difference) = difference(a, b, tolerance)
            {
                let name = self.graph.nodes()[leaf.index()].name.as_deref().unwrap_or_default();
                return Ok(Some(format!("the gradient of {name} differs {difference}")));
            }
        }
        Ok(None)
    }

    /// Adds to the graph a loss that weights every element of some values differently.
    fn weighted(&self, values: &[Value]) -> Option<Graph> {
        let mut graph = self.graph.clone();
        let mut rng = SplitMix64::new(99);
        let mut loss: Option<NodeId> = None;
        for &value in values {
            let ty = graph.ty(value)?.clone();
            if !ty.dtype.is_float() {
                continue;
            }
            let weights: Vec<f32> = (0..ty.numel()).map(|_| (rng.unit() * 2.0 - 1.0) as f32).collect();
            let weights = graph.constant(weights, ty.shape.dims());
            let wide = graph.cast(value, DType::F32);
            let product = graph.mul(wide, weights);
            let part = graph.sum_all(product);
            loss = Some(loss.map_or(part, |sum| graph.add(sum, part)));
        }
        graph.set_outputs(vec![loss?]);
        Some(graph)
    }

    /// Adds to a message the values of the leaves.
    fn with_feeds(&self, message: &str, feeds: &HashMap<String, Vec<f64>>) -> String {
        let mut text = message.to_owned();
        let mut names: Vec<&String> = feeds.keys().collect();
        names.sort();
        for name in names {
            let shown: Vec<String> = feeds[name].iter().take(SHOWN).map(ToString::to_string).collect();
            let rest = if feeds[name].len() > SHOWN { ", .." } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {name} = [{}{rest}]", shown.join(", "));
        }
        text
    }
}

/// Returns the first element in which two tensors differ. If an element of the first tensor is not finite, the second
/// may have any value there, because a rule may extend the domain.
fn difference(before: &RefTensor, after: &RefTensor, tolerance: f64) -> Option<String> {
    let finite = before.data.iter().copied().filter(|v| v.is_finite());
    let scale = finite.fold(1e-3f64, |m, v| m.max(v.abs()));
    let differs = |(a, b): (&f64, &f64)| a.is_finite() && (b.is_nan() || (a - b).abs() > tolerance * scale);
    let at = before.data.iter().zip(&after.data).position(differs)?;
    let mut rest = at;
    let mut index: Vec<usize> = before
        .shape()
        .iter()
        .rev()
        .map(|&d| {
            let i = rest % d.max(1);
            rest /= d.max(1);
            i
        })
        .collect();
    index.reverse();
    Some(format!(
        "at {index:?}: the left-hand side is {}, the right-hand side {}",
        before.data[at], after.data[at]
    ))
}
