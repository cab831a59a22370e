//! Access to devices for tests.

use std::io::Write as _;
use std::sync::Arc;

use meganeura_blade::BladeBackend;
use meganeura_core::backend::{Backend, Device};
use meganeura_core::config::Config;

/// Environment variable. If it is 1, tests fail without a Vulkan device.
const REQUIRE: &str = "MEGANEURA_REQUIRE_VULKAN";

/// The backend under test.
#[allow(dead_code, reason = "not every test binary names it")]
pub(crate) const BACKEND: BladeBackend = BladeBackend;

/// Returns the first usable device. Without a device, prints a message so that the test is skipped, or fails if the
/// variable is set.
pub(crate) fn device() -> Option<Arc<dyn Device>> {
    let config = Config::default();
    let devices = BladeBackend.devices(&config).expect("a listing");
    if let Some(usable) = devices.iter().find(|d| d.rejected.is_none()) {
        return Some(BladeBackend.open(usable.index, &config).expect("it opens"));
    }
    let why = BladeBackend
        .unavailable_reason()
        .unwrap_or_else(|| format!("all are rejected: {devices:?}"));
    not_tested(REQUIRE, "NOT TESTED", &format!("Vulkan or Metal device: {why}"));
    None
}

/// Prints the requirement of a skipped test. Fails instead if the variable is set.
pub(crate) fn not_tested(variable: &str, mark: &str, what: &str) {
    assert!(
        std::env::var(variable).as_deref() != Ok("1"),
        "{variable} is 1, but there is no {what}"
    );
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not with a macro such as `eprintln!`, because the test harness would capture its output.
    let _ = writeln!(std::io::stderr(), "{mark}: {name} needs a {what}");
}
