//! What a submission enqueues beside the launches of its step.

use std::ffi::c_void;
use std::time::Instant;

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::Result;
use meganeura_core::backend::Ticket;
use meganeura_shaders::host::Copy;

use super::CudaExecutable;
use super::frame::Event;
use super::timing::{Measured, MeasuredGraph};
use crate::graph::Graph;

/// Enqueues a copy from memory of the host that the device reads by itself.
///
/// # Safety
/// `from` has so many bytes, which stay as they are until the copy is complete; `to` is a range of the device with as many.
unsafe fn copy_in(
    to: sys::CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: sys::CUstream,
) -> Result<(), DriverError> {
    // SAFETY: by the contract of this function.
    unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream) }.result()
}

impl CudaExecutable {
    /// Waits until the next frame is free, and begins its submission: first what undoes a faulty step, then the pending writes.
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
        let staged = match self.writes.bytes.is_empty() {
            true => None,
            false => Some(frame.upload.fill(&self.writes.bytes)?),
        };
        let (arena, stream) = (&self.arena, self.stream.raw);
        self.gpu.call("uploading", || {
            if let Some((frame, fault)) = undone {
                // SAFETY: the ranges are those of buffers; so are those below.
                unsafe { result::memset_d8_async(arena.address(fault, 0), 0, fault.bytes as usize, stream) }?;
                for part in &self.saved[frame] {
                    let (own, copy) = (arena.address(part.own, 0), arena.address(part.copy, 0));
                    // SAFETY: as above.
                    unsafe { result::memcpy_dtod_async(own, copy, part.own.bytes as usize, stream) }?;
                }
            }
            let Some(staged) = staged else { return Ok(()) };
            for (copy, target) in self.writes.copies.iter().zip(&targets) {
                // SAFETY: the frame's memory has these bytes, and stays until the frame is finished.
                unsafe { copy_in(*target, staged.byte_add(copy.host as usize), copy.len as usize, stream) }?;
            }
            if scalars {
                let len = self.scalars.bytes.len();
                let first = self.writes.bytes.len() - len;
                // The block that kernels bind, and the list that those read that need more.
                let block = len.min(super::SCALAR_BYTES);
                // SAFETY: as above.
                unsafe {
                    copy_in(
                        arena.address(self.extras.scalars, 0),
                        staged.byte_add(first),
                        block,
                        stream,
                    )
                }?;
                if let Some(all) = arena.place(self.extra.scalars).filter(|_| len > super::SCALAR_BYTES) {
                    // SAFETY: as above.
                    unsafe { copy_in(arena.address(all, 0), staged.byte_add(first), len, stream) }?;
                }
            }
            Ok(())
        })?;
        self.writes.clear();
        Ok(())
    }

    /// Enqueues copies of what the step may have to take back.
    pub(super) fn save(&mut self) -> Result<()> {
        let (arena, stream, saved) = (&self.arena, self.stream.raw, &self.saved[self.current]);
        self.gpu.call("saving", || {
            for part in saved {
                let (own, copy) = (arena.address(part.own, 0), arena.address(part.copy, 0));
                // SAFETY: the ranges are those of buffers.
                unsafe { result::memcpy_dtod_async(copy, own, part.own.bytes as usize, stream) }?;
            }
            Ok(())
        })
    }

    /// Enqueues the launches of a step with an event between phases.
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
            let graph = gpu.call("making a graph of a step", || {
                Graph::measured(&gpu, stream, &phases, &events)
            })?;
            self.measured.insert(key.clone(), MeasuredGraph { graph, events, tags });
        }
        if let Some(measured) = self.measured.get(&key) {
            gpu.call("launching a step", || measured.graph.launch(stream))?;
        }
        let step = Ticket(self.submissions + 1);
        self.profile.pending.push(Measured {
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
        self.gpu.call("downloading", || {
            if let Some(fault) = fault {
                // SAFETY: the frame's memory has room, and stays until the frame is finished; the range is that of a buffer.
                unsafe { sys::cuMemcpyDtoHAsync_v2(target, arena.address(fault, 0), bytes, stream) }.result()?;
            }
            for (copy, source) in copies.iter().zip(&sources) {
                // SAFETY: as above.
                let done = unsafe {
                    sys::cuMemcpyDtoHAsync_v2(target.byte_add(copy.host as usize), *source, copy.len as usize, stream)
                };
                done.result()?;
            }
            Ok(())
        })?;
        frame.unread_report = fault.is_some();
        frame.copied = copies;
        Ok(())
    }

    /// Ends a submission.
    pub(super) fn submit(&mut self) -> Result<Ticket> {
        let (frame, stream) = (&mut self.frames[self.current], self.stream.raw);
        self.gpu.call("submitting", || frame.complete.record(stream))?;
        frame.running = true;
        self.submissions += 1;
        frame.ticket = Ticket(self.submissions);
        Ok(frame.ticket)
    }
}
