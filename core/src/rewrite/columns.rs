//! Attributes as columns of e-nodes.

use egglog::sort::{F, S};
use egglog::{Core, EGraph, FullState, Value};
use ordered_float::OrderedFloat;

use crate::attrs::{Attr, AttrKind, Attrs};
use crate::dtype::DType;
use crate::ops::AttrDecls;

/// An attribute as a value of an e-graph.
pub(super) fn to_value(state: &FullState<'_, '_>, attr: &Attr) -> Value {
    match attr {
        Attr::Int(v) => state.base_to_value(*v),
        Attr::Float(v) => state.base_to_value(F::new(OrderedFloat(*v))),
        Attr::Bool(v) => state.base_to_value(*v),
        Attr::Str(v) => state.base_to_value(S::new(v.clone())),
        other => state.base_to_value(S::new(other.to_string())),
    }
}

/// The attribute of a kind that a value stands for; `None` for text that is no list or element type.
fn from_value(egraph: &EGraph, kind: AttrKind, value: Value) -> Option<Attr> {
    let text = || egraph.value_to_base::<S>(value).into_inner();
    Some(match kind {
        AttrKind::Int => Attr::Int(egraph.value_to_base(value)),
        AttrKind::Float => Attr::Float(egraph.value_to_base::<F>(value).into_inner().into_inner()),
        AttrKind::Bool => Attr::Bool(egraph.value_to_base(value)),
        AttrKind::Str => Attr::Str(text()),
        AttrKind::Ints => Attr::Ints(parse_ints(&text())?),
        AttrKind::DType => Attr::DType(DType::from_name(&text())?),
    })
}

/// A list of integers as [`Attr`] prints it: `[1, 0]`.
pub(super) fn parse_ints(text: &str) -> Option<Vec<i64>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    if inner.is_empty() {
        return Some(Vec::new());
    }
    inner.split(',').map(|part| part.trim().parse().ok()).collect()
}

/// The attributes of an e-node.
pub(super) fn attrs(egraph: &EGraph, declared: &AttrDecls, columns: &[Value]) -> Option<Attrs> {
    declared
        .iter()
        .zip(columns)
        .try_fold(Attrs::new(), |attrs, (&(name, kind), &value)| {
            Some(attrs.with(name, from_value(egraph, kind, value)?))
        })
}
