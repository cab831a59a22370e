//! Graphs for text generation with a language model.

use meganeura_core::quantization::BLOCK;
use meganeura_core::{DType, Graph, NodeId};

use super::{CacheType, LlamaConfig, TOKENS};
use crate::layers::{ADAPTER_SCALES_INPUT, KvCache, PagedRows};

/// Name of the input with the number of cached tokens.
pub const KV_POS: &str = "kv_pos";
/// Name of the input with the row of a prompt's chunk whose logits are requested.
pub const LOGITS_ROW: &str = "logits_row";

/// Name of the input with the position of each token in its sequence.
pub const POSITIONS: &str = "positions";
/// Name of the input with the rows of the cache blocks that keys and values are written to.
pub const SLOTS: &str = "slots";
/// Name of the input with the blocks of each token's sequence.
pub const BLOCK_TABLE: &str = "block_table";
/// Name of the input with the rows of the cache that contain the tokens before each row, the latest first, for models with short
/// convolutions ([`LlamaConfig::earlier_rows`] columns). They are indices of rows in all sequences or blocks of a cache together. A
/// token before the first one of its sequence may have any valid index.
pub const EARLIER_ROWS: &str = "earlier_rows";
/// Name of the input with the temperature of each row that a token is drawn for.
pub const TEMPERATURES: &str = "temperatures";
/// Name of the input with the seeds of each row that a token is drawn for.
pub const SEEDS: &str = "seeds";
/// Name of the input with the number of most likely tokens that can be drawn, for each row; 0 for all.
pub const TOP_KS: &str = "top_ks";
/// Name of the input with the total probability of the most likely tokens that can be drawn, for each row; 1 for all.
pub const TOP_PS: &str = "top_ps";
/// Name of the input with the minimum probability of a drawn token relative to the most likely one, for each row; 0 for none.
pub const MIN_PS: &str = "min_ps";

/// Name of the input `f32 [rows, rank]` with the factor of each column of the adapters, for each row.
///
/// Several adapters share one pair of matrices: the ranks of all of them are concatenated. A row holds `alpha / rank`
/// in the columns of its adapter and 0 elsewhere; a row of zeros computes the model without adapters.
pub const ADAPTER_SCALES: &str = ADAPTER_SCALES_INPUT;

/// Sizes of the caches of a [`LlamaConfig::paged_graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagedCache {
    /// Number of blocks, which all sequences share.
    pub blocks: usize,
    /// Number of rows of a block, one for each token.
    pub block_rows: usize,
    /// Maximum number of blocks of a sequence.
    pub table_len: usize,
}

/// Returns the names of the parameters that cache the keys and the values of a layer. Caches of [`CacheType::Q8`] have scales,
/// too: [`LlamaConfig::cache_names`].
pub fn kv_cache_names(layer: usize) -> [String; 2] {
    ["k", "v"].map(|which| format!("kv_cache.layer.{layer}.{which}"))
}

/// Returns the name of the parameter that caches the rows of a layer's short convolution.
pub fn conv_cache_name(layer: usize) -> String {
    format!("kv_cache.layer.{layer}.conv")
}

/// Returns the names of the parameters with the scales of cached keys and values of a layer, which caches of
/// [`CacheType::Q8`] have.
pub fn kv_scale_names(layer: usize) -> [String; 2] {
    kv_cache_names(layer).map(|name| name + "_scales")
}

/// The rows of a [`LlamaConfig::decode_graph`] that have logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogitsOf {
    /// Every row.
    AllRows,
    /// One row of each sequence, given by the input [`LOGITS_ROW`], `u32` like [`KV_POS`].
    OneRow,
}

