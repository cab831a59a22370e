//! Layer normalisation.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{check_eps, reject, reject_zero_sizes, scoped};

/// Options of a [`LayerNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormConfig {
    dim: usize,
    eps: f32,
}

impl LayerNormConfig {
    /// Creates options for a last axis of `dim` elements, with `eps` 1e-5.
    pub fn new(dim: usize) -> Self {
        LayerNormConfig { dim, eps: 1e-5 }
    }

    /// Sets the number added to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// Registers `{name}.weight [dim]` (ones) and `{name}.bias [dim]` (zeros).
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> LayerNorm {
        g.at_caller(|g| {
            let layer = format!("layer_norm '{name}'");
            let poison = reject_zero_sizes(g, &layer, &[("features", self.dim)]);
            let poison = poison.or_else(|| reject(g, &layer, check_eps(self.eps)));
            let (weight, bias) = match poison {
                Some(poison) => (poison, poison),
                None => (
                    g.parameter_with(&scoped(name, "weight"), &[self.dim], Init::Ones),
                    g.parameter(&scoped(name, "bias"), &[self.dim]),
                ),
            };
            LayerNorm {
                name: name.to_owned(),
                dim: self.dim,
                weight,
                bias,
                eps: self.eps,
            }
        })
    }
}

/// Layer normalisation of the last axis (Ba, Kiros and Hinton, 2016).
#[derive(Clone, Debug)]
pub struct LayerNorm {
    name: String,
    dim: usize,
    /// `f32 [dim]`.
    pub weight: NodeId,
    /// `f32 [dim]`.
    pub bias: NodeId,
    eps: f32,
}

impl LayerNorm {
    /// Creates a layer with the defaults of [`LayerNormConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, dim: usize) -> Self {
        LayerNormConfig::new(dim).build(g, name)
    }

    /// Normalises `x [..., dim] -> [..., dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let (x, name) = (x.into(), &self.name);
        g.within(format!("layer_norm '{name}' ({} features)", self.dim), |g| {
            let y = g.layer_norm(x, self.weight, self.bias, self.eps);
            g.named(y, name)
        })
    }
}
