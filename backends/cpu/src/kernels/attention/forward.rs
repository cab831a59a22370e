//! The forward pass of attention.

use meganeura_core::ops::AttentionDims;

use super::tile::{Tile, logarithms, softmax_step};
use super::{Head, KEYS, QUERIES, nanos, rows, scratch, scratch_len, target};
use crate::gemm::Blocks;
use crate::kernel::{CompileCx, Compiled, RunCx, Task, stream_nanos};
use crate::memory::{View, aligned};
use crate::vmath::Level;

/// A call of the forward pass. The first phase packs keys and values for the matmuls. In the second phase, tiles of
/// queries are independent.
#[derive(Clone, Copy)]
struct Forward {
    dims: AttentionDims,
    blocks: Blocks,
    level: Level,
    q: View<f32>,
    k: View<f32>,
    v: View<f32>,
    out: View<f32>,
    lse: View<f32>,
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let [q, k, v] = [0, 1, 2].map(|i| cx.input::<f32>(i));
    let [out, lse] = [0, 1].map(|i| cx.output::<f32>(i));
    let call = Forward {
        dims: AttentionDims::of(&cx.call())?,
        blocks: Blocks::detect(),
        level: cx.level,
        q,
        k,
        v,
        out,
        lse,
    };
    let pack = Task {
        tasks: call.pack_tasks(),
        nanos: stream_nanos(16 * (k.len() + v.len())),
        // SAFETY: the contract of `Kernel::run`.
        body: move |task: usize, cx: &RunCx| unsafe { call.pack(task, cx) },
    };
    let attend = Task {
        tasks: call.tasks(),
        nanos: nanos(&call.dims, 2),
        // SAFETY: as above.
        body: move |task: usize, cx: &RunCx| unsafe { call.attend(task, cx) },
    };
    Ok(Compiled {
        phases: vec![Box::new(pack), Box::new(attend)],
        shared: call.shared_len(),
        private: scratch_len(&call.private_lens()),
    })
}

/// Returns the number of f32s of the shared and of the private scratch of a call.
#[cfg(test)]
pub(super) fn scratch_of(dims: AttentionDims, view: View<f32>) -> [usize; 2] {
    let call = Forward {
        dims,
        blocks: Blocks::detect(),
        level: crate::vmath::detect(),
        q: view,
        k: view,
        v: view,
        out: view,
        lse: view,
    };
    [call.shared_len(), scratch_len(&call.private_lens())]
}

impl Forward {
    /// Returns the number of key tiles of a head.
    fn key_tiles(&self) -> usize {
        self.dims.rows_k.div_ceil(KEYS)
    }

    /// Returns the number of query tiles of a head.
    fn query_tiles(&self) -> usize {
        self.dims.rows_q.div_ceil(QUERIES)
    }

    fn tasks(&self) -> usize {
        self.dims.batch * self.dims.heads * self.query_tiles()
    }

    fn pack_tasks(&self) -> usize {
        if self.tasks() == 0 {
            return 0;
        }
        self.dims.batch * self.dims.kv_heads * self.key_tiles()
    }

    /// Returns the number of `f32`s of the packed keys and of the packed values of a tile.
    fn packed_lens(&self) -> [usize; 2] {
        let (keys, width) = (KEYS.min(self.dims.rows_k), self.dims.head_dim);
        [
            aligned(self.blocks.packed_len(width, keys)),
            aligned(self.blocks.packed_len(keys, width)),
        ]
    }

    fn shared_len(&self) -> usize {
        self.pack_tasks() * self.packed_lens().iter().sum::<usize>()
    }

    /// Returns the lengths of a tile's queries, scores and results, and of the maximum score and the sum of each row.
    fn private_lens(&self) -> [usize; 5] {
        let (rows, width) = (QUERIES.min(self.dims.rows_q), self.dims.head_dim);
        [rows * width, rows * KEYS, rows * width, rows, rows]
    }

