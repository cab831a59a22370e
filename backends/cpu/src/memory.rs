//! Memory of an executable: one zeroed allocation with every buffer on a cache line of its own.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use meganeura_core::plan::BufferRef;

/// Cache line, and the width of the widest vector register.
pub(crate) const ALIGNMENT: usize = 64;

/// A zeroed, aligned block of bytes at a fixed address.
#[derive(Debug)]
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block owns its memory; access goes through raw pointers whose users uphold exclusivity.
unsafe impl Send for Block {}
// SAFETY: as above; shared references to a block give out nothing but its address.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates; `None` if there is not enough memory.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(ALIGNMENT), ALIGNMENT).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Block { start, layout })
    }

    /// First byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and not freed since.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// All buffers of a plan in one block.
#[derive(Debug)]
pub(crate) struct Arena {
    block: Block,
    offsets: Vec<usize>,
    sizes: Vec<usize>,
}

impl Arena {
    /// Lays out and allocates buffers of these sizes; the error is the number of bytes that are not there.
    pub(crate) fn new(sizes: &[usize]) -> Result<Self, usize> {
        let mut offsets = Vec::with_capacity(sizes.len());
        let mut end = 0usize;
        for &size in sizes {
            offsets.push(end);
            end = size
                .checked_next_multiple_of(ALIGNMENT)
                .and_then(|s| end.checked_add(s))
                .ok_or(usize::MAX)?;
        }
        Ok(Arena {
            block: Block::new(end).ok_or(end)?,
            offsets,
            sizes: sizes.to_vec(),
        })
    }

    /// Bytes of a buffer.
    pub(crate) fn size(&self, buffer: BufferRef) -> Option<usize> {
        self.sizes.get(buffer.index()).copied()
    }

    /// First byte of a buffer that exists.
    pub(crate) fn pointer(&self, buffer: BufferRef) -> *mut u8 {
        // SAFETY: offsets lie within the block by construction.
        unsafe { self.block.as_ptr().add(self.offsets[buffer.index()]) }
    }

    /// Bytes of a range of a buffer, if it lies within.
    pub(crate) fn bytes(&mut self, buffer: BufferRef, offset: u64, len: usize) -> Option<&mut [u8]> {
        let size = self.size(buffer)?;
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > size {
            return None;
        }
        // SAFETY: the range lies within one buffer of the block, which is initialised memory; the exclusive
        // borrow of the arena keeps kernels from running meanwhile.
        Some(unsafe { std::slice::from_raw_parts_mut(self.pointer(buffer).add(offset), len) })
    }
}

/// A typed view of a buffer that kernels hold.
///
/// Copies of it alias; the executor's schedule guarantees that no two tasks that run at the same time touch
/// the same elements unless both only read.
#[derive(Debug)]
pub(crate) struct View<T> {
    start: *mut T,
    len: usize,
}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<T> {}

// SAFETY: a view is an address; what is done with it is governed by the unsafe methods below.
unsafe impl<T: Send> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for View<T> {}

impl<T> View<T> {
    /// A view of `len` elements from `start`.
    pub(crate) fn new(start: *mut u8, len: usize) -> Self {
        View {
            start: start.cast(),
            len,
        }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// First element.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.start
    }

    /// Elements of a range, to read.
    ///
    /// # Safety
    /// The executable is alive, and nobody writes these elements during the borrow.
    pub(crate) unsafe fn slice<'a>(&self, range: std::ops::Range<usize>) -> &'a [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a kernel left its operand"
        );
        // SAFETY: within the view by the assertion; liveness and absence of writers by contract.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.end - range.start) }
    }

    /// All elements, to read.
    ///
    /// # Safety
    /// As [`View::slice`].
    pub(crate) unsafe fn all<'a>(&self) -> &'a [T] {
        // SAFETY: forwarded.
        unsafe { self.slice(0..self.len) }
    }

    /// Elements of a range, to write.
    ///
    /// # Safety
    /// The executable is alive, and nobody else reads or writes these elements during the borrow.
    pub(crate) unsafe fn slice_mut<'a>(&self, range: std::ops::Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a kernel left its operand"
        );
        // SAFETY: within the view by the assertion; liveness and exclusivity by contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}
