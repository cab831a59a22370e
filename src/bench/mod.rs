//! The same work on every device, and how far from the device's limits it stays.
//!
//! A [`Work`] is a graph with a name and a way to run it; [`works`] lists those of a [`Suite`]. A [`BenchDevice`] is an open
//! device with its measured [`Ceilings`]: what a launch costs, how fast memory is copied, how fast matrices are multiplied.
//! What a plan has to do is its [`Demand`], as the operators declare it, and together they give the work's floor:
//!
//! ```text
//! floor = max(operations / product rate, bytes / copy rate) + launches * cost of a launch
//! ```
//!
//! where the product rate is that of the plan's precision, and `launches` counts the longest chain of launches that wait for
//! each other. The floor is that of the plan: one that moves fewer bytes has a lower floor. Rates are measured on data beyond
//! most caches, so work whose data stay in a cache may be faster than its floor.
//!
//! How fast a result is says little where it is wrong: results of devices are compared before they are timed, and of those in
//! mixed precision a result in `f32` is made for that. [`loss_curves`] compares whole trainings.
//!
//! [`run`] measures and gives a [`Record`], which is written as JSON, [compared](Comparison) with an earlier one, and shown as
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

mod ceilings;
mod compare;
mod contest;
mod curve;
mod demand;
mod device;
mod feed;
mod page;
mod record;
mod suite;
mod units;
mod work;
mod works;

pub use ceilings::{Bound, Ceilings, Floor};
pub use compare::{CeilingChange, Change, Comparison, Verdict};
pub use contest::{Contest, Contestant, LeftOut, Options, Progress, Tell, run};
pub use curve::{LossCurve, LossCurves, loss_curves};
pub use demand::Demand;
pub use device::{BenchDevice, Found};
pub use feed::{feed, noise};
pub use record::{Measurement, RECORD_VERSION, Record, RecordedDevice, Spread};
pub use suite::{Sizes, Suite};
pub use units::metric;
pub use work::{Prepared, Series, Task, Work};
pub use works::{adamw, works};
