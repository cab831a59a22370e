//! Copies between host and device.

use blade_graphics as bg;
use meganeura_core::Result;
use meganeura_core::plan::BufferRef;

use super::BladeExecutable;
use crate::timing::PassTag;
use meganeura_shaders::host::{Copy, MAX_EXPECTED, place_expected};

impl BladeExecutable {
    /// Records copies to the current frame's host memory.
    pub(super) fn record_downloads(&mut self, copies: Vec<Copy>, report: bool) -> Result<()> {
        let bytes = self.report_bytes() as u64;
        let end = copies.iter().map(|c| c.host + c.len).max().unwrap_or(0).max(bytes);
        let sources: Vec<bg::BufferPiece> = copies.iter().map(|c| self.piece(c)).collect::<Result<_>>()?;
        let fault = self.arena.place(self.extra.fault).filter(|_| report && bytes > 0);
        let fault = fault.map(|place| self.arena.piece(place, 0));
        if sources.is_empty() && fault.is_none() {
            return Ok(());
        }
        let frame = &mut self.frames[self.current];
        let target = frame.download.with_capacity(end)?;
        if let Some(measured) = &mut frame.measured {
            measured.tags.push(PassTag::transfer("download"));
        }
        let encoder = frame.encoder();
        self.gpu.guard("recording", |_| {
            let mut pass = encoder.transfer("download");
            if let Some(fault) = fault {
                pass.copy_buffer_to_buffer(fault, target.at(0), bytes);
            }
            for (copy, source) in copies.iter().zip(&sources) {
                pass.copy_buffer_to_buffer(*source, target.at(copy.host), copy.len);
            }
        })?;
        frame.unread_report = fault.is_some();
        frame.copied = copies;
        Ok(())
    }

    /// Returns copies of the expected reads to host memory, unless they need too much memory.
    pub(super) fn expected_copies(&mut self) -> Vec<Copy> {
        let first = self.report_bytes() as u64;
        place_expected(self.expected.drain(..), first)
    }

    /// Adds a write to the collected writes. It must be small enough to be staged.
    pub(super) fn write_piece(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.writes.add(buffer, offset, bytes, self.staged).is_err() {
            self.begin()?;
            self.submit()?;
            // A single piece always fits into empty writes.
            let _ = self.writes.add(buffer, offset, bytes, self.staged);
        }
        Ok(())
    }

    /// Reads a range that is small enough to be staged. All submissions must be finished.
    pub(super) fn read_piece(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut wanted = Copy {
            buffer,
            offset,
            len: bytes.len() as u64,
            host: 0,
        };
        if wanted.len <= MAX_EXPECTED && !self.expected.iter().any(|c| c.is_same(&wanted)) {
            self.expected.push(wanted);
        }
        let changed = self.writes.change(&wanted);
        let mut copied = self.frames[self.current].copied.iter();
        match copied.find(|c| c.is_same(&wanted)).filter(|_| !changed) {
            Some(copy) => wanted = *copy,
            None => {
                self.begin()?;
                self.record_downloads(vec![wanted], false)?;
                self.submit()?;
                self.finish(self.current)?;
            }
        }
        self.frames[self.current].download.read(wanted.host, bytes);
        Ok(())
    }
}
