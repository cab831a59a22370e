//! The backward pass of attention.

use std::ops::Range;

use meganeura_core::ops::AttentionDims;

use super::tile::{Tile, gradient_step, scaled_sum};
use super::{Head, KEYS, QUERIES, columns, nanos, rows, scratch, scratch_len, target};
use crate::gemm::Blocks;
use crate::kernel::{CompileCx, Compiled, RunCx, Task, stream_nanos};
use crate::memory::View;
use crate::vmath::Level;

/// Desired number of tasks. With fewer heads than this, several tasks share the keys of a head.
const WANTED_TASKS: usize = 16;
/// Maximum number of parts of a head's keys. Each part has separate sums of the query gradients.
const MAX_PARTS: usize = 8;

/// A call of the backward pass. In the first phase, each task processes some keys of one key-value head. It writes
/// the gradients of these keys and values, and writes its contributions to the query gradients to shared scratch. The
/// second phase adds up the contributions.
struct Backward {
    dims: AttentionDims,
    blocks: Blocks,
    level: Level,
    /// Operands: q, k, v, lse, delta, dout.
    inputs: [View<f32>; 6],
    /// Results: dq, dk, dv.
    outputs: [View<f32>; 3],
    /// Parts of the keys, as ranges of key tiles.
    parts: Vec<Range<usize>>,
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = AttentionDims::of(&cx.call())?;
    let call = std::sync::Arc::new(Backward {
        dims,
        blocks: Blocks::detect(),
        level: cx.level,
        inputs: std::array::from_fn(|i| cx.input::<f32>(i)),
        outputs: std::array::from_fn(|i| cx.output::<f32>(i)),
        parts: parts(&dims),
    });
    let (shared, private) = (call.shared_len(), scratch_len(&call.private_lens()));
    let (first, second) = (call.clone(), call.clone());
    let keys = Task {
        tasks: dims.batch * dims.kv_heads * call.parts.len(),
        nanos: nanos(&dims, 5),
        // SAFETY: the contract of `Kernel::run`.
        body: move |task: usize, cx: &RunCx| unsafe { first.keys(task, cx) },
    };
    let queries = Task {
        tasks: dims.batch * dims.rows_q.div_ceil(QUERIES),
        nanos: stream_nanos(4 * shared),
        // SAFETY: as above.
        body: move |task: usize, cx: &RunCx| unsafe { second.queries(task, cx) },
    };
    Ok(Compiled {
        phases: vec![Box::new(keys), Box::new(queries)],
        shared,
        private,
    })
}

/// Divides the key tiles into parts with about the same number of pairs of a key tile and a query that attends to it.
fn parts(dims: &AttentionDims) -> Vec<Range<usize>> {
    let heads = dims.batch * dims.kv_heads;
    let tiles = dims.rows_k.div_ceil(KEYS);
    if heads == 0 {
        // With an empty batch, memory does not limit the number of rows.
        return std::iter::once(0..tiles).collect();
    }
    let count = WANTED_TASKS.div_ceil(heads).min(MAX_PARTS).min(tiles);
    // A tile without queries also takes time: add one.
    let weight = |tile: usize| {
        let end = ((tile + 1) * KEYS).min(dims.rows_k);
        dims.queries_of(tile * KEYS..end).len() as u128 + 1
    };
    let total: u128 = (0..tiles).map(weight).sum();
    let (mut parts, mut start, mut sum) = (Vec::new(), 0, 0);
    for tile in 0..tiles {
        sum += weight(tile);
        let done = parts.len() as u128 + 1;
        if sum * count as u128 >= done * total || tile + 1 == tiles {
            parts.push(start..tile + 1);
            start = tile + 1;
        }
    }
    parts
}

/// Returns the number of f32s of the shared and of the private scratch of a call.
#[cfg(test)]
pub(super) fn scratch_of(dims: AttentionDims, view: View<f32>) -> [usize; 2] {
    let call = Backward {
        dims,
        blocks: Blocks::detect(),
        level: crate::vmath::detect(),
        inputs: [view; 6],
        outputs: [view; 3],
        parts: parts(&dims),
    };
    [call.shared_len(), scratch_len(&call.private_lens())]
}

