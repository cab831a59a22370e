//! Functions that generated code may call, written by hand.

use std::sync::OnceLock;

use super::template::{Item, KernelFile, parse};

/// How convolutions find elements: functions whose statements become part of others.
pub(super) const CONVOLUTION: KernelFile = KernelFile {
    name: "lib/convolution",
    text: include_str!("../lib/convolution.wgsl"),
};

/// The same for images with channels last.
pub(super) const CONVOLUTION_NHWC: KernelFile = KernelFile {
    name: "lib/convolution_nhwc",
    text: include_str!("../lib/convolution_nhwc.wgsl"),
};

/// Functions that kernels share.
const FILES: [&str; 4] = [
    include_str!("../lib/math.wgsl"),
    include_str!("../lib/fault.wgsl"),
    include_str!("../lib/workgroup.wgsl"),
    include_str!("../lib/tile.wgsl"),
];

/// The library's functions.
///
/// # Errors
/// A file of the library that cannot be read.
pub(super) fn items() -> Result<&'static [Item], String> {
    static LIBRARY: OnceLock<Result<Vec<Item>, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| parse(&FILES.concat()));
    library.as_deref().map_err(|what| format!("lib: {what}"))
}
