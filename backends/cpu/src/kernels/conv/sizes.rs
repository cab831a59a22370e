//! Sizes of convolutions, and the division of windows into strips.

use std::ops::Range;

use meganeura_core::ops::Conv2dDims;

use crate::memory::aligned;

/// Maximum number of `f32`s of a strip's patches: half of a 1 MiB second-level cache.
pub(super) const STRIP_LEN: usize = 128 * 1024;
/// Minimum number of windows of a strip. Narrower matmuls read their left operand too often.
pub(super) const MIN_WINDOWS: usize = 64;
/// Number of columns of a matmul tile. Lengths of strips are multiples of it.
pub(super) const TILE: usize = 16;
/// Desired number of tasks of a large convolution with a small batch.
pub(super) const WANTED_TASKS: usize = 16;
/// Minimum number of operations of a task.
pub(super) const TASK_FLOPS: u64 = 400_000;
/// Expected number of floating-point operations per nanosecond of one thread.
pub(super) const FLOPS_PER_NANO: u64 = 40;
/// Distance between rows of a matrix, in `f32`s, at whose multiples the rows compete for few cache sets.
pub(super) const CROWDING: usize = 256;

/// Returns the number of output positions in all images.
pub(super) fn places(dims: &Conv2dDims) -> usize {
    dims.n * dims.output[0] * dims.output[1]
}

/// Sizes of a convolution that is computed by one matmul for each image and group.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) images: usize,
    pub(super) groups: usize,
    /// Number of input channels, and of output channels, of a group.
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Number of elements of an input channel (`plane`), of a kernel (`taps`), and of an output channel (`windows`).
    pub(super) plane: usize,
    pub(super) taps: usize,
    pub(super) windows: usize,
    /// True if a patch is a single element. The input is then its own patch matrix.
    pub(super) pointwise: bool,
    pub(super) flops: u64,
}

impl Sizes {
    pub(super) fn new(dims: &Conv2dDims) -> Self {
        let area = |[height, width]: [usize; 2]| height * width;
        Sizes {
            images: dims.n,
            groups: dims.groups,
            inputs: dims.c / dims.groups,
            outputs: dims.o / dims.groups,
            plane: area(dims.input),
            taps: area(dims.kernel),
            windows: area(dims.output),
            pointwise: dims.kernel == [1, 1] && dims.stride == [1, 1] && dims.padding == [0, 0],
            flops: dims.flops(),
        }
    }

    /// Returns the number of elements of a patch.
    pub(super) fn patch(&self) -> usize {
        self.inputs * self.taps
    }

    /// Returns the number of matmuls, one for each image and group.
    pub(super) fn matmuls(&self) -> usize {
        self.images * self.groups
    }

    /// Returns the offset of a matmul's input.
    pub(super) fn input_at(&self, matmul: usize) -> usize {
        matmul * self.inputs * self.plane
    }

    /// Returns the offset of a matmul's output.
    pub(super) fn output_at(&self, matmul: usize) -> usize {
        matmul * self.outputs * self.windows
    }

    /// Returns the offset of a matmul's weights.
    pub(super) fn weight_at(&self, matmul: usize) -> usize {
        matmul % self.groups * self.outputs * self.patch()
    }

    /// Returns the desired number of tasks.
    pub(super) fn wanted_tasks(&self) -> usize {
        (self.flops / TASK_FLOPS).clamp(1, WANTED_TASKS as u64) as usize
    }

    /// Returns the estimated time of the convolution in nanoseconds.
    pub(super) fn nanos(&self) -> u64 {
        self.flops / FLOPS_PER_NANO
    }
}

/// A division of an image's windows into strips of equal length; only the last strip may be shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strips {
    pub(super) windows: usize,
    pub(super) len: usize,
}

impl Strips {
    /// Creates at least `at_least` strips of at most about `limit` windows. Creates fewer if they would be too short.
    pub(super) fn new(windows: usize, at_least: usize, limit: usize) -> Self {
        let shortest = MIN_WINDOWS.min(windows);
        let count = windows
            .div_ceil(limit.max(shortest).max(1))
            .max(at_least.min(windows / MIN_WINDOWS))
            .max(1);
        Strips {
            windows,
            len: windows.div_ceil(count).next_multiple_of(TILE).clamp(1, windows.max(1)),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.windows.div_ceil(self.len)
    }

    pub(super) fn range(&self, strip: usize) -> Range<usize> {
        let start = strip * self.len;
        start..(start + self.len).min(self.windows)
    }

    /// Returns the length of the last strip.
    pub(super) fn last_len(&self) -> usize {
        self.range(self.count().saturating_sub(1)).len()
    }

    /// Returns the distance between rows of a strip's patch matrix in scratch.
    pub(super) fn row_len(&self) -> usize {
        let len = aligned(self.len);
        if len.is_multiple_of(CROWDING) { len + TILE } else { len }
    }
}

/// Returns the range of channels of block `index`, if blocks have `len` channels.
pub(super) fn block(channels: usize, len: usize, index: usize) -> Range<usize> {
    index * len..(index * len + len).min(channels)
}
