//! Fully connected layer.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::lora::{Adapter, FrozenWeight, LoraConfig};
use super::stored::{StoredMatrix, WeightStorage};
use super::{reject, reject_zero_sizes, scoped};

/// Options of a [`Linear`] layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearConfig {
    inputs: usize,
    outputs: usize,
    bias: bool,
    init: Option<Init>,
    lora: Option<LoraConfig>,
    storage: WeightStorage,
}

impl LinearConfig {
    /// Creates options for `inputs` to `outputs` features, with a bias and Kaiming uniform weights.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        LinearConfig {
            inputs,
            outputs,
            bias: true,
            init: None,
            lora: None,
            storage: WeightStorage::F32,
        }
    }

    /// Sets whether there is a bias (default: true).
    #[must_use]
    pub fn bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Sets the initial distribution of the weights instead of `Init::kaiming_uniform(inputs)`.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.init = Some(init);
        self
    }

    /// Sets the adapters of the model: the layer gets one if its name is among their targets.
    #[must_use]
    pub fn lora(mut self, lora: Option<LoraConfig>) -> Self {
        self.lora = lora;
        self
    }

    /// Sets the storage type of the weights. With a type other than `F32`, they are not trained.
    #[must_use]
    pub fn storage(mut self, storage: WeightStorage) -> Self {
        self.storage = storage;
        self
    }

    /// Registers `{name}.weight [inputs, outputs]` and `{name}.bias [outputs]` (zeros), and with an adapter
    /// `{name}.lora_A.weight [inputs, rank]` and `{name}.lora_B.weight [rank, outputs]`. With the storage type
    /// `F16`, `{name}.weight` is `f16 [outputs, inputs]`. With a block format, it contains the blocks of these rows in
    /// the layout of [`Graph::dequantize`], and their scales are in `{name}.weight_scales`.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Linear {
        g.at_caller(|g| {
            let sizes = [("inputs", self.inputs), ("outputs", self.outputs)];
            let layer = format!("linear '{name}'");
            let lora = self
                .lora
                .filter(|lora| lora.has(name))
                .map_or(Ok(()), |lora| lora.check());
            if let Some(poison) = reject_zero_sizes(g, &layer, &sizes).or_else(|| reject(g, &layer, lora)) {
                return Linear {
                    name: name.to_owned(),
                    sizes: [self.inputs, self.outputs],
                    weight: poison,
                    stored: None,
                    bias: None,
                    adapter: None,
                };
            }
            let init = self.init.unwrap_or_else(|| Init::kaiming_uniform(self.inputs));
            let stored = StoredMatrix::build(g, name, &[self.outputs, self.inputs], self.storage);
            let weight = match &stored {
                Some(stored) => stored.weight,
                None => g.parameter_with(&scoped(name, "weight"), &[self.inputs, self.outputs], init),
            };
            let bias = self.bias.then(|| g.parameter(&scoped(name, "bias"), &[self.outputs]));
            Linear {
                name: name.to_owned(),
                sizes: [self.inputs, self.outputs],
                weight,
                stored,
                bias,
                adapter: Adapter::of(g, name, self.lora, [self.inputs, self.outputs]),
            }
        })
    }
}

/// Fully connected layer, `y = x W + b`.
#[derive(Clone, Debug)]
pub struct Linear {
    name: String,
    sizes: [usize; 2],
    /// `f32 [inputs, outputs]`, or the type of [`LinearConfig::storage`].
    pub weight: NodeId,
    stored: Option<StoredMatrix>,
    /// `f32 [outputs]`.
    pub bias: Option<NodeId>,
    adapter: Option<Adapter>,
}

impl Linear {
    /// Creates a layer with the defaults of [`LinearConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, inputs: usize, outputs: usize) -> Self {
        LinearConfig::new(inputs, outputs).build(g, name)
    }

    /// Returns the name that the layer was built with.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Applies the layer: `x [..., rows, inputs] -> [..., rows, outputs]`; `x` has at least two
    /// axes.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let (x, [inputs, outputs]) = (x.into(), self.sizes);
        let what = format!("linear '{}' ({inputs} to {outputs} features)", self.name);
        g.within(what, |g| {
            let mut y = self.product(g, x);
            g.named(y, &self.name);
            if let Some(adapter) = &self.adapter {
                y = adapter.add_to(g, y, x, &self.name, self);
            }
            match self.bias {
                Some(bias) => {
                    let y = g.bias_add(y, bias);
                    g.named(y, &self.name)
                }
                None => y,
            }
        })
    }
}

impl FrozenWeight for Linear {
    fn product(&self, g: &mut Graph, x: Value) -> NodeId {
        match &self.stored {
            Some(stored) => stored.product(g, x),
            None => g.matmul(x, self.weight),
        }
    }

    fn squares(&self, g: &mut Graph) -> NodeId {
        // Stored matrices are transposed.
        let (weight, inputs) = match &self.stored {
            Some(stored) => (stored.dequantized(g), 1),
            None => (self.weight, 0),
        };
        let squares = g.mul(weight, weight);
        g.sum(squares, &[inputs], false)
    }
}
