//! Kernels of products of activations, rounded to bytes, and weights of 8 bits.
//!
//! A first phase rounds the activations. It stores `q - low` as unsigned bytes, where `q` is the integer and `low` the
//! minimum of the range. A sum of products then differs from the result by the sum of the weights times `zero - low`.
//!
//! Activations that are not numbers have no integers. The results of their row are NaN.

mod conv;

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::{Call, Int8MatMulDims};

use crate::gemm::int8::{self, COLUMNS, Int8Kernels, Int8Weights, MAX_TERMS, ROWS, Sums, Taps, UNIT};
use crate::kernel::{CompileCx, Compiled, KernelDef, OrderFn, RunCx, Task, rows_per_task, stream_nanos};
use crate::memory::{View, aligned};
use crate::order::Order;
use crate::share::share;
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.int8_matmul",
        supports: |k| {
            let dims = Int8MatMulDims::of(&call(k))?;
            check_terms(dims.k)?;
            fastest().map(|_| ())
        },
        compile: |cx| matmul(cx, fastest()?),
    },
    KernelDef {
        name: "core.int8_conv2d",
        supports: |k| {
            conv::Geometry::of(&call(k))?;
            fastest().map(|_| ())
        },
        compile: |cx| conv::compile(cx, fastest()?),
    },
];

/// Storage orders of the weights.
pub(super) const ORDERS: [(&str, OrderFn); 2] = [("core.int8_matmul", order), ("core.int8_conv2d", order)];

fn order(call: &Call, i: usize) -> Order {
    match call.inputs.get(i).map(|ty| ty.shape.dims()) {
        Some(&[rows, words]) if i == 3 => int8::panels(rows, words).map_or(Order::Plain, Order::Panels),
        _ => Order::Plain,
    }
}

fn call<'a>(k: &'a KernelDesc) -> Call<'a> {
    Call {
        attrs: k.attrs,
        inputs: k.inputs,
        outputs: k.outputs,
    }
}

fn fastest() -> Result<&'static Int8Kernels, String> {
    // Tests of this crate run on every CPU.
    let other = cfg!(test).then(Int8Kernels::portable);
    let kernels = Int8Kernels::fastest().or(other);
    kernels.ok_or_else(|| "this CPU has no AVX-512 VNNI: the product is computed in f32".into())
}

fn check_terms(terms: usize) -> Result<(), String> {
    match terms {
        0..=MAX_TERMS => Ok(()),
        _ => Err(format!(
            "sums of more than {MAX_TERMS} products of bytes may not fit in i32"
        )),
    }
}

multiversion! {
    /// Rounds up to four rows of activations to unsigned bytes `q - low`. Byte `i` of a word is from row `i`. Returns true
    /// if a quotient is not a number.
    fn round_words(rows: &[&[f32]], rounding: Rounding, words: &mut [u32]) -> bool = round_words_body;
}
multiversion! {
    /// Rounds activations to unsigned bytes `q - low`. Returns true if a quotient is not a number.
    fn round_bytes(x: &[f32], rounding: Rounding, bytes: &mut [u8]) -> bool = round_bytes_body;
}

/// The rounding of activations.
#[derive(Clone, Copy)]
struct Rounding {
    scale: f32,
    zero: f32,
    low: f32,
    high: f32,
}

impl Rounding {
    /// Reads the scale and the zero point, operands 1 and 2.
    ///
    /// # Safety
    ///
    /// The operands must not be written meanwhile.
    unsafe fn read(scale: View<f32>, zero: View<i32>, signed: bool) -> Self {
        let (low, high) = if signed { (-128.0, 127.0) } else { (0.0, 255.0) };
        // SAFETY: forwarded.
        let (scale, zero) = unsafe { (scale.all()[0], zero.all()[0] as f32) };
        Rounding {
            scale,
            zero: zero.clamp(low, high),
            low,
            high,
        }
    }

    /// Returns the byte of the number 0.
    fn zero_byte(&self) -> u8 {
        (self.zero - self.low) as u8
    }

