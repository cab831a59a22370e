//! Transfers between the host and the memory of an executable.

use std::ops::Range;

use meganeura_core::plan::{BufferRef, Part};
use meganeura_core::{Error, Result};

use crate::arena::Arena;
use crate::memory::View;
use crate::pool::ThreadPool;

/// Returns a part that consists of the `len` bytes at `offset`.
pub(crate) fn one_run(offset: u64, len: usize) -> Result<Part> {
    let too_far = || Error::backend("cpu", format!("no buffer has a byte {offset}"));
    Ok(Part {
        offset: usize::try_from(offset).map_err(|_| too_far())?,
        runs: 1,
        run: len,
        stride: len,
    })
}

/// Writes the first bytes of a buffer.
pub(crate) fn overwrite(arena: &mut Arena, buffer: BufferRef, bytes: &[u8]) -> Result<()> {
    range(arena, buffer, 0, bytes.len())?.copy_from_slice(bytes);
    Ok(())
}

/// Returns the range from the first to the last byte of a part. The part must store a tensor of `len` bytes.
pub(crate) fn place<'a>(arena: &'a mut Arena, buffer: BufferRef, part: &Part, len: usize) -> Result<&'a mut [u8]> {
    check_runs(part, len)?;
    range(arena, buffer, part.offset, part.span())
}

fn check_runs(part: &Part, len: usize) -> Result<()> {
    if part.runs.checked_mul(part.run) == Some(len) {
        return Ok(());
    }
    let message = format!("{len} bytes for {} runs of {}", part.runs, part.run);
    Err(Error::backend("cpu", message))
}

/// Returns the range of [`place()`] for reading.
pub(crate) fn placed<'a>(arena: &'a Arena, buffer: BufferRef, part: &Part, len: usize) -> Result<&'a [u8]> {
    check_runs(part, len)?;
    let (offset, len) = (part.offset as u64, part.span());
    arena
        .read(buffer, offset, len)
        .ok_or_else(|| outside(buffer, part.offset, len))
}

/// Returns all bytes of a buffer for writing.
pub(crate) fn whole(arena: &mut Arena, buffer: BufferRef) -> Result<&mut [u8]> {
    let len = arena.size(buffer).unwrap_or(0);
    range(arena, buffer, 0, len)
}

fn range(arena: &mut Arena, buffer: BufferRef, offset: usize, len: usize) -> Result<&mut [u8]> {
    if arena.is_frozen(buffer) {
        let message = format!("buffer {buffer} is shared with other sessions, so it cannot be written");
        return Err(Error::backend("cpu", message));
    }
    arena
        .bytes(buffer, offset as u64, len)
        .ok_or_else(|| outside(buffer, offset, len))
}

fn outside(buffer: BufferRef, offset: usize, len: usize) -> Error {
    Error::backend("cpu", format!("{len} bytes at {offset} are outside of buffer {buffer}"))
}

/// Calls `each` for each run of a part. Its arguments are the run's offset in the buffer, and the run's range in the
/// tensor.
pub(crate) fn each_run(part: &Part, mut each: impl FnMut(usize, Range<usize>)) {
    for i in 0..part.runs {
        each(part.offset + i * part.stride, i * part.run..(i + 1) * part.run);
    }
}

/// Minimum number of bytes of a copy for a separate task.
const COPIED_TOGETHER: usize = 1 << 20;

/// Copies bytes on all threads, so that they also share the page faults of the first access.
fn copy(pool: &ThreadPool, from: &[u8], to: &mut [u8]) {
    let len = from.len();
    let to: View<u8> = View::new(to.as_mut_ptr(), to.len());
    pool.run(len.div_ceil(COPIED_TOGETHER), &|task, _| {
        let range = task * COPIED_TOGETHER..len.min((task + 1) * COPIED_TOGETHER);
        // SAFETY: the exclusive borrow lasts until all tasks have ended, and each task has its own range.
        unsafe { to.slice_mut(range.clone()) }.copy_from_slice(&from[range]);
    });
}

/// Copies a tensor into a part of a buffer, on all threads.
pub(crate) fn scatter(pool: &ThreadPool, tensor: &[u8], part: &Part, span: &mut [u8]) {
    if part.is_contiguous() {
        return copy(pool, tensor, span);
    }
    let len = span.len();
    let span: View<u8> = View::new(span.as_mut_ptr(), len);
    let together = (COPIED_TOGETHER / part.run.max(1)).max(1);
    pool.run(part.runs.div_ceil(together), &|task, _| {
        let runs = task * together..part.runs.min((task + 1) * together);
        let own = runs.start * part.stride..len.min(runs.end * part.stride);
        // SAFETY: as above.
        let own = unsafe { span.slice_mut(own) };
        part.scatter(&tensor[runs.start * part.run..runs.end * part.run], own);
    });
}
