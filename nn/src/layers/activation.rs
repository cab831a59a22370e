//! Activation functions by name.

use std::fmt;
use std::str::FromStr;

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};
use serde::{Deserialize, Serialize};

/// An elementwise non-linearity; shapes and dtypes stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activation {
    /// `max(x, 0)`.
    #[default]
    Relu,
    /// `x` times the normal distribution function at `x`, exactly (with `erf`), as PyTorch's and Hugging Face's `gelu`
    /// is.
    Gelu,
    /// [`Activation::Gelu`] in its tanh approximation: `gelu_new` and `gelu_pytorch_tanh` of Hugging Face.
    GeluTanh,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// Logistic function.
    Sigmoid,
    /// `x` itself: a network without non-linearity.
    Identity,
}

impl Activation {
    /// All activations.
    pub const ALL: [Activation; 7] = [
        Activation::Relu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Identity,
    ];

    /// Applies the activation to a floating-point value.
    #[track_caller]
    pub fn forward(self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let x = x.into();
        match self {
            Activation::Relu => g.relu(x),
            Activation::Gelu => g.gelu_erf(x),
            Activation::GeluTanh => g.gelu_tanh(x),
            Activation::Silu => g.silu(x),
            Activation::Tanh => g.tanh(x),
            Activation::Sigmoid => g.sigmoid(x),
            // A value need not be port 0 of its node, so the node itself would not do.
            Activation::Identity => {
                let shape = g.shape(x).to_vec();
                g.reshape(x, &shape)
            }
        }
    }

    /// Returns the initial distribution of the weights before this activation: Kaiming uniform for
    /// the ReLU family, which halves the variance; Xavier uniform for the remaining ones, which are
    /// linear around 0.
    pub fn weight_init(self, fan_in: usize, fan_out: usize) -> Init {
        match self {
            Activation::Relu | Activation::Gelu | Activation::GeluTanh | Activation::Silu => {
                Init::kaiming_uniform(fan_in)
            }
            Activation::Tanh | Activation::Sigmoid | Activation::Identity => Init::xavier_uniform(fan_in, fan_out),
        }
    }

    /// Returns the lower-case name, which parsing accepts.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Relu => "relu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Silu => "silu",
            Activation::Tanh => "tanh",
            Activation::Sigmoid => "sigmoid",
            Activation::Identity => "identity",
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Activation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Activation::ALL.into_iter().find(|a| a.name() == text);
        found.ok_or_else(|| {
            let names = Activation::ALL.map(Activation::name).join(", ");
            format!("there is no activation '{text}'; there are {names}")
        })
    }
}
