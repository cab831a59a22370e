//! Numbers, flags and strings in rules: their sorts, and the egglog functions on them that rules may use.

use std::fmt;
use std::sync::Arc;

use egglog::ast::Literal;

use super::attr;

/// Sort (type) of an expression in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sort {
    /// A tensor value.
    Tensor,
    /// All results of an operator that declares several results.
    Tuple,
    /// An integer: `i64`.
    Int,
    /// A number: `f64`.
    Float,
    /// A flag: `bool`.
    Bool,
    /// A string: `String`.
    Str,
    /// No value: the expression is a condition.
    Unit,
}

impl Sort {
    /// Returns the sort that egglog gives this name.
    pub(super) fn named(name: &str) -> Option<Sort> {
        let all = [Sort::Tensor, Sort::Tuple, Sort::Int, Sort::Float, Sort::Bool, Sort::Str];
        all.into_iter().find(|sort| sort.name() == name)
    }

    /// Returns the name that egglog gives the sort.
    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Tensor => attr::TENSOR,
            Sort::Tuple => attr::TUPLE,
            Sort::Int => "i64",
            Sort::Float => "f64",
            Sort::Bool => "bool",
            Sort::Str => "String",
            Sort::Unit => "Unit",
        }
    }

    /// Returns `true` if operators compute values of this sort.
    pub(super) fn is_term(self) -> bool {
        matches!(self, Sort::Tensor | Sort::Tuple)
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number, flag or string. Strings are shared, so that copies are cheap.
#[derive(Clone, Debug)]
pub(super) enum Scalar {
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A string.
    Str(Arc<str>),
    /// A fact that holds.
    Unit,
}

impl PartialEq for Scalar {
    /// Compares like egglog: NaN equals itself, and the zeros equal each other.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Scalar::Int(a), Scalar::Int(b)) => a == b,
            (Scalar::Float(a), Scalar::Float(b)) => a == b || (a.is_nan() && b.is_nan()),
            (Scalar::Bool(a), Scalar::Bool(b)) => a == b,
            (Scalar::Str(a), Scalar::Str(b)) => a == b,
            (Scalar::Unit, Scalar::Unit) => true,
            _ => false,
        }
    }
}

impl Scalar {
    /// Returns its sort.
    pub(super) fn sort(&self) -> Sort {
        match self {
            Scalar::Int(_) => Sort::Int,
            Scalar::Float(_) => Sort::Float,
            Scalar::Bool(_) => Sort::Bool,
            Scalar::Str(_) => Sort::Str,
            Scalar::Unit => Sort::Unit,
        }
    }

    /// Returns the value of a literal.
    pub(super) fn of_literal(literal: &Literal) -> Scalar {
        match literal {
            Literal::Int(v) => Scalar::Int(*v),
            Literal::Float(v) => Scalar::Float(v.0),
            Literal::Bool(v) => Scalar::Bool(*v),
            Literal::String(v) => Scalar::Str(v.as_str().into()),
            Literal::Unit => Scalar::Unit,
        }
    }

    /// Returns the literal with this value.
    pub(super) fn to_literal(&self) -> Literal {
        match self {
            Scalar::Int(v) => Literal::Int(*v),
            Scalar::Float(v) => Literal::Float((*v).into()),
            Scalar::Bool(v) => Literal::Bool(*v),
            Scalar::Str(v) => Literal::String(v.as_ref().to_owned()),
            Scalar::Unit => Literal::Unit,
        }
    }
}

/// A function of egglog on numbers, flags and strings. It is partial: if it has no value, a pattern does not match.
pub(super) struct Primitive {
    /// Name; several functions for different sorts may have the same one.
    pub(super) name: &'static str,
    /// Sorts of the arguments.
    pub(super) arguments: &'static [Sort],
    /// Sort of the value; [`Sort::Unit`] for a condition.
    pub(super) result: Sort,
    /// The function.
    pub(super) eval: fn(&[Scalar]) -> Option<Scalar>,
}

impl fmt::Debug for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! primitives {
    ($($name:literal: ($($arg:ident: $sort:ident),+) -> $result:ident = $value:expr;)*) => {
        &[$(Primitive {
            name: $name,
            arguments: &[$(Sort::$sort),+],
            result: Sort::$result,
            eval: |arguments| match arguments {
                [$(Scalar::$sort($arg)),+] => {
                    $(let $arg = *$arg;)+
                    $value
                }
                _ => None,
            },
        }),*]
    };
}

