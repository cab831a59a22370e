//! Derivatives of the normalisations by channels: batch norm and group norm.
//!
//! They need only two sums over the elements of a channel in an image: the sum of `dy` and the sum of `dy (x -
//! mean)`. Given these sums, `dx` is linear in `dy` and `x - mean`, with factors that are constant over the channel.

use std::ops::Range;

use meganeura_core::ops::GroupDims;

use super::norm_grad::group_rows;
use crate::kernel::{CompileCx, Compiled, Kernel, KernelDef, RunCx, Task, f32_only, rows_per_task, stream_nanos};
use crate::memory::View;
use crate::vmath::{self, Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.batch_norm_grad",
        supports: f32_only,
        compile: |cx| Ok(batch_norm(cx)),
    },
    KernelDef {
        name: "core.group_norm_grad",
        supports: f32_only,
        compile: |cx| {
            let dims = GroupDims::of(&cx.call())?;
            if dims.plane == 1 {
                return Ok(group_rows(cx, dims.groups));
            }
            Ok(group_norm(cx, dims))
        },
    },
];

multiversion! {
    /// Returns the sums of `dy` and of `dy (x - mean)`. Each is computed as partial sums in a fixed number of lanes.
    fn sums(x: &[f32], dy: &[f32], mean: f32) -> [f32; 2] = sums_body;
}
multiversion! {
    /// Adds `dy` and `dy (x - mean)` to the sums of their columns.
    fn add_columns(x: &[f32], dy: &[f32], means: &[f32], sums: [&mut [f32]; 2]) = add_columns_body;
}
multiversion! {
    /// Computes `dx` of a channel in an image.
    fn gradient(x: &[f32], dy: &[f32], factors: Factors, dx: &mut [f32]) = gradient_body;
}
multiversion! {
    /// Computes `dx` of an image whose channels have one element each.
    fn gradient_columns(x: &[f32], dy: &[f32], factors: [&[f32]; 4], dx: &mut [f32]) = gradient_columns_body;
}

const LANES: usize = 16;
/// Minimum number of elements for which sums in lanes are faster than sequential sums.
const SHORT: usize = 32;

/// The factors of a channel in `dx = by_dy dy + by_x (x - mean) + shift`.
#[derive(Clone, Copy)]
struct Factors {
    mean: f32,
    by_dy: f32,
    by_x: f32,
    shift: f32,
}

#[inline(always)]
fn sums_body<const FMA: bool>(x: &[f32], dy: &[f32], mean: f32) -> [f32; 2] {
    let (mut plain, mut along) = ([0.0; LANES], [0.0; LANES]);
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (dy, dy_rest) = dy.as_chunks::<LANES>();
    for (x, dy) in x.iter().zip(dy) {
        for i in 0..LANES {
            plain[i] += dy[i];
            along[i] = vmath::mul_add::<FMA>(dy[i], x[i] - mean, along[i]);
        }
    }
    for (i, (&x, &dy)) in x_rest.iter().zip(dy_rest).enumerate() {
        plain[i] += dy;
        along[i] = vmath::mul_add::<FMA>(dy, x - mean, along[i]);
    }
    [plain.iter().sum(), along.iter().sum()]
}

#[inline(always)]
fn add_columns_body<const FMA: bool>(x: &[f32], dy: &[f32], means: &[f32], [plain, along]: [&mut [f32]; 2]) {
    let len = x.len();
    let (dy, means, plain, along) = (&dy[..len], &means[..len], &mut plain[..len], &mut along[..len]);
    for i in 0..len {
        plain[i] += dy[i];
        along[i] = vmath::mul_add::<FMA>(dy[i], x[i] - means[i], along[i]);
    }
}

#[inline(always)]
fn gradient_body<const FMA: bool>(x: &[f32], dy: &[f32], f: Factors, dx: &mut [f32]) {
    let len = dx.len();
    let (x, dy) = (&x[..len], &dy[..len]);
    for i in 0..len {
        dx[i] = f.by_dy * dy[i] + f.by_x * (x[i] - f.mean) + f.shift;
    }
}

#[inline(always)]
fn gradient_columns_body<const FMA: bool>(
    x: &[f32],
    dy: &[f32],
    [mean, by_dy, by_x, shift]: [&[f32]; 4],
    dx: &mut [f32],
) {
    let len = dx.len();
    let (x, dy, mean) = (&x[..len], &dy[..len], &mean[..len]);
    let (by_dy, by_x, shift) = (&by_dy[..len], &by_x[..len], &shift[..len]);
    for i in 0..len {
        dx[i] = by_dy[i] * dy[i] + by_x[i] * (x[i] - mean[i]) + shift[i];
    }
}

