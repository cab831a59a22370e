//! Registered rule sets.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::RuleSet;
use super::rule::{Rule, parse};
use crate::error::{Error, Result};
use crate::ops::OpRef;
use crate::ops::registered::{OpGroups, OpTable, op_table};

/// Entry of the registry of rule sets.
pub struct RuleSetEntry(pub fn() -> RuleSet);

inventory::collect!(RuleSetEntry);
inventory::submit! { OpGroups(|| linked().iter().map(|set| set.ops.to_vec()).collect()) }

/// A rule set whose rules have been checked.
#[derive(Debug)]
pub struct RegisteredSet {
    /// The set as it was announced.
    pub set: RuleSet,
    /// Its rules, in the order of the text.
    pub rules: Vec<Arc<Rule>>,
}

#[derive(Default)]
struct Table {
    sets: Vec<Arc<RegisteredSet>>,
    problems: Vec<Error>,
}

/// Sets that are linked into the program, by namespace; collected once.
fn linked() -> &'static [RuleSet] {
    static LINKED: OnceLock<Vec<RuleSet>> = OnceLock::new();
    LINKED.get_or_init(|| {
        let mut sets: Vec<RuleSet> = inventory::iter::<RuleSetEntry>.into_iter().map(|e| (e.0)()).collect();
        sets.sort_by(|a, b| (&a.namespace, a.version, &a.rules).cmp(&(&b.namespace, b.version, &b.rules)));
        sets
    })
}

fn table() -> &'static RwLock<Table> {
    static TABLE: OnceLock<RwLock<Table>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table::default();
        for (place, set) in linked().iter().enumerate() {
            // The operators of linked sets are registered already: by this one, or by what came before it.
            let clash = {
                let ops = op_table().read().unwrap_or_else(PoisonError::into_inner);
                let foreign = |op: &&OpRef| ops.of_linked_set(op.get().name()) != Some(place);
                set.ops.iter().find(foreign).map(|op| taken(set, *op))
            };
            let added = match clash {
                Some(error) => Err(error),
                None => check(set, &table).map(|registered| table.add(registered)),
            };
            if let Err(problem) = added {
                log::error!("{problem}");
                table.problems.push(problem);
            }
        }
        RwLock::new(table)
    })
}

impl Table {
    fn add(&mut self, registered: RegisteredSet) {
        self.sets.push(Arc::new(registered));
        self.sets.sort_by(|a, b| a.set.namespace.cmp(&b.set.namespace));
    }
}

fn rejected(set: &RuleSet, message: impl Into<String>) -> Error {
    Error::RuleSet {
        set: set.namespace.to_string(),
        rule: None,
        span: None,
        message: message.into(),
    }
}

fn taken(set: &RuleSet, op: OpRef) -> Error {
    let message = format!(
        "its operator '{}' exists already; give it a name of its own, and list it in one place only",
        op.name()
    );
    rejected(set, message)
}

fn check(set: &RuleSet, table: &Table) -> Result<RegisteredSet> {
    let rules = parse(set)?.into_iter().map(Arc::new).collect();
    if let Some(other) = table.sets.iter().find(|s| s.set.namespace == set.namespace) {
        let message = format!(
            "a set of that name is registered already, version {}",
            other.set.version
        );
        return Err(rejected(set, message));
    }
    Ok(RegisteredSet {
        set: set.clone(),
        rules,
    })
}

/// All registered rule sets, by namespace.
pub fn rule_sets() -> Vec<Arc<RegisteredSet>> {
    table().read().unwrap_or_else(PoisonError::into_inner).sets.clone()
}

/// Rule sets that are linked and were rejected, with the reason.
pub fn rule_set_problems() -> Vec<Error> {
    table().read().unwrap_or_else(PoisonError::into_inner).problems.clone()
}

/// Registers a rule set and its operators at run time. Builds that begin afterwards use it. When it is rejected,
/// nothing of it is registered.
///
/// # Errors
/// [`Error::RuleSet`] when namespace or operators are taken, or with the rule and its place when a rule is malformed
/// (see [`parse`]).
pub fn register_rule_set(set: RuleSet) -> Result<()> {
    let mut table = table().write().unwrap_or_else(PoisonError::into_inner);
    let registered = check(&set, &table)?;
    let mut ops = op_table().write().unwrap_or_else(PoisonError::into_inner);
    if let Some(op) = set.ops.iter().find(|op| ops.by_name.contains_key(op.get().name())) {
        return Err(taken(&set, *op));
    }
    OpTable::extend(&mut ops, &set.ops);
    table.add(registered);
    Ok(())
}
