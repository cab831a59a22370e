//! Search for graphs that the left-hand side of a rule matches.
//!
//! Calls are built from their operands upwards. Leaves, attributes and constants are candidates of a [pool](Pool).
//! Operators check whether a call is well typed, and conditions are checked as soon as their variables are bound. There
//! are many attempts; each is a depth-first search with few steps.

use std::collections::HashMap;

use super::leaf::Leaf;
use super::order::{leaf_kinds, order};
use super::pool::Pool;
use crate::rewrite::attr::{self, ints_text, parse_ints};
use crate::rewrite::facts::{self, FactName};
use crate::rewrite::matcher::{Bindings, Bound, eval_with};
use crate::rewrite::pattern::{Atom, Condition, LeafKind, Pattern, ScalarExpr, Shape, VarId};
use crate::rewrite::scalar::Scalar;
use crate::rewrite::terms::TermId;
use meganeura_core::attrs::AttrKind;
use meganeura_core::ops::sample::{Sample, Sizes};
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::shape::{Shape as Dims, TensorType};

/// Maximum number of elements of a value within a witness.
const MAX_ELEMENTS: usize = 4096;
/// Maximum successful steps of one attempt.
const ATTEMPT_STEPS: u64 = 1500;
/// Number of failed attempts with new sizes of samples. Later attempts may keep the sizes, because these may depend on each
/// other in a way that only the operator can check.
const MAX_FAILURES: u64 = 40;
/// Maximum number of values of a constant that are tried with one type, of the values that satisfy the constant's own
/// conditions.
const MAX_VALUES: usize = 4;

/// Values for the variables of a pattern, so that it matches: a test case of a rule.
#[derive(Clone)]
pub(super) struct Witness {
    /// Numbers and flags; values are bound to their own variable.
    pub(super) bindings: Bindings,
    /// Leaves, in the order of their creation.
    pub(super) leaves: Vec<Leaf>,
    types: Vec<Option<Vec<TensorType>>>,
    open: Vec<bool>,
    /// By variable, the types of open leaves and attributes of a call that a sample suggests.
    hints: HashMap<VarId, TensorType>,
    attr_hint: Option<(usize, Vec<Scalar>)>,
}

impl Witness {
    /// Returns a text that distinguishes witnesses: the leaves' types and the attributes.
    pub(super) fn signature(&self) -> String {
        let mut leaves: Vec<(VarId, String)> = self.leaves.iter().map(|l| (l.var, l.ty.to_string())).collect();
        leaves.sort();
        let scalars = self.bindings.iter().flatten();
        let scalars: Vec<&Bound> = scalars.filter(|b| matches!(b, Bound::Scalar(_))).collect();
        format!("{leaves:?} {scalars:?}")
    }
}

#[derive(Clone, Copy, Debug)]
enum Decision {
    /// All open operands and attributes of a call at once, from a sample of its operator.
    Sample(usize),
    /// A leaf.
    Leaf(VarId),
    /// An attribute of a call.
    Attr(usize, usize),
    /// The result of a call, whose types are inferred.
    Call(usize),
}

/// Returns `true` if several open attributes of a call are lists, as for windows: random lists from a pool rarely match
/// each other.
fn has_windows(atom: &Atom, op: OpRef) -> bool {
    let kinds = op.attributes();
    let open = atom
        .scalars
        .iter()
        .zip(&kinds)
        .filter(|(s, _)| matches!(s, ScalarExpr::Var(_)));
    open.filter(|(_, (_, kind))| *kind == AttrKind::Ints).count() > 1
}

/// A candidate for a call: types for its open operands, and its attributes.
type Template = (Vec<(VarId, TensorType)>, Vec<Scalar>);

/// See the [module documentation](self).
pub(super) struct Search<'p> {
    pattern: &'p Pattern,
    decisions: Vec<Decision>,
    /// Indices of the calls, operands first.
    pub(super) order: Vec<usize>,
    leaf_kinds: HashMap<VarId, LeafKind>,
    samples: HashMap<usize, Vec<Sample>>,
    type_ids: Vec<TensorType>,
    slots: Vec<usize>,
    pool: Pool,
    attempt: u64,
    attempt_steps: u64,
    early: bool,
    /// Number of remaining steps.
    pub(super) steps: u64,
}