/// Returns the result of [`sums`], or of sequential sums for short channels.
fn channel_sums(level: Level, x: &[f32], dy: &[f32], mean: f32) -> [f32; 2] {
    if x.len() >= SHORT {
        return sums(level, x, dy, mean);
    }
    let (mut plain, mut along) = (0.0, 0.0);
    for (&x, &dy) in x.iter().zip(dy) {
        plain += dy;
        along += dy * (x - mean);
    }
    [plain, along]
}

fn channel_gradient(level: Level, x: &[f32], dy: &[f32], factors: Factors, dx: &mut [f32]) {
    if x.len() >= SHORT {
        gradient(level, x, dy, factors, dx);
    } else {
        gradient_body::<false>(x, dy, factors, dx);
    }
}

/// Number of tables with an entry per channel: the fields of [`Factors`].
const TABLES: usize = 4;
/// Number of images per partial sum, if a channel has one element in each image.
const IMAGES: usize = 256;
/// Number of channels of one task, if a channel has one element in each image, and in phases with few operations per
/// channel.
const STRIP: usize = 256;

/// Operands and sizes of a batch normalisation's derivative.
#[derive(Clone, Copy)]
struct Batch {
    x: View<f32>,
    dy: View<f32>,
    mean: View<f32>,
    images: usize,
    channels: usize,
    plane: usize,
    /// Number of partial sums of a channel.
    parts: usize,
    level: Level,
}

/// Compiles the derivative of a batch normalisation. The shared scratch contains the sums, `[parts, 2, channels]`,
/// and then the tables.
fn batch_norm(cx: &CompileCx) -> Compiled {
    let shape = &cx.input_type(0).shape;
    let (images, channels, plane) = (shape[0], shape[1], shape[2..].iter().product());
    let batch = Batch {
        x: cx.input(0),
        dy: cx.input(4),
        mean: cx.input(2),
        images,
        channels,
        plane,
        parts: if plane == 1 { images.div_ceil(IMAGES) } else { images },
        level: cx.level,
    };
    let measure = if plane == 1 {
        batch.column_sums()
    } else {
        batch.plane_sums()
    };
    Compiled {
        phases: vec![measure, batch.tables(cx), batch.gradients(cx.output(0))],
        shared: (2 * batch.parts + TABLES) * channels,
        private: 0,
    }
}

impl Batch {
    fn column_sums(self) -> Box<dyn Kernel> {
        let strips = self.channels.div_ceil(STRIP);
        Box::new(Task {
            tasks: strips * self.parts,
            nanos: stream_nanos(8 * self.x.len()),
            body: move |task: usize, cx: &RunCx| {
                let (part, start) = (task / strips, task % strips * STRIP);
                let own = start..(start + STRIP).min(self.channels);
                // SAFETY: no task writes operands, and only this task uses this part of the sums of these channels.
                let (x, dy, mean, [plain, along]) = unsafe {
                    let sums = [0, 1].map(|k| {
                        let first = cx.shared.add((2 * part + k) * self.channels + start);
                        std::slice::from_raw_parts_mut(first, own.len())
                    });
                    (self.x.all(), self.dy.all(), self.mean.slice(own.clone()), sums)
                };
                plain.fill(0.0);
                along.fill(0.0);
                for image in part * IMAGES..((part + 1) * IMAGES).min(self.images) {
                    let row = image * self.channels + own.start..image * self.channels + own.end;
                    add_columns(self.level, &x[row.clone()], &dy[row], mean, [plain, along]);
                }
            },
        })
    }

    fn plane_sums(self) -> Box<dyn Kernel> {
        let rows = self.images * self.channels;
        let per_task = rows_per_task(self.plane);
        Box::new(Task {
            tasks: rows.div_ceil(per_task),
            nanos: stream_nanos(8 * self.x.len()),
            body: move |task: usize, cx: &RunCx| {
                for row in task * per_task..((task + 1) * per_task).min(rows) {
                    let (image, c) = (row / self.channels, row % self.channels);
                    let elements = row * self.plane..(row + 1) * self.plane;
                    // SAFETY: no task writes operands, and only this task uses the sums of these rows.
                    unsafe {
                        let (x, dy) = (self.x.slice(elements.clone()), self.dy.slice(elements));
                        let [plain, along] = channel_sums(self.level, x, dy, self.mean.slice(c..c + 1)[0]);
                        *cx.shared.add(2 * image * self.channels + c) = plain;
                        *cx.shared.add((2 * image + 1) * self.channels + c) = along;
                    }
                }
            },
        })
    }

