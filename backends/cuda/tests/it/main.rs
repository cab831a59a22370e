//! Tests of what is written: that all kernels are, what single expressions become, whether NVRTC compiles it, and what it computes.

mod expressions;
mod host;
mod nvrtc;
mod results;
mod snapshots;
