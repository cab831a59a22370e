//! Tests of the translation to CUDA C++: all kernels are translated, single expressions are correct, NVRTC compiles
//! the sources, and results are correct.

#[path = "../../../../shaders/tests/snapshots/calls.rs"]
mod calls;
mod expressions;
mod host;
mod nvrtc;
mod results;
mod snapshots;
