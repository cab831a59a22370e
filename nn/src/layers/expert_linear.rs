//! Fully connected layers of experts.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::scoped;
use super::stored::{StoredMatrix, WeightStorage};

/// A linear layer without a bias for each of several experts, of which every row has one.
#[derive(Clone, Debug)]
pub(crate) struct ExpertLinear {
    name: String,
    weight: NodeId,
    stored: Option<StoredMatrix>,
}

impl ExpertLinear {
    /// Registers `{name}.weight`, `f32 [experts, outputs, inputs]`, or what [`StoredMatrix`] makes of it.
    #[track_caller]
    pub(crate) fn build(
        g: &mut Graph,
        name: &str,
        [experts, inputs, outputs]: [usize; 3],
        storage: WeightStorage,
    ) -> Self {
        let shape = [experts, outputs, inputs];
        let stored = StoredMatrix::build(g, name, &shape, storage);
        let weight = match &stored {
            Some(stored) => stored.weight,
            None => g.parameter_with(&scoped(name, "weight"), &shape, Init::xavier_uniform(inputs, outputs)),
        };
        ExpertLinear {
            name: name.to_owned(),
            weight,
            stored,
        }
    }

    /// `x [..., inputs]` by the experts `u32 [...]` of its rows, `[..., outputs]`.
    #[track_caller]
    pub(crate) fn forward(&self, g: &mut Graph, x: impl Into<Value>, experts: Value) -> NodeId {
        let x = x.into();
        let y = match &self.stored {
            Some(stored) => stored.product_of_experts(g, x, experts),
            None => g.expert_matmul(x, experts, self.weight),
        };
        g.named(y, &self.name)
    }
}
