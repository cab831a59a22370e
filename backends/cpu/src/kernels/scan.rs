//! Kernels of running sums (`cumsum`) along an axis.

use meganeura_core::DType;

use super::index::around_axis;
use crate::kernel::{CHUNK, CompileCx, Compiled, KernelDef, RunCx, Task, f32_or_integers, rows_per_task, stream_nanos};
use crate::memory::View;
use crate::vmath::{self, Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.cumsum",
    supports: f32_or_integers,
    compile: |cx| match cx.output_type(0).dtype {
        DType::F32 => cumsum::<f32>(cx, true),
        _ => cumsum::<u32>(cx, false),
    },
}];

/// An element type that can be added: floats, and words that wrap around.
trait Number: Copy + Default + Send + Sync + 'static {
    fn plus(self, other: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

impl Number for u32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
}

/// The type of scan: `exclusive` sums exclude the element itself, `reverse` sums begin at the end of the axis.
#[derive(Clone, Copy)]
struct ScanKind {
    exclusive: bool,
    reverse: bool,
}

fn cumsum<T: Number>(cx: &CompileCx, float: bool) -> Result<Compiled, String> {
    let (x, out, level) = (cx.input::<T>(0), cx.output::<T>(0), cx.level);
    let dims = around_axis(&cx.input_type(0).shape, cx.attrs().int("axis")?)?;
    let form = ScanKind {
        exclusive: cx.attrs().bool("exclusive")?,
        reverse: cx.attrs().bool("reverse")?,
    };
    if x.len() == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    let [outer, len, inner] = dims;
    if inner > 1 {
        return Ok(columns(x, out, dims, form, level));
    }
    if float && outer < 4 && len > 2 * CHUNK {
        return Ok(long_rows(cx.input(0), cx.output(0), [outer, len], form, level));
    }
    let per_task = rows_per_task(len);
    Ok(Compiled::one(Task {
        tasks: outer.div_ceil(per_task),
        nanos: stream_nanos(8 * x.len()).max(x.len() as u64 / 2),
        body: move |task: usize, _: &RunCx| {
            let rows = task * per_task * len..((task + 1) * per_task * len).min(x.len());
            // SAFETY: only this task writes these rows, and the operand is in another buffer.
            let (x, out) = unsafe { (x.slice(rows.clone()), out.slice_mut(rows)) };
            for (x, out) in x.chunks_exact(len).zip(out.chunks_exact_mut(len)) {
                row(level, x, out, T::default(), form);
            }
        },
    }))
}

/// Compiles running sums of few long rows. The first phase sums chunks. In the second phase, each chunk begins with
/// the sum of all previous chunks, added in order.
fn long_rows(x: View<f32>, out: View<f32>, [outer, len]: [usize; 2], form: ScanKind, level: Level) -> Compiled {
    let parts = len.div_ceil(CHUNK);
    let range = move |task: usize| {
        let (row, part) = (task / parts, task % parts);
        row * len + part * CHUNK..row * len + ((part + 1) * CHUNK).min(len)
    };
    let sums = Task {
        tasks: outer * parts,
        nanos: stream_nanos(4 * x.len()),
        body: move |task: usize, cx: &RunCx| {
            // SAFETY: no task writes the operand, and only this task uses slot `task` of the shared scratch.
            unsafe { *cx.shared.add(task) = vmath::sum(level, x.slice(range(task))) };
        },
    };
    let scans = Task {
        tasks: outer * parts,
        nanos: stream_nanos(8 * x.len()).max(x.len() as u64 / 2),
        body: move |task: usize, cx: &RunCx| {
            let first = task / parts * parts;
            // SAFETY: the first phase has filled the scratch, and only this task writes its chunk.
            let (sums, x, out) = unsafe {
                (
                    std::slice::from_raw_parts(cx.shared.add(first), parts),
                    x.slice(range(task)),
                    out.slice_mut(range(task)),
                )
            };
            let part = task - first;
            let before = if form.reverse {
                sums[part + 1..].iter().rev().sum::<f32>()
            } else {
                sums[..part].iter().sum::<f32>()
            };
            row(level, x, out, before, form);
        },
    };
    Compiled {
        phases: vec![Box::new(sums), Box::new(scans)],
        shared: outer * parts,
        private: 0,
    }
}

/// Number of elements of a block. Its running sums are computed first, then the carry is added to all of them. The
/// chain of dependent additions then has only one addition per block.
const BLOCK: usize = 8;