/// A tile of keys and values, and their gradients, in private scratch.
struct KeyTile<'a> {
    keys: Range<usize>,
    packed: [&'a mut [f32]; 3],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

impl Backward {
    /// Returns the number of `f32`s of the shared scratch: sums of the query gradients for each head and part.
    fn shared_len(&self) -> usize {
        let d = &self.dims;
        d.batch * d.heads * self.parts.len() * d.rows_q * d.head_dim
    }

    /// Returns the lengths of the sections of private scratch: packed transposed keys, packed transposed values and
    /// packed keys of a tile; gradients of its keys and of its values; queries of a tile and the gradients of its
    /// results; scores and their gradients.
    fn private_lens(&self) -> [usize; 9] {
        let d = &self.dims;
        let (keys, queries, width) = (KEYS.min(d.rows_k), QUERIES.min(d.rows_q), d.head_dim);
        let across = self.blocks.packed_len(width, keys);
        let along = self.blocks.packed_len(keys, width);
        let (kv, q, scores) = (keys * width, queries * width, queries * KEYS);
        [across, across, along, kv, kv, q, q, scores, scores]
    }

    /// Returns the sums of the query gradients of a head for one part of the keys, in rows of `head_dim` elements.
    ///
    /// # Safety
    /// The head and the part must exist, and only the caller may use the sums meanwhile.
    unsafe fn sums<'a>(&self, cx: &RunCx, head: usize, part: usize) -> &'a mut [f32] {
        let len = self.dims.rows_q * self.dims.head_dim;
        // SAFETY: the sums are within the shared scratch.
        unsafe { std::slice::from_raw_parts_mut(cx.shared.add((head * self.parts.len() + part) * len), len) }
    }

    /// Computes the gradients of some keys and values of a head, and their contributions to the query gradients.
    ///
    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn keys(&self, task: usize, cx: &RunCx) {
        let (d, width) = (&self.dims, self.dims.head_dim);
        let heads = d.batch * d.kv_heads;
        let (part, index) = (task / heads, task % heads);
        let (entry, kv_head) = (index / d.kv_heads, index % d.kv_heads);
        let at = [entry, kv_head, d.kv_heads];
        let [_, k, v, ..] = self.inputs.map(|view| Head::of(view, d.rows_k, at, width));
        let [_, dk_out, dv_out] = self.outputs.map(|view| Head::of(view, d.rows_k, at, width));
        let own_heads = kv_head * d.group()..(kv_head + 1) * d.group();
        for head in own_heads.clone() {
            // SAFETY: only this task uses the sums of its heads in its part.
            unsafe { self.sums(cx, entry * d.heads + head, part).fill(0.0) };
        }
        for tile in self.parts[part].clone() {
            let keys = tile * KEYS..((tile + 1) * KEYS).min(d.rows_k);
            let count = keys.len();
            // SAFETY: private scratch has the requested size, and this dispatch does not write the operands.
            unsafe {
                let [k_across, v_across, k_along, dk, dv, q, dout, scores, dp] =
                    scratch(cx.private, self.private_lens());
                let (k_start, v_start) = (k.pointer(keys.start), v.pointer(keys.start));
                let blocks = &self.blocks;
                blocks.pack(k_start, k.transposed(), width, count, k_across.as_mut_ptr());
                blocks.pack(v_start, v.transposed(), width, count, v_across.as_mut_ptr());
                blocks.pack(k_start, k.strides(), count, width, k_along.as_mut_ptr());
                dk.fill(0.0);
                dv.fill(0.0);
                let mut key_tile = KeyTile {
                    keys: keys.clone(),
                    packed: [k_across, v_across, k_along],
                    dk,
                    dv,
                };
                for head in own_heads.clone() {
                    let sums = self.sums(cx, entry * d.heads + head, part);
                    let tiles = [&mut *q, &mut *dout, &mut *scores, &mut *dp];
                    self.head([entry, head], &mut key_tile, tiles, sums);
                }
                for (row, key) in keys.enumerate() {
                    let own = row * width..(row + 1) * width;
                    dk_out.get_mut(key).copy_from_slice(&key_tile.dk[own.clone()]);
                    dv_out.get_mut(key).copy_from_slice(&key_tile.dv[own]);
                }
            }
        }
    }

    /// Processes the queries of one head with a tile of keys. Adds to the gradients of the keys and values, and to
    /// the sums of the query gradients.
    ///
    /// # Safety
    /// As for `Kernel::run`, for a head and keys that exist.
    unsafe fn head(
        &self,
        [entry, head]: [usize; 2],
        tile: &mut KeyTile,
        [q, dout, scores, dp]: [&mut [f32]; 4],
        sums: &mut [f32],
    ) {
        let (d, width, blocks) = (&self.dims, self.dims.head_dim, &self.blocks);
        let at = [entry, head, d.heads];
        let (all_q, all_dout) = (
            Head::of(self.inputs[0], d.rows_q, at, width),
            Head::of(self.inputs[5], d.rows_q, at, width),
        );
        let queries = d.queries_of(tile.keys.clone());
        let cols = tile.keys.len();
        for first in queries.clone().step_by(QUERIES) {
            let count = QUERIES.min(queries.end - first);
            let row = (entry * d.heads + head) * d.rows_q + first;
            let part = Tile {
                dims: d,
                query: first,
                rows: count,
                key: tile.keys.start,
                cols,
            };
            // SAFETY: this dispatch does not write the operands, and the blocks have these sizes.
            unsafe {
                all_q.copy(first..first + count, d.scale as f32, q);
                all_dout.copy(first..first + count, 1.0, dout);
                let [k_across, v_across] = [0, 1].map(|i| blocks.packed(tile.packed[i].as_ptr(), width));
                let k_along = blocks.packed(tile.packed[2].as_ptr(), cols);
                let size = [count, cols, width];
                blocks.multiply(rows(q, width), k_across, target(scores, KEYS, false), size);
                blocks.multiply(rows(dout, width), v_across, target(dp, KEYS, false), size);
                let [lse, delta] = [3, 4].map(|i: usize| self.inputs[i].slice(row..row + count));
                gradient_step(self.level, scores, dp, [lse, delta], part);
                let size = [cols, width, count];
                let (dv, dk) = (target(tile.dv, width, true), target(tile.dk, width, true));
                let dout = blocks.in_place(dout.as_ptr(), width);
                blocks.multiply(columns(scores, KEYS), dout, dv, size);
                let q = blocks.in_place(q.as_ptr(), width);
                blocks.multiply(columns(dp, KEYS), q, dk, size);
                let sums = target(&mut sums[first * width..], width, true);
                blocks.multiply(rows(dp, KEYS), k_along, sums, [count, width, cols]);
            }
        }
    }

    /// Computes the query gradients of some queries of all heads from the sums of all parts.
    ///
    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn queries(&self, task: usize, cx: &RunCx) {
        let (d, width) = (&self.dims, self.dims.head_dim);
        let tiles = d.rows_q.div_ceil(QUERIES);
        let (entry, tile) = (task / tiles, task % tiles);
        let stride = d.rows_q * width;
        for row in tile * QUERIES..((tile + 1) * QUERIES).min(d.rows_q) {
            for head in 0..d.heads {
                let dq = Head::of(self.outputs[0], d.rows_q, [entry, head, d.heads], width);
                let first = (entry * d.heads + head) * self.parts.len() * stride + row * width;
                let len = (self.parts.len() - 1) * stride + width;
                // SAFETY: the first phase has ended, and only this task writes these rows of the result.
                unsafe {
                    let sums = std::slice::from_raw_parts(cx.shared.add(first).cast_const(), len);
                    scaled_sum(self.level, sums, stride, d.scale as f32, dq.get_mut(row));
                }
            }
        }
    }
}
