//! What the benchmarks share.

#![allow(unreachable_pub, dead_code, reason = "a module of several benchmark programs")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use meganeura::backend::Device;
use meganeura::build::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::cpu::pool::ThreadPool;
use meganeura::nn::models::{LlamaConfig, VitConfig, classifier, language_model};
use meganeura::{Graph, Session};
use meganeura_bench::WorkloadCost;
pub use meganeura_bench::noise;

/// Threads of every candidate.
pub const THREADS: usize = 2;

/// The CPU device with [`THREADS`] threads.
pub fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(THREADS))
}

/// A forward-only session.
pub fn inference(graph: &Graph) -> Session {
    match Builder::on(cpu()).inference().build(graph) {
        Ok((session, _)) => session,
        Err(e) => panic!("{e}"),
    }
}

/// Feeds random inputs to a session; integers are below `classes`.
pub fn feed(session: &mut Session, classes: u32) {
    if let Err(e) = meganeura_bench::feed(session, classes, &[]) {
        panic!("{e}");
    }
}

/// Operations of a step, as the operators declare them.
pub fn flops(session: &Session) -> f64 {
    WorkloadCost::of(session.plan(), &**session.device()).flops as f64
}

/// Whether the command line asks for a case of this name: parts of names are listed there, or nothing.
pub fn is_wanted(name: &str) -> bool {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()))
}

/// Copies on all threads of the pool.
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

/// A square matmul of this number of rows: its rate is the reference.
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

/// Middle value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A candidate: a name and what it does.
pub type Candidate<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Candidates that take turns within every sample, so that whatever else the machine does slows all of
/// them alike; on a machine that is not quiet the ratios are the figures to go by.
pub struct Race<'a> {
    candidates: Vec<Candidate<'a>>,
    /// Calls in a row in each turn, after one that warms the caches up again.
    calls: u32,
    /// Seconds of a call of each candidate, turn by turn.
    times: Vec<Vec<f64>>,
}

impl<'a> Race<'a> {
    /// A race with that many calls in a turn.
    pub fn new(candidates: Vec<Candidate<'a>>, calls: u32) -> Self {
        Race {
            times: vec![Vec::new(); candidates.len()],
            candidates,
            calls,
        }
    }

    /// Names in order.
    pub fn names(&self) -> Vec<String> {
        self.candidates.iter().map(|c| c.0.to_owned()).collect()
    }

    /// Takes `turns` turns and gives the time of one candidate.
    pub fn run(&mut self, timed: usize, turns: u64) -> Duration {
        let count = self.candidates.len();
        let mut total = 0.0;
        for _ in 0..turns {
            // The order changes: the predecessor leaves its cache behind.
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

    /// Median seconds of a candidate.
    pub fn seconds(&self, candidate: usize) -> f64 {
        median(self.times[candidate].clone())
    }

    /// Median over the turns of time(candidate) / time(first).
    pub fn ratio(&self, candidate: usize) -> f64 {
        let pairs = self.times[candidate].iter().zip(&self.times[0]);
        median(pairs.map(|(other, first)| other / first).collect())
    }
}

/// A model by name, how its graph is made, and its number of classes.
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
