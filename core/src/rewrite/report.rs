//! Which fusions were made, where, and what each saves.

use rustc_hash::{FxHashMap, FxHashSet};

use super::decode::place;
use super::problem::{Problem, Selection};
use super::snapshot::Snapshot;
use super::state::State;
use super::types::Label;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::optimize::Fusion;

/// Collects the fusions of a selection.
pub(super) struct Fusions<'a> {
    pub(super) graph: &'a Graph,
    pub(super) state: &'a State,
    pub(super) snapshot: &'a Snapshot,
    pub(super) problem: &'a Problem,
    pub(super) selection: &'a Selection,
    /// Values in the graph that came out, by class.
    pub(super) values: &'a FxHashMap<u32, Value>,
}

impl Fusions<'_> {
    /// All fusions in the order of the nodes that they replace. What a fusion saves is the price of the calls
    /// that it makes superfluous less that of the calls that it adds; each is counted for one fusion.
    pub(super) fn list(&self) -> Result<Vec<Fusion>> {
        let (fired, _) = self.state.fired()?;
        let originals = self.originals();
        let mut classes: Vec<(Value, u32)> = originals.iter().map(|(class, (value, _))| (*value, *class)).collect();
        classes.sort_unstable();
        let mut claimed = FxHashSet::default();
        let mut fusions: Vec<Fusion> = Vec::new();
        // Several parts of one packed result are one fusion.
        let mut packed: FxHashMap<(usize, u32), usize> = FxHashMap::default();
        for (value, class) in classes {
            let Some(choice) = self.selection[class as usize] else { continue };
            let (_, original) = originals[&class];
            let (node, _) = self.snapshot.chosen(self.problem, class, choice);
            let before = &self.snapshot.classes[class as usize][original as usize];
            if node.label == before.label && !self.differs(node.children.as_slice(), &before.children, &originals) {
                continue;
            }
            let key = self.snapshot.keys[class as usize];
            let Some(rule) = fired.get(&key).and_then(|rules| self.maker(rules, node.label)) else {
                continue;
            };
            let saving = before.cost as i64 - node.cost as i64 + self.vanished(&before.children, &originals, &mut claimed)
                - self.added(&node.children, &originals, &mut claimed);
            let shared = node.children.first().copied().unwrap_or(class);
            let name = place(self.graph, value).to_string();
            let at = packed.get(&(rule, shared)).copied();
            match at.filter(|_| node.cost == 0) {
                Some(at) => {
                    fusions[at].saving_ps += saving;
                    fusions[at].node_name += &format!(" + {name}");
                }
                None => {
                    packed.insert((rule, shared), fusions.len());
                    fusions.push(Fusion {
                        rule: self.state.dialect.rules[rule].title().to_owned(),
                        rule_set: self.state.dialect.rules[rule].set.clone(),
                        node: self.values.get(&class).map_or(0, |v| v.node.0),
                        node_name: name,
                        saving_ps: saving,
                    });
                }
            }
        }
        Ok(fusions)
    }

    /// Classes of the graph's values with one of them and its e-node.
    fn originals(&self) -> FxHashMap<u32, (Value, u32)> {
        let mut values: Vec<(&Value, &u32)> = self.snapshot.values.iter().collect();
        values.sort_unstable();
        let mut originals = FxHashMap::default();
        for (&value, &class) in values {
            if value.port == u32::MAX {
                continue;
            }
            if let Some(at) = self.snapshot.original(self.state, self.graph, value) {
                originals.entry(class).or_insert((value, at));
            }
        }
        originals
    }

    /// Whether operands are other classes, some of them new.
    fn differs(&self, new: &[u32], old: &[u32], originals: &FxHashMap<u32, (Value, u32)>) -> bool {
        new != old && new.iter().any(|c| !originals.contains_key(c))
    }

    /// The rule that made an e-node, of those that fired on its class: one whose actions name its operator.
    fn maker(&self, rules: &[usize], label: u32) -> Option<usize> {
        let name = match (self.state.labels.get(label), self.state.operator(label)) {
            (Label::Get(_), _) => "Get",
            (_, Some((op, _))) => op.get().name(),
            _ => return rules.last().copied(),
        };
        let names = |rule: &&usize| {
            let head = self.state.dialect.rules[**rule].head.iter().map(ToString::to_string);
            head.collect::<String>().contains(&format!("({name}"))
        };
        rules.iter().find(names).or(rules.last()).copied()
    }

    /// Price of the calls of the graph behind these classes that nothing needs any more.
    fn vanished(
        &self,
        classes: &[u32],
        originals: &FxHashMap<u32, (Value, u32)>,
        claimed: &mut FxHashSet<u32>,
    ) -> i64 {
        let mut saved = 0;
        let mut open = classes.to_vec();
        while let Some(class) = open.pop() {
            if self.selection[class as usize].is_some() || !claimed.insert(class) {
                continue;
            }
            let at = originals.get(&class).map_or(0, |(_, at)| *at as usize);
            let node = &self.snapshot.classes[class as usize][at];
            saved += node.cost as i64;
            open.extend(&node.children);
        }
        saved
    }

    /// Price of the calls behind these classes that the graph did not have.
    fn added(
        &self,
        classes: &[u32],
        originals: &FxHashMap<u32, (Value, u32)>,
        claimed: &mut FxHashSet<u32>,
    ) -> i64 {
        let mut price = 0;
        let mut open = classes.to_vec();
        while let Some(class) = open.pop() {
            let Some(choice) = self.selection[class as usize] else { continue };
            if originals.contains_key(&class) || !claimed.insert(class) {
                continue;
            }
            let (node, is_packed) = self.snapshot.chosen(self.problem, class, choice);
            if !is_packed {
                price += node.cost as i64;
            }
            open.extend(&node.children);
        }
        price
    }
}
