//! The cache of a layer: keys and values as plain numbers or 8-bit integers with scales, or the rows of a short convolution.

use meganeura_core::ops::AttentionOptions;
use meganeura_core::{Graph, NodeId};

use super::{PagedRows, reject};

/// States or parameters that hold the keys and the values of earlier tokens, `[..., rows, width]` with
/// `width = kv_heads * head_dim`, or the inputs of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCache {
    /// Keys and values in `f32` or `f16`.
    Plain([NodeId; 2]),
    /// Keys and values as 8-bit integers in blocks of 32 with a common scale: see [`Graph::quantized_cache_write`].
    Quantized {
        /// Integers, four in a word: `u32 [..., rows, width / 4]`.
        words: [NodeId; 2],
        /// Scales of the blocks: `f16 [..., rows, width / 32]`.
        scales: [NodeId; 2],
    },
    /// Rows of a [`ShortConv`](super::ShortConv) in `f32` or `f16`, `[..., rows, dim]`.
    Rows {
        /// The rows.
        cache: NodeId,
        /// Rows of the cache that contain the tokens before each row of a step: see [`EarlierRows`](super::EarlierRows).
        earlier: NodeId,
    },
}

impl From<[NodeId; 2]> for KvCache {
    fn from(cache: [NodeId; 2]) -> Self {
        KvCache::Plain(cache)
    }
}

impl KvCache {
    /// Returns the number of rows of a sequence, or of a block.
    pub(super) fn rows(&self, g: &Graph) -> usize {
        let (KvCache::Plain([keys, _])
        | KvCache::Quantized { words: [keys, _], .. }
        | KvCache::Rows { cache: keys, .. }) = *self;
        g.shape(keys).iter().nth_back(1).copied().unwrap_or_default()
    }

    /// Writes keys and values `[..., rows, width]` from row `kv_pos` on, and returns the attention of the queries to the
    /// cache. `name` is the name of the layer.
    #[track_caller]
    pub(super) fn attend(
        &self,
        g: &mut Graph,
        [q, k, v]: [NodeId; 3],
        kv_pos: NodeId,
        options: AttentionOptions,
        name: &str,
    ) -> NodeId {
        match *self {
            KvCache::Plain(caches) => {
                let [k, v] = [(k, caches[0]), (v, caches[1])].map(|(new, cache)| {
                    let written = g.cache_write(new, cache, kv_pos);
                    g.named(written, name)
                });
                g.cached_attention_with(q, k, v, kv_pos, options)
            }
            KvCache::Quantized { words, scales } => {
                let [k, v] = [0, 1].map(|which| {
                    let written = g.quantized_cache_write([k, v][which], words[which], scales[which], kv_pos);
                    g.named(written[0].node, name);
                    written
                });
                g.quantized_cached_attention(q, k, v, kv_pos, options)
            }
            KvCache::Rows { .. } => no_keys(g, q),
        }
    }

    /// Writes keys and values `[rows, width]` into slots of the blocks, and returns the attention of the queries to the
    /// blocks of their sequences.
    #[track_caller]
    pub(super) fn attend_paged(
        &self,
        g: &mut Graph,
        [q, k, v]: [NodeId; 3],
        at: PagedRows,
        options: AttentionOptions,
        name: &str,
    ) -> NodeId {
        match *self {
            KvCache::Plain(caches) => {
                let [k, v] = [(k, caches[0]), (v, caches[1])].map(|(new, cache)| {
                    let written = g.paged_cache_write(new, cache, at.slots);
                    g.named(written, name)
                });
                g.paged_attention(q, k, v, at.positions, at.block_table, options)
            }
            KvCache::Quantized { words, scales } => {
                let [k, v] = [0, 1].map(|which| {
                    let written = g.quantized_paged_cache_write([k, v][which], words[which], scales[which], at.slots);
                    g.named(written[0].node, name);
                    written
                });
                g.quantized_paged_attention(q, k, v, at.positions, at.block_table, options)
            }
            KvCache::Rows { .. } => no_keys(g, q),
        }
    }
}

/// Reports a cache of rows for an attention layer.
#[track_caller]
fn no_keys(g: &mut Graph, q: NodeId) -> NodeId {
    let fault = (
        "the cache has rows of a convolution, but an attention layer has keys and values".to_owned(),
        "use `KvCache::Plain` or `KvCache::Quantized`",
    );
    reject(g, "attention to a cache", Err(fault));
    q
}
