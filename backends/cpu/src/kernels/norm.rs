//! Layer, RMS, group and batch normalisation.

use meganeura_core::ops::GroupDims;

use super::{CHUNK, CompileCx, Compiled, Kernel, KernelDef, Task, f32_only, rows_per_task, stream_nanos};
use crate::executor::RunCx;
use crate::memory::View;
use crate::vmath::{self, Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.layer_norm",
        supports: f32_only,
        compile: layer_norm,
    },
    KernelDef {
        name: "core.rms_norm",
        supports: f32_only,
        compile: rms_norm,
    },
    KernelDef {
        name: "core.group_norm",
        supports: f32_only,
        compile: group_norm,
    },
    KernelDef {
        name: "core.batch_norm",
        supports: f32_only,
        compile: batch_norm,
    },
    KernelDef {
        name: "core.batch_norm_inference",
        supports: f32_only,
        compile: batch_norm_inference,
    },
];

multiversion! {
    /// `sum of (x - mean)^2`, by partial sums of a fixed number of lanes.
    pub(super) fn sum_squares(x: &[f32], mean: f32) -> f32 = sum_squares_body;
}
multiversion! {
    /// `(x - mean) * scale + bias`, each constant over the slice.
    fn scale_row(x: &[f32], parameters: [f32; 3], out: &mut [f32]) = scale_row_body;
}
multiversion! {
    /// `(x - mean) * scale + bias`, each with a value for every element.
    fn scale_columns(x: &[f32], parameters: [&[f32]; 3], out: &mut [f32]) = scale_columns_body;
}
multiversion! {
    /// `(x - mean) * rstd * weight + bias`, the first two constant over the row.
    fn scale_layer(x: &[f32], statistics: [f32; 2], parameters: [&[f32]; 2], out: &mut [f32]) = scale_layer_body;
}
multiversion! {
    /// `x * rstd * weight`, the factor constant over the row.
    fn scale_rms(x: &[f32], rstd: f32, weight: &[f32], out: &mut [f32]) = scale_rms_body;
}
multiversion! {
    /// Adds `(x - mean)^2` to `sums`, of which each `plane` neighbours have a mean of their own.
    fn add_squares(sums: &mut [f32], x: &[f32], means: &[f32], plane: usize) = add_squares_body;
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

fn layer_norm(cx: &CompileCx) -> Result<Compiled, String> {
    let [x, weight, bias] = [0, 1, 2].map(|i| cx.input::<f32>(i));
    let [out, mean, rstd] = [0, 1, 2].map(|i| cx.output::<f32>(i));
    let eps = cx.attrs().float("eps")? as f32;
    let (rows, width, level) = (mean.len(), weight.len(), cx.level);
    let per_task = rows_per_task(width);
    Ok(Compiled::one(Task {
        tasks: rows.div_ceil(per_task),
        nanos: stream_nanos(12 * x.len()),
        body: move |task: usize, _: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(rows);
            let elements = own.start * width..own.end * width;
            // SAFETY: this task alone writes these rows; no operand is written by this dispatch.
            let (x, weight, bias, out, means, rstds) = unsafe {
                (
                    x.slice(elements.clone()),
                    weight.all(),
                    bias.all(),
                    out.slice_mut(elements),
                    mean.slice_mut(own.clone()),
                    rstd.slice_mut(own),
                )
            };
            let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
            for ((x, out), (mean, rstd)) in rows.zip(means.iter_mut().zip(rstds)) {
                *mean = vmath::sum(level, x) / width as f32;
                *rstd = 1.0 / (sum_squares(level, x, *mean) / width as f32 + eps).sqrt();
                scale_layer(level, x, [*mean, *rstd], [weight, bias], out);
            }
        },
    }))
}

fn rms_norm(cx: &CompileCx) -> Result<Compiled, String> {
    let [x, weight] = [0, 1].map(|i| cx.input::<f32>(i));
    let [out, rstd] = [0, 1].map(|i| cx.output::<f32>(i));
    let eps = cx.attrs().float("eps")? as f32;
    let (rows, width, level) = (rstd.len(), weight.len(), cx.level);
    let per_task = rows_per_task(width);
    Ok(Compiled::one(Task {
        tasks: rows.div_ceil(per_task),
        nanos: stream_nanos(8 * x.len()),
        body: move |task: usize, _: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(rows);
            let elements = own.start * width..own.end * width;
            // SAFETY: this task alone writes these rows; no operand is written by this dispatch.
            let (x, weight, out, rstds) = unsafe {
                (
                    x.slice(elements.clone()),
                    weight.all(),
                    out.slice_mut(elements),
                    rstd.slice_mut(own),
                )
            };
            let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
            for ((x, out), rstd) in rows.zip(rstds) {
                *rstd = 1.0 / (sum_squares(level, x, 0.0) / width as f32 + eps).sqrt();
                scale_rms(level, x, *rstd, weight, out);
            }
        },
    }))
}