multiversion! {
    /// Writes the running sums of a contiguous row, starting with `carry`.
    fn row<T: Number>(x: &[T], out: &mut [T], carry: T, form: ScanKind) = row_body;
}

#[inline(always)]
fn row_body<const FMA: bool, T: Number>(x: &[T], out: &mut [T], mut carry: T, form: ScanKind) {
    let (blocks, rest) = x.as_chunks::<BLOCK>();
    let (out_blocks, out_rest) = out.as_chunks_mut::<BLOCK>();
    if form.reverse {
        for (&x, o) in rest.iter().zip(out_rest).rev() {
            let sum = carry.plus(x);
            *o = if form.exclusive { carry } else { sum };
            carry = sum;
        }
        for (x, out) in blocks.iter().zip(out_blocks).rev() {
            let mut turned = *x;
            turned.reverse();
            let (mut sums, next) = block(turned, carry, form.exclusive);
            sums.reverse();
            *out = sums;
            carry = next;
        }
        return;
    }
    for (x, out) in blocks.iter().zip(out_blocks) {
        let (sums, next) = block(*x, carry, form.exclusive);
        *out = sums;
        carry = next;
    }
    for (&x, o) in rest.iter().zip(out_rest) {
        let sum = carry.plus(x);
        *o = if form.exclusive { carry } else { sum };
        carry = sum;
    }
}

/// Returns the running sums of a block, and the carry for the next block.
#[inline(always)]
fn block<T: Number>(x: [T; BLOCK], carry: T, exclusive: bool) -> ([T; BLOCK], T) {
    let mut sums = x;
    let mut by = 1;
    while by < BLOCK {
        let before = sums;
        let mut i = by;
        while i < BLOCK {
            sums[i] = before[i - by].plus(before[i]);
            i += 1;
        }
        by *= 2;
    }
    let mut i = 0;
    while i < BLOCK {
        sums[i] = carry.plus(sums[i]);
        i += 1;
    }
    let next = sums[BLOCK - 1];
    if exclusive {
        let all = sums;
        sums[0] = carry;
        let mut i = 1;
        while i < BLOCK {
            sums[i] = all[i - 1];
            i += 1;
        }
    }
    (sums, next)
}

/// Number of columns of a strip, if the axis is not the last. The sums of the columns stay on the stack.
const COLUMNS: usize = 256;

/// Compiles running sums along an axis that is not the last, `[outer, len, inner]`, by strips of columns.
fn columns<T: Number>(x: View<T>, out: View<T>, dims: [usize; 3], form: ScanKind, level: Level) -> Compiled {
    let [outer, len, inner] = dims;
    let strips = inner.div_ceil(COLUMNS);
    let items = outer * strips;
    let per_task = rows_per_task(len * inner.min(COLUMNS));
    Compiled::one(Task {
        tasks: items.div_ceil(per_task),
        nanos: stream_nanos(8 * x.len()) + 4 * (items * len) as u64,
        body: move |task: usize, _: &RunCx| {
            for item in task * per_task..((task + 1) * per_task).min(items) {
                let start = item % strips * COLUMNS;
                let width = COLUMNS.min(inner - start);
                let mut sums = [T::default(); COLUMNS];
                for k in 0..len {
                    let k = if form.reverse { len - 1 - k } else { k };
                    let at = (item / strips * len + k) * inner + start;
                    // SAFETY: only this task writes this strip, and the operand is in another buffer.
                    let (x, out) = unsafe { (x.slice(at..at + width), out.slice_mut(at..at + width)) };
                    add_row(level, x, out, &mut sums[..width], form.exclusive);
                }
            }
        },
    })
}

multiversion! {
    /// Adds a row to the sums of its columns. Writes the sums before (`exclusive`) or after the addition.
    fn add_row<T: Number>(x: &[T], out: &mut [T], sums: &mut [T], exclusive: bool) = add_row_body;
}

#[inline(always)]
fn add_row_body<const FMA: bool, T: Number>(x: &[T], out: &mut [T], sums: &mut [T], exclusive: bool) {
    let cells = x.iter().zip(out).zip(sums);
    if exclusive {
        for ((&x, o), sum) in cells {
            *o = *sum;
            *sum = sum.plus(x);
        }
    } else {
        for ((&x, o), sum) in cells {
            *sum = sum.plus(x);
            *o = *sum;
        }
    }
}
