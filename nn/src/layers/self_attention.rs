//! Self-attention with its four projections.

use meganeura_core::graph::Value;
use meganeura_core::ops::{AttentionOptions, RopeScaling};
use meganeura_core::{DType, Graph, Init, NodeId};

use super::{
    Fault, KvCache, Linear, LinearConfig, LongRope, LoraConfig, QueryGrowth, RmsNorm, WeightStorage, check_eps,
    check_heads, check_rotary_dim, check_theta, reject, scoped,
};

/// The norms that are applied to queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QkNorm {
    /// No norms.
    #[default]
    None,
    /// A norm of each head, with weights `[head_dim]` that all heads share (Qwen3, Gemma 3).
    PerHead,
    /// A norm over the features of all heads together, with weights `[heads * head_dim]` of queries and
    /// `[kv_heads * head_dim]` of keys (OLMo 2).
    AllHeads,
}

/// Options of a [`SelfAttention`] layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfAttentionConfig {
    dim: usize,
    heads: usize,
    kv_heads: usize,
    /// Number of features of a head; `None` for `dim / heads`.
    head_dim: Option<usize>,
    /// Bias of the projections to queries, keys and values, and of the output projection.
    bias: [bool; 2],
    causal: bool,
    window: Option<u32>,
    scale: Option<f32>,
    softcap: Option<f32>,
    sinks: bool,
    rope: Option<f32>,
    scaling: RopeScaling,
    longrope: Option<LongRope>,
    query_growth: Option<QueryGrowth>,
    /// Number of features of a head that are rotated; `None` for all.
    rotary_dim: Option<usize>,
    qk_norm: QkNorm,
    eps: f32,
    zero_centered_norms: bool,
    lora: Option<LoraConfig>,
    /// Storage of the projections to queries, keys and values, and of the output projection.
    storages: [WeightStorage; 4],
}

impl SelfAttentionConfig {
    /// Creates options for `dim` features with `heads` heads of `dim / heads` each: attention
    /// between all positions, no biases, no position embedding.
    pub fn new(dim: usize, heads: usize) -> Self {
        SelfAttentionConfig {
            dim,
            heads,
            kv_heads: heads,
            head_dim: None,
            bias: [false; 2],
            causal: false,
            window: None,
            scale: None,
            softcap: None,
            sinks: false,
            rope: None,
            scaling: RopeScaling::None,
            longrope: None,
            query_growth: None,
            rotary_dim: None,
            qk_norm: QkNorm::None,
            eps: 1e-6,
            zero_centered_norms: false,
            lora: None,
            storages: [WeightStorage::F32; 4],
        }
    }

    /// Sets the number of key and value heads, each of which serves `heads / kv_heads` query heads
    /// (grouped-query attention; Ainslie et al., 2023).
    #[must_use]
    pub fn kv_heads(mut self, kv_heads: usize) -> Self {
        self.kv_heads = kv_heads;
        self
    }

    /// Sets the number of features of a head, `dim / heads` by default.
    #[must_use]
    pub fn head_dim(mut self, head_dim: usize) -> Self {
        self.head_dim = Some(head_dim);
        self
    }

    /// Sets whether the projections have a bias.
    #[must_use]
    pub fn bias(self, bias: bool) -> Self {
        self.biases(bias, bias)
    }

    /// Sets whether the projections to queries, keys and values have a bias, and whether the output
    /// projection has one.
    #[must_use]
    pub fn biases(mut self, inward: bool, outward: bool) -> Self {
        self.bias = [inward, outward];
        self
    }

    /// Sets whether a position only sees itself and earlier ones.
    #[must_use]
    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// Limits a causal layer to a window: a position only sees the latest `window` positions, itself included.
    #[must_use]
    pub fn window(mut self, window: u32) -> Self {
        self.window = Some(window);
        self
    }

    /// Adds a rotary position embedding of queries and keys with this base (10000 in Su et al.,
    /// 2021).
    #[must_use]
    pub fn rope(mut self, theta: f32) -> Self {
        self.rope = Some(theta);
        self
    }

