//! Conversion of egglog's syntax tree to a [`Pattern`]: it resolves names, infers and checks sorts, and flattens nested
//! calls.

mod sorts;

use std::collections::HashMap;

use egglog::ast::{Action, Expr, Fact, Span};

use super::attr::Constructor;
use super::facts::{FACTS, FactName};
use super::pattern::{Atom, Build, Condition, Fault, LeafKind, Pattern, ScalarExpr, Shape, Step, VarId, Variable};
use super::scalar::{PRIMITIVES, Scalar, Sort};
use meganeura_core::ops::OpRef;

/// Resolves and checks a rule; `own` are the operators of its set.
pub(super) fn elaborate(own: &[OpRef], body: &[Fact], head: &[Action], span: &Span) -> Result<Pattern, Fault> {
    let mut cx = Elaborator {
        own,
        constructors: HashMap::new(),
        names: HashMap::new(),
        sorts: Vec::new(),
        variables: Vec::new(),
        atoms: Vec::new(),
        conditions: Vec::new(),
        lets: Vec::new(),
    };
    cx.infer_sorts(body, head)?;
    cx.declare(body, head)?;
    for fact in body {
        cx.fact(fact)?;
    }
    cx.merge_leaves();
    let steps = head
        .iter()
        .map(|action| cx.action(action))
        .collect::<Result<Vec<_>, _>>()?;
    let pattern = Pattern {
        variables: cx.variables,
        atoms: cx.atoms,
        conditions: cx.conditions,
        head: steps,
    };
    pattern.check(span)?;
    Ok(pattern)
}

struct Elaborator<'a> {
    own: &'a [OpRef],
    constructors: HashMap<String, Constructor>,
    /// Variables of the text while sorts are inferred.
    names: HashMap<String, VarId>,
    sorts: Vec<Option<Sort>>,
    /// Variables of the pattern.
    variables: Vec<Variable>,
    atoms: Vec<Atom>,
    conditions: Vec<(Condition, Span)>,
    /// Variables that a `let` has bound.
    lets: Vec<VarId>,
}

/// Meaning of a name that has arguments.
enum Meaning {
    Shape(Shape),
    Fact(FactName, &'static [Sort], Sort),
    NotEqual,
    Primitive,
}

impl Elaborator<'_> {
    fn meaning(&mut self, name: &str, span: &Span) -> Result<Meaning, Fault> {
        if name == "Get" {
            return Ok(Meaning::Shape(Shape::Get));
        }
        if let Some(kind) = LeafKind::ALL.into_iter().find(|k| k.name() == name) {
            return Ok(Meaning::Shape(Shape::Leaf(kind)));
        }
        if let Some(&(_, fact, arguments, result)) = FACTS.iter().find(|(n, ..)| *n == name) {
            return Ok(Meaning::Fact(fact, arguments, result));
        }
        if name == "!=" {
            return Ok(Meaning::NotEqual);
        }
        if PRIMITIVES.iter().any(|p| p.name == name) {
            return Ok(Meaning::Primitive);
        }
        if name == "=" {
            return Err(Fault::new(span, "'=' is a fact and has no value"));
        }
        if let Some(&constructor) = self.constructors.get(name) {
            return Ok(Meaning::Shape(Shape::Call(constructor)));
        }
        if !name.contains('.') {
            let facts = FACTS.iter().map(|(n, ..)| *n).chain(PRIMITIVES.iter().map(|p| p.name));
            let message = match meganeura_core::error::names_there_are(name, facts) {
                known if known.is_empty() => format!("there is no fact or function '{name}'; docs/rules.md lists them"),
                known => format!("there is no fact or function '{name}'; {known}"),
            };
            return Err(Fault::new(span, message));
        }
        let constructor = Constructor::resolve(name, self.own).map_err(|m| Fault::new(span, m))?;
        self.constructors.insert(name.to_owned(), constructor);
        Ok(Meaning::Shape(Shape::Call(constructor)))
    }

    // ---- flattening ---------------------------------------------------------------------------