impl<'p> Search<'p> {
    /// Creates a search; `None` for patterns in which a value is the result of two calls, or of
    /// itself.
    pub(super) fn new(pattern: &'p Pattern, seed: u64, steps: u64) -> Option<Self> {
        let leaf_kinds = leaf_kinds(pattern);
        let order = order(pattern, &leaf_kinds)?;
        let mut search = Search {
            pattern,
            decisions: Vec::new(),
            order,
            leaf_kinds,
            samples: HashMap::new(),
            type_ids: Vec::new(),
            slots: Vec::new(),
            pool: Pool::new(pattern, seed),
            attempt: 0,
            attempt_steps: 0,
            early: false,
            steps,
        };
        search.decide();
        Some(search)
    }

    fn decide(&mut self) {
        let mut made = vec![false; self.pattern.variables.len()];
        for &a in &self.order {
            let atom = &self.pattern.atoms[a];
            if let Shape::Leaf(_) = atom.shape {
                self.decisions.push(Decision::Leaf(atom.root));
                made[atom.root] = true;
                continue;
            }
            let open = |v: &VarId| !made[*v];
            if let Shape::Call(constructor) = atom.shape
                && (atom.children.iter().any(open) || has_windows(atom, constructor.op))
            {
                let all = (0..4).flat_map(|seed| constructor.op.samples(&mut Sizes::new(seed)));
                let fitting = all.filter(|s| s.inputs.len() == atom.children.len());
                self.samples.insert(a, fitting.take(60).collect());
                self.decisions.push(Decision::Sample(a));
            }
            for &child in &atom.children {
                if !made[child] {
                    self.decisions.push(Decision::Leaf(child));
                    made[child] = true;
                }
            }
            for (i, scalar) in atom.scalars.iter().enumerate() {
                if matches!(scalar, ScalarExpr::Var(_)) {
                    self.decisions.push(Decision::Attr(a, i));
                }
            }
            self.decisions.push(Decision::Call(a));
            made[atom.root] = true;
        }
    }

    /// Returns the next witness; `None` if no steps are left.
    pub(super) fn next(&mut self) -> Option<Witness> {
        while self.steps > 0 {
            self.pool.begin(self.attempt);
            self.attempt += 1;
            self.attempt_steps = ATTEMPT_STEPS;
            let leaves = self.decisions.iter().filter(|d| matches!(d, Decision::Leaf(_))).count();
            self.slots = (0..leaves).collect();
            let swaps = (1..leaves).rev();
            swaps.for_each(|i| self.slots.swap(i, self.pool.rng.below(i + 1)));
            let mut state = Witness {
                bindings: vec![None; self.pattern.variables.len()],
                leaves: Vec::new(),
                types: vec![None; self.pattern.variables.len()],
                open: vec![true; self.pattern.conditions.len()],
                hints: HashMap::new(),
                attr_hint: None,
            };
            if !self.settle(&mut state, None) {
                self.steps = self.steps.saturating_sub(1);
                continue;
            }
            if let Some(found) = self.descend(0, &state) {
                self.early |= self.attempt <= MAX_FAILURES;
                return Some(found);
            }
        }
        None
    }

    fn descend(&mut self, at: usize, state: &Witness) -> Option<Witness> {
        let Some(&decision) = self.decisions.get(at) else {
            return state.open.iter().all(|open| !open).then(|| state.clone());
        };
        match decision {
            Decision::Sample(a) => {
                for (types, scalars) in self.sampled(a, state) {
                    let mut next = state.clone();
                    next.hints.extend(types);
                    next.attr_hint = Some((a, scalars));
                    if let Some(found) = self.step(at, next) {
                        return Some(found);
                    }
                }
                self.step(at, state.clone())
            }
            Decision::Leaf(var) => self.leaf(at, var, state),
            Decision::Attr(a, i) => self.attribute(at, a, i, state),
            Decision::Call(a) => {
                let mut next = state.clone();
                let made = self.call(a, &mut next).is_some();
                if made { self.step(at, next) } else { None }
            }
        }
    }

    /// Counts a step, checks the conditions that can be checked, and continues. A step that fails immediately does not
    /// count for the attempt.
    fn step(&mut self, at: usize, mut next: Witness) -> Option<Witness> {
        if self.attempt_steps == 0 || self.steps == 0 {
            return None;
        }
        self.steps -= 1;
        if !self.settle(&mut next, None) {
            return None;
        }
        self.attempt_steps -= 1;
        self.descend(at + 1, &next)
    }

    fn known(&self, state: &Witness) -> Vec<TensorType> {
        let mut known: Vec<TensorType> = Vec::new();
        for ty in state.types.iter().flatten().flatten() {
            if !known.contains(ty) {
                known.push(ty.clone());
            }
        }
        known
    }

