//! A rule with resolved names: atoms to match, conditions, and actions.
//!
//! The body of a rule is flattened into atoms: each states that a variable is the result of an operator with some
//! attributes on other variables. All remaining parts, on numbers and flags, are conditions.

use std::fmt;

use egglog::ast::Span;

use super::attr::Constructor;
use super::facts::FactName;
use super::scalar::{Primitive, Scalar, Sort};

/// Index of a variable of a rule.
pub(super) type VarId = usize;

/// A variable of a rule.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    /// Name of the variable in the text; results of nested calls have none.
    pub(super) name: Option<String>,
    /// Sort of the variable.
    pub(super) sort: Sort,
}

/// A kind of leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LeafKind {
    /// Data that users feed before each step.
    Input,
    /// A parameter.
    Parameter,
    /// Persistent data that is not trained.
    State,
    /// A number that is set for each step.
    Scalar,
    /// Data that is fixed when the graph is built.
    Constant,
}

impl LeafKind {
    /// All kinds of leaves.
    pub(super) const ALL: [LeafKind; 5] = [
        LeafKind::Input,
        LeafKind::Parameter,
        LeafKind::State,
        LeafKind::Scalar,
        LeafKind::Constant,
    ];

    /// Returns the name in rules.
    pub(super) fn name(self) -> &'static str {
        match self {
            LeafKind::Input => "Input",
            LeafKind::Parameter => "Parameter",
            LeafKind::State => "State",
            LeafKind::Scalar => "Scalar",
            LeafKind::Constant => "Constant",
        }
    }
}

/// Kind of node that an atom matches or a head creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A call of an operator.
    Call(Constructor),
    /// Selection of one result of a call: `(Get i t)`.
    Get,
    /// A leaf, by its number.
    Leaf(LeafKind),
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Call(constructor) => f.write_str(&constructor.name()),
            Shape::Get => f.write_str("Get"),
            Shape::Leaf(kind) => f.write_str(kind.name()),
        }
    }
}

/// An expression on numbers, flags and strings. Its variables may also be tensor values, as arguments of facts.
#[derive(Clone, Debug)]
pub(super) enum ScalarExpr {
    /// A literal.
    Literal(Scalar),
    /// A variable.
    Var(VarId),
    /// A function with its arguments.
    Primitive(&'static Primitive, Vec<ScalarExpr>),
    /// A fact with its arguments.
    Fact(FactName, Vec<ScalarExpr>),
    /// `true` if two values differ.
    NotEqual(Box<[ScalarExpr; 2]>),
}

impl ScalarExpr {
    /// Calls `visit` with every variable of the expression.
    pub(super) fn variables(&self, visit: &mut dyn FnMut(VarId)) {
        match self {
            ScalarExpr::Literal(_) => {}
            ScalarExpr::Var(v) => visit(*v),
            ScalarExpr::Primitive(_, arguments) | ScalarExpr::Fact(_, arguments) => {
                arguments.iter().for_each(|a| a.variables(visit));
            }
            ScalarExpr::NotEqual(sides) => sides.iter().for_each(|a| a.variables(visit)),
        }
    }

    /// Replaces a variable by another one.
    pub(super) fn rename(&mut self, from: VarId, to: VarId) {
        match self {
            ScalarExpr::Literal(_) => {}
            ScalarExpr::Var(v) => {
                if *v == from {
                    *v = to;
                }
            }
            ScalarExpr::Primitive(_, arguments) | ScalarExpr::Fact(_, arguments) => {
                arguments.iter_mut().for_each(|a| a.rename(from, to));
            }
            ScalarExpr::NotEqual(sides) => sides.iter_mut().for_each(|a| a.rename(from, to)),
        }
    }

    /// Returns `true` if all variables satisfy a predicate.
    pub(super) fn all(&self, predicate: &dyn Fn(VarId) -> bool) -> bool {
        let mut all = true;
        self.variables(&mut |v| all &= predicate(v));
        all
    }
}

/// A call or leaf that a match must contain; `root` is its result.
#[derive(Clone, Debug)]
pub(super) struct Atom {
    /// The result.
    pub(super) root: VarId,
    /// Kind of node to match.
    pub(super) shape: Shape,
    /// Attributes of a call, or the number of a result or leaf: literals and variables.
    pub(super) scalars: Vec<ScalarExpr>,
    /// Operands.
    pub(super) children: Vec<VarId>,
    /// Position in the text.
    pub(super) span: Span,
}

/// A condition of a rule.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    /// Both sides have the same value. If one side is an unbound variable, it is bound.
    Equal(ScalarExpr, ScalarExpr),
    /// The condition holds if the expression has a value.
    Holds(ScalarExpr),
}

