//! Benchmarks of matrix products inside a plan against direct calls of the crates `gemm` and `matrixmultiply`, with two threads
//! each, and of matrix-vector products against copying the matrix.
//!
//! The line after each shape has GFLOP/s and, in parentheses, the median of time(crate) / time(plan): above 1
//! the plan is faster.

mod common;

use std::cell::RefCell;
use std::time::Duration;

use common::{Candidate, Race, THREADS, copy, inference, noise};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use meganeura::Graph;
use meganeura::cpu::pool::ThreadPool;

/// Operand that is stored transposed.
#[derive(Clone, Copy, PartialEq)]
enum TransposedOperand {
    Plain,
    A,
    B,
}

type Shape = (usize, usize, usize, TransposedOperand);

/// Sizes m, k and n of each product, and which operand is transposed.
const SHAPES: &[Shape] = &[
    (1024, 1024, 1024, TransposedOperand::Plain),
    (128, 576, 1536, TransposedOperand::Plain),
    (32, 784, 128, TransposedOperand::Plain),
    (784, 32, 128, TransposedOperand::A),
    (32, 128, 784, TransposedOperand::B),
    (64, 576, 3136, TransposedOperand::Plain),
    // Products of a vector with matrices of 4, 17 and 113 MB: the first matrix may stay in a cache.
    (1, 1024, 1024, TransposedOperand::Plain),
    (1, 2048, 2048, TransposedOperand::Plain),
    (1, 2048, 2048, TransposedOperand::B),
    (1, 576, 49152, TransposedOperand::Plain),
    (1, 576, 49152, TransposedOperand::B),
];

fn name((m, k, n, form): Shape) -> String {
    let form = match form {
        TransposedOperand::Plain => "",
        TransposedOperand::A => " A^T",
        TransposedOperand::B => " B^T",
    };
    format!("{m}x{k}x{n}{form}")
}

fn graph((m, k, n, form): Shape) -> Graph {
    let mut g = Graph::new();
    let a = g.input("a", &if form == TransposedOperand::A { [k, m] } else { [m, k] });
    let b = g.input("b", &if form == TransposedOperand::B { [n, k] } else { [k, n] });
    let c = match form {
        TransposedOperand::Plain => g.matmul(a, b),
        TransposedOperand::A => g.matmul_at(a, b),
        TransposedOperand::B => g.matmul_bt(a, b),
    };
    g.set_outputs(vec![c]);
    g
}

/// Returns the row stride and column stride of an operand.
fn strides(columns: usize, rows: usize, transposed: bool) -> (isize, isize) {
    if transposed {
        (1, rows as isize)
    } else {
        (columns as isize, 1)
    }
}

fn crates<'a>((m, k, n, form): Shape, a: &'a [f32], b: &'a [f32], c: &'a RefCell<Vec<f32>>) -> Vec<Candidate<'a>> {
    let (ar, ac) = strides(k, m, form == TransposedOperand::A);
    let (br, bc) = strides(n, k, form == TransposedOperand::B);
    let by_gemm = move || {
        let c = c.borrow_mut().as_mut_ptr();
        let parallelism = gemm::Parallelism::Rayon(THREADS);
        // SAFETY: operands of the lengths that the shape implies; `c` is borrowed exclusively.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c,
                1,
                n as isize,
                false,
                a.as_ptr(),
                ac,
                ar,
                b.as_ptr(),
                bc,
                br,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
    };
    let by_matrixmultiply = move || {
        let c = c.borrow_mut().as_mut_ptr();
        // SAFETY: as above.
        unsafe {
            matrixmultiply::sgemm(
                m,
                k,
                n,
                1.0,
                a.as_ptr(),
                ar,
                ac,
                b.as_ptr(),
                br,
                bc,
                0.0,
                c,
                n as isize,
                1,
            );
        }
    };
    vec![
        ("gemm", Box::new(by_gemm)),
        ("matrixmultiply", Box::new(by_matrixmultiply)),
    ]
}

fn bench(criterion: &mut Criterion) {
    // SAFETY: no other thread runs yet. `matrixmultiply` reads it at first use.
    unsafe { std::env::set_var("MATMUL_NUM_THREADS", THREADS.to_string()) };
    let pool = ThreadPool::new(THREADS);
    for &shape in SHAPES {
        let (m, k, n, _) = shape;
        let (a, b) = (noise(m * k), noise(k * n));
        let mut session = inference(&graph(shape));
        session.set_input("a", &a);
        session.set_input("b", &b);
        let c = RefCell::new(vec![0.0; m * n]);
        let mut copied = vec![0.0; if m == 1 { k * n } else { 0 }];
        let mut candidates: Vec<Candidate> = vec![("plan", Box::new(move || session.step()))];
        candidates.extend(crates(shape, &a, &b, &c));
        if m == 1 {
            candidates.push(("copy", Box::new(|| copy(&pool, &b, &mut copied))));
        }
        let flops = 2 * (m * k * n) as u64;
        let mut race = Race::new(candidates, (4_000_000 / flops).clamp(1, 50) as u32);
        let mut group = criterion.benchmark_group(format!("matmul/cpu/{}", name(shape)));
        group.throughput(Throughput::Elements(flops));
        for (i, label) in race.names().iter().enumerate() {
            group.bench_function(BenchmarkId::from_parameter(label), |bench| {
                bench.iter_custom(|turns| race.run(i, turns));
            });
        }
        group.finish();
        let rates = race.names().into_iter().enumerate().map(|(i, label)| {
            format!(
                "{label} {:.1} ({:.2})",
                flops as f64 / race.seconds(i) / 1e9,
                race.ratio(i)
            )
        });
        println!("{} GFLOP/s: {}", name(shape), rates.collect::<Vec<_>>().join("  "));
        if m == 1 {
            // The matrix is read once; the bytes that a copy writes are not counted.
            let bandwidth = |i| 4e-9 * (k * n) as f64 / race.seconds(i);
            println!(
                "matrix read at {:.1} GB/s, copied at {:.1} GB/s",
                bandwidth(0),
                bandwidth(3)
            );
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(2));
    targets = bench
}
criterion_main!(benches);