    fn leaf(&mut self, at: usize, var: VarId, state: &Witness) -> Option<Witness> {
        let kind = self.leaf_kinds.get(&var).copied().unwrap_or(LeafKind::Input);
        let known = self.known(state);
        let types = match (kind, state.hints.get(&var)) {
            (_, Some(hint)) => vec![hint.clone()],
            (LeafKind::Constant, None) => self.pool.constant_types(&known),
            _ => self.pool.types(&known),
        };
        let values = match kind {
            LeafKind::Constant => self.pool.values(&known),
            _ => vec![0.0],
        };
        for ty in types {
            // Parameters, states and scalars of the graph are 32-bit floats.
            if !matches!(kind, LeafKind::Input | LeafKind::Constant) && ty.dtype != meganeura_core::DType::F32 {
                continue;
            }
            self.intern(&ty);
            let mut open = values.len().min(MAX_VALUES);
            for &value in &values {
                let next = self.with_leaf(state, var, kind, &ty, value);
                if kind == LeafKind::Constant {
                    self.steps = self.steps.saturating_sub(1);
                    // If the type violates a condition, every value fails.
                    if !self.settle(&mut next.clone(), Some((self.asked(var), var))) {
                        break;
                    }
                    if !self.settle(&mut next.clone(), Some((FactName::Type, var))) {
                        continue;
                    }
                }
                if let Some(found) = self.step(at, next) {
                    return Some(found);
                }
                open = open.saturating_sub(1);
                if self.attempt_steps == 0 || open == 0 {
                    break;
                }
            }
            if self.attempt_steps == 0 || self.steps == 0 {
                return None;
            }
        }
        None
    }

    fn with_leaf(&self, state: &Witness, var: VarId, kind: LeafKind, ty: &TensorType, value: f64) -> Witness {
        let mut next = state.clone();
        next.bindings[var] = Some(Bound::Term(TermId(var as u32)));
        next.types[var] = Some(vec![ty.clone()]);
        let slot = self.slots.get(state.leaves.len()).copied().unwrap_or_default();
        // If a pattern names a leaf by its number, bind the number that the leaf will have.
        for atom in self.pattern.atoms.iter().filter(|a| a.root == var) {
            if let [ScalarExpr::Var(number)] = atom.scalars[..] {
                next.bindings[number] = Some(Bound::Scalar(Scalar::Int(slot as i64)));
            }
        }
        next.leaves.push(Leaf {
            var,
            kind,
            ty: ty.clone(),
            asked: self.asked(var),
            value,
            slot,
        });
        next
    }

    /// Returns the fact that determines the elements of a constant that have its value.
    fn asked(&self, var: VarId) -> FactName {
        let conditions = &self.pattern.conditions;
        let triangles = [FactName::LowerTriangle, FactName::UpperTriangle].into_iter();
        let mut asked = triangles.filter(|fact| conditions.iter().any(|(c, _)| asks(c, *fact, var)));
        asked.next().unwrap_or(FactName::Uniform)
    }

    fn attribute(&mut self, at: usize, a: usize, i: usize, state: &Witness) -> Option<Witness> {
        let atom = &self.pattern.atoms[a];
        let ScalarExpr::Var(var) = atom.scalars[i] else {
            return self.step(at, state.clone());
        };
        if state.bindings[var].is_some() {
            return self.step(at, state.clone());
        }
        let operands: Vec<TensorType> = operand_types(state, &atom.children);
        let mut candidates: Vec<Scalar> = Vec::new();
        if let Some((of, scalars)) = &state.attr_hint
            && *of == a
        {
            candidates.extend(scalars.get(i).cloned());
        }
        let known = self.known(state);
        match atom.shape {
            Shape::Call(constructor) => {
                let kind = constructor.op.attributes().get(i).map(|(_, kind)| *kind)?;
                let sampled: Vec<Scalar> = match kind {
                    AttrKind::Str => self.sampled_words(a, i),
                    _ => Vec::new(),
                };
                candidates.extend(self.pool.scalars(kind, &operands, &known, &sampled));
            }
            _ => candidates.extend((0..operands.len() as i64).map(Scalar::Int)),
        }
        for scalar in candidates {
            let mut next = state.clone();
            next.bindings[var] = Some(Bound::Scalar(scalar));
            if let Some(found) = self.step(at, next) {
                return Some(found);
            }
            if self.attempt_steps == 0 {
                return None;
            }
        }
        None
    }

    fn sampled_words(&self, a: usize, i: usize) -> Vec<Scalar> {
        let Shape::Call(constructor) = self.pattern.atoms[a].shape else {
            return Vec::new();
        };
        let samples = constructor.op.samples(&mut Sizes::new(1));
        let spelled = samples.iter().filter_map(|s| attr::literals(constructor.op, &s.attrs));
        spelled
            .filter_map(|literals| literals.get(i).map(Scalar::of_literal))
            .collect()
    }

