//! Blocks of memory, and views of the buffers in them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of buffers in bytes: a cache line, and the width of the widest vector register.
pub(crate) const ALIGNMENT: usize = 64;

/// Rounds a number of `f32`s up to whole cache lines. Slices of scratch begin at cache lines.
pub(crate) fn aligned(floats: usize) -> usize {
    floats.next_multiple_of(ALIGNMENT / size_of::<f32>())
}

/// A zeroed, aligned block of bytes at a fixed address.
#[derive(Debug)]
pub(crate) struct Block {
    /// Address that the allocator returned.
    memory: NonNull<u8>,
    layout: Layout,
    /// Address of the first aligned byte.
    start: NonNull<u8>,
}

// SAFETY: the block owns its memory. All access is through raw pointers, whose users guarantee exclusivity.
unsafe impl Send for Block {}
// SAFETY: as above; shared references to a block only expose its address.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates a block. Returns `None` if there is not enough memory. Does not access the pages of a large block.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        // With a larger alignment, the allocator would clear the memory itself, which would access all of its pages.
        let layout = Layout::array::<u8>(bytes.checked_add(ALIGNMENT)?).ok()?;
        // SAFETY: the size of the layout is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let before = memory.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: the layout has ALIGNMENT bytes more than requested.
        let start = unsafe { memory.add(before) };
        Some(Block { memory, layout, start })
    }

    /// Returns the address of the first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory with this layout, and it has not been freed since.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

/// A typed view of a buffer that kernels hold.
///
/// Copies of a view alias. The executor's schedule guarantees that tasks that run at the same time never access the
/// same elements, unless all of them only read.
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

// SAFETY: a view is only an address. The contracts of its unsafe methods guarantee safe access.
unsafe impl<T: Send> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for View<T> {}

impl<T> View<T> {
    /// Creates a view of `len` elements at the address `start`.
    pub(crate) fn new(start: *mut u8, len: usize) -> Self {
        View {
            start: start.cast(),
            len,
        }
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first element.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.start
    }

    /// Returns a range of elements for reading.
    ///
    /// # Safety
    /// The executable must be alive, and no code may write these elements during the borrow.
    pub(crate) unsafe fn slice<'a>(&self, range: std::ops::Range<usize>) -> &'a [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a kernel left its operand"
        );
        // SAFETY: the range is within the view by the assertion. The memory is alive and not written by contract.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.end - range.start) }
    }

    /// Returns all elements for reading.
    ///
    /// # Safety
    /// As [`View::slice`].
    pub(crate) unsafe fn all<'a>(&self) -> &'a [T] {
        // SAFETY: forwarded.
        unsafe { self.slice(0..self.len) }
    }

    /// Returns a range of elements for writing.
    ///
    /// # Safety
    /// The executable must be alive, and no other code may read or write these elements during the
    /// borrow.
    pub(crate) unsafe fn slice_mut<'a>(&self, range: std::ops::Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a kernel left its operand"
        );
        // SAFETY: the range is within the view by the assertion. The memory is alive and exclusive by contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

/// Returns the number of bytes of memory that this process can use: the minimum of the machine's memory, including
/// swap, and the limit of its control group. Returns `None` if neither is available.
pub(crate) fn host_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total(&text));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

/// Returns the sum of memory and swap in bytes, as `/proc/meminfo` reports them.
fn total(meminfo: &str) -> Option<u64> {
    let kilobytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let memory = kilobytes("MemTotal:")?;
    memory
        .checked_add(kilobytes("SwapTotal:").unwrap_or(0))?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_zero() {
        for bytes in [0, 1, 63, 64, 1000, 1 << 20] {
            let block = Block::new(bytes).expect("memory");
            assert!(block.as_ptr().addr().is_multiple_of(ALIGNMENT));
            // SAFETY: the range is the whole block, and no code writes it.
            let zeros = unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) };
            assert!(zeros.iter().all(|&byte| byte == 0));
        }
        assert!(Block::new(usize::MAX).is_none());
        assert!(Block::new(usize::MAX / 4).is_none());
    }

    #[test]
    fn memory_is_read_in_the_kernels_words() {
        let text = "MemTotal:       1000 kB\nMemFree:         10 kB\nSwapTotal:        24 kB\n";
        assert_eq!(total(text), Some(1024 * 1024));
        assert_eq!(total("MemTotal: 1000 kB"), Some(1000 * 1024));
        assert_eq!(total("MemTotal: many kB"), None);
        assert_eq!(total(""), None);
    }
}
