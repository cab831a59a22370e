//! Kernels of argmax and argmin, which search for the position of the extreme element along an axis.

use std::marker::PhantomData;

use meganeura_core::DType;

use super::index::around_axis;
use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_or_integers, rows_per_task};
use crate::memory::View;
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.argmax",
        supports: f32_or_integers,
        compile: |cx| match cx.input_type(0).dtype {
            DType::F32 => compile::<GreatestFloat>(cx),
            DType::U32 => compile::<GreatestUnsigned>(cx),
            _ => compile::<GreatestSigned>(cx),
        },
    },
    KernelDef {
        name: "core.argmin",
        supports: f32_or_integers,
        compile: |cx| match cx.input_type(0).dtype {
            DType::F32 => compile::<LeastFloat>(cx),
            DType::U32 => compile::<LeastUnsigned>(cx),
            _ => compile::<LeastSigned>(cx),
        },
    },
];

/// A search order: maps the bits of an element to a key. The element with the greatest key is the best.
trait Order: Send + Sync + 'static {
    /// Returns the key of an element: greater for a better element, equal for equally good ones.
    fn key(bits: u32) -> i32;
}

/// Returns the key of a float. NaN has the greatest key, and both zeros have the same.
#[inline(always)]
fn float_key(x: f32) -> i32 {
    let bits = (x + 0.0).to_bits() as i32;
    // Inverts the magnitude bits of negative numbers.
    let key = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    if x.is_nan() { i32::MAX } else { key }
}

macro_rules! orders {
    ($($name:ident: |$bits:ident| $key:expr;)*) => {$(
        struct $name;

        impl Order for $name {
            #[inline(always)]
            fn key($bits: u32) -> i32 {
                $key
            }
        }
    )*};
}

orders! {
    GreatestFloat: |bits| float_key(f32::from_bits(bits));
    // NaN also wins the search for a minimum.
    LeastFloat: |bits| float_key(-f32::from_bits(bits));
    GreatestSigned: |bits| bits as i32;
    LeastSigned: |bits| !(bits as i32);
    GreatestUnsigned: |bits| (bits ^ (1 << 31)) as i32;
    LeastUnsigned: |bits| !((bits ^ (1 << 31)) as i32);
}

/// Maximum number of columns that are searched together if the axis is not the last. Their best keys stay on the
/// stack.
const COLUMNS: usize = 256;

/// Number of elements of a block of a row. The greatest key of each block is computed first. Only a block with a
/// better key is searched again for the position of the key, while the block is in the first-level cache.
const BLOCK: usize = 2048;

/// Number of keys that are compared in parallel.
const LANES: usize = 32;

/// Compiles the search for the first element that no other element exceeds.
fn compile<O: Order>(cx: &CompileCx) -> Result<Compiled, String> {
    let (x, out, level) = (cx.input::<u32>(0), cx.output::<u32>(0), cx.level);
    let [outer, len, inner] = around_axis(&cx.input_type(0).shape, cx.attrs().int("axis")?)?;
    if inner > 1 {
        return Ok(columns::<O>(x, out, [outer, len, inner], level));
    }
    let per_task = rows_per_task(len);
    Ok(Compiled::one(Task {
        tasks: out.len().div_ceil(per_task),
        nanos: x.len() as u64 / 2,
        body: move |task: usize, _: &RunCx| {
            let rows = task * per_task..((task + 1) * per_task).min(out.len());
            // SAFETY: only this task writes these results; the operand is another buffer.
            let (x, out) = unsafe { (x.slice(rows.start * len..rows.end * len), out.slice_mut(rows)) };
            best_of_rows(level, PhantomData::<O>, x, len, out);
        },
    }))
}

/// Compiles the search along an axis that is not the last, `[outer, len, inner]`, by strips of columns.
fn columns<O: Order>(x: View<u32>, out: View<u32>, [outer, len, inner]: [usize; 3], level: Level) -> Compiled {
    let strips = inner.div_ceil(COLUMNS);
    let items = outer * strips;
    let per_task = rows_per_task(len * inner.min(COLUMNS));
    Compiled::one(Task {
        tasks: items.div_ceil(per_task),
        nanos: x.len() as u64 / 2,
        body: move |task: usize, _: &RunCx| {
            for item in task * per_task..((task + 1) * per_task).min(items) {
                let (part, start) = (item / strips, item % strips * COLUMNS);
                let width = COLUMNS.min(inner - start);
                let first = part * inner + start;
                // SAFETY: only this task writes these results; the operand is another buffer.
                let (x, out) = unsafe {
                    (
                        x.slice(part * len * inner..(part + 1) * len * inner),
                        out.slice_mut(first..first + width),
                    )
                };
                best_of_columns(level, PhantomData::<O>, &x[start..], inner, out);
            }
        },
    })
}

multiversion! {
    /// Writes the position of the best element of each row. Rows have `len` elements, at least one.
    fn best_of_rows<O: Order>(order: PhantomData<O>, x: &[u32], len: usize, out: &mut [u32]) = best_of_rows_body;
}

multiversion! {
    /// Writes the position of the best element of each column. There are at most [`COLUMNS`] columns, and rows are
    /// `stride` apart.
    fn best_of_columns<O: Order>(order: PhantomData<O>, x: &[u32], stride: usize, out: &mut [u32]) = best_of_columns_body;
}