    /// Returns the byte of a number in the lowest bits of a word, and whether the quotient is not a number.
    #[inline(always)]
    fn byte(self, x: f32) -> (u32, bool) {
        // Added to an integer from 0 to 255, this number moves it to the lowest bits.
        const SHIFT: f32 = (1 << 23) as f32;
        let quotient = x / self.scale;
        let q = (quotient.round_ties_even() + self.zero).max(self.low).min(self.high);
        ((q - self.low + SHIFT).to_bits() & 255, quotient.is_nan())
    }
}

#[inline(always)]
fn round_bytes_body<const FMA: bool>(x: &[f32], rounding: Rounding, bytes: &mut [u8]) -> bool {
    let mut any = false;
    for (byte, &x) in bytes.iter_mut().zip(x) {
        let (q, nan) = rounding.byte(x);
        *byte = q as u8;
        any |= nan;
    }
    any
}

#[inline(always)]
fn round_words_body<const FMA: bool>(rows: &[&[f32]], rounding: Rounding, words: &mut [u32]) -> bool {
    let mut any = false;
    words.fill(0);
    for (i, row) in rows.iter().enumerate() {
        for (word, &x) in words.iter_mut().zip(*row) {
            let (q, nan) = rounding.byte(x);
            *word |= q << (8 * i);
            any |= nan;
        }
    }
    any
}

/// Factor of the results of a row: NaN if the row contains a number that cannot be rounded.
fn row_factor(nan: bool) -> f32 {
    if nan { f32::NAN } else { 1.0 }
}

/// Sums of the weights of a group of columns, times the difference between the zero point and the lowest integer.
struct Corrections([i32; COLUMNS]);

impl Corrections {
    /// # Safety
    ///
    /// `ones` must have a byte of 1 for each term of a part, and 0 for the bytes that fill its last unit. `weights` as
    /// for [`Int8Weights::products`].
    unsafe fn of(
        weights: &Int8Weights,
        ones: &Taps,
        address: *const u8,
        group: usize,
        rounding: &Rounding,
        sums: &mut Sums,
    ) -> Self {
        let shift = i32::from(rounding.zero_byte());
        if shift == 0 {
            return Corrections([0; COLUMNS]);
        }
        // SAFETY: forwarded.
        unsafe { weights.products(ones, 1, address, group, sums) };
        // Sums and corrections may wrap; their difference is a sum of `MAX_TERMS` products, and does not.
        Corrections(sums[0].map(|sum| sum.wrapping_mul(shift)))
    }
}

/// Writes a byte of 1 for each of `terms` terms, and 0 after them.
fn write_ones(ones: &mut [u8], terms: usize) {
    let (terms, rest) = ones.split_at_mut(terms);
    terms.fill(1);
    rest.fill(0);
}

/// Minimum number of products of a task: about 20 microseconds.
const TASK_PRODUCTS: usize = 4 << 20;
/// Minimum number of weights of a task, for products that wait for memory.
const TASK_WEIGHTS: usize = 48 << 10;
/// Maximum number of bytes of the rows that a task multiplies by each group of columns.
const TASK_BYTES: usize = 256 << 10;
const MAX_TASKS: usize = 64;

