//! Options and results of the writer.

use std::collections::BTreeMap;

/// The treatment of indices that are out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bounds {
    /// Clamps an index to the last one, so that every access is within its buffer, array or vector. For third-party
    /// kernels.
    #[default]
    Restrict,
    /// Omits the check: the kernel itself stays within its sizes, as kernels of `meganeura-shaders` do.
    Unchecked,
}

/// The options for writing a module.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Treatment of indices that are out of bounds.
    pub bounds: Bounds,
    /// True to declare read-only pointers as `const … __restrict__`, so that the compiler reads through the read-only
    /// cache. The host must then not bind memory to them that the same launch writes.
    pub restrict: bool,
    /// True to make a block wait for the launches that this one depends on, and then trigger its dependents
    /// (programmatic dependent launch). It waits at the beginning, or at the position that the kernel marks.
    /// Architectures before `sm_90` do not support this; the kernel then does neither.
    pub programmatic: bool,
    /// Names of buffers that are not written by any launch that may still run when this one begins. A kernel that marks
    /// where it may wait, and reads only these buffers before that position, waits there.
    pub unwritten: Vec<String>,
    /// True to replace functions by equivalent instructions if they have the names of certain functions in the library
    /// of `meganeura-shaders`. Not for third-party kernels, which may use the names for other functions.
    pub natives: bool,
    /// Values of overrides, by name or by the number of `@id`.
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
    /// `true` if the parameter after the pointer is the buffer's length in bytes, as
    /// `unsigned long long`.
    pub has_length: bool,
    /// Minimum size of the buffer in bytes: the size of its type, with one element of a run-time sized array. Bounds
    /// checks rely on it.
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
    /// Bytes of shared memory of a block. The source declares this memory.
    pub shared_bytes: u32,
    /// Parameters in order: a pointer for each buffer, followed by the buffer's length if it has one.
    pub bindings: Vec<Binding>,
}
