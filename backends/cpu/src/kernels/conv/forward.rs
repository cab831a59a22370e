//! Forward convolution, computed as `y = w * patches(x)` for each image and group.

use std::ops::Range;
use std::sync::Arc;

use meganeura_core::ops::Conv2dDims;

use super::depthwise;
use super::serial::StripMatmul;
use super::sizes::{CROWDING, STRIP_LEN, Sizes, Strips, block};
use super::window::Window;
use crate::gemm::{Gemm, GemmSpec, Strides};
use crate::kernel::{CHUNK, CompileCx, Compiled, Kernel, RunCx, Task, stream_nanos};
use crate::memory::{View, aligned};

/// Minimum number of operations of a convolution with few strips whose images all threads unfold together.
const LARGE_FLOPS: u64 = 4_000_000;
/// Maximum number of `f32`s of a patch matrix that all threads build together.
const MAX_SHARED: usize = 8 * 1024 * 1024;

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = Conv2dDims::of_conv2d(&cx.call())?;
    Ok(convolution(cx, &dims, [cx.input(0), cx.input(1)], cx.output(0), None))
}

/// Elementwise steps that process parts of a result while they are in the cache.
pub(in crate::kernels) trait Epilogue: Send + Sync {
    /// Returns the number of `f32`s of the scratch.
    fn scratch(&self) -> usize;

    /// Returns the estimated time of the steps for the whole result, in nanoseconds.
    fn nanos(&self) -> u64;

    /// Processes neighbouring elements of the result.
    ///
    /// # Safety
    /// The elements must be computed. The scratch must have the requested size. No other code may access the elements
    /// or the scratch meanwhile.
    unsafe fn run(&self, elements: Range<usize>, scratch: *mut f32);
}

/// The epilogue of a convolution, or `None`.
pub(super) struct OptionalEpilogue(pub(super) Option<Arc<dyn Epilogue>>);

impl OptionalEpilogue {
    pub(super) fn is_nothing(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the number of `f32`s of the scratch, rounded up to whole cache lines.
    pub(super) fn scratch(&self) -> usize {
        self.0.as_ref().map_or(0, |e| aligned(e.scratch()))
    }

    /// Returns the estimated time of the epilogue for the whole result, in nanoseconds.
    pub(super) fn nanos(&self) -> u64 {
        self.0.as_ref().map_or(0, |e| e.nanos())
    }

    /// Processes neighbouring elements of the result, if there is an epilogue.
    ///
    /// # Safety
    /// As [`Epilogue::run`].
    pub(super) unsafe fn run(&self, elements: Range<usize>, scratch: *mut f32) {
        if let Some(epilogue) = &self.0 {
            // SAFETY: forwarded.
            unsafe { epilogue.run(elements, scratch) };
        }
    }

    /// Processes a range of channels at neighbouring positions of a channels-last result, which has `all` channels.
    ///
    /// # Safety
    /// As [`Epilogue::run`].
    pub(super) unsafe fn run_channels(
        &self,
        places: Range<usize>,
        channels: &Range<usize>,
        all: usize,
        scratch: *mut f32,
    ) {
        if self.is_nothing() {
            return;
        }
        // SAFETY: forwarded.
        unsafe {
            if channels.len() == all {
                return self.run(places.start * all..places.end * all, scratch);
            }
            for first in places.map(|place| place * all) {
                self.run(first + channels.start..first + channels.end, scratch);
            }
        }
    }
}

/// Compiles a convolution `y` of `[x, w]` with its epilogue.
pub(in crate::kernels) fn convolution(
    cx: &CompileCx,
    dims: &Conv2dDims,
    [x, w]: [View<f32>; 2],
    y: View<f32>,
    epilogue: Option<Arc<dyn Epilogue>>,
) -> Compiled {
    let window = Window::new(dims);
    let operands = Operands {
        sizes: Sizes::new(dims),
        x,
        w,
        y,
        after: OptionalEpilogue(epilogue),
    };
    if depthwise::applies(dims) {
        return depthwise::forward(cx.level, *dims, operands);
    }
    let sizes = &operands.sizes;
    let wanted = sizes.wanted_tasks().div_ceil(sizes.matmuls().max(1));
    let strips = Strips::new(sizes.windows, wanted, STRIP_LEN / sizes.patch().max(1));
    let patches = sizes.matmuls() * sizes.patch() * sizes.windows;
    if sizes.matmuls() * strips.count() < 4 && sizes.flops >= LARGE_FLOPS && patches <= MAX_SHARED {
        return together(operands, window);
    }
    by_strips(operands, window, strips)
}

pub(super) struct Operands {
    sizes: Sizes,
    pub(super) x: View<f32>,
    pub(super) w: View<f32>,
    pub(super) y: View<f32>,
    pub(super) after: OptionalEpilogue,
}

impl Operands {
    /// Returns the estimated time of the convolution and its epilogue, in nanoseconds.
    fn nanos(&self) -> u64 {
        self.sizes.nanos() + self.after.nanos()
    }

