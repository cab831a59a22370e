//! Tests of plugins that are built and loaded.
#![cfg(unix)]

mod again;
mod beside;
mod common;
mod compile;
mod golden;
#[cfg(target_os = "linux")]
#[path = "../../../../tests/common/held.rs"]
mod held;
mod hostile;
mod loops;
mod panics;
#[cfg(target_os = "linux")]
mod soak;
mod trial;
