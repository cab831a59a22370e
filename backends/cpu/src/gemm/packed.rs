//! Products with the rows of a matrix in few bits, expanded where they are used: in registers for few rows of the left
//! operand, else a piece at a time for the inner loops of [`super::Blocks`].

use half::f16;
use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::block::{Blocks, Left, Target};
use super::kernels::KernelSet;
use super::simd::Vector;
use super::{Kernel, Strides, share};

/// How the numbers of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// IEEE 754 binary16.
    Half,
    /// Blocks of integers with a scale each.
    Blocks(BlockFormat),
}

impl Storage {
    fn kernels(self, set: &'static KernelSet) -> &'static PackedKernels {
        &set.packed[match self {
            Storage::Half => 0,
            Storage::Blocks(BlockFormat::Q8_0) => 1,
            Storage::Blocks(BlockFormat::Q4_0) => 2,
        }]
    }

    /// Bytes of so many numbers without scales, whole blocks where there are blocks.
    pub(crate) fn bytes(self, count: usize) -> usize {
        match self {
            Storage::Half => 2 * count,
            Storage::Blocks(format) => count / BLOCK * format.bytes(),
        }
    }
}

/// Rows of a stored matrix.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// The first row's numbers; rows follow each other.
    pub(crate) numbers: *const u8,
    /// The first row's scales; rows follow each other.
    pub(crate) scales: *const u16,
    /// Numbers of a row.
    pub(crate) k: usize,
}

impl Rows {
    /// The rows from one on.
    ///
    /// # Safety
    ///
    /// There are so many rows.
    unsafe fn from(self, storage: Storage, row: usize) -> Rows {
        // SAFETY: passed on to the caller.
        unsafe {
            Rows {
                numbers: self.numbers.add(row * storage.bytes(self.k)),
                scales: match storage {
                    Storage::Half => self.scales,
                    Storage::Blocks(_) => self.scales.add(row * (self.k / BLOCK)),
                },
                k: self.k,
            }
        }
    }
}

/// Most rows of the left operand that [`products`] takes at a time.
pub(super) const MOST_ROWS: usize = 4;
/// Registers of a block, at most.
const PARTS: usize = 8;

/// Blocks whose scales are converted together.
const TOGETHER: usize = 16;

/// Some rows of `x` by rows of a matrix.
type ProductsFn = unsafe fn(*const f32, Rows, usize, *mut f32, usize);

/// What one instruction set has for one storage.
#[derive(Clone, Copy)]
pub(super) struct PackedKernels {
    /// [`products`] of 1, 2 ... rows.
    pub(super) products: [ProductsFn; MOST_ROWS],
    /// [`expand`].
    pub(super) expand: unsafe fn(Rows, usize, usize, *mut f32),
}

/// A storage, for inner loops.
pub(super) trait Expand {
    /// Bytes of 32 numbers.
    const BYTES: usize;
    /// Whether blocks have scales.
    const SCALED: bool;

    /// 32 numbers without their scale, in as many registers as it takes.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instruction set, and the bytes must be there.
    unsafe fn block<V: Vector>(from: *const u8) -> [V; PARTS];
}

pub(super) enum Half {}
pub(super) enum Bytes {}
pub(super) enum HalfBytes {}

impl Expand for Half {
    const BYTES: usize = 2 * BLOCK;
    const SCALED: bool = false;

    #[inline(always)]
    unsafe fn block<V: Vector>(from: *const u8) -> [V; PARTS] {
        // SAFETY: 32 numbers of two bytes, which need no alignment.
        unsafe {
            let mut parts = [V::zero(); PARTS];
            for (i, part) in parts.iter_mut().enumerate().take(BLOCK / V::LANES) {
                *part = V::load_f16(from.cast::<u16>().add(i * V::LANES));
            }
            parts
        }
    }
}

impl Expand for Bytes {
    const BYTES: usize = BLOCK;
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn block<V: Vector>(from: *const u8) -> [V; PARTS] {
        // SAFETY: 32 bytes.
        unsafe {
            let mut parts = [V::zero(); PARTS];
            for (i, part) in parts.iter_mut().enumerate().take(BLOCK / V::LANES) {
                *part = V::load_i8(from.cast::<i8>().add(i * V::LANES));
            }
            parts
        }
    }
}

