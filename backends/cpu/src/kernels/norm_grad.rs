//! Derivatives of the normalisations of rows: layer norm, RMS norm, and group norm of single elements.
//!
//! Each row is read twice, the second time from the cache. Each task adds up the contributions of its rows to the
//! parameter gradients. A second phase adds up the sums of all tasks in order.

use crate::kernel::{CompileCx, Compiled, Kernel, KernelDef, RunCx, Task, f32_only, rows_per_task, stream_nanos};
use crate::memory::View;
use crate::vmath::{self, Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.layer_norm_grad",
        supports: f32_only,
        compile: |cx| Ok(rows::<LayerNorm>(cx, centred(cx), None, 1)),
    },
    KernelDef {
        name: "core.layer_norm_grad_add",
        supports: f32_only,
        compile: |cx| Ok(rows::<LayerNorm>(cx, centred(cx), Some(cx.input(5)), 1)),
    },
    KernelDef {
        name: "core.rms_norm_grad",
        supports: f32_only,
        compile: |cx| Ok(rows::<AboutZero>(cx, about_zero(cx), None, 1)),
    },
    KernelDef {
        name: "core.rms_norm_grad_add",
        supports: f32_only,
        compile: |cx| Ok(rows::<AboutZero>(cx, about_zero(cx), Some(cx.input(4)), 1)),
    },
];

/// Returns the statistics that the forward call of a centred normalisation saved, and the gradient of its result.
fn centred(cx: &CompileCx) -> (Statistics, View<f32>) {
    let statistics = Statistics {
        mean: Some(cx.input(2)),
        rstd: cx.input(3),
    };
    (statistics, cx.input(4))
}

/// Returns the statistics that the forward call of a normalisation without centring saved, and the gradient of its
/// result.
fn about_zero(cx: &CompileCx) -> (Statistics, View<f32>) {
    let statistics = Statistics {
        mean: None,
        rstd: cx.input(2),
    };
    (statistics, cx.input(3))
}

/// Compiles the derivative of a group normalization of `[batch, channels]`. Each image has a row for each group, and
/// each group has a separate row of weights.
pub(super) fn group_rows(cx: &CompileCx, groups: usize) -> Compiled {
    rows::<LayerNorm>(cx, centred(cx), None, groups)
}

/// The type of normalization. Rows are centred before they are scaled if `CENTRED`; only then there is a bias.
trait Normalization: Copy + Default + Send + Sync + 'static {
    const CENTRED: bool;
}

#[derive(Clone, Copy, Default)]
struct LayerNorm;
#[derive(Clone, Copy, Default)]
struct AboutZero;

impl Normalization for LayerNorm {
    const CENTRED: bool = true;
}

impl Normalization for AboutZero {
    const CENTRED: bool = false;
}

multiversion! {
    /// Returns the sum of `d` (if centred) and the sum of `d (x - mean)`, where `d = dy weight`. Each consists of a
    /// fixed number of partial sums.
    fn row_sums<F: Normalization>(form: F, x: &[f32], dy: &[f32], weight: &[f32], mean: f32) -> [f32; 2] = row_sums_body;
}
multiversion! {
    /// Computes `dx` of a row, and adds the row's contribution to the parameter gradients.
    fn row_gradient<F: Normalization>(form: F, row: [&[f32]; 3], constants: Constants, dx: &mut [f32], parameters: [&mut [f32]; 2])
        = row_gradient_body;
}

const LANES: usize = 16;

#[inline(always)]
fn row_sums_body<const FMA: bool, F: Normalization>(
    _: F,
    x: &[f32],
    dy: &[f32],
    weight: &[f32],
    mean: f32,
) -> [f32; 2] {
    let (mut plain, mut along) = ([0.0; LANES], [0.0; LANES]);
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (dy, dy_rest) = dy.as_chunks::<LANES>();
    let (weight, weight_rest) = weight.as_chunks::<LANES>();
    for ((x, dy), w) in x.iter().zip(dy).zip(weight) {
        for i in 0..LANES {
            let d = dy[i] * w[i];
            if F::CENTRED {
                plain[i] += d;
            }
            along[i] = vmath::mul_add::<FMA>(d, x[i] - mean, along[i]);
        }
    }
    for (i, ((&x, &dy), &w)) in x_rest.iter().zip(dy_rest).zip(weight_rest).enumerate() {
        plain[i] += dy * w;
        along[i] = vmath::mul_add::<FMA>(dy * w, x - mean, along[i]);
    }
    [plain.iter().sum(), along.iter().sum()]
}

/// The constants of a row in `dx = rstd (d - shift - (x - mean) slope)`.
#[derive(Clone, Copy)]
struct Constants {
    mean: f32,
    rstd: f32,
    shift: f32,
    slope: f32,
}

