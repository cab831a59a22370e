//! Fully connected layers of experts.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::scoped;
use super::stored::{StoredMatrix, WeightStorage};

/// Linear layers without bias, one for each of several experts. Each row uses the layer of its own expert.
#[derive(Clone, Debug)]
pub(crate) struct ExpertLinear {
    name: String,
    weight: NodeId,
    stored: Option<StoredMatrix>,
}

impl ExpertLinear {
    /// Registers `{name}.weight`, `f32 [experts, outputs, inputs]`, or the tensors of
    /// [`StoredMatrix`].
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

    /// Multiplies `x [..., inputs]` by the matrices of the experts `u32 [...]` of its rows,
    /// `-> [..., outputs]`.
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
