//! Attention in tiles: scratch grows with the number of rows, never with queries times keys.
//!
//! Forwards, a tile of queries goes over the tiles of keys that it sees and keeps the greatest score and the
//! sum of exponentials of each row (Milakov and Gimelshein, 2018; Dao et al., 2022). Backwards, a tile of keys
//! goes over the queries that see it and recomputes the probabilities from the saved logarithms of those sums.

mod backward;
mod cached;
mod forward;
mod paged;
mod tile;

use meganeura_core::ops::AttentionDims;

use super::cached_rows::supports_attention;
use crate::gemm::{Left, Strides, Target};
use crate::kernel::{KernelDef, f32_only};
use crate::memory::{View, aligned};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.attention",
        supports: f32_only,
        compile: forward::compile,
    },
    KernelDef {
        name: "core.attention_grad",
        supports: f32_only,
        compile: backward::compile,
    },
    KernelDef {
        name: "core.cached_attention",
        supports: supports_attention,
        compile: cached::compile,
    },
    KernelDef {
        name: "core.paged_attention",
        supports: supports_attention,
        compile: cached::compile_paged,
    },
];

/// Queries in a tile: whole tiles of 6 rows, those of AVX2. More would leave more of the tiles along a causal
/// mask's diagonal unused.
const QUERIES: usize = 48;
/// Keys in a tile: whole vectors, and enough that loading and storing results does not matter. The scores of a
/// tile are as large as half of the first-level cache.
const KEYS: usize = 96;
/// Floating-point operations a nanosecond that one thread is expected to do, exponentials counted apart.
const FLOPS_PER_NANO: u64 = 30;

/// Nanoseconds of so many matmuls over all pairs.
fn nanos(dims: &AttentionDims, products: u64) -> u64 {
    let pairs = dims.pairs().saturating_mul((dims.batch * dims.heads) as u64);
    pairs.saturating_mul(2 * products * dims.head_dim as u64 + 100) / FLOPS_PER_NANO
}

/// The part of one head in an operand with rows of several.
#[derive(Clone, Copy)]
struct Head {
    view: View<f32>,
    /// First element.
    start: usize,
    /// Distance between rows.
    row: usize,
    width: usize,
}

impl Head {
    /// Head `head` of `heads` of one batch entry with so many rows.
    fn of(view: View<f32>, rows: usize, [entry, head, heads]: [usize; 3], width: usize) -> Self {
        Head {
            view,
            start: (entry * rows * heads + head) * width,
            row: heads * width,
            width,
        }
    }

    /// One row, to read.
    ///
    /// # Safety
    /// As for [`View::slice`].
    unsafe fn get<'a>(self, row: usize) -> &'a [f32] {
        let start = self.start + row * self.row;
        // SAFETY: forwarded.
        unsafe { self.view.slice(start..start + self.width) }
    }

    /// One row, to write.
    ///
    /// # Safety
    /// As for [`View::slice_mut`].
    unsafe fn get_mut<'a>(self, row: usize) -> &'a mut [f32] {
        let start = self.start + row * self.row;
        // SAFETY: forwarded.
        unsafe { self.view.slice_mut(start..start + self.width) }
    }

    /// From the first to the last element of some rows, to read.
    ///
    /// # Safety
    /// As for [`View::slice`]; there is at least one row.
    unsafe fn rows<'a>(self, rows: std::ops::Range<usize>) -> &'a [f32] {
        let (start, last) = (
            self.start + rows.start * self.row,
            self.start + (rows.end - 1) * self.row,
        );
        // SAFETY: forwarded.
        unsafe { self.view.slice(start..last + self.width) }
    }

    /// First element of a row that exists.
    fn pointer(self, row: usize) -> *const f32 {
        self.view.as_ptr().wrapping_add(self.start + row * self.row)
    }

    fn strides(self) -> Strides {
        Strides { row: self.row, col: 1 }
    }

    /// Of the matrix with rows and columns swapped.
    fn transposed(self) -> Strides {
        Strides { row: 1, col: self.row }
    }

    /// Copies rows to memory without gaps, times a factor.
    ///
    /// # Safety
    /// As for [`View::slice`].
    unsafe fn copy(self, rows: std::ops::Range<usize>, factor: f32, to: &mut [f32]) {
        for (row, to) in rows.zip(to.chunks_exact_mut(self.width)) {
            // SAFETY: forwarded.
            let from = unsafe { self.get(row) };
            for (to, &from) in to.iter_mut().zip(from) {
                *to = from * factor;
            }
        }
    }
}

/// f32s of scratch for parts of these lengths, each on cache lines of its own.
fn scratch_len(lens: &[usize]) -> usize {
    lens.iter().map(|&len| aligned(len)).sum()
}

/// The parts of a scratch.
///
/// # Safety
/// It has [`scratch_len`] f32s, which are the caller's own for as long as the slices are used.
unsafe fn scratch<'a, const N: usize>(start: *mut f32, lens: [usize; N]) -> [&'a mut [f32]; N] {
    let mut at = 0;
    lens.map(|len| {
        // SAFETY: the parts lie one after the other.
        let part = unsafe { std::slice::from_raw_parts_mut(start.add(at), len) };
        at += aligned(len);
        part
    })
}

/// A block with contiguous rows as the left operand of a matmul.
fn rows(block: &[f32], row: usize) -> Left {
    Left {
        start: block.as_ptr(),
        strides: Strides { row, col: 1 },
    }
}

/// The same block transposed.
fn columns(block: &[f32], row: usize) -> Left {
    Left {
        start: block.as_ptr(),
        strides: Strides { row: 1, col: row },
    }
}

/// A block as the result of a matmul.
fn target(block: &mut [f32], row: usize, add: bool) -> Target {
    Target {
        start: block.as_mut_ptr(),
        row,
        add,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(rows: usize, causal: bool) -> AttentionDims {
        AttentionDims {
            batch: 1,
            rows_q: rows,
            rows_k: rows,
            heads: 8,
            kv_heads: 8,
            head_dim: 64,
            causal,
            window: 0,
            scale: 0.125,
        }
    }

    /// Packed keys and values, or as many sums of the queries' gradients as there are parts.
    const OPERANDS: usize = 3;

    /// Scratch of 4096 rows is at most twice that of 2048, and a small multiple of the operands.
    #[test]
    fn scratch_grows_with_the_rows_only() {
        let view = View::new(std::ptr::NonNull::<f32>::dangling().as_ptr().cast(), 0);
        for causal in [false, true] {
            for scratch_of in [forward::scratch_of, backward::scratch_of] {
                let [short, long] = [2048, 4096].map(|rows| scratch_of(dims(rows, causal), view));
                // The last tile of keys may be a short one.
                assert!(long[0] <= 2 * short[0] + 2 * 8 * KEYS * 64, "{short:?}, then {long:?}");
                assert!(long[0] <= OPERANDS * 4096 * 8 * 64, "{long:?}");
                assert_eq!(short[1], long[1]);
                assert!(long[1] < 4096 * 64, "{long:?}");
            }
        }
    }
}
