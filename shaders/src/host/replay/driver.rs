//! The interface of a GPU for [`Replay`].

use std::time::Duration;

use meganeura_core::Result;
use meganeura_core::backend::{DeviceBuffer, PassTiming, SharedBuffer, Ticket};

#[cfg(doc)]
use super::super::draft::{ExtraBuffers, FRAMES, LaunchPlan};
use super::super::faults::SavedRange;
use super::super::places::BufferLocation;
use super::super::transfers::Transfer;
#[cfg(doc)]
use super::{Executable, Replay};

/// The device operations that [`Replay`] needs.
///
/// At most [`FRAMES`] submissions are in flight. Each of them is a *frame*, with its own staging memory. A submission
/// is recorded by [`begin`](Driver::begin), then [`clear`](Driver::clear), [`launch`](Driver::launch) or
/// [`download`](Driver::download), and [`submit`](Driver::submit). Submissions run in their order. A frame begins
/// again only after [`wait`](Driver::wait).
pub trait Driver: Send {
    /// Name of the backend in errors.
    const NAME: &'static str;
    /// Number of scalars that the driver receives by [`Begin::scalars`]. Further scalars are written to the buffer
    /// [`ExtraBuffers::scalars`].
    const SCALARS: usize;

    /// Checks that the device was not lost in an earlier call.
    ///
    /// # Errors
    /// A lost device.
    fn check(&self) -> Result<()>;

    /// Returns the location of a buffer of the launch plan. `buffer` is an index in [`LaunchPlan::sizes`].
    fn place(&self, buffer: usize) -> Option<BufferLocation>;

    /// Returns the maximum number of bytes per copy between host and device. When the collected writes reach it, they
    /// are submitted without a step.
    fn staged(&self) -> usize;

    /// Starts a submission of a free frame. It first rolls back a step, then copies the writes of the host.
    ///
    /// # Errors
    /// Not enough memory; errors of the device.
    fn begin(&mut self, frame: usize, begin: Begin) -> Result<()>;

    /// Records writes of zeros to all buffers. If the driver has tables of its own, it writes them afterwards.
    ///
    /// # Errors
    /// Errors of the device.
    fn clear(&mut self, frame: usize) -> Result<()>;

    /// Records the launches of a step. It first copies the data that a rollback of the step restores.
    ///
    /// A driver may submit a measured step in parts. Returns the number of submissions before the current one.
    ///
    /// # Errors
    /// Errors of the device.
    fn launch(&mut self, frame: usize, step: &Step) -> Result<u64>;

    /// Records copies to the staging memory of the frame, of which `bytes` bytes are used.
    ///
    /// # Errors
    /// Not enough memory; errors of the device.
    fn download(&mut self, frame: usize, bytes: u64, copies: &[Transfer]) -> Result<()>;

    /// Submits the recorded work.
    ///
    /// # Errors
    /// Errors of the device.
    fn submit(&mut self, frame: usize) -> Result<()>;

    /// Waits for the last submission of a frame, and reads the times of its passes if they are measured. Does nothing
    /// if no submission is in flight.
    ///
    /// # Errors
    /// A lost device.
    fn wait(&mut self, frame: usize) -> Result<()>;

    /// Reads bytes of the staging memory to which a completed submission copied results.
    fn downloaded(&self, frame: usize, offset: u64, bytes: &mut [u8]);

    /// Returns the measured passes since the last call.
    fn take_timings(&mut self) -> Vec<PassTiming>;

    /// Returns the total time of the launches of a measured step. Returns `None` if it is not the last measured step.
    fn spent_on(&self, step: Ticket) -> Option<Duration>;

    /// Returns the address of a buffer. Returns `None` if the device has no addresses.
    fn device_buffer(&self, place: BufferLocation) -> Option<DeviceBuffer> {
        let _ = place;
        None
    }

    /// Returns a buffer for other executables. Returns `None` if the driver cannot share memory.
    fn lend(&self, place: BufferLocation) -> Option<SharedBuffer> {
        let _ = place;
        None
    }

    /// Implements [`Executable::signal_when_done`] for groups of locations. No submission is in flight.
    ///
    /// # Errors
    /// Errors of the device.
    fn signal_when_done(&mut self, groups: &[Vec<BufferLocation>]) -> Result<Option<Vec<u64>>> {
        let _ = groups;
        Ok(None)
    }
}

/// The work at the beginning of a submission.
pub struct Begin<'a> {
    /// Fault report to clear, and data to restore, if a step is rolled back.
    pub undo: Option<(BufferLocation, &'a [SavedRange])>,
    /// Data of the writes, to be copied to staging memory.
    pub bytes: &'a [u8],
    /// Writes of the host, in order. Their host offsets refer to `bytes`.
    pub writes: &'a [Transfer],
    /// The first scalars of the session, 4 bytes each, if they have changed since the last submission.
    pub scalars: Option<&'a [u8]>,
    /// `true` if the passes of this submission are measured.
    pub measured: bool,
}

/// A step to launch.
pub struct Step<'a> {
    /// Segments of the plan, in order.
    pub segments: &'a [usize],
    /// Data that a rollback of the step restores.
    pub saved: &'a [SavedRange],
    /// Ticket of the step if it is submitted as a whole. Each earlier part increases it by 1.
    pub ticket: Ticket,
    /// `true` if the passes of this step are measured.
    pub measured: bool,
}
