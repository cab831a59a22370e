//! Measuring a few [rates](Rates) of a device, to within what a fraction of a second shows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::build::Builder;
use meganeura_core::backend::Device;
use meganeura_core::calibration::Rates;
use meganeura_core::config::RewriteConfig;
use meganeura_core::error::Result;
use meganeura_core::graph::Graph;
use meganeura_core::precision::Precision;
use meganeura_core::session::Session;

/// Time that a measurement takes at most, but for its minimum number of steps.
const MAX_TIME: Duration = Duration::from_millis(150);
const MIN_STEPS: usize = 3;
/// Elements of the vectors that are copied: 64 MB, beyond most caches.
const COPY_LEN: usize = 16 << 20;
/// Largest matrices, and the time of a matmul from which on larger ones tell nothing new.
const MAX_EDGE: usize = 4096;
const MIN_MATMUL_TIME: Duration = Duration::from_millis(4);

/// Measures a device that nothing else uses; some seconds.
///
/// # Errors
/// What a session on it fails with.
pub fn measure_rates(device: &Arc<dyn Device>) -> Result<Rates> {
    let step = time(device, &negations(64, 1), Precision::F32)?;
    let launch = per_call(device, &|calls| negations(64, calls), [8, 72], Precision::F32)?;
    let copy = per_call(device, &|calls| negations(COPY_LEN, calls), [1, 5], Precision::F32)?;
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

/// So many negations of a vector, one after the other.
fn negations(elements: usize, calls: usize) -> Graph {
    let mut g = Graph::new();
    let mut x = g.input("x", &[elements]);
    for _ in 0..calls {
        x = g.neg(x);
    }
    g.set_outputs(vec![x]);
    g
}

/// So many matmuls with a square matrix, one after the other.
fn matmuls(edge: usize, calls: usize) -> Graph {
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
    let (plan, _) = Builder::on(device.clone())
        .inference()
        .rewrite(config.clone())
        .plan(graph)?;
    let mut session = Session::on(device.clone(), plan)?;
    for (name, buffer) in session.plan().input_buffers.clone() {
        let shape = session.plan().buffer_types[buffer.index()].shape.clone();
        // Matmuls of such matrices neither grow nor vanish.
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
    while steps < MIN_STEPS || start.elapsed() < MAX_TIME {
        best = best.min(step()?);
        steps += 1;
    }
    Ok(best)
}
