//! Options and results of the translation.

use std::collections::BTreeMap;

/// The treatment of out-of-bounds indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bounds {
    /// Clamps an index to the last element, so that every access is within its buffer, array or vector. Use it for
    /// third-party kernels.
    #[default]
    Restrict,
    /// Omits the check. The kernel itself must stay within bounds, as kernels of `meganeura-shaders` do.
    Unchecked,
}

/// The options of the translation of a module.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Treatment of out-of-bounds indices.
    pub bounds: Bounds,
    /// True to declare read-only pointers as `const … __restrict__`, so that the compiler reads through the read-only
    /// cache. The host must not bind memory to them that the same launch writes.
    pub restrict: bool,
    /// True for programmatic dependent launch: a block waits for the launches on which this one depends, and then
    /// triggers its dependents. It waits at the beginning, or at the position that the kernel marks. Architectures
    /// before `sm_90` do not support this, and the kernel then neither waits nor triggers.
    pub programmatic: bool,
    /// Names of buffers that no launch writes while it may still run when this launch begins. A kernel waits at the
    /// position that it marks if it reads only these buffers before that position.
    pub unwritten: Vec<String>,
    /// True to replace functions by equivalent instructions if they have the names of certain functions in the
    /// library of `meganeura-shaders`. Use false for third-party kernels, which may use these names for other
    /// functions.
    pub natives: bool,
    /// Values of overrides. The key is the name, or the number of `@id`.
    pub overrides: BTreeMap<String, f64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            bounds: Bounds::default(),
            restrict: true,
            programmatic: false,
            unwritten: Vec::new(),
            natives: false,
            overrides: BTreeMap::new(),
        }
    }
}

/// A buffer that is bound to a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Group of the WGSL binding.
    pub group: u32,
    /// Number of the WGSL binding in its group.
    pub binding: u32,
    /// Name of the variable in WGSL.
    pub name: String,
    /// `true` if the kernel may write to the buffer.
    pub writable: bool,
    /// `true` if the next parameter is the buffer's length in bytes, as `unsigned long long`.
    pub has_length: bool,
    /// Minimum size of the buffer in bytes: the size of its type, where a run-time sized array has one element.
    /// Bounds checks rely on it.
    pub least_bytes: u64,
}

/// A kernel as CUDA C++.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaSource {
    /// Self-contained CUDA C++ source.
    pub source: String,
    /// Unmangled name of the `__global__` function.
    pub entry: String,
    /// Number of threads in a block along each axis.
    pub threads: [u32; 3],
    /// Number of bytes of shared memory of a block. The source declares this memory.
    pub shared_bytes: u32,
    /// Parameters in order: a pointer for each buffer, followed by the buffer's length if it has one.
    pub bindings: Vec<Binding>,
}
