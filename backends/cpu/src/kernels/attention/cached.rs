//! Attention to the valid rows of a cache: its time goes with them, not with the capacity.
//!
//! A task has the queries of one key-value head, some rows of each of its query heads, and goes over the keys that they
//! see in tiles, as [`forward`](super::forward) does. There are few queries for each key, so keys and values are read
//! where they lie instead of being packed.

use meganeura_core::ops::AttentionDims;

use super::super::{CompileCx, Compiled, Task};
use super::tile::{Tile, softmax_step};
use super::{Head, KEYS, nanos, scratch, scratch_len};
use crate::executor::RunCx;
use crate::memory::View;
use crate::vmath::{self, Isa, Level, multiversion};

/// Rows of queries of a task.
const ROWS: usize = 16;
/// Valid rows that estimates of the duration go by.
const USUAL_KEYS: usize = 256;

/// A call.
#[derive(Clone, Copy)]
struct Cached {
    /// With the capacity as the number of keys.
    dims: AttentionDims,
    /// What positions must be below.
    bound: usize,
    dispatch: usize,
    level: Level,
    q: View<f32>,
    k: View<f32>,
    v: View<f32>,
    positions: View<u32>,
    out: View<f32>,
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = AttentionDims::of_cached(&cx.call())?;
    let call = Cached {
        dims,
        bound: cx.dispatch.index_bound().unwrap_or_default(),
        dispatch: cx.index,
        level: cx.level,
        q: cx.input(0),
        k: cx.input(1),
        v: cx.input(2),
        positions: cx.input(3),
        out: cx.output(0),
    };
    let usual = AttentionDims {
        rows_k: dims.rows_k.min(USUAL_KEYS.max(dims.rows_q)),
        ..dims
    };
    let tasks = match dims.rows_q {
        0 => 0,
        rows => dims.batch * dims.kv_heads * rows.div_ceil(ROWS),
    };
    Ok(Compiled {
        phases: vec![Box::new(Task {
            tasks,
            nanos: nanos(&usual, 2),
            // SAFETY: the contract of `Kernel::run`.
            body: move |task: usize, cx: &RunCx| unsafe { call.attend(task, cx) },
        })],
        shared: 0,
        private: scratch_len(&call.private_lens()),
    })
}

impl Cached {
    /// Queries, scores and results of a task; greatest score and sum of each query.
    fn private_lens(&self) -> [usize; 5] {
        let queries = self.dims.group() * ROWS.min(self.dims.rows_q);
        let width = self.dims.head_dim;
        [queries * width, queries * KEYS, queries * width, queries, queries]
    }

    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn attend(&self, task: usize, cx: &RunCx) {
        let capacity = self.dims.rows_k;
        let blocks = self.dims.rows_q.div_ceil(ROWS);
        let (kv_index, block) = (task / blocks, task % blocks);
        let (entry, kv_head) = (kv_index / self.dims.kv_heads, kv_index % self.dims.kv_heads);
        // SAFETY: positions are not written by this dispatch.
        let position = unsafe { self.positions.all() }[entry];
        if position as usize >= self.bound {
            return cx.index_out_of_range(self.dispatch, position, self.bound);
        }
        // As if the cache ended behind the last query.
        let dims = &AttentionDims {
            rows_k: position as usize + self.dims.rows_q,
            ..self.dims
        };
        let (width, group) = (dims.head_dim, dims.group());
        let first = block * ROWS;
        let rows = ROWS.min(dims.rows_q - first);
        let place = [entry, kv_head, dims.kv_heads];
        let [k, v] = [self.k, self.v].map(|view| Head::of(view, capacity, place, width));
        let head = |view, h: usize| {
            let place = [entry, kv_head * group + h, dims.heads];
            Head::of(view, dims.rows_q, place, width)
        };
        // SAFETY: private scratch is as long as asked for.
        let [queries, scores, out, greatest, sums] = unsafe { scratch(cx.private, self.private_lens()) };
        for (h, queries) in queries.chunks_exact_mut(rows * width).take(group).enumerate() {
            // SAFETY: operands are not written by this dispatch.
            unsafe { head(self.q, h).copy(first..first + rows, dims.scale as f32, queries) };
        }
        out.fill(0.0);
        greatest.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        let keys = dims.keys_of(first).start..dims.keys_of(first + rows - 1).end;
        let mut key = keys.start;
        while key < keys.end {
            let tile = Tile {
                dims,
                query: first,
                rows,
                key,
                cols: KEYS.min(keys.end - key),
            };
            // SAFETY: these rows are valid, so they exist, and operands are not written by this dispatch.
            let [k, v] = [k, v].map(|head| unsafe { head.rows(key..key + tile.cols) });
            for h in 0..group {
                let queries = &queries[h * rows * width..][..rows * width];
                let scores = &mut scores[h * rows * KEYS..][..rows * KEYS];
                let out = &mut out[h * rows * width..][..rows * width];
                let of_head = h * rows..(h + 1) * rows;
                products(self.level, queries, k, dims.kv_heads * width, scores, tile);
                let state = [&mut greatest[of_head.clone()], &mut sums[of_head]];
                softmax_step(self.level, scores, state, Some(&mut *out), tile);
                add_values(self.level, scores, v, dims.kv_heads * width, out, tile);
            }
            key += tile.cols;
        }
        for (query, (out, sum)) in out.chunks_exact(width).zip(&*sums).take(group * rows).enumerate() {
            // SAFETY: this task alone writes these rows of these heads.
            let to = unsafe { head(self.out, query / rows).get_mut(first + query % rows) };
            let inverse = 1.0 / sum;
            for (to, &out) in to.iter_mut().zip(out) {
                *to = out * inverse;
            }
        }
    }
}

