//! Events of the device: what is enqueued before them is complete when they are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::Result;

use crate::gpu::Gpu;

/// As long as this the host asks again and again whether a submission is complete: a thread that the driver puts to sleep needs tens
/// of microseconds to go on.
const ASKING: Duration = Duration::from_millis(3);

/// An event of the device.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: events of CUDA belong to their context and to no thread.
unsafe impl Send for Event {}

impl Event {
    /// An event, with the time of the device where it is `timed`.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(gpu: &Arc<Gpu>, timed: bool) -> Result<Self> {
        let flags = match timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        let raw = gpu.call("making an event", || result::event::create(flags))?;
        Ok(Event { gpu: gpu.clone(), raw })
    }

    /// The event as the driver knows it, as long as this lives.
    pub(crate) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Records it behind what is enqueued.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: both are there.
        unsafe { result::event::record(self.raw, stream) }
    }

    /// Whether what is before it is complete.
    ///
    /// # Errors
    /// The driver's, such as the error of a kernel.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        self.gpu.call("waiting for the device", || {
            // SAFETY: it is there.
            match unsafe { result::event::query(self.raw) } {
                Ok(()) => Ok(true),
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// Waits until what is before it is complete.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn wait(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < ASKING {
            if self.is_complete()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        // SAFETY: it is there.
        self.gpu.call("waiting for the device", || unsafe {
            result::event::synchronize(self.raw)
        })
    }

    /// Time from this one to another, both of which are complete and timed.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn until(&self, later: &Event) -> Result<Duration> {
        // SAFETY: both are there.
        let milliseconds = self.gpu.call("reading times", || unsafe {
            result::event::elapsed(self.raw, later.raw)
        })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was made by the driver, which keeps it until what is enqueued is done with it.
        self.gpu.free(|| unsafe { result::event::destroy(self.raw) });
    }
}
