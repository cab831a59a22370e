//! The feed-forward part of a block: dense, or a mixture of experts.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::config::{LayerSet, LlamaConfig};
use crate::layers::{Activation, ExpertLinear, Fault, Linear, LinearConfig, check_sizes, scoped};

/// Rule of a router: it chooses experts for each token and computes their shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Routing {
    /// Shares are the softmax of the router's logits. The experts with the largest shares are chosen.
    #[default]
    Softmax,
    /// Shares are sigmoids of the router's logits. The experts with the largest sums of their share and a bias, which balances their
    /// load and is not trained by gradients, are chosen. Shared experts have no gate (DeepSeek-V3, 2024; GLM-4.5).
    Sigmoid,
}

/// Mixture of experts in the feed-forward parts (Shazeer et al., 2017; "Mixtral of Experts", Jiang et al., 2024). A
/// linear router chooses some of the experts for each token. The token's result is the sum of their outputs, weighted
/// by their shares ([`Routing`]). The other experts are not computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoeConfig {
    /// Number of experts of a layer.
    pub experts: usize,
    /// Number of experts per token.
    pub experts_per_token: usize,
    /// Number of features inside an expert.
    pub hidden: usize,
    /// True if the shares of a token's experts are divided by their sum (`norm_topk_prob`; always
    /// in Mixtral).
    pub normalize: bool,
    /// Rule of the router.
    pub routing: Routing,
    /// Number of features inside the shared expert, if there is one: all tokens use it, in addition to their chosen
    /// experts. With [`Routing::Softmax`], it has a gate of its own (Qwen2-MoE).
    pub shared_hidden: Option<usize>,
    /// True if the router and the experts have a bias (gpt-oss).
    pub biases: bool,
    /// Layers with a dense feed-forward part instead of experts, of [`LlamaConfig::hidden`]
    /// features.
    pub dense_layers: LayerSet,
}

impl MoeConfig {
    pub(super) fn check(&self) -> Result<(), Fault> {
        check_sizes(&[
            ("moe.experts", self.experts),
            ("moe.experts_per_token", self.experts_per_token),
            ("moe.hidden", self.hidden),
            ("moe.shared_hidden", self.shared_hidden.unwrap_or(1)),
        ])?;
        if self.experts_per_token <= self.experts {
            Ok(())
        } else {
            Err((
                format!(
                    "moe.experts_per_token is {}, and moe.experts {}",
                    self.experts_per_token, self.experts
                ),
                "use at most the number of experts per token",
            ))
        }
    }
}

/// The feed-forward part of a block.
#[derive(Clone, Debug)]
pub(super) enum FeedForward {
    Dense(Box<GatedFeedForward<Linear>>),
    Experts(Box<Mixture>),
}

impl FeedForward {
    /// Registers the feed-forward part of a layer, with names under `{block}.mlp`.
    #[track_caller]
    pub(super) fn build(config: &LlamaConfig, g: &mut Graph, block: &str, layer: usize) -> Self {
        let mlp = scoped(block, "mlp");
        match config.moe.filter(|moe| !moe.dense_layers.contains(layer)) {
            None => FeedForward::Dense(Box::new(config.gated(g, &mlp, "", config.hidden, layer))),
            Some(moe) => FeedForward::Experts(Box::new(Mixture::build(config, g, &mlp, moe, layer))),
        }
    }

    /// Applies the part to `x [..., rows, dim] -> [..., rows, dim]`; inner nodes get the name of
    /// the block.
    #[track_caller]
    pub(super) fn forward(&self, g: &mut Graph, x: Value, block: &str) -> NodeId {
        match self {
            FeedForward::Dense(gated) => gated.forward(g, x, block),
            FeedForward::Experts(mixture) => mixture.forward(g, x, block),
        }
    }
}

/// A gated feed-forward layer (Shazeer, 2020).
#[derive(Clone, Debug)]
pub(super) struct GatedFeedForward<L> {
    gate: L,
    up: L,
    down: L,
    activation: Activation,
    limit: Option<f32>,
}