/// A task is some groups of some images, each measured and then normalised from the cache.
fn group_norm(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = GroupDims::of(&cx.call())?;
    let [x, weight, bias] = [0, 1, 2].map(|i| cx.input::<f32>(i));
    let [out, mean, rstd] = [0, 1, 2].map(|i| cx.output::<f32>(i));
    let eps = cx.attrs().float("eps")? as f32;
    let (groups, width, level) = (mean.len(), dims.elements(), cx.level);
    let per_group = dims.channels / dims.groups;
    let per_task = rows_per_task(width);
    Ok(Compiled::one(Task {
        tasks: groups.div_ceil(per_task),
        nanos: stream_nanos(12 * x.len()),
        body: move |task: usize, _: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(groups);
            let elements = own.start * width..own.end * width;
            // SAFETY: this task alone writes these groups; no operand is written by this dispatch.
            let (x, weight, bias, out, means, rstds) = unsafe {
                (
                    x.slice(elements.clone()),
                    weight.all(),
                    bias.all(),
                    out.slice_mut(elements),
                    mean.slice_mut(own.clone()),
                    rstd.slice_mut(own.clone()),
                )
            };
            let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
            for ((group, (x, out)), (mean, rstd)) in own.zip(rows).zip(means.iter_mut().zip(rstds)) {
                *mean = long_sum(x, |x| vmath::sum(level, x)) / width as f32;
                let variance = long_sum(x, |x| sum_squares(level, x, *mean)) / width as f32;
                *rstd = 1.0 / (variance + eps).sqrt();
                let channels = group % dims.groups * per_group..(group % dims.groups + 1) * per_group;
                let (weight, bias) = (&weight[channels.clone()], &bias[channels]);
                if dims.plane == 1 {
                    scale_layer(level, x, [*mean, *rstd], [weight, bias], out);
                    continue;
                }
                let planes = x.chunks_exact(dims.plane).zip(out.chunks_exact_mut(dims.plane));
                for ((x, out), (&w, &b)) in planes.zip(weight.iter().zip(bias)) {
                    scale_channel(level, x, [*mean, *rstd * w, b], out);
                }
            }
        },
    }))
}

/// Totals of blocks added in `f64`, for slices so long that a running `f32` sum would lose digits.
fn long_sum(x: &[f32], block_sum: impl Fn(&[f32]) -> f32) -> f32 {
    x.chunks(CHUNK).map(|block| f64::from(block_sum(block))).sum::<f64>() as f32
}

/// [`scale_row`], or its body where a call would cost more.
fn scale_channel(level: Level, x: &[f32], parameters: [f32; 3], out: &mut [f32]) {
    if x.len() < SHORT {
        scale_row_body::<false>(x, parameters, out);
    } else {
        scale_row(level, x, parameters, out);
    }
}

/// Sizes of `x [images, channels, plane]`.
#[derive(Clone, Copy)]
struct Dims {
    images: usize,
    channels: usize,
    plane: usize,
}

impl Dims {
    fn of(cx: &CompileCx) -> Self {
        let shape = &cx.input_type(0).shape;
        Dims {
            images: shape[0],
            channels: shape[1],
            plane: shape[2..].iter().product(),
        }
    }

    fn len(self) -> usize {
        self.images * self.channels * self.plane
    }

    /// Elements of a channel.
    fn count(self) -> f32 {
        (self.images * self.plane) as f32
    }

    /// Elements of some channels in each image, which are contiguous.
    fn segments(self, channels: std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
        let first = channels.start * self.plane;
        let len = channels.len() * self.plane;
        (0..self.images).map(move |image| {
            let start = image * self.channels * self.plane + first;
            start..start + len
        })
    }
}

/// Planes below this size are summed side by side rather than one after the other.
const SMALL_PLANE: usize = 16;
/// Rows below this size are over before a wider vector would pay for the call.
const SHORT: usize = 64;
/// Elements of an image that are summed side by side.
const SIDE_BY_SIDE: usize = 256;

/// Mean and sum of squared deviations of some channels, of which there are at most [`Statistics::batch`].
#[derive(Clone, Copy)]
struct Statistics {
    dims: Dims,
    level: Level,
}

