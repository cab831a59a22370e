//! Hand-written WGSL functions that generated code may call.

use std::sync::OnceLock;

use super::template::{Item, KernelFile, parse};

/// Functions that locate the elements of convolutions. Their statements are inlined.
pub(super) const CONVOLUTION: KernelFile = KernelFile {
    name: "lib/convolution",
    text: include_str!("../lib/convolution.wgsl"),
};

/// The same functions for NHWC images.
pub(super) const CONVOLUTION_NHWC: KernelFile = KernelFile {
    name: "lib/convolution_nhwc",
    text: include_str!("../lib/convolution_nhwc.wgsl"),
};

/// Files with functions that kernels share.
const FILES: [&str; 5] = [
    include_str!("../lib/math.wgsl"),
    include_str!("../lib/trigonometry.wgsl"),
    include_str!("../lib/fault.wgsl"),
    include_str!("../lib/workgroup.wgsl"),
    include_str!("../lib/tile.wgsl"),
];

/// Returns the functions of the library.
///
/// # Errors
/// A file of the library is not valid.
pub(super) fn items() -> Result<&'static [Item], String> {
    static LIBRARY: OnceLock<Result<Vec<Item>, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| parse(&FILES.concat()));
    library.as_deref().map_err(|what| format!("lib: {what}"))
}
