//! Permutations whose innermost axis differs between operand and result. They are batches of matrix transpositions,
//! computed tile by tile.
//!
//! A tile of the plane of both innermost axes is read line by line, transposed on the stack, and written line by
//! line. Every cache line is therefore accessed once and completely. Strides of powers of two, whose lines share few
//! cache sets, are as fast as all other strides.

use std::mem::MaybeUninit;

use super::strided::Nest;
use crate::kernel::{CHUNK, Compiled, RunCx, Task, rows_per_task, stream_nanos};
use crate::memory::View;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Vector};
use crate::vmath::Level;

/// An unsigned integer with the size of an element.
pub(super) trait Word: Copy + Default + Send + Sync + 'static {
    /// Returns the low bits of `bits`.
    fn of_bits(bits: u32) -> Self;

    /// Transposes the squares of a tile. `rows` and `columns` are multiples of [`SQUARE`]. Rows of `x` are `stride`
    /// elements apart, and rows of the transposed tile are [`TILE`] elements apart.
    ///
    /// # Safety
    /// All elements of both tiles must exist, and no other code may access the transposed tile.
    unsafe fn squares(level: Level, x: *const Self, stride: isize, turned: *mut Self, size: [usize; 2]);
}

impl Word for u16 {
    fn of_bits(bits: u32) -> u16 {
        bits as u16
    }

    unsafe fn squares(_: Level, x: *const u16, stride: isize, turned: *mut u16, size: [usize; 2]) {
        // SAFETY: forwarded.
        unsafe { portable_squares(x, stride, turned, size) }
    }
}

impl Word for u32 {
    fn of_bits(bits: u32) -> u32 {
        bits
    }

    unsafe fn squares(level: Level, x: *const u32, stride: isize, turned: *mut u32, size: [usize; 2]) {
        // SAFETY: forwarded; every level except the baseline has AVX2.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if level != Level::BASELINE {
                return avx2_squares(x, stride, turned, size);
            }
            let _ = level;
            portable_squares(x, stride, turned, size);
        }
    }
}

/// Number of rows and columns of a tile. A line of this length fills a few cache lines, so that not every cache line
/// is in another page. The transposed tile stays in the first-level cache.
const TILE: usize = 64;

/// Number of rows and columns of the squares that are transposed in registers.
const SQUARE: usize = 8;

/// Number of columns of a block. A task processes a block tile by tile.
const BLOCK_COLUMNS: usize = 512;

/// A plane of the operand and the result. It has the rows and columns of the result. Neighbours in a row are
/// `x_stride` apart in the operand and adjacent in the result. Neighbours in a column are adjacent in the operand and
/// `y_stride` apart in the result.
#[derive(Clone, Copy)]
struct Plane {
    rows: usize,
    columns: usize,
    x_stride: isize,
    y_stride: isize,
}

/// Compiles a copy that permutes axes. Operand 0 of the nest is `x`; operand 1 is `y`, in row-major order. The last
/// axis of `y` must not be the last axis of `x`.
pub(super) fn transpose<T: Word>(level: Level, nest: &Nest<2>, x: View<T>, y: View<T>) -> Compiled {
    let last = nest.dims.len() - 1;
    let Some(axis) = nest.strides[0].iter().position(|&s| s == 1) else {
        // The operand has at most one element. With several elements, its innermost axis would be in the nest.
        return Compiled::one(Task {
            tasks: x.len().min(1),
            nanos: 0,
            // SAFETY: this is the only task, and the operand is in another buffer.
            body: move |_, _: &RunCx| unsafe { y.slice_mut(0..1).copy_from_slice(x.slice(0..1)) },
        });
    };
    let plane = Plane {
        rows: nest.dims[axis],
        columns: nest.dims[last],
        x_stride: nest.inner_stride(0),
        y_stride: nest.strides[1][axis],
    };
    let size = plane.rows * plane.columns;
    // The remaining axes. The last one has size 1, so that each position along all other axes is a row.
    let others: Vec<usize> = (0..last).filter(|&a| a != axis).collect();
    let pick = |of: &[isize]| others.iter().map(|&a| of[a]).chain([0]).collect();
    let planes = Nest {
        dims: others.iter().map(|&a| nest.dims[a]).chain([1]).collect(),
        strides: [pick(&nest.strides[0]), pick(&nest.strides[1])],
    };
    let count = if size == 0 { 0 } else { planes.rows() };
    let block_columns = plane.columns.min(BLOCK_COLUMNS);
    let block_rows = (CHUNK / block_columns.max(1)).next_multiple_of(TILE);
    let row_blocks = plane.rows.div_ceil(block_rows);
    // A task has either some whole planes, or a block of one plane.
    let blocks = row_blocks * plane.columns.div_ceil(BLOCK_COLUMNS);
    let per_task = if blocks > 1 { 1 } else { rows_per_task(size) };
    Compiled::one(Task {
        tasks: count.div_ceil(per_task) * blocks,
        nanos: 2 * stream_nanos(2 * count * size * size_of::<T>()),
        body: move |task: usize, _: &RunCx| {
            let (group, block) = (task / blocks, task % blocks);
            let top = block % row_blocks * block_rows;
            let left = block / row_blocks * BLOCK_COLUMNS;
            let rows = top..(top + block_rows).min(plane.rows);
            let columns = left..(left + BLOCK_COLUMNS).min(plane.columns);
            planes.for_rows(group * per_task..((group + 1) * per_task).min(count), |_, [xo, yo]| {
                for r in rows.clone().step_by(TILE) {
                    for c in columns.clone().step_by(TILE) {
                        let (height, width) = (TILE.min(rows.end - r), TILE.min(columns.end - c));
                        let (r, c) = (r as isize, c as isize);
                        // SAFETY: offsets and strides come from the shapes of both tensors, so the elements exist.
                        // Tasks write different elements, and the operand is in another buffer.
                        unsafe {
                            let x = x.as_ptr().offset(xo + r + c * plane.x_stride);
                            let y = y.as_ptr().offset(yo + r * plane.y_stride + c);
                            tile(level, plane, x, y, [height, width]);
                        }
                    }
                }
            });
        },
    })
}