#[inline(always)]
fn best_of_rows_body<const FMA: bool, O: Order>(_: PhantomData<O>, x: &[u32], len: usize, out: &mut [u32]) {
    for (slot, row) in out.iter_mut().zip(x.chunks_exact(len)) {
        if len < 2 * LANES {
            *slot = best_of_few::<O>(row);
            continue;
        }
        let mut best = i32::MIN;
        for (block, x) in row.chunks(BLOCK).enumerate() {
            let key = greatest_key::<O>(x);
            if block == 0 || key > best {
                best = key;
                *slot = (block * BLOCK + position::<O>(x, key)) as u32;
            }
        }
    }
}

/// Returns the position of the best element. No branch depends on the elements.
#[inline(always)]
fn best_of_few<O: Order>(x: &[u32]) -> u32 {
    let mut best = O::key(x[0]);
    let mut position = 0;
    for (i, &x) in x.iter().enumerate() {
        let key = O::key(x);
        position = if key > best { i as u32 } else { position };
        best = if key > best { key } else { best };
    }
    position
}

#[inline(always)]
fn greatest_key<O: Order>(x: &[u32]) -> i32 {
    let mut lanes = [i32::MIN; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            let key = O::key(x);
            *lane = if key > *lane { key } else { *lane };
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        let key = O::key(x);
        *lane = if key > *lane { key } else { *lane };
    }
    let mut greatest = i32::MIN;
    for lane in lanes {
        greatest = if lane > greatest { lane } else { greatest };
    }
    greatest
}

/// Returns the position of the first element with this key. Such an element must exist.
#[inline(always)]
fn position<O: Order>(x: &[u32], key: i32) -> usize {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut start = 0;
    for block in blocks {
        let mut found = 0;
        for &x in block {
            found |= u32::from(O::key(x) == key);
        }
        if found != 0 {
            return start + first::<O>(block, key);
        }
        start += LANES;
    }
    start + first::<O>(rest, key)
}

/// Implements [`position`] element by element.
#[inline(always)]
fn first<O: Order>(x: &[u32], key: i32) -> usize {
    let mut i = 0;
    while i < x.len() && O::key(x[i]) != key {
        i += 1;
    }
    i
}

#[inline(always)]
fn best_of_columns_body<const FMA: bool, O: Order>(_: PhantomData<O>, x: &[u32], stride: usize, out: &mut [u32]) {
    let mut best = [i32::MIN; COLUMNS];
    let best = &mut best[..out.len()];
    for (best, &x) in best.iter_mut().zip(x) {
        *best = O::key(x);
    }
    out.fill(0);
    for (i, row) in x.chunks(stride).enumerate().skip(1) {
        for ((slot, best), &x) in out.iter_mut().zip(&mut *best).zip(row) {
            let key = O::key(x);
            *slot = if key > *best { i as u32 } else { *slot };
            *best = if key > *best { key } else { *best };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmath::detect;

    /// Returns the position of the first element that is better than all previous ones. Tests use it as the
    /// reference.
    fn plain(x: &[f32], better: fn(f32, f32) -> bool) -> u32 {
        let mut best = 0;
        for i in 1..x.len() {
            if better(x[i], x[best]) || (x[i].is_nan() && !x[best].is_nan()) {
                best = i;
            }
        }
        best as u32
    }

    /// Returns a row with ties, both zeros, infinities and sometimes a NaN.
    fn row(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        let mut x: Vec<f32> = (0..len).map(|_| [-2.0, -1.0, -0.0, 0.0][next(4) as usize]).collect();
        for special in [
            1.5,
            1.5,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            -f32::NAN,
            1e-40,
            -1e-40,
        ] {
            if next(4) == 0 {
                x[next(len as u32) as usize] = special;
            }
        }
        x
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn rows_and_columns_agree_with_the_definition() {
        for len in [1, 2, 3, 31, 63, 64, 65, 100, 2047, 2048, 2049, 5000] {
            for seed in 0..40 {
                let x = row(len, seed);
                for level in [Level::BASELINE, detect()] {
                    let want = [plain(&x, |a, b| a > b), plain(&x, |a, b| a < b)];
                    let (mut most, mut least) = ([7], [7]);
                    best_of_rows(level, PhantomData::<GreatestFloat>, &bits(&x), len, &mut most);
                    best_of_rows(level, PhantomData::<LeastFloat>, &bits(&x), len, &mut least);
                    assert_eq!([most[0], least[0]], want, "row of {len}, seed {seed}");
                    // The row is the middle one of three columns.
                    let spread: Vec<f32> = x.iter().flat_map(|&x| [0.0, x, 1.0]).collect();
                    let (mut most, mut least) = ([7; 2], [7; 2]);
                    best_of_columns(level, PhantomData::<GreatestFloat>, &bits(&spread)[..], 3, &mut most);
                    best_of_columns(level, PhantomData::<LeastFloat>, &bits(&spread)[1..], 3, &mut least);
                    assert_eq!([most[1], least[0]], want, "column of {len}, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn integers_are_compared_whole() {
        let x = [5, u32::MAX, 1 << 31, 0, (1 << 31) - 1, u32::MAX, 0];
        let level = detect();
        let mut out = [7];
        best_of_rows(level, PhantomData::<GreatestUnsigned>, &x, 7, &mut out);
        assert_eq!(out, [1]);
        best_of_rows(level, PhantomData::<LeastUnsigned>, &x, 7, &mut out);
        assert_eq!(out, [3]);
        best_of_rows(level, PhantomData::<GreatestSigned>, &x, 7, &mut out);
        assert_eq!(out, [4]);
        best_of_rows(level, PhantomData::<LeastSigned>, &x, 7, &mut out);
        assert_eq!(out, [2]);
    }
}