    /// Declares the variables of the pattern. Values that facts equate become one variable.
    fn declare(&mut self, body: &[Fact], head: &[Action]) -> Result<(), Fault> {
        let mut names: Vec<(String, VarId)> = self.names.iter().map(|(n, v)| (n.clone(), *v)).collect();
        names.sort_by_key(|(_, v)| *v);
        for (name, v) in &names {
            let Some(sort) = self.sorts[*v] else {
                let span = body
                    .iter()
                    .find_map(|f| span_of_variable(f, name))
                    .or_else(|| head.first().map(action_span));
                let message = format!("the sort of '{name}' is unknown");
                return Err(Fault::new(&span.unwrap_or(Span::Panic), message));
            };
            self.variables.push(Variable {
                name: Some(name.clone()),
                sort,
            });
        }
        for fact in body {
            if let Fact::Eq(_, Expr::Var(_, a), Expr::Var(_, b)) = fact
                && self.variables[self.names[a]].sort.is_term()
            {
                let (keep, drop) = (self.names[a], self.names[b]);
                self.names.values_mut().filter(|v| **v == drop).for_each(|v| *v = keep);
            }
        }
        Ok(())
    }

    fn fresh(&mut self, sort: Sort) -> VarId {
        self.variables.push(Variable { name: None, sort });
        self.variables.len() - 1
    }

    fn is_term(&mut self, expr: &Expr) -> Result<bool, Fault> {
        Ok(self.sort_of(expr, None)?.is_some_and(Sort::is_term))
    }

    fn fact(&mut self, fact: &Fact) -> Result<(), Fault> {
        match fact {
            Fact::Eq(span, a, b) => {
                if !self.is_term(a)? {
                    let condition = Condition::Equal(self.scalar(a, true)?, self.scalar(b, true)?);
                    self.conditions.push((condition, span.clone()));
                    return Ok(());
                }
                match (a, b) {
                    // Already merged into one variable by `declare`.
                    (Expr::Var(..), Expr::Var(..)) => {}
                    (Expr::Var(_, name), call) | (call, Expr::Var(_, name)) => {
                        let root = self.names[name];
                        self.matched(call, Some(root))?;
                    }
                    (a, b) => {
                        let root = self.matched(a, None)?;
                        self.matched(b, Some(root))?;
                    }
                }
            }
            Fact::Fact(expr) => {
                let span = expr_span(expr);
                match self.sort_of(expr, None)? {
                    Some(sort) if sort.is_term() => {
                        self.matched(expr, None)?;
                    }
                    Some(Sort::Unit) => {
                        let condition = Condition::Holds(self.scalar(expr, true)?);
                        self.conditions.push((condition, span));
                    }
                    _ => return Err(Fault::new(&span, "expected a condition, found a value")),
                }
            }
        }
        Ok(())
    }

    /// Adds the atoms (calls) of an expression to the pattern, and returns the variable of its value.
    fn matched(&mut self, expr: &Expr, root: Option<VarId>) -> Result<VarId, Fault> {
        let (span, name, arguments) = match expr {
            Expr::Var(_, name) => return Ok(self.names[name]),
            Expr::Call(span, name, arguments) => (span, name, arguments),
            Expr::Lit(span, _) => return Err(Fault::new(span, "expected a value of the graph, found a literal")),
        };
        let Meaning::Shape(shape) = self.meaning(name, span)? else {
            return Err(Fault::new(
                span,
                format!("expected a value of the graph, found '{name}'"),
            ));
        };
        let sort = self.shape_sort(shape, span, arguments)?;
        let root = root.unwrap_or_else(|| self.fresh(sort));
        let place = self.atoms.len();
        self.atoms.push(Atom {
            root,
            shape,
            scalars: Vec::new(),
            children: Vec::new(),
            span: span.clone(),
        });
        let split = scalar_arguments(shape, arguments.len());
        let mut scalars = Vec::new();
        for argument in &arguments[..split] {
            let expr = self.scalar(argument, true)?;
            scalars.push(self.named_scalar(expr, argument)?);
        }
        let mut children = Vec::new();
        for argument in &arguments[split..] {
            children.push(self.matched(argument, None)?);
        }
        self.atoms[place].scalars = scalars;
        self.atoms[place].children = children;
        Ok(root)
    }

