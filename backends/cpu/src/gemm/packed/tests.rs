//! Every way of computing a product with packed weights, against sums in f64.

use half::f16;

use super::*;

/// Cache lines with so many `f32`s, of which none may be read before it is written.
fn scratch(len: usize) -> Vec<Line> {
    vec![Line([f32::NAN; 16]); len.div_ceil(16)]
}

#[derive(Clone, Copy)]
#[repr(align(64))]
#[expect(dead_code, reason = "kernels read it through pointers")]
struct Line([f32; 16]);

/// Every instruction set, storage and way against sums in f64 of numbers that are read one by one.
#[test]
fn products_of_every_storage() {
    let storages = [Storage::Half].into_iter().chain(BlockFormat::ALL.map(Storage::Blocks));
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
        ] {
            let k = if storage == Storage::Half {
                k.saturating_sub(5)
            } else {
                k
            };
            let bytes: Vec<u8> = match storage {
                Storage::Half => (0..n * k)
                    .flat_map(|i| f16::from_f32((i * 7 % 33) as f32 * 0.3 - 4.0).to_le_bytes())
                    .collect(),
                Storage::Blocks(_) => (0..storage.bytes(n * k)).map(|i| (i * 31 % 251) as u8).collect(),
            };
            let scales: Vec<u16> = (0..n * k / BLOCK + 1)
                .map(|i| f16::from_f32((i % 9) as f32 * 0.2 - 0.7).to_bits())
                .collect();
            let x: Vec<f32> = (0..m * k).map(|i| (i * 5 % 17) as f32 * 0.1 - 0.8).collect();
            let weight = |j: usize, p: usize| match storage {
                Storage::Half => {
                    let at = 2 * (j * k + p);
                    f64::from(f16::from_le_bytes([bytes[at], bytes[at + 1]]))
                }
                Storage::Blocks(format) => {
                    let block = j * (k / BLOCK) + p / BLOCK;
                    let q = format.integers(&bytes[block * format.bytes()..])[p % BLOCK];
                    f64::from(q) * f64::from(f16::from_bits(scales[block]))
                }
            };
            let weights = Rows {
                numbers: bytes.as_ptr(),
                scales: scales.as_ptr(),
                k,
            };
            for kernel in Kernel::available() {
                let gemm = PackedGemm::with_kernel([m, n, k], storage, kernel);
                let mut y = vec![f32::NAN; m * n];
                let mut worker = vec![f32::NAN; gemm.worker_len()];
                let mut row = vec![f32::NAN; k];
                let mut shared = scratch(gemm.shared_len());
                // SAFETY: vectors of these sizes.
                unsafe { gemm.prepare(x.as_ptr(), shared.as_mut_ptr().cast()) };
                let scratch = [shared.as_mut_ptr().cast(), worker.as_mut_ptr()];
                for task in 0..gemm.tasks() {
                    // SAFETY: vectors of these sizes.
                    unsafe { gemm.run(task, x.as_ptr(), weights, y.as_mut_ptr(), scratch) };
                }
                for j in 0..n {
                    // SAFETY: a row that there is, and room for it.
                    unsafe { gemm.expand(weights, j, row.as_mut_ptr()) };
                    for (p, &found) in row.iter().enumerate() {
                        let wanted = weight(j, p);
                        assert!(
                            (f64::from(found) - wanted).abs() <= 1e-6 * wanted.abs(),
                            "{storage:?} {kernel:?}"
                        );
                    }
                    for i in 0..m {
                        let terms = (0..k).map(|p| f64::from(x[i * k + p]) * weight(j, p));
                        let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t| (s + t, z + t.abs()));
                        let error = (f64::from(y[i * n + j]) - sum).abs();
                        assert!(
                            error <= 1e-6 * size,
                            "{storage:?} {kernel:?} {m} {n} {k} [{i}, {j}]: {error}"
                        );
                    }
                }
            }
        }
    }
}

/// One row by weights in Q4_0, `y = x weights`, by the expansion in registers or as the kernel does it by itself.
fn one_row(x: &[f32], bytes: &[u8], scales: &[u16], n: usize, kernel: Kernel, in_registers: bool) -> Vec<f32> {
    let k = x.len();
    let gemm = PackedGemm::with_kernel([1, n, k], Storage::Blocks(BlockFormat::Q4_0), kernel);
    let weights = Rows {
        numbers: bytes.as_ptr(),
        scales: scales.as_ptr(),
        k,
    };
    let mut y = vec![f32::NAN; n];
    let mut shared = scratch(gemm.shared_len());
    // SAFETY: vectors of these sizes.
    unsafe {
        if in_registers {
            gemm.in_registers(0..n, x.as_ptr(), weights, y.as_mut_ptr());
            return y;
        }
        gemm.prepare(x.as_ptr(), shared.as_mut_ptr().cast());
        for task in 0..gemm.tasks() {
            let scratch = [shared.as_mut_ptr().cast(), std::ptr::null_mut()];
            gemm.run(task, x.as_ptr(), weights, y.as_mut_ptr(), scratch);
        }
    }
    y
}

