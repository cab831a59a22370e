//! Representation of attributes and operators in egglog, the engine for equality saturation.
//!
//! Both directions are in one module, so that encoder, patterns and decoder agree: attributes are
//! literals, and operators are constructors with a name, sorts and a number of operands.

use std::borrow::Cow;

use egglog::ast::Literal;

use meganeura_core::attrs::{Attr, AttrKind, Attrs};
use meganeura_core::dtype::DType;
use meganeura_core::ops::{Arity, OpRef};
use meganeura_core::registry;

/// Egglog sort (type of expressions) of a tensor value.
pub(super) const TENSOR: &str = "T";
/// Egglog sort of the results of an operator that declares several results.
pub(super) const TUPLE: &str = "Tup";

/// Returns the sort of an attribute's literals.
pub(super) fn sort(kind: AttrKind) -> &'static str {
    match kind {
        AttrKind::Int => "i64",
        AttrKind::Float => "f64",
        AttrKind::Bool => "bool",
        AttrKind::Str | AttrKind::DType | AttrKind::Ints | AttrKind::Program => "String",
    }
}

/// Formats a list of integers as in the text of rules: `[1, 0]`.
pub(super) fn ints_text(list: &[i64]) -> String {
    format!("{list:?}")
}

/// Parses the output of [`ints_text`]. Other formats are rejected, because they would not match.
pub(super) fn parse_ints(text: &str) -> Option<Vec<i64>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let list: Vec<i64> = if inner.is_empty() {
        Vec::new()
    } else {
        inner
            .split(", ")
            .map(|number| number.parse().ok())
            .collect::<Option<_>>()?
    };
    (ints_text(&list) == text).then_some(list)
}

/// Converts an attribute to its literal in rules and in the e-graph.
pub(super) fn to_literal(attr: &Attr) -> Literal {
    match attr {
        Attr::Int(v) => Literal::Int(*v),
        Attr::Float(v) => Literal::Float((*v).into()),
        Attr::Bool(v) => Literal::Bool(*v),
        Attr::Str(v) => Literal::String(v.clone()),
        Attr::DType(v) => Literal::String(v.name().to_owned()),
        Attr::Ints(v) => Literal::String(ints_text(v)),
        // Only for messages: `literals` excludes calls with a program from rules.
        Attr::Program(v) => Literal::String(v.to_string()),
    }
}

/// Converts a literal to an attribute; `None` if it is not a value of that kind.
pub(super) fn from_literal(kind: AttrKind, literal: &Literal) -> Option<Attr> {
    match (kind, literal) {
        (AttrKind::Int, Literal::Int(v)) => Some(Attr::Int(*v)),
        (AttrKind::Float, Literal::Float(v)) => Some(Attr::Float(v.0)),
        (AttrKind::Bool, Literal::Bool(v)) => Some(Attr::Bool(*v)),
        (AttrKind::Str, Literal::String(v)) => Some(Attr::Str(v.clone())),
        (AttrKind::Ints, Literal::String(v)) => parse_ints(v).map(Attr::Ints),
        (AttrKind::DType, Literal::String(v)) => {
            let dtype = DType::ALL.into_iter().find(|d| d.name() == v);
            dtype.map(Attr::DType)
        }
        _ => None,
    }
}

/// Returns the attributes of a call as literals, in the order of their declaration; `None` if they differ from the
/// declaration, because rules cannot express such a call.
pub(super) fn literals(op: OpRef, attrs: &Attrs) -> Option<Vec<Literal>> {
    let declared = op.attributes();
    let mut given = attrs.iter();
    let literals: Option<Vec<Literal>> = declared
        .iter()
        .map(|&(name, kind)| {
            let (given_name, value) = given.next()?;
            // Rules cannot express a program.
            let spelled = given_name == name && value.kind() == kind && kind != AttrKind::Program;
            spelled.then(|| to_literal(value))
        })
        .collect();
    literals.filter(|_| given.next().is_none())
}

/// Converts literals in declared order to attributes; `None` if number or kinds differ.
pub(super) fn attrs(op: OpRef, literals: &[Literal]) -> Option<Attrs> {
    let declared = op.attributes();
    if declared.len() != literals.len() {
        return None;
    }
    declared
        .iter()
        .zip(literals)
        .try_fold(Attrs::new(), |attrs, (&(name, kind), literal)| {
            Some(attrs.with(name, from_literal(kind, literal)?))
        })
}

/// An operator with a given number of operands. It is a constructor of the e-graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constructor {
    /// The operator.
    pub(super) op: OpRef,
    /// Number of operands.
    pub(super) operands: usize,
}

