//! A graph as a list of terms without duplicates (hash-consing), with rewriting in place and undo.
//!
//! Equal computations are one term. Replacing a term moves its users to the new term, merges users that have become
//! equal, and updates the counts of needed terms, so that the total cost of all needed terms is always available. Every
//! change is recorded in a journal, until all changes are accepted or undone.

mod replace;

use std::collections::HashMap;

pub(super) use replace::Mark;
use replace::UndoRecord;

use super::attr::{self, Constructor};
use super::facts::{FactName, OF_CONSTANT, of_constant};
use super::pattern::LeafKind;
use super::scalar::Scalar;
use meganeura_core::attrs::Attrs;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId, NodeKind, Value, may_be_kept};
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::shape::TensorType;

/// Index of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TermId(pub(super) u32);

impl TermId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Label of a term: everything except its operands.
#[derive(Clone, Debug)]
pub(super) enum Label {
    /// A call.
    Call {
        /// The operator.
        op: OpRef,
        /// Attributes.
        attrs: Attrs,
        /// The attributes as the text of rules contains them, in the order of their declaration; `None` if rules cannot
        /// express them.
        spelled: Option<Vec<Scalar>>,
    },
    /// The selection of one result of a call with several results, by its index.
    Get(u32),
    /// A leaf of the graph.
    Leaf(LeafKind, NodeId),
    /// A call that writes persistent data. It equals no other call.
    Write(NodeId),
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum LabelKey {
    Call(&'static str, Attrs),
    Get(u32),
    Node(NodeId),
}

struct Term {
    label: u32,
    children: Vec<TermId>,
    types: Vec<u32>,
    /// Node of the graph whose name and location the term has.
    origin: NodeId,
    /// `true` if the term represents that node.
    is_node: bool,
    /// A number that is greater than the levels of all operands.
    level: u32,
    /// Number of uses: by needed terms, and as a root.
    refs: u32,
    /// Number of uses as a root.
    roots: u32,
    parents: Vec<TermId>,
    cost: u64,
    /// `true` if the value is invariant and may be kept between steps.
    kept: bool,
    /// The term that replaced this one.
    forward: Option<TermId>,
}

type Key = (u32, Vec<TermId>);

/// Function that returns the cost of a term without its operands, in picoseconds. The cost may depend on the call, on
/// the types and on whether operands are leaves.
pub(super) type TermCost<'a> = &'a dyn Fn(&Terms, TermId) -> u64;

/// Reason why a rewrite is impossible.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The operator rejects its operands, or the results have other types than the replaced ones.
    IllTyped(String),
    /// The new value would depend on itself, or refers to a leaf that does not exist.
    Impossible,
}

/// See the [module documentation](self).
pub(super) struct Terms<'a> {
    cost: TermCost<'a>,
    terms: Vec<Term>,
    index: HashMap<Key, TermId>,
    labels: Vec<Label>,
    label_index: HashMap<LabelKey, u32>,
    types: Vec<TensorType>,
    type_index: HashMap<TensorType, u32>,
    constants: HashMap<(TermId, FactName), f64>,
    /// `true` for each invariant node of the graph.
    invariant: Vec<bool>,
    values: HashMap<Value, TermId>,
    total: u128,
    journal: Vec<UndoRecord>,
    touched: Vec<TermId>,
}

impl<'a> Terms<'a> {
    /// Creates the terms of a graph. `invariant` is `true` for each invariant node.
    ///
    /// # Errors
    /// A cycle in the graph.
    pub(super) fn new(graph: &Graph, cost: TermCost<'a>, invariant: &[bool]) -> Result<Self> {
        let mut terms = Terms {
            cost,
            terms: Vec::new(),
            index: HashMap::new(),
            labels: Vec::new(),
            label_index: HashMap::new(),
            types: Vec::new(),
            type_index: HashMap::new(),
            constants: HashMap::new(),
            invariant: invariant.to_vec(),
            values: HashMap::new(),
            total: 0,
            journal: Vec::new(),
            touched: Vec::new(),
        };
        for id in graph.topological_order()? {
            terms.add_node(graph, id);
        }
        for root in graph.roots() {
            let id = terms.values[&root];
            terms.terms[id.index()].roots += 1;
            terms.acquire(id, 1);
        }
        terms.commit();
        Ok(terms)
    }