    /// Scales the frequencies of the rotary embedding, for longer contexts.
    #[must_use]
    pub fn rope_scaling(mut self, scaling: RopeScaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// Scales the frequencies of the rotary embedding by one factor for each pair of features of a head, in place of
    /// [`Self::rope_scaling`].
    #[must_use]
    pub fn longrope(mut self, longrope: LongRope) -> Self {
        self.longrope = Some(longrope);
        self
    }

    /// Multiplies queries by a factor that grows with their position.
    #[must_use]
    pub fn query_growth(mut self, growth: QueryGrowth) -> Self {
        self.query_growth = Some(growth);
        self
    }

    /// Rotates only the first features of each head, an even number; the remaining ones stay
    /// unchanged (`partial_rotary_factor`; GPT-NeoX, Black et al., 2022).
    #[must_use]
    pub fn rotary_dim(mut self, rotary_dim: usize) -> Self {
        self.rotary_dim = Some(rotary_dim);
        self
    }

    /// Adds a root-mean-square norm of each head of queries and keys, before their rotation, with
    /// this number added to the mean square (query-key normalisation; Henry et al., 2020).
    #[must_use]
    pub fn head_norm(self, eps: f32) -> Self {
        self.qk_norm(QkNorm::PerHead, eps)
    }

    /// Adds root-mean-square norms of queries and keys, before their rotation, with this number
    /// added to the mean square.
    #[must_use]
    pub fn qk_norm(mut self, qk_norm: QkNorm, eps: f32) -> Self {
        self.qk_norm = qk_norm;
        self.eps = eps;
        self
    }

    /// Sets whether these norms multiply by `1 + weight`: see [`RmsNorm::zero_centered`].
    #[must_use]
    pub fn zero_centered_norms(mut self, zero_centered: bool) -> Self {
        self.zero_centered_norms = zero_centered;
        self
    }

    /// Sets the factor by which attention scores are multiplied; `None` for `1 / sqrt(head_dim)`.
    #[must_use]
    pub fn scale(mut self, scale: Option<f32>) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the soft cap of the attention scores; `None` for no cap. See [`AttentionOptions::softcap`].
    #[must_use]
    pub fn softcap(mut self, softcap: Option<f32>) -> Self {
        self.softcap = softcap;
        self
    }

    /// Sets whether each head has a trained sink, `{name}.sinks` `[heads]`: a further score without a value. See
    /// [`AttentionOptions::sinks`].
    #[must_use]
    pub fn sinks(mut self, sinks: bool) -> Self {
        self.sinks = sinks;
        self
    }

    /// Adds adapters to the targeted projections.
    #[must_use]
    pub fn lora(mut self, lora: Option<LoraConfig>) -> Self {
        self.lora = lora;
        self
    }

    /// Sets the storage type of the projections. With a type other than `F32`, they are not trained.
    #[must_use]
    pub fn storage(self, storage: WeightStorage) -> Self {
        self.storages([storage; 4])
    }

    /// Sets the storage type of each projection, in the order query, key, value, output.
    #[must_use]
    pub fn storages(mut self, storages: [WeightStorage; 4]) -> Self {
        self.storages = storages;
        self
    }

    /// Returns the number of features of a row of keys, or of values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads.saturating_mul(self.head_dim_or_part())
    }

    /// Returns the number of features of a head.
    fn head_dim_or_part(&self) -> usize {
        self.head_dim.unwrap_or(self.dim / self.heads.max(1))
    }

