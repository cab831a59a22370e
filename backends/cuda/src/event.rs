//! CUDA events. An event is complete when all work that was enqueued before it is complete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::Result;

use crate::gpu::Gpu;

/// Maximum duration of polling for an event. Polling is faster than the wait function of the driver, which puts the
/// thread to sleep. Waking it takes tens of microseconds.
const POLL_TIME: Duration = Duration::from_millis(3);

/// A CUDA event.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: events of CUDA belong to their context. They are not bound to a thread.
unsafe impl Send for Event {}

impl Event {
    /// Creates an event, with a timestamp if `timed`.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn new(gpu: &Arc<Gpu>, timed: bool) -> Result<Self> {
        let flags = if timed {
            sys::CUevent_flags::CU_EVENT_DEFAULT
        } else {
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        let raw = gpu.call("making an event", || result::event::create(flags))?;
        Ok(Event { gpu: gpu.clone(), raw })
    }

    /// Returns the driver's handle. It is valid while this object lives.
    pub(crate) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Records the event after all enqueued work.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the event and the stream are valid.
        unsafe { result::event::record(self.raw, stream) }
    }

    /// Returns `true` if all work before the event is complete.
    ///
    /// # Errors
    /// Errors of the driver, which include errors of earlier kernels.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        self.gpu.call("waiting for the device", || {
            // SAFETY: the event is valid.
            match unsafe { result::event::query(self.raw) } {
                Ok(()) => Ok(true),
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// Waits until all work before the event is complete.
    ///
    /// # Errors
    /// As [`Event::is_complete`].
    pub(crate) fn wait(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < POLL_TIME {
            if self.is_complete()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        // SAFETY: the event is valid.
        self.gpu.call("waiting for the device", || unsafe {
            result::event::synchronize(self.raw)
        })
    }

    /// Returns the time from this event to a later one. Both events must be complete and have timestamps.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn until(&self, later: &Event) -> Result<Duration> {
        // SAFETY: both events are valid.
        let milliseconds = self.gpu.call("reading times", || unsafe {
            result::event::elapsed(self.raw, later.raw)
        })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the driver created the event, and keeps it until the enqueued work has used it.
        self.gpu.free(|| unsafe { result::event::destroy(self.raw) });
    }
}
