//! Windows of a convolution over a plane. Unfolds windows to columns, and adds columns back to the plane.

use std::ops::Range;

use meganeura_core::ops::Conv2dDims;

/// The windows along one axis whose element at a tap (an element of the kernel) is in the input, not in the padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TapWindows {
    /// Range of these windows.
    pub(super) windows: Range<usize>,
    /// Index of the input element that the tap reads for the first of these windows.
    pub(super) first: usize,
}

impl TapWindows {
    fn new(dims: &Conv2dDims, axis: usize, k: usize) -> Self {
        let (stride, padding, reach) = (dims.stride[axis], dims.padding[axis], k * dims.dilation[axis]);
        let end = (dims.input[axis] + padding)
            .saturating_sub(reach)
            .div_ceil(stride)
            .min(dims.output[axis]);
        let start = padding.saturating_sub(reach).div_ceil(stride).min(end);
        TapWindows {
            windows: start..end,
            first: (start * stride + reach).saturating_sub(padding),
        }
    }
}

/// The windows of a convolution: for each tap, the range of windows that read input.
pub(super) struct Window {
    /// Distance between rows of the input, and of the output.
    pub(super) input_width: usize,
    pub(super) output_width: usize,
    pub(super) stride: [usize; 2],
    pub(super) rows: Vec<TapWindows>,
    pub(super) columns: Vec<TapWindows>,
}

impl Window {
    pub(super) fn new(dims: &Conv2dDims) -> Self {
        let taps = |axis: usize| (0..dims.kernel[axis]).map(|k| TapWindows::new(dims, axis, k)).collect();
        Window {
            input_width: dims.input[1],
            output_width: dims.output[1],
            stride: dims.stride,
            rows: taps(0),
            columns: taps(1),
        }
    }

    /// Returns the row and column windows of each tap, in the order of the kernel's elements.
    pub(super) fn taps(&self) -> impl Iterator<Item = (&TapWindows, &TapWindows)> {
        self.rows
            .iter()
            .flat_map(|row| self.columns.iter().map(move |column| (row, column)))
    }

    /// Calls `visit(columns, input)` for each row of windows in `strip`. `columns` are the positions, within the
    /// strip, of the windows whose tap reads input. `input` is the offset in the plane of the element that the first
    /// of them reads.
    pub(super) fn for_runs(
        &self,
        (row_tap, column_tap): (&TapWindows, &TapWindows),
        strip: &Range<usize>,
        mut visit: impl FnMut(Range<usize>, usize),
    ) {
        let width = self.output_width;
        let rows = strip.start / width..strip.end.div_ceil(width);
        let rows = rows.start.max(row_tap.windows.start)..rows.end.min(row_tap.windows.end);
        for row in rows {
            let y = row_tap.first + (row - row_tap.windows.start) * self.stride[0];
            let windows = row * width + column_tap.windows.start..row * width + column_tap.windows.end;
            let own = windows.start.max(strip.start)..windows.end.min(strip.end);
            if own.is_empty() {
                continue;
            }
            let x = column_tap.first + (own.start - windows.start) * self.stride[1];
            visit(own.start - strip.start..own.end - strip.start, y * self.input_width + x);
        }
    }

    /// Writes the patches of a strip of windows over one channel to `columns`, one row for each tap. Only the first
    /// `strip.len()` elements of a row are used.
    pub(super) fn unfold(&self, plane: &[f32], strip: &Range<usize>, columns: &mut [f32], row_len: usize) {
        let stride = self.stride[1];
        for (taps, out) in self.taps().zip(columns.chunks_mut(row_len)) {
            // Only the gaps between runs are padding, and have to be filled.
            let mut filled = 0;
            self.for_runs(taps, strip, |own, from| {
                out[filled..own.start].fill(0.0);
                filled = own.end;
                let out = &mut out[own];
                if stride == 1 {
                    out.copy_from_slice(&plane[from..from + out.len()]);
                } else {
                    for (o, &x) in out.iter_mut().zip(plane[from..].iter().step_by(stride)) {
                        *o = x;
                    }
                }
            });
            out[filled..strip.len()].fill(0.0);
        }
    }

    /// Adds the patches of a strip of windows to the elements of the channel that the taps read.
    pub(super) fn fold(&self, columns: &[f32], row_len: usize, strip: &Range<usize>, plane: &mut [f32]) {
        let stride = self.stride[1];
        for (taps, patches) in self.taps().zip(columns.chunks(row_len)) {
            self.for_runs(taps, strip, |own, to| {
                let patches = &patches[own];
                if stride == 1 {
                    for (x, &p) in plane[to..to + patches.len()].iter_mut().zip(patches) {
                        *x += p;
                    }
                } else {
                    for (x, &p) in plane[to..].iter_mut().step_by(stride).zip(patches) {
                        *x += p;
                    }
                }
            });
        }
    }
}
