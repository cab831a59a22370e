//! The same workload on every device, and how far from the device's limits it stays.
//!
//! A [`Workload`] is a graph with a name and a way to run it; [`workloads`] lists those of a [`Suite`]. A [`BenchDevice`] is an open
//! device with its measured [`PeakRates`]: what a launch costs, how fast memory is copied, how fast matrices are multiplied.
//! What a plan has to do is its [`WorkloadCost`], as the operators declare it, and together they give the workload's roofline:
//!
//! ```text
//! roofline = max(operations / product rate, bytes / copy rate) + launches * cost of a launch
//! ```
//!
//! where the product rate is that of the plan's precision, and `launches` counts the longest chain of launches that wait for
//! each other. The roofline is that of the plan: one that moves fewer bytes has a lower roofline. Rates are measured on data beyond
//! most caches, so a workload whose data stay in a cache may be faster than its roofline.
//!
//! How fast a result is says little where it is wrong: results of devices are compared before they are timed, and of those in
//! mixed precision a result in `f32` is made for that. [`loss_curves`] compares whole trainings.
//!
//! [`run`] measures and gives a [`Record`], which is written as JSON, [compared](RecordComparison) with an earlier one, and shown as
//! a [page](Record::html). `meganeura bench --suite` and `cargo bench --bench devices` are both made of this module.
//!
//! ```
//! use meganeura::bench::{BenchDevice, Options, Sizes, Suite, run};
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

mod compare;
mod comparison;
mod cost;
mod curve;
mod device;
mod feed;
mod page;
mod peak_rates;
mod record;
mod suite;
mod units;
mod workload;
mod workloads;

pub use compare::{Change, PeakRateChange, RecordComparison, Verdict};
pub use comparison::{Candidate, Comparison, Options, Progress, ProgressCallback, Skipped, run};
pub use cost::WorkloadCost;
pub use curve::{LossCurve, LossCurves, loss_curves};
pub use device::{BenchDevice, Found};
pub use feed::{feed, noise};
pub use peak_rates::{Bound, PeakRates, Roofline};
pub use record::{Measurement, RECORD_VERSION, Record, RecordedDevice, Spread};
pub use suite::{Sizes, Suite};
pub use units::metric;
pub use workload::{Prepared, Series, Task, Workload};
pub use workloads::{adamw, workloads};