impl<L> GatedFeedForward<L> {
    /// Returns the input of the last layer.
    #[track_caller]
    fn inside(&self, g: &mut Graph, [gate, up]: [NodeId; 2], block: &str) -> NodeId {
        let y = match (self.limit, self.activation) {
            (Some(limit), _) => limited_gate(g, [gate, up], limit),
            (None, Activation::Silu) => g.swiglu(gate, up),
            (None, activation) => {
                let gate = activation.forward(g, gate);
                g.mul(gate, up)
            }
        };
        g.named(y, block)
    }
}

/// Factor of the gate inside the sigmoid with a limit.
const GATE_FACTOR: f32 = 1.702;

/// Returns `(up + 1) * gate * sigmoid(1.702 * gate)`, with `gate` at most the limit, and `up` between its negative and itself: see
/// [`LlamaConfig::gate_limit`].
#[track_caller]
fn limited_gate(g: &mut Graph, [gate, up]: [NodeId; 2], limit: f32) -> NodeId {
    let [least, most, factor, one] = [-limit, limit, GATE_FACTOR, 1.0].map(|x| g.scalar(x));
    let gate = g.minimum(gate, most);
    let up = g.minimum(up, most);
    let up = g.maximum(up, least);
    let inside = g.mul(gate, factor);
    let share = g.sigmoid(inside);
    let gate = g.mul(gate, share);
    let up = g.add(up, one);
    g.mul(up, gate)
}

impl GatedFeedForward<Linear> {
    #[track_caller]
    fn forward(&self, g: &mut Graph, x: Value, block: &str) -> NodeId {
        let gate = self.gate.forward(g, x);
        let up = self.up.forward(g, x);
        let y = self.inside(g, [gate, up], block);
        self.down.forward(g, y)
    }
}

impl GatedFeedForward<ExpertLinear> {
    /// Applies the layer to `x [..., dim]`, with an expert for each row.
    #[track_caller]
    fn forward(&self, g: &mut Graph, x: NodeId, experts: Value, block: &str) -> NodeId {
        let gate = self.gate.forward(g, x, experts);
        let up = self.up.forward(g, x, experts);
        let y = self.inside(g, [gate, up], block);
        self.down.forward(g, y, experts)
    }
}

impl LlamaConfig {
    /// Registers a dense layer as `{mlp}.{part}gate_proj` and so on.
    #[track_caller]
    fn gated(&self, g: &mut Graph, mlp: &str, part: &str, hidden: usize, layer: usize) -> GatedFeedForward<Linear> {
        let linear = |g: &mut Graph, child: &str, [inputs, outputs]: [usize; 2]| {
            let child = format!("{part}{child}");
            LinearConfig::new(inputs, outputs)
                .bias(self.mlp_bias)
                .storage(self.weights.of_layer(layer, &child))
                .init(Init::xavier_uniform(inputs, outputs))
                .lora(self.lora)
                .build(g, &scoped(mlp, &child))
        };
        GatedFeedForward {
            gate: linear(g, "gate_proj", [self.dim, hidden]),
            up: linear(g, "up_proj", [self.dim, hidden]),
            down: linear(g, "down_proj", [hidden, self.dim]),
            activation: self.activation,
            limit: self.gate_limit,
        }
    }
}

/// A router, its experts and the shared expert.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    moe: MoeConfig,
    router: Linear,
    /// Bias of the choice of experts, `f32 [experts]`.
    choice_bias: Option<NodeId>,
    experts: GatedFeedForward<ExpertLinear>,
    /// Shared expert, with the layer whose sigmoid is its factor, if it has one.
    shared: Option<(GatedFeedForward<Linear>, Option<Linear>)>,
    scaling: Option<f32>,
}

