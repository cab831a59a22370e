//! Tests that need an NVIDIA GPU, its driver and NVRTC. General tests of GPU backends are shared
//! with `backends/blade`.

#[path = "../../../blade/tests/it/attention_kernels.rs"]
mod attention_kernels;
#[path = "../../../blade/tests/common/case.rs"]
mod case;
mod common;
#[path = "../../../blade/tests/it/conformance.rs"]
mod conformance;
#[path = "../../../blade/tests/it/experts.rs"]
mod experts;
#[path = "../../../blade/tests/it/faults.rs"]
mod faults;
#[path = "../../../blade/tests/it/kernels.rs"]
mod kernels;
#[path = "../../../blade/tests/common/packed.rs"]
mod packed;
#[path = "../../../blade/tests/it/quantized.rs"]
mod quantized;
#[path = "../../../blade/tests/it/sessions.rs"]
mod sessions;
