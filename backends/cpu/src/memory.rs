//! Memory of an executable: one zeroed allocation with every buffer on cache lines of its own, or of those that are not
//! needed at the same time.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use meganeura_core::plan::{BufferRef, ExecutionPlan};

/// Cache line, and the width of the widest vector register.
pub(crate) const ALIGNMENT: usize = 64;

/// So many `f32`s, rounded up to whole cache lines: parts of scratch begin at these.
pub(crate) fn aligned(floats: usize) -> usize {
    floats.next_multiple_of(ALIGNMENT / size_of::<f32>())
}

/// A zeroed, aligned block of bytes at a fixed address.
#[derive(Debug)]
pub(crate) struct Block {
    /// What was allocated.
    memory: NonNull<u8>,
    layout: Layout,
    /// First aligned byte.
    start: NonNull<u8>,
}

// SAFETY: the block owns its memory; access goes through raw pointers whose users uphold exclusivity.
unsafe impl Send for Block {}
// SAFETY: as above; shared references to a block give out nothing but its address.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates; `None` if there is not enough memory. No page of a large block is touched.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        // Zeroed memory of a larger alignment than usual is zeroed by hand, all of it, and comes from the system touched.
        let layout = Layout::array::<u8>(bytes.checked_add(ALIGNMENT)?).ok()?;
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let before = memory.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: there are ALIGNMENT bytes more than are asked for.
        let start = unsafe { memory.add(before) };
        Some(Block { memory, layout, start })
    }

    /// First byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and not freed since.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
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
    /// Allocates the buffers of a plan where it places them, or side by side if it places none; the error is the
    /// number of bytes that are not there.
    pub(crate) fn new(plan: &ExecutionPlan) -> Result<Self, usize> {
        let (offsets, bytes) = match plan.memory.offsets.is_empty() {
            false => (plan.memory.offsets.clone(), plan.memory.bytes),
            true => side_by_side(&plan.buffers).ok_or(usize::MAX)?,
        };
        Ok(Arena {
            block: Block::new(bytes).ok_or(bytes)?,
            offsets,
            sizes: plan.buffers.clone(),
        })
    }

    /// Bytes of a buffer.
    pub(crate) fn size(&self, buffer: BufferRef) -> Option<usize> {
        self.sizes.get(buffer.index()).copied()
    }

    /// First byte of a buffer that exists.
    pub(crate) fn pointer(&self, buffer: BufferRef) -> *mut u8 {
        // SAFETY: offsets lie within the block: the plan was verified, or they were laid out here.
        unsafe { self.block.as_ptr().add(self.offsets[buffer.index()]) }
    }

    /// The first word of a buffer that exists and has one. No task runs.
    pub(crate) fn word(&self, buffer: BufferRef) -> u32 {
        assert!(self.size(buffer) >= Some(size_of::<u32>()), "{buffer} has no word");
        // SAFETY: the buffer has four bytes by the assertion, in initialised memory; its offset, like the block, is
        // aligned; nobody writes it meanwhile.
        unsafe { self.pointer(buffer).cast::<u32>().read() }
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

/// Offsets of buffers of these sizes, one after the other, and where they end.
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

/// Bytes of memory that this process can have: the machine's, with swap, and the limit of its control group. `None`
/// where neither is known.
pub(crate) fn host_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total(&text));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

/// Memory and swap in the words of the Linux kernel, in bytes.
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
            // SAFETY: the block's bytes, which nobody writes.
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
