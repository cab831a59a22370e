//! Every way of computing a product with packed weights, against sums in f64.

use half::f16;

use super::*;

/// Every instruction set, storage and way against sums in f64 of numbers that are read one by one.
#[test]
fn products_of_every_storage() {
    let storages = [Storage::Half].into_iter().chain(BlockFormat::ALL.map(Storage::Blocks));
    for storage in storages {
        for (m, n, k) in [
            (1, 1, 32usize),
            (1, 70, 96),
            (1, 40, 576),
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
                for task in 0..gemm.tasks() {
                    // SAFETY: vectors of these sizes.
                    unsafe { gemm.run(task, x.as_ptr(), weights, y.as_mut_ptr(), worker.as_mut_ptr()) };
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