impl Expand for HalfBytes {
    const BYTES: usize = BLOCK / 2;
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn block<V: Vector>(from: *const u8) -> [V; PARTS] {
        // SAFETY: 16 bytes.
        unsafe {
            let mut parts = [V::zero(); PARTS];
            let registers = BLOCK / 2 / V::LANES;
            for i in 0..registers {
                [parts[i], parts[registers + i]] = V::load_halves(from.add(i * V::LANES));
            }
            parts
        }
    }
}

/// `y[i, j] = x[i] · weights[j]` for `M` rows of `x`, which follow each other, and the first `cols` rows of the weights;
/// rows of `y` are `y_row` apart.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the pointers must be valid for these sizes (whole blocks where there are
/// scales), and nobody else may access `y` meanwhile.
#[inline(always)]
pub(super) unsafe fn products<V: Vector, F: Expand, const M: usize>(
    x: *const f32,
    weights: Rows,
    cols: usize,
    y: *mut f32,
    y_row: usize,
) {
    let (k, blocks) = (weights.k, weights.k / BLOCK);
    // SAFETY: blocks and what is left of a row lie within it.
    unsafe {
        let (mut numbers, mut scales) = (weights.numbers, weights.scales);
        for j in 0..cols {
            // Two sums for each row of x, for additions wait for each other.
            let mut sums = [[V::zero(); 2]; M];
            let mut b = 0;
            while F::SCALED && b + TOGETHER <= blocks {
                // Their scales are converted in a few instructions, and then read one by one on the way.
                let mut of_blocks = [0.0f32; TOGETHER];
                for i in (0..TOGETHER).step_by(V::LANES) {
                    V::load_f16(scales.add(i)).store(of_blocks.as_mut_ptr().add(i));
                }
                for (i, scale) in of_blocks.iter().enumerate() {
                    let scale = V::splat(scale);
                    add_block::<V, F, M>(x.add((b + i) * BLOCK), k, numbers, scale, i % 2, &mut sums);
                    numbers = numbers.add(F::BYTES);
                }
                scales = scales.add(TOGETHER);
                b += TOGETHER;
            }
            while b + 2 <= blocks {
                for s in 0..2 {
                    let scale = scale_at::<V, F>(scales);
                    add_block::<V, F, M>(x.add((b + s) * BLOCK), k, numbers, scale, s, &mut sums);
                    (numbers, scales) = next::<F>(numbers, scales);
                }
                b += 2;
            }
            if b < blocks {
                let scale = scale_at::<V, F>(scales);
                add_block::<V, F, M>(x.add(b * BLOCK), k, numbers, scale, 0, &mut sums);
                (numbers, scales) = next::<F>(numbers, scales);
            }
            for (i, [a, b]) in sums.into_iter().enumerate() {
                let mut sum = a.add(b).sum();
                // Only numbers without scales go on behind whole blocks.
                for p in blocks * BLOCK..k {
                    sum += *x.add(i * k + p) * half_at(numbers, p - blocks * BLOCK);
                }
                *y.add(i * y_row + j) = sum;
            }
            numbers = numbers.add(2 * (k % BLOCK));
        }
    }
}

/// Behind a block.
///
/// # Safety
///
/// It is within the rows.
#[inline(always)]
unsafe fn next<F: Expand>(numbers: *const u8, scales: *const u16) -> (*const u8, *const u16) {
    // SAFETY: passed on to the caller.
    unsafe { (numbers.add(F::BYTES), if F::SCALED { scales.add(1) } else { scales }) }
}

/// The scale of a block; nothing without scales.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, and the scale, if there is one, be there.
#[inline(always)]
unsafe fn scale_at<V: Vector, F: Expand>(scales: *const u16) -> V {
    // SAFETY: passed on to the caller.
    unsafe { if F::SCALED { V::splat_f16(scales) } else { V::zero() } }
}

/// A number in binary16.
///
/// # Safety
///
/// It is there.
#[inline(always)]
unsafe fn half_at(numbers: *const u8, index: usize) -> f32 {
    // SAFETY: passed on to the caller.
    f16::from_bits(unsafe { numbers.cast::<u16>().add(index).read_unaligned() }).to_f32()
}

