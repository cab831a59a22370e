//! Benchmarks of attention inside a plan against matmuls with the same number of operations by the same library, with two threads
//! each: the result is the fraction of the matmul rate that remains after softmax and masks. Gated units and rotary embedding are
//! compared with copies of the same number of bytes.
//!
//! The line after each case contains the rate and, in parentheses, its ratio to the reference: 1 is equally fast.

mod common;

use std::time::Duration;

use common::{Candidate, Race, THREADS, copy, cpu, inference, noise, product};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::builder::Builder;
use meganeura::cpu::pool::ThreadPool;
use meganeura::ops::AttentionOptions;
use meganeura::{Graph, Session};
use meganeura_bench::is_selected;

const HEAD_DIM: u32 = 64;

/// Sizes of an attention call.
#[derive(Clone, Copy)]
struct Case {
    batch: usize,
    /// Number of queries, and of keys.
    rows: usize,
    heads: u32,
    head_dim: u32,
}

/// Attention of a language model with short and with long sequences, and narrow heads of a small vision model.
const CASES: &[Case] = &[
    Case {
        batch: 1,
        rows: 512,
        heads: 8,
        head_dim: HEAD_DIM,
    },
    Case {
        batch: 1,
        rows: 2048,
        heads: 8,
        head_dim: HEAD_DIM,
    },
    Case {
        batch: 16,
        rows: 65,
        heads: 4,
        head_dim: 16,
    },
];

fn attention(case: Case, causal: bool, training: bool) -> Session {
    let Case {
        batch,
        rows,
        heads,
        head_dim,
    } = case;
    let width = (heads * head_dim) as usize;
    let mut g = Graph::new();
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let x = g.input(name, &[batch, rows, width]);
        g.require_grad(x)
    });
    let y = if causal {
        g.causal_attention(q, k, v, heads, heads, head_dim)
    } else {
        g.attention(q, k, v, AttentionOptions::new(heads, heads, head_dim))
    };
    let mut session = if training {
        // The mean adds a few passes over the result.
        let loss = g.mean_all(y);
        g.set_outputs(vec![loss]);
        match Builder::on(cpu()).build(&g) {
            Ok((session, _)) => session,
            Err(e) => panic!("{e}"),
        }
    } else {
        g.set_outputs(vec![y]);
        inference(&g)
    };
    for name in ["q", "k", "v"] {
        session.set_input(name, &noise(batch * rows * width));
    }
    session
}

fn attention_rates(criterion: &mut Criterion) {
    const SIZE: usize = 512;
    for &case in CASES {
        for causal in [false, true] {
            let (mut forward, mut training, mut product) = (
                attention(case, causal, false),
                attention(case, causal, true),
                product(SIZE),
            );
            let candidates: Vec<Candidate> = vec![
                ("gemm", Box::new(move || product.step())),
                ("forward", Box::new(move || forward.step())),
                ("forward and backward", Box::new(move || training.step())),
            ];
            let mask = if causal { "causal" } else { "full" };
            let rows = case.rows;
            let name = format!(
                "attention/cpu/{mask} {} of {rows}, {} heads of {}",
                case.batch, case.heads, case.head_dim
            );
            if !is_selected(&name) {
                continue;
            }
            let mut race = Race::new(candidates, 3);
            measure(criterion, &name, &mut race);
            let pairs = if causal { rows * (rows + 1) / 2 } else { rows * rows };
            let once = (2 * case.batch * pairs * (case.heads * case.head_dim) as usize) as f64;
            let gemm = 2.0 * (SIZE as f64).powi(3) / race.seconds(0);
            let (forward, both) = (race.seconds(1), race.seconds(2));
            let rate = |products: f64, seconds: f64| products * once / seconds;
            let report = |rate: f64| format!("{:.1} ({:.2})", rate / 1e9, rate / gemm);
            println!(
                "{name} GFLOP/s: matmul {:.1}  forward {}  backward {}",
                gemm / 1e9,
                report(rate(2.0, forward)),
                report(rate(5.0, both - forward)),
            );
        }
    }
}

/// Builds a graph of one call on inputs of one shape; returns the session and the bytes that the call reads and writes.
fn streaming(name: &str, rows: usize, width: usize) -> (Session, usize) {
    let mut g = Graph::new();
    let input = |g: &mut Graph, name: &str, width: usize| g.input(name, &[rows, width]);
    let a = input(&mut g, "a", width);
    let (y, inputs, tensors) = match name {
        "swiglu" => {
            let b = input(&mut g, "b", width);
            (g.swiglu(a, b), 2, 3)
        }
        "geglu" => {
            let b = input(&mut g, "b", width);
            (g.geglu(a, b), 2, 3)
        }
        _ => (g.rope(a, 10_000.0, HEAD_DIM), 1, 2),
    };
    g.set_outputs(vec![y]);
    let mut session = inference(&g);
    for name in ["a", "b"].iter().take(inputs) {
        session.set_input(name, &noise(rows * width));
    }
    (session, tensors * 4 * rows * width)
}

fn streaming_rates(criterion: &mut Criterion) {
    const ROWS: usize = 4096;
    const WIDTH: usize = 2048;
    let pool = ThreadPool::new(THREADS);
    let (from, mut to) = (noise(ROWS * WIDTH), vec![0.0; ROWS * WIDTH]);
    for name in ["swiglu", "geglu", "rope"] {
        let (mut session, bytes) = streaming(name, ROWS, WIDTH);
        let candidates: Vec<Candidate> = vec![
            ("copy", Box::new(|| copy(&pool, &from, &mut to))),
            (name, Box::new(move || session.step())),
        ];
        let mut race = Race::new(candidates, 2);
        measure(criterion, &format!("{name}/cpu/{ROWS}x{WIDTH}"), &mut race);
        let copied = 8.0 * from.len() as f64 / race.seconds(0);
        let rate = bytes as f64 / race.seconds(1);
        println!(
            "{name} {:.1} GB/s, copy {:.1} GB/s ({:.2})",
            rate / 1e9,
            copied / 1e9,
            bytes as f64 / (8.0 * from.len() as f64) / race.ratio(1)
        );
    }
}

fn measure(criterion: &mut Criterion, name: &str, race: &mut Race) {
    let mut group = criterion.benchmark_group(name);
    for (i, label) in race.names().iter().enumerate() {
        group.bench_function(BenchmarkId::from_parameter(label), |bench| {
            bench.iter_custom(|turns| race.run(i, turns));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(2));
    targets = attention_rates, streaming_rates
}
criterion_main!(benches);
