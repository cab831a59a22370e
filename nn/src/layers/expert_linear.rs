//! Fully connected layers of experts.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::scoped;
use super::stored::{StoredMatrix, WeightStorage};

/// Linear layers, one for each of several experts. Each row uses the layer of its own expert.
#[derive(Clone, Debug)]
pub(crate) struct ExpertLinear {
    name: String,
    weight: NodeId,
    stored: Option<StoredMatrix>,
    bias: Option<NodeId>,
}

impl ExpertLinear {
    /// Registers `{name}.weight`, `f32 [experts, outputs, inputs]`, or the tensors of
    /// [`StoredMatrix`]; and `{name}.bias`, `f32 [experts, outputs]`, if there is a bias.
    #[track_caller]
    pub(crate) fn build(
        g: &mut Graph,
        name: &str,
        [experts, inputs, outputs]: [usize; 3],
        storage: WeightStorage,
        has_bias: bool,
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
            bias: has_bias.then(|| g.parameter(&scoped(name, "bias"), &[experts, outputs])),
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
        let y = match self.bias {
            Some(bias) => {
                let bias = g.gather(bias, experts);
                g.add(y, bias)
            }
            None => y,
        };
        g.named(y, &self.name)
    }
}