    /// Compiles the phase that computes the parameter gradients and the tables for the last phase.
    fn tables(self, cx: &CompileCx) -> Box<dyn Kernel> {
        let (weight, rstd) = (cx.input::<f32>(1), cx.input::<f32>(3));
        let (dweight, dbias) = (cx.output::<f32>(1), cx.output::<f32>(2));
        let count = (self.images * self.plane) as f32;
        Box::new(Task {
            tasks: self.channels.div_ceil(STRIP),
            nanos: (2 * self.parts * self.channels) as u64,
            body: move |task: usize, cx: &RunCx| {
                let own = task * STRIP..((task + 1) * STRIP).min(self.channels);
                // SAFETY: only this task accesses these channels of the results and of the tables. The previous phase
                // has filled the sums.
                let (weight, rstd, mean, dweight, dbias, sums, tables) = unsafe {
                    let tables: [&mut [f32]; TABLES] = std::array::from_fn(|t| {
                        let first = cx.shared.add((2 * self.parts + t) * self.channels + own.start);
                        std::slice::from_raw_parts_mut(first, own.len())
                    });
                    (
                        weight.slice(own.clone()),
                        rstd.slice(own.clone()),
                        self.mean.slice(own.clone()),
                        dweight.slice_mut(own.clone()),
                        dbias.slice_mut(own.clone()),
                        std::slice::from_raw_parts(cx.shared, 2 * self.parts * self.channels),
                        tables,
                    )
                };
                let totals = add_parts(sums, self.parts, self.channels, &own);
                let [means, by_dy, by_x, shift] = tables;
                for i in 0..own.len() {
                    let [plain, along] = totals[i].map(|v| v as f32);
                    (dweight[i], dbias[i]) = (along * rstd[i], plain);
                    means[i] = mean[i];
                    by_dy[i] = weight[i] * rstd[i];
                    by_x[i] = -by_dy[i] * rstd[i] * dweight[i] / count;
                    shift[i] = -by_dy[i] * plain / count;
                }
            },
        })
    }

    fn gradients(self, dx: View<f32>) -> Box<dyn Kernel> {
        let (rows, width) = if self.plane == 1 {
            (self.images, self.channels)
        } else {
            (self.images * self.channels, self.plane)
        };
        let per_task = rows_per_task(width);
        Box::new(Task {
            tasks: rows.div_ceil(per_task),
            nanos: stream_nanos(12 * self.x.len()),
            body: move |task: usize, cx: &RunCx| {
                let own = task * per_task..((task + 1) * per_task).min(rows);
                let elements = own.start * width..own.end * width;
                // SAFETY: only this task writes these elements; the previous phase has filled the
                // tables.
                let (x, dy, dx, tables) = unsafe {
                    let tables: [&[f32]; TABLES] = std::array::from_fn(|t| {
                        let first = cx.shared.add((2 * self.parts + t) * self.channels);
                        std::slice::from_raw_parts(first, self.channels)
                    });
                    (
                        self.x.slice(elements.clone()),
                        self.dy.slice(elements.clone()),
                        dx.slice_mut(elements),
                        tables,
                    )
                };
                let rows = x
                    .chunks_exact(width)
                    .zip(dy.chunks_exact(width))
                    .zip(dx.chunks_exact_mut(width));
                for (row, ((x, dy), dx)) in own.zip(rows) {
                    if self.plane == 1 {
                        gradient_columns(self.level, x, dy, tables, dx);
                        continue;
                    }
                    let [mean, by_dy, by_x, shift] = tables.map(|t| t[row % self.channels]);
                    let factors = Factors {
                        mean,
                        by_dy,
                        by_x,
                        shift,
                    };
                    channel_gradient(self.level, x, dy, factors, dx);
                }
            },
        })
    }
}

/// Adds up the sums `[parts, 2, channels]` over the parts, in order, for the channels `own` (at most [`STRIP`]).
fn add_parts(sums: &[f32], parts: usize, channels: usize, own: &Range<usize>) -> [[f64; 2]; STRIP] {
    let mut totals = [[0.0; 2]; STRIP];
    for part in 0..parts {
        for k in 0..2 {
            let row = (2 * part + k) * channels;
            let sums = &sums[row + own.start..row + own.end];
            for (total, &sum) in totals.iter_mut().zip(sums) {
                total[k] += f64::from(sum);
            }
        }
    }
    totals
}