fn condition(holds: bool) -> Option<Scalar> {
    holds.then_some(Scalar::Unit)
}

fn int(value: Option<i64>) -> Option<Scalar> {
    value.map(Scalar::Int)
}

fn float(value: f64) -> Option<Scalar> {
    Some(Scalar::Float(value))
}

fn flag(value: bool) -> Option<Scalar> {
    Some(Scalar::Bool(value))
}

/// The functions that rules may use in addition to `=` and `!=`, with the same meaning as in egglog.
pub(super) static PRIMITIVES: &[Primitive] = primitives! {
    "+": (a: Int, b: Int) -> Int = int(a.checked_add(b));
    "-": (a: Int, b: Int) -> Int = int(a.checked_sub(b));
    "*": (a: Int, b: Int) -> Int = int(a.checked_mul(b));
    "/": (a: Int, b: Int) -> Int = int(a.checked_div(b));
    "%": (a: Int, b: Int) -> Int = int(a.checked_rem(b));
    "min": (a: Int, b: Int) -> Int = int(Some(a.min(b)));
    "max": (a: Int, b: Int) -> Int = int(Some(a.max(b)));
    "abs": (a: Int) -> Int = int(a.checked_abs());
    "<": (a: Int, b: Int) -> Unit = condition(a < b);
    ">": (a: Int, b: Int) -> Unit = condition(a > b);
    "<=": (a: Int, b: Int) -> Unit = condition(a <= b);
    ">=": (a: Int, b: Int) -> Unit = condition(a >= b);
    "to-f64": (a: Int) -> Float = float(a as f64);
    "+": (a: Float, b: Float) -> Float = float(a + b);
    "-": (a: Float, b: Float) -> Float = float(a - b);
    "*": (a: Float, b: Float) -> Float = float(a * b);
    "/": (a: Float, b: Float) -> Float = if b == 0.0 { None } else { float(a / b) };
    "^": (a: Float, b: Float) -> Float = float(a.powf(b));
    "neg": (a: Float) -> Float = float(-a);
    "abs": (a: Float) -> Float = float(a.abs());
    "min": (a: Float, b: Float) -> Float = float(a.min(b));
    "max": (a: Float, b: Float) -> Float = float(a.max(b));
    "sqrt": (a: Float) -> Float = if a < 0.0 { None } else { float(a.sqrt()) };
    "<": (a: Float, b: Float) -> Unit = condition(a < b);
    ">": (a: Float, b: Float) -> Unit = condition(a > b);
    "<=": (a: Float, b: Float) -> Unit = condition(a <= b);
    ">=": (a: Float, b: Float) -> Unit = condition(a >= b);
    "not": (a: Bool) -> Bool = flag(!a);
    "and": (a: Bool, b: Bool) -> Bool = flag(a && b);
    "or": (a: Bool, b: Bool) -> Bool = flag(a || b);
    "xor": (a: Bool, b: Bool) -> Bool = flag(a ^ b);
    "guard": (a: Bool) -> Unit = condition(a);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(name: &str, arguments: &[Scalar]) -> Option<Scalar> {
        let sorts: Vec<Sort> = arguments.iter().map(Scalar::sort).collect();
        let primitive = PRIMITIVES.iter().find(|p| p.name == name && p.arguments == sorts)?;
        (primitive.eval)(arguments)
    }

    #[test]
    fn what_has_no_value_is_none() {
        let int = Scalar::Int;
        assert_eq!(apply("+", &[int(2), int(3)]), Some(int(5)));
        assert_eq!(apply("+", &[int(i64::MAX), int(1)]), None);
        assert_eq!(apply("/", &[int(1), int(0)]), None);
        assert_eq!(apply("/", &[int(i64::MIN), int(-1)]), None);
        assert_eq!(apply("/", &[Scalar::Float(1.0), Scalar::Float(0.0)]), None);
        assert_eq!(apply("<", &[int(1), int(2)]), Some(Scalar::Unit));
        assert_eq!(apply("<", &[int(2), int(2)]), None);
        assert_eq!(apply("+", &[int(2), Scalar::Float(3.0)]), None);
    }

    #[test]
    fn sorts_have_their_names() {
        for kind in ["T", "Tup", "i64", "f64", "bool", "String"] {
            assert_eq!(Sort::named(kind).map(Sort::name), Some(kind));
        }
    }
}