    /// Runs the epilogue on some output channels and windows of an image and group.
    ///
    /// # Safety
    /// As [`Epilogue::run`].
    unsafe fn run_epilogue(&self, matmul: usize, channels: Range<usize>, windows: &Range<usize>, scratch: *mut f32) {
        if self.after.is_nothing() {
            return;
        }
        let at = |channel: usize, window: usize| self.sizes.output_at(matmul) + channel * self.sizes.windows + window;
        // SAFETY: passed on to the caller; different channels have different elements.
        unsafe {
            if windows.len() == self.sizes.windows {
                return self.after.run(at(channels.start, 0)..at(channels.end, 0), scratch);
            }
            for channel in channels {
                self.after
                    .run(at(channel, windows.start)..at(channel, windows.end), scratch);
            }
        }
    }
}

impl Sizes {
    /// Returns the matmul for `windows` windows. Rows of the patch matrix are `row_len` apart.
    fn forward_spec(&self, windows: usize, row_len: usize) -> GemmSpec {
        GemmSpec {
            m: self.outputs,
            n: windows,
            k: self.patch(),
            a: Strides {
                row: self.patch(),
                col: 1,
            },
            b: Strides { row: row_len, col: 1 },
            ldc: self.windows,
            accumulate: false,
        }
    }
}

/// Compiles a convolution with a task for each strip of each image and group. A task unfolds the strip into its
/// scratch and multiplies it.
fn by_strips(operands: Operands, window: Window, strips: Strips) -> Compiled {
    let (sizes, x, w, y) = (operands.sizes, operands.x, operands.w, operands.y);
    // Rows of pointwise patches are read in place, unless they would share too few cache sets.
    let direct = sizes.pointwise && !sizes.windows.is_multiple_of(CROWDING);
    let row_len = if direct { sizes.windows } else { strips.row_len() };
    let matmul = StripMatmul::new(strips, |len| sizes.forward_spec(len, row_len));
    let patches_len = if direct { 0 } else { aligned(sizes.patch() * row_len) };
    let epilogue_at = patches_len + aligned(matmul.scratch_len());
    let (private, nanos) = (epilogue_at + operands.after.scratch(), operands.nanos());
    let body = move |task: usize, cx: &RunCx| {
        let (image, strip) = (task / strips.count(), task % strips.count());
        let range = strips.range(strip);
        // SAFETY: this dispatch does not write any operand, and only this task writes its windows of the result.
        // Private scratch has the size requested below, and only this task uses it. Offsets follow from the shapes.
        unsafe {
            let patches = if direct {
                x.as_ptr().add(sizes.input_at(image) + range.start).cast_const()
            } else {
                let patches = std::slice::from_raw_parts_mut(cx.private, sizes.patch() * row_len);
                let input = x.slice(sizes.input_at(image)..sizes.input_at(image + 1));
                let channels = input.chunks_exact(sizes.plane.max(1));
                for (plane, patches) in channels.zip(patches.chunks_exact_mut(sizes.taps * row_len)) {
                    window.unfold(plane, &range, patches, row_len);
                }
                cx.private.cast_const()
            };
            let weights = w.as_ptr().add(sizes.weight_at(image));
            let out = y.as_ptr().add(sizes.output_at(image) + range.start);
            matmul.run(strip, weights, patches, out, cx.private.add(patches_len));
            operands.run_epilogue(image, 0..sizes.outputs, &range, cx.private.add(epilogue_at));
        }
    };
    let task = Task {
        tasks: sizes.matmuls() * strips.count(),
        nanos,
        body,
    };
    Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private,
    }
}

