//! Benchmarks of the same workloads on every device, with their share of the device's peak.
//!
//! A [`Workload`] is a graph with a name, a size and a mode; [`workloads`] lists the workloads of a [`Suite`]. A [`BenchDevice`]
//! is an open device with its measured [`PeakRates`]: launch cost, copy rate and matmul rate. The [`WorkloadCost`] of a plan is
//! the sum of the costs that its operators declare. Together they give the roofline bound of the workload:
//!
//! ```text
//! roofline bound = max(FLOPs / matmul rate, bytes / copy rate) + launches * launch cost
//! ```
//!
//! where the matmul rate is that of the plan's precision, and `launches` counts the longest chain of dependent launches. The
//! bound is that of the plan: a plan that moves fewer bytes has a lower bound. Rates are measured on data that do not fit most
//! caches, so a workload whose data stay in a cache may be faster than its bound.
//!
//! Results of devices are compared before they are timed; results in mixed precision are compared with a result in `f32`.
//! [`loss_curves`] compares the losses of training steps.
//!
//! [`run`] measures and returns a [`Record`], which can be written as JSON, [compared](RecordComparison) with an earlier one, and
//! shown as a [page](Record::html). `meganeura bench --suite` and `cargo bench -p meganeura-bench --bench devices` both use this
//! module. `compare!` makes a criterion benchmark of a backend in another crate.
//!
//! ```
//! use meganeura_bench::{BenchDevice, Options, Sizes, Suite, run};
//! use meganeura::config::Config;
//! use std::ops::ControlFlow;
//!
//! let config = Config::load()?;
//! let device = BenchDevice::open(Some("cpu"), &config)?;
//! let options = Options {
//!     suites: vec![Suite::Pointwise],
//!     only: Some("relu".into()),
//!     sizes: Some(Sizes::Small),
//!     samples: 3,
//!     ..Options::default()
//! };
//! let record = run(&[device], &options, &mut |_| ControlFlow::Continue(()))?;
//! assert!(record.results.iter().all(|result| result.seconds.median > 0.0));
//! # Ok::<(), meganeura::Error>(())
//! ```

mod arguments;
mod compare;
mod comparison;
mod cost;
mod curve;
mod device;
mod feed;
#[cfg(feature = "criterion")]
mod harness;
mod page;
mod peak_rates;
mod record;
mod suite;
mod units;
mod workload;
mod workloads;

pub use arguments::is_selected;
pub use compare::{Change, PeakRateChange, RecordComparison, Verdict};
pub use comparison::{Candidate, Comparison, Options, Progress, ProgressCallback, SkippedDevice, run};
pub use cost::WorkloadCost;
pub use curve::{LossCurve, LossCurves, loss_curves};
pub use device::{BenchDevice, FoundDevices};
pub use feed::{feed, noise};
#[cfg(feature = "criterion")]
pub use harness::compare_devices;
// For `compare!`.
#[doc(hidden)]
pub use meganeura;
pub use page::html;
pub use peak_rates::{Bound, PeakRates, Roofline};
pub use record::{Distribution, Measurement, RECORD_VERSION, Record, RecordedDevice};
pub use suite::{Sizes, Suite};
pub use units::metric;
pub use workload::{PreparedWorkload, Series, Task, Workload};
pub use workloads::{adamw, workloads};
