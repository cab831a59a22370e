//! Small copies. They are executed by a kernel.
//!
//! A copy engine is as fast for large copies, but each switch between it and kernels takes several microseconds. That
//! is long compared with a small step.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::{Error, Result};

use crate::cubins::Compiler;
use crate::gpu::{Gpu, NAME};

/// Maximum number of copies per launch.
const MAX_COPIES: usize = 16;
/// Maximum number of bytes of a small copy. Up to this size, a few blocks are about as fast as a copy engine.
const MAX_BYTES: u64 = 256 << 10;
/// Number of bytes that each block copies.
const BLOCK_BYTES: u64 = 4096;
const THREADS: u32 = 256;

/// Source of the kernel. Host memory that the driver allocated has the same addresses on the device (unified
/// addressing).
const SOURCE: &str = r#"
struct copy { unsigned long long to, from, bytes; };
struct copies { copy all[16]; };

extern "C" __global__ void __launch_bounds__(256) copy_small(const copies given) {
    const copy own = given.all[blockIdx.x];
    const unsigned long long first = 4096ull * blockIdx.y;
    if (first >= own.bytes) return;
    const unsigned long long to = own.to + first, from = own.from + first;
    const unsigned bytes = own.bytes - first < 4096 ? (unsigned)(own.bytes - first) : 4096u;
    const unsigned words = (to | from) % 4 == 0 ? bytes / 4 : 0;
    for (unsigned i = threadIdx.x; i < words; i += 256) {
        ((unsigned*)to)[i] = ((const volatile unsigned*)from)[i];
    }
    for (unsigned i = 4 * words + threadIdx.x; i < bytes; i += 256) {
        ((unsigned char*)to)[i] = ((const volatile unsigned char*)from)[i];
    }
}
"#;
const ENTRY: &str = "copy_small";

/// A copy of a range of memory, as an argument of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SmallCopy {
    /// Destination and source: addresses on the device, or addresses of host memory that the driver allocated.
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

impl SmallCopy {
    /// Returns `true` if the copy is small enough for the kernel.
    pub(crate) fn is_small(&self) -> bool {
        self.bytes <= MAX_BYTES
    }

    /// Returns `true` if the destinations of this copy and of another one overlap.
    fn overlaps(&self, other: &SmallCopy) -> bool {
        self.to < other.to + other.bytes && other.to < self.to + self.bytes
    }
}

/// Splits a list of copies into runs, in order. A run is either several small copies with disjoint destinations, or
/// one large copy.
pub(crate) fn runs(copies: &[SmallCopy]) -> Vec<&[SmallCopy]> {
    let (mut runs, mut first) = (Vec::new(), 0);
    for next in 1..copies.len() {
        let run = &copies[first..next];
        let own = &copies[next];
        if run.len() >= MAX_COPIES || !own.is_small() || !run[0].is_small() || run.iter().any(|c| c.overlaps(own)) {
            runs.push(run);
            first = next;
        }
    }
    runs.extend(copies.get(first..).filter(|run| !run.is_empty()));
    runs
}

/// The kernel for small copies, loaded on a device.
pub(crate) struct Copier {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

// SAFETY: modules and functions of CUDA belong to their context. They are not bound to a thread.
unsafe impl Send for Copier {}
// SAFETY: as above. They do not change after they are loaded.
unsafe impl Sync for Copier {}

impl Copier {
    /// Compiles and loads the kernel.
    ///
    /// # Errors
    /// Errors of the compiler or the driver.
    pub(crate) fn new(gpu: &Arc<Gpu>, compiler: &Compiler) -> Result<Self> {
        let entry = CString::new(ENTRY).map_err(|error| Error::backend(NAME, error.to_string()))?;
        let load = |anew: bool| {
            let cubin = compiler
                .compile(SOURCE, anew)
                .map_err(|why| Error::backend(NAME, why))?;
            gpu.call("loading a kernel", || {
                // SAFETY: the bytes are a complete image. The driver checks and copies it.
                let module = unsafe { result::module::load_data(cubin.bytes.as_ptr().cast::<c_void>()) }?;
                // SAFETY: the module was loaded above.
                let function = unsafe { result::module::get_function(module, entry.clone()) }?;
                Ok((module, function))
            })
        };
        // A file in the cache may be damaged.
        let (module, function) = load(false).or_else(|_| load(true))?;
        Ok(Copier {
            gpu: gpu.clone(),
            module,
            function,
        })
    }

    /// Enqueues copies. No copy may read bytes that another copy writes.
    ///
    /// # Safety
    /// All ranges must be valid until the copies are complete. The driver must have allocated host ranges.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) unsafe fn enqueue(&self, copies: &[SmallCopy], stream: sys::CUstream) -> Result<(), DriverError> {
        for some in copies.chunks(MAX_COPIES) {
            let mut given = [SmallCopy::default(); MAX_COPIES];
            given[..some.len()].copy_from_slice(some);
            let mut parameters = [given.as_mut_ptr().cast::<c_void>()];
            let most = some.iter().map(|copy| copy.bytes).max().unwrap_or(0);
            let blocks = (some.len() as u32, most.div_ceil(BLOCK_BYTES).max(1) as u32, 1);
            // SAFETY: the kernel receives the copies by value. Their ranges are valid by the contract of this
            // function.
            unsafe { result::launch_kernel(self.function, blocks, (THREADS, 1, 1), 0, stream, &mut parameters) }?;
        }
        Ok(())
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // SAFETY: the driver loaded it, and executables that use it keep it alive.
        self.gpu.free(|| unsafe { result::module::unload(self.module) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_writes_the_same_bytes_is_in_another_run() {
        let copy = |to, bytes| SmallCopy { to, from: 0, bytes };
        let large = copy(10_000_000, MAX_BYTES + 1);
        let copies = [copy(0, 8), copy(8, 8), copy(4, 8), copy(100, 4), large, copy(200, 4)];
        let lengths: Vec<usize> = runs(&copies).into_iter().map(<[_]>::len).collect();
        assert_eq!(lengths, [2, 2, 1, 1]);
        assert_eq!(runs(&copies).concat(), copies);
        let many: Vec<SmallCopy> = (0..40).map(|i| copy(8 * i, 8)).collect();
        let lengths: Vec<usize> = runs(&many).into_iter().map(<[_]>::len).collect();
        assert_eq!(lengths, [MAX_COPIES, MAX_COPIES, 40 - 2 * MAX_COPIES]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn the_kernel_takes_what_the_host_gives() {
        assert!(SOURCE.contains(&format!("copy all[{MAX_COPIES}]")));
        assert!(
            SOURCE.contains(&format!("__launch_bounds__({THREADS})")) && SOURCE.contains(&format!("i += {THREADS}"))
        );
        assert!(
            SOURCE.contains(&format!("{BLOCK_BYTES}ull * blockIdx.y"))
                && SOURCE.contains(&format!(": {BLOCK_BYTES}u;"))
        );
        assert_eq!(size_of::<SmallCopy>(), 24);
    }
}