/// Adds the products with a block to the sums with number `s`.
///
/// # Safety
///
/// As for [`products`].
#[inline(always)]
unsafe fn add_block<V: Vector, F: Expand, const M: usize>(
    x: *const f32,
    x_row: usize,
    numbers: *const u8,
    scale: V,
    s: usize,
    sums: &mut [[V; 2]; M],
) {
    // SAFETY: a block of each row.
    unsafe {
        let parts = F::block::<V>(numbers);
        let count = BLOCK / V::LANES;
        for (i, sums) in sums.iter_mut().enumerate() {
            let x = x.add(i * x_row);
            if F::SCALED {
                let mut sum = parts[0].mul(V::load(x));
                for (p, part) in parts.iter().enumerate().take(count).skip(1) {
                    sum = part.mul_add(V::load(x.add(p * V::LANES)), sum);
                }
                sums[s] = sum.mul_add(scale, sums[s]);
            } else {
                for (p, part) in parts.iter().enumerate().take(count) {
                    sums[p % 2] = part.mul_add(V::load(x.add(p * V::LANES)), sums[p % 2]);
                }
            }
        }
    }
}

/// `len` numbers of the first row, from `first` on, which is the beginning of a block.
///
/// # Safety
///
/// The CPU must have `V`'s instruction set, the numbers must be there (whole blocks where there are scales), and `to`
/// have room for them, which nobody else accesses meanwhile.
#[inline(always)]
pub(super) unsafe fn expand<V: Vector, F: Expand>(weights: Rows, first: usize, len: usize, to: *mut f32) {
    let blocks = len / BLOCK;
    // SAFETY: blocks and what is left of the row.
    unsafe {
        let mut numbers = weights.numbers.add(first / BLOCK * F::BYTES);
        let mut scales = weights.scales;
        if F::SCALED {
            scales = scales.add(first / BLOCK);
        }
        for b in 0..blocks {
            let parts = F::block::<V>(numbers);
            let scale = scale_at::<V, F>(scales);
            for (p, part) in parts.into_iter().enumerate().take(BLOCK / V::LANES) {
                let part = if F::SCALED { part.mul(scale) } else { part };
                part.store(to.add(b * BLOCK + p * V::LANES));
            }
            (numbers, scales) = next::<F>(numbers, scales);
        }
        for p in blocks * BLOCK..len {
            *to.add(p) = half_at(numbers, p - blocks * BLOCK);
        }
    }
}

/// Stored numbers that are worth a task, and the most tasks.
const TASK_NUMBERS: usize = 64 * 1024;
const MAX_TASKS: usize = 32;
/// Rows of the left operand up to which numbers are expanded in registers, for each few rows anew.
const FEW_ROWS: usize = 2 * MOST_ROWS;
/// Columns that are expanded and packed at a time where rows are many, and how much of their length.
const COLS: usize = 128;
const LENGTH: usize = 512;

/// A planned product `y[m, n] = x[m, k] · weights[n, k]` transposed.
#[derive(Clone)]
pub(crate) struct PackedGemm {
    m: usize,
    n: usize,
    k: usize,
    storage: Storage,
    set: &'static KernelSet,
    blocks: Blocks,
    tasks: usize,
}

/// Whether rows are multiplied as they are stored. So are sums of nothing, which have to be written, too.
fn is_few(m: usize, k: usize) -> bool {
    m <= FEW_ROWS || k == 0
}

impl PackedGemm {
    /// Plans a product with the fastest inner loops that this CPU can run.
    pub(crate) fn new([m, n, k]: [usize; 3], storage: Storage) -> Self {
        PackedGemm::with_kernel([m, n, k], storage, Kernel::detect())
    }

    fn with_kernel([m, n, k]: [usize; 3], storage: Storage, kernel: Kernel) -> Self {
        let work = n.saturating_mul(k).saturating_mul(m.div_ceil(MOST_ROWS));
        let tasks = (work / TASK_NUMBERS).clamp(1, MAX_TASKS);
        let set = kernel.set();
        let units = if is_few(m, k) { n } else { n.div_ceil(set.tile_cols) };
        PackedGemm {
            m,
            n,
            k,
            storage,
            set,
            blocks: Blocks::with_kernel(kernel),
            tasks: if m == 0 { 0 } else { tasks.min(units) },
        }
    }