    /// Returns candidates for a call from samples of its operator, with the samples' sizes replaced by existing ones.
    fn sampled(&mut self, a: usize, state: &Witness) -> Vec<Template> {
        let atom = &self.pattern.atoms[a];
        let Shape::Call(constructor) = atom.shape else {
            return Vec::new();
        };
        let Some(samples) = self.samples.get(&a).filter(|s| !s.is_empty()) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for _ in 0..6 {
            let sample = &samples[self.pool.rng.below(samples.len())];
            let keep = self.attempt > MAX_FAILURES && !self.early && self.pool.rng.below(2) == 0;
            let mut sizes: HashMap<usize, usize> = HashMap::from([(1, 1)]);
            let mut fits = true;
            for (&child, input) in atom.children.iter().zip(&sample.inputs) {
                if let Some(Some(types)) = state.types.get(child)
                    && let [ty] = types.as_slice()
                {
                    fits &= ty.shape.rank() == input.shape.len();
                    for (&from, &to) in input.shape.iter().zip(ty.shape.dims()) {
                        fits &= *sizes.entry(from).or_insert(to) == to;
                    }
                }
            }
            if !fits {
                continue;
            }
            let mut types = Vec::new();
            for (&child, input) in atom.children.iter().zip(&sample.inputs) {
                if state.types[child].is_some() {
                    continue;
                }
                let mut dims = Vec::new();
                for &from in &input.shape {
                    let fresh = if keep { from } else { self.pool.dim() };
                    dims.push(*sizes.entry(from).or_insert(fresh));
                }
                if let Ok(shape) = Dims::new(&dims)
                    && shape.numel() <= MAX_ELEMENTS
                {
                    types.push((child, TensorType::new(input.dtype, shape)));
                }
            }
            let size = |v: i64| match usize::try_from(v).ok().and_then(|v| sizes.get(&v)) {
                Some(&to) if v > 1 => to as i64,
                _ => v,
            };
            let literals = attr::literals(constructor.op, &sample.attrs).unwrap_or_default();
            let scalars = literals.iter().map(|l| match Scalar::of_literal(l) {
                Scalar::Int(v) => Scalar::Int(size(v)),
                Scalar::Str(text) => match parse_ints(&text) {
                    Some(list) => {
                        let list: Vec<i64> = list.into_iter().map(size).collect();
                        Scalar::Str(ints_text(&list).into())
                    }
                    None => Scalar::Str(text),
                },
                other => other,
            });
            found.push((types, scalars.collect()));
        }
        if self.pool.rng.below(3) == 0 {
            found.clear();
        }
        found
    }

    /// Infers the types of a call and binds its result; `None` if the operator rejects the call.
    fn call(&mut self, a: usize, state: &mut Witness) -> Option<()> {
        let atom = &self.pattern.atoms[a];
        let operands = operand_types(state, &atom.children);
        let scalars: Vec<Scalar> = atom
            .scalars
            .iter()
            .map(|s| scalar(s, &state.bindings))
            .collect::<Option<_>>()?;
        let types = match (&atom.shape, scalars.as_slice()) {
            (Shape::Call(constructor), _) => {
                let literals: Vec<_> = scalars.iter().map(Scalar::to_literal).collect();
                let attrs = attr::attrs(constructor.op, &literals)?;
                constructor.op.arity().check(operands.len()).ok()?;
                let call = Call {
                    attrs: &attrs,
                    inputs: &operands,
                    outputs: &[],
                };
                constructor.op.infer(&call).ok()?
            }
            (Shape::Get, [Scalar::Int(port)]) => vec![operands.get(usize::try_from(*port).ok()?)?.clone()],
            _ => return None,
        };
        if state.types[atom.root].is_some() || types.iter().any(|t| t.numel() > MAX_ELEMENTS) {
            return None;
        }
        types.iter().for_each(|ty| self.intern(ty));
        state.types[atom.root] = Some(types);
        state.bindings[atom.root] = Some(Bound::Term(TermId(atom.root as u32)));
        Some(())
    }

