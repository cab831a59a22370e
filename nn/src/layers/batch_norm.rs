//! Batch normalisation layer.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{Fault, check_eps, reject, reject_zero_sizes, scoped};

/// Options of a [`BatchNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    channels: usize,
    momentum: f32,
    eps: f32,
}

impl BatchNormConfig {
    /// Creates options for `channels` channels (the size of axis 1), with momentum 0.1 and `eps` 1e-5.
    pub fn new(channels: usize) -> Self {
        BatchNormConfig {
            channels,
            momentum: 0.1,
            eps: 1e-5,
        }
    }

    /// Sets the weight of the newest batch in the running statistics, from 0 to 1.
    #[must_use]
    pub fn momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }

    /// Sets the number added to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    fn check(&self) -> Result<(), Fault> {
        check_eps(self.eps)?;
        if (0.0..=1.0).contains(&self.momentum) {
            Ok(())
        } else {
            Err((
                format!("momentum is {}", self.momentum),
                "momentum is the weight of the newest batch, from 0 to 1, usually 0.1",
            ))
        }
    }

    /// Registers the parameters `{name}.weight` (ones) and `{name}.bias` (zeros) and the states
    /// `{name}.running_mean` (zeros) and `{name}.running_var` (ones), all `[channels]`.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> BatchNorm {
        g.at_caller(|g| {
            let channels = &[self.channels];
            let layer = format!("batch_norm '{name}'");
            let poison = reject_zero_sizes(g, &layer, &[("channels", self.channels)]);
            let poison = poison.or_else(|| reject(g, &layer, self.check()));
            let [weight, bias, running_mean, running_var] = match poison {
                Some(poison) => [poison; 4],
                None => [
                    g.parameter_with(&scoped(name, "weight"), channels, Init::Ones),
                    g.parameter(&scoped(name, "bias"), channels),
                    g.state(&scoped(name, "running_mean"), channels),
                    g.state_filled(&scoped(name, "running_var"), channels, 1.0),
                ],
            };
            BatchNorm {
                name: name.to_owned(),
                channels: self.channels,
                weight,
                bias,
                running_mean,
                running_var,
                momentum: self.momentum,
                eps: self.eps,
            }
        })
    }
}

/// Batch normalisation per channel (Ioffe and Szegedy, 2015).
///
/// Training sessions normalise by the statistics of the batch and update the running ones;
/// inference sessions normalise by the running statistics and do not change them.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    name: String,
    channels: usize,
    /// `f32 [channels]`.
    pub weight: NodeId,
    /// `f32 [channels]`.
    pub bias: NodeId,
    /// State, `f32 [channels]`.
    pub running_mean: NodeId,
    /// State, `f32 [channels]`.
    pub running_var: NodeId,
    momentum: f32,
    eps: f32,
}

impl BatchNorm {
    /// Creates a layer with the defaults of [`BatchNormConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, channels: usize) -> Self {
        BatchNormConfig::new(channels).build(g, name)
    }

    /// Normalises `x [batch, channels, ...] -> [batch, channels, ...]`, for any rank from 2.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let (x, name) = (x.into(), &self.name);
        g.within(format!("batch_norm '{name}' ({} channels)", self.channels), |g| {
            let y = g.batch_norm(
                x,
                self.weight,
                self.bias,
                self.running_mean,
                self.running_var,
                self.momentum,
                self.eps,
            );
            g.named(y, name)
        })
    }
}
