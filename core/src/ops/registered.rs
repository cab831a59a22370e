//! Registry of all operators by name: operators of the core, of plugins and of rule sets.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use super::OpRef;
use crate::error::Error;

/// Entry of the registry of operators.
pub struct OpEntry(pub OpRef);
/// Entry for groups of operators: linked rule sets, each with its operators.
pub(crate) struct OpGroups(pub(crate) fn() -> Vec<Vec<OpRef>>);

/// Entry for the operators of this crate.
pub(crate) struct BuiltinOps(pub(crate) fn() -> Vec<OpRef>);

inventory::collect!(OpEntry);
inventory::collect!(BuiltinOps);
inventory::collect!(OpGroups);

/// The registered operators, and the errors of rejected ones. Linked operators are collected once; rule sets that are
/// registered at run time add their operators.
struct OpTable {
    ops: Vec<OpRef>,
    by_name: HashMap<&'static str, OpRef>,
    /// Operators of linked rule sets, with the index of the set.
    of_sets: HashMap<&'static str, usize>,
    problems: Vec<Error>,
}

fn op_table() -> &'static RwLock<OpTable> {
    static TABLE: OnceLock<RwLock<OpTable>> = OnceLock::new();
    TABLE.get_or_init(|| RwLock::new(collect_ops()))
}

/// Returns all operators: those of this crate, of plugins and of rule sets. If two have the same
/// name, the first is kept and [`op_problems`] reports the other.
pub fn ops() -> Vec<OpRef> {
    op_table().read().unwrap_or_else(PoisonError::into_inner).ops.clone()
}

/// Returns errors of operators that were rejected because their name is taken.
pub fn op_problems() -> Vec<Error> {
    let table = op_table().read().unwrap_or_else(PoisonError::into_inner);
    table.problems.clone()
}

/// Returns the operator with this name.
pub fn op(name: &str) -> Option<OpRef> {
    let table = op_table().read().unwrap_or_else(PoisonError::into_inner);
    table.by_name.get(name).copied()
}

/// Returns the index in [`linked_rule_sets`](crate::rule_set::linked_rule_sets) of the set that
/// contains an operator.
pub fn linked_set_of(name: &str) -> Option<usize> {
    let table = op_table().read().unwrap_or_else(PoisonError::into_inner);
    table.of_sets.get(name).copied()
}

/// Registers operators at run time: all, or none.
///
/// # Errors
/// The first operator whose name is taken.
pub fn register_ops(ops: &[OpRef]) -> Result<(), OpRef> {
    let mut table = op_table().write().unwrap_or_else(PoisonError::into_inner);
    if let Some(op) = ops.iter().find(|op| table.by_name.contains_key(op.get().name())) {
        return Err(*op);
    }
    table.extend(ops);
    Ok(())
}

impl OpTable {
    /// Adds the operators whose names are free.
    fn extend(&mut self, ops: &[OpRef]) {
        for op in ops {
            self.by_name.insert(op.get().name(), *op);
            self.ops.push(*op);
        }
        self.ops.sort_by_key(|op| op.get().name());
    }
}

fn collect_ops() -> OpTable {
    let mut table = OpTable {
        ops: Vec::new(),
        by_name: HashMap::new(),
        of_sets: HashMap::new(),
        problems: Vec::new(),
    };
    for list in inventory::iter::<BuiltinOps> {
        table.extend(&(list.0)());
    }
    let mut plugins: Vec<OpRef> = inventory::iter::<OpEntry>.into_iter().map(|e| e.0).collect();
    plugins.sort_by_key(|op| op.name());
    for op in plugins {
        if table.by_name.contains_key(op.name()) {
            table.problems.push(Error::Plugin {
                plugin: op.name().to_owned(),
                message: "an operator of that name exists already".into(),
                remedy: "give it a namespace of its own".into(),
            });
        } else {
            table.extend(&[op]);
        }
    }
    // A name that is taken is a problem of the set, which is rejected as a whole.
    let groups = inventory::iter::<OpGroups>.into_iter().flat_map(|groups| (groups.0)());
    for (place, ops) in groups.enumerate() {
        for op in ops {
            if !table.by_name.contains_key(op.name()) {
                table.of_sets.insert(op.get().name(), place);
                table.extend(&[op]);
            }
        }
    }
    table
}
