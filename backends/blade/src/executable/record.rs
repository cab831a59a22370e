//! Recording of the kernels of a step.

use blade_graphics as bg;
use meganeura_core::Result;
use meganeura_shaders::host::SavedRange;

use super::{BladeDriver, frame};
use crate::pipeline::{BoundLaunch, Scalars};
use crate::program::Phase;

impl BladeDriver {
    /// Records the kernels of a step. If the device is idle, the first kernels are submitted before all kernels are
    /// recorded.
    pub(super) fn record_step(&mut self, frame: usize, segments: &[usize]) -> Result<()> {
        let phases: Vec<&Phase> = segments
            .iter()
            .filter_map(|&s| self.segments.get(s))
            .flatten()
            .collect();
        // Short steps need no check for an idle device. Segments may be requested several times.
        let most = self.frames[frame].parts() - 1;
        let mut cuts = if most > 0 && self.is_idle()? {
            frame::cuts(phases.iter().map(|phase| phase.len()))
        } else {
            Vec::new()
        };
        cuts.truncate(most);
        let (frame, scalars) = (&mut self.frames[frame], &self.scalars);
        let ends = cuts.iter().copied().chain([phases.len()]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        self.gpu.guard("recording", |context| {
            for (start, end) in starts.zip(ends) {
                if start > 0 {
                    frame.submit_part(context);
                }
                let mut pass = frame.encoder().compute("step");
                for (i, phase) in phases[start..end].iter().enumerate() {
                    if i > 0 {
                        pass.barrier();
                    }
                    record_phase(&mut pass, phase, scalars);
                }
            }
        })
    }

    /// Returns `true` if all submissions are complete.
    pub(super) fn is_idle(&self) -> Result<bool> {
        let mut syncs = self.frames.iter().filter_map(|frame| frame.sync.as_ref());
        syncs.try_fold(true, |idle, sync| Ok(idle && frame::is_complete(&self.gpu, sync)?))
    }

    /// Records copies of the data that a rollback of the step restores.
    pub(super) fn record_save(&mut self, frame: usize, saved: &[SavedRange]) -> Result<()> {
        if saved.is_empty() {
            return Ok(());
        }
        let (frame, arena) = (&mut self.frames[frame], &self.arena);
        self.gpu.guard("recording", |_| {
            let mut pass = frame.transfer("save");
            for part in saved {
                pass.copy_buffer_to_buffer(arena.piece(part.own, 0), arena.piece(part.copy, 0), part.own.bytes);
            }
        })
    }
}

/// Records the launches of a phase, which may run at the same time.
pub(super) fn record_phase(pass: &mut bg::ComputeCommandEncoder, phase: &Phase, scalars: &Scalars) {
    for launch in phase {
        let mut pipeline = pass.with(&launch.pipeline.raw);
        let bound = &launch.bound;
        pipeline.bind(0, &BoundLaunch { bound, scalars });
        pipeline.dispatch(launch.groups);
    }
}