impl LlamaConfig {
    /// Returns a graph that reads a whole prompt (prefill).
    ///
    /// Input: `tokens`, `u32 [rows]`. Outputs: the logits of the last token, `f32 [1, vocab]`, then
    /// the keys and the values of each layer, `f32 [rows, kv_width]`, or the rows of its convolution, `f32 [rows, dim]`, as stored in the caches of
    /// [`LlamaConfig::decode_graph`]. With [`LlamaConfig::longrope`], they match a graph with a
    /// capacity of `rows`.
    #[track_caller]
    pub fn prefill_graph(&self, rows: usize) -> Graph {
        let mut g = Graph::new();
        let tokens = g.input_u32(TOKENS, &[rows]);
        let model = self.build(&mut g, "");
        let (x, cached) = model.forward_with_rows(&mut g, tokens);
        let last = g.slice_axis(x, 0, rows.saturating_sub(1), rows);
        let logits = model.logits(&mut g, last);
        let mut outputs = vec![logits];
        outputs.extend(cached);
        g.set_outputs(outputs);
        g
    }

    /// Returns a graph that reads `rows` tokens of each sequence after the cached ones: one row for
    /// decode, more for chunks of a prompt.
    ///
    /// `batch` are the axes before the rows, `[]` for one sequence. Inputs: `tokens`,
    /// `u32 [batch..., rows]`, and `kv_pos`, the number of cached tokens of each sequence,
    /// `u32 [batch...]`, or `[1]` for one. Each layer's keys and values are written into parameters
    /// named by [`kv_cache_names`], or the rows of its convolution into [`conv_cache_name`], `[batch..., capacity, kv_width or dim]` of
    /// [`LlamaConfig::cache_type`], which are not trained. [`CacheType::Q8`] has words
    /// `u32 [..., kv_width / 4]`, with scales `f16 [..., kv_width / 32]` named by [`kv_scale_names`]. Output: the logits,
    /// `f32 [batch..., rows, vocab]`, or `[batch..., 1, vocab]` of one row.
    #[track_caller]
    pub fn decode_graph(&self, batch: &[usize], rows: usize, capacity: usize, logits: LogitsOf) -> Graph {
        let mut g = Graph::new();
        let per_sequence = if batch.is_empty() { &[1] } else { batch };
        let tokens = g.input_u32(TOKENS, &[batch, &[rows]].concat());
        let kv_pos = g.input_u32(KV_POS, per_sequence);
        let model = self.build(&mut g, "");
        let earlier = self.earlier_input(&mut g, &[batch, &[rows]].concat());
        let caches = self.caches(&mut g, &[batch, &[capacity]].concat(), earlier);
        let mut x = model.forward_cached(&mut g, tokens, &caches, kv_pos);
        if logits == LogitsOf::OneRow {
            x = self.one_row(&mut g, x, batch, rows);
        }
        let logits = model.logits(&mut g, x);
        g.set_outputs(vec![logits]);
        g
    }

    /// Returns a graph that reads `rows` tokens of any sequences: several of one sequence as a
    /// chunk of a prompt, single ones for decode.
    ///
    /// Inputs, all `u32`: `tokens [rows]`; [`POSITIONS`] and [`SLOTS`] `[rows]` and [`BLOCK_TABLE`]
    /// `[rows, table_len]`, as [`PagedRows`] describes them; with `logits` below `rows` also
    /// [`LOGITS_ROW`] `[logits]`, the rows whose logits are requested, and with
    /// [`LlamaConfig::lora_per_row`] [`ADAPTER_SCALES`]. A row whose slot is `blocks * block_rows`
    /// is unused. Each layer's keys and values are written into parameters named by
    /// [`kv_cache_names`], `[blocks, block_rows, kv_width]` of [`LlamaConfig::cache_type`], which
    /// are not trained. Caches of [`CacheType::Q8`] are words and scales, as for
    /// [`LlamaConfig::decode_graph`]. Output: the logits, `f32 [logits, vocab]`.
    #[track_caller]
    pub fn paged_graph(&self, rows: usize, cache: PagedCache, logits: usize) -> Graph {
        let mut g = Graph::new();
        let logits = self.paged_logits(&mut g, rows, cache, logits);
        g.set_outputs(vec![logits]);
        g
    }

