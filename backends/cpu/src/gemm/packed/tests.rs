//! Tests of all algorithms for matmuls with packed weights, against sums in f64.

use half::f16;

use super::*;
use crate::pool::ThreadPool;

/// Returns cache lines with `len` `f32`s, which must not be read before they are written.
fn scratch(len: usize) -> Vec<Line> {
    vec![Line([f32::NAN; 16]); len.div_ceil(16)]
}

#[derive(Clone, Copy)]
#[repr(align(64))]
#[expect(dead_code, reason = "kernels read it through pointers")]
struct Line([f32; 16]);

/// Returns the weights' numbers and scales row by row, and also in panels if the kernel supports them.
fn orders(
    [n, k]: [usize; 2],
    storage: Storage,
    kernel: Kernel,
    bytes: &[u8],
    scales: &[u16],
) -> Vec<(bool, Vec<u8>, Vec<u16>)> {
    let mut orders = vec![(false, bytes.to_vec(), scales.to_vec())];
    if let Some([of_numbers, of_scales]) = PackedGemm::panels_for([n, k], storage, kernel) {
        let pool = ThreadPool::new(1);
        let (mut numbers, mut in_panels) = (vec![0; bytes.len()], vec![0; 2 * scales.len()]);
        of_numbers.write(&pool, bytes, 0, &mut numbers);
        let plain: Vec<u8> = scales.iter().flat_map(|s| s.to_ne_bytes()).collect();
        of_scales.write(&pool, &plain, 0, &mut in_panels);
        let scales = in_panels.chunks_exact(2).map(|s| u16::from_ne_bytes([s[0], s[1]]));
        orders.push((true, numbers, scales.collect()));
    }
    orders
}

/// Every combination of instruction set, storage format, storage order and algorithm agrees with sums in f64. The
/// numbers of these sums are decoded one by one.
#[test]
fn products_of_every_storage() {
    let storages = [Storage::F16].into_iter().chain(BlockFormat::ALL.map(Storage::Blocks));
    for storage in storages {
        for (m, n, k) in [
            (1, 1, 32usize),
            (1, 70, 96),
            (1, 40, 576),
            (1, 6, 800),
            (1, 11, 480),
            (4, 9, 1120),
            (7, 3, 512),
            (3, 9, 160),
            (8, 33, 64),
            (9, 5, 32),
            (9, 5, 0),
            (21, 300, 1056),
            (2, 7, 544),
            (200, 37, 1120),
            (9, 48, 320),
            (3, 16, 32),
            (2, 31, 96),
        ] {
            let k = if storage == Storage::F16 {
                k.saturating_sub(5)
            } else {
                k
            };
            let bytes: Vec<u8> = match storage {
                Storage::F16 => (0..n * k)
                    .flat_map(|i| f16::from_f32((i * 7 % 33) as f32 * 0.3 - 4.0).to_le_bytes())
                    .collect(),
                Storage::Blocks(_) => (0..storage.bytes(n * k)).map(|i| (i * 31 % 251) as u8).collect(),
            };
            let scales: Vec<u16> = (0..n * k / BLOCK * storage.scales().max(1) + 1)
                .map(|i| f16::from_f32((i % 9) as f32 * 0.2 - 0.7).to_bits())
                .collect();
            let x: Vec<f32> = (0..m * k).map(|i| (i * 5 % 17) as f32 * 0.1 - 0.8).collect();
            let weight = |j: usize, p: usize| match storage {
                Storage::F16 => {
                    let at = 2 * (j * k + p);
                    f64::from(f16::from_le_bytes([bytes[at], bytes[at + 1]]))
                }
                Storage::Blocks(format) => {
                    let block = j * (k / BLOCK) + p / BLOCK;
                    let scales = &scales[block * format.scales()..][..format.scales()];
                    let scales: Vec<f64> = scales.iter().map(|&s| f16::from_bits(s).to_f64()).collect();
                    format.numbers(&bytes[block * format.bytes()..], &scales)[p % BLOCK]
                }
            };
            let orders = |kernel| {
                orders([n, k], storage, kernel, &bytes, &scales)
                    .into_iter()
                    .map(move |o| (kernel, o))
            };
            for (kernel, (in_panels, bytes, scales)) in Kernel::available().flat_map(orders) {
                let weights = Rows {
                    numbers: bytes.as_ptr(),
                    scales: scales.as_ptr(),
                    k,
                };
                let gemm = PackedGemm::with_kernel([m, n, k], storage, in_panels, kernel);
                let mut y = vec![f32::NAN; m * n];
                let mut worker = vec![f32::NAN; gemm.worker_len()];
                let mut row = vec![f32::NAN; k];
                let mut shared = scratch(gemm.shared_len());
                for task in 0..gemm.preparations() {
                    // SAFETY: vectors of these sizes.
                    unsafe { gemm.prepare(task, x.as_ptr(), shared.as_mut_ptr().cast()) };
                }
                let scratch = [shared.as_mut_ptr().cast(), worker.as_mut_ptr()];
                for task in 0..gemm.tasks() {
                    // SAFETY: vectors of these sizes.
                    unsafe { gemm.run(task, x.as_ptr(), weights, y.as_mut_ptr(), scratch) };
                }
                for j in 0..n {
                    if !in_panels {
                        // SAFETY: the row exists, and `row` has room for it.
                        unsafe { gemm.expand(weights, j, row.as_mut_ptr()) };
                    }
                    for (p, &found) in row.iter().enumerate().filter(|_| !in_panels) {
                        let wanted = weight(j, p);
                        assert!(
                            (f64::from(found) - wanted).abs() <= 1e-6 * wanted.abs(),
                            "{storage:?} {kernel:?}"
                        );
                    }
                    for i in 0..m {
                        let terms = (0..k).map(|p| f64::from(x[i * k + p]) * weight(j, p));
                        let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t| (s + t, z + t.abs()));
                        let rounding = if in_panels {
                            of_16_bits(&x[i * k..][..k], |p| weight(j, p))
                        } else {
                            0.0
                        };
                        let error = (f64::from(y[i * n + j]) - sum).abs();
                        assert!(
                            error <= 1e-6 * size + rounding,
                            "{storage:?} {kernel:?} {in_panels} {m} {n} {k} [{i}, {j}]: {error}"
                        );
                    }
                }
            }
        }
    }
}

