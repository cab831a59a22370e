//! Builder of decompositions: converts the expressions of a manifest to nodes of a graph.

use std::collections::HashMap;

use meganeura_core::DType;
use meganeura_core::attrs::{Attr, AttrKind, Attrs};
use meganeura_core::graph::{Graph, Value};

use crate::definition::Bound;
use crate::operator::DataOp;
use crate::size::{REST, is_arithmetic, real_arithmetic};
use crate::term::Term;

/// Returns `true` if an expression's name is a built-in form, not an operator: the choice of a result, a constant, or
/// arithmetic.
pub(crate) fn is_form(name: &str) -> bool {
    name == "Get" || is_arithmetic(name) || DType::from_name(name).is_some()
}

/// Returns an operator's name without the number of operands that a call may append: `core.concat` for `core.concat/2`.
pub(crate) fn base_name(name: &str) -> &str {
    match name.rsplit_once('/') {
        Some((base, _)) if !base.is_empty() => base,
        _ => name,
    }
}

pub(crate) struct Builder<'a> {
    pub(crate) op: &'a DataOp,
    pub(crate) graph: &'a mut Graph,
    pub(crate) attrs: &'a Attrs,
    pub(crate) bound: &'a Bound,
    /// Results of each named value.
    pub(crate) values: HashMap<&'a str, Vec<Value>>,
}

impl Builder<'_> {
    fn constant(&mut self, dtype: DType, value: f64) -> Vec<Value> {
        vec![self.graph.scalar_of(dtype, value).into()]
    }

    /// Returns the results of an expression.
    ///
    /// # Errors
    /// An expression without a value, or that is not a call.
    pub(crate) fn ports(&mut self, term: &Term) -> Result<Vec<Value>, String> {
        if let Term::Name(name) = term
            && let Some(values) = self.values.get(name.as_str())
        {
            return Ok(values.clone());
        }
        match term {
            Term::Call(name, arguments) if !is_arithmetic(name) => self.call(name, arguments),
            Term::Bool(_) | Term::Text(_) => Err(format!("{term} is not a tensor")),
            number => {
                let value = self.number(number)?;
                Ok(self.constant(self.bound.float, value))
            }
        }
    }

    fn value(&mut self, term: &Term) -> Result<Value, String> {
        let ports = self.ports(term)?;
        ports.first().copied().ok_or_else(|| format!("{term} has no result"))
    }

    /// Evaluates an expression of sizes and attributes to a number. If all of them are integers, the arithmetic is
    /// integer.
    fn number(&self, term: &Term) -> Result<f64, String> {
        if let Ok(value) = self.bound.sizes.value(term) {
            return Ok(value as f64);
        }
        match term {
            Term::Float(v) => Ok(*v),
            Term::Name(name) => match self.attrs.get(name) {
                Some(Attr::Float(v)) => Ok(*v),
                _ => Err(format!("'{name}' is neither a value nor a number")),
            },
            Term::Call(name, arguments) => {
                let [a, b] = &arguments[..] else {
                    return Err(format!("'{term}' has no value; arithmetic expects two numbers"));
                };
                let value = real_arithmetic(name, self.number(a)?, self.number(b)?);
                value.ok_or_else(|| format!("'{term}' has no value"))
            }
            other => Err(format!("{other} is not a number")),
        }
    }

    fn call(&mut self, name: &str, arguments: &[Term]) -> Result<Vec<Value>, String> {
        if name == "Get" {
            return self.get(arguments);
        }
        if let Some(dtype) = DType::from_name(name) {
            let [term] = arguments else {
                return Err(format!("'{name}' expects a number"));
            };
            let value = self.number(term)?;
            return Ok(self.constant(dtype, value));
        }
        let op = self
            .op
            .called(name)
            .ok_or_else(|| format!("'{name}' is not an operator"))?;
        let declared = op.attributes();
        if arguments.len() < declared.len() {
            return Err(format!(
                "'{name}' has {} attributes before its operands",
                declared.len()
            ));
        }
        let (given, operands) = arguments.split_at(declared.len());
        let mut attrs = Attrs::new();
        for ((attribute, kind), term) in declared.into_iter().zip(given) {
            let value = self.attribute(kind, term);
            attrs = attrs.with(
                attribute,
                value.map_err(|e| format!("'{name}', its attribute '{attribute}': {e}"))?,
            );
        }
        let operands: Result<Vec<Value>, String> = operands.iter().map(|t| self.value(t)).collect();
        let node = self.graph.call(op, attrs, operands?);
        Ok(self.graph.values(node).collect())
    }

    /// Selects one result of a call that has several.
    fn get(&mut self, arguments: &[Term]) -> Result<Vec<Value>, String> {
        let [Term::Int(port), term] = arguments else {
            return Err("'Get' expects a number and a call: (Get 0 (...))".into());
        };
        let ports = self.ports(term)?;
        let port = usize::try_from(*port).ok().and_then(|p| ports.get(p));
        port.map(|&v| vec![v])
            .ok_or_else(|| format!("{term} has {} results", ports.len()))
    }

    fn attribute(&self, kind: AttrKind, term: &Term) -> Result<Attr, String> {
        if let Term::Name(name) = term
            && let Some(attr) = self.attrs.get(name)
            && attr.kind() == kind
        {
            return Ok(attr.clone());
        }
        let wrong = || format!("{term} is not {kind:?}");
        match (kind, term) {
            (AttrKind::Int, term) => self.bound.sizes.value(term).map(Attr::Int),
            (AttrKind::Float, Term::Int(_) | Term::Float(_) | Term::Name(_) | Term::Call(..)) => {
                self.number(term).map(Attr::Float)
            }
            (AttrKind::Bool, Term::Bool(v)) => Ok(Attr::Bool(*v)),
            (AttrKind::Str, Term::Text(v)) => Ok(Attr::Str(v.clone())),
            (AttrKind::DType, Term::Text(v)) if v == "float" => Ok(Attr::DType(self.bound.float)),
            (AttrKind::DType, Term::Text(v)) => DType::from_name(v).map(Attr::DType).ok_or_else(wrong),
            (AttrKind::Ints, Term::Text(v)) => self.list(v).map(Attr::Ints),
            _ => Err(wrong()),
        }
    }

    /// Parses a list of integers, whose entries may be names: `[..., n, 2]`.
    fn list(&self, text: &str) -> Result<Vec<i64>, String> {
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let inner = inner.ok_or_else(|| format!("{text:?} is not a list [...]"))?.trim();
        let mut list = Vec::new();
        for entry in inner.split(',').map(str::trim).filter(|_| !inner.is_empty()) {
            if entry == REST {
                list.extend(self.bound.sizes.rest.iter().map(|&n| n as i64));
            } else {
                list.push(self.bound.sizes.value(&Term::parse(entry)?)?);
            }
        }
        Ok(list)
    }
}
