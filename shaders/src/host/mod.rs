//! What every host of these kernels does, whatever its GPU interface: a plan as launches ([`Draft`]), what a step may have to take
//! back ([`fault_in`], [`HostValidated`]), where buffers lie ([`lay_out`]), which results are stored in `f16`, and the trials that
//! registered kernels ([`Answers`]) and cooperative matrices ([`choose_coop`]) pass before a plan uses them.
//!
//! What is left for a backend is [`Host`]: a device, its memory, and how launches are executed.

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
mod transfers;

pub use answers::Answers;
pub use compile::compile;
pub use coop_trial::{Tiles, Wanted, choose as choose_coop, select_coop_config, test_coop_matmul};
pub use custom::{Accepted, CustomKernels, problems};
pub use device::Host;
pub use dispatch::{F16Storage, Known, Sources, With};
pub use draft::{Bound, Draft, Extra, FRAMES, Refused, Unmade, phases};
pub use f16_storage::choose as choose_f16_storage;
pub use facts::{Facts, ask, choose_variants, facts_of};
pub use faults::{Faults, Reporter, Saved, fault_in, report_bytes};
pub use feature_trial::test_features;
pub use host_validated::HostValidated;
pub use once::{Word, run_once};
pub use places::{ALIGNMENT, Place, lay_out};
pub use transfers::{Copy, Full, MAX_EXPECTED, Writes, place_expected};
