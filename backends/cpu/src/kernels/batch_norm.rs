//! Batch normalisation: each channel is normalised over all images.

use super::norm::{add_squares, scale_channel, scale_columns, sum_squares};
use crate::kernel::{
    CHUNK, CompileCx, Compiled, Kernel, KernelDef, RunCx, Task, f32_only, rows_per_task, stream_nanos,
};
use crate::memory::View;
use crate::vmath::{self, Level};

pub(super) const KERNELS: &[KernelDef] = &[
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

    /// Returns the number of elements of a channel.
    fn count(self) -> f32 {
        (self.images * self.plane) as f32
    }

    /// Returns the range of elements of some channels for each image.
    fn segments(self, channels: std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
        let first = channels.start * self.plane;
        let len = channels.len() * self.plane;
        (0..self.images).map(move |image| {
            let start = image * self.channels * self.plane + first;
            start..start + len
        })
    }
}

/// Minimum number of elements of planes that are summed one by one. Smaller planes are summed in parallel lanes.
const SMALL_PLANE: usize = 16;
/// Maximum number of elements of an image that are summed in parallel lanes.
const SIDE_BY_SIDE: usize = 256;

/// Computation of the mean and variance of channels, at most [`Statistics::batch`] at a time.
#[derive(Clone, Copy)]
struct Statistics {
    dims: Dims,
    level: Level,
}

impl Statistics {
    /// Returns the number of channels of one task.
    fn batch(self) -> usize {
        if self.dims.plane < SMALL_PLANE {
            (SIDE_BY_SIDE / self.dims.plane.max(1)).min(self.dims.channels).max(1)
        } else {
            (CHUNK / (self.dims.images * self.dims.plane).max(1)).clamp(1, SMALL_PLANE)
        }
    }

    /// Sums a function of the elements over each channel, in an order that depends only on shapes. `by_slice` returns
    /// the sum of a slice. `side_by_side` adds each element of a slice to a separate sum.
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

    /// Writes the means and the biased variances of channels.
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

/// Maximum value of [`Statistics::batch`].
const MAX_BATCH: usize = SIDE_BY_SIDE;

/// Number of tables in shared scratch for the phase that normalises: mean, factor and bias of each channel.
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
            // SAFETY: no phase before the last one writes operands.
            let (x, weight, bias) = unsafe { (x.all(), weight.slice(own.clone()), bias.slice(own.clone())) };
            statistics.compute(x, own.clone(), means, variances);
            // SAFETY: only this task accesses these channels of the results and of the tables: three tables for the
            // normalization, and one for variances. No result of this phase is an operand.
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

/// Compiles the last phase, which updates the running statistics. Other operands may share a buffer with them; the
/// earlier phases have read all of these operands.
fn running_statistics(cx: &CompileCx, dims: Dims) -> Result<Box<dyn Kernel>, String> {
    let momentum = cx.attrs().float("momentum")? as f32;
    let old = [3, 4].map(|i| cx.input::<f32>(i));
    let new = [1, 2].map(|i| cx.output::<f32>(i));
    // The unbiased variance of one element is undefined. In this case, the biased one, 0, is used.
    let unbias = dims.count() / (dims.count().max(2.0) - 1.0);
    Ok(Box::new(Task {
        tasks: 1,
        nanos: 4 * dims.channels as u64,
        body: move |_, cx: &RunCx| {
            // SAFETY: the first phase has filled the tables, and no code has written them since.
            let tables = unsafe { std::slice::from_raw_parts(cx.shared, (TABLES + 1) * dims.channels) };
            let (means, variances) = (&tables[..dims.channels], &tables[TABLES * dims.channels..]);
            for (c, (&mean, &variance)) in means.iter().zip(variances).enumerate() {
                // SAFETY: this is the only task. The old and the new statistics may be in one buffer, so no reference
                // to an element outlives its read or write.
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
            // SAFETY: this dispatch does not write any operand, and the phase has only this task.
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

/// Compiles the phase that computes `(x - mean) * factor + bias` from the tables in shared scratch.
fn normalise(x: View<f32>, out: View<f32>, dims: Dims, level: Level) -> Box<dyn Kernel> {
    // If planes have one element, the channels of an image are processed together, because they are contiguous.
    // Larger planes are processed one by one.
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
            // SAFETY: only this task writes these elements, and the previous phase has filled the tables. `x` and
            // `out` are different buffers, and this phase writes no other memory.
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
