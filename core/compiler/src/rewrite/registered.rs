//! Registered rule sets.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use meganeura_core::error::{Error, Result};
use meganeura_core::ops::OpRef;
use meganeura_core::registry::{linked_set_of, register_ops};
use meganeura_core::rule_set::linked_rule_sets;

use super::rule::{Rule, parse};
use meganeura_core::rule_set::RuleSet;

/// A rule set whose rules have been checked.
#[derive(Debug)]
pub struct RegisteredSet {
    /// The set as registered.
    pub set: RuleSet,
    /// Rules of the set, in the order of the text.
    pub rules: Vec<Arc<Rule>>,
}

#[derive(Default)]
struct Table {
    sets: Vec<Arc<RegisteredSet>>,
    problems: Vec<Error>,
}

fn table() -> &'static RwLock<Table> {
    static TABLE: OnceLock<RwLock<Table>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table::default();
        for (place, set) in linked_rule_sets().iter().enumerate() {
            // The operators of linked sets are already registered: by this set, or by an earlier
            // one.
            let foreign = |op: &&OpRef| linked_set_of(op.get().name()) != Some(place);
            let clash = set.ops.iter().find(foreign).map(|op| taken(set, *op));
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
        "its operator '{}' exists already; give it another name, and list it only once",
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

/// Returns all registered rule sets, by namespace.
pub fn rule_sets() -> Vec<Arc<RegisteredSet>> {
    table().read().unwrap_or_else(PoisonError::into_inner).sets.clone()
}

/// Returns the reasons why linked rule sets were rejected.
pub fn rule_set_problems() -> Vec<Error> {
    table().read().unwrap_or_else(PoisonError::into_inner).problems.clone()
}

/// Registers a rule set and its operators at run time. Later builds use it. If it is rejected,
/// nothing of it is registered.
///
/// # Errors
/// [`Error::RuleSet`] if namespace or operators are taken, or, with the rule and its position, if a
/// rule is malformed (see [`parse`]).
pub fn register_rule_set(set: RuleSet) -> Result<()> {
    let mut table = table().write().unwrap_or_else(PoisonError::into_inner);
    let registered = check(&set, &table)?;
    register_ops(&set.ops).map_err(|op| taken(&set, op))?;
    table.add(registered);
    Ok(())
}
