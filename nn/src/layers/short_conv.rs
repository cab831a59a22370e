//! Gated short convolutions over the latest tokens of a sequence.

use meganeura_core::graph::Value;
use meganeura_core::{DType, Graph, Init, NodeId};

use super::{Linear, LinearConfig, WeightStorage, scoped};

/// Options of a [`ShortConv`] layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConvConfig {
    /// Number of features of a token.
    pub dim: usize,
    /// Number of tokens that a token's result depends on, itself included; at least 1.
    pub taps: usize,
    /// True if the projections and the convolution have a bias.
    pub bias: bool,
    /// Storage types of the projections `in_proj` and `out_proj`.
    pub storages: [WeightStorage; 2],
}

/// Gated short convolution (LFM2, Liquid AI, 2025): with `[b, c, x] = in_proj(input)`, the result is
/// `out_proj(c * conv(b * x))`. The convolution has one filter for each feature, over the latest [`ShortConvConfig::taps`] tokens.
#[derive(Clone, Debug)]
pub struct ShortConv {
    name: String,
    config: ShortConvConfig,
    in_proj: Linear,
    /// Filters `[taps, dim]`; the last row multiplies the token itself.
    weight: NodeId,
    bias: Option<NodeId>,
    out_proj: Linear,
}

/// Locations of earlier tokens for a step with a cache.
#[derive(Clone, Copy, Debug)]
pub struct EarlierRows {
    /// Rows of the cache that contain the tokens before each row, the latest first: `u32 [..., rows, taps - 1]`. They are
    /// indices of rows in all sequences or blocks of the cache together. A token before the first one of its sequence may
    /// have any valid index.
    pub rows: NodeId,
    /// Position of each row in its sequence, `u32 [..., rows]`.
    pub positions: NodeId,
}

impl ShortConvConfig {
    /// Registers `{name}.in_proj` `[dim, 3 dim]`, `{name}.conv` `[taps, dim]` and `{name}.out_proj` `[dim, dim]`.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> ShortConv {
        let ShortConvConfig { dim, taps, bias, .. } = self;
        let linear = |g: &mut Graph, child: &str, outputs: usize, storage| {
            LinearConfig::new(dim, outputs)
                .bias(bias)
                .storage(storage)
                .init(Init::xavier_uniform(dim, outputs))
                .build(g, &scoped(name, child))
        };
        let conv = scoped(name, "conv");
        let [inward, outward] = self.storages;
        ShortConv {
            name: name.to_owned(),
            config: self,
            in_proj: linear(g, "in_proj", 3 * dim, inward),
            weight: g.parameter_with(
                &scoped(&conv, "weight"),
                &[taps, dim],
                Init::Uniform {
                    bound: (taps as f32).recip(),
                },
            ),
            bias: bias.then(|| g.parameter(&scoped(&conv, "bias"), &[dim])),
            out_proj: linear(g, "out_proj", dim, outward),
        }
    }
}

impl ShortConv {
    /// Applies the layer to whole sequences: `x [..., rows, dim] -> [..., rows, dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        self.forward_with_rows(g, x)[0]
    }

    /// Applies the layer like [`ShortConv::forward`], and also returns the rows for a cache, `[..., rows, dim]`.
    #[track_caller]
    pub fn forward_with_rows(&self, g: &mut Graph, x: impl Into<Value>) -> [NodeId; 2] {
        let [gated, gate] = self.gated(g, x.into());
        let shape = g.shape(gated).to_vec();
        let axis = shape.len().saturating_sub(2);
        let rows = shape.get(axis).copied().unwrap_or(0);
        let mut sum = self.tap(g, gated, 0);
        for lag in 1..self.config.taps.min(rows) {
            let earlier = g.slice_axis(gated, -2, 0, rows - lag);
            let mut low = vec![0; shape.len()];
            low[axis] = lag;
            let earlier = g.pad(earlier, &low, &vec![0; shape.len()], 0.0);
            let product = self.tap(g, earlier, lag);
            sum = g.add(sum, product);
        }
        [self.finish(g, sum, gate), gated]
    }

    /// Adds a step with a cache: `x [..., rows, dim] -> [..., rows, dim]`. `write` writes rows `[..., rows, dim]` into the cache, and
    /// returns all of its rows, `[..., dim]`.
    #[track_caller]
    pub fn forward_cached(
        &self,
        g: &mut Graph,
        x: impl Into<Value>,
        earlier: EarlierRows,
        write: impl FnOnce(&mut Graph, NodeId) -> NodeId,
    ) -> NodeId {
        let [gated, gate] = self.gated(g, x.into());
        let mut sum = self.tap(g, gated, 0);
        if self.config.taps > 1 {
            let cache = write(g, gated);
            let cache = g.named(cache, &self.name);
            let (dim, count) = (self.config.dim, g.shape(cache).iter().rev().skip(1).product());
            let flat = g.reshape(cache, &[count, dim]);
            let before = g.gather(flat, earlier.rows);
            let before = g.cast(before, DType::F32);
            let shape = g.shape(gated).to_vec();
            let positions = g.reshape(
                earlier.positions,
                &[&shape[..shape.len().saturating_sub(1)], &[1]].concat(),
            );
            for lag in 1..self.config.taps {
                let row = g.slice_axis(before, -2, lag - 1, lag);
                let row = g.reshape(row, &shape);
                // Rows before the beginning of a sequence contain anything, also NaN.
                let (least, none) = (g.scalar_of(DType::U32, lag as f64), g.scalar(0.0));
                let exists = g.less_equal(least, positions);
                let row = g.select(exists, row, none);
                let product = self.tap(g, row, lag);
                sum = g.add(sum, product);
            }
        }
        self.finish(g, sum, gate)
    }

    /// Returns the input of the convolution and the factor of its result, both `[..., rows, dim]`.
    fn gated(&self, g: &mut Graph, x: Value) -> [NodeId; 2] {
        let all = self.in_proj.forward(g, x);
        let dim = self.config.dim;
        let [b, c, x] = [0, 1, 2].map(|part| g.slice_axis(all, -1, part * dim, (part + 1) * dim));
        [g.mul(b, x), c]
    }

    /// Returns rows times the filters' numbers for tokens that are `lag` tokens earlier.
    fn tap(&self, g: &mut Graph, rows: NodeId, lag: usize) -> NodeId {
        let at = self.config.taps - 1 - lag;
        let weight = g.slice_axis(self.weight, 0, at, at + 1);
        let weight = g.reshape(weight, &[self.config.dim]);
        g.mul(rows, weight)
    }

    fn finish(&self, g: &mut Graph, sum: NodeId, gate: NodeId) -> NodeId {
        let sum = match self.bias {
            Some(bias) => g.add(sum, bias),
            None => sum,
        };
        let y = g.mul(gate, sum);
        let y = g.named(y, &self.name);
        self.out_proj.forward(g, y)
    }
}
