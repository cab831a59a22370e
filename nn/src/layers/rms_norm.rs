//! Root-mean-square normalisation.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{check_eps, reject, reject_zero_sizes, scoped};

/// Root-mean-square normalisation of the last axis (Zhang and Sennrich, 2019): like a layer norm that does not subtract
/// the mean and has no bias.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    name: String,
    dim: usize,
    /// `f32 [dim]`.
    pub weight: NodeId,
    eps: f32,
    zero_centered: bool,
}

impl RmsNorm {
    /// Creates a norm over a last axis of `dim` elements; registers `{name}.weight [dim]` (ones).
    /// `eps` is added to the mean square, 1e-5 or 1e-6 in published models.
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, dim: usize, eps: f32) -> Self {
        RmsNorm::build(g, name, dim, eps, false)
    }

    /// Creates a norm like [`RmsNorm::new`] with `{name}.weight [dim]` (zeros), whose factors are
    /// `1 + weight`: weight decay pulls them to 1 (Gemma; `zero_centered_gamma` of Transformer
    /// Engine).
    #[track_caller]
    pub fn zero_centered(g: &mut Graph, name: &str, dim: usize, eps: f32) -> Self {
        RmsNorm::build(g, name, dim, eps, true)
    }

    #[track_caller]
    fn build(g: &mut Graph, name: &str, dim: usize, eps: f32, zero_centered: bool) -> Self {
        g.at_caller(|g| {
            let layer = format!("rms_norm '{name}'");
            let poison = reject_zero_sizes(g, &layer, &[("features", dim)]);
            let poison = poison.or_else(|| reject(g, &layer, check_eps(eps)));
            let init = if zero_centered { Init::Zeros } else { Init::Ones };
            RmsNorm {
                name: name.to_owned(),
                dim,
                weight: poison.unwrap_or_else(|| g.parameter_with(&scoped(name, "weight"), &[dim], init)),
                eps,
                zero_centered,
            }
        })
    }

    /// Normalises `x [..., dim] -> [..., dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let (x, name) = (x.into(), &self.name);
        g.within(format!("rms_norm '{name}' ({} features)", self.dim), |g| {
            let factors = if self.zero_centered {
                let one = g.scalar(1.0);
                g.add(self.weight, one)
            } else {
                self.weight
            };
            let y = g.rms_norm(x, factors, self.eps);
            g.named(y, name)
        })
    }
}
