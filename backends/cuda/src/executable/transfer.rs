//! Copies of a submission before and after the launches of its step.

use std::ffi::c_void;

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::Result;
use meganeura_shaders::host::{Begin, SavedRange, Transfer};

use super::CudaDriver;
use crate::copies::{Copier, SmallCopy, runs};

/// Enqueues copies between host and device memory. A kernel executes the small ones.
///
/// # Safety
/// All ranges must be valid and must not change until the copies are complete. The driver must have allocated host
/// ranges.
unsafe fn copy(
    copier: &Copier,
    copies: &[SmallCopy],
    direction: Direction,
    stream: sys::CUstream,
) -> Result<(), DriverError> {
    for run in runs(copies) {
        let Some(&SmallCopy { to, from, bytes }) = run.first().filter(|first| !first.is_small()) else {
            // SAFETY: by the contract of this function.
            unsafe { copier.enqueue(run, stream) }?;
            continue;
        };
        let bytes = bytes as usize;
        // SAFETY: as above.
        let enqueued = unsafe {
            match direction {
                Direction::ToDevice => sys::cuMemcpyHtoDAsync_v2(to, from as *const c_void, bytes, stream),
                Direction::ToHost => sys::cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, stream),
            }
        };
        enqueued.result()?;
    }
    Ok(())
}

/// Direction of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToDevice,
    ToHost,
}

impl CudaDriver {
    /// Enqueues the rollback of a step, the writes of the host, and scalars that have changed.
    pub(super) fn restore_and_upload(&mut self, frame: usize, begin: Begin) -> Result<()> {
        let scalars = begin.scalars.unwrap_or_default();
        let is_empty = begin.bytes.is_empty() && scalars.is_empty();
        let staged = if is_empty {
            None
        } else {
            Some(self.frames[frame].upload.fill(begin.bytes, scalars)?)
        };
        let (arena, stream) = (&self.arena, self.stream.raw);
        self.gpu.call("uploading", || {
            if let Some((fault, saved)) = begin.undo {
                // SAFETY: the ranges are within buffers, here and below.
                unsafe { result::memset_d8_async(arena.address(fault, 0), 0, fault.bytes as usize, stream) }?;
                for part in saved {
                    let (own, copy) = (arena.address(part.own, 0), arena.address(part.copy, 0));
                    // SAFETY: as above.
                    unsafe { result::memcpy_dtod_async(own, copy, part.own.bytes as usize, stream) }?;
                }
            }
            let Some([staged, staged_scalars]) = staged else {
                return Ok(());
            };
            let write = |copy: &Transfer| SmallCopy {
                to: self.address(copy),
                from: staged + copy.host,
                bytes: copy.len,
            };
            let mut all: Vec<SmallCopy> = begin.writes.iter().map(write).collect();
            if !scalars.is_empty() {
                let (len, from) = (scalars.len() as u64, staged_scalars);
                // The scalar block that kernels bind, and the list of scalars for kernels that need more of them.
                all.push(SmallCopy {
                    to: arena.address(self.extras.scalars, 0),
                    from,
                    bytes: len.min(super::SCALAR_BYTES as u64),
                });
                let list = self.scalar_list.filter(|_| len > super::SCALAR_BYTES as u64);
                all.extend(list.map(|list| SmallCopy {
                    to: arena.address(list, 0),
                    from,
                    bytes: len,
                }));
            }
            // SAFETY: the memory of the frame contains these bytes, and stays valid until the frame is finished.
            unsafe { copy(&self.copier, &all, Direction::ToDevice, stream) }
        })
    }

    /// Enqueues copies of the data that a rollback of the step restores.
    pub(super) fn save(&mut self, saved: &[SavedRange]) -> Result<()> {
        let (arena, stream) = (&self.arena, self.stream.raw);
        self.gpu.call("saving", || {
            for part in saved {
                let (own, copy) = (arena.address(part.own, 0), arena.address(part.copy, 0));
                // SAFETY: the ranges are within buffers.
                unsafe { result::memcpy_dtod_async(copy, own, part.own.bytes as usize, stream) }?;
            }
            Ok(())
        })
    }

    /// Enqueues copies to the host's memory of a frame, of which `bytes` bytes are used.
    pub(super) fn copy_to_host(&mut self, frame: usize, bytes: u64, copies: &[Transfer]) -> Result<()> {
        let target = self.frames[frame].download.with_capacity(bytes as usize)?;
        let result = |copy: &Transfer| SmallCopy {
            to: target as u64 + copy.host,
            from: self.address(copy),
            bytes: copy.len,
        };
        let all: Vec<SmallCopy> = copies.iter().map(result).collect();
        let stream = self.stream.raw;
        self.gpu.call("downloading", || {
            // SAFETY: the memory of the frame is large enough, and stays valid until the frame is finished. The other
            // ranges are within buffers.
            unsafe { copy(&self.copier, &all, Direction::ToHost, stream) }
        })
    }
}