    /// Checks the conditions whose variables are bound, and binds variables that they define.
    /// Returns `false` if one fails. Conditions on the fact and value in `without` are skipped.
    fn settle(&self, state: &mut Witness, without: Option<(FactName, VarId)>) -> bool {
        loop {
            let mut progress = false;
            for c in 0..self.pattern.conditions.len() {
                if !state.open[c] {
                    continue;
                }
                let condition = &self.pattern.conditions[c].0;
                if without.is_some_and(|(fact, of)| asks(condition, fact, of)) {
                    continue;
                }
                let Some(binds) = condition.ready(&|v| state.bindings[v].is_some()) else {
                    continue;
                };
                state.open[c] = false;
                progress = true;
                let holds = match (condition, binds) {
                    (Condition::Holds(expr), _) => self.eval(expr, state).is_some(),
                    (Condition::Equal(a, b), None) => {
                        let left = self.eval(a, state);
                        left.is_some() && left == self.eval(b, state)
                    }
                    (Condition::Equal(a, b), Some(v)) => {
                        let other = if matches!(a, ScalarExpr::Var(u) if *u == v) {
                            b
                        } else {
                            a
                        };
                        let value = self.eval(other, state);
                        state.bindings[v] = value;
                        state.bindings[v].is_some()
                    }
                };
                if !holds {
                    return false;
                }
            }
            if !progress {
                return true;
            }
        }
    }

    /// Assigns a number to a type, if it has none.
    fn intern(&mut self, ty: &TensorType) {
        if !self.type_ids.contains(ty) {
            self.type_ids.push(ty.clone());
        }
    }

    fn eval(&self, expr: &ScalarExpr, state: &Witness) -> Option<Bound> {
        eval_with(expr, &state.bindings, &|fact, first, second| {
            fact_of(&self.type_ids, state, fact, first, second)
        })
    }
}

fn fact_of(
    type_ids: &[TensorType],
    state: &Witness,
    fact: FactName,
    first: &Bound,
    second: Option<&Bound>,
) -> Option<Scalar> {
    let leaf = |x: &TermId| state.leaves.iter().find(|l| l.var == x.0 as usize);
    match (fact, first) {
        (FactName::Type, Bound::Term(x)) => match state.types[x.0 as usize].as_deref()? {
            [ty] => type_ids.iter().position(|t| t == ty).map(|i| Scalar::Int(i as i64)),
            _ => None,
        },
        (FactName::Uniform | FactName::LowerTriangle | FactName::UpperTriangle, Bound::Term(x)) => {
            leaf(x)?.fact(fact).map(Scalar::Float)
        }
        (FactName::Ord, Bound::Term(x)) => {
            let place = leaf(x).map_or(state.leaves.len() + x.0 as usize, |l| l.slot);
            Some(Scalar::Int(place as i64))
        }
        (FactName::PackGroup, Bound::Term(x)) => {
            leaf(x).filter(|l| l.kind == LeafKind::Parameter)?;
            Some(Scalar::Int(1))
        }
        (FactName::Cap, _) => Some(Scalar::Unit),
        (of_type, Bound::Scalar(Scalar::Int(ty))) => {
            let axis = match second {
                Some(Bound::Scalar(Scalar::Int(axis))) => Some(*axis),
                _ => None,
            };
            facts::of_type(of_type, type_ids.get(usize::try_from(*ty).ok()?)?, axis)
        }
        _ => None,
    }
}

/// Returns `true` if a condition uses a given fact of a value.
fn asks(condition: &Condition, fact: FactName, of: VarId) -> bool {
    fn inside(expr: &ScalarExpr, fact: FactName, of: VarId) -> bool {
        match expr {
            ScalarExpr::Literal(_) | ScalarExpr::Var(_) => false,
            ScalarExpr::Fact(name, arguments) => {
                let asked = matches!(arguments.first(), Some(ScalarExpr::Var(v)) if *v == of);
                (*name == fact && asked) || arguments.iter().any(|a| inside(a, fact, of))
            }
            ScalarExpr::Primitive(_, arguments) => arguments.iter().any(|a| inside(a, fact, of)),
            ScalarExpr::NotEqual(sides) => sides.iter().any(|a| inside(a, fact, of)),
        }
    }
    match condition {
        Condition::Holds(a) => inside(a, fact, of),
        Condition::Equal(a, b) => inside(a, fact, of) || inside(b, fact, of),
    }
}

/// Returns a literal or a bound variable.
pub(super) fn scalar(expr: &ScalarExpr, bindings: &Bindings) -> Option<Scalar> {
    match eval_with(expr, bindings, &|_, _, _| None)? {
        Bound::Scalar(value) => Some(value),
        Bound::Term(_) => None,
    }
}

fn operand_types(state: &Witness, children: &[VarId]) -> Vec<TensorType> {
    let types = children.iter().filter_map(|&c| state.types[c].clone());
    types.flatten().collect()
}