/// Returns the maximum error of a dot product with a row that is rounded to 16 bits: half a rounding step for each
/// number.
fn of_16_bits(x: &[f32], weight: impl Fn(usize) -> f64) -> f64 {
    let block = |at: usize| {
        let largest = x[at..at + BLOCK].iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let weights: f64 = (at..at + BLOCK).map(|p| weight(p).abs()).sum();
        f64::from(largest) / (2.0 * 32_639.0) * weights
    };
    (0..x.len()).step_by(BLOCK).map(block).sum()
}

/// The weights of a test.
struct Weights<'a> {
    format: BlockFormat,
    bytes: &'a [u8],
    scales: &'a [u16],
    n: usize,
}

/// Returns all instruction sets, each with false (row by row), and also with true (in panels) if it supports panels.
fn kernels_and_orders(format: BlockFormat) -> impl Iterator<Item = (Kernel, bool)> {
    Kernel::available().flat_map(move |kernel| {
        let has_panels = panel_kernels(kernel, Storage::Blocks(format)).is_some();
        [false, true]
            .into_iter()
            .take(1 + usize::from(has_panels))
            .map(move |in_panels| (kernel, in_panels))
    })
}

/// Computes `m` rows of `x` times the weights. Expands the weights in registers, or uses the algorithm that the plan
/// selects.
fn rows(x: &[f32], m: usize, weights: &Weights, (kernel, in_panels): (Kernel, bool), in_registers: bool) -> Vec<f32> {
    let (n, k, storage) = (weights.n, x.len() / m, Storage::Blocks(weights.format));
    let gemm = PackedGemm::with_kernel([m, n, k], storage, in_panels, kernel);
    let orders = orders([n, k], storage, kernel, weights.bytes, weights.scales);
    let (_, bytes, scales) = &orders[usize::from(in_panels)];
    let weights = Rows {
        numbers: bytes.as_ptr(),
        scales: scales.as_ptr(),
        k,
    };
    let mut y = vec![f32::NAN; m * n];
    let mut shared = scratch(gemm.shared_len());
    let mut worker = vec![f32::NAN; gemm.worker_len()];
    // SAFETY: vectors of these sizes.
    unsafe {
        if in_registers {
            gemm.in_registers(0..m, 0..n, x.as_ptr(), weights, y.as_mut_ptr());
            return y;
        }
        for task in 0..gemm.preparations() {
            gemm.prepare(task, x.as_ptr(), shared.as_mut_ptr().cast());
        }
        for task in 0..gemm.tasks() {
            let scratch = [shared.as_mut_ptr().cast(), worker.as_mut_ptr()];
            gemm.run(task, x.as_ptr(), weights, y.as_mut_ptr(), scratch);
        }
    }
    y
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// Rounded rows have bitwise equal results for any number of rows, also next to a row that cannot
/// be rounded.
#[test]
fn rounded_rows_do_not_depend_on_others() {
    let (m, n, k) = (21, 83, 96);
    let scales: Vec<u16> = (0..2 * n * k / BLOCK)
        .map(|i| f16::from_f32((i % 13) as f32 * 0.2 - 0.7).to_bits())
        .collect();
    let x: Vec<f32> = (0..m * k).map(|i| (i * 37 % 101) as f32 * 0.013 - 0.6).collect();
    for format in BlockFormat::ALL {
        let bytes: Vec<u8> = (0..n * k / BLOCK * format.bytes())
            .map(|i| (i * 31 % 251) as u8)
            .collect();
        let weights = Weights {
            format,
            bytes: &bytes,
            scales: &scales,
            n,
        };
        for kernel in kernels_and_orders(format).filter(|&(_, in_panels)| in_panels) {
            let all = rows(&x, m, &weights, kernel, false);
            for count in [1, 2, 7, 8, 9, 17] {
                for first in [0, m - count] {
                    let some = rows(&x[first * k..][..count * k], count, &weights, kernel, false);
                    assert_eq!(
                        bits(&some),
                        bits(&all[first * n..][..count * n]),
                        "{format:?} {count} from {first}"
                    );
                }
            }
            let mut special = x.clone();
            special[10 * k + 3] = f32::INFINITY;
            let found = rows(&special, m, &weights, kernel, false);
            let expanded = rows(&special, m, &weights, kernel, true);
            assert_eq!(
                bits(&found[10 * n..11 * n]),
                bits(&expanded[10 * n..11 * n]),
                "{format:?}"
            );
            for others in [0..10 * n, 11 * n..m * n] {
                assert_eq!(bits(&found[others.clone()]), bits(&all[others]), "{format:?}");
            }
        }
    }
}

/// Rows with numbers that integers cannot represent have bitwise the same results as without rounding.
#[test]
fn rows_that_are_not_rounded() {
    let (n, k) = (35, 96);
    // No format has more than two scales per block.
    let scales: Vec<u16> = (0..2 * n * k / BLOCK)
        .map(|i| f16::from_f32((i % 13) as f32 * 0.2 - 0.7).to_bits())
        .collect();
    let plain: Vec<f32> = (0..k).map(|i| (i * 5 % 17) as f32 * 0.1 - 0.8).collect();
    for format in BlockFormat::ALL {
        let bytes: Vec<u8> = (0..n * k / BLOCK * format.bytes())
            .map(|i| (i * 31 % 251) as u8)
            .collect();
        let weights = Weights {
            format,
            bytes: &bytes,
            scales: &scales,
            n,
        };
        for (at, special) in [
            (3, f32::INFINITY),
            (40, f32::NEG_INFINITY),
            (95, f32::NAN),
            (64, 1e30),
            (0, f32::MAX),
        ] {
            let mut x = plain.clone();
            x[at] = special;
            for kernel in kernels_and_orders(format) {
                let [found, wanted] = [false, true].map(|way| rows(&x, 1, &weights, kernel, way));
                assert_eq!(bits(&found), bits(&wanted), "{format:?} {kernel:?} {special} at {at}");
            }
        }
        // A block of very small numbers next to normal ones.
        let mut x = plain.clone();
        x[32..64].iter_mut().for_each(|x| *x *= 1e-30);
        for kernel in kernels_and_orders(format) {
            let [found, wanted] = [false, true].map(|way| rows(&x, 1, &weights, kernel, way));
            if kernel.1 {
                let largest = wanted.iter().fold(0.0f32, |m, y| m.max(y.abs()));
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * largest;
                assert!(found.iter().zip(&wanted).all(close), "{format:?} {kernel:?}");
            } else {
                assert_eq!(found, wanted, "{format:?} {kernel:?}");
            }
        }
    }
}

/// Weights of 0 and rows of 0 give exactly 0, and extreme digits do not wrap.
#[test]
fn ends_of_integers() {
    let (n, k) = (21, 64);
    let scales = vec![f16::ONE.to_bits(); 2 * n * k / BLOCK];
    for format in BlockFormat::ALL {
        for byte in [0x88u8, 0x00, 0xff, 0x0f, 0xf0, 0x80, 0x7f] {
            let bytes = vec![byte; n * k / BLOCK * format.bytes()];
            let numbers = format.numbers(&bytes, &[1.0; 2]);
            let weights = Weights {
                format,
                bytes: &bytes,
                scales: &scales,
                n,
            };
            let weight = |p: usize| numbers[p % BLOCK];
            for value in [0.0, 1.0, -1.0, 0.999_999_9, -127.0 / 128.0, 1.0 / 3.0] {
                for kernel in kernels_and_orders(format) {
                    // First, all numbers have one magnitude; then one is much larger than the rest.
                    for others in [1.0, 1.0 / 16_384.0] {
                        let x: Vec<f32> = (0..k).map(|p| if p == 9 { value } else { value * others }).collect();
                        let sum: f64 = (0..k).map(|p| f64::from(x[p]) * weight(p)).sum();
                        let size: f64 = (0..k).map(|p| f64::from(x[p]).abs() * weight(p).abs()).sum();
                        let largest = (0..BLOCK).map(|p| weight(p).abs()).fold(0.0, f64::max);
                        for y in rows(&x, 1, &weights, kernel, false) {
                            // An element is off by up to 2^-22 of the largest element; with panels, by up to half a
                            // unit of 16 bits.
                            let of_integers = 64.0 * largest * f64::from(value.abs()) / f64::from(1 << 22)
                                * f64::from(u8::from(others < 1.0));
                            let rounding = if kernel.1 { of_16_bits(&x, weight) } else { of_integers };
                            let bound = 1e-6 * size + rounding;
                            let error = (f64::from(y) - sum).abs();
                            assert!(
                                error <= bound,
                                "{format:?} {kernel:?} {byte:x} {value} {others}: {error}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Tasks list all weights and scales, each once, and neighbouring tasks list adjacent memory.
#[test]
fn tasks_say_what_they_read() {
    let (n, k) = (96, 576);
    for storage in [Storage::F16].into_iter().chain(BlockFormat::ALL.map(Storage::Blocks)) {
        let numbers = vec![0u8; storage.bytes(n * k)];
        let scales = vec![0u16; n * k / BLOCK * storage.scales().max(1)];
        let weights = Rows {
            numbers: numbers.as_ptr(),
            scales: scales.as_ptr(),
            k,
        };
        let of = |m: usize, in_panels: bool| {
            let gemm = PackedGemm::new([m, n, k], storage, in_panels);
            let mut prefetch = Prefetch::default();
            (0..gemm.tasks()).for_each(|task| gemm.reads(task, weights, &mut prefetch));
            prefetch
        };
        let wanted = match storage {
            Storage::F16 => vec![numbers.as_ptr_range()],
            Storage::Blocks(_) => {
                let scales = scales.as_ptr_range();
                vec![numbers.as_ptr_range(), scales.start.cast()..scales.end.cast()]
            }
        };
        let wanted: usize = wanted.iter().map(|r| r.end.addr() - r.start.addr()).sum();
        for in_panels in [false, true] {
            let found = of(1, in_panels);
            assert_eq!(found.bytes(), wanted.min(Prefetch::MAX), "{storage:?}");
            assert!(found.ranges() <= 2, "{storage:?}");
            // Matmuls with many rows are bound by arithmetic.
            assert!(of(100, in_panels).is_empty(), "{storage:?}");
        }
    }
}