impl Condition {
    /// Returns the step that is possible if the variables in `bound` are bound: `Some(None)` to check the condition,
    /// `Some(Some(v))` to bind `v`, `None` while other variables are unbound.
    pub(super) fn ready(&self, bound: &dyn Fn(VarId) -> bool) -> Option<Option<VarId>> {
        match self {
            Condition::Holds(expr) => expr.all(bound).then_some(None),
            Condition::Equal(a, b) => match (a, b, a.all(bound), b.all(bound)) {
                (_, _, true, true) => Some(None),
                (ScalarExpr::Var(v), _, false, true) | (_, ScalarExpr::Var(v), true, false) => Some(Some(*v)),
                _ => None,
            },
        }
    }
}

/// A value that the head creates.
#[derive(Clone, Debug)]
pub(super) enum Build {
    /// An existing value: that of a variable.
    Var(VarId),
    /// A node: a call, a selection of a result, or a leaf.
    Node {
        /// Kind of node to create.
        shape: Shape,
        /// Attributes of a call, or the number of a result or leaf.
        scalars: Vec<ScalarExpr>,
        /// Operands.
        children: Vec<Build>,
    },
}

/// An action of the head.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Binds a variable to a tensor value.
    Let(VarId, Build),
    /// Binds a variable to a number, flag or string.
    LetScalar(VarId, ScalarExpr),
    /// States that two values are equal.
    Union(Build, Build),
    /// Creates a value that other rules may match.
    Make(Build),
}

/// A rule with its names resolved.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// All variables.
    pub(super) variables: Vec<Variable>,
    /// Calls and leaves that a match must contain.
    pub(super) atoms: Vec<Atom>,
    /// Conditions.
    pub(super) conditions: Vec<(Condition, Span)>,
    /// Actions, in order.
    pub(super) head: Vec<Step>,
}

/// An error in a rule, with its position.
#[derive(Debug)]
pub(super) struct Fault {
    /// Position in the text.
    pub(super) span: Span,
    /// Description of the error.
    pub(super) message: String,
}

impl Fault {
    /// Creates a fault.
    pub(super) fn new(span: &Span, message: impl Into<String>) -> Self {
        Fault {
            span: span.clone(),
            message: message.into(),
        }
    }
}

impl Pattern {
    /// Returns the name of a variable in the text.
    pub(super) fn name(&self, variable: VarId) -> &str {
        self.variables[variable].name.as_deref().unwrap_or("an inner call")
    }

    /// Checks that the body can be matched without trying pairs of unrelated values, and that all
    /// variables of conditions and head are bound.
    pub(super) fn check(&self, rule: &Span) -> Result<(), Fault> {
        if !self.atoms.iter().any(|a| matches!(a.shape, Shape::Call(_))) {
            return Err(Fault::new(
                rule,
                "the left-hand side matches every value; name at least one operator",
            ));
        }
        self.check_values_bound(rule)?;
        self.check_connected()?;
        self.check_scalars_bound(rule)
    }

    /// Returns `true` if all calls are direct or indirect operands of one of them.
    pub(super) fn has_one_root(&self) -> bool {
        let is_operand = |v: VarId| self.atoms.iter().any(|atom| atom.children.contains(&v));
        self.atoms.iter().filter(|atom| !is_operand(atom.root)).count() == 1
    }

    fn check_values_bound(&self, rule: &Span) -> Result<(), Fault> {
        let mut bound = vec![false; self.variables.len()];
        for atom in &self.atoms {
            bound[atom.root] = true;
            atom.children.iter().for_each(|&c| bound[c] = true);
        }
        for (condition, span) in &self.conditions {
            let exprs: [&ScalarExpr; 2] = match condition {
                Condition::Equal(a, b) => [a, b],
                Condition::Holds(a) => [a, a],
            };
            let mut loose = None;
            for expr in exprs {
                expr.variables(&mut |v| {
                    if self.variables[v].sort.is_term() && !bound[v] {
                        loose = Some(v);
                    }
                });
            }
            if let Some(v) = loose {
                let message = format!(
                    "'{}' occurs only in facts; it must be an operand of some operator",
                    self.name(v)
                );
                return Err(Fault::new(span, message));
            }
        }
        self.check_head(bound, rule, &|v| self.variables[v].sort.is_term())
    }

