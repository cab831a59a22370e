//! Layer, RMS and group normalization, also fused with a preceding addition or a following
//! activation.

use meganeura_core::ops::GroupDims;

use crate::kernel::{CHUNK, CompileCx, Compiled, KernelDef, RunCx, Task, f32_only, rows_per_task, stream_nanos};
use crate::memory::View;
use crate::vmath::{self, Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.layer_norm",
        supports: f32_only,
        compile: |cx| layer_norm(cx, None),
    },
    KernelDef {
        name: "core.add_layer_norm",
        supports: f32_only,
        compile: |cx| layer_norm(cx, Some(Residual::of(cx))),
    },
    KernelDef {
        name: "core.rms_norm",
        supports: f32_only,
        compile: |cx| rms_norm(cx, None),
    },
    KernelDef {
        name: "core.add_rms_norm",
        supports: f32_only,
        compile: |cx| rms_norm(cx, Some(Residual::of(cx))),
    },
    KernelDef {
        name: "core.group_norm",
        supports: f32_only,
        compile: |cx| {
            let statistics = [1, 2].map(|i| cx.output::<f32>(i));
            group_norm(cx, Some(statistics))
        },
    },
    KernelDef {
        name: "core.group_norm_silu",
        supports: f32_only,
        compile: |cx| group_norm(cx, None),
    },
];

/// Minimum length of rows that use the wider vectors. For shorter rows, the call would cost more than it saves.
const SHORT: usize = 64;

/// An operand that is added to operand 0 before the normalization. It increases the indices of all later operands and
/// results by one.
#[derive(Clone, Copy)]
struct Residual {
    b: View<f32>,
    sum: View<f32>,
}

impl Residual {
    fn of(cx: &CompileCx) -> Self {
        Residual {
            b: cx.input(1),
            sum: cx.output(0),
        }
    }

    /// Writes a range of elements of the sum, and returns them.
    ///
    /// # Safety
    /// Only the caller may access these elements of the sum, and the operands must not be written meanwhile.
    unsafe fn add<'a>(self, level: Level, a: &[f32], elements: std::ops::Range<usize>) -> &'a [f32] {
        // SAFETY: by contract; the result is in another buffer than the operands.
        unsafe {
            let (b, sum) = (self.b.slice(elements.clone()), self.sum.slice_mut(elements));
            sum_rows(level, a, b, sum);
            sum
        }
    }
}

multiversion! {
    /// Writes `a + b`.
    fn sum_rows(a: &[f32], b: &[f32], out: &mut [f32]) = sum_rows_body;
}
multiversion! {
    /// Returns the sum of `(x - mean)^2`. It consists of a fixed number of partial sums.
    pub(super) fn sum_squares(x: &[f32], mean: f32) -> f32 = sum_squares_body;
}
multiversion! {
    /// Writes `(x - mean) * scale + bias`. The parameters are constant for the whole slice.
    fn scale_row(x: &[f32], parameters: [f32; 3], out: &mut [f32]) = scale_row_body;
}
multiversion! {
    /// Writes `(x - mean) * scale + bias`, with separate parameters for each element.
    pub(super) fn scale_columns(x: &[f32], parameters: [&[f32]; 3], out: &mut [f32]) = scale_columns_body;
}
multiversion! {
    /// Writes `(x - mean) * rstd * weight + bias`. The statistics, mean and rstd, are constant over the row.
    fn scale_layer(x: &[f32], statistics: [f32; 2], parameters: [&[f32]; 2], out: &mut [f32]) = scale_layer_body;
}
multiversion! {
    /// Writes `x * rstd * weight`. `rstd` is constant over the row.
    fn scale_rms(x: &[f32], rstd: f32, weight: &[f32], out: &mut [f32]) = scale_rms_body;
}
multiversion! {
    /// Adds `(x - mean)^2` to `sums`. Groups of `plane` neighbouring elements have the same mean.
    pub(super) fn add_squares(sums: &mut [f32], x: &[f32], means: &[f32], plane: usize) = add_squares_body;
}

#[inline(always)]
fn sum_rows_body<const FMA: bool>(a: &[f32], b: &[f32], out: &mut [f32]) {
    for (o, (&a, &b)) in out.iter_mut().zip(a.iter().zip(b)) {
        *o = a + b;
    }
}

#[inline(always)]
fn scale_row_body<const FMA: bool>(x: &[f32], [mean, scale, bias]: [f32; 3], out: &mut [f32]) {
    for (o, &x) in out.iter_mut().zip(x) {
        *o = (x - mean) * scale + bias;
    }
}

