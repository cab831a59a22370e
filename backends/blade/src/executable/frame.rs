//! The resources of a submission, and how the host waits for it.

use std::time::{Duration, Instant};

use blade_graphics as bg;
use meganeura_core::Result;

use crate::gpu::Gpu;
use crate::memory::HostBuffer;
use crate::timing::{MeasuredSubmission, PassTag};

/// Number of launches in the first part of a step. The device starts this part before the whole step is recorded.
const FIRST_PART: usize = 24;
/// Ratio of the numbers of launches of successive parts. Recording a launch takes a third to a half of its time on
/// the device, so a part is recorded before the previous one completes.
const GROWTH: usize = 2;
/// Maximum duration of polling for a submission. Afterwards, the host uses the wait function of the driver.
const POLL_TIME: Duration = Duration::from_millis(3);

/// A command encoder that may move to another thread.
struct Encoder(bg::CommandEncoder);

// SAFETY: it exclusively owns everything that it points to. Mapped memory and driver objects are not bound to a
// thread, and the encoder is used only through exclusive references.
unsafe impl Send for Encoder {}

/// Resources of the submission of one step, or of a submission between steps.
pub(super) struct Frame {
    /// Encoders, one for each part of a step. Other submissions have one part.
    encoders: Vec<Encoder>,
    /// Index of the encoder that is recording.
    open: usize,
    /// `true` if the first encoder was already restarted, in order to read the times of its last submission.
    pub(super) started: bool,
    /// Labels of the passes of this submission, if the passes are measured.
    pub(super) measured: Option<MeasuredSubmission>,
    pub(super) upload: HostBuffer,
    pub(super) download: HostBuffer,
    /// Synchronization point of the last part.
    pub(super) sync: Option<bg::SyncPoint>,
    /// Number of the last submission. Later submissions have larger numbers.
    pub(super) submission: u64,
}

impl Frame {
    /// Creates a frame for plans of `launches` launches.
    pub(super) fn new(gpu: &std::sync::Arc<Gpu>, launches: usize) -> Result<Self> {
        let parts = 1 + cuts(std::iter::repeat_n(1, launches)).len();
        let encoder = |_| {
            // Each encoder has only one buffer, because restarting it reads the times of this buffer.
            gpu.guard("making a command encoder", |context| {
                Encoder(context.create_command_encoder(bg::CommandEncoderDesc {
                    name: "meganeura",
                    buffer_count: 1,
                    manual_barriers: false,
                }))
            })
        };
        Ok(Frame {
            encoders: (0..parts).map(encoder).collect::<Result<_>>()?,
            open: 0,
            started: false,
            measured: None,
            upload: HostBuffer::new(gpu, bg::Memory::Upload),
            download: HostBuffer::new(gpu, bg::Memory::Download),
            sync: None,
            submission: 0,
        })
    }

    /// Returns the encoder that is recording.
    pub(super) fn encoder(&mut self) -> &mut bg::CommandEncoder {
        &mut self.encoders[self.open].0
    }

    /// Begins a pass of copies. Its label appears in profiles.
    pub(super) fn transfer(&mut self, label: &str) -> bg::TransferCommandEncoder<'_> {
        if let Some(measured) = &mut self.measured {
            measured.tags.push(PassTag::transfer(label));
        }
        self.encoder().transfer(label)
    }

    /// Starts the first, empty part of a frame whose submissions are complete.
    pub(super) fn restart(&mut self) {
        self.open = 0;
        if !std::mem::take(&mut self.started) {
            self.encoder().start();
        }
    }

    /// Submits the recorded part, so that the device starts it, and begins the next part.
    pub(super) fn submit_part(&mut self, context: &bg::Context) {
        context.submit(self.encoder());
        self.open += 1;
        self.encoder().start();
    }

    /// Returns the maximum number of parts in steps of this frame.
    pub(super) fn parts(&self) -> usize {
        self.encoders.len()
    }

    /// Frees the driver objects of the frame.
    pub(super) fn free(&mut self, gpu: &Gpu) {
        for encoder in &mut self.encoders {
            gpu.free(|context| context.destroy_command_encoder(&mut encoder.0));
        }
    }
}

/// Returns the indices of the phases that begin a new part of a step. `phases` contains the number of launches of
/// each phase. Short steps, and short remainders, are not submitted separately.
pub(super) fn cuts(phases: impl Iterator<Item = usize> + Clone) -> Vec<usize> {
    let mut left: usize = phases.clone().sum();
    let (mut cuts, mut part, mut wanted) = (Vec::new(), 0, FIRST_PART);
    for (phase, launches) in phases.enumerate() {
        if part >= wanted && left >= wanted {
            cuts.push(phase);
            wanted *= GROWTH;
            part = 0;
        }
        part += launches;
        left -= launches;
    }
    cuts
}

/// Strategy for waiting. When the driver puts a thread to sleep, the thread takes tens of microseconds to wake up,
/// and its processor takes time to raise its clock. This is long compared with a short step. So the host polls if
/// submissions usually complete soon.
#[derive(Debug)]
pub(super) struct Patience {
    /// `true` if polling helps. It does not if the device is the host's processor, or if there is only one processor.
    may_ask: bool,
    soon: bool,
}

impl Patience {
    pub(super) fn new(software: bool) -> Self {
        let several = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        Patience {
            may_ask: several && !software,
            soon: true,
        }
    }

    /// Waits for a submission.
    ///
    /// # Errors
    /// A lost device.
    pub(super) fn wait(&mut self, gpu: &Gpu, sync: &bg::SyncPoint) -> Result<()> {
        let begun = Instant::now();
        while self.may_ask && self.soon && begun.elapsed() < POLL_TIME {
            if is_complete(gpu, sync)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let done = wait_for(gpu, sync, u32::MAX)?;
        self.soon = begun.elapsed() < POLL_TIME;
        if done {
            Ok(())
        } else {
            Err(gpu.lose("waiting ended early"))
        }
    }
}

/// Returns `true` if a submission is complete.
///
/// # Errors
/// A lost device.
pub(super) fn is_complete(gpu: &Gpu, sync: &bg::SyncPoint) -> Result<bool> {
    wait_for(gpu, sync, 0)
}

/// Waits for a submission for at most `milliseconds`. Returns `true` if it is complete.
fn wait_for(gpu: &Gpu, sync: &bg::SyncPoint, milliseconds: u32) -> Result<bool> {
    let done = gpu.guard("waiting", |context| context.wait_for(sync, milliseconds))?;
    done.map_err(|error| gpu.lose(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_step_grow_and_the_last_is_no_crumb() {
        let of = |launches: usize| cuts(std::iter::repeat_n(1, launches));
        assert_eq!(of(0), [0; 0]);
        assert_eq!(of(47), [0; 0]);
        assert_eq!(of(48), [24]);
        assert_eq!(of(333), [24, 72, 168]);
        // Phases are not split.
        assert_eq!(cuts([20, 20, 20, 30, 60, 10].into_iter()), [2, 4]);
        assert_eq!(cuts([1_000].into_iter()), [0; 0]);
    }
}