    /// Number of independent tasks; the division depends on sizes alone.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks
    }

    /// Floating-point operations.
    pub(crate) fn flops(&self) -> u64 {
        2 * self.m as u64 * self.n as u64 * self.k as u64
    }

    fn is_few(&self) -> bool {
        is_few(self.m, self.k)
    }

    /// `f32`s of scratch of a worker.
    pub(crate) fn worker_len(&self) -> usize {
        if self.is_few() {
            return 0;
        }
        let length = LENGTH.min(self.k);
        self.set.tile_cols * length + self.blocks.packed_len(length, COLS)
    }

    /// Runs a task.
    ///
    /// # Safety
    ///
    /// The task exists, the operands have these sizes, scales included where the storage has them, scratch is as long as
    /// asked for and the worker's own; nobody accesses this task's part of `y`, or writes the others, meanwhile.
    pub(crate) unsafe fn run(&self, task: usize, x: *const f32, weights: Rows, y: *mut f32, worker: *mut f32) {
        // SAFETY: columns of a task are its own, and below `n`; passed on to the caller.
        unsafe {
            if self.is_few() {
                let cols = share(self.n, self.tasks, task);
                self.few_rows(cols, x, weights, y);
                return;
            }
            let width = self.set.tile_cols;
            let panels = share(self.n.div_ceil(width), self.tasks, task);
            let end = (panels.end * width).min(self.n);
            for first in (panels.start * width..end).step_by(COLS) {
                self.many_rows(first..end.min(first + COLS), x, weights, y, worker);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`PackedGemm::run`].
    unsafe fn few_rows(&self, cols: std::ops::Range<usize>, x: *const f32, weights: Rows, y: *mut f32) {
        let kernels = self.storage.kernels(self.set);
        for row in (0..self.m).step_by(MOST_ROWS) {
            let rows = MOST_ROWS.min(self.m - row);
            // SAFETY: `rows` rows from `row` on, and columns of the task.
            unsafe {
                let weights = weights.from(self.storage, cols.start);
                let to = y.add(row * self.n + cols.start);
                (kernels.products[rows - 1])(x.add(row * self.k), weights, cols.len(), to, self.n);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`PackedGemm::run`], with at most [`COLS`] columns.
    unsafe fn many_rows(
        &self,
        cols: std::ops::Range<usize>,
        x: *const f32,
        weights: Rows,
        y: *mut f32,
        worker: *mut f32,
    ) {
        let kernels = self.storage.kernels(self.set);
        let width = self.set.tile_cols;
        // SAFETY: the scratch has room for a panel's columns as they are expanded, and for all that are packed; rows and
        // columns lie within the operands.
        unsafe {
            let packed = worker.add(width * LENGTH.min(self.k));
            for start in (0..self.k).step_by(LENGTH) {
                let length = LENGTH.min(self.k - start);
                for panel in cols.clone().step_by(width) {
                    let here = width.min(cols.end - panel);
                    for j in 0..here {
                        let row = weights.from(self.storage, panel + j);
                        (kernels.expand)(row, start, length, worker.add(j * length));
                    }
                    let strides = Strides { row: 1, col: length };
                    let to = packed.add((panel - cols.start) * length);
                    self.blocks.pack(worker, strides, length, here, to);
                }
                let left = Left {
                    start: x.add(start),
                    strides: Strides { row: self.k, col: 1 },
                };
                let target = Target {
                    start: y.add(cols.start),
                    row: self.n,
                    add: start > 0,
                };
                let panels = self.blocks.packed(packed, length);
                self.blocks.multiply(left, panels, target, [self.m, cols.len(), length]);
            }
        }
    }

    /// Expands a row of the weights.
    ///
    /// # Safety
    ///
    /// The row exists; `to` has room for `k` `f32`s, which nobody else accesses meanwhile.
    pub(crate) unsafe fn expand(&self, weights: Rows, row: usize, to: *mut f32) {
        let kernels = self.storage.kernels(self.set);
        // SAFETY: passed on to the caller.
        unsafe { (kernels.expand)(weights.from(self.storage, row), 0, self.k, to) }
    }
}

#[cfg(test)]
mod tests {
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
}
