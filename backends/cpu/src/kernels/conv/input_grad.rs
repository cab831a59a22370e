//! Gradient of a convolution with respect to its input: `dx = fold(w^T * dy)` for each image and block of input
//! channels.

use meganeura_core::ops::Conv2dDims;

use super::depthwise;
use super::serial::StripMatmul;
use super::sizes::{STRIP_LEN, Sizes, Strips, block};
use super::window::Window;
use crate::gemm::{GemmSpec, Strides};
use crate::kernel::{CompileCx, Compiled, RunCx, Task};
use crate::memory::aligned;

/// Minimum and maximum number of rows of a block's matmul, if there are enough channels.
const MIN_ROWS: usize = 48;
const MAX_ROWS: usize = 512;

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = Conv2dDims::of_input_grad(&cx.call())?;
    if depthwise::applies(&dims) {
        return Ok(depthwise::input_grad(cx, dims));
    }
    let (sizes, window) = (Sizes::new(&dims), Window::new(&dims));
    let (dy, w, dx) = (cx.input::<f32>(0), cx.input::<f32>(1), cx.output::<f32>(0));
    // Patches of one channel overlap, but patches of different channels do not. The tasks of an image therefore
    // divide its channels.
    let channels = channels_per_task(&sizes, sizes.matmuls());
    let blocks = sizes.inputs.div_ceil(channels);
    let rows = channels * sizes.taps;
    let strips = Strips::new(sizes.windows, 1, STRIP_LEN / rows.max(sizes.outputs).max(1));
    let row_len = if sizes.pointwise {
        sizes.windows
    } else {
        strips.row_len()
    };
    let spec = |rows: usize| {
        move |len: usize| GemmSpec {
            m: rows,
            n: len,
            k: sizes.outputs,
            a: Strides {
                row: 1,
                col: sizes.patch(),
            },
            b: Strides {
                row: sizes.windows,
                col: 1,
            },
            ldc: row_len,
            accumulate: false,
        }
    };
    let last_rows = block(sizes.inputs, channels, blocks.saturating_sub(1)).len() * sizes.taps;
    let matmuls = [spec(rows), spec(last_rows)].map(|spec| StripMatmul::new(strips, spec));
    let patches_len = if sizes.pointwise { 0 } else { aligned(rows * row_len) };
    let private = patches_len + matmuls.iter().map(StripMatmul::scratch_len).max().unwrap_or(0);
    let body = move |task: usize, cx: &RunCx| {
        let (image, index) = (task / blocks, task % blocks);
        let own = block(sizes.inputs, channels, index);
        let matmul = &matmuls[usize::from(index + 1 == blocks)];
        let start = sizes.input_at(image) + own.start * sizes.plane;
        let planes = start..start + own.len() * sizes.plane;
        // SAFETY: this dispatch does not write any operand, and only this task accesses its channels of the result.
        // Private scratch has the size requested below, and only this task uses it. Offsets follow from the shapes.
        unsafe {
            let weights = w.as_ptr().add(sizes.weight_at(image) + own.start * sizes.taps);
            if !sizes.pointwise {
                dx.slice_mut(planes.clone()).fill(0.0);
            }
            for strip in 0..strips.count() {
                let range = strips.range(strip);
                let grads = dy.as_ptr().add(sizes.output_at(image) + range.start);
                let scratch = cx.private.add(patches_len);
                if sizes.pointwise {
                    matmul.run(strip, weights, grads, dx.as_ptr().add(start + range.start), scratch);
                    continue;
                }
                matmul.run(strip, weights, grads, cx.private, scratch);
                let patches = std::slice::from_raw_parts(cx.private, own.len() * sizes.taps * row_len);
                let channels = dx.slice_mut(planes.clone()).chunks_exact_mut(sizes.plane.max(1));
                for (plane, patches) in channels.zip(patches.chunks_exact(sizes.taps * row_len)) {
                    window.fold(patches, row_len, &range, plane);
                }
            }
        }
    };
    let task = Task {
        tasks: sizes.matmuls() * blocks,
        nanos: sizes.nanos(),
        body,
    };
    Ok(Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private,
    })
}

/// Returns the number of channels per task. `tasks` is the number of tasks without a division of channels.
pub(super) fn channels_per_task(sizes: &Sizes, tasks: usize) -> usize {
    let fewest = MIN_ROWS.div_ceil(sizes.taps);
    let most = (MAX_ROWS / sizes.taps).max(fewest);
    let blocks = sizes.wanted_tasks().div_ceil(tasks.max(1));
    sizes
        .inputs
        .div_ceil(blocks)
        .clamp(fewest, most)
        .min(sizes.inputs)
        .max(1)
}
