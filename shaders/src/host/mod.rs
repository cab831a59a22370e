//! Host code that the GPU backends of these kernels share: the launches of a plan ([`LaunchPlan`]), their replay with
//! transfers and rollback ([`Replay`]), memory layout ([`lay_out`]), and results that are stored as `f16`. It also
//! contains the tests that registered kernels ([`SupportCache`]) and cooperative matrices ([`choose_coop`]) must pass
//! before a plan uses them.
//!
//! A backend implements [`Host`], a device and its memory, and [`Driver`], the execution of launches.

mod answers;
mod compile;
mod coop_trial;
mod custom;
mod custom_trial;
mod device;
mod dispatch;
mod draft;
mod f16_storage;
mod facts;
mod faults;
mod feature_trial;
mod host_validated;
mod once;
mod places;
mod replay;
mod shared;
mod staging;
mod transfers;

pub use answers::SupportCache;
pub use compile::compile;
pub use coop_trial::{CoopSettings, Tiles, choose as choose_coop, select_coop_config, test_coop_matmul};
pub use custom::{AcceptedKernel, CustomKernels, problems};
pub use device::Host;
pub use dispatch::{DispatchContext, F16Storage, KernelOptions, Sources};
pub use draft::{Bound, CompileFailure, ExtraBuffers, FRAMES, LaunchPlan, RejectedKernel, phases};
pub use f16_storage::choose as choose_f16_storage;
pub use facts::{Facts, ask, choose_variants, facts_of};
pub use faults::{Reporter, SavedRange};
pub use feature_trial::test_features;
pub use once::{Word, run_once};
pub use places::{ALIGNMENT, BufferLocation, lay_out};
pub use replay::{Begin, Driver, Replay, Step};
pub use shared::{borrow_slabs, borrowable, lend};
pub use staging::copy_to_staging;
pub use transfers::Transfer;