#[inline(always)]
fn scale_columns_body<const FMA: bool>(x: &[f32], [means, scales, biases]: [&[f32]; 3], out: &mut [f32]) {
    let tables = means.iter().zip(scales).zip(biases);
    for ((o, &x), ((&mean, &scale), &bias)) in out.iter_mut().zip(x).zip(tables) {
        *o = (x - mean) * scale + bias;
    }
}

#[inline(always)]
fn scale_layer_body<const FMA: bool>(x: &[f32], [mean, rstd]: [f32; 2], [weight, bias]: [&[f32]; 2], out: &mut [f32]) {
    for (((o, &x), &w), &b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
        *o = (x - mean) * rstd * w + b;
    }
}

#[inline(always)]
fn scale_rms_body<const FMA: bool>(x: &[f32], rstd: f32, weight: &[f32], out: &mut [f32]) {
    for ((o, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *o = x * rstd * w;
    }
}

#[inline(always)]
fn add_squares_body<const FMA: bool>(sums: &mut [f32], x: &[f32], means: &[f32], plane: usize) {
    if plane == 1 {
        for ((sum, &x), &mean) in sums.iter_mut().zip(x).zip(means) {
            *sum += (x - mean) * (x - mean);
        }
        return;
    }
    let planes = sums.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
    for ((sums, x), &mean) in planes.zip(means) {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum += (x - mean) * (x - mean);
        }
    }
}

#[inline(always)]
fn sum_squares_body<const FMA: bool>(x: &[f32], mean: f32) -> f32 {
    const LANES: usize = 32;
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += (x - mean) * (x - mean);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += (x - mean) * (x - mean);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Normalises a row. Returns its mean and reciprocal standard deviation.
pub(super) fn layer_norm_row(level: Level, x: &[f32], parameters: [&[f32]; 2], eps: f32, out: &mut [f32]) -> [f32; 2] {
    let width = x.len() as f32;
    let mean = vmath::sum(level, x) / width;
    let rstd = 1.0 / (sum_squares(level, x, mean) / width + eps).sqrt();
    scale_layer(level, x, [mean, rstd], parameters, out);
    [mean, rstd]
}

/// Normalises a row by its root mean square (RMS). Returns the reciprocal of the RMS.
pub(super) fn rms_norm_row(level: Level, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> f32 {
    let rstd = 1.0 / (sum_squares(level, x, 0.0) / x.len() as f32 + eps).sqrt();
    scale_rms(level, x, rstd, weight, out);
    rstd
}

/// Compiles a layer normalization. Each row is added up, its statistics are computed, and it is normalized, while it
/// is in the first-level cache.
fn layer_norm(cx: &CompileCx, residual: Option<Residual>) -> Result<Compiled, String> {
    let first = usize::from(residual.is_some());
    let x = cx.input::<f32>(0);
    let [weight, bias] = [1, 2].map(|i| cx.input::<f32>(first + i));
    let [out, mean, rstd] = [0, 1, 2].map(|i| cx.output::<f32>(first + i));
    let eps = cx.attrs().float("eps")? as f32;
    let (rows, width, level) = (mean.len(), weight.len(), cx.level);
    let per_task = rows_per_task(width);
    Ok(Compiled::one(Task {
        tasks: rows.div_ceil(per_task),
        nanos: stream_nanos((12 + 8 * first) * x.len()),
        body: move |task: usize, _: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(rows);
            for row in own {
                let elements = row * width..(row + 1) * width;
                // SAFETY: only this task writes these rows, and this dispatch does not write any operand.
                let (x, weight, bias, out, mean, rstd) = unsafe {
                    let x = x.slice(elements.clone());
                    let x = residual.map_or(x, |residual| residual.add(level, x, elements.clone()));
                    let statistics = [mean, rstd].map(|view| &mut view.slice_mut(row..row + 1)[0]);
                    let [mean, rstd] = statistics;
                    (x, weight.all(), bias.all(), out.slice_mut(elements), mean, rstd)
                };
                [*mean, *rstd] = layer_norm_row(level, x, [weight, bias], eps, out);
            }
        },
    }))
}

/// Compiles an RMS normalization, like [`layer_norm`].
fn rms_norm(cx: &CompileCx, residual: Option<Residual>) -> Result<Compiled, String> {
    let first = usize::from(residual.is_some());
    let (x, weight) = (cx.input::<f32>(0), cx.input::<f32>(first + 1));
    let [out, rstd] = [0, 1].map(|i| cx.output::<f32>(first + i));
    let eps = cx.attrs().float("eps")? as f32;
    let (rows, width, level) = (rstd.len(), weight.len(), cx.level);
    let per_task = rows_per_task(width);
    Ok(Compiled::one(Task {
        tasks: rows.div_ceil(per_task),
        nanos: stream_nanos((8 + 8 * first) * x.len()),
        body: move |task: usize, _: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(rows);
            for row in own {
                let elements = row * width..(row + 1) * width;
                // SAFETY: only this task writes these rows, and this dispatch does not write any operand.
                let (x, weight, out, rstd) = unsafe {
                    let x = x.slice(elements.clone());
                    let x = residual.map_or(x, |residual| residual.add(level, x, elements.clone()));
                    let rstd = &mut rstd.slice_mut(row..row + 1)[0];
                    (x, weight.all(), out.slice_mut(elements), rstd)
                };
                *rstd = rms_norm_row(level, x, weight, eps, out);
            }
        },
    }))
}

