//! Option `meganeura explain --ranks N`: an estimate of data-parallel training of a plan on N ranks.

use std::error::Error;

use meganeura::ExecutionPlan;
use meganeura::cost::Target;
use meganeura::distributed::{BUCKET_BYTES, Bucket, Buckets};
use meganeura::plan::{BufferRef, UPDATE};
use serde_json::{Value, json};

use crate::output::{line, lines};

/// Options of the estimate.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ScalingOptions {
    /// With --train: estimate a step on N processes (ranks), each with --seq rows, that average their gradients.
    #[arg(long, value_name = "N", requires = "train", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    /// Latency between two ranks, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 5.0, requires = "ranks")]
    latency: f64,

    /// Bandwidth between two ranks, in GB/s.
    #[arg(long, value_name = "GB/S", default_value_t = 10.0, requires = "ranks")]
    bandwidth: f64,

    /// Measured time of a training step on one rank, in milliseconds. The times with more ranks are estimated from it
    /// [default: the estimate of the cost model]
    #[arg(long, value_name = "MS", requires = "ranks")]
    step_ms: Option<f64>,

    /// Assume that the all-reduce of gradients overlaps the backward pass (as with NCCL), instead of following it (as
    /// with MPI).
    #[arg(long, requires = "ranks")]
    overlap: bool,
}

/// A bucket of gradients, with times in seconds and the size in bytes.
#[derive(Debug, PartialEq)]
struct Reduction {
    gradients: String,
    bytes: usize,
    /// Time at which its gradients are complete, from the start of the step.
    complete: f64,
    all_reduce: f64,
}

/// The estimate, with times in seconds.
#[derive(Debug, PartialEq)]
pub(super) struct Scaling {
    ranks: u32,
    reductions: Vec<Reduction>,
    compute: f64,
    /// Time at which the backward pass ends and the update begins.
    backward: f64,
    is_measured: bool,
    overlaps: bool,
}

/// Returns the seconds of an all-reduce by recursive halving and doubling, which is optimal in this model: `2 log2(N) alpha + 2
/// (N - 1) / N * bytes / beta`.
fn all_reduce(ranks: u32, bytes: usize, alpha: f64, beta: f64) -> f64 {
    let n = f64::from(ranks);
    2.0 * n.log2().ceil() * alpha + 2.0 * (n - 1.0) / n * bytes as f64 / beta
}

impl ScalingOptions {
    /// Returns the estimate for a device, if requested.
    pub(super) fn estimate(
        &self,
        plan: &ExecutionPlan,
        target: &dyn Target,
    ) -> Result<Option<Scaling>, Box<dyn Error>> {
        let Some(ranks) = self.ranks else { return Ok(None) };
        for (name, value) in [("--latency", self.latency), ("--bandwidth", self.bandwidth)] {
            if !value.is_finite() || value < 0.0 || name == "--bandwidth" && value == 0.0 {
                return Err(
                    format!("{name}: expected a number of at least 0 (--bandwidth: above 0), found {value}").into(),
                );
            }
        }
        if let Some(ms) = self.step_ms.filter(|ms| !ms.is_finite() || *ms <= 0.0) {
            return Err(format!("--step-ms: expected a number above 0, found {ms}").into());
        }
        let buckets = Buckets::of(plan, BUCKET_BYTES).map_err(|failure| format!("{failure:?}"))?;
        let (alpha, beta) = (self.latency * 1e-6, self.bandwidth * 1e9);
        let progress = Progress::of(plan, target);
        let compute = self.step_ms.map_or(progress.total * 1e-12, |ms| ms * 1e-3);
        // Each dispatch has the same share of the measured time as of the estimated one.
        let scale = compute / progress.total.max(f64::MIN_POSITIVE);
        let reduction = |bucket: &Bucket| {
            let bytes = 4 * bucket.len;
            let complete = bucket.entries.iter().map(|entry| progress.complete(plan, entry.buffer));
            Reduction {
                gradients: bucket.title(),
                bytes,
                complete: scale * complete.fold(0.0, f64::max),
                all_reduce: all_reduce(ranks, bytes, alpha, beta),
            }
        };
        Ok(Some(Scaling {
            ranks,
            reductions: buckets.buckets.iter().map(reduction).collect(),
            compute,
            backward: scale * progress.backward(),
            is_measured: self.step_ms.is_some(),
            overlaps: self.overlap,
        }))
    }
}

/// Progress of a step after each dispatch, in the cost model's picoseconds.
struct Progress {
    /// The dispatches before the update, with their end times.
    ends: Vec<(usize, f64)>,
    total: f64,
}

impl Progress {
    fn of(plan: &ExecutionPlan, target: &dyn Target) -> Self {
        let (mut ends, mut total) = (Vec::new(), 0.0);
        for segment in plan.segments.iter().filter(|segment| !segment.once) {
            for number in segment.first..segment.first + segment.count {
                total += plan.dispatches[number].cost(target) as f64;
                if segment.name != UPDATE {
                    ends.push((number, total));
                }
            }
        }
        Progress { ends, total }
    }

    fn backward(&self) -> f64 {
        self.ends.last().map_or(0.0, |(_, end)| *end)
    }