impl Statistics {
    /// Channels of one task.
    fn batch(self) -> usize {
        if self.dims.plane < SMALL_PLANE {
            (SIDE_BY_SIDE / self.dims.plane.max(1)).min(self.dims.channels).max(1)
        } else {
            (CHUNK / (self.dims.images * self.dims.plane).max(1)).clamp(1, SMALL_PLANE)
        }
    }

    /// Totals over the channel of a function of its elements, in an order that depends on shapes alone:
    /// `by_slice` gives the total of a slice, `side_by_side` adds to a total for each element.
    fn totals(
        self,
        x: &[f32],
        channels: std::ops::Range<usize>,
        totals: &mut [f32],
        by_slice: impl Fn(usize, &[f32]) -> f32,
        side_by_side: impl Fn(&mut [f32], &[f32]),
    ) {
        let plane = self.dims.plane;
        if plane >= SMALL_PLANE {
            for (i, (channel, total)) in channels.zip(totals).enumerate() {
                let sums = self
                    .dims
                    .segments(channel..channel + 1)
                    .map(|s| f64::from(by_slice(i, &x[s])));
                *total = sums.sum::<f64>() as f32;
            }
            return;
        }
        let mut columns = [0.0; SIDE_BY_SIDE];
        let columns = &mut columns[..channels.len() * plane];
        for segment in self.dims.segments(channels) {
            side_by_side(columns, &x[segment]);
        }
        for (total, columns) in totals.iter_mut().zip(columns.chunks_exact(plane)) {
            *total = columns.iter().sum();
        }
    }

    /// Writes means and biased variances.
    fn compute(self, x: &[f32], channels: std::ops::Range<usize>, means: &mut [f32], variances: &mut [f32]) {
        let (level, count, plane) = (self.level, self.dims.count(), self.dims.plane);
        self.totals(
            x,
            channels.clone(),
            means,
            |_, x| vmath::sum(level, x),
            |sums, x| {
                vmath::add_assign(level, sums, x);
            },
        );
        means.iter_mut().for_each(|m| *m /= count);
        let means = &*means;
        let squares = |sums: &mut [f32], x: &[f32]| add_squares(level, sums, x, means, plane);
        self.totals(x, channels, variances, |i, x| sum_squares(level, x, means[i]), squares);
        variances.iter_mut().for_each(|v| *v /= count);
    }
}

/// Largest value of [`Statistics::batch`].
const MAX_BATCH: usize = SIDE_BY_SIDE;

/// Shared scratch of the normalising phase: mean, factor and bias of each channel.
const TABLES: usize = 3;

fn batch_norm(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = Dims::of(cx);
    let [x, weight, bias] = [0, 1, 2].map(|i| cx.input::<f32>(i));
    let [out, mean, rstd] = [0, 3, 4].map(|i| cx.output::<f32>(i));
    let eps = cx.attrs().float("eps")? as f32;
    let statistics = Statistics { dims, level: cx.level };
    let batch = statistics.batch();
    let measure = Task {
        tasks: dims.channels.div_ceil(batch),
        nanos: stream_nanos(8 * dims.len()),
        body: move |task: usize, cx: &RunCx| {
            let own = task * batch..((task + 1) * batch).min(dims.channels);
            let (mut means, mut variances) = ([0.0; MAX_BATCH], [0.0; MAX_BATCH]);
            let (means, variances) = (&mut means[..own.len()], &mut variances[..own.len()]);
            // SAFETY: operands are written in the last phase at the earliest.
            let (x, weight, bias) = unsafe { (x.all(), weight.slice(own.clone()), bias.slice(own.clone())) };
            statistics.compute(x, own.clone(), means, variances);
            // SAFETY: this task alone touches these channels of the results and of the tables, of which there
            // are the three of normalisation and one of variances; results of this phase are no operands.
            let (mean, rstd, tables) = unsafe {
                let table = |t: usize| cx.shared.add(t * dims.channels + own.start);
                let tables: [&mut [f32]; TABLES + 1] =
                    std::array::from_fn(|t| std::slice::from_raw_parts_mut(table(t), own.len()));
                (mean.slice_mut(own.clone()), rstd.slice_mut(own.clone()), tables)
            };
            let [shifts, scales, biases, kept] = tables;
            mean.copy_from_slice(means);
            shifts.copy_from_slice(means);
            biases.copy_from_slice(bias);
            kept.copy_from_slice(variances);
            for (((scale, r), &w), &var) in scales.iter_mut().zip(rstd).zip(weight).zip(&*variances) {
                *r = 1.0 / (var + eps).sqrt();
                *scale = *r * w;
            }
        },
    };
    Ok(Compiled {
        phases: vec![
            Box::new(measure),
            normalise(x, out, dims, cx.level),
            running_statistics(cx, dims)?,
        ],
        shared: (TABLES + 1) * dims.channels,
        private: 0,
    })
}

