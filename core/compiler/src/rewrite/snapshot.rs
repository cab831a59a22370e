//! Conversion of a saturated e-graph to plain numbers for the extractor.

use rustc_hash::FxHashMap;

use super::cost::Costs;
use super::problem::{Choice, Problem};
use super::state::{ClassKey, State};
use super::types::{ClassType, Label, LabelId, TypeId};
use meganeura_core::cost::INVARIANT_COST;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, Value, may_be_kept};

/// An e-node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) label: LabelId,
    /// Classes of the operands, in order.
    pub(super) children: Vec<u32>,
    pub(super) cost: u64,
}

/// The classes of a saturated e-graph, with their e-nodes and types.
pub(super) struct Snapshot {
    pub(super) classes: Vec<Vec<Node>>,
    pub(super) types: Vec<Option<ClassType>>,
    pub(super) keys: Vec<ClassKey>,
    /// Maps values of the input graph to the classes that represent them. Port `u32::MAX` of a node represents all
    /// results of a call with several results.
    pub(super) values: FxHashMap<Value, u32>,
    pub(super) num_enodes: usize,
}

/// Label in a [`Problem`] of a choice that stores concatenated parameters as one packed parameter.
const PACKED: u32 = u32::MAX;

impl Snapshot {
    /// Converts a saturated e-graph. `invariant` is `true` for each invariant node of the graph.
    pub(super) fn new(state: &mut State, costs: &mut Costs, invariant: &[bool]) -> Result<Self> {
        let rows = state.rows()?;
        let mut index: FxHashMap<ClassKey, u32> = FxHashMap::default();
        let mut snapshot = Snapshot {
            classes: Vec::new(),
            types: Vec::new(),
            keys: Vec::new(),
            values: FxHashMap::default(),
            num_enodes: rows.len(),
        };
        let mut class_of = |snapshot: &mut Snapshot, key: ClassKey| {
            *index.entry(key).or_insert_with(|| {
                snapshot.classes.push(Vec::new());
                snapshot.types.push(state.class_types.get(&key).cloned());
                snapshot.keys.push(key);
                (snapshot.classes.len() - 1) as u32
            })
        };
        for row in &rows {
            let class = class_of(&mut snapshot, row.class);
            let children = row.children.iter().map(|&key| class_of(&mut snapshot, key)).collect();
            let (label, cost) = (row.label, 0);
            snapshot.classes[class as usize].push(Node { label, children, cost });
        }
        for (value, key) in state.classes_of_values()? {
            let class = class_of(&mut snapshot, key);
            snapshot.values.insert(value, class);
        }
        let kept = snapshot.invariant_classes(state, invariant);
        snapshot.price(state, costs, &kept);
        Ok(snapshot)
    }

    /// Returns the types of the operands of an e-node.
    fn operands(&self, node: &Node) -> Vec<TypeId> {
        let types = node.children.iter().filter_map(|&c| self.types[c as usize].as_ref());
        types.flat_map(|t| t.as_list().iter().copied()).collect()
    }

    /// Returns for each class whether it has an invariant e-node: a leaf in `invariant`, or a
    /// computation only from invariant classes, as in [`Graph::invariant_nodes`].
    fn invariant_classes(&self, state: &State, invariant: &[bool]) -> Vec<bool> {
        let mut kept = vec![false; self.classes.len()];
        if !invariant.contains(&true) {
            return kept;
        }
        loop {
            let mut changed = false;
            for class in 0..self.classes.len() {
                if !kept[class]
                    && self.classes[class]
                        .iter()
                        .any(|n| self.is_kept(state, class, n, invariant, &kept))
                {
                    kept[class] = true;
                    changed = true;
                }
            }
            if !changed {
                return kept;
            }
        }
    }

    fn is_kept(&self, state: &State, class: usize, node: &Node, invariant: &[bool], kept: &[bool]) -> bool {
        let of_kept = || node.children.iter().all(|&c| kept[c as usize]);
        match state.labels.get(node.label) {
            Label::Leaf(id) => invariant.get(id.index()) == Some(&true),
            Label::Pinned(_) => false,
            Label::Get(_) => of_kept(),
            Label::Call(..) => {
                of_kept() && {
                    let ty = |&id: &TypeId| state.types.get(id);
                    let operands = self.operands(node);
                    let results = self.types[class].as_ref().map_or(&[][..], |t| t.as_list());
                    may_be_kept(operands.iter().map(ty), results.iter().map(ty))
                }
            }
        }
    }