    fn add_node(&mut self, graph: &Graph, id: NodeId) {
        let node = &graph.nodes()[id.index()];
        let (key, label) = match &node.kind {
            NodeKind::Op { op, attrs } if op.writes().is_empty() => (
                LabelKey::Call(op.get().name(), attrs.clone()),
                call_label(*op, attrs.clone(), node.outputs.len()),
            ),
            NodeKind::Op { .. } | NodeKind::Poison => (LabelKey::Node(id), Label::Write(id)),
            NodeKind::Input => leaf(LeafKind::Input, id),
            NodeKind::Parameter { .. } => leaf(LeafKind::Parameter, id),
            NodeKind::State { .. } => leaf(LeafKind::State, id),
            NodeKind::Scalar => leaf(LeafKind::Scalar, id),
            NodeKind::Constant(_) => leaf(LeafKind::Constant, id),
        };
        let tuple = node.outputs.len() != 1 || matches!(&label, Label::Call { op, .. } if attr::is_tuple(*op));
        let label = self.intern_label(key, label);
        let children: Vec<TermId> = node.inputs.iter().map(|v| self.values[v]).collect();
        let types: Vec<u32> = node.outputs.iter().map(|t| self.intern_type(t)).collect();
        let term = match self.index.get(&(label, children.clone())) {
            Some(&same) => same,
            None => self.push(label, children, types.clone(), id, true),
        };
        if let NodeKind::Constant(data) = &node.kind {
            for &(_, fact) in OF_CONSTANT {
                if let Some(value) = of_constant(fact, data, node.outputs[0].shape.dims()) {
                    self.constants.insert((term, fact), value);
                }
            }
        }
        for (port, ty) in types.into_iter().enumerate() {
            let port = port as u32;
            let value = if tuple { self.get(term, port, ty, id) } else { term };
            self.values.insert(Value { node: id, port }, value);
        }
    }

    fn get(&mut self, tuple: TermId, port: u32, ty: u32, origin: NodeId) -> TermId {
        let label = self.intern_label(LabelKey::Get(port), Label::Get(port));
        match self.index.get(&(label, vec![tuple])) {
            // The existing term may have been replaced by an equal one.
            Some(&same) => self.find(same),
            None => self.push(label, vec![tuple], vec![ty], origin, false),
        }
    }

    fn intern_label(&mut self, key: LabelKey, label: Label) -> u32 {
        *self.label_index.entry(key).or_insert_with(|| {
            self.labels.push(label);
            self.labels.len() as u32 - 1
        })
    }

    fn intern_type(&mut self, ty: &TensorType) -> u32 {
        if let Some(&id) = self.type_index.get(ty) {
            return id;
        }
        let id = self.types.len() as u32;
        self.types.push(ty.clone());
        self.type_index.insert(ty.clone(), id);
        id
    }

    fn push(&mut self, label: u32, children: Vec<TermId>, types: Vec<u32>, origin: NodeId, is_node: bool) -> TermId {
        let id = TermId(self.terms.len() as u32);
        let level = children.iter().map(|c| self.terms[c.index()].level + 1).max();
        for child in &children {
            let parents = &mut self.terms[child.index()].parents;
            // An operand may be used twice.
            if parents.last() != Some(&id) {
                parents.push(id);
            }
        }
        self.index.insert((label, children.clone()), id);
        self.terms.push(Term {
            label,
            children,
            types,
            origin,
            is_node,
            level: level.unwrap_or(0),
            refs: 0,
            roots: 0,
            parents: Vec::new(),
            cost: 0,
            kept: false,
            forward: None,
        });
        self.terms[id.index()].kept = self.keeps(id);
        self.terms[id.index()].cost = self.cost_of(id);
        self.journal.push(UndoRecord::Created);
        self.touched.push(id);
        id
    }

