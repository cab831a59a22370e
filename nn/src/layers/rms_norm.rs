//! Root-mean-square normalisation.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{check_eps, reject, reject_zero_sizes, scoped};

/// Root-mean-square normalisation of the last axis (Zhang and Sennrich, 2019): as a layer norm without mean and
/// bias.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    name: String,
    dim: usize,
    /// `f32 [dim]`.
    pub weight: NodeId,
    eps: f32,
}

impl RmsNorm {
    /// Over a last axis of `dim` elements; registers `{name}.weight [dim]` (ones). `eps` is added to the mean
    /// square, 1e-5 or 1e-6 in published models.
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, dim: usize, eps: f32) -> Self {
        g.at_caller(|g| {
            let layer = format!("rms_norm '{name}'");
            let poison = reject_zero_sizes(g, &layer, &[("features", dim)]);
            let poison = poison.or_else(|| reject(g, &layer, check_eps(eps)));
            RmsNorm {
                name: name.to_owned(),
                dim,
                weight: poison.unwrap_or_else(|| g.parameter_with(&scoped(name, "weight"), &[dim], Init::Ones)),
                eps,
            }
        })
    }

    /// `x [..., dim] -> [..., dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let (x, name) = (x.into(), &self.name);
        g.within(format!("rms_norm '{name}' ({} features)", self.dim), |g| {
            let y = g.rms_norm(x, self.weight, self.eps);
            g.named(y, name)
        })
    }
}
