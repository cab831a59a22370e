//! Sizes and mask of an attention call.

use std::ops::Range;

use super::caches::plain_types;
use crate::ops::{Call, expect_cache_dtype, expect_float, expect_same_dtype};
use crate::shape::TensorType;

/// Sizes and mask of a `core.attention`, `core.attention_grad` or `core.cached_attention` call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDims {
    /// Product of the leading axes.
    pub batch: usize,
    /// Number of queries of a sequence.
    pub rows_q: usize,
    /// Number of keys, and of values, of a sequence; at least one.
    pub rows_k: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key-value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// `true` if a query sees no key after its own position.
    pub causal: bool,
    /// Maximum number of keys that a query sees, counted back from its own position; 0 for all.
    /// Only if causal.
    pub window: usize,
    /// Factor by which scores are multiplied.
    pub scale: f64,
}

/// Number of operands of a `core.cached_attention` call without scales.
const CACHED_OPERANDS: usize = 4;

/// Checks the types of queries, cached keys and cached values: both caches have the same type,
/// which must be compatible with that of the queries.
pub(super) fn expect_caches(inputs: &[TensorType]) -> Result<(), String> {
    let [q, k, v, ..] = inputs else {
        return Err("takes queries, cached keys and cached values".into());
    };
    if k.dtype != v.dtype {
        return Err(format!(
            "the cached keys {k} and values {v} have different element types"
        ));
    }
    expect_cache_dtype(q, k)
}

impl AttentionDims {
    /// Reads the dimensions of a call whose first three operands are queries, keys and values.
    ///
    /// # Errors
    /// Operands and attributes that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        expect_same_dtype(call)?;
        AttentionDims::masked(call, call.attrs.bool("causal")?)
    }

    /// Reads the dimensions of a `core.cached_attention` call: always causal, with the cache's
    /// capacity as the number of keys. The position that the step receives determines which keys a
    /// query sees: [`AttentionDims::cached_keys_of`]. The caches may be quantized: [`cache_scales`](super::cache_scales).
    ///
    /// # Errors
    /// As [`AttentionDims::of`].
    pub fn of_cached(call: &Call) -> Result<Self, String> {
        let inputs = &plain_types(call, CACHED_OPERANDS)?;
        AttentionDims::masked(&Call { inputs, ..*call }, true)
    }

    fn masked(call: &Call, causal: bool) -> Result<Self, String> {
        let [q, k, v, ..] = call.inputs else {
            return Err("takes queries, keys and values".into());
        };
        let dims = AttentionDims {
            causal,
            ..AttentionDims::attributes_of(call)?
        };
        dims.check_attributes()?;
        dims.with_shapes(q, k, v)
    }

    /// Reads the attributes of a causal call, without sizes.
    pub(super) fn attributes_of(call: &Call) -> Result<Self, String> {
        expect_float(call, 0, "the operands")?;
        let dims = AttentionDims {
            heads: call.attrs.size("num_heads")?,
            kv_heads: call.attrs.size("num_kv_heads")?,
            head_dim: call.attrs.size("head_dim")?,
            causal: true,
            window: call.attrs.size("window")?,
            scale: call.attrs.float("scale")?,
            batch: 0,
            rows_q: 0,
            rows_k: 0,
        };
        dims.check_attributes()?;
        Ok(dims)
    }

    fn check_attributes(&self) -> Result<(), String> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        if heads == 0 || kv_heads == 0 || self.head_dim == 0 {
            return Err(format!(
                "needs at least one head of at least one element, not {heads} query heads and {kv_heads} \
                 key-value heads of {} elements",
                self.head_dim
            ));
        }
        if kv_heads > heads {
            return Err(format!(
                "has more key-value heads ({kv_heads}) than query heads ({heads}); each query head reads exactly one"
            ));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "{heads} query heads cannot share {kv_heads} key-value heads evenly; \
                 num_heads must be a multiple of num_kv_heads"
            ));
        }
        if self.window > 0 && !self.causal {
            return Err("a sliding window looks back from each query, so the attention must be causal".into());
        }
        // Kernels compute in f32, where a larger factor would be infinite.
        if !(self.scale as f32).is_finite() {
            return Err(format!(
                "the scale {} is not a finite number in f32; it multiplies the scores",
                self.scale
            ));
        }
        Ok(())
    }

    fn with_shapes(self, q: &TensorType, k: &TensorType, v: &TensorType) -> Result<Self, String> {
        let (batch, rows_q) = operand("the queries", q, self.heads, self.head_dim)?;
        let (batch_k, rows_k) = operand("the keys", k, self.kv_heads, self.head_dim)?;
        let (batch_v, rows_v) = operand("the values", v, self.kv_heads, self.head_dim)?;
        if batch != batch_k || batch != batch_v {
            return Err(format!(
                "the queries {q}, keys {k} and values {v} differ in their leading axes; \
                 all but the last two must be equal"
            ));
        }
        if rows_k != rows_v {
            return Err(format!(
                "there are {rows_k} keys ({k}) but {rows_v} values ({v}); each key needs its value"
            ));
        }
        if rows_k == 0 {
            return Err(format!("the keys {k} have no rows, so there is nothing to attend to"));
        }
        if self.causal && rows_q > rows_k {
            return Err(format!(
                "causal attention aligns the last query with the last key, so {rows_q} queries need at least as \
                 many keys, not {rows_k}; without a mask use `attention`"
            ));
        }
        Ok(AttentionDims {
            batch: batch.iter().product(),
            rows_q,
            rows_k,
            ..self
        })
    }

    /// Returns the number of query heads per KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the keys that a query sees; at least one.
    pub fn keys_of(&self, query: usize) -> Range<usize> {
        if self.causal {
            self.cached_keys_of(query, self.rows_k - self.rows_q)
        } else {
            0..self.rows_k
        }
    }

    /// Returns the keys that a query sees if query 0 is at this position; at least one.
    pub fn cached_keys_of(&self, query: usize, position: usize) -> Range<usize> {
        let end = query + position + 1;
        let start = if self.window == 0 {
            0
        } else {
            end.saturating_sub(self.window)
        };
        start..end
    }

    /// Returns the queries that see any of some keys.
    pub fn queries_of(&self, keys: Range<usize>) -> Range<usize> {
        if !self.causal {
            return 0..self.rows_q;
        }
        let shift = self.rows_k - self.rows_q;
        let end = if self.window == 0 {
            self.rows_q
        } else {
            let last = keys.end.saturating_sub(1);
            last.saturating_add(self.window).saturating_sub(shift).min(self.rows_q)
        };
        let start = keys.start.saturating_sub(shift).min(end);
        start..end
    }

    /// Returns the number of pairs of a query and a key that it sees, in one head; saturates.
    pub fn pairs(&self) -> u64 {
        let (q, k) = (self.rows_q as u128, self.rows_k as u128);
        // Sum of 1, 2, ... n.
        let triangle = |n: u128| n * (n + 1) / 2;
        let pairs = if self.causal {
            let below = |limit: u128| triangle(limit) - triangle(limit.saturating_sub(q));
            let hidden = if self.window == 0 {
                0
            } else {
                let most = k.saturating_sub(self.window as u128);
                triangle(most) - triangle(most.saturating_sub(q))
            };
            below(k) - hidden
        } else {
            q * k
        };
        u64::try_from(pairs).unwrap_or(u64::MAX)
    }

    /// Returns the pairs of all heads times the width of a head; saturates.
    pub(super) fn multiplications(&self) -> u64 {
        [self.batch, self.heads, self.head_dim]
            .iter()
            .fold(self.pairs(), |product, &n| product.saturating_mul(n as u64))
    }
}

