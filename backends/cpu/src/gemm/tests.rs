//! Tests of matmuls against a plain loop, for all kernels that the CPU supports.

use super::*;
use crate::pool::ThreadPool;

/// All combinations of transposed and plain operands.
const FORMS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

/// Length of k that is slightly greater than a block of k.
const K_OVER: usize = 517;

/// Initial value of the memory between the rows of C and after them.
const UNTOUCHED: f32 = -77.0;

/// Returns pseudo-random numbers in -1..1.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Returns the strides of a stored matrix, with `gap` unused elements after each line.
fn strides(rows: usize, cols: usize, transposed: bool, gap: usize) -> Strides {
    if transposed {
        Strides {
            row: 1,
            col: rows + gap,
        }
    } else {
        Strides {
            row: cols + gap,
            col: 1,
        }
    }
}

fn extent(rows: usize, cols: usize, strides: Strides) -> usize {
    if rows == 0 || cols == 0 {
        return 0;
    }
    (rows - 1) * strides.row + (cols - 1) * strides.col + 1
}

/// Scratch that the caller of a plan provides.
struct Scratch {
    lines: Vec<[f32; 16]>,
}

impl Scratch {
    /// Creates scratch full of NaN. A result is NaN if it depends on scratch that was read before it was written.
    fn new(len: usize) -> Self {
        Self {
            lines: vec![[f32::NAN; 16]; len.div_ceil(16) + 1],
        }
    }

    fn ptr(&mut self) -> *mut f32 {
        let start = self.lines.as_mut_ptr().cast::<f32>();
        start.wrapping_add(start.align_offset(64))
    }
}

struct Pointers<'a>(&'a Operands, &'a [*mut f32]);
// SAFETY: tasks write disjoint parts of C and of the shared scratch, and each
// worker has scratch of its own.
unsafe impl Sync for Pointers<'_> {}

/// Computes the matmul in a new C, whose elements are initially 0.5.
fn product(gemm: &Gemm, a: &[f32], b: &[f32], addend: Addend, pool: &ThreadPool) -> Vec<f32> {
    let spec = gemm.spec();
    let mut c = vec![UNTOUCHED; spec.m * spec.ldc + 3];
    for i in 0..spec.m {
        c[i * spec.ldc..][..spec.n].fill(0.5);
    }
    let mut shared = Scratch::new(gemm.shared_len());
    let mut workers: Vec<Scratch> = (0..pool.threads()).map(|_| Scratch::new(gemm.worker_len())).collect();
    let workers: Vec<*mut f32> = workers.iter_mut().map(Scratch::ptr).collect();
    let operands = Operands {
        a: a.as_ptr(),
        b: b.as_ptr(),
        c: c.as_mut_ptr(),
        addend,
        shared: shared.ptr(),
        worker: std::ptr::null_mut(),
    };
    let pointers = Pointers(&operands, &workers);
    for phase in 0..gemm.phases() {
        pool.run(gemm.tasks(phase), &|task, worker| {
            let Pointers(o, workers) = &pointers;
            // SAFETY: the operands have the extents of the spec, and the scratch has the lengths that the plan
            // requests. `run` separates the phases.
            unsafe {
                if o.addend.start.is_null() {
                    gemm.run_task(phase, task, o.a, o.b, o.c, o.shared, workers[worker])
                } else {
                    let worker = workers[worker];
                    gemm.run_task_on(phase, task, Operands { worker, ..**o });
                }
            }
        });
    }
    c
}

/// Returns the expected result, summed up in f64.
fn expected(spec: &GemmSpec, a: &[f32], b: &[f32]) -> Vec<f64> {
    let mut c = vec![if spec.accumulate { 0.5 } else { 0.0 }; spec.m * spec.n];
    for i in 0..spec.m {
        for p in 0..spec.k {
            let x = f64::from(a[i * spec.a.row + p * spec.a.col]);
            for j in 0..spec.n {
                c[i * spec.n + j] += x * f64::from(b[p * spec.b.row + j * spec.b.col]);
            }
        }
    }
    c
}

