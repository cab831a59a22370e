//! Benchmarks of SmolLM2-135M with random weights in every storage type. Decoding of a token is compared with the time in which
//! the same two threads read the same number of bytes. The prefill of 128 tokens is compared with a product of the same number of
//! operations by the crate `gemm`.
//!
//! The line after each case contains the roofline's share of the time: 1 is the limit of reading or multiplying.

mod common;

use std::time::Duration;

use common::{Candidate, Race, THREADS, inference, noise};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::cpu::pool::ThreadPool;
use meganeura::nn::layers::WeightStorage;
use meganeura::nn::models::{KV_POS, LOGITS_ROW, LlamaConfig, LogitsOf, TOKENS};
use meganeura::{DType, Session};
use meganeura_bench::is_selected;

const CAPACITY: usize = 512;
/// Number of cached tokens when one is decoded.
const CACHED: u32 = 127;
const PROMPT: usize = 128;
/// Number of consecutive decode steps in a turn.
const TOKENS_IN_A_ROW: u32 = 8;
/// Sizes of a matmul in the model: rows, summed dimension, columns.
const PRODUCT: [usize; 3] = [PROMPT, 576, 1536];

/// Creates a session with weights, caches and inputs. Also returns the number of bytes that a decode step must read:
/// the matrices, and the keys and values of the cached tokens.
fn model(weights: WeightStorage, rows: usize) -> (Session, usize) {
    let config = LlamaConfig {
        weights: weights.into(),
        ..LlamaConfig::smollm2_135m()
    };
    let logits = if rows == 1 { LogitsOf::AllRows } else { LogitsOf::OneRow };
    let mut session = inference(&config.decode_graph(&[], rows, CAPACITY, logits));
    let mut bytes_needed = 2 * config.layers * CACHED as usize * config.kv_width() * size_of::<f32>();
    for view in session.plan().parameters() {
        let count = view.ty.numel();
        if view.name.contains("weight") {
            bytes_needed += view.ty.bytes();
        }
        let bytes: Vec<u8> = match view.ty.dtype {
            DType::F32 => noise(count).iter().flat_map(|x| (x * 0.05).to_le_bytes()).collect(),
            // Numbers near 0.01.
            DType::F16 => (0..count)
                .flat_map(|i| (0x2000 + (i % 512) as u16).to_le_bytes())
                .collect(),
            _ => (0..view.ty.bytes()).map(|i| (i * 131 % 251) as u8).collect(),
        };
        if let Err(e) = session.try_set_parameter_bytes(&view.name, &bytes) {
            panic!("{e}");
        }
    }
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i * 311 % 49_152).collect();
    session.set_input_u32(TOKENS, &tokens);
    let position = if rows == 1 { CACHED } else { 0 };
    session.set_input_u32(KV_POS, &[position]);
    if rows > 1 {
        session.set_input_u32(LOGITS_ROW, &[rows as u32 - 1]);
    }
    (session, bytes_needed)
}

/// Reads an array with all threads of the pool.
fn read(pool: &ThreadPool, words: &[u64]) -> u64 {
    const PARTS: usize = 32;
    const LANES: usize = 32;
    let parts: Vec<&[u64]> = words.chunks(words.len().div_ceil(PARTS).max(1)).collect();
    let sums: Vec<std::sync::Mutex<u64>> = parts.iter().map(|_| std::sync::Mutex::new(0)).collect();
    pool.run(parts.len(), &|task, _| {
        let mut sum = [0u64; LANES];
        let (chunks, _) = parts[task].as_chunks::<LANES>();
        for chunk in chunks {
            sum.iter_mut().zip(chunk).for_each(|(s, &w)| *s = s.wrapping_add(w));
        }
        if let Ok(mut slot) = sums[task].lock() {
            *slot = sum.iter().fold(0, |a, &b| a.wrapping_add(b));
        }
    });
    let all = sums.into_iter().map(|sum| sum.into_inner().unwrap_or_default());
    all.fold(0, u64::wrapping_add)
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

fn decode(criterion: &mut Criterion) {
    let pool = ThreadPool::new(THREADS);
    for weights in WeightStorage::ALL {
        let name = format!("decode/cpu/{}", weights.name());
        if !is_selected(&name) {
            continue;
        }
        let (mut session, bytes) = model(weights, 1);
        let words = vec![0x0123_4567_89ab_cdefu64; bytes / size_of::<u64>()];
        let candidates: Vec<Candidate> = vec![
            ("read", Box::new(|| _ = std::hint::black_box(read(&pool, &words)))),
            (weights.name(), Box::new(move || session.step())),
        ];
        let mut race = Race::new(candidates, TOKENS_IN_A_ROW);
        measure(criterion, &name, &mut race);
        let bandwidth = 8.0 * words.len() as f64 / race.seconds(0);
        println!(
            "decode {}: {:.1} tokens/s; {:.0} MB a token at {:.1} GB/s, roofline {:.2} ms ({:.2})",
            weights.name(),
            1.0 / race.seconds(1),
            bytes as f64 / 1e6,
            bandwidth / 1e9,
            bytes as f64 / bandwidth * 1e3,
            1.0 / race.ratio(1),
        );
    }
}

/// Returns the number of operations in the matmuls of a prompt, with the logits of one row.
fn operations() -> f64 {
    let config = LlamaConfig::smollm2_135m();
    let (dim, own) = (config.dim, config.heads * config.head_dim());
    let block = 2 * dim * own + 2 * dim * config.kv_width() + 3 * dim * config.hidden;
    2.0 * (PROMPT * config.layers * block + dim * config.vocab) as f64
}

fn prefill(criterion: &mut Criterion) {
    let [m, k, n] = PRODUCT;
    let (a, b, mut c) = (noise(m * k), noise(k * n), vec![0.0f32; m * n]);
    for weights in WeightStorage::ALL {
        let name = format!("prefill/cpu/{}", weights.name());
        if !is_selected(&name) {
            continue;
        }
        let (mut session, _) = model(weights, PROMPT);
        let c = &mut c;
        let (a, b) = (&a, &b);
        let product = move || {
            let (rows, columns) = ((k as isize, 1), (n as isize, 1));
            // SAFETY: operands of the lengths that the sizes imply; `c` is borrowed exclusively.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    c.as_mut_ptr(),
                    1,
                    columns.0,
                    false,
                    a.as_ptr(),
                    1,
                    rows.0,
                    b.as_ptr(),
                    1,
                    columns.0,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::Rayon(THREADS),
                );
            }
        };
        let candidates: Vec<Candidate> = vec![
            ("gemm", Box::new(product)),
            (weights.name(), Box::new(move || session.step())),
        ];
        let mut race = Race::new(candidates, 1);
        measure(criterion, &name, &mut race);
        let once = 2.0 * (m * k * n) as f64;
        println!(
            "prefill {PROMPT} {}: {:.0} tokens/s; matmuls of {:.1} GFLOP at {:.1} GFLOP/s, roofline {:.1} ms ({:.2})",
            weights.name(),
            PROMPT as f64 / race.seconds(1),
            operations() / 1e9,
            once / race.seconds(0) / 1e9,
            operations() / once * race.seconds(0) * 1e3,
            operations() / once / race.ratio(1),
        );
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(3));
    targets = decode, prefill
}
criterion_main!(benches);
