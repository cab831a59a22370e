//! Devices for tests.

use std::io::Write as _;
use std::sync::Arc;

use meganeura_blade::BladeBackend;
use meganeura_core::backend::{Backend, Device};
use meganeura_core::config::Config;

/// Variable that makes tests fail where there is no Vulkan device, with the value 1.
const REQUIRE: &str = "MEGANEURA_REQUIRE_VULKAN";

/// The backend under test.
#[allow(dead_code, reason = "not every test binary names it")]
pub(crate) const BACKEND: BladeBackend = BladeBackend;

/// The first usable device. Without one a test has nothing to run on: it says so, or fails if that is asked for.
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

/// Says loudly what a test needs that is not there, or fails if a variable asks for it.
pub(crate) fn not_tested(variable: &str, mark: &str, what: &str) {
    assert!(
        std::env::var(variable).as_deref() != Ok("1"),
        "{variable} is 1, but there is no {what}"
    );
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not by a macro, whose output tests hold back.
    let _ = writeln!(std::io::stderr(), "{mark}: {name} needs a {what}");
}
