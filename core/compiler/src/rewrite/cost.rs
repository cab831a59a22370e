//! Costs of the calls in an e-graph. Each is computed only once.

use meganeura_core::attrs::Attrs;
use meganeura_core::cost::{Target, call_cost};
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::shape::TensorType;
use rustc_hash::FxHashMap;

use super::types::{LabelId, Labels, TypeId, Types};

/// Costs of calls, with a cache.
pub(super) struct Costs<'a> {
    target: &'a dyn Target,
    known: FxHashMap<(LabelId, Vec<TypeId>), u64>,
}

impl<'a> Costs<'a> {
    pub(super) fn new(target: &'a dyn Target) -> Self {
        Costs {
            target,
            known: FxHashMap::default(),
        }
    }

    /// Returns the cost of a call with operands and results of these types; 0 if it is not a call.
    pub(super) fn call(
        &mut self,
        labels: &Labels,
        types: &Types,
        label: LabelId,
        operands: Vec<TypeId>,
        results: &[TypeId],
    ) -> u64 {
        let Some((op, attrs)) = labels.call(label) else {
            return 0;
        };
        let key = (label, operands);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let list = |ids: &[TypeId]| -> Vec<TensorType> { ids.iter().map(|&id| types.get(id).clone()).collect() };
        let (inputs, outputs) = (list(&key.1), list(results));
        let cost = self.of(op, attrs, &inputs, &outputs);
        self.known.insert(key, cost);
        cost
    }

    fn of(&self, op: OpRef, attrs: &Attrs, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        call_cost(self.target, op, &Call { attrs, inputs, outputs })
    }
}
