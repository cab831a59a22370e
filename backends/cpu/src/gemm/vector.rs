//! Products of a vector with a matrix. Each element of the matrix is used once,
//! so all that counts is to read it at the speed of memory.

use super::simd::Vector;

/// Matrix rows that [`stream`] adds up at once.
const ROWS: usize = 8;
/// Running sums of [`dots`], to keep the arithmetic units busy.
const SUMS: usize = 4;

/// `y[cols] = x[k] · matrix[k, cols]` for a matrix with contiguous rows, which are
/// `row` f32s apart. `y` should fit in the first-level cache.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the pointers must be valid for the
/// lengths named, and nobody else may access `y` meanwhile.
#[inline(always)]
pub(super) unsafe fn stream<V: Vector>(
    x: *const f32,
    matrix: *const f32,
    row: usize,
    k: usize,
    cols: usize,
    y: *mut f32,
) {
    // SAFETY: `y` has `cols` f32s; the groups of rows end at `k`.
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

/// Adds `N` rows of the matrix, each times its element of `x`, to `y`.
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

/// `y[cols] = x[k] · matrix[k, cols]` for a matrix with contiguous columns, which
/// are `column` f32s apart.
///
/// Column by column: several at once would save reads of `x`, but the memory is
/// faster when it is read in one run.
///
/// # Safety
///
/// As for [`stream`].
#[inline(always)]
pub(super) unsafe fn dots<V: Vector>(
    x: *const f32,
    matrix: *const f32,
    column: usize,
    k: usize,
    cols: usize,
    y: *mut f32,
) {
    for j in 0..cols {
        // SAFETY: column `j`.
        unsafe { *y.add(j) = dot::<V>(x, matrix.add(j * column), k) };
    }
}

/// The scalar product of two vectors of `k` f32s.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, and the pointers must be valid for `k`
/// f32s.
#[inline(always)]
unsafe fn dot<V: Vector>(x: *const f32, y: *const f32, k: usize) -> f32 {
    // SAFETY: all reads end at `k`, the last with the help of a mask.
    unsafe {
        let mut sums = [V::zero(); SUMS];
        let mut p = 0;
        while p + SUMS * V::LANES <= k {
            for (s, sum) in sums.iter_mut().enumerate() {
                let at = p + s * V::LANES;
                *sum = V::load(y.add(at)).mul_add(V::load(x.add(at)), *sum);
            }
            p += SUMS * V::LANES;
        }
        while p + V::LANES <= k {
            sums[0] = V::load(y.add(p)).mul_add(V::load(x.add(p)), sums[0]);
            p += V::LANES;
        }
        if p < k {
            let mask = V::mask(k - p);
            sums[1] = V::load_masked(y.add(p), mask).mul_add(V::load_masked(x.add(p), mask), sums[1]);
        }
        let [a, b, c, d] = sums;
        a.add(b).add(c.add(d)).sum()
    }
}
