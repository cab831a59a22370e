//! Sliding windows over padded planes, for depthwise convolution and pooling.
//!
//! Rows of a plane are copied to scratch with their padding. Columns with the same offset modulo the stride become
//! adjacent. The inputs of a tap for neighbouring windows are then contiguous for any stride and padding, and a vector
//! of results stays in registers during all taps.

use std::ops::Range;

use crate::memory::aligned;
use crate::vmath::{Isa, Level, mul_add, multiversion};

/// Number of results that are computed together.
pub(in crate::kernels) const LANES: usize = 16;
/// Maximum number of `f32`s of padded rows that are copied at a time, so that they stay in cache. A single row of
/// windows may need more.
const STRIP_LEN: usize = 32 * 1024;

/// The windows along one axis of a plane. Element `i` is at position `i * spread + offset` of the padded axis; window
/// `o` reads the positions `o * stride + k * dilation` for all taps `k`.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Axis {
    pub(in crate::kernels) elements: usize,
    pub(in crate::kernels) windows: usize,
    pub(in crate::kernels) taps: usize,
    pub(in crate::kernels) stride: usize,
    pub(in crate::kernels) dilation: usize,
    pub(in crate::kernels) spread: usize,
    pub(in crate::kernels) offset: isize,
}

impl Axis {
    /// Returns the axis of the transposed operation, in which windows and elements are swapped. Taps are in reverse
    /// order.
    pub(in crate::kernels) fn transposed(self) -> Self {
        Axis {
            elements: self.windows,
            windows: self.elements,
            stride: 1,
            spread: self.stride,
            offset: ((self.taps - 1) * self.dilation) as isize - self.offset,
            ..self
        }
    }

    /// Returns the number of positions that are covered by `windows` consecutive windows.
    fn extent(&self, windows: usize) -> usize {
        windows.saturating_sub(1) * self.stride + (self.taps - 1) * self.dilation + 1
    }

    /// Returns the range of elements at the positions of a range.
    fn elements_at(&self, positions: Range<usize>) -> Range<usize> {
        let first_from = |position: usize| {
            let distance = (position as isize - self.offset).max(0) as usize;
            distance.div_ceil(self.spread).min(self.elements)
        };
        first_from(positions.start)..first_from(positions.end)
    }

    /// Returns the position of an element. It must not be negative.
    fn position(&self, element: usize) -> usize {
        ((element * self.spread) as isize + self.offset) as usize
    }
}

/// Sliding windows over a plane. Either the stride or the spread of the columns is 1.
#[derive(Clone, Debug)]
pub(in crate::kernels) struct Plane {
    pub(in crate::kernels) rows: Axis,
    pub(in crate::kernels) columns: Axis,
    /// Length of a padded row, and number of columns of a padded row with the same offset modulo the stride.
    row_len: usize,
    part_len: usize,
    /// Maximum number of rows of windows in a strip. Strips are processed one at a time.
    strip: usize,
    /// Offset in scratch of the input of each tap for the first window of a row. Taps are in the order of the
    /// kernel's elements.
    pub(in crate::kernels) taps: Vec<usize>,
}

impl Plane {
    pub(in crate::kernels) fn new(rows: Axis, columns: Axis) -> Self {
        let split = columns.stride;
        let part_len = columns.extent(columns.windows).div_ceil(split);
        let row_len = part_len * split;
        let spare = (STRIP_LEN / row_len).saturating_sub(rows.extent(1));
        let column_at = |k: usize| k * columns.dilation % split * part_len + k * columns.dilation / split;
        let taps = (0..rows.taps).flat_map(|j| (0..columns.taps).map(move |k| (j, k)));
        Plane {
            rows,
            columns,
            row_len,
            part_len,
            strip: (spare / rows.stride + 1).min(rows.windows.max(1)),
            taps: taps.map(|(j, k)| j * rows.dilation * row_len + column_at(k)).collect(),
        }
    }

    /// Returns the transposed plane, for gradients: windows and elements are swapped. Taps are in the order of the
    /// kernel's elements.
    pub(in crate::kernels) fn transposed(rows: Axis, columns: Axis) -> Self {
        let mut plane = Plane::new(rows.transposed(), columns.transposed());
        plane.taps.reverse();
        plane
    }

    /// Returns the number of `f32`s of the scratch for a strip: its padded rows, and the rest of the last vector
    /// after them.
    pub(in crate::kernels) fn scratch_len(&self) -> usize {
        aligned(self.rows.extent(self.strip) * self.row_len + LANES)
    }

    /// Returns the number of strips.
    pub(in crate::kernels) fn strips(&self) -> usize {
        self.rows.windows.div_ceil(self.strip)
    }

    /// Returns the range of rows of windows in a strip.
    pub(in crate::kernels) fn strip(&self, index: usize) -> Range<usize> {
        index * self.strip..((index + 1) * self.strip).min(self.rows.windows)
    }

    /// Returns the number of elements of the plane.
    pub(in crate::kernels) fn elements(&self) -> usize {
        self.rows.elements * self.columns.elements
    }

    pub(in crate::kernels) fn windows(&self) -> usize {
        self.rows.windows * self.columns.windows
    }

