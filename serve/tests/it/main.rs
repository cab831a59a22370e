//! The tests of this crate that may share a process: one binary is linked once.

mod chat;
mod client;
mod completions;
mod hostile;
mod limits;
#[cfg(target_os = "linux")]
mod soak;
