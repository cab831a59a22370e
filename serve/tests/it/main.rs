//! The tests of this crate that may share a process: one binary is linked once.

mod chat;
mod client;
mod completions;
mod embeddings;
#[cfg(target_os = "linux")]
#[path = "../../../tests/common/held.rs"]
mod held;
mod hostile;
mod limits;
#[cfg(target_os = "linux")]
mod soak;