    /// Introduces a variable for a computed attribute, with the condition that it equals the expression.
    fn named_scalar(&mut self, expr: ScalarExpr, source: &Expr) -> Result<ScalarExpr, Fault> {
        if matches!(expr, ScalarExpr::Literal(_) | ScalarExpr::Var(_)) {
            return Ok(expr);
        }
        let span = expr_span(source);
        let Some(sort) = self.sort_of(source, None)? else {
            return Err(Fault::new(&span, "the sort of this number is unknown"));
        };
        let v = self.fresh(sort);
        self.conditions.push((Condition::Equal(ScalarExpr::Var(v), expr), span));
        // The condition binds the variable; the atom only compares its value.
        Ok(ScalarExpr::Var(v))
    }

    /// Converts an expression on numbers. Facts and patterns may occur only in the body.
    fn scalar(&mut self, expr: &Expr, in_body: bool) -> Result<ScalarExpr, Fault> {
        match expr {
            Expr::Lit(_, literal) => Ok(ScalarExpr::Literal(Scalar::of_literal(literal))),
            Expr::Var(_, name) => Ok(ScalarExpr::Var(self.names[name])),
            Expr::Call(span, name, arguments) => match self.meaning(name, span)? {
                Meaning::Shape(_) if in_body => Ok(ScalarExpr::Var(self.matched(expr, None)?)),
                Meaning::Shape(_) => Err(Fault::new(span, "expected a number, found a value")),
                Meaning::Fact(..) if !in_body => Err(Fault::new(
                    span,
                    format!("actions cannot use facts; bind the fact in the pattern, as in (= v ({name} ..))"),
                )),
                Meaning::Fact(fact, ..) => Ok(ScalarExpr::Fact(fact, self.scalars(arguments, in_body)?)),
                Meaning::NotEqual => {
                    let [a, b] = arguments.as_slice() else {
                        return Err(Fault::new(span, "'!=' compares two values"));
                    };
                    if !in_body {
                        return Err(Fault::new(span, "actions cannot contain conditions"));
                    }
                    let sides = [self.scalar(a, in_body)?, self.scalar(b, in_body)?];
                    Ok(ScalarExpr::NotEqual(Box::new(sides)))
                }
                Meaning::Primitive => {
                    let Some(primitive) = self.primitive(name, span, arguments, None)? else {
                        return Err(Fault::new(span, format!("the argument sorts of '{name}' are unknown")));
                    };
                    Ok(ScalarExpr::Primitive(primitive, self.scalars(arguments, in_body)?))
                }
            },
        }
    }

    fn scalars(&mut self, arguments: &[Expr], in_body: bool) -> Result<Vec<ScalarExpr>, Fault> {
        arguments.iter().map(|a| self.scalar(a, in_body)).collect()
    }

    /// Merges leaves of the same kind and number, because they are one value in the rule.
    fn merge_leaves(&mut self) {
        let mut i = 0;
        while i < self.atoms.len() {
            let (earlier, rest) = self.atoms.split_at(i);
            let atom = &rest[0];
            let same = |other: &&Atom| match (other.scalars.as_slice(), atom.scalars.as_slice()) {
                ([ScalarExpr::Var(a)], [ScalarExpr::Var(b)]) => a == b && other.shape == atom.shape,
                _ => false,
            };
            let first = earlier.iter().find(same).map(|other| other.root);
            match first.filter(|_| matches!(atom.shape, Shape::Leaf(_))) {
                None => i += 1,
                Some(keep) => {
                    let drop = self.atoms.remove(i).root;
                    self.rename(drop, keep);
                }
            }
        }
    }

    fn rename(&mut self, from: VarId, to: VarId) {
        let rename = |v: &mut VarId| {
            if *v == from {
                *v = to;
            }
        };
        for atom in &mut self.atoms {
            rename(&mut atom.root);
            atom.children.iter_mut().for_each(rename);
        }
        for (condition, _) in &mut self.conditions {
            match condition {
                Condition::Holds(a) => a.rename(from, to),
                Condition::Equal(a, b) => {
                    a.rename(from, to);
                    b.rename(from, to);
                }
            }
        }
        self.names.values_mut().for_each(rename);
    }

    // ---- the head -----------------------------------------------------------------------------

