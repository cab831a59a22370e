//! Sorts of expressions and variables, and the sorts of operators' arguments.

use egglog::ast::{Action, Expr, Fact, Literal, Span};

use super::{Elaborator, Meaning};
use crate::rewrite::attr::{self, Constructor};
use crate::rewrite::pattern::{Fault, Shape, VarId};
use crate::rewrite::rule::shortened;
use crate::rewrite::scalar::{PRIMITIVES, Primitive, Scalar, Sort};
use meganeura_core::attrs::AttrKind;

/// Maximum number of results of a call, for `Get`.
const MAX_PORT: i64 = 255;
/// Maximum length of a variable's name.
const MAX_NAME: usize = 100;

impl Elaborator<'_> {
    /// Infers the sort of every variable: processes the rule repeatedly until no sort changes.
    pub(super) fn infer_sorts(&mut self, body: &[Fact], head: &[Action]) -> Result<(), Fault> {
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

    pub(super) fn sort_of(&mut self, expr: &Expr, expected: Option<Sort>) -> Result<Option<Sort>, Fault> {
        let check = |span: &Span, found: Sort| match expected {
            Some(wanted) if wanted != found => Err(Fault::new(
                span,
                format!("this is {}, but {} is needed here", described(found), described(wanted)),
            )),
            _ => Ok(Some(found)),
        };
        match expr {
            Expr::Lit(span, Literal::Unit) => Err(Fault::new(span, "'()' is not a value")),
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

    pub(super) fn shape_sort(&mut self, shape: Shape, span: &Span, arguments: &[Expr]) -> Result<Sort, Fault> {
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

    /// Returns the function with this name that fits the sorts inferred so far; `None` if several fit.
    pub(super) fn primitive(
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
        // Arguments with inferred sorts have been checked: checking again would take time
        // exponential in the depth.
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
            let message = format!("'{}' is not a valid variable name", shortened(name));
            return Err(Fault::new(span, message));
        }
        let v = self.sorts.len();
        self.names.insert(name.to_owned(), v);
        self.sorts.push(None);
        Ok(v)
    }
}

fn described(sort: Sort) -> String {
    match sort {
        Sort::Tensor => "a value (T)".into(),
        Sort::Tuple => "the results of an operator with several results (Tup), which needs Get,".into(),
        Sort::Unit => "a condition".into(),
        other => format!("of sort {other}"),
    }
}
