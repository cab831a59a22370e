//! GPU kernels: WGSL for each dispatch of a plan, with its shapes as constants, for any GPU interface that accepts
//! WGSL or SPIR-V.
//!
//! [`compile`] generates the kernels of a call ([`CompileCx`]). [`Launch`] and [`Compiled`] contain all information
//! that a host needs.
//!
//! A dispatch is decomposed (`body.rs`) until every call has a supported role (`roles.rs`): elementwise operators
//! (`scalar.rs`), views (`view.rs`), operators that select elements (`pull.rs`), reductions (`rows`), and matmuls and
//! convolutions (`matmul.rs`, `conv.rs`). For matmuls and convolutions, `tiled` computes tiles, `coop` uses cooperative matrices,
//! `vectors` computes few rows, and `epilogue.rs` processes their results. `families.rs` computes a body in one
//! launch, and `stages.rs` splits it into several. Therefore a norm, a loss or an update needs no dedicated kernel. A
//! table lists operators with special loops (`standalone.rs`). Attention has kernels that never write the scores to
//! memory (`attention/`), and key-value caches have kernels in `cache/`. Custom kernels have priority over all of
//! these (`custom.rs`). If a call has several schedules, `variants.rs` selects the default or the requested one.
//!
//! `snapshots/` contains the kernels of representative calls. They show the effect of a change.

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
mod expanded;
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
mod library_calls;
mod library_conv;
mod library_epilogue;
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
pub use conv_kinds::ConvTensor;
pub use efficiency::efficiency;
pub use files::KERNEL_FILES;
pub use generate::{candidates, generate};
pub use kernel::{Binding, CompileCx, Compiled, CustomKernel, INLINE_SCALARS, Launch, Memory, Source};
pub use library_calls::{
    DeviceLibrary, LibraryCall, LibraryConvolution, LibraryEpilogue, LibraryMatmul, LibraryOperand,
};
pub use limits::{Features, Limits};
pub use scalar::DTYPES;
pub use schedule::{Class, Schedule, ScheduleChooser};
pub use template::{KernelFile, Replacements};
pub use validate::validate;

#[cfg(test)]
mod tests;
