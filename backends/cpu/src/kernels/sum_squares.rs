//! Kernels that sum over all elements of a tensor: the squares, or the number of non-finite elements. They sum chunks
//! first, then the results of the chunks in order.

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, chunk, chunks, f32_only, stream_nanos};
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.sum_squares",
        supports: f32_only,
        compile: |cx| sum(cx, squares),
    },
    KernelDef {
        name: "core.count_non_finite",
        supports: f32_only,
        compile: |cx| sum(cx, non_finite),
    },
];

multiversion! {
    /// Returns the sum of squares. It consists of a fixed number of partial sums.
    fn squares(x: &[f32]) -> f32 = squares_body;
}

#[inline(always)]
fn squares_body<const FMA: bool>(x: &[f32]) -> f32 {
    const LANES: usize = 32;
    let mut lanes = [0.0f32; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += x * x;
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += x * x;
    }
    lanes.iter().sum()
}

multiversion! {
    /// Counts the elements that are not finite. The count of a chunk is exact as an `f32`.
    fn non_finite(x: &[f32]) -> f32 = non_finite_body;
}

#[inline(always)]
fn non_finite_body<const FMA: bool>(x: &[f32]) -> f32 {
    x.iter().map(|x| u32::from(!x.is_finite())).sum::<u32>() as f32
}

/// Compiles a kernel that adds up the results of `part` for all chunks.
fn sum(cx: &CompileCx, part: fn(Level, &[f32]) -> f32) -> Result<Compiled, String> {
    let (x, out, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.level);
    let parts = chunks(x.len());
    let first = Task {
        tasks: parts,
        nanos: stream_nanos(4 * x.len()),
        body: move |task: usize, cx: &RunCx| {
            // SAFETY: no task writes the operand, and only this task uses slot `task` of the shared scratch.
            unsafe { *cx.shared.add(task) = part(level, x.slice(chunk(x.len(), task))) };
        },
    };
    let second = Task {
        tasks: 1,
        nanos: parts as u64,
        body: move |_, cx: &RunCx| {
            // SAFETY: the first phase has filled the slots, and this is the only task of its phase.
            let (parts, out) = unsafe { (std::slice::from_raw_parts(cx.shared, parts), out.slice_mut(0..1)) };
            // In long tensors, the partial sums can differ by orders of magnitude: add in f64.
            out[0] = parts.iter().map(|&part| f64::from(part)).sum::<f64>() as f32;
        },
    };
    Ok(Compiled {
        phases: vec![Box::new(first), Box::new(second)],
        shared: parts.max(1),
        private: 0,
    })
}