impl Mixture {
    #[track_caller]
    fn build(config: &LlamaConfig, g: &mut Graph, mlp: &str, moe: MoeConfig, layer: usize) -> Self {
        // Routers are small, and rounding them would change the choice of experts.
        let exact = |g: &mut Graph, child: &str, outputs: usize, bias: bool| {
            let init = Init::Normal { std: 0.02 };
            let linear = LinearConfig::new(config.dim, outputs).bias(bias).init(init);
            linear.build(g, &scoped(mlp, child))
        };
        let experts = |g: &mut Graph, child: &str, [inputs, outputs]: [usize; 2]| {
            let name = scoped(mlp, &format!("experts.{child}"));
            ExpertLinear::build(
                g,
                &name,
                [moe.experts, inputs, outputs],
                config.weights.of_layer(layer, child),
                moe.biases,
            )
        };
        Mixture {
            moe,
            router: exact(g, "gate", moe.experts, moe.biases),
            choice_bias: (moe.routing == Routing::Sigmoid).then(|| {
                let bias = g.parameter(&scoped(mlp, "gate.e_score_correction_bias"), &[moe.experts]);
                g.trainable(bias, false)
            }),
            experts: GatedFeedForward {
                gate: experts(g, "gate_proj", [config.dim, moe.hidden]),
                up: experts(g, "up_proj", [config.dim, moe.hidden]),
                down: experts(g, "down_proj", [moe.hidden, config.dim]),
                activation: config.activation,
                limit: config.gate_limit,
            },
            shared: moe.shared_hidden.map(|hidden| match moe.routing {
                Routing::Softmax => {
                    let shared = config.gated(g, mlp, "shared_expert.", hidden, layer);
                    (shared, Some(exact(g, "shared_expert_gate", 1, false)))
                }
                Routing::Sigmoid => (config.gated(g, mlp, "shared_experts.", hidden, layer), None),
            }),
            scaling: config.routed_scaling,
        }
    }

    #[track_caller]
    fn forward(&self, g: &mut Graph, x: Value, block: &str) -> NodeId {
        let shape = g.shape(x).to_vec();
        let Some((&dim, rows)) = shape.split_last() else {
            // The error was already reported.
            return x.node;
        };
        let count = self.moe.experts_per_token;
        let logits = self.router.forward(g, x);
        let [mut shares, experts] = self.chosen(g, logits);
        if self.moe.normalize {
            let sum = g.sum(shares, &[-1], true);
            shares = g.div(shares, sum).into();
        }
        if let Some(scaling) = self.scaling {
            let scaling = g.scalar(scaling);
            shares = g.mul(shares, scaling).into();
        }
        // A row for each of a token's experts.
        let each = g.reshape(x, &[rows, &[1, dim]].concat());
        let each = g.expand(each, &[rows, &[count, dim]].concat());
        let y = self.experts.forward(g, each, experts, block);
        let shares = g.reshape(shares, &[rows, &[count, 1]].concat());
        let y = g.mul(y, shares);
        let y = g.sum(y, &[-2], false);
        g.named(y, block);
        match &self.shared {
            None => y,
            Some((shared, gate)) => {
                let mut shared = shared.forward(g, x, block);
                if let Some(gate) = gate {
                    let gate = gate.forward(g, x);
                    let gate = g.sigmoid(gate);
                    shared = g.mul(shared, gate);
                }
                g.add(y, shared)
            }
        }
    }

    /// Returns the shares of the chosen experts, and their numbers, from `logits [..., experts]`: `[..., experts per token]` each.
    fn chosen(&self, g: &mut Graph, logits: NodeId) -> [Value; 2] {
        let count = self.moe.experts_per_token;
        let Some(bias) = self.choice_bias else {
            let shares = g.softmax(logits, -1);
            let chosen = g.top_k(shares, -1, count);
            return [g.port(chosen, 0), g.port(chosen, 1)];
        };
        let shares = g.sigmoid(logits);
        let sums = g.add(shares, bias);
        let chosen = g.top_k(sums, -1, count);
        let experts = g.port(chosen, 1);
        [g.take_along_axis(shares, experts, -1).into(), experts]
    }
}