    fn keeps(&self, id: TermId) -> bool {
        let term = &self.terms[id.index()];
        let of_kept = || term.children.iter().all(|c| self.terms[c.index()].kept);
        match self.label(id) {
            Label::Leaf(_, node) => self.invariant.get(node.index()) == Some(&true),
            Label::Write(_) => false,
            Label::Get(_) => of_kept(),
            Label::Call { .. } => {
                of_kept() && may_be_kept(term.children.iter().flat_map(|&c| self.types(c)), self.types(id))
            }
        }
    }

    fn cost_of(&self, id: TermId) -> u64 {
        match self.label(id) {
            Label::Get(_) | Label::Leaf(..) => 0,
            Label::Call { .. } | Label::Write(_) => (self.cost)(self, id),
        }
    }

    // ---- reading ------------------------------------------------------------------------------

    /// Returns the label of a term.
    pub(super) fn label(&self, id: TermId) -> &Label {
        &self.labels[self.terms[id.index()].label as usize]
    }

    /// Returns the operands of a term.
    pub(super) fn children(&self, id: TermId) -> &[TermId] {
        &self.terms[id.index()].children
    }

    /// Returns the terms that use a term, even if they are not needed.
    pub(super) fn parents(&self, id: TermId) -> &[TermId] {
        &self.terms[id.index()].parents
    }

    /// Returns `true` if a term is computed once for many steps.
    pub(super) fn is_kept(&self, id: TermId) -> bool {
        self.terms[id.index()].kept
    }

    /// Returns the types of a term's results.
    pub(super) fn types(&self, id: TermId) -> impl Iterator<Item = &TensorType> {
        self.terms[id.index()].types.iter().map(|&t| &self.types[t as usize])
    }

    /// Returns the number of the type of a term; `None` if the term has several results.
    pub(super) fn type_id(&self, id: TermId) -> Option<i64> {
        match self.terms[id.index()].types.as_slice() {
            [ty] => Some(i64::from(*ty)),
            _ => None,
        }
    }

    /// Returns the type with that number.
    pub(super) fn type_numbered(&self, id: i64) -> Option<&TensorType> {
        self.types.get(usize::try_from(id).ok()?)
    }

    /// Returns a fact about the elements of a constant.
    pub(super) fn of_constant(&self, fact: FactName, id: TermId) -> Option<f64> {
        self.constants.get(&(id, fact)).copied()
    }

    /// Returns the node whose name and location a term has.
    pub(super) fn origin(&self, id: TermId) -> NodeId {
        self.terms[id.index()].origin
    }

    /// Returns the node that a term represents, if it comes from the graph.
    pub(super) fn node(&self, id: TermId) -> Option<NodeId> {
        let term = &self.terms[id.index()];
        term.is_node.then_some(term.origin)
    }

    /// Returns `true` if a root depends on the term.
    pub(super) fn is_needed(&self, id: TermId) -> bool {
        self.terms[id.index()].refs > 0
    }

    /// Returns the level of a term, a number that is greater than the levels of its operands.
    pub(super) fn level(&self, id: TermId) -> u32 {
        self.terms[id.index()].level
    }

    /// Returns the cost of all needed terms, in picoseconds.
    pub(super) fn total(&self) -> u128 {
        self.total
    }

    /// Returns all terms that are needed, operands first.
    pub(super) fn needed(&self) -> Vec<TermId> {
        let mut ids: Vec<TermId> = (0..self.terms.len() as u32).map(TermId).collect();
        ids.retain(|&id| self.is_needed(id));
        ids.sort_by_key(|&id| (self.level(id), id));
        ids
    }

