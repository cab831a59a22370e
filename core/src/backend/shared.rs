//! Device memory that several executables read.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::plan::BufferRef;

/// A buffer in the memory of an executable, which other executables of the same device may read. The memory stays
/// allocated as long as this value, or an executable that uses it, exists.
#[derive(Clone)]
pub struct SharedBuffer {
    /// Size in bytes.
    pub bytes: usize,
    /// The memory, in a type of the backend.
    pub memory: Arc<dyn Any + Send + Sync>,
}

impl SharedBuffer {
    /// Creates a buffer of `bytes` bytes in memory of the backend's own type.
    pub fn new(bytes: usize, memory: impl Any + Send + Sync) -> Self {
        SharedBuffer {
            bytes,
            memory: Arc::new(memory),
        }
    }

    /// Returns the memory, if it has this type of a backend.
    pub fn memory<T: Any>(&self) -> Option<&T> {
        self.memory.downcast_ref()
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Shared buffers by the buffers of a plan whose contents they have.
pub type SharedBuffers = HashMap<BufferRef, SharedBuffer>;