    fn price(&mut self, state: &State, costs: &mut Costs, kept: &[bool]) {
        for class in 0..self.classes.len() {
            let results: Vec<TypeId> = self.types[class].as_ref().map_or(Vec::new(), |t| t.as_list().to_vec());
            for at in 0..self.classes[class].len() {
                let node = &self.classes[class][at];
                let cost = costs.call(&state.labels, &state.types, node.label, self.operands(node), &results);
                // An e-node whose result is much larger than its operands is computed in each step,
                // even if the class has another form.
                let is_kept = self.is_kept(state, class, node, &[], kept);
                self.classes[class][at].cost = if is_kept { cost.min(INVARIANT_COST) } else { cost };
            }
        }
    }

    /// Returns the extractor's problem for the roots of a graph. Its last classes are not in the snapshot; they are
    /// packings of parameters.
    pub(super) fn problem(&self, state: &State, graph: &Graph, packable: &dyn Fn(u32) -> bool) -> Problem {
        let mut problem = Problem {
            classes: self
                .classes
                .iter()
                .map(|nodes| nodes.iter().map(choice).collect())
                .collect(),
            ..Problem::default()
        };
        let mut roots: Vec<u32> = graph.roots().filter_map(|v| self.values.get(&v)).copied().collect();
        roots.sort_unstable();
        roots.dedup();
        problem.roots = roots;
        let mut packings: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        for class in 0..self.classes.len() {
            for node in &self.classes[class] {
                let packs = state
                    .operator(node.label)
                    .is_some_and(|(op, attrs)| op.packs(attrs).is_some());
                if !packs || node.children.len() < 2 || !node.children.iter().all(|&c| packable(c)) {
                    continue;
                }
                let packing = problem.classes.len() as u32;
                problem.classes.push(vec![choice(&Node {
                    cost: 0,
                    ..node.clone()
                })]);
                problem.classes[class].push(Choice {
                    label: PACKED,
                    cost: 0,
                    children: vec![packing],
                });
                for &source in &node.children {
                    packings.entry(source).or_default().push(packing);
                }
            }
        }
        let mut sets: Vec<Vec<u32>> = packings.into_values().filter(|set| set.len() > 1).collect();
        sets.sort_unstable();
        problem.exclusive = sets;
        problem
    }

    /// Returns the e-node of a choice in a problem of [`Snapshot::problem`], and whether the choice stores its operands
    /// packed.
    pub(super) fn chosen<'a>(&'a self, problem: &Problem, class: u32, choice: u32) -> (&'a Node, bool) {
        let nodes = &self.classes[class as usize];
        match nodes.get(choice as usize) {
            Some(node) => (node, false),
            // The packing's only choice has the operands of the e-node that it copies.
            None => {
                let packing = &problem.classes[class as usize][choice as usize].children;
                let operands = &problem.classes[packing[0] as usize][0].children;
                let same = |n: &&Node| choice_children(n) == *operands;
                (nodes.iter().find(same).unwrap_or(&nodes[0]), true)
            }
        }
    }

    /// Returns the index of the e-node that represents a value of the input graph.
    pub(super) fn original(&self, state: &State, graph: &Graph, value: Value) -> Option<u32> {
        let class = *self.values.get(&value)?;
        let node = &graph.nodes()[value.node.index()];
        let nodes = &self.classes[class as usize];
        let matches = |n: &&Node| match state.labels.get(n.label) {
            Label::Leaf(id) | Label::Pinned(id) => *id == value.node,
            Label::Get(port) => *port == value.port && node.outputs.len() > 1,
            Label::Call(name, attrs) => {
                node.op().is_some_and(|(op, a)| op.get().name() == *name && a == attrs)
                    && n.children.len() == node.inputs.len()
                    && n.children
                        .iter()
                        .zip(&node.inputs)
                        .all(|(c, v)| self.values.get(v) == Some(c))
            }
        };
        nodes.iter().position(|n| matches(&n)).map(|i| i as u32)
    }
}

fn choice_children(node: &Node) -> Vec<u32> {
    let mut children = node.children.clone();
    children.sort_unstable();
    children.dedup();
    children
}

fn choice(node: &Node) -> Choice {
    Choice {
        label: node.label,
        cost: node.cost,
        children: choice_children(node),
    }
}