    /// Returns a [`LlamaConfig::paged_graph`] that also draws tokens, so that a host need not read
    /// the logits.
    ///
    /// Further inputs: [`TEMPERATURES`], `f32 [logits]`, and [`SEEDS`], `u32 [logits, 2]`, as for
    /// [`Graph::categorical`]; [`TOP_KS`], `u32 [logits]`, [`TOP_PS`] and [`MIN_PS`], `f32 [logits]`, as for
    /// [`Graph::sampling_threshold`]. Outputs: the logits, then for each of their rows the drawn token and
    /// a number above 0 if the draw is valid, `f32 [logits, 2]`. It is valid if no logit is NaN or
    /// positive infinity, and at least one is finite.
    #[track_caller]
    pub fn paged_sampling_graph(&self, rows: usize, cache: PagedCache, logits: usize) -> Graph {
        let mut g = Graph::new();
        let count = logits;
        let logits = self.paged_logits(&mut g, rows, cache, count);
        let temperatures = g.input(TEMPERATURES, &[count]);
        let seeds = g.input_u32(SEEDS, &[count, 2]);
        let top_k = g.input_u32(TOP_KS, &[count]);
        let (top_p, min_p) = (g.input(TOP_PS, &[count]), g.input(MIN_PS, &[count]));
        if !g.errors().is_empty() {
            // The sizes may be invalid for a tensor.
            return g;
        }
        let [temperature, top_k, top_p, min_p] =
            [temperatures, top_k, top_p, min_p].map(|options| g.reshape(options, &[count, 1]));
        let threshold = g.sampling_threshold(logits, temperature, top_k, top_p, min_p);
        let is_kept = g.greater_equal(logits, threshold);
        let excluded = g.scalar(f32::NEG_INFINITY);
        let kept = g.select(is_kept, logits, excluded);
        let tokens = g.categorical(kept, temperatures, seeds);
        let tokens = g.cast(tokens, DType::F32);
        let valid = self.valid_rows(&mut g, logits);
        let columns = [tokens, valid].map(|column| g.reshape(column, &[count, 1]));
        let drawn = g.concat(&columns, 1);
        g.set_outputs(vec![logits, drawn]);
        g
    }

    #[track_caller]
    fn paged_logits(&self, g: &mut Graph, rows: usize, cache: PagedCache, logits: usize) -> NodeId {
        let tokens = g.input_u32(TOKENS, &[rows]);
        let at = PagedRows {
            positions: g.input_u32(POSITIONS, &[rows]),
            slots: g.input_u32(SLOTS, &[rows]),
            block_table: g.input_u32(BLOCK_TABLE, &[rows, cache.table_len]),
        };
        if let Some(lora) = self.lora.filter(|_| self.lora_per_row) {
            g.input(ADAPTER_SCALES, &[rows, lora.rank]);
        }
        let model = self.build(g, "");
        let earlier = self.earlier_input(g, &[rows]);
        let caches = self.caches(g, &[cache.blocks, cache.block_rows], earlier);
        let mut x = model.forward_paged(g, tokens, &caches, at);
        if logits < rows {
            let chosen = g.input_u32(LOGITS_ROW, &[logits]);
            x = g.gather(x, chosen);
        }
        model.logits(g, x)
    }

    /// Returns a number above 0 for rows that tokens can be drawn from, `[rows]`: the number of
    /// finite logits, minus a large number for each that is NaN or infinity.
    ///
    /// The logit of the drawn token would be sufficient. But a lookup with a computed index may be
    /// a fault of the step, so that backends would save all caches before it.
    #[track_caller]
    fn valid_rows(&self, g: &mut Graph, logits: NodeId) -> NodeId {
        let [least, most, none, one, many] = [f32::MIN, f32::MAX, 0.0, 1.0, -1e9].map(|x| g.scalar(x));
        let above = g.less_equal(least, logits);
        let finite = g.select(above, one, none);
        let below = g.less_equal(logits, most);
        let counted = g.select(below, finite, many);
        g.sum(counted, &[-1], false)
    }