/// The last phase: other operands may share a buffer with the running statistics, and have been read by then.
fn running_statistics(cx: &CompileCx, dims: Dims) -> Result<Box<dyn Kernel>, String> {
    let momentum = cx.attrs().float("momentum")? as f32;
    let old = [3, 4].map(|i| cx.input::<f32>(i));
    let new = [1, 2].map(|i| cx.output::<f32>(i));
    // One element has no unbiased variance; the biased one, 0, is kept then.
    let unbias = dims.count() / (dims.count().max(2.0) - 1.0);
    Ok(Box::new(Task {
        tasks: 1,
        nanos: 4 * dims.channels as u64,
        body: move |_, cx: &RunCx| {
            // SAFETY: the first phase has filled the tables, and nobody writes them since.
            let tables = unsafe { std::slice::from_raw_parts(cx.shared, (TABLES + 1) * dims.channels) };
            let (means, variances) = (&tables[..dims.channels], &tables[TABLES * dims.channels..]);
            for (c, (&mean, &variance)) in means.iter().zip(variances).enumerate() {
                // SAFETY: the only task. Old and new statistics may be one buffer, so no reference to an
                // element outlives its read or write.
                unsafe {
                    let [running_mean, running_variance] = old.map(|view| view.slice(c..c + 1)[0]);
                    let values = [
                        running_mean * (1.0 - momentum) + mean * momentum,
                        running_variance * (1.0 - momentum) + variance * unbias * momentum,
                    ];
                    for (view, value) in new.iter().zip(values) {
                        view.slice_mut(c..c + 1)[0] = value;
                    }
                }
            }
        },
    }))
}

fn batch_norm_inference(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = Dims::of(cx);
    let [x, weight, bias, mean, var] = [0, 1, 2, 3, 4].map(|i| cx.input::<f32>(i));
    let eps = cx.attrs().float("eps")? as f32;
    let tables = Task {
        tasks: 1,
        nanos: 4 * dims.channels as u64,
        body: move |_, cx: &RunCx| {
            // SAFETY: no operand is written by this dispatch; the only task of its phase has the scratch.
            let (weight, bias, mean, var, tables) = unsafe {
                let tables = std::slice::from_raw_parts_mut(cx.shared, TABLES * dims.channels);
                (weight.all(), bias.all(), mean.all(), var.all(), tables)
            };
            let (means, rest) = tables.split_at_mut(dims.channels);
            let (scales, biases) = rest.split_at_mut(dims.channels);
            means.copy_from_slice(mean);
            biases.copy_from_slice(bias);
            for ((scale, &w), &var) in scales.iter_mut().zip(weight).zip(var) {
                *scale = w / (var + eps).sqrt();
            }
        },
    };
    Ok(Compiled {
        phases: vec![Box::new(tables), normalise(x, cx.output(0), dims, cx.level)],
        shared: TABLES * dims.channels,
        private: 0,
    })
}

/// `(x - mean) * factor + bias` with the tables in shared scratch.
fn normalise(x: View<f32>, out: View<f32>, dims: Dims, level: Level) -> Box<dyn Kernel> {
    // Single elements go by images, whose channels are contiguous; larger planes one by one.
    let (rows, width) = if dims.plane == 1 {
        (dims.images, dims.channels)
    } else {
        (dims.images * dims.channels, dims.plane)
    };
    let per_task = rows_per_task(width);
    Box::new(Task {
        tasks: rows.div_ceil(per_task),
        nanos: stream_nanos(8 * dims.len()),
        body: move |task: usize, cx: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(rows);
            let elements = own.start * width..own.end * width;
            // SAFETY: this task alone writes these elements; the phase before has filled the tables; `x` is
            // another buffer than `out`, and nothing else is written in this phase.
            let (tables, x, out) = unsafe {
                let tables = std::slice::from_raw_parts(cx.shared, TABLES * dims.channels);
                (tables, x.slice(elements.clone()), out.slice_mut(elements))
            };
            let (means, rest) = tables.split_at(dims.channels);
            let (scales, biases) = rest.split_at(dims.channels);
            for (row, (x, out)) in own.zip(x.chunks_exact(width).zip(out.chunks_exact_mut(width))) {
                if dims.plane == 1 {
                    scale_columns(level, x, [means, scales, biases], out);
                } else {
                    let c = row % dims.channels;
                    let parameters = [means[c], scales[c], biases[c]];
                    scale_channel(level, x, parameters, out);
                }
            }
        },
    })
}
