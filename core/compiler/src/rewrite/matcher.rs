//! Matching of the bodies of rules on terms.
//!
//! A body becomes a plan. Matching begins at an anchor call. Further calls are found as operands of bound terms, or by
//! trying the users of bound terms. Conditions are checked as soon as their variables are bound.

use std::collections::HashSet;

use super::facts::{self, FactName};
use super::pattern::{Atom, Condition, Pattern, ScalarExpr, Shape, VarId};
use super::scalar::Scalar;
use super::terms::{Label, TermId, Terms};
use meganeura_core::graph::NodeId;
use meganeura_core::ops::OpRef;

/// The value that a match binds to a variable.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Bound {
    /// A tensor value, as a term.
    Term(TermId),
    /// A number, flag or string.
    Scalar(Scalar),
}

/// Values of a rule's variables.
pub(super) type Bindings = Vec<Option<Bound>>;

/// Facts that the graph does not contain.
pub(super) struct World<'a> {
    /// Properties of the build for which `(cap ..)` holds.
    pub(super) caps: HashSet<String>,
    /// Function that returns the packing group of a parameter: parameters of one group may be stored together.
    pub(super) pack_group: &'a dyn Fn(NodeId) -> Option<i64>,
    /// `true` for each invariant node of the graph; empty if none is.
    pub(super) invariant: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// Matches the atom with this index, whose result is bound.
    Down(usize),
    /// Matches an atom through a bound operand: index of the atom, and index of the operand.
    Up(usize, usize),
    /// Checks a condition whose variables are bound, or binds its only unbound variable: index of the condition, and
    /// the variable.
    Condition(usize, Option<VarId>),
}

/// Plan for matching the body of a rule.
#[derive(Debug)]
pub(super) struct Plan {
    anchor: usize,
    moves: Vec<Move>,
}

impl Plan {
    /// Creates a plan for a checked pattern. Its anchor is the call that requires the fewest searches among users.
    /// `None` if no plan covers the pattern; [`Pattern::check`] rejects such patterns.
    pub(super) fn new(pattern: &Pattern) -> Option<Plan> {
        let calls = pattern.atoms.iter().enumerate();
        let anchors = calls.filter(|(_, atom)| matches!(atom.shape, Shape::Call(_)));
        let plans = anchors.filter_map(|(anchor, _)| Plan::from(pattern, anchor));
        plans.min_by_key(|plan| {
            let ups = plan.moves.iter().filter(|m| matches!(m, Move::Up(..))).count();
            (ups, plan.anchor)
        })
    }

    fn from(pattern: &Pattern, anchor: usize) -> Option<Plan> {
        let mut bound = vec![false; pattern.variables.len()];
        let mut atoms: Vec<usize> = (0..pattern.atoms.len()).filter(|&a| a != anchor).collect();
        let mut conditions: Vec<usize> = (0..pattern.conditions.len()).collect();
        let mut moves = Vec::new();
        bind(&pattern.atoms[anchor], &mut bound);
        while !atoms.is_empty() || !conditions.is_empty() {
            let is_bound = |v: VarId| bound[v];
            let ready = conditions
                .iter()
                .find_map(|&c| Some((c, pattern.conditions[c].0.ready(&is_bound)?)));
            if let Some((condition, binds)) = ready {
                conditions.retain(|&c| c != condition);
                moves.push(Move::Condition(condition, binds));
                if let Some(v) = binds {
                    bound[v] = true;
                }
                continue;
            }
            let down = atoms.iter().copied().find(|&a| bound[pattern.atoms[a].root]);
            let up = || {
                atoms.iter().find_map(|&a| {
                    let operand = pattern.atoms[a].children.iter().position(|&c| bound[c])?;
                    Some((a, operand))
                })
            };
            let (atom, step) = match down {
                Some(a) => (a, Move::Down(a)),
                None => up().map(|(a, operand)| (a, Move::Up(a, operand)))?,
            };
            atoms.retain(|&a| a != atom);
            moves.push(step);
            bind(&pattern.atoms[atom], &mut bound);
        }
        Some(Plan { anchor, moves })
    }

    /// Returns the operator at which matching begins, and its number of operands.
    pub(super) fn anchor(&self, pattern: &Pattern) -> Option<(OpRef, usize)> {
        match pattern.atoms[self.anchor].shape {
            Shape::Call(constructor) => Some((constructor.op, constructor.operands)),
            Shape::Get | Shape::Leaf(_) => None,
        }
    }