/// Compiles a convolution of a few small images with many channels. All threads first unfold the images together,
/// then share the matmuls.
fn together(operands: Operands, window: Window) -> Compiled {
    let (sizes, x, w, y) = (operands.sizes, operands.x, operands.w, operands.y);
    let row_len = if sizes.pointwise {
        sizes.windows
    } else {
        aligned(sizes.windows)
    };
    let gemm = Arc::new(Gemm::new(sizes.forward_spec(sizes.windows, row_len)));
    let channel_len = sizes.taps * row_len;
    let patches_len = if sizes.pointwise {
        0
    } else {
        aligned(sizes.patch() * row_len)
    };
    let matmul_len = patches_len + aligned(gemm.shared_len());
    let mut phases: Vec<Box<dyn Kernel>> = Vec::new();
    if !sizes.pointwise {
        let per_task = (CHUNK / channel_len.max(1)).max(1);
        let blocks = sizes.inputs.div_ceil(per_task);
        phases.push(Box::new(Task {
            tasks: sizes.matmuls() * blocks,
            nanos: stream_nanos(8 * sizes.matmuls() * patches_len),
            body: move |task: usize, cx: &RunCx| {
                let image = task / blocks;
                for channel in block(sizes.inputs, per_task, task % blocks) {
                    let from = sizes.input_at(image) + channel * sizes.plane;
                    // SAFETY: this dispatch does not write the operand. Only this task writes its channels in the
                    // shared scratch, which has room for all channels.
                    let (plane, patches) = unsafe {
                        let to = cx.shared.add(image * matmul_len + channel * channel_len);
                        (
                            x.slice(from..from + sizes.plane),
                            std::slice::from_raw_parts_mut(to, channel_len),
                        )
                    };
                    window.unfold(plane, &(0..sizes.windows), patches, row_len);
                }
            },
        }));
    }
    let operands = Arc::new(operands);
    let epilogue_at = aligned(gemm.worker_len());
    for phase in 0..gemm.phases() {
        let (gemm, tasks, operands) = (gemm.clone(), gemm.tasks(phase), operands.clone());
        let is_last = phase + 1 == gemm.phases();
        phases.push(Box::new(Task {
            tasks: sizes.matmuls() * tasks,
            nanos: operands.nanos() / gemm.phases() as u64,
            body: move |task: usize, cx: &RunCx| {
                let image = task / tasks;
                // SAFETY: the operands belong to this matmul. The first phase has filled the operands in the shared
                // scratch. Tasks of the matmul write disjoint parts of the result and of their scratch.
                unsafe {
                    let own = cx.shared.add(image * matmul_len);
                    let patches = if sizes.pointwise {
                        x.as_ptr().add(sizes.input_at(image))
                    } else {
                        own
                    };
                    let weights = w.as_ptr().add(sizes.weight_at(image));
                    let out = y.as_ptr().add(sizes.output_at(image));
                    gemm.run_task(
                        phase,
                        task % tasks,
                        weights,
                        patches,
                        out,
                        own.add(patches_len),
                        cx.private,
                    );
                    let part = gemm.part(task % tasks).filter(|_| is_last);
                    if let Some((channels, windows)) = part {
                        operands.run_epilogue(image, channels, &windows, cx.private.add(epilogue_at));
                    }
                }
            },
        }));
    }
    Compiled {
        phases,
        shared: sizes.matmuls() * matmul_len,
        private: epilogue_at + operands.after.scratch(),
    }
}
