//! The loss scale of a session.

use super::Session;
use crate::error::{Result, unwrap_report};
use crate::loss_scaling::{SCALE_STATE, SKIPPED_STATE};

impl Session {
    /// The scale of gradients in the next step; `None` unless the session trains in mixed precision. It changes with
    /// updates: a session without an optimizer keeps its first one.
    ///
    /// # Errors
    /// Errors of the last step, which this waits for.
    pub fn try_loss_scale(&mut self) -> Result<Option<f32>> {
        self.scaling_state(SCALE_STATE)
    }

    /// [`Session::try_loss_scale`], panicking with its report.
    #[track_caller]
    pub fn loss_scale(&mut self) -> Option<f32> {
        unwrap_report(self.try_loss_scale())
    }

    /// Updates that were left out because a gradient was not finite, since an optimizer of this kind was set; 0 unless
    /// the session trains in mixed precision.
    ///
    /// # Errors
    /// Errors of the last step, which this waits for.
    pub fn try_skipped_updates(&mut self) -> Result<u64> {
        Ok(self.scaling_state(SKIPPED_STATE)?.map_or(0, |count| count as u64))
    }

    /// [`Session::try_skipped_updates`], panicking with its report.
    #[track_caller]
    pub fn skipped_updates(&mut self) -> u64 {
        unwrap_report(self.try_skipped_updates())
    }

    /// A state of loss scaling; `None` if the plan has none.
    fn scaling_state(&mut self, name: &str) -> Result<Option<f32>> {
        if !self.plan.state_buffers.iter().any(|s| s.name == name) {
            return Ok(None);
        }
        Ok(self.try_read_state(name)?.first().copied())
    }
}
