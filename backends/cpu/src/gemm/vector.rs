//! Matmuls of a vector, or of a few rows, with a matrix. Each element of the matrix is read once, so they are
//! memory-bound.

use crate::simd::Vector;

/// Number of matrix rows that [`stream`] adds to `y` in one pass.
const ROWS: usize = 8;
/// Computes `y[cols] = x[k] · matrix[k, cols]` for a matrix with contiguous rows that are `row`
/// f32s apart. `y` should fit in the first-level cache.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the pointers must be valid for these lengths, and no
/// other code may access `y` meanwhile.
#[inline(always)]
pub(super) unsafe fn stream<V: Vector>(
    x: *const f32,
    matrix: *const f32,
    row: usize,
    k: usize,
    cols: usize,
    y: *mut f32,
) {
    // SAFETY: `y` has `cols` f32s, and the groups of rows end at `k`.
    unsafe {
        std::ptr::write_bytes(y, 0, cols);
        let mut p = 0;
        while p + ROWS <= k {
            add_rows::<V, ROWS>(x.add(p), matrix.add(p * row), row, cols, y);
            p += ROWS;
        }
        while p < k {
            add_rows::<V, 1>(x.add(p), matrix.add(p * row), row, cols, y);
            p += 1;
        }
    }
}

/// Adds `N` rows of the matrix to `y`, each multiplied by its element of `x`.
///
/// # Safety
///
/// As for [`stream`], with `k == N`.
#[inline(always)]
unsafe fn add_rows<V: Vector, const N: usize>(x: *const f32, matrix: *const f32, row: usize, cols: usize, y: *mut f32) {
    // SAFETY: N elements of `x`, N rows and `cols` columns of the matrix; the
    // mask keeps the last vector within `cols`.
    unsafe {
        let mut factors = [V::zero(); N];
        for (i, factor) in factors.iter_mut().enumerate() {
            *factor = V::splat(x.add(i));
        }
        let mut j = 0;
        while j + V::LANES <= cols {
            let mut sum = V::load(y.add(j));
            for (i, factor) in factors.iter().enumerate() {
                sum = V::load(matrix.add(i * row + j)).mul_add(*factor, sum);
            }
            sum.store(y.add(j));
            j += V::LANES;
        }
        if j < cols {
            let mask = V::mask(cols - j);
            let mut sum = V::load_masked(y.add(j), mask);
            for (i, factor) in factors.iter().enumerate() {
                sum = V::load_masked(matrix.add(i * row + j), mask).mul_add(*factor, sum);
            }
            sum.store_masked(y.add(j), mask);
        }
    }
}

/// Computes `y[M, cols] = x[M, k] · matrix[k, cols]` for a matrix with contiguous columns. `distances` are the
/// distances between rows of `x`, between columns of the matrix, and between rows of `y`, in f32s. Each row has `S`
/// running sums, which keep the arithmetic units busy. `S` must be a power of two.
///
/// The columns are processed one by one. Several at once would save reads of `x`, but memory is faster when it is
/// read in one stream.
///
/// # Safety
///
/// As for [`stream`].
#[inline(always)]
pub(super) unsafe fn dots<V: Vector, const M: usize, const S: usize>(
    x: *const f32,
    matrix: *const f32,
    [x_row, column, y_row]: [usize; 3],
    [k, cols]: [usize; 2],
    y: *mut f32,
) {
    for j in 0..cols {
        // SAFETY: column `j` of the matrix and of `y`.
        unsafe {
            let sums = dot::<V, M, S>([x, matrix.add(j * column)], x_row, k);
            for (row, sum) in sums.into_iter().enumerate() {
                *y.add(row * y_row + j) = sum;
            }
        }
    }
}

/// Returns the dot products of `M` vectors with one vector. All vectors have `k` f32s.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set. The pointers must be valid for `k` f32s; the `M` vectors start `x_row`
/// f32s apart.
#[inline(always)]
unsafe fn dot<V: Vector, const M: usize, const S: usize>([x, y]: [*const f32; 2], x_row: usize, k: usize) -> [f32; M] {
    const { assert!(S.is_power_of_two()) };
    // SAFETY: all reads end at `k`; the last one is masked.
    unsafe {
        let mut sums = [[V::zero(); S]; M];
        let mut p = 0;
        while p + S * V::LANES <= k {
            for s in 0..S {
                let at = p + s * V::LANES;
                let factor = V::load(y.add(at));
                for (row, sums) in sums.iter_mut().enumerate() {
                    sums[s] = factor.mul_add(V::load(x.add(row * x_row + at)), sums[s]);
                }
            }
            p += S * V::LANES;
        }
        while p + V::LANES <= k {
            let factor = V::load(y.add(p));
            for (row, sums) in sums.iter_mut().enumerate() {
                sums[0] = factor.mul_add(V::load(x.add(row * x_row + p)), sums[0]);
            }
            p += V::LANES;
        }
        if p < k {
            let mask = V::mask(k - p);
            let factor = V::load_masked(y.add(p), mask);
            for (row, sums) in sums.iter_mut().enumerate() {
                let last = &mut sums[1 % S];
                *last = factor.mul_add(V::load_masked(x.add(row * x_row + p), mask), *last);
            }
        }
        let mut totals = [0.0; M];
        for (total, mut sums) in totals.iter_mut().zip(sums) {
            let mut count = S / 2;
            while count > 0 {
                for i in 0..count {
                    sums[i] = sums[2 * i].add(sums[2 * i + 1]);
                }
                count /= 2;
            }
            *total = sums[0].sum();
        }
        totals
    }
}
