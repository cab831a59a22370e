//! Kernels of image resizing and of its transposed operation. They compute one output row at a time: first they
//! interpolate between rows, then within the row.

use meganeura_core::ops::AxisTaps;

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_only, rows_per_task, stream_nanos};
use crate::vmath::{self, Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.upsample_nearest2d",
        supports: f32_only,
        compile: |cx| Ok(nearest(cx, Image::of(cx, false, false)?)),
    },
    KernelDef {
        name: "core.upsample_nearest2d_grad",
        supports: f32_only,
        compile: |cx| Ok(transposed(cx, Image::of(cx, true, false)?, false)),
    },
    KernelDef {
        name: "core.upsample_bilinear2d",
        supports: f32_only,
        compile: |cx| Ok(bilinear(cx, Image::of(cx, false, true)?)),
    },
    KernelDef {
        name: "core.upsample_bilinear2d_grad",
        supports: f32_only,
        compile: |cx| Ok(transposed(cx, Image::of(cx, true, true)?, true)),
    },
];

multiversion! {
    /// Writes `a (1 - fraction) + b fraction` to `out`.
    fn mix(a: &[f32], b: &[f32], fraction: f32, out: &mut [f32]) = mix_body;
}
multiversion! {
    /// Adds `x scale` to `acc`.
    fn add_scaled(acc: &mut [f32], x: &[f32], scale: f32) = add_scaled_body;
}

#[inline(always)]
fn mix_body<const FMA: bool>(a: &[f32], b: &[f32], fraction: f32, out: &mut [f32]) {
    let rest = 1.0 - fraction;
    for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *o = a * rest + b * fraction;
    }
}

#[inline(always)]
fn add_scaled_body<const FMA: bool>(acc: &mut [f32], x: &[f32], scale: f32) {
    for (acc, &x) in acc.iter_mut().zip(x) {
        *acc = vmath::mul_add::<FMA>(x, scale, *acc);
    }
}

/// Sizes and taps of a resizing of planes. `from` and `to` are the sizes of the forward operation.
struct Image {
    planes: usize,
    /// Number of rows and columns before resizing (`from`), and after it (`to`).
    from: [usize; 2],
    to: [usize; 2],
    rows: AxisTaps,
    columns: AxisTaps,
    /// True for axes whose sizes do not change.
    same: [bool; 2],
    level: Level,
}

impl Image {
    fn of(cx: &CompileCx, transposed: bool, bilinear: bool) -> Result<Self, String> {
        let (operand, result) = (&cx.input_type(0).shape, &cx.output_type(0).shape);
        let (mut from, mut to) = ([operand[2], operand[3]], [result[2], result[3]]);
        if transposed {
            (from, to) = (to, from);
        }
        let [rows, columns] = AxisTaps::of(cx.attrs(), from, to, bilinear)?;
        Ok(Image {
            planes: operand[0] * operand[1],
            from,
            to,
            rows,
            columns,
            same: [from[0] == to[0], from[1] == to[1]],
            level: cx.level,
        })
    }

    /// Returns the number of elements of a plane before and after resizing.
    fn elements(&self) -> [usize; 2] {
        [self.from, self.to].map(|[h, w]| h * w)
    }

    /// Returns the two rows of a plane that an output row interpolates, with the weight of the second row. There is
    /// no second row if the number of rows does not change.
    fn neighbours<'a>(&self, plane: &'a [f32], row: usize) -> (&'a [f32], Option<(&'a [f32], f32)>) {
        let width = self.from[1];
        let at = |i: u32| &plane[i as usize * width..(i as usize + 1) * width];
        let first = at(if self.same[0] { row as u32 } else { self.rows.lower[row] });
        let second = (!self.same[0]).then(|| (at(self.rows.upper[row]), self.rows.fraction[row]));
        (first, second)
    }
}

/// Compiles nearest-neighbour resizing. Each task has some output rows.
fn nearest(cx: &CompileCx, image: Image) -> Compiled {
    let (x, out) = (cx.input::<f32>(0), cx.output::<f32>(0));
    let ([h, w], [before, _]) = (image.to, image.elements());
    let (count, per_task) = (image.planes * h, rows_per_task(w));
    Compiled::one(Task {
        tasks: count.div_ceil(per_task),
        nanos: stream_nanos(4 * x.len()) + out.len() as u64 / 2,
        body: move |task: usize, _: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(count);
            // SAFETY: only this task writes these rows, and the operand is in another buffer.
            let (x, out) = unsafe { (x.all(), out.slice_mut(own.start * w..own.end * w)) };
            let mut written: Option<(usize, u32)> = None;
            for (i, row) in own.clone().enumerate() {
                let (plane, source) = (row / h, image.rows.lower[row % h]);
                let (done, rest) = out.split_at_mut(i * w);
                if written == Some((plane, source)) {
                    rest[..w].copy_from_slice(&done[(i - 1) * w..]);
                    continue;
                }
                written = Some((plane, source));
                let start = plane * before + source as usize * image.from[1];
                let x = &x[start..start + image.from[1]];
                if image.same[1] {
                    rest[..w].copy_from_slice(x);
                } else {
                    for (out, &j) in rest.iter_mut().zip(&image.columns.lower) {
                        *out = x[j as usize];
                    }
                }
            }
        },
    })
}

