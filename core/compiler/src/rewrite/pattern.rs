//! A rule with its names resolved: what is matched, what must hold, what is made.
//!
//! The body of a rule is flattened into atoms: each says that a variable is a call of an operator with some
//! attributes on other variables. What remains, on numbers and flags, are conditions.

use std::fmt;

use egglog::ast::Span;

use super::attr::Constructor;
use super::facts::FactName;
use super::scalar::{Primitive, Scalar, Sort};

/// Index of a variable of a rule.
pub(super) type VarId = usize;

/// A variable.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    /// Its name in the text; those of inner calls have none.
    pub(super) name: Option<String>,
    /// Its sort.
    pub(super) sort: Sort,
}

/// A kind of leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LeafKind {
    /// Fed before each step.
    Input,
    /// Weights.
    Parameter,
    /// Persistent data.
    State,
    /// A number set at each step.
    Scalar,
    /// Known when the graph is built.
    Constant,
}

impl LeafKind {
    /// All kinds.
    pub(super) const ALL: [LeafKind; 5] = [
        LeafKind::Input,
        LeafKind::Parameter,
        LeafKind::State,
        LeafKind::Scalar,
        LeafKind::Constant,
    ];

    /// Name in rules.
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

/// What an atom matches or a head makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A call.
    Call(Constructor),
    /// One result of several: `(Get i t)`.
    Get,
    /// A leaf with its number.
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

/// An expression on numbers and flags; variables may be values too, as arguments of facts.
#[derive(Clone, Debug)]
pub(super) enum ScalarExpr {
    /// A literal.
    Literal(Scalar),
    /// A variable.
    Var(VarId),
    /// A function.
    Primitive(&'static Primitive, Vec<ScalarExpr>),
    /// A fact.
    Fact(FactName, Vec<ScalarExpr>),
    /// Whether two differ.
    NotEqual(Box<[ScalarExpr; 2]>),
}

impl ScalarExpr {
    /// Calls `visit` with every variable.
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

    /// Puts another variable in the place of one.
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

    /// Whether all variables satisfy a predicate.
    pub(super) fn all(&self, predicate: &dyn Fn(VarId) -> bool) -> bool {
        let mut all = true;
        self.variables(&mut |v| all &= predicate(v));
        all
    }
}

/// A call in the body: `root` is the result.
#[derive(Clone, Debug)]
pub(super) struct Atom {
    /// The result.
    pub(super) root: VarId,
    /// Operator, `Get` or leaf.
    pub(super) shape: Shape,
    /// Attributes, the number of a result or of a leaf: literals and variables.
    pub(super) scalars: Vec<ScalarExpr>,
    /// Operands.
    pub(super) children: Vec<VarId>,
    /// Place in the text.
    pub(super) span: Span,
}

/// A condition.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    /// Both sides have the same value; binds a variable that stands alone.
    Equal(ScalarExpr, ScalarExpr),
    /// The expression has a value.
    Holds(ScalarExpr),
}

impl Condition {
    /// What can be done when the variables of which `bound` says so are known: `Some(None)` to check it,
    /// `Some(Some(v))` to bind `v`, `None` when something is still unknown.
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

/// Something that the head makes.
#[derive(Clone, Debug)]
pub(super) enum Build {
    /// A value that is there already.
    Var(VarId),
    /// A call, result of several or leaf.
    Node {
        /// Operator, `Get` or leaf.
        shape: Shape,
        /// Attributes or number.
        scalars: Vec<ScalarExpr>,
        /// Operands.
        children: Vec<Build>,
    },
}

/// A step of the head.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Names a value.
    Let(VarId, Build),
    /// Names a number or flag.
    LetScalar(VarId, ScalarExpr),
    /// Two values are the same.
    Union(Build, Build),
    /// A value that others may need.
    Make(Build),
}

/// A rule with its names resolved.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// All variables.
    pub(super) variables: Vec<Variable>,
    /// What is matched.
    pub(super) atoms: Vec<Atom>,
    /// What must hold.
    pub(super) conditions: Vec<(Condition, Span)>,
    /// What is made.
    pub(super) head: Vec<Step>,
}

/// What is wrong with a rule, and where.
#[derive(Debug)]
pub(super) struct Fault {
    /// Place in the text.
    pub(super) span: Span,
    /// What is wrong.
    pub(super) message: String,
}

impl Fault {
    /// A fault.
    pub(super) fn new(span: &Span, message: impl Into<String>) -> Self {
        Fault {
            span: span.clone(),
            message: message.into(),
        }
    }
}

impl Pattern {
    /// What the text calls a variable.
    pub(super) fn name(&self, variable: VarId) -> &str {
        self.variables[variable].name.as_deref().unwrap_or("an inner call")
    }

    /// Checks that the body can be matched without trying pairs of unrelated values, and that everything that
    /// conditions and head use is bound.
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

    /// Whether all calls are operands, at some distance, of one of them.
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
                    "'{}' stands in facts only; some operator must have it as operand",
                    self.name(v)
                );
                return Err(Fault::new(span, message));
            }
        }
        self.check_head(bound, rule, &|v| self.variables[v].sort.is_term())
    }

    /// That steps use what is bound before them; `relevant` says of which variables.
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
    /// Calls `visit` with every variable.
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
    /// Calls `visit` with every variable that the step uses.
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