    fn check(&self) -> Result<(), Fault> {
        check_heads(
            [self.dim, self.heads, self.kv_heads],
            self.head_dim,
            self.rope.is_some(),
        )?;
        self.rope.map_or(Ok(()), check_theta)?;
        check_eps(self.eps)?;
        if let Some(rotated) = self.rotary_dim {
            check_rotary_dim(rotated, self.head_dim_or_part())?;
        }
        if let Some(longrope) = self.longrope {
            longrope.check(self.rotary_dim.unwrap_or(self.head_dim_or_part()) / 2)?;
        }
        self.query_growth.map_or(Ok(()), |growth| growth.check())?;
        match self.window {
            Some(0) => Err((
                "window is 0".into(),
                "a window contains at least the token itself: use 1 or more",
            )),
            Some(window) if !self.causal => Err((
                format!("window is {window} and causal is false"),
                "a window covers earlier positions: make the layer causal",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the description of the layer in errors.
    fn description(&self, name: &str) -> String {
        let (dim, heads, kv_heads, head_dim) = (self.dim, self.heads, self.kv_heads, self.head_dim_or_part());
        let shared = if kv_heads == heads {
            String::new()
        } else {
            format!(", {kv_heads} key-value heads")
        };
        format!("self_attention '{name}' (dim {dim}, {heads} heads of {head_dim} features{shared})")
    }

    /// Registers `{name}.q_proj`, `k_proj`, `v_proj` and `o_proj`, each a [`Linear`] layer with Xavier weights, and
    /// with norms of queries and keys `{name}.q_norm` and `k_norm`.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> SelfAttention {
        reject(g, &format!("self_attention '{name}'"), self.check());
        g.at_caller(|g| self.register(g, name))
    }

    fn register(self, g: &mut Graph, name: &str) -> SelfAttention {
        // Sizes that overflow are refused as a shape.
        let head_dim = self.head_dim_or_part();
        let own = self.heads.saturating_mul(head_dim);
        let shared = self.kv_width();
        let [inward, outward] = self.bias;
        let widths = match self.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead => Some([head_dim; 2]),
            QkNorm::AllHeads => Some([own, shared]),
        };
        let qk_norms = widths.map(|[of_q, of_k]| {
            let norm = |g: &mut Graph, child, width| {
                if self.zero_centered_norms {
                    RmsNorm::zero_centered(g, &scoped(name, child), width, self.eps)
                } else {
                    RmsNorm::new(g, &scoped(name, child), width, self.eps)
                }
            };
            [norm(g, "q_norm", of_q), norm(g, "k_norm", of_k)]
        });
        let [q, k, v, o] = self.storages;
        SelfAttention {
            name: name.to_owned(),
            q: self.project(g, &scoped(name, "q_proj"), [self.dim, own], inward, q),
            k: self.project(g, &scoped(name, "k_proj"), [self.dim, shared], inward, k),
            v: self.project(g, &scoped(name, "v_proj"), [self.dim, shared], inward, v),
            o: self.project(g, &scoped(name, "o_proj"), [own, self.dim], outward, o),
            qk_norms,
            sinks: self.sinks.then(|| g.parameter(&scoped(name, "sinks"), &[self.heads])),
            config: self,
        }
    }

    #[track_caller]
    fn project(
        &self,
        g: &mut Graph,
        name: &str,
        [inputs, outputs]: [usize; 2],
        bias: bool,
        storage: WeightStorage,
    ) -> Linear {
        LinearConfig::new(inputs, outputs)
            .bias(bias)
            .storage(storage)
            .init(Init::xavier_uniform(inputs, outputs))
            .lora(self.lora)
            .build(g, name)
    }
}

/// Multi-head self-attention (Vaswani et al., 2017).
#[derive(Clone, Debug)]
pub struct SelfAttention {
    name: String,
    config: SelfAttentionConfig,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    /// Norms of queries and of keys.
    qk_norms: Option<[RmsNorm; 2]>,
    /// Sinks of the query heads, `[heads]`.
    sinks: Option<NodeId>,
}

/// A result of [`SelfAttention::forward_with_kv`].
#[derive(Clone, Copy, Debug)]
pub struct WithKv {
    /// Result of the layer, `[..., rows, dim]`.
    pub y: NodeId,
    /// Keys and values `[..., rows, kv_heads * head_dim]`, as a cache holds them: the keys are rotated.
    pub kv: [NodeId; 2],
}

/// Positions of tokens of several sequences, and the cache slots of their keys and values: see
/// [`SelfAttention::forward_paged`].
#[derive(Clone, Copy, Debug)]
pub struct PagedRows {
    /// The position of each row in its sequence, `u32 [rows]`.
    pub positions: NodeId,
    /// For each row, the slot that its key and value are written to: an index of a row in all blocks of the cache
    /// together, `u32 [rows]`; see [`Graph::paged_cache_write`].
    pub slots: NodeId,
    /// For each row, the blocks of its sequence, `u32 [rows, blocks of a sequence]`; see [`Graph::paged_attention`].
    pub block_table: NodeId,
}

impl SelfAttention {
    /// Applies the layer to `x [..., rows, dim] -> [..., rows, dim]`.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        self.forward_with_kv(g, x).y
    }

    /// Applies the layer like [`SelfAttention::forward`], and also returns the keys and values for
    /// a cache.
    #[track_caller]
    pub fn forward_with_kv(&self, g: &mut Graph, x: impl Into<Value>) -> WithKv {
        let x = x.into();
        g.within(self.config.description(&self.name), |g| {
            let [q, k, v] = self.heads(g, x, RowPositions::whole(g, x));
            let y = g.attention(q, k, v, self.options());
            WithKv {
                y: self.finish(g, y),
                kv: [k, v],
            }
        })
    }

    /// Applies the layer like [`SelfAttention::forward`], with a mask that broadcasts to
    /// `[..., heads, rows, rows]`: an additive `f32` one, or a `u32` one that is not 0 where
    /// a query row sees a key row; see [`Graph::masked_attention`]. [`Graph::key_padding_mask`] makes
    /// one from `u32 [..., rows]` that is 1 for real rows and 0 for padding. In a causal layer, the
    /// mask applies in addition to the causal one.
    #[track_caller]
    pub fn forward_masked(&self, g: &mut Graph, x: impl Into<Value>, mask: impl Into<Value>) -> NodeId {
        let (x, mask) = (x.into(), mask.into());
        g.within(self.config.description(&self.name), |g| {
            let [q, k, v] = self.heads(g, x, RowPositions::whole(g, x));
            let y = g.masked_attention(q, k, v, mask, self.options());
            self.finish(g, y)
        })
    }

    /// Adds a decode step: `x [..., rows, dim] -> [..., rows, dim]` for rows that follow `kv_pos`
    /// cached ones. Their keys and values are written into `cache`, the keys and the values
    /// `[..., capacity, kv_heads * head_dim]`, states or parameters. `kv_pos` is `u32 [...]`, one
    /// number for each sequence, or `[1]`. A row sees itself and earlier ones.
    #[track_caller]
    pub fn forward_cached(
        &self,
        g: &mut Graph,
        x: impl Into<Value>,
        cache: impl Into<KvCache>,
        kv_pos: NodeId,
    ) -> NodeId {
        let (x, cache) = (x.into(), cache.into());
        g.within(self.config.description(&self.name), |g| {
            let heads = self.heads(g, x, RowPositions::of(kv_pos, cache.rows(g)));
            let y = cache.attend(g, heads, kv_pos, self.options(), &self.name);
            self.finish(g, y)
        })
    }

    /// Adds a decode step for tokens of several sequences: `x [rows, dim] -> [rows, dim]`. Their
    /// keys and values are written into the blocks of `cache`, the keys and the values
    /// `[blocks, block_rows, kv_heads * head_dim]`, states or parameters; `at` contains the slots,
    /// and the blocks that each row sees.
    #[track_caller]
    pub fn forward_paged(
        &self,
        g: &mut Graph,
        x: impl Into<Value>,
        cache: impl Into<KvCache>,
        at: PagedRows,
    ) -> NodeId {
        let (x, cache) = (x.into(), cache.into());
        g.within(self.config.description(&self.name), |g| {
            // Positions belong to sequences, so each row becomes a sequence of one row.
            let rows = g.shape(x).first().copied().unwrap_or_default();
            let of_sequences = g.reshape(x, &[rows, 1, self.config.dim]);
            let blocks = g.shape(at.block_table).last().copied().unwrap_or_default();
            let place = RowPositions::of(at.positions, blocks.saturating_mul(cache.rows(g)));
            let heads = self.heads(g, of_sequences.into(), place).map(|y| {
                let width = g.shape(y).last().copied().unwrap_or_default();
                g.reshape(y, &[rows, width])
            });
            let y = cache.attend_paged(g, heads, at, self.options(), &self.name);
            self.finish(g, y)
        })
    }

    /// Returns queries, keys and values of rows at these positions.
    fn heads(&self, g: &mut Graph, x: Value, place: RowPositions) -> [NodeId; 3] {
        let [mut q, mut k, v] = [&self.q, &self.k, &self.v].map(|layer| layer.forward(g, x));
        if let Some([of_q, of_k]) = &self.qk_norms {
            [q, k] = [(q, of_q), (k, of_k)].map(|(x, norm)| match self.config.qk_norm {
                QkNorm::AllHeads => norm.forward(g, x),
                _ => self.normalize(g, x, norm),
            });
        }
        if let Some(theta) = self.config.rope {
            [q, k] = [q, k].map(|x| {
                let y = self.rotate(g, x, theta, place);
                g.named(y, &self.name)
            });
        }
        if let Some(growth) = self.config.query_growth.filter(|growth| place.longest > growth.context) {
            q = growth.apply(g, q, place.from);
            q = g.named(q, &self.name);
        }
        [q, k, v]
    }

    fn normalize(&self, g: &mut Graph, x: NodeId, norm: &RmsNorm) -> NodeId {
        let shape = g.shape(x).to_vec();
        let Some((&width, rows)) = shape.split_last() else {
            return x;
        };
        let head_dim = self.config.head_dim_or_part();
        let split = [rows, &[width.checked_div(head_dim).unwrap_or(0), head_dim]].concat();
        let x = g.reshape(x, &split);
        let y = norm.forward(g, x);
        g.reshape(y, &shape)
    }

    fn rotate(&self, g: &mut Graph, x: NodeId, theta: f32, place: RowPositions) -> NodeId {
        let head_dim = self.config.head_dim_or_part();
        let Some(rotated) = self.config.rotary_dim.filter(|&rotated| rotated < head_dim) else {
            return self.rotate_heads(g, x, theta, place, head_dim);
        };
        let shape = g.shape(x).to_vec();
        let Some((&width, rows)) = shape.split_last() else {
            return x;
        };
        let heads = width.checked_div(head_dim).unwrap_or(0);
        let split = g.reshape(x, &[rows, &[heads, head_dim]].concat());
        let first = g.slice_axis(split, -1, 0, rotated);
        let first = g.reshape(first, &[rows, &[heads * rotated]].concat());
        let first = self.rotate_heads(g, first, theta, place, rotated);
        let first = g.reshape(first, &[rows, &[heads, rotated]].concat());
        let rest = g.slice_axis(split, -1, rotated, head_dim);
        let joined = g.concat(&[first, rest], -1);
        g.reshape(joined, &shape)
    }

    /// Rotates all features of heads of this width.
    fn rotate_heads(&self, g: &mut Graph, x: NodeId, theta: f32, place: RowPositions, width: usize) -> NodeId {
        let SelfAttentionConfig { scaling, longrope, .. } = self.config;
        let from = match place.from {
            Some(from) => from,
            None if scaling == RopeScaling::None && longrope.is_none() => return g.rope(x, theta, narrow(width)),
            None => {
                let leading = g
                    .shape(x)
                    .split_last_chunk::<2>()
                    .map_or(&[][..], |(leading, _)| leading);
                let sequences = if leading.is_empty() { vec![1] } else { leading.to_vec() };
                g.full(DType::U32, 0.0, &sequences)
            }
        };
        match longrope {
            Some(longrope) => {
                let speeds = longrope.speeds(theta, place.longest);
                g.rope_with_speeds(x, &speeds, from, longrope.magnitude())
            }
            None => g.rope_scaled(x, theta, from, narrow(width), scaling),
        }
    }

    fn options(&self) -> AttentionOptions {
        let config = &self.config;
        AttentionOptions {
            causal: config.causal,
            window: config.window,
            scale: config.scale,
            softcap: config.softcap,
            sinks: self.sinks.map(Value::from),
            ..AttentionOptions::new(
                narrow(config.heads),
                narrow(config.kv_heads),
                narrow(config.head_dim_or_part()),
            )
        }
    }

    fn finish(&self, g: &mut Graph, y: NodeId) -> NodeId {
        g.named(y, &self.name);
        self.o.forward(g, y)
    }
}

/// The positions of rows in their sequences.
#[derive(Clone, Copy)]
struct RowPositions {
    /// Position of the first row, of each sequence; 0 if `None`.
    from: Option<NodeId>,
    /// Maximum number of positions.
    longest: usize,
}

impl RowPositions {
    /// Creates the positions of rows that are whole sequences.
    fn whole(g: &Graph, x: Value) -> Self {
        RowPositions {
            from: None,
            longest: rows_of(g, x),
        }
    }

    fn of(from: NodeId, longest: usize) -> Self {
        RowPositions {
            from: Some(from),
            longest,
        }
    }
}

/// Returns the size of the last axis but one.
fn rows_of(g: &Graph, x: Value) -> usize {
    g.shape(x).iter().nth_back(1).copied().unwrap_or_default()
}

/// Converts a size to the type of the operators. They refuse the maximum, which replaces sizes that
/// do not fit.
fn narrow(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
