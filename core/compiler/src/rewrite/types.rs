//! Numbering of types and labels: equal ones get the same small number (interning).

use rustc_hash::FxHashMap;

use meganeura_core::attrs::Attrs;
use meganeura_core::graph::NodeId;
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::shape::TensorType;

/// Number of a type.
pub(super) type TypeId = u32;

/// Types with their numbers.
#[derive(Debug, Default)]
pub(super) struct Types {
    list: Vec<TensorType>,
    index: FxHashMap<TensorType, TypeId>,
}

impl Types {
    pub(super) fn id(&mut self, ty: &TensorType) -> TypeId {
        if let Some(&id) = self.index.get(ty) {
            return id;
        }
        let id = self.list.len() as TypeId;
        self.list.push(ty.clone());
        self.index.insert(ty.clone(), id);
        id
    }

    pub(super) fn get(&self, id: TypeId) -> &TensorType {
        &self.list[id as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
}

/// Label of an e-node: everything except its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Label {
    /// A leaf of the graph.
    Leaf(NodeId),
    /// The selection of one result of a call with several results, by its index.
    Get(u32),
    /// A call of an operator.
    Call(&'static str, Attrs),
    /// A call that is never merged, because it writes persistent data.
    Pinned(NodeId),
}

/// Number of a label.
pub(super) type LabelId = u32;

/// Labels with their numbers.
#[derive(Debug, Default)]
pub(super) struct Labels {
    list: Vec<(Label, Option<OpRef>)>,
    index: FxHashMap<Label, LabelId>,
}

impl Labels {
    pub(super) fn id(&mut self, label: Label, op: Option<OpRef>) -> LabelId {
        if let Some(&id) = self.index.get(&label) {
            return id;
        }
        let id = self.list.len() as LabelId;
        self.list.push((label.clone(), op));
        self.index.insert(label, id);
        id
    }

    pub(super) fn get(&self, id: LabelId) -> &Label {
        &self.list[id as usize].0
    }

    /// Returns the operator and attributes of a call.
    pub(super) fn call(&self, id: LabelId) -> Option<(OpRef, &Attrs)> {
        match &self.list[id as usize] {
            (Label::Call(_, attrs), Some(op)) => Some((*op, attrs)),
            _ => None,
        }
    }
}

/// Type of a class: the type of a single value, or the types of all results of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClassType {
    One(TypeId),
    Several(Vec<TypeId>),
}

impl ClassType {
    pub(super) fn as_list(&self) -> &[TypeId] {
        match self {
            ClassType::One(id) => std::slice::from_ref(id),
            ClassType::Several(ids) => ids,
        }
    }
}

/// The shape rules of operators, with a cache of their results.
#[derive(Debug, Default)]
pub(super) struct Inference {
    known: FxHashMap<(LabelId, Vec<TypeId>), Result<Vec<TypeId>, String>>,
}

impl Inference {
    /// Returns the types of a call's results, or the error of its shape rule.
    pub(super) fn results(
        &mut self,
        labels: &Labels,
        types: &mut Types,
        label: LabelId,
        operands: &[TypeId],
    ) -> Result<Vec<TypeId>, String> {
        let key = (label, operands.to_vec());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let Some((op, attrs)) = labels.call(label) else {
            return Err("it is not a call".into());
        };
        let inputs: Vec<TensorType> = operands.iter().map(|&id| types.get(id).clone()).collect();
        let call = Call {
            attrs,
            inputs: &inputs,
            outputs: &[],
        };
        let checked = op.arity().check(inputs.len()).and_then(|()| op.infer(&call));
        let result = checked.map(|outputs| outputs.iter().map(|ty| types.id(ty)).collect::<Vec<_>>());
        self.known.insert(key, result.clone());
        result
    }
}
