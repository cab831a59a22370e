//! `meganeura explain --ranks N`: what data-parallel training of a plan on N ranks would take, on paper.

use std::error::Error;

use meganeura::ExecutionPlan;
use meganeura::distributed::{BUCKET_BYTES, Buckets};
use serde_json::{Value, json};

use crate::output::{line, lines};

/// Options of the estimate.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ScalingOptions {
    /// With --train: estimate a step on N processes (ranks) that average their gradients, each with this many rows.
    #[arg(long, value_name = "N", requires = "train", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    /// Latency between two ranks, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 5.0, requires = "ranks")]
    latency: f64,

    /// Bandwidth between two ranks, in GB/s.
    #[arg(long, value_name = "GB/S", default_value_t = 10.0, requires = "ranks")]
    bandwidth: f64,

    /// Time of a step on one rank in milliseconds, as measured; otherwise the estimate of the optimizer is taken.
    #[arg(long, value_name = "MS", requires = "ranks")]
    step_ms: Option<f64>,
}

/// The estimate: seconds, bytes.
#[derive(Debug, PartialEq)]
pub(super) struct Scaling {
    ranks: u32,
    /// Gradients and bytes of each bucket, and its all-reduce in seconds.
    buckets: Vec<(String, usize, f64)>,
    compute: f64,
    is_measured: bool,
}

/// Seconds of an all-reduce by recursive halving and doubling, which is optimal in this model: `2 log2(N) alpha +
/// 2 (N - 1) / N * bytes / beta`.
fn all_reduce(ranks: u32, bytes: usize, alpha: f64, beta: f64) -> f64 {
    let n = f64::from(ranks);
    2.0 * n.log2().ceil() * alpha + 2.0 * (n - 1.0) / n * bytes as f64 / beta
}

impl ScalingOptions {
    /// The estimate, if it is asked for. `estimated_ps` is what the optimizer thinks of a step.
    pub(super) fn estimate(&self, plan: &ExecutionPlan, estimated_ps: u64) -> Result<Option<Scaling>, Box<dyn Error>> {
        let Some(ranks) = self.ranks else { return Ok(None) };
        for (name, value) in [("--latency", self.latency), ("--bandwidth", self.bandwidth)] {
            if !value.is_finite() || value < 0.0 || name == "--bandwidth" && value == 0.0 {
                return Err(format!("{name} {value} makes no sense; give a number above 0").into());
            }
        }
        if let Some(ms) = self.step_ms.filter(|ms| !ms.is_finite() || *ms <= 0.0) {
            return Err(format!("--step-ms {ms}: a step takes more than 0 ms").into());
        }
        let buckets = Buckets::of(plan, BUCKET_BYTES).map_err(|failure| format!("{failure:?}"))?;
        let (alpha, beta) = (self.latency * 1e-6, self.bandwidth * 1e9);
        let bucket = |bucket: &meganeura::distributed::Bucket| {
            let bytes = 4 * bucket.len;
            (bucket.title(), bytes, all_reduce(ranks, bytes, alpha, beta))
        };
        Ok(Some(Scaling {
            ranks,
            buckets: buckets.buckets.iter().map(bucket).collect(),
            compute: self.step_ms.map_or(estimated_ps as f64 * 1e-12, |ms| ms * 1e-3),
            is_measured: self.step_ms.is_some(),
        }))
    }
}

impl Scaling {
    fn communication(&self) -> f64 {
        self.buckets.iter().map(|(_, _, seconds)| seconds).sum()
    }

    /// The share of the time in which ranks compute; nothing overlaps.
    fn efficiency(&self) -> f64 {
        self.compute / (self.compute + self.communication())
    }

    pub(super) fn show(&self) -> std::io::Result<()> {
        let bytes: usize = self.buckets.iter().map(|(_, bytes, _)| bytes).sum();
        line(format_args!(
            "\nOn {} ranks: {} buckets, {:.1} MB of gradients",
            self.ranks,
            self.buckets.len(),
            bytes as f64 * 1e-6
        ))?;
        for (number, (title, bytes, seconds)) in self.buckets.iter().enumerate() {
            let text = format!(
                "  {number:>3}  {:>8.2} MB  {:>9.3} ms  {title}",
                *bytes as f64 * 1e-6,
                seconds * 1e3
            );
            lines(text, 34)?;
        }
        let source = if self.is_measured { "as given" } else { "estimated" };
        line(format_args!(
            "  a step computes for {:.3} ms ({source}) and communicates for {:.3} ms, of which nothing overlaps",
            self.compute * 1e3,
            self.communication() * 1e3
        ))?;
        line(format_args!(
            "  efficiency {:.1} %: {:.2} times the examples a second of one rank",
            100.0 * self.efficiency(),
            f64::from(self.ranks) * self.efficiency()
        ))
    }

    pub(super) fn object(&self) -> Value {
        json!({
            "ranks": self.ranks,
            "buckets": self.buckets.iter().map(|(title, bytes, seconds)| json!({
                "gradients": title,
                "bytes": bytes,
                "all_reduce_ms": seconds * 1e3,
            })).collect::<Vec<_>>(),
            "compute_ms": self.compute * 1e3,
            "communication_ms": self.communication() * 1e3,
            "overlap_ms": 0.0,
            "efficiency": self.efficiency(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Scaling, all_reduce};

    #[test]
    fn an_all_reduce_costs_latency_and_bandwidth() {
        // 2 ranks: two messages of half of the bytes each way. 1 rank: nothing.
        assert_eq!(all_reduce(1, 1 << 20, 1e-6, 1e9), 0.0);
        assert!((all_reduce(2, 1_000_000, 1e-6, 1e9) - (2e-6 + 1e-3)).abs() < 1e-12);
        assert!((all_reduce(1000, 0, 1e-6, 1e9) - 20e-6).abs() < 1e-12);
    }

    #[test]
    fn the_efficiency_is_the_share_of_computing() {
        let scaling = Scaling {
            ranks: 4,
            buckets: vec![("a".into(), 4, 0.001), ("b".into(), 4, 0.001)],
            compute: 0.008,
            is_measured: true,
        };
        assert!((scaling.efficiency() - 0.8).abs() < 1e-12);
        assert_eq!(scaling.object()["buckets"].as_array().map(Vec::len), Some(2));
    }
}
