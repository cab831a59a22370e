//! Measuring a few rates of a device, in a fraction of a second each.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::Device;
use crate::build::{Mode, plan_for};
use crate::error::Result;
use crate::graph::Graph;
use crate::precision::Precision;
use crate::rewrite::RewriteConfig;
use crate::session::Session;

/// Time that a measurement takes at most, but for its least number of steps.
const PATIENCE: Duration = Duration::from_millis(150);
const LEAST_STEPS: usize = 3;
/// Elements of the vectors that are copied: 64 MB, beyond most caches.
const COPIED: usize = 16 << 20;
/// Largest matrices, and the time of a product from which on larger ones tell nothing new.
const LARGEST: usize = 4096;
const LONG_ENOUGH: Duration = Duration::from_millis(4);

/// Measured rates of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// A step of one small call, from submission to the end of the wait for it.
    pub step: Duration,
    /// Time that one more dependent launch adds to a step.
    pub launch: Duration,
    /// Bytes a second, read and written, of copies of 64 MB.
    pub bytes_per_second: f64,
    /// Rows and columns of the matrices that were multiplied: the largest size that was tried.
    pub edge: usize,
    /// FLOP/s of their matmul in `f32`, two FLOPs for each multiplication and addition.
    pub flops_per_second: f64,
    /// The same with operands rounded to `f16`, where that is faster.
    pub mixed_flops_per_second: Option<f64>,
}

impl Rates {
    /// Measures a device that nothing else uses; some seconds.
    ///
    /// # Errors
    /// What a session on it fails with.
    pub fn of(device: &Arc<dyn Device>) -> Result<Self> {
        let step = time(device, &negations(64, 1), Precision::F32)?;
        let launch = per_call(device, &|calls| negations(64, calls), [8, 72], Precision::F32)?;
        let copy = per_call(device, &|calls| negations(COPIED, calls), [1, 5], Precision::F32)?;
        let mut edge = 128;
        let product = loop {
            let product = per_call(device, &|calls| products(edge, calls), [1, 5], Precision::F32)?;
            if product >= LONG_ENOUGH || edge == LARGEST {
                break product;
            }
            edge *= 2;
        };
        let rate = |work: usize, time: Duration| work as f64 / time.as_secs_f64().max(1e-9);
        let product_at = |precision| per_call(device, &|calls| products(edge, calls), [1, 5], precision);
        let mixed = device
            .has_mixed_precision()
            .then(|| product_at(Precision::Mixed))
            .transpose()?;
        Ok(Rates {
            step,
            launch,
            bytes_per_second: rate(2 * size_of::<f32>() * COPIED, copy),
            edge,
            flops_per_second: rate(2 * edge.pow(3), product),
            mixed_flops_per_second: mixed.map(|time| rate(2 * edge.pow(3), time)),
        })
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a step of one call {:.1} us, every further call {:.2} us, copies {:.1} GB/s, f32 matmul of {edge}x{edge} \
             {:.1} GFLOP/s",
            micros(self.step),
            micros(self.launch),
            self.bytes_per_second / 1e9,
            self.flops_per_second / 1e9,
            edge = self.edge,
        )?;
        match self.mixed_flops_per_second {
            Some(flops) => write!(f, ", in mixed precision {:.1} GFLOP/s", flops / 1e9),
            None => Ok(()),
        }
    }
}

/// A chain of negations of a vector.
fn negations(elements: usize, calls: usize) -> Graph {
    let mut g = Graph::new();
    let mut x = g.input("x", &[elements]);
    for _ in 0..calls {
        x = g.neg(x);
    }
    g.set_outputs(vec![x]);
    g
}

/// A chain of matmuls with a square matrix.
fn products(edge: usize, calls: usize) -> Graph {
    let mut g = Graph::new();
    let (mut x, w) = (g.input("x", &[edge, edge]), g.input("w", &[edge, edge]));
    for _ in 0..calls {
        x = g.matmul(x, w);
    }
    g.set_outputs(vec![x]);
    g
}

/// What a call adds to a step, from steps with fewer and with more of them.
fn per_call(
    device: &Arc<dyn Device>,
    graph: &dyn Fn(usize) -> Graph,
    [fewer, more]: [usize; 2],
    precision: Precision,
) -> Result<Duration> {
    let short = time(device, &graph(fewer), precision)?;
    let long = time(device, &graph(more), precision)?;
    Ok(long.saturating_sub(short) / (more - fewer) as u32)
}

/// The shortest of some steps.
fn time(device: &Arc<dyn Device>, graph: &Graph, precision: Precision) -> Result<Duration> {
    // As it is written: rewritten, it would be one call.
    let config = RewriteConfig {
        precision: Some(precision),
        ..RewriteConfig::off()
    };
    let (plan, _) = plan_for(graph, device, Mode::Inference, None, &config)?;
    let mut session = Session::on(device.clone(), plan)?;
    for (name, buffer) in session.plan().input_buffers.clone() {
        let shape = session.plan().buffer_types[buffer.index()].shape.clone();
        // Products of such matrices neither grow nor vanish.
        let scale = (shape.dims()[0] as f32).sqrt().recip();
        let data: Vec<f32> = (0..shape.numel())
            .map(|i| (i * 31 % 101) as f32 / 50.0 - 1.0)
            .map(|x| x * scale)
            .collect();
        session.try_set_input(&name, &data)?;
    }
    let mut step = || {
        let start = Instant::now();
        session.try_step()?;
        session.try_wait()?;
        Ok(start.elapsed())
    };
    // The first one pays for pages that are touched for the first time.
    step()?;
    let (start, mut steps, mut best) = (Instant::now(), 0, Duration::MAX);
    while steps < LEAST_STEPS || start.elapsed() < PATIENCE {
        best = best.min(step()?);
        steps += 1;
    }
    Ok(best)
}