    /// Returns the current replacement of a term.
    pub(super) fn find(&self, mut id: TermId) -> TermId {
        while let Some(next) = self.terms[id.index()].forward {
            id = next;
        }
        id
    }

    /// Returns the term that represents a value of the graph.
    pub(super) fn value(&self, value: Value) -> Option<TermId> {
        self.values.get(&value).map(|&id| self.find(id))
    }

    // ---- building -----------------------------------------------------------------------------

    /// Returns the term for a call with these attributes and operands, and creates it if necessary. A new term gets the
    /// name and location of the node `origin`.
    ///
    /// # Errors
    /// [`Refusal::IllTyped`] with the operator's message.
    pub(super) fn call(
        &mut self,
        constructor: Constructor,
        attrs: Attrs,
        children: Vec<TermId>,
        origin: NodeId,
    ) -> Result<TermId, Refusal> {
        let op = constructor.op;
        let key = LabelKey::Call(op.get().name(), attrs);
        if let Some(&label) = self.label_index.get(&key) {
            let key = (label, children);
            if let Some(&same) = self.index.get(&key) {
                return Ok(self.find(same));
            }
            return self.new_call(label, key.1, origin);
        }
        let LabelKey::Call(_, attrs) = &key else {
            return Err(Refusal::Impossible);
        };
        let label = call_label(op, attrs.clone(), op.ports().len());
        let label = self.intern_label(key, label);
        self.new_call(label, children, origin)
    }

    fn new_call(&mut self, label: u32, children: Vec<TermId>, origin: NodeId) -> Result<TermId, Refusal> {
        let mut inputs = Vec::with_capacity(children.len());
        for &child in &children {
            inputs.extend(self.types(child).cloned());
        }
        let Label::Call { op, attrs, .. } = &self.labels[label as usize] else {
            return Err(Refusal::Impossible);
        };
        let call = Call {
            attrs,
            inputs: &inputs,
            outputs: &[],
        };
        let types = op
            .arity()
            .check(inputs.len())
            .and_then(|()| op.infer(&call))
            .map_err(|message| Refusal::IllTyped(format!("{}: {message}", op.name())))?;
        let types = types.iter().map(|t| self.intern_type(t)).collect();
        Ok(self.push(label, children, types, origin, false))
    }

    /// Returns the term for one result of a call with several results.
    ///
    /// # Errors
    /// [`Refusal::IllTyped`] when there is no such result.
    pub(super) fn port(&mut self, tuple: TermId, port: i64, origin: NodeId) -> Result<TermId, Refusal> {
        let types = &self.terms[tuple.index()].types;
        let known = u32::try_from(port).ok().zip(usize::try_from(port).ok());
        match known.and_then(|(port, i)| Some((port, *types.get(i)?))) {
            Some((port, ty)) => Ok(self.get(tuple, port, ty, origin)),
            None => Err(Refusal::IllTyped(format!("there is no result {port}"))),
        }
    }

    /// Returns the leaf with this kind and number.
    ///
    /// # Errors
    /// [`Refusal::Impossible`] when there is none.
    pub(super) fn leaf(&self, kind: LeafKind, number: i64) -> Result<TermId, Refusal> {
        let found = u32::try_from(number)
            .ok()
            .and_then(|n| self.value(NodeId::new(n).into()));
        found
            .filter(|&id| matches!(self.label(id), Label::Leaf(k, _) if *k == kind))
            .ok_or(Refusal::Impossible)
    }
}

fn leaf(kind: LeafKind, id: NodeId) -> (LabelKey, Label) {
    (LabelKey::Node(id), Label::Leaf(kind, id))
}

/// Returns the label of a call. Rules cannot express a call whose number of `results` differs from the declared one.
fn call_label(op: OpRef, attrs: Attrs, results: usize) -> Label {
    let literals = attr::literals(op, &attrs).filter(|_| results == op.ports().len());
    let spelled = literals.map(|list| list.iter().map(Scalar::of_literal).collect());
    Label::Call { op, attrs, spelled }
}
