//! What belongs to the submissions of one step, and how they are waited for.

use std::time::{Duration, Instant};

use blade_graphics as bg;
use meganeura_core::Result;
use meganeura_core::backend::Ticket;

use crate::gpu::Gpu;
use crate::memory::HostBuffer;
use crate::timing::Measured;
use meganeura_shaders::host::Copy;

/// Launches of the first part of a step that the device begins before all of it is recorded.
const FIRST_PART: usize = 24;
/// How many times as many launches a part has as the one before: recording a launch takes a half to a third of the time that
/// the device needs for it, so a part is recorded before the one in front of it is done.
const GROWTH: usize = 2;
/// As long as this the host asks again and again whether a submission is complete.
const ASKING: Duration = Duration::from_millis(3);

/// An encoder that may move to another thread.
struct Encoder(bg::CommandEncoder);

// SAFETY: what it points to, mapped memory and objects of the driver, belongs to it alone and to no thread; it is used
// through exclusive references only.
unsafe impl Send for Encoder {}

/// What belongs to one step, or to what is submitted between steps.
pub(super) struct Frame {
    /// One for each part of a step; whatever is no step has one part.
    encoders: Vec<Encoder>,
    /// The one that records.
    open: usize,
    /// Whether the first was started already, to read the times of its last submission.
    pub(super) started: bool,
    /// The passes of its submission, where they are measured.
    pub(super) measured: Option<Measured>,
    pub(super) upload: HostBuffer,
    pub(super) download: HostBuffer,
    /// Results that are copied to `download`.
    pub(super) copied: Vec<Copy>,
    /// When the last part is complete.
    pub(super) sync: Option<bg::SyncPoint>,
    pub(super) ticket: Ticket,
    /// Whether `download` begins with a fault report that nobody has looked at.
    pub(super) unread_report: bool,
}

impl Frame {
    /// A frame for plans of so many launches.
    pub(super) fn new(gpu: &std::sync::Arc<Gpu>, launches: usize) -> Result<Self> {
        let parts = 1 + cuts(std::iter::repeat_n(1, launches)).len();
        let encoder = |_| {
            // Of one buffer, since times are read by starting anew.
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
            copied: Vec::new(),
            sync: None,
            ticket: Ticket(0),
            unread_report: false,
        })
    }

    /// The encoder that records.
    pub(super) fn encoder(&mut self) -> &mut bg::CommandEncoder {
        &mut self.encoders[self.open].0
    }

    /// The same, and the passes of a measured submission.
    pub(super) fn recorder(&mut self) -> (&mut bg::CommandEncoder, &mut Option<Measured>) {
        (&mut self.encoders[self.open].0, &mut self.measured)
    }

    /// Begins the first part, which nothing was recorded of, on a frame whose submissions are complete.
    pub(super) fn restart(&mut self) {
        self.open = 0;
        if !std::mem::take(&mut self.started) {
            self.encoder().start();
        }
    }

    /// Submits what is recorded, so that the device begins with it, and goes on with the next part.
    pub(super) fn submit_part(&mut self, context: &bg::Context) {
        context.submit(self.encoder());
        self.open += 1;
        self.encoder().start();
    }

    /// Parts that steps of this frame may have.
    pub(super) fn parts(&self) -> usize {
        self.encoders.len()
    }

    /// Frees what the driver has of it.
    pub(super) fn free(&mut self, gpu: &Gpu) {
        for encoder in &mut self.encoders {
            gpu.free(|context| context.destroy_command_encoder(&mut encoder.0));
        }
    }
}

/// Where a step is cut into parts, from the launches of each of its phases: the phases that begin a further part. Short steps,
/// and what is left at the end, are not worth a submission of their own.
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

/// How submissions are waited for. A thread that the driver puts to sleep needs tens of microseconds to go on, and its
/// processor to speed up again, which is much of a short step. So the host asks, again and again, as long as what it waits
/// for usually comes soon.
#[derive(Debug)]
pub(super) struct Patience {
    /// Whether asking helps: not where the host itself is the device, or has one processor.
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
        while self.may_ask && self.soon && begun.elapsed() < ASKING {
            if is_complete(gpu, sync)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let done = wait_for(gpu, sync, u32::MAX)?;
        self.soon = begun.elapsed() < ASKING;
        match done {
            true => Ok(()),
            false => Err(gpu.lose("waiting ended early")),
        }
    }
}

/// Whether a submission is complete.
///
/// # Errors
/// A lost device.
pub(super) fn is_complete(gpu: &Gpu, sync: &bg::SyncPoint) -> Result<bool> {
    wait_for(gpu, sync, 0)
}

/// Waits for a submission for so many milliseconds at most, and says whether it is complete.
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
        // Phases stay together.
        assert_eq!(cuts([20, 20, 20, 30, 60, 10].into_iter()), [2, 4]);
        assert_eq!(cuts([1_000].into_iter()), [0; 0]);
    }
}
