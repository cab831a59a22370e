//! Tests of this crate that can share a process. A single binary needs to be linked only once.

mod attacks;
mod chat;
mod client;
mod completions;
mod connections;
mod embeddings;
mod fields;
#[cfg(target_os = "linux")]
#[path = "../../../tests/common/held.rs"]
mod held;
mod hostile;
#[cfg(target_os = "linux")]
mod hostile_soak;
mod limits;
mod long_lists;
mod rerank;
mod responses;
#[cfg(target_os = "linux")]
mod soak;
mod special_text;