    /// Returns the maximum number of edges that a match spans from its anchor.
    pub(super) fn radius(&self) -> usize {
        let calls = self.moves.iter().filter(|m| !matches!(m, Move::Condition(..)));
        1 + calls.count()
    }
}

fn bind(atom: &Atom, bound: &mut [bool]) {
    bound[atom.root] = true;
    atom.children.iter().for_each(|&c| bound[c] = true);
    atom.scalars.iter().for_each(|s| s.variables(&mut |v| bound[v] = true));
}

/// A search for matches of one rule.
pub(super) struct Search<'s, 'a> {
    /// Terms to be searched.
    pub(super) terms: &'s Terms<'a>,
    /// Facts that are not in the terms.
    pub(super) world: &'s World<'s>,
    /// The rule to be matched.
    pub(super) pattern: &'s Pattern,
    /// Number of steps taken; the search ends at the limit.
    pub(super) steps: u64,
    /// Maximum number of steps.
    pub(super) limit: u64,
}

impl Search<'_, '_> {
    /// Returns at most `most` matches whose anchor is `start`.
    pub(super) fn matches(&mut self, plan: &Plan, start: TermId, most: usize) -> Vec<Bindings> {
        let mut found = Vec::new();
        let mut bindings: Bindings = vec![None; self.pattern.variables.len()];
        let mut trail = Vec::new();
        let atom = &self.pattern.atoms[plan.anchor];
        if self.matches_atom(atom, start, &mut bindings, &mut trail) {
            self.search(&plan.moves, &mut bindings, &mut found, most);
        }
        found
    }

    fn search(&mut self, moves: &[Move], bindings: &mut Bindings, found: &mut Vec<Bindings>, most: usize) {
        let Some((first, rest)) = moves.split_first() else {
            found.push(bindings.clone());
            return;
        };
        if found.len() >= most || self.steps >= self.limit {
            return;
        }
        self.steps += 1;
        let mut trail = Vec::new();
        match *first {
            Move::Down(a) => {
                let atom = &self.pattern.atoms[a];
                if let Some(Bound::Term(term)) = bindings[atom.root]
                    && self.matches_atom(atom, term, bindings, &mut trail)
                {
                    self.search(rest, bindings, found, most);
                }
                release(bindings, &mut trail);
            }
            Move::Up(a, operand) => {
                let atom = &self.pattern.atoms[a];
                let Some(Bound::Term(below)) = bindings[atom.children[operand]] else {
                    return;
                };
                let terms = self.terms;
                for &user in terms.parents(below) {
                    self.steps += 1;
                    let here = terms.children(user).get(operand) == Some(&below);
                    if here
                        && terms.is_needed(user)
                        && terms.find(user) == user
                        && self.matches_atom(atom, user, bindings, &mut trail)
                    {
                        self.search(rest, bindings, found, most);
                    }
                    release(bindings, &mut trail);
                }
            }
            Move::Condition(c, binds) => {
                if self.holds(&self.pattern.conditions[c].0, binds, bindings) {
                    self.search(rest, bindings, found, most);
                }
                if let Some(v) = binds {
                    bindings[v] = None;
                }
            }
        }
    }

    /// Returns `true` if `term` matches the atom; binds its free variables and records them in
    /// `trail`.
    fn matches_atom(&self, atom: &Atom, term: TermId, bindings: &mut Bindings, trail: &mut Vec<VarId>) -> bool {
        let number;
        let scalars: &[Scalar] = match (&atom.shape, self.terms.label(term)) {
            (Shape::Call(constructor), Label::Call { op, spelled, .. }) => match spelled {
                Some(spelled) if same_op(constructor.op, *op) => spelled,
                _ => return false,
            },
            (Shape::Get, Label::Get(port)) => {
                number = [Scalar::Int((*port).into())];
                &number
            }
            (Shape::Leaf(wanted), Label::Leaf(kind, id)) if wanted == kind => {
                number = [Scalar::Int(id.0.into())];
                &number
            }
            _ => return false,
        };
        let children = self.terms.children(term);
        if scalars.len() != atom.scalars.len() || children.len() != atom.children.len() {
            return false;
        }
        let mut unify = |v: VarId, value: Bound| match &bindings[v] {
            Some(bound) => *bound == value,
            None => {
                bindings[v] = Some(value);
                trail.push(v);
                true
            }
        };
        unify(atom.root, Bound::Term(term))
            && atom.scalars.iter().zip(scalars).all(|(wanted, found)| match wanted {
                ScalarExpr::Literal(literal) => literal == found,
                ScalarExpr::Var(v) => unify(*v, Bound::Scalar(found.clone())),
                // Elaboration replaced such expressions by variables with a condition.
                _ => false,
            })
            && atom
                .children
                .iter()
                .zip(children)
                .all(|(&v, &child)| unify(v, Bound::Term(child)))
    }

