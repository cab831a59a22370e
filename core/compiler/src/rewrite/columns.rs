//! Conversion between attributes and the columns of e-nodes (rows of egglog's tables).

use egglog::ast::Literal;
use egglog::sort::{F, S};
use egglog::{Core, EGraph, FullState, Value};

use super::attr;
use meganeura_core::attrs::{Attr, AttrKind, Attrs};
use meganeura_core::ops::OpRef;

/// Converts an attribute to a value of an e-graph.
pub(super) fn to_value(state: &FullState<'_, '_>, value: &Attr) -> Value {
    match attr::to_literal(value) {
        Literal::Int(v) => state.base_to_value(v),
        Literal::Float(v) => state.base_to_value(F::new(v)),
        Literal::Bool(v) => state.base_to_value(v),
        Literal::String(v) => state.base_to_value(S::new(v)),
        Literal::Unit => state.base_to_value(()),
    }
}

fn to_literal(egraph: &EGraph, kind: AttrKind, value: Value) -> Literal {
    match kind {
        AttrKind::Int => Literal::Int(egraph.value_to_base(value)),
        AttrKind::Float => Literal::Float(egraph.value_to_base::<F>(value).into_inner()),
        AttrKind::Bool => Literal::Bool(egraph.value_to_base(value)),
        AttrKind::Str | AttrKind::Ints | AttrKind::DType | AttrKind::Program => {
            Literal::String(egraph.value_to_base::<S>(value).into_inner())
        }
    }
}

/// Returns the attributes of an e-node; `None` if a text is not a list or an element type.
pub(super) fn attrs(egraph: &EGraph, op: OpRef, columns: &[Value]) -> Option<Attrs> {
    let declared = op.attributes();
    let literals: Vec<Literal> = declared
        .iter()
        .zip(columns)
        .map(|(&(_, kind), &value)| to_literal(egraph, kind, value))
        .collect();
    attr::attrs(op, &literals)
}
