//! Memory of an executable: one zeroed allocation that contains all buffers. Buffers do not share cache lines, except
//! buffers that are not needed at the same time.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use meganeura_core::plan::{BufferRef, ExecutionPlan};

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

/// All buffers of a plan, in one block.
#[derive(Debug)]
pub(crate) struct Arena {
    block: Block,
    offsets: Vec<usize>,
    sizes: Vec<usize>,
}

impl Arena {
    /// Allocates the buffers of a plan at the plan's offsets. If the plan has no offsets, buffers follow each other.
    /// The error is the number of bytes that could not be allocated.
    pub(crate) fn new(plan: &ExecutionPlan) -> Result<Self, usize> {
        let (offsets, bytes) = if !plan.memory.offsets.is_empty() {
            (plan.memory.offsets.clone(), plan.memory.bytes)
        } else {
            side_by_side(&plan.buffers).ok_or(usize::MAX)?
        };
        Ok(Arena {
            block: Block::new(bytes).ok_or(bytes)?,
            offsets,
            sizes: plan.buffers.clone(),
        })
    }

    /// Returns the number of bytes of a buffer.
    pub(crate) fn size(&self, buffer: BufferRef) -> Option<usize> {
        self.sizes.get(buffer.index()).copied()
    }

    /// Returns the address of the first byte of a buffer, which must exist.
    pub(crate) fn pointer(&self, buffer: BufferRef) -> *mut u8 {
        // SAFETY: the offset is within the block, because the plan was verified, or `new` computed the offset.
        unsafe { self.block.as_ptr().add(self.offsets[buffer.index()]) }
    }

    /// Returns the first word of a buffer. The buffer must exist and have at least one word, and no task may run
    /// meanwhile.
    pub(crate) fn word(&self, buffer: BufferRef) -> u32 {
        assert!(self.size(buffer) >= Some(size_of::<u32>()), "{buffer} has no word");
        // SAFETY: by the assertion, the buffer has four bytes, and its memory is initialised. The block and the
        // offset are aligned, and no code writes the buffer meanwhile.
        unsafe { self.pointer(buffer).cast::<u32>().read() }
    }

    /// Returns a range of bytes of a buffer, or `None` if the buffer does not contain it.
    pub(crate) fn bytes(&mut self, buffer: BufferRef, offset: u64, len: usize) -> Option<&mut [u8]> {
        let size = self.size(buffer)?;
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > size {
            return None;
        }
        // SAFETY: the range is within one buffer of the block, whose memory is initialised. No kernel runs during the
        // exclusive borrow of the arena.
        Some(unsafe { std::slice::from_raw_parts_mut(self.pointer(buffer).add(offset), len) })
    }
}

/// Returns offsets at which buffers of these sizes follow each other, and the end of the last buffer.
fn side_by_side(sizes: &[usize]) -> Option<(Vec<usize>, usize)> {
    let mut offsets = Vec::with_capacity(sizes.len());
    let mut end = 0usize;
    for size in sizes {
        offsets.push(end);
        end = end.checked_add(size.checked_next_multiple_of(ALIGNMENT)?)?;
    }
    Some((offsets, end))
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

    #[test]
    fn buffers_of_impossible_sizes_have_no_places() {
        assert_eq!(side_by_side(&[3, 0, 65]), Some((vec![0, 64, 64], 192)));
        assert_eq!(side_by_side(&[64, usize::MAX]), None);
        assert_eq!(side_by_side(&[usize::MAX - 63, 64]), None);
    }
}
