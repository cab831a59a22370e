//! What belongs to the submission of one step, and how it is waited for.

use std::sync::Arc;
use std::time::Duration;

use meganeura_core::Result;
use meganeura_core::backend::Ticket;
use meganeura_shaders::host::Copy;

use crate::event::Event;
use crate::gpu::Gpu;
use crate::memory::HostMemory;

/// What belongs to one step, or to what is submitted between steps.
pub(super) struct Frame {
    pub(super) upload: HostMemory,
    pub(super) download: HostMemory,
    /// Results that are copied to `download`.
    pub(super) copied: Vec<Copy>,
    /// When the submission is complete.
    pub(super) complete: Event,
    /// Whether that has been enqueued and not waited for.
    pub(super) running: bool,
    pub(super) ticket: Ticket,
    /// Events around the launches of a step, once there was one whose time is compared.
    around: Option<[Event; 2]>,
    /// The segments and the number of the graph whose time that is.
    pub(super) compared: Option<(Vec<usize>, usize)>,
    /// Whether `download` begins with a fault report that nobody has looked at.
    pub(super) unread_report: bool,
}

impl Frame {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Frame {
            upload: HostMemory::new(gpu),
            download: HostMemory::new(gpu),
            copied: Vec::new(),
            complete: Event::new(gpu, false)?,
            running: false,
            ticket: Ticket(0),
            around: None,
            compared: None,
            unread_report: false,
        })
    }

    /// Events for before and behind the launches of a step.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn around(&mut self, gpu: &Arc<Gpu>) -> Result<&[Event; 2]> {
        let events = match self.around.take() {
            Some(events) => events,
            None => [Event::new(gpu, true)?, Event::new(gpu, true)?],
        };
        Ok(self.around.insert(events))
    }

    /// The segments and the number of the graph that was measured, and its time. The submission is complete.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn take_compared(&mut self) -> Result<Option<(Vec<usize>, usize, Duration)>> {
        let Some(((segments, number), [before, behind])) = self.compared.take().zip(self.around.as_ref()) else {
            return Ok(None);
        };
        Ok(Some((segments, number, before.until(behind)?)))
    }
}
