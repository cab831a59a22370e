//! The work that a submission enqueues before and after the launches of its step.

use std::ffi::c_void;
use std::time::Instant;

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::Result;
use meganeura_core::backend::Ticket;
use meganeura_shaders::host::Copy;

use super::CudaExecutable;
use super::timing::{MeasuredGraph, MeasuredStep};
use crate::copies::{Copier, SmallCopy, runs};
use crate::event::Event;
use crate::graph::Graph;

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

impl CudaExecutable {
    /// Waits until the next frame is free, and begins its submission. First, it rolls back a faulty step and enqueues
    /// the pending writes.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.finish(self.next())?;
        self.current = self.next();
        let copies = self.writes.copies.iter();
        let targets: Vec<sys::CUdeviceptr> = copies.map(|c| self.address(c)).collect::<Result<_>>()?;
        let fault = self.arena.place(self.extra.fault);
        let undone = self.faults.to_undo.take().zip(fault);
        let scalars = std::mem::take(&mut self.scalars.changed);
        if scalars {
            self.writes.bytes.resize(self.writes.bytes.len().next_multiple_of(4), 0);
            self.writes.bytes.extend_from_slice(&self.scalars.bytes);
        }
        let frame = &mut self.frames[self.current];
        frame.copied.clear();
        let staged = if self.writes.bytes.is_empty() {
            None
        } else {
            Some(frame.upload.fill(&self.writes.bytes)?)
        };
        let (arena, stream) = (&self.arena, self.stream.raw);
        self.gpu.call("uploading", || {
            if let Some((frame, fault)) = undone {
                // SAFETY: the ranges are within buffers, here and below.
                unsafe { result::memset_d8_async(arena.address(fault, 0), 0, fault.bytes as usize, stream) }?;
                for part in &self.saved[frame] {
                    let (own, copy) = (arena.address(part.own, 0), arena.address(part.copy, 0));
                    // SAFETY: as above.
                    unsafe { result::memcpy_dtod_async(own, copy, part.own.bytes as usize, stream) }?;
                }
            }
            let Some(staged) = staged else { return Ok(()) };
            let staged = staged as u64;
            let writes = self.writes.copies.iter().zip(&targets);
            let mut all: Vec<SmallCopy> = writes
                .map(|(copy, &to)| SmallCopy {
                    to,
                    from: staged + copy.host,
                    bytes: copy.len,
                })
                .collect();
            if scalars {
                let len = self.scalars.bytes.len() as u64;
                let from = staged + (self.writes.bytes.len() as u64 - len);
                // The scalar block that kernels bind, and the list of scalars for kernels that need more of them.
                all.push(SmallCopy {
                    to: arena.address(self.extras.scalars, 0),
                    from,
                    bytes: len.min(super::SCALAR_BYTES as u64),
                });
                let list = arena
                    .place(self.extra.scalars)
                    .filter(|_| len > super::SCALAR_BYTES as u64);
                all.extend(list.map(|list| SmallCopy {
                    to: arena.address(list, 0),
                    from,
                    bytes: len,
                }));
            }
            // SAFETY: the memory of the frame contains these bytes, and stays valid until the frame is finished.
            unsafe { copy(&self.copier, &all, Direction::ToDevice, stream) }
        })?;
        self.writes.clear();
        Ok(())
    }

    /// Enqueues copies of the data that a rollback of the step restores.
    pub(super) fn save(&mut self) -> Result<()> {
        let (arena, stream, saved) = (&self.arena, self.stream.raw, &self.saved[self.current]);
        self.gpu.call("saving", || {
            for part in saved {
                let (own, copy) = (arena.address(part.own, 0), arena.address(part.copy, 0));
                // SAFETY: the ranges are within buffers.
                unsafe { result::memcpy_dtod_async(copy, own, part.own.bytes as usize, stream) }?;
            }
            Ok(())
        })
    }

    /// Enqueues the launches of a step with an event after each phase.
    pub(super) fn enqueue_measured(&mut self, segments: &[usize]) -> Result<()> {
        let (gpu, stream) = (self.gpu.clone(), self.stream.raw);
        let key = (segments.to_vec(), self.current);
        if !self.measured.contains_key(&key) {
            if self.measured.len() >= super::MAX_GRAPHS {
                self.finish_all()?;
                self.measured.clear();
            }
            let phases: Vec<_> = segments
                .iter()
                .filter_map(|&s| self.segments.get(s))
                .flatten()
                .collect();
            let tags = phases.iter().map(|phase| self.tag(phase)).collect();
            let events: Vec<Event> = (0..=phases.len())
                .map(|_| Event::new(&gpu, true))
                .collect::<Result<_>>()?;
            let graph = gpu.call("capturing the graph of a step", || {
                Graph::measured(&gpu, stream, &phases, &events)
            })?;
            self.measured.insert(key.clone(), MeasuredGraph { graph, events, tags });
        }
        if let Some(measured) = self.measured.get(&key) {
            gpu.call("launching a step", || measured.graph.launch(stream))?;
        }
        let step = Ticket(self.submissions + 1);
        self.profile.pending.push(MeasuredStep {
            graph: key,
            step,
            submitted: Instant::now(),
        });
        Ok(())
    }

    /// Enqueues copies to the host's memory of the current frame.
    pub(super) fn download(&mut self, copies: Vec<Copy>, report: bool) -> Result<()> {
        let bytes = self.report_bytes();
        let end = copies
            .iter()
            .map(|c| c.host + c.len)
            .max()
            .unwrap_or(0)
            .max(bytes as u64);
        let sources: Vec<sys::CUdeviceptr> = copies.iter().map(|c| self.address(c)).collect::<Result<_>>()?;
        let fault = self.arena.place(self.extra.fault).filter(|_| report && bytes > 0);
        if sources.is_empty() && fault.is_none() {
            return Ok(());
        }
        let frame = &mut self.frames[self.current];
        let target = frame.download.with_capacity(end as usize)?;
        let (arena, stream) = (&self.arena, self.stream.raw);
        let report = fault.map(|fault| SmallCopy {
            to: target as u64,
            from: arena.address(fault, 0),
            bytes: bytes as u64,
        });
        let results = copies.iter().zip(&sources).map(|(copy, &from)| SmallCopy {
            to: target as u64 + copy.host,
            from,
            bytes: copy.len,
        });
        let all: Vec<SmallCopy> = report.into_iter().chain(results).collect();
        self.gpu.call("downloading", || {
            // SAFETY: the memory of the frame is large enough, and stays valid until the frame is finished. The other
            // ranges are within buffers.
            unsafe { copy(&self.copier, &all, Direction::ToHost, stream) }
        })?;
        frame.unread_report = fault.is_some();
        frame.copied = copies;
        Ok(())
    }

    /// Ends a submission and returns its ticket.
    pub(super) fn submit(&mut self) -> Result<Ticket> {
        let (frame, stream) = (&mut self.frames[self.current], self.stream.raw);
        self.gpu.call("submitting", || frame.complete.record(stream))?;
        frame.running = true;
        self.submissions += 1;
        frame.ticket = Ticket(self.submissions);
        Ok(frame.ticket)
    }
}