/// Compiles the derivative of a group normalization. A task has some groups of some images. It computes the sums,
/// then `dx`. The second pass reads the operands from the cache unless the group is large. The sums, `[images, 2,
/// channels]`, are kept for the parameter gradients.
fn group_norm(cx: &CompileCx, dims: GroupDims) -> Compiled {
    let [x, weight, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| cx.input::<f32>(i));
    let (dx, level) = (cx.output::<f32>(0), cx.level);
    let (count, per_group) = (dims.batch * dims.groups, dims.channels / dims.groups);
    let per_task = rows_per_task(dims.elements());
    let main = Task {
        tasks: count.div_ceil(per_task),
        nanos: stream_nanos(16 * x.len()),
        body: move |task: usize, cx: &RunCx| {
            for group in task * per_task..((task + 1) * per_task).min(count) {
                let (image, g) = (group / dims.groups, group % dims.groups);
                let channels = g * per_group..(g + 1) * per_group;
                let elements = group * dims.elements()..(group + 1) * dims.elements();
                // SAFETY: no task writes operands, and only this task writes `dx` and the sums of this group.
                let (x, dy, weight, mean, rstd, dx, [plain, along]) = unsafe {
                    let sums = [0, 1].map(|k| {
                        let first = cx.shared.add((2 * image + k) * dims.channels + channels.start);
                        std::slice::from_raw_parts_mut(first, per_group)
                    });
                    (
                        x.slice(elements.clone()),
                        dy.slice(elements.clone()),
                        weight.slice(channels),
                        mean.slice(group..group + 1)[0],
                        rstd.slice(group..group + 1)[0],
                        dx.slice_mut(elements),
                        sums,
                    )
                };
                let planes = x.chunks_exact(dims.plane).zip(dy.chunks_exact(dims.plane));
                let (mut sum, mut sum_along) = (0.0, 0.0);
                for (c, (x, dy)) in planes.clone().enumerate() {
                    [plain[c], along[c]] = channel_sums(level, x, dy, mean);
                    sum += f64::from(weight[c]) * f64::from(plain[c]);
                    sum_along += f64::from(weight[c]) * f64::from(along[c]);
                }
                let share = 1.0 / dims.elements() as f32;
                for ((&w, (x, dy)), dx) in weight.iter().zip(planes).zip(dx.chunks_exact_mut(dims.plane)) {
                    let factors = Factors {
                        mean,
                        by_dy: rstd * w,
                        by_x: -rstd * rstd * rstd * sum_along as f32 * share,
                        shift: -rstd * sum as f32 * share,
                    };
                    channel_gradient(level, x, dy, factors, dx);
                }
            }
        },
    };
    let (dweight, dbias) = (cx.output::<f32>(1), cx.output::<f32>(2));
    let parameters = Task {
        tasks: dims.channels.div_ceil(STRIP),
        nanos: (3 * dims.batch * dims.channels) as u64,
        body: move |task: usize, cx: &RunCx| {
            let own = task * STRIP..((task + 1) * STRIP).min(dims.channels);
            // SAFETY: only this task writes these channels; the previous phase has filled the sums.
            let (rstd, sums, dweight, dbias) = unsafe {
                let sums = std::slice::from_raw_parts(cx.shared, 2 * dims.batch * dims.channels);
                (
                    rstd.all(),
                    sums,
                    dweight.slice_mut(own.clone()),
                    dbias.slice_mut(own.clone()),
                )
            };
            let mut totals = [[0.0f64; 2]; STRIP];
            for (image, sums) in sums.chunks_exact(2 * dims.channels).enumerate() {
                let (plain, along) = sums.split_at(dims.channels);
                for (total, c) in totals.iter_mut().zip(own.clone()) {
                    total[0] += f64::from(plain[c]);
                    total[1] += f64::from(along[c]) * f64::from(rstd[image * dims.groups + c / per_group]);
                }
            }
            for ((dw, db), [plain, along]) in dweight.iter_mut().zip(dbias).zip(totals) {
                (*dw, *db) = (along as f32, plain as f32);
            }
        },
    };
    Compiled {
        phases: vec![Box::new(main), Box::new(parameters)],
        shared: 2 * dims.batch * dims.channels,
        private: 0,
    }
}
