//! Sizes of convolutions, and how windows are cut into strips.

use std::ops::Range;

use meganeura_core::ops::Conv2dDims;

use crate::memory::aligned;

/// `f32`s of a strip's patches: half of a 1 MiB second-level cache.
pub(super) const STRIP_LEN: usize = 128 * 1024;
/// Windows of a strip, at least: a narrow matmul reads its left operand too often.
pub(super) const MIN_WINDOWS: usize = 64;
/// Strips are multiples of this, the width of a tile of the multiplication.
pub(super) const TILE: usize = 16;
/// Tasks that a large convolution is cut into if its batch does not yield as many.
pub(super) const WANTED_TASKS: usize = 16;
/// Operations that are worth a task of their own.
pub(super) const TASK_FLOPS: u64 = 400_000;
/// Floating-point operations a nanosecond that one thread is expected to do.
pub(super) const FLOPS_PER_NANO: u64 = 40;
/// Matrix rows at a distance of a multiple of this, in `f32`s, share few cache sets.
pub(super) const CROWDING: usize = 256;

/// Places of a result, those of all images.
pub(super) fn places(dims: &Conv2dDims) -> usize {
    dims.n * dims.output[0] * dims.output[1]
}

/// Sizes of a convolution as matmuls, one for each image and group.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) images: usize,
    pub(super) groups: usize,
    /// Input and output channels of a group.
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Elements of an input channel, of a kernel, of an output channel.
    pub(super) plane: usize,
    pub(super) taps: usize,
    pub(super) windows: usize,
    /// A patch is one element, so that the input is its own patch matrix.
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

    /// Elements of a patch.
    pub(super) fn patch(&self) -> usize {
        self.inputs * self.taps
    }

    /// Matmuls, one for each image and group.
    pub(super) fn matmuls(&self) -> usize {
        self.images * self.groups
    }

    /// Offset of the input of a matmul.
    pub(super) fn input_at(&self, matmul: usize) -> usize {
        matmul * self.inputs * self.plane
    }

    /// Offset of the output of a matmul.
    pub(super) fn output_at(&self, matmul: usize) -> usize {
        matmul * self.outputs * self.windows
    }

    /// Offset of the weights of a matmul.
    pub(super) fn weight_at(&self, matmul: usize) -> usize {
        matmul % self.groups * self.outputs * self.patch()
    }

    /// Tasks that the work is worth.
    pub(super) fn wanted_tasks(&self) -> usize {
        (self.flops / TASK_FLOPS).clamp(1, WANTED_TASKS as u64) as usize
    }

    /// Estimated duration.
    pub(super) fn nanos(&self) -> u64 {
        self.flops / FLOPS_PER_NANO
    }
}

/// A division of the windows of an image into strips of one length, of which the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strips {
    pub(super) windows: usize,
    pub(super) len: usize,
}

impl Strips {
    /// At least so many strips if they do not become too short, with a limited length.
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

    /// Length of the last strip.
    pub(super) fn last_len(&self) -> usize {
        self.range(self.count().saturating_sub(1)).len()
    }

    /// Row length of the matrix of a strip's patches in scratch.
    pub(super) fn row_len(&self) -> usize {
        let len = aligned(self.len);
        if len.is_multiple_of(CROWDING) { len + TILE } else { len }
    }
}

/// The `index`-th of the channel blocks of some length.
pub(super) fn block(channels: usize, len: usize, index: usize) -> Range<usize> {
    index * len..(index * len + len).min(channels)
}