fn matmul(cx: &CompileCx, kernels: &'static Int8Kernels) -> Result<Compiled, String> {
    let Int8MatMulDims { m, n, k } = Int8MatMulDims::of(&cx.call())?;
    let (units, signed) = (k.div_ceil(UNIT), cx.attrs().bool("signed")?);
    let (x, scale, zero): (View<f32>, View<f32>, View<i32>) = (cx.input(0), cx.input(1), cx.input(2));
    let (words, scales, y): (View<u8>, View<f32>, View<f32>) = (cx.input(3), cx.input(4), cx.output(0));
    if m == 0 || n == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    let weights = Int8Weights::new(kernels, [n, units], cx.panels(3));
    let row_bytes = UNIT * units;
    // Shared scratch: factors of the rows, ones, then the rounded rows.
    let (ones_at, bytes_at) = (aligned(m), aligned(m) + aligned(units));
    let level = cx.level;
    let per_task = rows_per_task(k);
    let round = Task {
        tasks: m.div_ceil(per_task),
        nanos: stream_nanos(x.len() * size_of::<f32>()),
        body: move |task: usize, run: &RunCx| {
            // SAFETY: only this task has these rows; scratch has the requested size, and operands are not written.
            unsafe {
                let rounding = Rounding::read(scale, zero, signed);
                if task == 0 {
                    let ones = std::slice::from_raw_parts_mut(run.shared.add(ones_at).cast(), row_bytes);
                    write_ones(ones, k);
                }
                for row in task * per_task..m.min((task + 1) * per_task) {
                    let to = run.shared.add(bytes_at).cast::<u8>().add(row * row_bytes);
                    let bytes = std::slice::from_raw_parts_mut(to, row_bytes);
                    let nan = round_bytes(level, x.slice(row * k..(row + 1) * k), rounding, bytes);
                    bytes[k..].fill(0);
                    *run.shared.add(row) = row_factor(nan);
                }
            }
        },
    };
    let rows = (TASK_BYTES / row_bytes.max(1) / ROWS).max(1) * ROWS;
    let products = m.saturating_mul(n).saturating_mul(k);
    let tasks = (products / TASK_PRODUCTS)
        .max(n.saturating_mul(k) / TASK_WEIGHTS)
        .clamp(1, MAX_TASKS);
    let by_rows = m.div_ceil(rows);
    let by_columns = tasks.div_ceil(by_rows).min(weights.groups());
    let multiply = Task {
        tasks: by_rows * by_columns,
        nanos: stream_nanos(n * row_bytes).max(products as u64 / 200),
        body: move |task: usize, run: &RunCx| {
            let rows = task / by_columns * rows..m.min((task / by_columns + 1) * rows);
            let mut sums: Sums = [[0; COLUMNS]; ROWS];
            let mut offsets = [0; ROWS];
            for (i, offset) in offsets.iter_mut().enumerate() {
                *offset = (i * row_bytes) as u32;
            }
            // SAFETY: the phase before wrote the scratch. Views have the sizes of the call, and only this task writes
            // these rows of these columns.
            unsafe {
                let rounding = Rounding::read(scale, zero, signed);
                let bytes = run.shared.add(bytes_at).cast::<u8>().cast_const();
                let ones = Taps {
                    base: run.shared.add(ones_at).cast(),
                    offsets: &[[0; ROWS]],
                    units,
                };
                let scales = scales.all();
                for group in share(weights.groups(), by_columns, task % by_columns) {
                    let columns = weights.columns(group);
                    let corrections = Corrections::of(&weights, &ones, words.as_ptr(), group, &rounding, &mut sums);
                    for first in rows.clone().step_by(ROWS) {
                        let count = ROWS.min(rows.end - first);
                        let taps = Taps {
                            base: bytes.add(first * row_bytes),
                            offsets: &[offsets],
                            units,
                        };
                        weights.products(&taps, count, words.as_ptr(), group, &mut sums);
                        for (i, sums) in sums.iter().enumerate().take(count) {
                            let factor = rounding.scale * *run.shared.add(first + i);
                            let start = (first + i) * n;
                            let out = y.slice_mut(start + columns.start..start + columns.end);
                            finish(level, sums, &corrections.0, &scales[columns.clone()], factor, out);
                        }
                    }
                }
            }
        },
    };
    Ok(Compiled {
        phases: vec![Box::new(round), Box::new(multiply)],
        shared: bytes_at + aligned(m * units),
        private: 0,
    })
}

multiversion! {
    /// Writes `(sum - correction) scale factor`.
    fn finish(sums: &[i32; COLUMNS], corrections: &[i32; COLUMNS], scales: &[f32], factor: f32, out: &mut [f32]) = finish_body;
}

#[inline(always)]
fn finish_body<const FMA: bool>(
    sums: &[i32; COLUMNS],
    corrections: &[i32; COLUMNS],
    scales: &[f32],
    factor: f32,
    out: &mut [f32],
) {
    let numbers = sums.iter().zip(corrections).zip(scales);
    for (out, ((sum, correction), scale)) in out.iter_mut().zip(numbers) {
        *out = sum.wrapping_sub(*correction) as f32 * (scale * factor);
    }
}

#[cfg(test)]
mod tests;