/// Numbers that a row of integers has no room for: the results are those of a row that is not rounded, to the bit.
#[test]
fn rows_that_are_not_rounded() {
    let (n, k) = (7, 96);
    let bytes: Vec<u8> = (0..n * k / 2).map(|i| (i * 31 % 251) as u8).collect();
    let scales: Vec<u16> = (0..n * k / BLOCK)
        .map(|i| f16::from_f32(i as f32 * 0.2 - 0.7).to_bits())
        .collect();
    let plain: Vec<f32> = (0..k).map(|i| (i * 5 % 17) as f32 * 0.1 - 0.8).collect();
    for (at, special) in [
        (3, f32::INFINITY),
        (40, f32::NEG_INFINITY),
        (95, f32::NAN),
        (64, 1e30),
        (0, f32::MAX),
    ] {
        let mut x = plain.clone();
        x[at] = special;
        for kernel in Kernel::available() {
            let [found, wanted] = [false, true].map(|way| one_row(&x, &bytes, &scales, n, kernel, way));
            let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&wanted), "{kernel:?} {special} at {at}");
        }
    }
    // A block of very small numbers, beside others.
    let mut x = plain;
    x[32..64].iter_mut().for_each(|x| *x *= 1e-30);
    for kernel in Kernel::available() {
        let [found, wanted] = [false, true].map(|way| one_row(&x, &bytes, &scales, n, kernel, way));
        assert_eq!(found, wanted, "{kernel:?}");
    }
}

/// What weights of 0 and rows of 0 give is exactly 0, and a digit's ends do not wrap.
#[test]
fn ends_of_integers() {
    let (n, k) = (5, 64);
    for byte in [0x88u8, 0x00, 0xff, 0x0f, 0xf0] {
        let (bytes, scales) = (vec![byte; n * k / 2], vec![f16::ONE.to_bits(); n * k / BLOCK]);
        let weight = |p: usize| f64::from(if p % BLOCK < 16 { byte & 15 } else { byte >> 4 }) - 8.0;
        for value in [0.0, 1.0, -1.0, 0.999_999_9, -127.0 / 128.0, 1.0 / 3.0] {
            for kernel in Kernel::available() {
                // All of one magnitude, and one far above the others.
                for others in [1.0, 1.0 / 16_384.0] {
                    let x: Vec<f32> = (0..k).map(|p| if p == 9 { value } else { value * others }).collect();
                    let sum: f64 = (0..k).map(|p| f64::from(x[p]) * weight(p)).sum();
                    let size: f64 = (0..k).map(|p| f64::from(x[p]).abs() * weight(p).abs()).sum();
                    for y in one_row(&x, &bytes, &scales, n, kernel, false) {
                        // An element is off by up to 2^-22 of the largest one.
                        let bound = 1e-6 * size
                            + 64.0 * 8.0 * f64::from(value.abs()) / f64::from(1 << 22)
                                * f64::from(u8::from(others < 1.0));
                        let error = (f64::from(y) - sum).abs();
                        assert!(error <= bound, "{kernel:?} {byte:x} {value} {others}: {error}");
                    }
                }
            }
        }
    }
}

/// Tasks name all weights and scales, each once, and neighbours follow each other.
#[test]
fn tasks_say_what_they_read() {
    let (n, k) = (96, 576);
    for storage in [Storage::Half].into_iter().chain(BlockFormat::ALL.map(Storage::Blocks)) {
        let numbers = vec![0u8; storage.bytes(n * k)];
        let scales = vec![0u16; n * k / BLOCK];
        let weights = Rows {
            numbers: numbers.as_ptr(),
            scales: scales.as_ptr(),
            k,
        };
        let of = |m: usize| {
            let gemm = PackedGemm::new([m, n, k], storage);
            let mut ahead = Ahead::default();
            (0..gemm.tasks()).for_each(|task| gemm.reads(task, weights, &mut ahead));
            ahead
        };
        let wanted = match storage {
            Storage::Half => vec![numbers.as_ptr_range()],
            Storage::Blocks(_) => {
                let scales = scales.as_ptr_range();
                vec![numbers.as_ptr_range(), scales.start.cast()..scales.end.cast()]
            }
        };
        let wanted: usize = wanted.iter().map(|r| r.end.addr() - r.start.addr()).sum();
        let found = of(1);
        assert_eq!(found.bytes(), wanted.min(Ahead::MOST), "{storage:?}");
        assert!(found.ranges() <= 2, "{storage:?}");
        // Many rows are bound by arithmetic.
        assert!(of(100).is_empty(), "{storage:?}");
    }
}
