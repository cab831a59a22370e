//! Kernels that move elements: permute, expand, flip, slice, narrow, pad, concat, assign. They copy elements of any
//! dtype as words of the same size.

use meganeura_core::DType;

use super::strided::{Nest, RowDivision, broadcast_strides, row_major};
use super::transpose::{Word, transpose};
use crate::kernel::{CompileCx, Compiled, Kernel, KernelDef, RunCx, Task, any_dtype, chunk, chunks, stream_nanos};
use crate::memory::View;

macro_rules! by_size {
    ($name:literal, $compile:ident) => {
        KernelDef {
            name: $name,
            supports: any_dtype,
            compile: |cx| match cx.output_type(0).dtype.block().bytes {
                2 => $compile::<u16>(cx),
                _ => $compile::<u32>(cx),
            },
        }
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    by_size!("core.permute", permute),
    by_size!("core.expand", expand),
    by_size!("core.flip", flip),
    by_size!("core.slice", slice),
    by_size!("core.narrow", narrow),
    by_size!("core.pad", pad),
    by_size!("core.concat", concat),
    by_size!("core.assign", assign),
];

/// Compiles a copy of rows of `x`, from element `x_start` on, to rows of `y`, from element `y_start` on. The nest has
/// the strides of `x` (operand 0) and of `y` (operand 1). It must contain every element of `y` once.
fn copy_nest<T: Word>(nest: Nest<2>, x: View<T>, x_start: usize, y: View<T>, y_start: usize) -> Box<dyn Kernel> {
    let [xs, ys] = [nest.inner_stride(0), nest.inner_stride(1)];
    let split = RowDivision::new(&nest);
    // Strided reads use only a fraction of each cache line.
    let cost = if (-1..=1).contains(&xs) { 1 } else { 4 };
    Box::new(Task {
        tasks: split.tasks(),
        nanos: cost * stream_nanos(2 * nest.inner() * nest.rows() * size_of::<T>()),
        body: move |task: usize, _: &RunCx| {
            let (rows, piece) = split.part(task);
            let skip = piece.start as isize;
            nest.for_rows(rows, |_, [xo, yo]| {
                let (xo, yo) = (x_start as isize + xo + skip * xs, y_start as isize + yo + skip * ys);
                // SAFETY: starts and strides follow from shapes and attributes. By the operator's shape rule these
                // fit each other, so all elements exist. Tasks write different elements, and the operand is in
                // another buffer than the result.
                unsafe { copy_row(x.as_ptr().offset(xo), xs, y.as_ptr().offset(yo), ys, piece.len()) }
            });
        },
    })
}

/// Copies `len` elements. They are `xs` apart in `x` and `ys` apart in `y`.
///
/// # Safety
/// There must be at least one element, and all must exist. The source must not be written
/// meanwhile; the target must not overlap it, and no other code may access it.
unsafe fn copy_row<T: Word>(x: *const T, xs: isize, y: *mut T, ys: isize, len: usize) {
    // SAFETY: by contract, in every branch.
    unsafe {
        match (xs, ys) {
            (1, 1) => std::ptr::copy_nonoverlapping(x, y, len),
            (0, 1) => std::slice::from_raw_parts_mut(y, len).fill(*x),
            (-1, 1) => {
                // With slices, the compiler vectorises the loop.
                let x = std::slice::from_raw_parts(x.offset(1 - len as isize), len);
                let y = std::slice::from_raw_parts_mut(y, len);
                y.iter_mut().zip(x.iter().rev()).for_each(|(y, &x)| *y = x);
            }
            _ => {
                for i in 0..len as isize {
                    *y.offset(i * ys) = *x.offset(i * xs);
                }
            }
        }
    }
}

fn permute<T: Word>(cx: &CompileCx) -> Result<Compiled, String> {
    let (x, y) = (cx.input::<T>(0), cx.output::<T>(0));
    let from = row_major(&cx.input_type(0).shape);
    let axes = cx.attrs().ints("axes")?;
    let strides: Vec<isize> = axes.iter().map(|&a| from[a as usize]).collect();
    let to = &cx.output_type(0).shape;
    let nest = Nest::collapsed(to, [strides, row_major(to)]);
    if nest.inner_stride(0) != 1 {
        return Ok(transpose(cx.level, &nest, x, y));
    }
    Ok(Compiled::phases(vec![copy_nest(nest, x, 0, y, 0)]))
}

fn expand<T: Word>(cx: &CompileCx) -> Result<Compiled, String> {
    let to = &cx.output_type(0).shape;
    let strides = broadcast_strides(&cx.input_type(0).shape, to);
    let nest = Nest::collapsed(to, [strides, row_major(to)]);
    let (x, y) = (cx.input::<T>(0), cx.output::<T>(0));
    Ok(Compiled::phases(vec![copy_nest(nest, x, 0, y, 0)]))
}

fn flip<T: Word>(cx: &CompileCx) -> Result<Compiled, String> {
    let (x, y) = (cx.input::<T>(0), cx.output::<T>(0));
    let shape = &cx.input_type(0).shape;
    if shape.numel() == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    // Reversed axes are read backwards from their last element.
    let mut strides = row_major(shape);
    let mut start = 0;
    for axis in shape.axes(cx.attrs().ints("axes")?)? {
        start += (shape[axis] - 1) * strides[axis] as usize;
        strides[axis] = -strides[axis];
    }
    let nest = Nest::collapsed(shape, [strides, row_major(shape)]);
    Ok(Compiled::phases(vec![copy_nest(nest, x, start, y, 0)]))
}

fn slice<T: Word>(cx: &CompileCx) -> Result<Compiled, String> {
    let from = row_major(&cx.input_type(0).shape);
    let (starts, steps) = (cx.attrs().ints("starts")?, cx.attrs().ints("steps")?);
    let start: isize = starts.iter().zip(&from).map(|(&s, &f)| s as isize * f).sum();
    // The product wraps only if at most one element is taken along the axis. Its stride is then not used.
    let strides = steps.iter().zip(&from).map(|(&s, &f)| f.wrapping_mul(s as isize));
    let to = &cx.output_type(0).shape;
    let nest = Nest::collapsed(to, [strides.collect(), row_major(to)]);
    let (x, y) = (cx.input::<T>(0), cx.output::<T>(0));
    Ok(Compiled::phases(vec![copy_nest(nest, x, start as usize, y, 0)]))
}

fn narrow<T: Word>(cx: &CompileCx) -> Result<Compiled, String> {
    let (from, to) = (&cx.input_type(0).shape, &cx.output_type(0).shape);
    let axis = from.axis(cx.attrs().int("axis")?)?;
    let strides = row_major(from);
    let start = cx.attrs().size("start")? * strides[axis] as usize;
    let nest = Nest::collapsed(to, [strides, row_major(to)]);
    let (x, y) = (cx.input::<T>(0), cx.output::<T>(0));
    Ok(Compiled::phases(vec![copy_nest(nest, x, start, y, 0)]))
}

fn pad<T: Word>(cx: &CompileCx) -> Result<Compiled, String> {
    let value = padding_word::<T>(cx)?;
    let (x, y) = (cx.input::<T>(0), cx.output::<T>(0));
    let to = row_major(&cx.output_type(0).shape);
    let (low, interior) = (cx.attrs().ints("low")?, cx.attrs().ints("interior")?);
    let start: isize = low.iter().zip(&to).map(|(&l, &t)| l as isize * t).sum();
    // As in `slice`, the product wraps only if there is at most one element along the axis.
    let strides = interior.iter().zip(&to);
    let strides = strides.map(|(&i, &t)| t.wrapping_mul((i as isize).wrapping_add(1)));
    let from = &cx.input_type(0).shape;
    let nest = Nest::collapsed(from, [row_major(from), strides.collect()]);
    let fill = Task {
        tasks: chunks(y.len()),
        nanos: stream_nanos(y.len() * size_of::<T>()),
        // SAFETY: only this task writes its chunk in this phase.
        body: move |task: usize, _: &RunCx| unsafe { y.slice_mut(chunk(y.len(), task)) }.fill(value),
    };
    Ok(Compiled::phases(vec![
        Box::new(fill),
        copy_nest(nest, x, 0, y, start as usize),
    ]))
}

/// Returns the padding value as a word of the dtype.
fn padding_word<T: Word>(cx: &CompileCx) -> Result<T, String> {
    let value = cx.attrs().float("value")?;
    Ok(match cx.output_type(0).dtype {
        DType::F32 => T::of_bits((value as f32).to_bits()),
        DType::F16 => T::of_bits(half::f16::from_f64(value).to_bits().into()),
        DType::BF16 => T::of_bits(half::bf16::from_f64(value).to_bits().into()),
        DType::U32 => T::of_bits(value as u32),
        DType::I32 => T::of_bits(value as i32 as u32),
        other => return Err(format!("{other} cannot be padded")),
    })
}

fn concat<T: Word>(cx: &CompileCx) -> Result<Compiled, String> {
    let y = cx.output::<T>(0);
    let to = &cx.output_type(0).shape;
    let axis = to.axis(cx.attrs().int("axis")?)?;
    let strides = row_major(to);
    let mut start = 0;
    let mut parts = Vec::new();
    for i in 0..cx.call().inputs.len() {
        let shape = &cx.input_type(i).shape;
        let nest = Nest::collapsed(shape, [row_major(shape), strides.clone()]);
        parts.push(copy_nest(nest, cx.input::<T>(i), 0, y, start));
        start += shape[axis] * strides[axis] as usize;
    }
    Ok(Compiled::one(KernelGroup::new(parts)))
}

/// Several independent kernels that run as one phase.
struct KernelGroup {
    parts: Vec<Box<dyn Kernel>>,
    /// Index of the first task of each kernel, followed by the number of all tasks.
    starts: Vec<usize>,
}

impl KernelGroup {
    fn new(parts: Vec<Box<dyn Kernel>>) -> Self {
        let mut starts = vec![0];
        let mut end = 0;
        for part in &parts {
            end += part.tasks();
            starts.push(end);
        }
        KernelGroup { parts, starts }
    }

    /// Returns the index of the kernel that a task belongs to. It is a binary search, because a concatenation may
    /// have thousands of parts.
    fn part_of(&self, task: usize) -> usize {
        self.starts.partition_point(|&start| start <= task) - 1
    }
}

impl Kernel for KernelGroup {
    fn tasks(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    fn nanos(&self) -> u64 {
        self.parts.iter().map(|p| p.nanos()).sum()
    }

    unsafe fn run(&self, task: usize, cx: &RunCx) {
        let at = self.part_of(task);
        if let Some(part) = self.parts.get(at) {
            // SAFETY: forwarded; the parts write disjoint regions.
            unsafe { part.run(task - self.starts[at], cx) };
        }
    }
}

fn assign<T: Word>(cx: &CompileCx) -> Result<Compiled, String> {
    let (value, out) = (cx.input::<T>(1), cx.output::<T>(0));
    if cx.input_buffer(1) == cx.output_buffer(0) {
        return Ok(Compiled::phases(Vec::new()));
    }
    Ok(Compiled::one(Task {
        tasks: chunks(out.len()),
        nanos: stream_nanos(2 * out.len() * size_of::<T>()),
        body: move |task: usize, _: &RunCx| {
            let range = chunk(out.len(), task);
            // SAFETY: only this task writes its chunk, and the value is in another buffer.
            unsafe { out.slice_mut(range.clone()).copy_from_slice(value.slice(range)) };
        },
    }))
}
