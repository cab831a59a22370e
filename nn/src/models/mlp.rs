//! Multi-layer perceptron.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, NodeId};

use crate::layers::{Activation, Dropout, Linear, LinearConfig, scoped};

/// Options of an [`Mlp`].
#[derive(Clone, Debug, PartialEq)]
pub struct MlpConfig {
    inputs: usize,
    hidden: Vec<usize>,
    outputs: usize,
    activation: Activation,
    dropout: f32,
}

impl MlpConfig {
    /// Creates options for `inputs` features and `outputs` values, with hidden layers of 256 and
    /// 128, ReLU and dropout of 0.2 after each: sizes for small data sets.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        MlpConfig {
            inputs,
            hidden: vec![256, 128],
            outputs,
            activation: Activation::Relu,
            dropout: 0.2,
        }
    }

    /// Sets the sizes of the hidden layers; none makes a linear model.
    #[must_use]
    pub fn hidden(mut self, sizes: impl Into<Vec<usize>>) -> Self {
        self.hidden = sizes.into();
        self
    }

    /// Sets the activation after each hidden layer.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Sets the probability of dropout after each hidden layer; 0 for none.
    #[must_use]
    pub fn dropout(mut self, p: f32) -> Self {
        self.dropout = p;
        self
    }

    /// Registers the layers `{name}.fc1`, `{name}.fc2` ..., or `fc1` ... under an empty name. The last has
    /// Xavier weights, as no activation follows it.
    #[track_caller]
    pub fn build(&self, g: &mut Graph, name: &str) -> Mlp {
        g.at_caller(|g| {
            let mut layers = Vec::with_capacity(self.hidden.len() + 1);
            let mut inputs = self.inputs;
            for &outputs in self.hidden.iter().chain([&self.outputs]) {
                let last = layers.len() == self.hidden.len();
                let activation = if last { Activation::Identity } else { self.activation };
                let config = LinearConfig::new(inputs, outputs).init(activation.weight_init(inputs, outputs));
                layers.push(config.build(g, &scoped(name, &format!("fc{}", layers.len() + 1))));
                inputs = outputs;
            }
            Mlp {
                layers,
                activation: self.activation,
                dropout: Dropout::new(self.dropout),
            }
        })
    }
}

/// Multi-layer perceptron: linear layers with an activation and dropout between them.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
    activation: Activation,
    dropout: Dropout,
}

impl Mlp {
    /// Returns the linear layers, first to last.
    pub fn layers(&self) -> &[Linear] {
        &self.layers
    }

    /// Applies the network: `x [batch, inputs] -> [batch, outputs]`, without activation at the end.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let Some((last, hidden)) = self.layers.split_last() else {
            return g.report("mlp", "it has no layers", "build it with `MlpConfig::build`");
        };
        let mut x = x.into();
        for layer in hidden {
            let y = layer.forward(g, x);
            let y = self.activation.forward(g, y);
            x = self.dropout.forward(g, y).into();
        }
        last.forward(g, x)
    }
}