/// Compares C with the expected values, and the memory around C with its initial value.
fn check(gemm: &Gemm, expected: &[f64], c: &[f32]) {
    let spec = gemm.spec();
    let bound = 1e-6 * (spec.k as f64 + 4.0);
    for i in 0..spec.m {
        for j in 0..spec.n {
            let (found, right) = (f64::from(c[i * spec.ldc + j]), expected[i * spec.n + j]);
            assert!(
                (found - right).abs() <= bound,
                "{:?} {spec:?}: C[{i}, {j}] is {found}, not {right}",
                gemm.kernel()
            );
        }
        let gap = i * spec.ldc + spec.n..(i + 1) * spec.ldc;
        assert!(c[gap].iter().all(|x| *x == UNTOUCHED));
    }
    assert!(c[spec.m * spec.ldc..].iter().all(|x| *x == UNTOUCHED));
}

/// Returns plans for all kernels, each with its B. B is stored as in the spec, and also in panels if they would be
/// full.
fn ways(spec: &GemmSpec, b: &[f32]) -> Vec<(Kernel, Gemm, Vec<f32>)> {
    let mut ways = Vec::new();
    let is_dense = [(spec.n, 1), (1, spec.k)].contains(&(spec.b.row, spec.b.col));
    for kernel in Kernel::available() {
        ways.push((kernel, Gemm::with_kernel(*spec, kernel), b.to_vec()));
        let transposed = spec.b.col != 1;
        if let Some(panels) = Gemm::panels_for([spec.k, spec.n], transposed, kernel).filter(|_| is_dense) {
            let mut stored = vec![0.0f32; b.len()];
            for (number, chunk) in b.chunks(panels.unit / size_of::<f32>()).enumerate() {
                let start = panels.offset(number) * chunk.len();
                stored[start..start + chunk.len()].copy_from_slice(chunk);
            }
            ways.push((kernel, Gemm::planned(*spec, kernel, true), stored));
        }
    }
    ways
}

/// Checks a spec with all kernels, on one thread and on several.
fn try_spec(spec: GemmSpec, pools: &[ThreadPool]) {
    try_plus(spec, None, pools);
}

/// Checks a spec like [`try_spec`]. If `addend_row` is given, adds an addend whose rows are this far apart.
fn try_plus(spec: GemmSpec, addend_row: Option<usize>, pools: &[ThreadPool]) {
    let d = numbers(addend_row.map_or(0, |row| spec.m * row + spec.n), 3);
    let addend = match addend_row {
        Some(row) => Addend { start: d.as_ptr(), row },
        None => Addend::NONE,
    };
    let a = numbers(extent(spec.m, spec.k, spec.a), 1);
    let b = numbers(extent(spec.k, spec.n, spec.b), 2);
    let mut right = expected(&spec, &a, &b);
    if let Some(row) = addend_row {
        for (at, sum) in right.iter_mut().enumerate() {
            *sum += f64::from(d[at / spec.n * row + at % spec.n]);
        }
    }
    for (kernel, gemm, b) in ways(&spec, &b) {
        assert_eq!(gemm.kernel(), kernel);
        let first = product(&gemm, &a, &b, addend, &pools[0]);
        check(&gemm, &right, &first);
        for pool in &pools[1..] {
            let again = product(&gemm, &a, &b, addend, pool);
            let same = |(x, y): (&f32, &f32)| x.to_bits() == y.to_bits();
            assert!(first.iter().zip(&again).all(same), "{kernel:?} {spec:?}");
        }
    }
}

/// Checks a shape in one form. If `add` is true, the product is added to C and lines have gaps; otherwise C is
/// overwritten and dense.
fn try_form(m: usize, k: usize, n: usize, form: (bool, bool), add: bool, pools: &[ThreadPool]) {
    let gap = if add { 3 } else { 0 };
    let spec = GemmSpec {
        m,
        n,
        k,
        a: strides(m, k, form.0, gap),
        b: strides(k, n, form.1, gap),
        ldc: n + gap,
        accumulate: add,
    };
    try_spec(spec, pools);
}

/// Checks a shape in all forms.
fn try_shape(m: usize, k: usize, n: usize, pools: &[ThreadPool]) {
    for form in FORMS {
        for add in [false, true] {
            try_form(m, k, n, form, add, pools);
        }
    }
}

fn pools() -> Vec<ThreadPool> {
    (1..=3).map(ThreadPool::new).collect()
}

