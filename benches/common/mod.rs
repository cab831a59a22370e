//! Shared code of the benchmarks.

#![allow(unreachable_pub, dead_code, reason = "a module of several benchmark programs")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::cpu::pool::ThreadPool;
use meganeura::nn::models::{LlamaConfig, VitConfig, classifier, language_model};
use meganeura::{Graph, Session};
use meganeura_bench::WorkloadCost;
pub use meganeura_bench::noise;

/// Number of threads of every candidate.
pub const THREADS: usize = 2;

/// Returns the CPU device with [`THREADS`] threads.
pub fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(THREADS))
}

/// Creates a forward-only session.
pub fn inference(graph: &Graph) -> Session {
    match Builder::on(cpu()).inference().build(graph) {
        Ok((session, _)) => session,
        Err(e) => panic!("{e}"),
    }
}

/// Sets random inputs of a session; integers are below `classes`.
pub fn feed(session: &mut Session, classes: u32) {
    if let Err(e) = meganeura_bench::feed(session, classes, &[]) {
        panic!("{e}");
    }
}

/// Returns the number of operations of a step, as the operators declare them.
pub fn flops(session: &Session) -> f64 {
    WorkloadCost::of(session.plan(), &**session.device()).flops as f64
}

/// Copies an array with all threads of the pool.
pub fn copy(pool: &ThreadPool, from: &[f32], to: &mut [f32]) {
    const PARTS: usize = 32;
    let len = from.len().div_ceil(PARTS).max(1);
    let parts: Vec<_> = from
        .chunks(len)
        .zip(to.chunks_mut(len))
        .map(std::sync::Mutex::new)
        .collect();
    pool.run(parts.len(), &|task, _| {
        if let Ok(mut part) = parts[task].lock() {
            let (from, to) = &mut *part;
            to.copy_from_slice(from);
        }
    });
}

/// Creates a session of a square matmul with this number of rows. Its rate is the reference.
pub fn product(size: usize) -> Session {
    let mut g = Graph::new();
    let [a, b] = ["a", "b"].map(|name| g.input(name, &[size, size]));
    let c = g.matmul(a, b);
    g.set_outputs(vec![c]);
    let mut session = inference(&g);
    session.set_input("a", &noise(size * size));
    session.set_input("b", &noise(size * size));
    session
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Candidate of a race: a name, and a function that runs the workload.
pub type Candidate<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Candidates that run in turns within every sample, so that other load on the machine slows all of them equally. On a
/// busy machine, only the ratios are meaningful.
pub struct Race<'a> {
    candidates: Vec<Candidate<'a>>,
    /// Number of consecutive calls in each turn, after one call that warms up the caches.
    calls: u32,
    /// Seconds per call of each candidate, for each turn.
    times: Vec<Vec<f64>>,
}

impl<'a> Race<'a> {
    /// Creates a race with this number of calls in each turn.
    pub fn new(candidates: Vec<Candidate<'a>>, calls: u32) -> Self {
        Race {
            times: vec![Vec::new(); candidates.len()],
            candidates,
            calls,
        }
    }

    /// Returns the names in order.
    pub fn names(&self) -> Vec<String> {
        self.candidates.iter().map(|c| c.0.to_owned()).collect()
    }

    /// Runs `turns` turns, and returns the total time of the candidate `timed`.
    pub fn run(&mut self, timed: usize, turns: u64) -> Duration {
        let count = self.candidates.len();
        let mut total = 0.0;
        for _ in 0..turns {
            // The order alternates, because each candidate leaves its data in the caches.
            let turn = self.times[0].len();
            for place in 0..count {
                let at = if turn.is_multiple_of(2) {
                    (turn + place) % count
                } else {
                    (turn + count - place) % count
                };
                let workload = &mut self.candidates[at].1;
                workload();
                let start = Instant::now();
                for _ in 0..self.calls {
                    workload();
                }
                let time = start.elapsed().as_secs_f64() / f64::from(self.calls);
                self.times[at].push(time);
                if at == timed {
                    total += time;
                }
            }
        }
        Duration::from_secs_f64(total)
    }

    /// Returns the median time of a candidate, in seconds.
    pub fn seconds(&self, candidate: usize) -> f64 {
        median(self.times[candidate].clone())
    }

    /// Returns the median over the turns of time(candidate) / time(first).
    pub fn ratio(&self, candidate: usize) -> f64 {
        let pairs = self.times[candidate].iter().zip(&self.times[0]);
        median(pairs.map(|(other, first)| other / first).collect())
    }
}

/// Name of a model, function that builds its graph, and number of classes.
pub type Entry = (&'static str, fn() -> Graph, u32);

/// A small language model.
pub const LLAMA: Entry = (
    "llama, 4 blocks of 128, batch 4, 128 tokens",
    || {
        let config = LlamaConfig::small(1000);
        language_model(4, 128, |g, tokens| config.build(g, "").forward(g, tokens))
    },
    1000,
);

/// A small vision transformer.
pub const VIT: Entry = (
    "vit, 4 blocks of 64, batch 16, 32x32",
    || {
        let config = VitConfig::new([3, 32, 32], 4, 10);
        classifier(16, &[3, 32, 32], |g, x| config.build(g, "").forward(g, x))
    },
    10,
);