    fn holds(&self, condition: &Condition, binds: Option<VarId>, bindings: &mut Bindings) -> bool {
        match condition {
            Condition::Holds(expr) => self.eval(expr, bindings).is_some(),
            Condition::Equal(a, b) => match binds {
                None => {
                    let left = self.eval(a, bindings);
                    left.is_some() && left == self.eval(b, bindings)
                }
                Some(v) => {
                    let other = if matches!(a, ScalarExpr::Var(u) if *u == v) {
                        b
                    } else {
                        a
                    };
                    let value = self.eval(other, bindings);
                    bindings[v] = value;
                    bindings[v].is_some()
                }
            },
        }
    }

    fn eval(&self, expr: &ScalarExpr, bindings: &Bindings) -> Option<Bound> {
        eval_with(expr, bindings, &|fact, first, second| self.fact(fact, first, second))
    }

    fn fact(&self, fact: FactName, first: &Bound, second: Option<&Bound>) -> Option<Scalar> {
        match (fact, first) {
            (FactName::Type, Bound::Term(x)) => self.terms.type_id(*x).map(Scalar::Int),
            (FactName::Uniform | FactName::LowerTriangle | FactName::UpperTriangle, Bound::Term(x)) => {
                self.terms.of_constant(fact, *x).map(Scalar::Float)
            }
            (FactName::Ord, Bound::Term(x)) => Some(Scalar::Int(x.0.into())),
            (FactName::PackGroup, Bound::Term(x)) => match self.terms.label(*x) {
                Label::Leaf(_, id) => (self.world.pack_group)(*id).map(Scalar::Int),
                _ => None,
            },
            (FactName::Cap, Bound::Scalar(Scalar::Str(cap))) => {
                self.world.caps.contains(cap.as_ref()).then_some(Scalar::Unit)
            }
            (of_type, Bound::Scalar(Scalar::Int(ty))) => {
                let axis = match second {
                    Some(Bound::Scalar(Scalar::Int(axis))) => Some(*axis),
                    _ => None,
                };
                facts::of_type(of_type, self.terms.type_numbered(*ty)?, axis)
            }
            _ => None,
        }
    }
}

/// Evaluates an expression of an action, which contains no facts.
pub(super) fn eval_plain(expr: &ScalarExpr, bindings: &Bindings) -> Option<Bound> {
    eval_with(expr, bindings, &|_, _, _| None)
}

/// Function that returns the value of a fact of one or two arguments.
pub(super) type FactRule<'a> = &'a dyn Fn(FactName, &Bound, Option<&Bound>) -> Option<Scalar>;

/// Evaluates an expression, with a function for its facts; `None` if it has no value or a variable is unbound.
pub(super) fn eval_with(expr: &ScalarExpr, bindings: &Bindings, fact: FactRule) -> Option<Bound> {
    match expr {
        ScalarExpr::Literal(value) => Some(Bound::Scalar(value.clone())),
        ScalarExpr::Var(v) => bindings[*v].clone(),
        ScalarExpr::Primitive(primitive, arguments) => {
            let value = |a| match eval_with(a, bindings, fact)? {
                Bound::Scalar(value) => Some(value),
                Bound::Term(_) => None,
            };
            let values: Option<Vec<Scalar>> = arguments.iter().map(value).collect();
            (primitive.eval)(&values?).map(Bound::Scalar)
        }
        ScalarExpr::Fact(name, arguments) => {
            let mut values = Vec::with_capacity(arguments.len());
            for argument in arguments {
                values.push(eval_with(argument, bindings, fact)?);
            }
            fact(*name, values.first()?, values.get(1)).map(Bound::Scalar)
        }
        ScalarExpr::NotEqual(sides) => {
            let a = eval_with(&sides[0], bindings, fact)?;
            let b = eval_with(&sides[1], bindings, fact)?;
            (a != b).then_some(Bound::Scalar(Scalar::Unit))
        }
    }
}

fn release(bindings: &mut Bindings, trail: &mut Vec<VarId>) {
    for v in trail.drain(..) {
        bindings[v] = None;
    }
}

/// Returns `true` if two operators have the same name. Each name has one registered operator.
fn same_op(a: OpRef, b: OpRef) -> bool {
    let (a, b) = (a.get().name(), b.get().name());
    std::ptr::eq(a, b) || a == b
}
