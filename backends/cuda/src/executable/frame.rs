//! The resources of a submission, and how the host waits for it.

use std::sync::Arc;
use std::time::Duration;

use meganeura_core::Result;
use meganeura_core::backend::Ticket;

use crate::event::Event;
use crate::gpu::Gpu;
use crate::memory::HostMemory;

/// Resources of the submission of one step, or of a submission between steps.
pub(super) struct Frame {
    pub(super) upload: HostMemory,
    pub(super) download: HostMemory,
    /// Event at the end of the submission.
    pub(super) complete: Event,
    /// `true` if the submission is enqueued and the host has not waited for it yet.
    pub(super) running: bool,
    /// Ticket of the last measured step of this frame.
    pub(super) step: Ticket,
    /// Events before and after the launches of a step. They are created when the time of a step is measured for the
    /// first time.
    around: Option<[Event; 2]>,
    /// Segments of the step, and index of the graph whose time is measured; `None` if no time is measured.
    pub(super) compared: Option<(Vec<usize>, usize)>,
}

impl Frame {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Frame {
            upload: HostMemory::new(gpu),
            download: HostMemory::new(gpu),
            complete: Event::new(gpu, false)?,
            running: false,
            step: Ticket(0),
            around: None,
            compared: None,
        })
    }

    /// Returns the events to record before and after the launches of a step.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn around(&mut self, gpu: &Arc<Gpu>) -> Result<&[Event; 2]> {
        let events = match self.around.take() {
            Some(events) => events,
            None => [Event::new(gpu, true)?, Event::new(gpu, true)?],
        };
        Ok(self.around.insert(events))
    }

    /// Returns the segments and index of the measured graph, and its time. The submission must be complete.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn take_compared(&mut self) -> Result<Option<(Vec<usize>, usize, Duration)>> {
        let Some(((segments, number), [before, behind])) = self.compared.take().zip(self.around.as_ref()) else {
            return Ok(None);
        };
        Ok(Some((segments, number, before.until(behind)?)))
    }
}
