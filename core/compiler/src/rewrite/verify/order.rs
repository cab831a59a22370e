//! Order for building the calls of a pattern, and the kinds of its leaves.

use std::collections::HashMap;

use crate::rewrite::facts::FactName;
use crate::rewrite::pattern::{Condition, LeafKind, Pattern, ScalarExpr, Shape, VarId};

/// Returns the calls of a pattern, operands first; calls with the fewest new leaves come earlier,
/// and calls with constants, which depend on the types of other values, come last.
pub(super) fn order(pattern: &Pattern, kinds: &HashMap<VarId, LeafKind>) -> Option<Vec<usize>> {
    let mut made = vec![false; pattern.variables.len()];
    let mut open: Vec<usize> = (0..pattern.atoms.len()).collect();
    let mut order = Vec::new();
    while !open.is_empty() {
        let waits = |v: &VarId| open.iter().any(|&b| pattern.atoms[b].root == *v);
        let ready = open.iter().filter(|&&a| !pattern.atoms[a].children.iter().any(waits));
        let place = |a: usize| {
            let fresh = || pattern.atoms[a].children.iter().filter(|v| !made[**v]);
            let constant = fresh().any(|v| kinds.get(v) == Some(&LeafKind::Constant));
            (constant, fresh().count(), a)
        };
        let &next = ready.min_by_key(|&&a| place(a))?;
        let atom = &pattern.atoms[next];
        if made[atom.root] {
            return None;
        }
        made[atom.root] = true;
        atom.children.iter().for_each(|&v| made[v] = true);
        open.retain(|&a| a != next);
        order.push(next);
    }
    Some(order)
}

/// Returns the kinds of leaves that conditions or the pattern require.
pub(super) fn leaf_kinds(pattern: &Pattern) -> HashMap<VarId, LeafKind> {
    fn visit(expr: &ScalarExpr, kinds: &mut HashMap<VarId, LeafKind>) {
        match expr {
            ScalarExpr::Literal(_) | ScalarExpr::Var(_) => {}
            ScalarExpr::Fact(fact, arguments) => {
                let kind = match fact {
                    FactName::Uniform | FactName::LowerTriangle | FactName::UpperTriangle => Some(LeafKind::Constant),
                    FactName::PackGroup => Some(LeafKind::Parameter),
                    _ => None,
                };
                if let (Some(kind), Some(ScalarExpr::Var(v))) = (kind, arguments.first()) {
                    kinds.insert(*v, kind);
                }
                arguments.iter().for_each(|a| visit(a, kinds));
            }
            ScalarExpr::Primitive(_, arguments) => arguments.iter().for_each(|a| visit(a, kinds)),
            ScalarExpr::NotEqual(sides) => sides.iter().for_each(|a| visit(a, kinds)),
        }
    }
    let mut kinds = HashMap::new();
    for (condition, _) in &pattern.conditions {
        match condition {
            Condition::Holds(a) => visit(a, &mut kinds),
            Condition::Equal(a, b) => {
                visit(a, &mut kinds);
                visit(b, &mut kinds);
            }
        }
    }
    for atom in &pattern.atoms {
        if let Shape::Leaf(kind) = atom.shape {
            kinds.insert(atom.root, kind);
        }
    }
    kinds
}
