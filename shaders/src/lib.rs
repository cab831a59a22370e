//! GPU kernels: WGSL for each dispatch of a plan, its shapes as constants, for any GPU interface that takes WGSL or SPIR-V.
//!
//! A kernel is made from a call ([`CompileCx`]) by [`compile`]; what a host has to provide is in [`Launch`] and [`Compiled`].
//!
//! A dispatch is decomposed (`body.rs`) until all calls are of a role that is known here (`roles.rs`): elementwise operators
//! (`scalar.rs`), views (`view.rs`), operators that pick elements (`pull.rs`), reductions (`rows`), and matrix products and
//! convolutions (`matmul.rs`, `conv.rs`; by tiles `tiled`, on cooperative matrices `coop`, of few rows `vectors`; `sums.rs`
//! is what is done with their results). `families.rs` computes a body in one launch, `stages.rs` cuts it into several. So a norm, a
//! loss or an update needs no kernel of its own. Operators with loops of their own have a table (`standalone.rs`), attention has kernels
//! that keep its scores out of memory (`attention/`), key-value caches a file of theirs (`cache.rs`), and custom kernels come before
//! all (`custom.rs`). Of several schedules of a call `variants.rs` takes the default one or one that was asked for.
//!
//! The kernels of representative calls lie in `snapshots/`, to be read and to show what a change does to them.

mod attention;
mod body;
mod cache;
mod compile;
mod contraction;
mod conv;
mod conv_kinds;
mod conv_nhwc;
pub mod coop;
mod custom;
mod decompose;
mod efficiency;
mod emit;
mod epilogue;
mod experts;
mod families;
mod files;
mod fold;
mod fragments;
mod generate;
pub mod host;
mod kernel;
mod lanes;
mod library;
mod library_matmul;
mod limits;
mod location;
mod matmul;
mod module;
mod neighbours;
mod packed;
mod pointwise;
mod pull;
mod roles;
mod rows;
mod scalar;
mod scatter;
mod schedule;
mod stages;
mod standalone;
mod template;
mod tiled;
mod validate;
mod variants;
mod vectors;
mod view;

pub use compile::{compile, supports};
pub use efficiency::efficiency;
pub use files::KERNEL_FILES;
pub use generate::{candidates, generate};
pub use kernel::{
    Binding, CompileCx, Compiled, CustomKernel, INLINE_SCALARS, Launch, LibraryMatmul, LibraryOperand, MatmulLibrary,
    Memory, Source,
};
pub use limits::{Features, Limits};
pub use scalar::DTYPES;
pub use schedule::{Class, Schedule, ScheduleChooser};
pub use template::KernelFile;
pub use validate::validate;

#[cfg(test)]
mod tests;