/// Returns the leading axes and rows of an operand whose last axis must contain `heads` heads.
pub(super) fn operand<'a>(
    what: &str,
    ty: &'a TensorType,
    heads: usize,
    head_dim: usize,
) -> Result<(&'a [usize], usize), String> {
    let rank = ty.shape.rank();
    if rank < 2 {
        return Err(format!(
            "{what} are {ty}, but need rows of heads: [..., rows, heads * head_dim]"
        ));
    }
    let width = ty.shape[rank - 1];
    if heads.checked_mul(head_dim) != Some(width) {
        return Err(format!(
            "{what} {ty} have rows of {width} elements, but {heads} heads of {head_dim} were announced"
        ));
    }
    Ok((&ty.shape[..rank - 2], ty.shape[rank - 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed forms of ranges and counts agree with the definition of the mask.
    #[test]
    fn ranges_and_counts_agree() {
        for (rows_q, rows_k) in [(1, 1), (1, 5), (4, 4), (3, 7), (7, 9), (0, 3)] {
            for (causal, window) in [
                (false, 0),
                (true, 0),
                (true, 1),
                (true, 2),
                (true, 5),
                (true, usize::MAX),
            ] {
                let dims = AttentionDims {
                    batch: 1,
                    rows_q,
                    rows_k,
                    heads: 1,
                    kv_heads: 1,
                    head_dim: 1,
                    causal,
                    window,
                    scale: 1.0,
                };
                let sees = |i: usize, j: usize| {
                    let own = i + rows_k - rows_q;
                    !causal || (j <= own && (window == 0 || own - j < window))
                };
                let mut pairs = 0;
                for i in 0..rows_q {
                    let keys: Vec<usize> = (0..rows_k).filter(|&j| sees(i, j)).collect();
                    assert_eq!(dims.keys_of(i).collect::<Vec<_>>(), keys, "{dims:?}");
                    assert!(!keys.is_empty());
                    pairs += keys.len() as u64;
                }
                assert_eq!(dims.pairs(), pairs, "{dims:?}");
                for start in 0..rows_k {
                    for end in start + 1..=rows_k {
                        let queries: Vec<usize> = (0..rows_q).filter(|&i| (start..end).any(|j| sees(i, j))).collect();
                        assert_eq!(dims.queries_of(start..end).collect::<Vec<_>>(), queries, "{dims:?}");
                    }
                }
            }
        }
    }
}