impl Constructor {
    /// Returns the constructor's name: the operator's, with the number of operands if that varies,
    /// as in `core.concat/2`.
    pub(super) fn name(self) -> Cow<'static, str> {
        // The operator lives as long as the program, and so does its name.
        let name = self.op.get().name();
        match self.op.arity() {
            Arity::Exactly(_) => Cow::Borrowed(name),
            Arity::AtLeast(_) | Arity::Between(..) => Cow::Owned(format!("{name}/{}", self.operands)),
        }
    }

    /// Returns `true` if the results are a [`TUPLE`], from which `Get` selects one.
    pub(super) fn is_tuple(self) -> bool {
        is_tuple(self.op)
    }

    /// Returns the sorts of the arguments: attributes, then operands.
    pub(super) fn argument_sorts(self) -> Vec<&'static str> {
        let attributes = self.op.attributes().into_iter().map(|(_, kind)| sort(kind));
        attributes.chain(std::iter::repeat_n(TENSOR, self.operands)).collect()
    }

    /// Resolves a constructor's name to an operator and a number of operands. It searches the operators of the set that
    /// is being registered (`own`) and the registered ones.
    ///
    /// # Errors
    /// A description of the problem, with the most similar names.
    pub(super) fn resolve(name: &str, own: &[OpRef]) -> Result<Self, String> {
        let (base, count) = match name.rsplit_once('/') {
            Some((base, count)) => (base, Some(count)),
            None => (name, None),
        };
        let found = own.iter().copied().find(|op| op.name() == base);
        let Some(op) = found.or_else(|| registry::op(base)) else {
            let known = registry::ops();
            let names = own.iter().chain(&known).map(|op| op.get().name());
            let message = format!("there is no operator '{base}'");
            return Err(match meganeura_core::error::names_there_are(base, names) {
                known if known.is_empty() => format!("{message}; `meganeura ops` lists them"),
                known => format!("{message}; {known}"),
            });
        };
        if has_program(op) {
            return Err(format!(
                "'{base}' has a program as attribute, which rules cannot express"
            ));
        }
        match (op.arity(), count) {
            (Arity::Exactly(operands), None) => Ok(Constructor { op, operands }),
            (Arity::Exactly(_), Some(_)) => Err(format!(
                "'{base}' has a fixed number of operands; leave the number out of the name"
            )),
            (_, None) => Err(format!(
                "'{base}' has a variable number of operands; add the number to the name, as in '{base}/2'"
            )),
            (arity, Some(count)) => {
                let operands: usize = count
                    .parse()
                    .ok()
                    .filter(|n: &usize| n.to_string() == count && *n <= MAX_OPERANDS)
                    .ok_or_else(|| {
                        format!("'{count}' in '{name}': expected a number of operands up to {MAX_OPERANDS}")
                    })?;
                arity.check(operands).map_err(|message| format!("'{base}' {message}"))?;
                Ok(Constructor { op, operands })
            }
        }
    }
}

/// Maximum number of operands in the name of a constructor.
const MAX_OPERANDS: usize = 64;

/// Returns `true` if an operator has a program as an attribute, so that rules cannot express its
/// calls.
fn has_program(op: OpRef) -> bool {
    op.attributes().iter().any(|(_, kind)| *kind == AttrKind::Program)
}

/// Returns `true` if the results of an operator form a [`TUPLE`], because it declares several results.
pub(super) fn is_tuple(op: OpRef) -> bool {
    op.ports().len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_attributes_convert_both_ways() {
        let attrs = [
            Attr::Int(-3),
            Attr::Float(0.1),
            Attr::Float(f64::INFINITY),
            Attr::Bool(true),
            Attr::Str("a \"b\"\n".into()),
            Attr::DType(DType::BF16),
            Attr::Ints(vec![]),
            Attr::Ints(vec![1, -2, 30]),
        ];
        for attr in attrs {
            assert_eq!(
                from_literal(attr.kind(), &to_literal(&attr)).as_ref(),
                Some(&attr),
                "{attr}"
            );
        }
    }

    #[test]
    fn other_spellings_of_a_list_are_no_attribute() {
        for text in [
            "[1,0]",
            "1, 0",
            "[1, 0",
            "[ 1, 0]",
            "[01, 0]",
            "[+1, 0]",
            "[1, ]",
            "[9223372036854775808]",
        ] {
            assert_eq!(parse_ints(text), None, "{text}");
        }
    }

    #[test]
    fn every_sample_of_every_operator_can_be_spelled() {
        for op in registry::ops() {
            for sample in op.samples(&mut meganeura_core::ops::sample::Sizes::new(1)) {
                let Some(spelled) = literals(op, &sample.attrs) else {
                    assert!(has_program(op), "{}: {}", op.name(), sample.attrs);
                    continue;
                };
                assert_eq!(
                    super::attrs(op, &spelled).as_ref(),
                    Some(&sample.attrs),
                    "{}",
                    op.name()
                );
                let constructor = Constructor {
                    op,
                    operands: sample.inputs.len(),
                };
                assert_eq!(Constructor::resolve(&constructor.name(), &[]), Ok(constructor));
            }
        }
    }

    #[test]
    fn unknown_constructors_name_the_closest() {
        let message = Constructor::resolve("core.matmull", &[]).unwrap_err();
        assert!(message.contains("the closest are core.matmul"), "{message}");
        let message = Constructor::resolve("core.holography", &[]).unwrap_err();
        assert!(
            message.contains("`meganeura ops` lists") && !message.contains("closest"),
            "{message}"
        );
        for (name, expected) in [
            ("core.concat", "add the number to the name"),
            ("core.matmul/2", "fixed number of operands"),
            ("core.concat/x", "expected a number of operands"),
            ("core.concat/02", "expected a number of operands"),
            ("core.concat/0", "takes at least"),
        ] {
            let message = Constructor::resolve(name, &[]).unwrap_err();
            assert!(message.contains(expected), "{name}: {message}");
        }
    }
}
