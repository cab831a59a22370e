//! List of the fusions of a selection, with their nodes and savings.

use rustc_hash::{FxHashMap, FxHashSet};

use super::attr::Constructor;
use super::decode::place;
use super::outcome::Fusion;
use super::problem::{Problem, Selection};
use super::snapshot::{Node, Snapshot};
use super::state::State;
use super::types::Label;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId, Value};

/// Inputs for listing the fusions of a selection.
pub(super) struct Fusions<'a> {
    pub(super) graph: &'a Graph,
    pub(super) state: &'a State,
    pub(super) snapshot: &'a Snapshot,
    pub(super) problem: &'a Problem,
    pub(super) selection: &'a Selection,
    /// Function that returns the node of the output graph for a class.
    pub(super) place: &'a dyn Fn(u32) -> Option<NodeId>,
}

/// By class, the nodes of the input graph whose value it represents, each with the index of its e-node.
type OriginalNodes = FxHashMap<u32, Vec<(Value, u32)>>;

impl Fusions<'_> {
    /// Lists all fusions in the order of the nodes that they replace. The saving of a fusion is the cost of the calls
    /// that it makes unnecessary minus the cost of the calls that it adds. Each call is counted for only one fusion.
    pub(super) fn list(&self) -> Result<Vec<Fusion>> {
        let (fired, _) = self.state.fired()?;
        let originals = self.originals();
        let mut values: Vec<(Value, u32, u32)> = originals
            .iter()
            .flat_map(|(&class, list)| list.iter().map(move |&(value, at)| (value, class, at)))
            .collect();
        values.sort_unstable();
        let mut claimed = FxHashSet::default();
        let mut fusions: Vec<Fusion> = Vec::new();
        // Several slices of one packed result are one fusion.
        let mut packed: FxHashMap<(usize, u32), usize> = FxHashMap::default();
        for (value, class, at) in values {
            let Some(choice) = self.selection[class as usize] else {
                continue;
            };
            let (node, is_packed) = self.snapshot.chosen(self.problem, class, choice);
            let before = &self.snapshot.classes[class as usize][at as usize];
            let kept = originals[&class].iter().any(|(_, own)| *own == choice);
            let same = node.label == before.label && !is_packed && !self.is_new(&node.children, &originals);
            if choice == at || (same && !kept) {
                continue;
            }
            let key = self.snapshot.keys[class as usize];
            let Some(rule) = fired.get(&key).and_then(|rules| self.maker(rules, node, &originals)) else {
                continue;
            };
            let mut saving = before.cost as i64 + self.removed_cost(&before.children, &originals, &mut claimed);
            if !kept && claimed.insert(class) {
                saving -= node.cost as i64;
                saving -= self.added(&node.children, &originals, &mut claimed);
            }
            let shared = node.children.first().copied().unwrap_or(class);
            let name = place(self.graph, value).to_string();
            let at = packed.get(&(rule, shared)).copied();
            match at.filter(|_| node.cost == 0 && !node.children.is_empty()) {
                Some(at) => {
                    fusions[at].saving_ps += saving;
                    fusions[at].node_name += &format!(" + {name}");
                }
                None => {
                    packed.insert((rule, shared), fusions.len());
                    fusions.push(Fusion {
                        rule: self.state.dialect.rules[rule].title().to_owned(),
                        rule_set: self.state.dialect.rules[rule].set.clone(),
                        node: (self.place)(class),
                        before_autodiff: false,
                        node_name: name,
                        saving_ps: saving,
                    });
                }
            }
        }
        Ok(fusions)
    }

    fn originals(&self) -> OriginalNodes {
        let mut values: Vec<(&Value, &u32)> = self.snapshot.values.iter().collect();
        values.sort_unstable();
        let mut originals = OriginalNodes::default();
        for (&value, &class) in values {
            if value.port == u32::MAX {
                continue;
            }
            if let Some(at) = self.snapshot.original(self.state, self.graph, value) {
                originals.entry(class).or_default().push((value, at));
            }
        }
        originals
    }

    /// Returns `true` if some of these classes have no value in the input graph.
    fn is_new(&self, classes: &[u32], originals: &OriginalNodes) -> bool {
        classes.iter().any(|c| !originals.contains_key(c))
    }

    /// Returns the rule that probably created an e-node. Of the rules that fired on its class, it is the one whose
    /// actions contain most of the operators of the node and of its new operands.
    fn maker(&self, rules: &[usize], node: &Node, originals: &OriginalNodes) -> Option<usize> {
        let mut names = Vec::new();
        self.new_names(node, originals, 3, &mut names);
        let score = |rule: usize| {
            let head = self.state.dialect.rules[rule].head.iter().map(ToString::to_string);
            let head = head.collect::<String>();
            names.iter().filter(|name| head.contains(name.as_str())).count()
        };
        rules.iter().copied().rev().max_by_key(|&rule| score(rule))
    }

    /// Collects the constructors of an e-node and of its new operands, as the text of rules contains them.
    fn new_names(&self, node: &Node, originals: &OriginalNodes, depth: usize, names: &mut Vec<String>) {
        match (self.state.labels.get(node.label), self.state.operator(node.label)) {
            (Label::Get(port), _) => names.push(format!("(Get {port} ")),
            (_, Some((op, _))) => {
                let operands = node.children.len();
                names.push(format!("({} ", Constructor { op, operands }.name()));
            }
            _ => return,
        }
        for &child in node.children.iter().filter(|c| depth > 0 && !originals.contains_key(c)) {
            if let Some(choice) = self.selection[child as usize] {
                let (node, _) = self.snapshot.chosen(self.problem, child, choice);
                self.new_names(node, originals, depth - 1, names);
            }
        }
    }

    /// Returns the cost of the calls of the input graph, from these classes down, that are no longer needed.
    fn removed_cost(&self, classes: &[u32], originals: &OriginalNodes, claimed: &mut FxHashSet<u32>) -> i64 {
        let mut saved = 0;
        let mut open = classes.to_vec();
        while let Some(class) = open.pop() {
            if self.selection[class as usize].is_some() || !claimed.insert(class) {
                continue;
            }
            for &(_, at) in originals.get(&class).into_iter().flatten() {
                let node = &self.snapshot.classes[class as usize][at as usize];
                saved += node.cost as i64;
                open.extend(&node.children);
            }
            // The results of a call with several results have no values of their own.
            if !originals.contains_key(&class)
                && let [node] = self.snapshot.classes[class as usize].as_slice()
            {
                saved += node.cost as i64;
                open.extend(&node.children);
            }
        }
        saved
    }

    /// Returns the cost of the calls, from these classes down, that the input graph did not contain.
    fn added(&self, classes: &[u32], originals: &OriginalNodes, claimed: &mut FxHashSet<u32>) -> i64 {
        let mut price = 0;
        let mut open = classes.to_vec();
        while let Some(class) = open.pop() {
            let Some(choice) = self.selection[class as usize] else {
                continue;
            };
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