/// Copies a tile of at most [`TILE`] rows and columns.
///
/// # Safety
/// `x` and `y` must be valid for all elements of the tile. During the call, no other code may write the operand or access
/// the result.
unsafe fn tile<T: Word>(level: Level, plane: Plane, x: *const T, y: *mut T, [rows, columns]: [usize; 2]) {
    let mut turned = [const { MaybeUninit::<T>::uninit() }; TILE * TILE];
    let turned: *mut T = turned.as_mut_ptr().cast();
    let (square_rows, square_columns) = (rows / SQUARE * SQUARE, columns / SQUARE * SQUARE);
    // SAFETY: there are at most TILE rows and columns, so all offsets are within the buffer. The offsets in the
    // operand and the result exist by contract. Every element of the buffer is written before it is read.
    unsafe {
        T::squares(level, x, plane.x_stride, turned, [square_rows, square_columns]);
        for c in 0..columns {
            let x = x.offset(c as isize * plane.x_stride);
            let first = if c < square_columns { square_rows } else { 0 };
            for r in first..rows {
                *turned.add(r * TILE + c) = *x.add(r);
            }
        }
        for r in 0..rows {
            let (from, to) = (turned.add(r * TILE), y.offset(r as isize * plane.y_stride));
            if columns == TILE {
                std::ptr::copy_nonoverlapping(from, to, TILE);
            } else {
                std::ptr::copy_nonoverlapping(from, to, columns);
            }
        }
    }
}

/// Implements [`Word::squares`] in portable code.
///
/// # Safety
/// As for [`Word::squares`].
unsafe fn portable_squares<T: Word>(x: *const T, stride: isize, turned: *mut T, [rows, columns]: [usize; 2]) {
    for c in (0..columns).step_by(SQUARE) {
        for r in (0..rows).step_by(SQUARE) {
            // SAFETY: by contract.
            unsafe { square(x.offset(c as isize * stride).add(r), stride, turned.add(r * TILE + c)) };
        }
    }
}

/// Implements [`Word::squares`] in AVX2 registers.
///
/// # Safety
/// As for [`Word::squares`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_squares(x: *const u32, stride: isize, turned: *mut u32, [rows, columns]: [usize; 2]) {
    const { assert!(Avx2::LANES == SQUARE) };
    // Strides of a dense tensor are not negative. Float registers do not change the bits.
    let (from_row, x, turned) = (stride.unsigned_abs(), x.cast::<f32>(), turned.cast::<f32>());
    for c in (0..columns).step_by(SQUARE) {
        for r in (0..rows).step_by(SQUARE) {
            // SAFETY: by contract.
            unsafe { Avx2::transpose(x.add(c * from_row + r), from_row, turned.add(r * TILE + c), TILE) };
        }
    }
}

/// Transposes a square. Its rows are `stride` apart in `x`, and [`TILE`] apart in the result.
///
/// # Safety
/// All elements of both squares must exist.
#[inline(always)]
unsafe fn square<T: Word>(x: *const T, stride: isize, turned: *mut T) {
    let mut rows = [[T::default(); SQUARE]; SQUARE];
    for (i, row) in rows.iter_mut().enumerate() {
        // SAFETY: by contract.
        *row = unsafe { *x.offset(i as isize * stride).cast::<[T; SQUARE]>() };
    }
    let columns: [[T; SQUARE]; SQUARE] = std::array::from_fn(|j| std::array::from_fn(|i| rows[i][j]));
    for (j, column) in columns.into_iter().enumerate() {
        // SAFETY: by contract.
        unsafe { *turned.add(j * TILE).cast::<[T; SQUARE]>() = column };
    }
}