#[test]
fn small_and_odd_sizes() {
    let pools = [ThreadPool::new(1)];
    let sizes = [0, 1, 2, 5, 6, 7, 8, 13, 15, 16, 17, 33];
    for m in sizes {
        for n in sizes {
            for k in [0, 1, 7, 17] {
                try_shape(m, k, n, &pools);
            }
        }
    }
}

#[test]
fn sizes_around_tasks_and_blocks() {
    let pools = pools();
    let shapes = [
        // Cut by columns; B read directly, then packed by each task, in blocks.
        (37, 101, 111),
        (2, 300, 700),
        (13, K_OVER, 350),
        // The same with several tiles of rows, the first of which writes the panels; three blocks of k.
        (100, 260, 529),
        (47, 1030, 131),
        // Cut by rows; B read directly, then packed for all.
        (131, 83, 47),
        (145, K_OVER, 349),
        // One task with several blocks of rows.
        (700, 11, 7),
        // Few panels, the last of them narrow, for many rows.
        (521, K_OVER, 49),
        (331, 256, 17),
        // Lines of A whose length is a power of two.
        (130, 256, 80),
        (256, 129, 80),
        // Only whole panels, with each kernel.
        (2, 40, 64),
        (33, K_OVER, 352),
        (128, 1030, 96),
        (145, K_OVER, 192),
        (300, 70, 128),
    ];
    for (m, k, n) in shapes {
        for (a, b) in FORMS {
            // Each form has both values of `add`, combined with different shapes.
            try_form(m, k, n, (a, b), a != b, &pools);
        }
    }
}

#[test]
fn vectors() {
    let pools = pools();
    for (k, len) in [
        (1, 1),
        (1, 9000),
        (40, 9001),
        // Whole rows are distributed; the last tasks have fewer rows.
        (577, 1234),
        (130, 519),
        (2100, 8200),
        (301, 4160),
        (3001, 5),
        (70_001, 2),
    ] {
        try_shape(1, k, len, &pools);
        try_shape(len, k, 1, &pools);
    }
}

#[test]
fn addends() {
    let pools = pools();
    let shapes = [
        (7, 0, 5),
        (1, 40, 300),
        (300, 40, 1),
        (17, 9, 33),
        (13, K_OVER, 350),
        (131, 83, 47),
        (145, K_OVER, 349),
        (30, 45, 96),
        (1, 45, 96),
        (1, 577, 301),
        (301, 577, 1),
    ];
    for (m, k, n) in shapes {
        for form in FORMS {
            for row in [0, n, n + 5] {
                let spec = GemmSpec {
                    m,
                    n,
                    k,
                    a: strides(m, k, form.0, 0),
                    b: strides(k, n, form.1, 0),
                    ldc: n + 2,
                    accumulate: false,
                };
                try_plus(spec, Some(row), &pools);
            }
        }
    }
}

#[test]
fn no_contiguous_axis() {
    let pools = pools();
    for (m, k, n) in [(1, 50, 60), (60, 50, 1), (19, 23, 41), (200, 100, 90)] {
        let spec = GemmSpec {
            m,
            n,
            k,
            a: Strides { row: 2 * k, col: 2 },
            b: Strides { row: 3, col: 3 * k },
            ldc: n,
            accumulate: false,
        };
        try_spec(spec, &pools);
    }
}

#[test]
fn medium_products_are_cut_for_many_threads() {
    for (m, k, n) in [(32, 784, 128), (784, 32, 128), (128, 576, 1536), (512, 512, 512)] {
        let spec = GemmSpec {
            m,
            n,
            k,
            a: strides(m, k, false, 0),
            b: strides(k, n, false, 0),
            ldc: n,
            accumulate: false,
        };
        for kernel in Kernel::available() {
            let gemm = Gemm::with_kernel(spec, kernel);
            let tasks = gemm.tasks(gemm.phases() - 1);
            assert!((4..=24).contains(&tasks), "{m} {k} {n}: {tasks} tasks");
        }
    }
}

#[test]
fn a_tiny_product_is_one_task() {
    let spec = GemmSpec {
        m: 8,
        n: 8,
        k: 8,
        a: strides(8, 8, false, 0),
        b: strides(8, 8, false, 0),
        ldc: 8,
        accumulate: false,
    };
    let gemm = Gemm::new(spec);
    assert_eq!((gemm.phases(), gemm.tasks(0), gemm.tasks(1)), (1, 1, 0));
    assert_eq!(gemm.flops(), 1024);
}
