//! Waiting for submissions and reading their fault reports (see [`fault_in`]).

use meganeura_core::Result;

use super::BladeExecutable;
use meganeura_shaders::host::{FRAMES, fault_in, report_bytes};

impl BladeExecutable {
    /// Waits for the submission of a frame, and records its fault, if any. Older submissions must already be
    /// finished.
    pub(super) fn finish(&mut self, at: usize) -> Result<()> {
        self.wait_for(at)?;
        self.collect(at)?;
        if !std::mem::take(&mut self.frames[at].unread_report) {
            return Ok(());
        }
        let mut report = vec![0; self.report_bytes()];
        self.frames[at].download.read(0, &mut report);
        let Some(error) = fault_in(&report, &self.reporters) else {
            return Ok(());
        };
        self.faults.rolled_back += 1;
        // Later submissions have detected the fault and have done nothing.
        for later in (1..FRAMES).map(|i| (at + i) % FRAMES) {
            if self.frames[later].ticket > self.frames[at].ticket {
                self.wait_for(later)?;
                let is_step = std::mem::take(&mut self.frames[later].unread_report);
                self.faults.rolled_back += u64::from(is_step);
            }
        }
        // Discard results that were copied before the rollback.
        self.frames.iter_mut().for_each(|frame| frame.copied.clear());
        self.faults.to_undo = Some(at);
        self.faults.untold = Some(error);
        Ok(())
    }

    /// Waits for the submission of a frame.
    pub(super) fn wait_for(&mut self, at: usize) -> Result<()> {
        let Some(sync) = self.frames[at].sync.take() else {
            return Ok(());
        };
        self.patience.wait(&self.gpu, &sync)
    }

    /// Waits for all submissions, the oldest first.
    pub(super) fn finish_all(&mut self) -> Result<()> {
        (1..=FRAMES).try_for_each(|i| self.finish((self.current + i) % FRAMES))
    }

    /// Returns a recorded fault as an error, once.
    ///
    /// # Errors
    /// The recorded fault.
    pub(super) fn tell(&mut self) -> Result<()> {
        self.faults.untold.take().map_or(Ok(()), Err)
    }

    /// Returns the size of a fault report in bytes.
    pub(super) fn report_bytes(&self) -> usize {
        report_bytes(self.reporters.len())
    }
}
