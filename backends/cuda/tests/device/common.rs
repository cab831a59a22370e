//! Access to the device for tests.

use std::io::Write as _;
use std::sync::Arc;

use meganeura_core::backend::{Backend, Device};
use meganeura_core::config::Config;
use meganeura_cuda::CudaBackend;

/// Environment variable. If it is 1, tests fail without a usable NVIDIA GPU.
const REQUIRE: &str = "MEGANEURA_REQUIRE_CUDA";

/// The backend under test.
pub(crate) const BACKEND: CudaBackend = CudaBackend;

/// Returns the first usable device. Without a device, prints a message so that the test is skipped, or fails if the
/// variable is set.
pub(crate) fn device() -> Option<Arc<dyn Device>> {
    let config = Config::default();
    let devices = CudaBackend.devices(&config).expect("a listing");
    if let Some(usable) = devices.iter().find(|d| d.rejected.is_none()) {
        return Some(CudaBackend.open(usable.index, &config).expect("it opens"));
    }
    let why = CudaBackend
        .unavailable_reason()
        .unwrap_or_else(|| format!("all are rejected: {devices:?}"));
    assert!(
        std::env::var(REQUIRE).as_deref() != Ok("1"),
        "{REQUIRE} is 1, but no device can be used: {why}"
    );
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not with a macro such as `eprintln!`, because the test harness would capture its output.
    let _ = writeln!(std::io::stderr(), "CUDA-NOT-TESTED: {name} needs an NVIDIA GPU: {why}");
    None
}