multiversion! {
    /// Products of queries and the keys that they see in a tile, which lie `stride` apart.
    fn products(queries: &[f32], keys: &[f32], stride: usize, scores: &mut [f32], tile: Tile) = products_body;
}

multiversion! {
    /// Adds up the values of a tile, each times its probability.
    fn add_values(probabilities: &[f32], values: &[f32], stride: usize, out: &mut [f32], tile: Tile) = add_values_body;
}

/// Partial sums of a product.
const LANES: usize = 16;

#[inline(always)]
fn products_body<const FMA: bool>(queries: &[f32], keys: &[f32], stride: usize, scores: &mut [f32], tile: Tile) {
    let width = tile.dims.head_dim;
    for (row, query) in queries.chunks_exact(width).enumerate() {
        let seen = tile.seen(row);
        let scores = &mut scores[row * KEYS..][..KEYS];
        let (head, rest) = query.as_chunks::<LANES>();
        for key in seen {
            let (key_head, key_rest) = keys[key * stride..][..width].as_chunks::<LANES>();
            let mut lanes = [0.0; LANES];
            for (q, k) in head.iter().zip(key_head) {
                for ((lane, &q), &k) in lanes.iter_mut().zip(q).zip(k) {
                    *lane = vmath::mul_add::<FMA>(q, k, *lane);
                }
            }
            for ((lane, &q), &k) in lanes.iter_mut().zip(rest).zip(key_rest) {
                *lane = vmath::mul_add::<FMA>(q, k, *lane);
            }
            let mut half = LANES / 2;
            while half > 0 {
                for i in 0..half {
                    lanes[i] += lanes[i + half];
                }
                half /= 2;
            }
            scores[key] = lanes[0];
        }
    }
}

#[inline(always)]
fn add_values_body<const FMA: bool>(p: &[f32], values: &[f32], stride: usize, out: &mut [f32], tile: Tile) {
    let width = tile.dims.head_dim;
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        let seen = tile.seen(row);
        let p = &p[row * KEYS..][..KEYS];
        let (head, rest) = out.as_chunks_mut::<LANES>();
        let start_of_rest = head.len() * LANES;
        for (part, out) in head.iter_mut().enumerate() {
            let mut sums = *out;
            for key in seen.clone() {
                let values = &values[key * stride + part * LANES..][..LANES];
                for (sum, &value) in sums.iter_mut().zip(values) {
                    *sum = vmath::mul_add::<FMA>(p[key], value, *sum);
                }
            }
            *out = sums;
        }
        for (i, out) in rest.iter_mut().enumerate() {
            for key in seen.clone() {
                *out = vmath::mul_add::<FMA>(p[key], values[key * stride + start_of_rest + i], *out);
            }
        }
    }
}