    /// Checks that actions use only bound variables; `relevant` selects the variables to check.
    fn check_head(&self, mut bound: Vec<bool>, rule: &Span, relevant: &dyn Fn(VarId) -> bool) -> Result<(), Fault> {
        for step in &self.head {
            let mut loose = None;
            step.variables(&mut |v| {
                if relevant(v) && !bound[v] {
                    loose = Some(v);
                }
            });
            if let Some(v) = loose {
                return Err(self.unbound(v, rule));
            }
            if let Step::Let(v, _) | Step::LetScalar(v, _) = step {
                bound[*v] = true;
            }
        }
        Ok(())
    }

    fn unbound(&self, v: VarId, span: &Span) -> Fault {
        let message = format!(
            "the variable '{}' is not bound by a pattern or by an equation",
            self.name(v)
        );
        Fault::new(span, message)
    }

    fn check_connected(&self) -> Result<(), Fault> {
        let mut group: Vec<VarId> = (0..self.variables.len()).collect();
        fn find(group: &[VarId], mut v: VarId) -> VarId {
            while group[v] != v {
                v = group[v];
            }
            v
        }
        for atom in &self.atoms {
            for &child in &atom.children {
                let (a, b) = (find(&group, atom.root), find(&group, child));
                group[a] = b;
            }
        }
        let first = find(&group, self.atoms[0].root);
        match self.atoms.iter().find(|a| find(&group, a.root) != first) {
            None => Ok(()),
            Some(apart) => Err(Fault::new(
                &apart.span,
                format!(
                    "the pattern is disconnected: ({} ..) shares no value with ({} ..), so every pair in the graph would be tried",
                    apart.shape, self.atoms[0].shape
                ),
            )),
        }
    }

    fn check_scalars_bound(&self, rule: &Span) -> Result<(), Fault> {
        let mut bound: Vec<bool> = self.variables.iter().map(|v| v.sort.is_term()).collect();
        for atom in &self.atoms {
            atom.scalars.iter().for_each(|s| s.variables(&mut |v| bound[v] = true));
        }
        let mut open: Vec<&(Condition, Span)> = self.conditions.iter().collect();
        loop {
            let before = open.len();
            open.retain(|(condition, _)| match condition.ready(&|v| bound[v]) {
                None => true,
                Some(binds) => {
                    if let Some(v) = binds {
                        bound[v] = true;
                    }
                    false
                }
            });
            if open.len() == before {
                break;
            }
        }
        if let Some((condition, span)) = open.first() {
            let mut loose = 0;
            condition.variables(&mut |v| {
                if !bound[v] {
                    loose = v;
                }
            });
            return Err(self.unbound(loose, span));
        }
        self.check_head(bound, rule, &|_| true)
    }
}

impl Condition {
    /// Calls `visit` with every variable of the value.
    pub(super) fn variables(&self, visit: &mut dyn FnMut(VarId)) {
        match self {
            Condition::Holds(a) => a.variables(visit),
            Condition::Equal(a, b) => {
                a.variables(visit);
                b.variables(visit);
            }
        }
    }
}

impl Build {
    fn variables(&self, visit: &mut dyn FnMut(VarId)) {
        match self {
            Build::Var(v) => visit(*v),
            Build::Node { scalars, children, .. } => {
                scalars.iter().for_each(|s| s.variables(visit));
                children.iter().for_each(|c| c.variables(visit));
            }
        }
    }
}

impl Step {
    /// Calls `visit` with every variable that the action uses.
    fn variables(&self, visit: &mut dyn FnMut(VarId)) {
        match self {
            Step::Let(_, build) | Step::Make(build) => build.variables(visit),
            Step::LetScalar(_, expr) => expr.variables(visit),
            Step::Union(a, b) => {
                a.variables(visit);
                b.variables(visit);
            }
        }
    }
}