    /// Returns the time from which no dispatch before the update uses a buffer.
    fn complete(&self, plan: &ExecutionPlan, buffer: BufferRef) -> f64 {
        let uses = |number: usize| {
            let dispatch = &plan.dispatches[number];
            let mut operands = dispatch.inputs.iter().chain(&dispatch.outputs);
            operands.any(|operand| operand.buffer == buffer)
        };
        let last = self.ends.iter().rev().find(|(number, _)| uses(*number));
        last.map_or(0.0, |(_, end)| *end)
    }
}

impl Scaling {
    fn communication(&self) -> f64 {
        self.reductions.iter().map(|reduction| reduction.all_reduce).sum()
    }

    /// Returns the seconds of communication that overlap the backward pass: one bucket after the other, each when its gradients
    /// are complete.
    fn overlap(&self) -> f64 {
        if !self.overlaps {
            return 0.0;
        }
        let end = self.reductions.iter().fold(0.0, |end: f64, reduction| {
            end.max(reduction.complete) + reduction.all_reduce
        });
        self.communication() - (end - self.backward).clamp(0.0, self.communication())
    }

    /// Returns the fraction of the time in which ranks compute.
    fn efficiency(&self) -> f64 {
        self.compute / (self.compute + self.communication() - self.overlap())
    }

    pub(super) fn show(&self) -> std::io::Result<()> {
        let bytes: usize = self.reductions.iter().map(|reduction| reduction.bytes).sum();
        line(format_args!(
            "\nOn {} ranks: {} buckets, {:.1} MB of gradients",
            self.ranks,
            self.reductions.len(),
            bytes as f64 * 1e-6
        ))?;
        for (number, reduction) in self.reductions.iter().enumerate() {
            let text = format!(
                "  {number:>3}  {:>8.2} MB  complete at {:>9.3} ms  {:>9.3} ms  {}",
                reduction.bytes as f64 * 1e-6,
                reduction.complete * 1e3,
                reduction.all_reduce * 1e3,
                reduction.gradients
            );
            lines(text, 34)?;
        }
        let source = if self.is_measured { "as given" } else { "estimated" };
        let overlap = if self.overlaps {
            format!("{:.3} ms overlap the backward pass", self.overlap() * 1e3)
        } else {
            "nothing overlaps the backward pass (--overlap)".into()
        };
        line(format_args!(
            "  a step computes for {:.3} ms ({source}) and communicates for {:.3} ms, of which {overlap}",
            self.compute * 1e3,
            self.communication() * 1e3
        ))?;
        line(format_args!(
            "  efficiency {:.1} %: {:.2} times the examples per second of one rank",
            100.0 * self.efficiency(),
            f64::from(self.ranks) * self.efficiency()
        ))
    }

    pub(super) fn object(&self) -> Value {
        json!({
            "ranks": self.ranks,
            "buckets": self.reductions.iter().map(|reduction| json!({
                "gradients": reduction.gradients,
                "bytes": reduction.bytes,
                "complete_ms": reduction.complete * 1e3,
                "all_reduce_ms": reduction.all_reduce * 1e3,
            })).collect::<Vec<_>>(),
            "compute_ms": self.compute * 1e3,
            "communication_ms": self.communication() * 1e3,
            "overlap_ms": self.overlap() * 1e3,
            "efficiency": self.efficiency(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Reduction, Scaling, all_reduce};

    #[test]
    fn an_all_reduce_costs_latency_and_bandwidth() {
        // 2 ranks: two messages with half of the bytes in each direction. 1 rank: nothing.
        assert_eq!(all_reduce(1, 1 << 20, 1e-6, 1e9), 0.0);
        assert!((all_reduce(2, 1_000_000, 1e-6, 1e9) - (2e-6 + 1e-3)).abs() < 1e-12);
        assert!((all_reduce(1000, 0, 1e-6, 1e9) - 20e-6).abs() < 1e-12);
    }

    #[test]
    fn the_efficiency_is_the_share_of_computing() {
        let scaling = scaling(false, &[0.005, 0.007]);
        assert!((scaling.efficiency() - 0.8).abs() < 1e-12);
        assert_eq!(scaling.object()["buckets"].as_array().map(Vec::len), Some(2));
    }

    /// Creates an estimate with buckets of one millisecond each, in a step of 8 ms with an update of 1 ms.
    fn scaling(overlaps: bool, complete: &[f64]) -> Scaling {
        let reduction = |complete: &f64| Reduction {
            gradients: "a".into(),
            bytes: 4,
            complete: *complete,
            all_reduce: 0.001,
        };
        Scaling {
            ranks: 4,
            reductions: complete.iter().map(reduction).collect(),
            compute: 0.008,
            backward: 0.007,
            is_measured: true,
            overlaps,
        }
    }

    #[test]
    fn a_bucket_waits_for_its_gradients_and_for_the_one_before() {
        // Times at which gradients are complete, and milliseconds that overlap.
        let cases: [(&[f64], f64); 4] = [
            (&[0.005, 0.006], 2.0),
            (&[0.005, 0.007], 1.0),
            (&[0.0065, 0.0066, 0.0067], 0.5),
            (&[0.007, 0.007], 0.0),
        ];
        for (complete, expected) in cases {
            let scaling = scaling(true, complete);
            assert!((scaling.overlap() * 1e3 - expected).abs() < 1e-9, "{complete:?}");
            let exposed = complete.len() as f64 - expected;
            assert!(
                (scaling.efficiency() - 8.0 / (8.0 + exposed)).abs() < 1e-9,
                "{complete:?}"
            );
        }
    }
}