    fn action(&mut self, action: &Action) -> Result<Step, Fault> {
        match action {
            Action::Let(span, name, value) => {
                let v = self.names[name];
                if self.is_bound(v) {
                    return Err(Fault::new(span, format!("'{name}' is bound already")));
                }
                let step = if self.variables[v].sort.is_term() {
                    Step::Let(v, self.build(value)?)
                } else {
                    Step::LetScalar(v, self.scalar(value, false)?)
                };
                self.lets.push(v);
                Ok(step)
            }
            Action::Union(_, a, b) => Ok(Step::Union(self.build(a)?, self.build(b)?)),
            Action::Expr(span, expr) => match self.build(expr)? {
                Build::Var(_) => Err(Fault::new(span, "this action has no effect")),
                made @ Build::Node { .. } => Ok(Step::Make(made)),
            },
            Action::Set(span, ..) | Action::Change(span, ..) | Action::Panic(span, _) => {
                Err(Fault::new(span, "the action is not allowed"))
            }
        }
    }

    fn is_bound(&self, v: VarId) -> bool {
        let mut bound = self.lets.contains(&v);
        for atom in &self.atoms {
            bound |= atom.root == v || atom.children.contains(&v);
            atom.scalars.iter().for_each(|s| s.variables(&mut |u| bound |= u == v));
        }
        for (condition, _) in &self.conditions {
            condition.variables(&mut |u| bound |= u == v);
        }
        bound
    }

    fn build(&mut self, expr: &Expr) -> Result<Build, Fault> {
        let (span, name, arguments) = match expr {
            Expr::Var(_, name) => return Ok(Build::Var(self.names[name])),
            Expr::Call(span, name, arguments) => (span, name, arguments),
            Expr::Lit(span, _) => return Err(Fault::new(span, "expected a value of the graph, found a literal")),
        };
        let Meaning::Shape(shape) = self.meaning(name, span)? else {
            return Err(Fault::new(
                span,
                format!("expected a value of the graph, found '{name}'"),
            ));
        };
        let split = scalar_arguments(shape, arguments.len());
        let scalars = self.scalars(&arguments[..split], false)?;
        if let Shape::Leaf(kind) = shape
            && !self.is_matched_leaf(kind, &scalars[0])
        {
            let message = format!(
                "rules cannot make leaves; bind the number with ({} i) before",
                kind.name()
            );
            return Err(Fault::new(span, message));
        }
        let children = arguments[split..]
            .iter()
            .map(|argument| self.build(argument))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Build::Node {
            shape,
            scalars,
            children,
        })
    }

    fn is_matched_leaf(&self, kind: LeafKind, number: &ScalarExpr) -> bool {
        let ScalarExpr::Var(number) = number else { return false };
        let same = |s: &ScalarExpr| matches!(s, ScalarExpr::Var(v) if v == number);
        self.atoms
            .iter()
            .any(|a| a.shape == Shape::Leaf(kind) && a.scalars.iter().any(same))
    }
}

fn scalar_arguments(shape: Shape, arguments: usize) -> usize {
    match shape {
        Shape::Get | Shape::Leaf(_) => 1,
        Shape::Call(constructor) => arguments.saturating_sub(constructor.operands),
    }
}

fn expr_span(expr: &Expr) -> Span {
    match expr {
        Expr::Var(span, _) | Expr::Call(span, ..) | Expr::Lit(span, _) => span.clone(),
    }
}

fn action_span(action: &Action) -> Span {
    match action {
        Action::Let(span, ..)
        | Action::Set(span, ..)
        | Action::Change(span, ..)
        | Action::Union(span, ..)
        | Action::Panic(span, _)
        | Action::Expr(span, _) => span.clone(),
    }
}

fn span_of_variable(fact: &Fact, name: &str) -> Option<Span> {
    fn within(expr: &Expr, name: &str) -> Option<Span> {
        match expr {
            Expr::Var(span, found) => (found == name).then(|| span.clone()),
            Expr::Lit(..) => None,
            Expr::Call(_, _, arguments) => arguments.iter().find_map(|a| within(a, name)),
        }
    }
    match fact {
        Fact::Eq(_, a, b) => within(a, name).or_else(|| within(b, name)),
        Fact::Fact(a) => within(a, name),
    }
}