    /// Copies the elements that a strip's windows read to `scratch`, with their padding.
    pub(in crate::kernels) fn load(&self, x: &[f32], strip: &Range<usize>, padding: f32, scratch: &mut [f32]) {
        scratch.fill(padding);
        let first = strip.start * self.rows.stride;
        let width = self.columns.elements;
        let columns = self.columns.elements_at(0..self.columns.extent(self.columns.windows));
        for row in self.rows.elements_at(first..first + self.rows.extent(strip.len())) {
            let to = &mut scratch[(self.rows.position(row) - first) * self.row_len..][..self.row_len];
            let from = &x[row * width..][columns.clone()];
            if from.is_empty() {
                continue;
            }
            let start = self.columns.position(columns.start);
            match (self.columns.stride, self.columns.spread) {
                (1, 1) => to[start..start + from.len()].copy_from_slice(from),
                (1, spread) => to[start..]
                    .iter_mut()
                    .step_by(spread)
                    .zip(from)
                    .for_each(|(t, &x)| *t = x),
                (2, _) => {
                    let (even, odd) = to.split_at_mut(self.part_len);
                    let [first, second] = if start.is_multiple_of(2) {
                        [even, odd]
                    } else {
                        [odd, even]
                    };
                    let (first, second) = (&mut first[start / 2..], &mut second[start.div_ceil(2)..]);
                    let (pairs, rest) = from.as_chunks::<2>();
                    for ((a, b), &[x, y]) in first.iter_mut().zip(second).zip(pairs) {
                        (*a, *b) = (x, y);
                    }
                    if let [x] = rest {
                        first[pairs.len()] = *x;
                    }
                }
                (split, _) => {
                    for (skip, position) in (start..start + split.min(from.len())).enumerate() {
                        let to = &mut to[position % split * self.part_len + position / split..];
                        to.iter_mut()
                            .zip(from[skip..].iter().step_by(split))
                            .for_each(|(t, &x)| *t = x);
                    }
                }
            }
        }
    }

    /// Returns the inputs of a row of windows. The input of tap `t` for window `o` is at index `taps[t] + o`.
    pub(in crate::kernels) fn row<'a>(&self, scratch: &'a [f32], strip: &Range<usize>, row: usize) -> &'a [f32] {
        &scratch[(row - strip.start) * self.row_step()..]
    }

    /// Returns the distance between rows of windows in scratch.
    pub(in crate::kernels) fn row_step(&self) -> usize {
        self.rows.stride * self.row_len
    }

    /// Adds the weighted taps of a loaded strip to its results.
    pub(in crate::kernels) fn correlate(
        &self,
        level: Level,
        scratch: &[f32],
        strip: &Range<usize>,
        weights: &[f32],
        out: &mut [f32],
    ) {
        let width = self.columns.windows.max(1);
        let mut row = strip.start;
        let (together, rest) = out.split_at_mut(strip.len() / UNROLL * UNROLL * width);
        for out in together.chunks_exact_mut(UNROLL * width) {
            let x = self.row(scratch, strip, row);
            correlate_together(level, x, self.row_step(), &self.taps, weights, out);
            row += UNROLL;
        }
        for out in rest.chunks_exact_mut(width) {
            correlate_row(level, self.row(scratch, strip, row), 0, &self.taps, weights, out);
            row += 1;
        }
    }
}

/// Number of rows of windows that are computed together. They share the weights, and their independent sums hide the
/// latency of an addition.
const UNROLL: usize = 4;

multiversion! {
    fn correlate_together(x: &[f32], row_step: usize, taps: &[usize], weights: &[f32], out: &mut [f32])
        = correlate_together_body;
}

multiversion! {
    fn correlate_row(x: &[f32], row_step: usize, taps: &[usize], weights: &[f32], out: &mut [f32]) = correlate_row_body;
}

#[inline(always)]
fn correlate_together_body<const FMA: bool>(
    x: &[f32],
    row_step: usize,
    taps: &[usize],
    weights: &[f32],
    out: &mut [f32],
) {
    correlate_rows::<FMA, UNROLL>(x, row_step, taps, weights, out);
}

#[inline(always)]
fn correlate_row_body<const FMA: bool>(x: &[f32], row_step: usize, taps: &[usize], weights: &[f32], out: &mut [f32]) {
    correlate_rows::<FMA, 1>(x, row_step, taps, weights, out);
}

/// Adds the weighted taps of `ROWS` consecutive rows of windows to their results.
#[inline(always)]
fn correlate_rows<const FMA: bool, const ROWS: usize>(
    x: &[f32],
    row_step: usize,
    taps: &[usize],
    weights: &[f32],
    out: &mut [f32],
) {
    let width = out.len() / ROWS;
    let reach = taps.iter().max().map_or(0, |tap| tap + (ROWS - 1) * row_step);
    // One check for all vectors: the loops below do not check bounds.
    assert!(
        x.len() >= reach + width.next_multiple_of(LANES),
        "a window left its plane"
    );
    for start in (0..width).step_by(LANES) {
        let mut sums = [[0.0; LANES]; ROWS];
        for (&tap, &w) in taps.iter().zip(weights) {
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: `tap + row * row_step` is at most `reach`, and `start + LANES` is at most the width in
                // whole vectors. Both were checked above.
                let x = unsafe { &*x.as_ptr().add(tap + row * row_step + start).cast::<[f32; LANES]>() };
                for (sum, &x) in sums.iter_mut().zip(x) {
                    *sum = mul_add::<FMA>(w, x, *sum);
                }
            }
        }
        let len = LANES.min(width - start);
        for (row, sums) in sums.iter().enumerate() {
            let out = &mut out[row * width + start..];
            match out.first_chunk_mut::<LANES>() {
                // Elements of the next row stay unchanged. A whole vector is faster than single elements for the
                // remainder.
                Some(out) => {
                    for i in 0..LANES {
                        out[i] = if i < len { out[i] + sums[i] } else { out[i] };
                    }
                }
                None => out[..len].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
            }
        }
    }
}

/// Returns [`LANES`] elements from index `at` on.
#[inline(always)]
pub(in crate::kernels) fn lanes(x: &[f32], at: usize) -> &[f32; LANES] {
    match x[at..].first_chunk() {
        Some(lanes) => lanes,
        // The scratch is longer than all inputs of windows by one vector.
        None => unreachable!("a window left its plane"),
    }
}
