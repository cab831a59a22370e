//! Measurement of a few [rates](Rates) of a device, in a fraction of a second each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::builder::Builder;
use meganeura_core::backend::Device;
use meganeura_core::calibration::Rates;
use meganeura_core::config::RewriteConfig;
use meganeura_core::error::Result;
use meganeura_core::graph::Graph;
use meganeura_core::precision::Precision;
use meganeura_core::session::Session;

/// Maximum time of a measurement. At least [`MIN_STEPS`] steps run, even if they take longer.
const MAX_TIME: Duration = Duration::from_millis(150);
const MIN_STEPS: usize = 3;
/// Number of elements of the copied vectors: 64 MB, more than most caches hold.
const COPY_LEN: usize = 16 << 20;
/// Maximum number of rows of the matrices. Larger matrices are also not tried once a matmul takes [`MIN_MATMUL_TIME`].
const MAX_EDGE: usize = 4096;
const MIN_MATMUL_TIME: Duration = Duration::from_millis(4);

/// Measures the rates of a device that is otherwise idle; takes some seconds.
///
/// # Errors
/// Errors of a session on the device.
pub fn measure_rates(device: &Arc<dyn Device>) -> Result<Rates> {
    let step = time(device, &negations(64, 1), Precision::F32)?;
    let launch = per_call(device, &|calls| negations(64, calls), [8, 72], Precision::F32)?;
    let copy = copy(device)?;
    let mut edge = 128;
    let matmul = loop {
        let matmul = per_call(device, &|calls| matmuls(edge, calls), [1, 5], Precision::F32)?;
        if matmul >= MIN_MATMUL_TIME || edge == MAX_EDGE {
            break matmul;
        }
        edge *= 2;
    };
    let rate = |work: usize, time: Duration| work as f64 / time.as_secs_f64().max(1e-9);
    let matmul_at = |precision| per_call(device, &|calls| matmuls(edge, calls), [1, 5], precision);
    let mixed = device
        .has_mixed_precision()
        .then(|| matmul_at(Precision::Mixed))
        .transpose()?;
    Ok(Rates {
        step,
        launch,
        bytes_per_second: rate(2 * size_of::<f32>() * COPY_LEN, copy),
        edge,
        flops_per_second: rate(2 * edge.pow(3), matmul),
        mixed_flops_per_second: mixed.map(|time| rate(2 * edge.pow(3), time)),
    })
}

/// Returns a graph of `calls` successive negations of a vector.
fn negations(elements: usize, calls: usize) -> Graph {
    let mut g = Graph::new();
    let mut x = g.input("x", &[elements]);
    for _ in 0..calls {
        x = g.neg(x);
    }
    g.set_outputs(vec![x]);
    g
}

/// Returns a graph of `calls` successive matmuls with a square matrix.
fn matmuls(edge: usize, calls: usize) -> Graph {
    let mut g = Graph::new();
    let (mut x, w) = (g.input("x", &[edge, edge]), g.input("w", &[edge, edge]));
    for _ in 0..calls {
        x = g.matmul(x, w);
    }
    g.set_outputs(vec![x]);
    g
}

/// Returns the time that a call adds to a step, from steps with fewer and with more calls.
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

/// Returns the time that the device needs to copy [`COPY_LEN`] elements.
///
/// The copies of a step take most of its time. If the difference of two steps is much shorter, other programs ran
/// during the first one, and both are measured again.
fn copy(device: &Arc<dyn Device>) -> Result<Duration> {
    const TRIES: usize = 3;
    const CALLS: usize = 5;
    let mut step = Duration::MAX;
    for _ in 0..TRIES {
        let short = time(device, &negations(COPY_LEN, 1), Precision::F32)?;
        let long = time(device, &negations(COPY_LEN, CALLS), Precision::F32)?;
        let copies = long.saturating_sub(short);
        if 4 * copies >= long {
            return Ok(copies / (CALLS - 1) as u32);
        }
        step = step.min(long);
    }
    Ok(step / CALLS as u32)
}

/// Returns the shortest time of several steps.
fn time(device: &Arc<dyn Device>, graph: &Graph, precision: Precision) -> Result<Duration> {
    // Without rewriting, which would fuse the calls into one.
    let config = RewriteConfig {
        precision: Some(precision),
        ..RewriteConfig::off()
    };
    let (plan, _) = Builder::on(device.clone())
        .inference()
        .rewrite(config.clone())
        .plan(graph)?;
    let mut session = Session::on(device.clone(), plan)?;
    for (name, buffer) in session.plan().input_buffers.clone() {
        let shape = session.plan().buffer_types[buffer.index()].shape.clone();
        // With this scale, repeated products neither grow nor vanish.
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
    // The first step includes page faults.
    step()?;
    let (start, mut steps, mut best) = (Instant::now(), 0, Duration::MAX);
    while steps < MIN_STEPS || start.elapsed() < MAX_TIME {
        best = best.min(step()?);
        steps += 1;
    }
    Ok(best)
}
