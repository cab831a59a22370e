//! From egglog's syntax tree to a [`Pattern`]: resolves names, infers and checks sorts, flattens.

use std::collections::HashMap;

use egglog::ast::{Action, Expr, Fact, Literal, Span};

use super::attr::{self, Constructor};
use super::facts::{FACTS, FactName};
use super::pattern::{Atom, Build, Condition, Fault, LeafKind, Pattern, ScalarExpr, Shape, Step, VarId, Variable};
use super::scalar::{PRIMITIVES, Primitive, Scalar, Sort};
use crate::attrs::AttrKind;
use crate::ops::OpRef;

/// Resolves and checks a rule; `own` are the operators that its set brings.
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
    /// Variables that `let` has bound.
    lets: Vec<VarId>,
}

/// What a name in front of arguments means.
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
            let closest = crate::error::closest(name, facts);
            let message = format!("there is no fact or function '{name}'; the closest are {closest}");
            return Err(Fault::new(span, message));
        }
        let constructor = Constructor::resolve(name, self.own).map_err(|m| Fault::new(span, m))?;
        self.constructors.insert(name.to_owned(), constructor);
        Ok(Meaning::Shape(Shape::Call(constructor)))
    }

    // ---- sorts --------------------------------------------------------------------------------

    /// Infers the sort of every variable: passes over the rule until nothing new is learnt.
    fn infer_sorts(&mut self, body: &[Fact], head: &[Action]) -> Result<(), Fault> {
        loop {
            let known = |sorts: &[Option<Sort>]| sorts.iter().flatten().count();
            let before = (self.sorts.len(), known(&self.sorts));
            for fact in body {
                match fact {
                    Fact::Eq(span, a, b) => {
                        self.same_sort(span, a, b)?;
                    }
                    Fact::Fact(expr) => {
                        self.sort_of(expr, None)?;
                    }
                }
            }
            for action in head {
                self.action_sorts(action)?;
            }
            if before == (self.sorts.len(), known(&self.sorts)) {
                break;
            }
        }
        Ok(())
    }

    fn action_sorts(&mut self, action: &Action) -> Result<(), Fault> {
        match action {
            Action::Let(span, name, value) => {
                let variable = Expr::Var(span.clone(), name.clone());
                self.same_sort(span, &variable, value)?;
            }
            Action::Union(span, a, b) => {
                if let Some(sort) = self.same_sort(span, a, b)?
                    && !sort.is_term()
                {
                    return Err(Fault::new(span, format!("only values can be united, not {sort}")));
                }
            }
            Action::Expr(_, expr) => {
                self.sort_of(expr, None)?;
            }
            Action::Set(span, ..) | Action::Change(span, ..) | Action::Panic(span, _) => {
                return Err(Fault::new(
                    span,
                    "actions other than let, union and calls of operators are not allowed",
                ));
            }
        }
        Ok(())
    }

    fn same_sort(&mut self, span: &Span, a: &Expr, b: &Expr) -> Result<Option<Sort>, Fault> {
        let left = self.sort_of(a, None)?;
        let right = self.sort_of(b, left)?;
        let sort = match left {
            None => self.sort_of(a, right)?,
            some => some,
        };
        if sort == Some(Sort::Unit) {
            return Err(Fault::new(span, "a condition has no value that could be compared"));
        }
        Ok(sort)
    }

    fn sort_of(&mut self, expr: &Expr, expected: Option<Sort>) -> Result<Option<Sort>, Fault> {
        let check = |span: &Span, found: Sort| match expected {
            Some(wanted) if wanted != found => Err(Fault::new(
                span,
                format!("this is {}, but {} is needed here", described(found), described(wanted)),
            )),
            _ => Ok(Some(found)),
        };
        match expr {
            Expr::Lit(span, Literal::Unit) => Err(Fault::new(span, "'()' is no value")),
            Expr::Lit(span, literal) => check(span, Scalar::of_literal(literal).sort()),
            Expr::Var(span, name) => {
                let v = self.variable(name, span)?;
                match (self.sorts[v], expected) {
                    (Some(found), Some(wanted)) if found != wanted => Err(Fault::new(
                        span,
                        format!(
                            "'{name}' is {} elsewhere, but {} is needed here",
                            described(found),
                            described(wanted)
                        ),
                    )),
                    (None, Some(wanted)) => {
                        self.sorts[v] = Some(wanted);
                        Ok(Some(wanted))
                    }
                    (found, _) => Ok(found),
                }
            }
            Expr::Call(span, name, arguments) => {
                let found = match self.meaning(name, span)? {
                    Meaning::Shape(shape) => self.shape_sort(shape, span, arguments)?,
                    Meaning::Fact(_, sorts, result) => {
                        self.arguments(name, span, sorts, arguments)?;
                        result
                    }
                    Meaning::NotEqual => {
                        let [a, b] = arguments.as_slice() else {
                            return Err(Fault::new(span, "'!=' compares two values"));
                        };
                        self.same_sort(span, a, b)?;
                        Sort::Unit
                    }
                    Meaning::Primitive => match self.primitive(name, span, arguments, expected)? {
                        Some(primitive) => primitive.result,
                        None => return Ok(None),
                    },
                };
                check(span, found)
            }
        }
    }

    fn shape_sort(&mut self, shape: Shape, span: &Span, arguments: &[Expr]) -> Result<Sort, Fault> {
        match shape {
            Shape::Get => {
                self.arguments("Get", span, &[Sort::Int, Sort::Tuple], arguments)?;
                if let Expr::Lit(span, literal) = &arguments[0]
                    && !matches!(literal, Literal::Int(0..=MAX_PORT))
                {
                    return Err(Fault::new(span, format!("results are counted from 0 to {MAX_PORT}")));
                }
                if let (Expr::Lit(span, Literal::Int(port)), Expr::Call(_, name, _)) = (&arguments[0], &arguments[1])
                    && let Some(constructor) = self.constructors.get(name)
                    && *port >= constructor.op.ports().len() as i64
                {
                    let ports = constructor.op.ports();
                    let message = format!("'{name}' has the {} results {}", ports.len(), ports.join(", "));
                    return Err(Fault::new(span, message));
                }
                Ok(Sort::Tensor)
            }
            Shape::Leaf(kind) => {
                self.arguments(kind.name(), span, &[Sort::Int], arguments)?;
                Ok(Sort::Tensor)
            }
            Shape::Call(constructor) => {
                self.call_arguments(constructor, span, arguments)?;
                Ok(if constructor.is_tuple() {
                    Sort::Tuple
                } else {
                    Sort::Tensor
                })
            }
        }
    }

    fn call_arguments(&mut self, constructor: Constructor, span: &Span, arguments: &[Expr]) -> Result<(), Fault> {
        let name = constructor.name();
        let declared = constructor.op.attributes();
        let wanted = declared.len() + constructor.operands;
        if arguments.len() != wanted {
            let attributes: Vec<&str> = declared.iter().map(|(name, _)| *name).collect();
            let attributes = match attributes.as_slice() {
                [] => "no attributes".to_owned(),
                names => format!("the attributes {}", names.join(", ")),
            };
            let message = format!(
                "'{name}' takes {wanted} arguments ({attributes} and {} operands), got {}",
                constructor.operands,
                arguments.len()
            );
            return Err(Fault::new(span, message));
        }
        let sorts = constructor.argument_sorts();
        for (argument, sort) in arguments.iter().zip(sorts) {
            self.sort_of(argument, Sort::named(sort))?;
        }
        for (argument, (attribute, kind)) in arguments.iter().zip(declared) {
            if let Expr::Lit(span, literal) = argument
                && attr::from_literal(kind, literal).is_none()
            {
                let form = match kind {
                    AttrKind::Ints => "a list of integers in the form \"[1, 0]\"",
                    AttrKind::DType => "the name of an element type",
                    _ => "a value of its kind",
                };
                let message = format!("the attribute '{attribute}' of '{name}' must be {form}, not {literal}");
                return Err(Fault::new(span, message));
            }
        }
        Ok(())
    }

    fn arguments(&mut self, name: &str, span: &Span, sorts: &[Sort], arguments: &[Expr]) -> Result<(), Fault> {
        if sorts.len() != arguments.len() {
            let sorts: Vec<&str> = sorts.iter().map(|s| s.name()).collect();
            let message = format!(
                "'{name}' takes {} arguments ({}), got {}",
                sorts.len(),
                sorts.join(", "),
                arguments.len()
            );
            return Err(Fault::new(span, message));
        }
        for (argument, &sort) in arguments.iter().zip(sorts) {
            self.sort_of(argument, Some(sort))?;
        }
        Ok(())
    }

    /// The function of that name for the sorts known so far; `None` while several fit.
    fn primitive(
        &mut self,
        name: &str,
        span: &Span,
        arguments: &[Expr],
        expected: Option<Sort>,
    ) -> Result<Option<&'static Primitive>, Fault> {
        let known = arguments
            .iter()
            .map(|a| self.sort_of(a, None))
            .collect::<Result<Vec<_>, _>>()?;
        let fits = |p: &&Primitive| {
            p.name == name
                && p.arguments.len() == known.len()
                && expected.is_none_or(|sort| sort == p.result)
                && p.arguments.iter().zip(&known).all(|(a, k)| k.is_none_or(|k| k == *a))
        };
        let mut candidates = PRIMITIVES.iter().filter(fits);
        let Some(first) = candidates.next() else {
            let known: Vec<&str> = known.iter().map(|k| k.map_or("?", Sort::name)).collect();
            let result = expected.map(|e| format!(" with the value {e}")).unwrap_or_default();
            let message = format!("'{name}' is not defined for ({}){result}", known.join(", "));
            return Err(Fault::new(span, message));
        };
        if candidates.next().is_some() {
            return Ok(None);
        }
        // Those known have been checked: asking again would take exponential time in the depth.
        for ((argument, &sort), known) in arguments.iter().zip(first.arguments).zip(&known) {
            if known.is_none() {
                self.sort_of(argument, Some(sort))?;
            }
        }
        Ok(Some(first))
    }

    fn variable(&mut self, name: &str, span: &Span) -> Result<VarId, Fault> {
        if let Some(&v) = self.names.get(name) {
            return Ok(v);
        }
        let mut chars = name.chars();
        // The parser turns `_` into a fresh name that starts with `@`.
        let first = chars
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_' || c == '@');
        let rest = chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '\''));
        if !first || !rest || name.len() > MAX_NAME {
            let message = format!("'{}' is no name for a variable", super::rule::shortened(name));
            return Err(Fault::new(span, message));
        }
        let v = self.sorts.len();
        self.names.insert(name.to_owned(), v);
        self.sorts.push(None);
        Ok(v)
    }

    // ---- flattening ---------------------------------------------------------------------------

    /// Declares the variables of the pattern. Values that facts call equal become one variable.
    fn declare(&mut self, body: &[Fact], head: &[Action]) -> Result<(), Fault> {
        let mut names: Vec<(String, VarId)> = self.names.iter().map(|(n, v)| (n.clone(), *v)).collect();
        names.sort_by_key(|(_, v)| *v);
        for (name, v) in &names {
            let Some(sort) = self.sorts[*v] else {
                let span = body
                    .iter()
                    .find_map(|f| span_of_variable(f, name))
                    .or_else(|| head.first().map(action_span));
                let message = format!("nothing says what '{name}' is");
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
                    // One variable since `declare`.
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
                    _ => return Err(Fault::new(&span, "this is a value and not a condition")),
                }
            }
        }
        Ok(())
    }

    /// Adds the atoms of a pattern and returns its variable.
    fn matched(&mut self, expr: &Expr, root: Option<VarId>) -> Result<VarId, Fault> {
        let (span, name, arguments) = match expr {
            Expr::Var(_, name) => return Ok(self.names[name]),
            Expr::Call(span, name, arguments) => (span, name, arguments),
            Expr::Lit(span, _) => return Err(Fault::new(span, "a literal is no value of the graph")),
        };
        let Meaning::Shape(shape) = self.meaning(name, span)? else {
            return Err(Fault::new(span, format!("'{name}' makes no value of the graph")));
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

    /// A computed attribute becomes a variable with a condition.
    fn named_scalar(&mut self, expr: ScalarExpr, source: &Expr) -> Result<ScalarExpr, Fault> {
        if matches!(expr, ScalarExpr::Literal(_) | ScalarExpr::Var(_)) {
            return Ok(expr);
        }
        let span = expr_span(source);
        let Some(sort) = self.sort_of(source, None)? else {
            return Err(Fault::new(&span, "nothing says what this number is"));
        };
        let v = self.fresh(sort);
        self.conditions.push((Condition::Equal(ScalarExpr::Var(v), expr), span));
        // It is bound by the condition, not by the atom: the atom compares.
        Ok(ScalarExpr::Var(v))
    }

    /// An expression on numbers. Facts and patterns within it belong to the body alone.
    fn scalar(&mut self, expr: &Expr, in_body: bool) -> Result<ScalarExpr, Fault> {
        match expr {
            Expr::Lit(_, literal) => Ok(ScalarExpr::Literal(Scalar::of_literal(literal))),
            Expr::Var(_, name) => Ok(ScalarExpr::Var(self.names[name])),
            Expr::Call(span, name, arguments) => match self.meaning(name, span)? {
                Meaning::Shape(_) if in_body => Ok(ScalarExpr::Var(self.matched(expr, None)?)),
                Meaning::Shape(_) => Err(Fault::new(span, "a value cannot stand here")),
                Meaning::Fact(..) if !in_body => Err(Fault::new(
                    span,
                    format!("actions cannot ask for facts; bind it before, as in (= v ({name} ..))"),
                )),
                Meaning::Fact(fact, ..) => Ok(ScalarExpr::Fact(fact, self.scalars(arguments, in_body)?)),
                Meaning::NotEqual => {
                    let [a, b] = arguments.as_slice() else {
                        return Err(Fault::new(span, "'!=' compares two values"));
                    };
                    if !in_body {
                        return Err(Fault::new(span, "a condition cannot stand in an action"));
                    }
                    let sides = [self.scalar(a, in_body)?, self.scalar(b, in_body)?];
                    Ok(ScalarExpr::NotEqual(Box::new(sides)))
                }
                Meaning::Primitive => {
                    let Some(primitive) = self.primitive(name, span, arguments, None)? else {
                        return Err(Fault::new(span, format!("nothing says which numbers '{name}' is for")));
                    };
                    Ok(ScalarExpr::Primitive(primitive, self.scalars(arguments, in_body)?))
                }
            },
        }
    }

    fn scalars(&mut self, arguments: &[Expr], in_body: bool) -> Result<Vec<ScalarExpr>, Fault> {
        arguments.iter().map(|a| self.scalar(a, in_body)).collect()
    }

    /// Leaves of one kind with one number are the same value, wherever the rule names them.
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
                Build::Var(_) => Err(Fault::new(span, "this action does nothing")),
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
            Expr::Lit(span, _) => return Err(Fault::new(span, "a literal is no value of the graph")),
        };
        let Meaning::Shape(shape) = self.meaning(name, span)? else {
            return Err(Fault::new(span, format!("'{name}' makes no value of the graph")));
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

/// Most results that a call can have, for `Get`.
const MAX_PORT: i64 = 255;
/// Longest name of a variable.
const MAX_NAME: usize = 100;

fn scalar_arguments(shape: Shape, arguments: usize) -> usize {
    match shape {
        Shape::Get | Shape::Leaf(_) => 1,
        Shape::Call(constructor) => arguments.saturating_sub(constructor.operands),
    }
}

fn described(sort: Sort) -> String {
    match sort {
        Sort::Tensor => "a value (T)".into(),
        Sort::Tuple => "the results of an operator with several (Tup), of which Get takes one,".into(),
        Sort::Unit => "a condition".into(),
        other => format!("of sort {other}"),
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