    /// Returns the addresses of the packed keys and the packed values of a tile. They are adjacent in shared scratch.
    ///
    /// # Safety
    /// The head and the tile must exist.
    unsafe fn packed(&self, cx: &RunCx, head: usize, tile: usize) -> [*mut f32; 2] {
        let [keys, values] = self.packed_lens();
        let start = (head * self.key_tiles() + tile) * (keys + values);
        // SAFETY: the addresses are within the shared scratch, which has room for all tiles of all heads.
        unsafe { [cx.shared.add(start), cx.shared.add(start + keys)] }
    }

    /// Packs a tile of keys and values.
    ///
    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn pack(&self, task: usize, cx: &RunCx) {
        let dims = &self.dims;
        let (index, tile) = (task / self.key_tiles(), task % self.key_tiles());
        let at = [index / dims.kv_heads, index % dims.kv_heads, dims.kv_heads];
        let [k, v] = [self.k, self.v].map(|view| Head::of(view, dims.rows_k, at, dims.head_dim));
        let first = tile * KEYS;
        let keys = KEYS.min(dims.rows_k - first);
        // SAFETY: the rows belong to the operands, and only this task writes this part of the scratch.
        unsafe {
            let [packed_k, packed_v] = self.packed(cx, index, tile);
            let width = dims.head_dim;
            self.blocks
                .pack(k.pointer(first), k.transposed(), width, keys, packed_k);
            self.blocks.pack(v.pointer(first), v.strides(), keys, width, packed_v);
        }
    }

    /// Computes the results of a tile of queries of a head.
    ///
    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn attend(&self, task: usize, cx: &RunCx) {
        let dims = &self.dims;
        let heads = dims.batch * dims.heads;
        // With a causal mask, the last queries take longest: their tasks come first.
        let (tile, index) = (self.query_tiles() - 1 - task / heads, task % heads);
        let (entry, head) = (index / dims.heads, index % dims.heads);
        let kv_index = entry * dims.kv_heads + head / dims.group();
        let first = tile * QUERIES;
        let count = QUERIES.min(dims.rows_q - first);
        let width = dims.head_dim;
        let at = [entry, head, dims.heads];
        let (q, result) = (
            Head::of(self.q, dims.rows_q, at, width),
            Head::of(self.out, dims.rows_q, at, width),
        );
        // SAFETY: private scratch has the requested size, and this dispatch does not write the operands.
        let [queries, scores, out, greatest, sums] = unsafe { scratch(cx.private, self.private_lens()) };
        // SAFETY: as above.
        unsafe { q.copy(first..first + count, dims.scale as f32, queries) };
        greatest.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        let keys = dims.keys_of(first).start..dims.keys_of(first + count - 1).end;
        for key_tile in keys.start / KEYS..keys.end.div_ceil(KEYS) {
            let key = key_tile * KEYS;
            let in_tile = KEYS.min(dims.rows_k - key);
            let cols = in_tile.min(keys.end - key);
            let later = key > keys.start;
            let part = Tile {
                dims,
                query: first,
                rows: count,
                key,
                cols,
            };
            // SAFETY: the first phase has packed this tile; scratch and tile have these sizes.
            unsafe {
                let [packed_k, packed_v] = self.packed(cx, kv_index, key_tile);
                let packed_k = self.blocks.packed(packed_k, width);
                let packed_v = self.blocks.packed(packed_v, in_tile);
                let to = target(scores, KEYS, false);
                self.blocks
                    .multiply(rows(queries, width), packed_k, to, [count, cols, width]);
                let so_far = if later { Some(&mut *out) } else { None };
                softmax_step(self.level, scores, [&mut *greatest, &mut *sums], so_far, part);
                let to = target(out, width, later);
                self.blocks
                    .multiply(rows(scores, KEYS), packed_v, to, [count, width, cols]);
            }
        }
        let at = index * dims.rows_q + first;
        // SAFETY: only this task writes these rows of the results.
        logarithms(self.level, greatest, &mut sums[..count], unsafe {
            self.lse.slice_mut(at..at + count)
        });
        for (row, (out, inverse)) in out.chunks_exact(width).zip(&sums[..count]).enumerate() {
            // SAFETY: as above.
            let to = unsafe { result.get_mut(first + row) };
            for (to, out) in to.iter_mut().zip(out) {
                *to = out * inverse;
            }
        }
    }
}
