//! Kernels of gated linear units in one pass, forward and backward.

use crate::kernel::{
    CHUNK, CompileCx, Compiled, KernelDef, RunCx, Task, chunk, chunks, f32_only, rows_per_task, stream_nanos,
};
use crate::vmath::{self, Level};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.swiglu",
        supports: f32_only,
        compile: |cx| forward(cx, vmath::swiglu),
    },
    KernelDef {
        name: "core.swiglu_grad",
        supports: f32_only,
        compile: |cx| backward(cx, vmath::swiglu_grad),
    },
    KernelDef {
        name: "core.geglu",
        supports: f32_only,
        compile: |cx| forward(cx, vmath::geglu),
    },
    KernelDef {
        name: "core.geglu_grad",
        supports: f32_only,
        compile: |cx| backward(cx, vmath::geglu_grad),
    },
    KernelDef {
        name: "core.swiglu_concat",
        supports: f32_only,
        compile: packed_forward,
    },
    KernelDef {
        name: "core.swiglu_concat_grad",
        supports: f32_only,
        compile: packed_backward,
    },
];

type Forward = fn(Level, &[f32], &[f32], &mut [f32]);
type Backward = fn(Level, [&[f32]; 3], [&mut [f32]; 2]);

/// Returns the estimated time in nanoseconds: the maximum of the times for memory and for arithmetic.
fn nanos(bytes: usize, elements: usize) -> u64 {
    stream_nanos(bytes).max(elements as u64)
}

fn forward(cx: &CompileCx, f: Forward) -> Result<Compiled, String> {
    let ([gate, up], out, level) = ([0, 1].map(|i| cx.input::<f32>(i)), cx.output::<f32>(0), cx.level);
    let len = out.len();
    Ok(Compiled::one(Task {
        tasks: chunks(len),
        nanos: nanos(12 * len, len),
        body: move |task: usize, _: &RunCx| {
            let own = chunk(len, task);
            // SAFETY: only this task writes these elements, and this dispatch does not write any operand.
            unsafe {
                f(
                    level,
                    gate.slice(own.clone()),
                    up.slice(own.clone()),
                    out.slice_mut(own),
                )
            };
        },
    }))
}

fn backward(cx: &CompileCx, f: Backward) -> Result<Compiled, String> {
    let operands = [0, 1, 2].map(|i| cx.input::<f32>(i));
    let ([dgate, dup], level) = ([0, 1].map(|i| cx.output::<f32>(i)), cx.level);
    let len = dgate.len();
    Ok(Compiled::one(Task {
        tasks: chunks(len),
        nanos: nanos(20 * len, len),
        body: move |task: usize, _: &RunCx| {
            let own = chunk(len, task);
            // SAFETY: as in `forward`.
            unsafe {
                let operands = operands.map(|x| x.slice(own.clone()));
                f(level, operands, [dgate.slice_mut(own.clone()), dup.slice_mut(own)]);
            }
        },
    }))
}

/// Division of a packed operand among tasks. Each row has a gate half and an up half. Tasks have whole rows if rows
/// are short, else pieces of one row.
#[derive(Clone, Copy)]
struct Pieces {
    rows: usize,
    /// Number of elements of the gate half, and of the up half after it.
    half: usize,
    rows_per_task: usize,
    pieces: usize,
}

impl Pieces {
    fn of(len: usize, half: usize) -> Self {
        Pieces {
            rows: len.checked_div(half).unwrap_or(0),
            half,
            rows_per_task: rows_per_task(half),
            pieces: half.div_ceil(CHUNK).max(1),
        }
    }

    fn tasks(self) -> usize {
        self.rows.div_ceil(self.rows_per_task) * self.pieces
    }

    /// Returns three numbers for each row or piece of a task: its offset in a tensor of half the width, its offset in
    /// the packed tensor, and its length.
    fn parts(self, task: usize) -> impl Iterator<Item = [usize; 3]> {
        let (group, piece) = (task / self.pieces, task % self.pieces);
        let first = group * self.rows_per_task;
        let columns = piece * CHUNK..((piece + 1) * CHUNK).min(self.half);
        let columns = if self.pieces == 1 { 0..self.half } else { columns };
        (first..(first + self.rows_per_task).min(self.rows)).map(move |row| {
            let start = row * self.half + columns.start;
            [start, start + row * self.half, columns.len()]
        })
    }
}

/// Returns half of the row length of operand 0.
fn half_width(cx: &CompileCx) -> usize {
    cx.input_type(0).shape.last().copied().unwrap_or(0) / 2
}

fn packed_forward(cx: &CompileCx) -> Result<Compiled, String> {
    let (packed, out, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.level);
    let half = half_width(cx);
    let pieces = Pieces::of(out.len(), half);
    Ok(Compiled::one(Task {
        tasks: pieces.tasks(),
        nanos: nanos(12 * out.len(), out.len()),
        body: move |task: usize, _: &RunCx| {
            for [start, gate, len] in pieces.parts(task) {
                let up = gate + half;
                // SAFETY: as in `forward`.
                unsafe {
                    let (gate, up) = (packed.slice(gate..gate + len), packed.slice(up..up + len));
                    vmath::swiglu(level, gate, up, out.slice_mut(start..start + len));
                }
            }
        },
    }))
}

fn packed_backward(cx: &CompileCx) -> Result<Compiled, String> {
    let (packed, dy, out, level) = (cx.input::<f32>(0), cx.input::<f32>(1), cx.output::<f32>(0), cx.level);
    let half = half_width(cx);
    let pieces = Pieces::of(dy.len(), half);
    Ok(Compiled::one(Task {
        tasks: pieces.tasks(),
        nanos: nanos(20 * dy.len(), dy.len()),
        body: move |task: usize, _: &RunCx| {
            for [start, gate, len] in pieces.parts(task) {
                let up = gate + half;
                let (gate, up) = (gate..gate + len, up..up + len);
                // SAFETY: as in `forward`; the halves do not overlap.
                unsafe {
                    let operands = [
                        packed.slice(gate.clone()),
                        packed.slice(up.clone()),
                        dy.slice(start..start + len),
                    ];
                    vmath::swiglu_grad(level, operands, [out.slice_mut(gate), out.slice_mut(up)]);
                }
            }
        },
    }))
}