    /// Returns the names of the parameters that cache keys and values of a layer: [`kv_cache_names`], and with
    /// [`CacheType::Q8`] [`kv_scale_names`].
    pub fn cache_names(&self, layer: usize) -> Vec<String> {
        if self.short_conv_of(layer).is_some() {
            return vec![conv_cache_name(layer)];
        }
        let mut names = kv_cache_names(layer).to_vec();
        if self.cache_type == CacheType::Q8 {
            names.extend(kv_scale_names(layer));
        }
        names
    }

    /// Registers the input [`EARLIER_ROWS`] for rows of this shape, if the model needs it.
    #[track_caller]
    fn earlier_input(&self, g: &mut Graph, rows: &[usize]) -> Option<NodeId> {
        let count = self.earlier_rows();
        (count > 0).then(|| g.input_u32(EARLIER_ROWS, &[rows, &[count]].concat()))
    }

    /// Registers the caches of all layers as parameters that are not trained. A cache has the shape `[rows..., width]`; the width depends
    /// on the layer.
    #[track_caller]
    fn caches(&self, g: &mut Graph, rows: &[usize], earlier: Option<NodeId>) -> Vec<KvCache> {
        let of_layer = |layer| {
            if self.short_conv_of(layer).is_none() {
                return self.cache(g, layer, &[rows, &[self.kv_width()]].concat());
            }
            let dtype = if self.cache_type == CacheType::F32 {
                DType::F32
            } else {
                DType::F16
            };
            let cache = g.parameter_typed(&conv_cache_name(layer), &[rows, &[self.dim]].concat(), dtype);
            // With a single tap, nothing is read.
            let earlier = earlier.unwrap_or(cache);
            KvCache::Rows { cache, earlier }
        };
        (0..self.layers).map(of_layer).collect()
    }

    /// Registers the cache of a layer with keys and values `[..., rows, width]` of this shape.
    #[track_caller]
    fn cache(&self, g: &mut Graph, layer: usize, shape: &[usize]) -> KvCache {
        let names = kv_cache_names(layer);
        let mut typed =
            |names: [String; 2], shape: &[usize], dtype| names.map(|name| g.parameter_typed(&name, shape, dtype));
        match self.cache_type {
            CacheType::F32 => typed(names, shape, DType::F32).into(),
            CacheType::F16 => typed(names, shape, DType::F16).into(),
            CacheType::Q8 => {
                let (width, rows) = shape.split_last().map_or((0, &[][..]), |(width, rows)| (*width, rows));
                let of_row = |count: usize| [rows, &[count]].concat();
                KvCache::Quantized {
                    words: typed(names, &of_row(width / 4), DType::U32),
                    scales: typed(kv_scale_names(layer), &of_row(width / BLOCK), DType::F16),
                }
            }
        }
    }

    /// Selects the row of each sequence that an input specifies.
    fn one_row(&self, g: &mut Graph, x: NodeId, batch: &[usize], rows: usize) -> NodeId {
        let per_sequence = if batch.is_empty() { &[1] } else { batch };
        let row = g.input_u32(LOGITS_ROW, per_sequence);
        if !g.errors().is_empty() {
            // The sizes may be invalid for a tensor.
            return x;
        }
        if batch.is_empty() {
            // An index in an input is checked before the caches are written.
            return g.gather(x, row);
        }
        let sequences: usize = per_sequence.iter().product();
        let flat = g.reshape(x, &[sequences * rows, self.dim]);
        let starts = (0..sequences).map(|s| (s * rows) as u32).collect();
        let starts = g.constant_u32(starts, per_sequence);
        let row = g.add(row, starts);
        let chosen = g.gather(flat, row);
        g.reshape(chosen, &[batch, &[1, self.dim]].concat())
    }
}