/// Compiles a group normalization. A task has some groups of some images. It computes the statistics of each group,
/// then normalizes it from the cache. Without `statistics`, it also applies a SiLU in the same pass.
fn group_norm(cx: &CompileCx, statistics: Option<[View<f32>; 2]>) -> Result<Compiled, String> {
    let dims = GroupDims::of(&cx.call())?;
    let [x, weight, bias] = [0, 1, 2].map(|i| cx.input::<f32>(i));
    let out = cx.output::<f32>(0);
    let eps = cx.attrs().float("eps")? as f32;
    let (groups, width, level) = (dims.batch * dims.groups, dims.elements(), cx.level);
    let per_group = dims.channels / dims.groups;
    let per_task = rows_per_task(width);
    Ok(Compiled::one(Task {
        tasks: groups.div_ceil(per_task),
        nanos: stream_nanos(12 * x.len()),
        body: move |task: usize, _: &RunCx| {
            for group in task * per_task..((task + 1) * per_task).min(groups) {
                let elements = group * width..(group + 1) * width;
                // SAFETY: only this task writes these groups, and this dispatch does not write any operand.
                let (x, weight, bias, out) = unsafe {
                    (
                        x.slice(elements.clone()),
                        weight.all(),
                        bias.all(),
                        out.slice_mut(elements),
                    )
                };
                let mean = long_sum(x, |x| vmath::sum(level, x)) / width as f32;
                let variance = long_sum(x, |x| sum_squares(level, x, mean)) / width as f32;
                let rstd = 1.0 / (variance + eps).sqrt();
                let channels = group % dims.groups * per_group..(group % dims.groups + 1) * per_group;
                let parameters = [&weight[channels.clone()], &bias[channels]];
                scale_group(level, x, [mean, rstd], parameters, out);
                match statistics {
                    // SAFETY: only this task writes the entries of its groups.
                    Some(views) => unsafe {
                        for (view, value) in views.into_iter().zip([mean, rstd]) {
                            view.slice_mut(group..group + 1)[0] = value;
                        }
                    },
                    None => vmath::unary_in_place(vmath::Unary::Silu, level, out),
                }
            }
        },
    }))
}

/// Writes `(x - mean) * rstd * weight + bias` of a group. Each of its channels has a weight and a bias.
fn scale_group(level: Level, x: &[f32], statistics: [f32; 2], parameters: [&[f32]; 2], out: &mut [f32]) {
    let [weight, bias] = parameters;
    let plane = x.len() / weight.len().max(1);
    if plane == 1 {
        return scale_layer(level, x, statistics, parameters, out);
    }
    let [mean, rstd] = statistics;
    let planes = x.chunks_exact(plane).zip(out.chunks_exact_mut(plane));
    for ((x, out), (&w, &b)) in planes.zip(weight.iter().zip(bias)) {
        scale_channel(level, x, [mean, rstd * w, b], out);
    }
}

/// Returns the sum of `block_sum` over blocks, in `f64`. In long slices, a running `f32` sum would lose digits.
fn long_sum(x: &[f32], block_sum: impl Fn(&[f32]) -> f32) -> f32 {
    x.chunks(CHUNK).map(|block| f64::from(block_sum(block))).sum::<f64>() as f32
}

/// Computes the same as [`scale_row`]. For short slices, the code runs inline, because a call would cost more.
pub(super) fn scale_channel(level: Level, x: &[f32], parameters: [f32; 3], out: &mut [f32]) {
    if x.len() < SHORT {
        scale_row_body::<false>(x, parameters, out);
    } else {
        scale_row(level, x, parameters, out);
    }
}
