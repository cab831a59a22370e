//! Attention in tiles. The scratch grows with the number of rows, not with the number of queries times keys.
//!
//! In the forward pass, a tile of queries iterates over the tiles of keys that are visible to it. It keeps the
//! maximum score and the sum of exponentials of each row (Milakov and Gimelshein, 2018; Dao et al., 2022). In the
//! backward pass, a tile of keys iterates over the queries that can see it. It recomputes the probabilities from the
//! saved logarithms of the sums of exponentials.

mod backward;
mod cached;
mod caches;
mod forward;
mod paged;
mod tile;

use meganeura_core::ops::AttentionDims;

use super::cached_rows::supports_attention;
use crate::gemm::{LeftBlock, Strides, Target};
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

/// Number of queries in a tile: eight matmul tiles of 6 rows, the height of an AVX2 matmul tile. With more queries,
/// the tiles along the diagonal of a causal mask would waste more work.
const QUERIES: usize = 48;
/// Number of keys in a tile. It is a multiple of the length of a SIMD vector, and so large that loads and stores of
/// results are negligible. The scores of a tile fill half of the first-level cache.
const KEYS: usize = 96;
/// Expected number of floating-point operations per nanosecond of one thread, without exponentials.
const FLOPS_PER_NANO: u64 = 30;

/// Returns the estimated nanoseconds of `products` matmuls over all visible pairs of queries and keys.
fn nanos(dims: &AttentionDims, products: u64) -> u64 {
    let pairs = dims.pairs().saturating_mul((dims.batch * dims.heads) as u64);
    pairs.saturating_mul(2 * products * dims.head_dim as u64 + 100) / FLOPS_PER_NANO
}

/// The rows of one head in an operand whose rows contain several heads.
#[derive(Clone, Copy)]
struct Head {
    view: View<f32>,
    /// Index of the first element.
    start: usize,
    /// Distance between rows, in elements.
    row: usize,
    width: usize,
}

impl Head {
    /// Returns the rows of head `head` of `heads` in batch entry `entry`, which has `rows` rows.
    fn of(view: View<f32>, rows: usize, [entry, head, heads]: [usize; 3], width: usize) -> Self {
        Head {
            view,
            start: (entry * rows * heads + head) * width,
            row: heads * width,
            width,
        }
    }

    /// Returns one row for reading.
    ///
    /// # Safety
    /// As for [`View::slice`].
    unsafe fn get<'a>(self, row: usize) -> &'a [f32] {
        let start = self.start + row * self.row;
        // SAFETY: forwarded.
        unsafe { self.view.slice(start..start + self.width) }
    }

    /// Returns one row for writing.
    ///
    /// # Safety
    /// As for [`View::slice_mut`].
    unsafe fn get_mut<'a>(self, row: usize) -> &'a mut [f32] {
        let start = self.start + row * self.row;
        // SAFETY: forwarded.
        unsafe { self.view.slice_mut(start..start + self.width) }
    }

    /// Returns the elements of `view` from the first element of the first row to the last element of the last row,
    /// for reading.
    ///
    /// # Safety
    /// As for [`View::slice`]; there must be at least one row.
    unsafe fn rows<'a>(self, rows: std::ops::Range<usize>) -> &'a [f32] {
        let (start, last) = (
            self.start + rows.start * self.row,
            self.start + (rows.end - 1) * self.row,
        );
        // SAFETY: forwarded.
        unsafe { self.view.slice(start..last + self.width) }
    }

    /// Returns the address of the first element of a row, which must exist.
    fn pointer(self, row: usize) -> *const f32 {
        self.view.as_ptr().wrapping_add(self.start + row * self.row)
    }

    fn strides(self) -> Strides {
        Strides { row: self.row, col: 1 }
    }

    /// Returns the strides of the matrix with rows and columns swapped.
    fn transposed(self) -> Strides {
        Strides { row: 1, col: self.row }
    }

    /// Copies rows, multiplied by a factor, to contiguous memory.
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

/// Returns the number of `f32`s of a scratch with slices of these lengths. Each slice begins at a cache line.
fn scratch_len(lens: &[usize]) -> usize {
    lens.iter().map(|&len| aligned(len)).sum()
}

/// Divides a scratch into slices of these lengths.
///
/// # Safety
/// The scratch must have [`scratch_len`] f32s. No other code may access it while the slices are used.
unsafe fn scratch<'a, const N: usize>(start: *mut f32, lens: [usize; N]) -> [&'a mut [f32]; N] {
    let mut at = 0;
    lens.map(|len| {
        // SAFETY: the parts are consecutive.
        let part = unsafe { std::slice::from_raw_parts_mut(start.add(at), len) };
        at += aligned(len);
        part
    })
}

/// Returns a block as the left operand of a matmul. Its rows are contiguous and `row` apart.
fn rows(block: &[f32], row: usize) -> LeftBlock {
    LeftBlock {
        start: block.as_ptr(),
        strides: Strides { row, col: 1 },
    }
}

/// Returns a block like [`rows`], but transposed.
fn columns(block: &[f32], row: usize) -> LeftBlock {
    LeftBlock {
        start: block.as_ptr(),
        strides: Strides { row: 1, col: row },
    }
}

/// Returns a block as the target of a matmul.
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

    /// Maximum scratch, as a multiple of the size of an operand. The scratch contains packed keys and values, or sums
    /// of the query gradients for each part.
    const OPERANDS: usize = 3;

    /// The scratch for 4096 rows is at most twice the scratch for 2048 rows, and a small multiple of the operands.
    #[test]
    fn scratch_grows_with_the_rows_only() {
        let view = View::new(std::ptr::NonNull::<f32>::dangling().as_ptr().cast(), 0);
        for causal in [false, true] {
            for scratch_of in [forward::scratch_of, backward::scratch_of] {
                let [short, long] = [2048, 4096].map(|rows| scratch_of(dims(rows, causal), view));
                // The last tile of keys may be shorter.
                assert!(long[0] <= 2 * short[0] + 2 * 8 * KEYS * 64, "{short:?}, then {long:?}");
                assert!(long[0] <= OPERANDS * 4096 * 8 * 64, "{long:?}");
                assert_eq!(short[1], long[1]);
                assert!(long[1] < 4096 * 64, "{long:?}");
            }
        }
    }
}