/// Compiles bilinear resizing. Each task has some output rows. Its private scratch contains an interpolation of two
/// rows.
fn bilinear(cx: &CompileCx, image: Image) -> Compiled {
    let (x, out) = (cx.input::<f32>(0), cx.output::<f32>(0));
    let ([h, w], [before, _]) = (image.to, image.elements());
    let (count, width) = (image.planes * h, image.from[1]);
    let per_task = rows_per_task(w.max(width));
    let task = Task {
        tasks: count.div_ceil(per_task),
        nanos: stream_nanos(8 * x.len()) + out.len() as u64,
        body: move |task: usize, cx: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(count);
            // SAFETY: only this task writes these rows and the private scratch, whose length is requested below. The
            // operand is in another buffer.
            let (x, out, mixed) = unsafe {
                (
                    x.all(),
                    out.slice_mut(own.start * w..own.end * w),
                    std::slice::from_raw_parts_mut(cx.private, width),
                )
            };
            for (row, out) in own.zip(out.chunks_exact_mut(w)) {
                let plane = row / h;
                let x = &x[plane * before..(plane + 1) * before];
                let (first, second) = image.neighbours(x, row % h);
                let x = match second {
                    Some((second, fraction)) => {
                        mix(image.level, first, second, fraction, mixed);
                        &*mixed
                    }
                    None => first,
                };
                if image.same[1] {
                    out.copy_from_slice(x);
                    continue;
                }
                let taps = image.columns.lower.iter().zip(&image.columns.upper);
                for ((out, (&a, &b)), &fraction) in out.iter_mut().zip(taps).zip(&image.columns.fraction) {
                    *out = x[a as usize] * (1.0 - fraction) + x[b as usize] * fraction;
                }
            }
        },
    };
    Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private: width,
    }
}

/// The results to which each element along an axis contributes (its *receivers*), with their weights. All elements
/// have the same number of receivers, and the tables are `[receivers, elements]`. Unused entries have a weight of 0
/// and the index after the last result.
struct Receivers {
    elements: usize,
    indices: Vec<u32>,
    shares: Vec<f32>,
}

impl Receivers {
    /// Builds the receivers. Without `two_taps` (nearest neighbours, or an axis that does not change), each result has
    /// one tap of weight 1.
    fn of(taps: &AxisTaps, elements: usize, two_taps: bool) -> Self {
        let mut lists = vec![Vec::new(); elements];
        for (i, &fraction) in taps.fraction.iter().enumerate() {
            let rest = if two_taps { 1.0 - fraction } else { 1.0 };
            lists[taps.lower[i] as usize].push((i as u32, rest));
            if two_taps {
                lists[taps.upper[i] as usize].push((i as u32, fraction));
            }
        }
        let most = lists.iter().map(Vec::len).max().unwrap_or(0);
        let nobody = (taps.fraction.len() as u32, 0.0);
        let column = |k: usize| lists.iter().map(move |list| list.get(k).copied().unwrap_or(nobody));
        let (indices, shares) = (0..most).flat_map(column).unzip();
        Receivers {
            elements,
            indices,
            shares,
        }
    }

    /// Returns the indices and weights of the first receivers of all elements, then of the second receivers, and so
    /// on.
    fn turns(&self) -> impl Iterator<Item = (&[u32], &[f32])> {
        let indices = self.indices.chunks_exact(self.elements);
        indices.zip(self.shares.chunks_exact(self.elements))
    }
}

/// Compiles the transposed resizing. Each task has some rows of `dx`. Its private scratch contains the sum of the
/// rows to which such a row contributed, and a zero.
fn transposed(cx: &CompileCx, image: Image, bilinear: bool) -> Compiled {
    let (dy, dx) = (cx.input::<f32>(0), cx.output::<f32>(0));
    let ([h, w], [_, after], [rows_after, width]) = (image.from, image.elements(), image.to);
    let rows = Receivers::of(&image.rows, h, bilinear && !image.same[0]);
    let columns = Receivers::of(&image.columns, w, bilinear && !image.same[1]);
    let (count, per_task) = (image.planes * h, rows_per_task(w + 2 * after / h));
    let task = Task {
        tasks: count.div_ceil(per_task),
        nanos: stream_nanos(8 * dx.len()) + dy.len() as u64,
        body: move |task: usize, cx: &RunCx| {
            let own = task * per_task..((task + 1) * per_task).min(count);
            // SAFETY: as in `bilinear`.
            let (dy, dx, sum) = unsafe {
                (
                    dy.all(),
                    dx.slice_mut(own.start * w..own.end * w),
                    std::slice::from_raw_parts_mut(cx.private, width + 1),
                )
            };
            for (row, dx) in own.zip(dx.chunks_exact_mut(w)) {
                let (plane, row) = (row / h, row % h);
                sum.fill(0.0);
                for (indices, shares) in rows.turns() {
                    let (index, share) = (indices[row] as usize, shares[row]);
                    if index < rows_after {
                        let start = plane * after + index * width;
                        add_scaled(image.level, &mut sum[..width], &dy[start..start + width], share);
                    }
                }
                if image.same[1] {
                    dx.copy_from_slice(&sum[..width]);
                    continue;
                }
                dx.fill(0.0);
                for (indices, shares) in columns.turns() {
                    for ((dx, &index), &share) in dx.iter_mut().zip(indices).zip(shares) {
                        *dx += sum[index as usize] * share;
                    }
                }
            }
        },
    };
    Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private: width + 1,
    }
}
