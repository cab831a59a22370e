//! Compilation of a dispatch to its kernels.

use meganeura_core::backend::KernelDesc;

use super::decompose::{check_count, compile_decomposed};
use super::kernel::{CompileCx, Compiled, CustomKernel};
use super::scalar::DTYPES;
use super::{attention, cache, custom, experts, standalone};

/// Compiles a dispatch.
///
/// # Errors
/// No kernel supports the dispatch; the text contains the reason.
pub fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    for ty in cx.kernel.inputs.iter().chain(cx.kernel.outputs) {
        if !DTYPES.contains(&ty.dtype) {
            return Err(format!("kernels do not support {}", ty.dtype));
        }
        check_count(ty)?;
    }
    for special in [
        custom::compile,
        standalone::compile,
        experts::compile,
        attention::compile,
        cache::compile,
    ] {
        if let Some(compiled) = special(cx)? {
            return Ok(compiled);
        }
    }
    compile_decomposed(cx)
}

/// Compiles the kernel of a standalone call for a device that supports buffers of up to `most_bytes` bytes. `custom`
/// is the registered kernel of the operator, if any.
///
/// # Errors
/// No kernel supports the call; the text contains the reason.
pub fn supports(kernel: &KernelDesc, most_bytes: u64, custom: Option<&dyn CustomKernel>) -> Result<Compiled, String> {
    let compiled = compile(&CompileCx {
        custom,
        ..CompileCx::standalone(*kernel)
    })?;
    check_scratch(compiled, most_bytes)
}

/// Returns an error if a scratch buffer is too large.
pub(super) fn check_scratch(compiled: Compiled, most_bytes: u64) -> Result<Compiled, String> {
    match compiled.scratch.iter().max() {
        Some(&bytes) if bytes as u64 > most_bytes => Err(format!(
            "it needs {bytes} bytes of scratch memory, but the device's largest buffer has {most_bytes}"
        )),
        _ => Ok(compiled),
    }
}