#[inline(always)]
fn row_gradient_body<const FMA: bool, F: Normalization>(
    _: F,
    [x, dy, weight]: [&[f32]; 3],
    c: Constants,
    dx: &mut [f32],
    [dweight, dbias]: [&mut [f32]; 2],
) {
    // The compiler can prove that these slices have equal lengths, so the loop has no bounds checks.
    let len = dx.len();
    let (x, dy, weight, dweight) = (&x[..len], &dy[..len], &weight[..len], &mut dweight[..len]);
    if F::CENTRED {
        let dbias = &mut dbias[..len];
        for i in 0..len {
            let centred = x[i] - c.mean;
            let inner = dy[i] * weight[i] - c.shift - centred * c.slope;
            dx[i] = inner * c.rstd;
            dweight[i] = vmath::mul_add::<FMA>(dy[i], centred * c.rstd, dweight[i]);
            dbias[i] += dy[i];
        }
    } else {
        for i in 0..len {
            dx[i] = (dy[i] * weight[i] - x[i] * c.slope) * c.rstd;
            dweight[i] = vmath::mul_add::<FMA>(dy[i], x[i] * c.rstd, dweight[i]);
        }
    }
}

/// The statistics of each row, as the forward call saved them.
struct Statistics {
    mean: Option<View<f32>>,
    rstd: View<f32>,
}

/// Maximum number of tasks. Each task has partial sums of the parameter gradients.
const MAX_TASKS: usize = 64;
/// Number of columns of one task of the second phase.
const STRIP: usize = 2048;

/// Compiles the derivative of normalized rows. `groups` neighbouring rows belong to one image, and row `i` uses the
/// weights of group `i % groups`. `residual` is added to `dx`, row by row.
fn rows<F: Normalization>(
    cx: &CompileCx,
    (statistics, dy): (Statistics, View<f32>),
    residual: Option<View<f32>>,
    groups: usize,
) -> Compiled {
    let (x, weight, dx, level) = (cx.input::<f32>(0), cx.input::<f32>(1), cx.output::<f32>(0), cx.level);
    let (count, period) = (statistics.rstd.len(), weight.len());
    let width = period / groups.max(1);
    let parameters = if F::CENTRED { 2 } else { 1 };
    let per_task = rows_per_task(width).max(count.div_ceil(MAX_TASKS));
    let tasks = count.div_ceil(per_task);
    let first = Task {
        tasks,
        nanos: stream_nanos(if residual.is_some() { 16 } else { 12 } * x.len()) + 20 * count as u64,
        body: move |task: usize, cx: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(count);
            let elements = own.start * width..own.end * width;
            // SAFETY: only this task writes these rows and this part of the scratch, and no task writes an operand.
            let (x, dy, weight, rstd, mean, dx, sums) = unsafe {
                (
                    x.slice(elements.clone()),
                    dy.slice(elements.clone()),
                    weight.all(),
                    statistics.rstd.slice(own.clone()),
                    statistics.mean.map(|mean| mean.slice(own.clone())),
                    dx.slice_mut(elements),
                    std::slice::from_raw_parts_mut(cx.shared.add(task * parameters * period), parameters * period),
                )
            };
            sums.fill(0.0);
            let (dweight, dbias) = sums.split_at_mut(period);
            let rows = x
                .chunks_exact(width)
                .zip(dy.chunks_exact(width))
                .zip(dx.chunks_exact_mut(width));
            for (i, (((x, dy), dx), &rstd)) in rows.zip(rstd).enumerate() {
                let mean = mean.map_or(0.0, |mean| mean[i]);
                let column = (own.start + i) % groups * width;
                let columns = column..column + width;
                let weight = &weight[columns.clone()];
                let [plain, along] = row_sums(level, F::default(), x, dy, weight, mean);
                let constants = Constants {
                    mean,
                    rstd,
                    shift: plain / width as f32,
                    slope: along * rstd * rstd / width as f32,
                };
                let dbias = dbias.get_mut(columns.clone()).unwrap_or_default();
                row_gradient(
                    level,
                    F::default(),
                    [x, dy, weight],
                    constants,
                    dx,
                    [&mut dweight[columns], dbias],
                );
                if let Some(residual) = residual {
                    let row = own.start + i;
                    // SAFETY: this dispatch does not write any operand.
                    let residual = unsafe { residual.slice(row * width..(row + 1) * width) };
                    vmath::add_assign(level, dx, residual);
                }
            }
        },
    };
    let outs = (1..=parameters).map(|i| cx.output(i)).collect();
    Compiled {
        phases: vec![Box::new(first), total(outs, tasks, period, level)],
        shared: tasks * parameters * period,
        private: 0,
    }
}

/// Creates the phase that adds up the sums of all tasks in order. The shared scratch contains them as
/// `[tasks, outs, period]`.
fn total(outs: Vec<View<f32>>, parts: usize, period: usize, level: Level) -> Box<dyn Kernel> {
    let strips = period.div_ceil(STRIP);
    Box::new(Task {
        tasks: strips * outs.len(),
        nanos: stream_nanos(4 * parts * outs.len() * period),
        body: move |task: usize, cx: &RunCx| {
            let (parameter, start) = (task / strips, task % strips * STRIP);
            let end = (start + STRIP).min(period);
            // SAFETY: only this task writes these elements, and the previous phase has filled the scratch.
            let (out, sums) = unsafe {
                let sums = std::slice::from_raw_parts(cx.shared, parts * outs.len() * period);
                (outs[parameter].slice_mut(start..end), sums)
            };
            out.fill(0.0);
            for part in 0..parts {
                let row = (part * outs.len() + parameter) * period;
                vmath::add_assign(level, out, &sums[row + start..row + end]);
            }
        },
    })
}
