//! What a caller chooses, and what it gets.

use std::collections::BTreeMap;

/// What happens to an index that is out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bounds {
    /// It becomes the last one: every access is within its buffer, array or vector. For kernels of others.
    #[default]
    Restrict,
    /// Nothing: the kernel's own text keeps within its sizes, as kernels of `meganeura-shaders` do.
    Unchecked,
}

/// How a module is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// What happens to indices that are out of bounds.
    pub bounds: Bounds,
    /// Whether pointers that are only read from are `const … __restrict__`, so that the compiler reads through the cache for
    /// constant data. It takes that the host binds no memory to them that the same launch writes.
    pub restrict: bool,
    /// Whether a block waits for the launches that this one depends on, and then asks for those that depend on it, before anything
    /// else or where the kernel says so (programmatic dependent launch). Architectures before `sm_90` have no such launches, and the kernel does neither.
    pub programmatic: bool,
    /// Names of buffers that no launch writes that may still run when this one begins. A kernel that says where it may wait, and reads
    /// nothing but these before, waits there.
    pub unwritten: Vec<String>,
    /// Whether functions by the names of some in the library of `meganeura-shaders` are replaced by instructions that do the same. Not
    /// for kernels of others, who may use the names for something else.
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

/// A buffer that a kernel takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The group of its binding.
    pub group: u32,
    /// The number of its binding in that group.
    pub binding: u32,
    /// Its name in WGSL.
    pub name: String,
    /// Whether the kernel may write to it.
    pub writable: bool,
    /// Whether the parameter after the pointer is the buffer's length in bytes, as `unsigned long long`.
    pub has_length: bool,
    /// The least bytes that the buffer must have: those of its type, with one element of an array of unknown length. Bounds are
    /// kept only then.
    pub least_bytes: u64,
}

/// A kernel as CUDA C++.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The source, which includes nothing.
    pub source: String,
    /// Name of the `__global__` function, which C++ does not change.
    pub entry: String,
    /// Threads of a block along each axis.
    pub threads: [u32; 3],
    /// Bytes of shared memory of a block, which the source declares itself.
    pub shared_bytes: u32,
    /// The parameters, in their order: of each a pointer, and its length where it has one.
    pub bindings: Vec<Binding>,
}
