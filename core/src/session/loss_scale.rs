//! The loss scale of a session.

use super::Session;
use crate::error::{Result, unwrap_report};
use crate::loss_scaling::{SCALE_STATE, SKIPPED_STATE};

impl Session {
    /// Returns the scale of gradients in the next step; `None` unless the session trains in mixed precision. Only
    /// updates change it, so it is constant in a session without an optimizer.
    ///
    /// # Errors
    /// Errors of the last step, which this waits for.
    pub fn try_loss_scale(&mut self) -> Result<Option<f32>> {
        self.scaling_state(SCALE_STATE)
    }

    /// Calls [`Session::try_loss_scale`], and panics on errors.
    #[track_caller]
    pub fn loss_scale(&mut self) -> Option<f32> {
        unwrap_report(self.try_loss_scale())
    }

    /// Returns the number of updates that were skipped because a gradient was not finite, since an
    /// optimizer of this kind was set; 0 unless the session trains in mixed precision.
    ///
    /// # Errors
    /// Errors of the last step, which this waits for.
    pub fn try_skipped_updates(&mut self) -> Result<u64> {
        Ok(self.scaling_state(SKIPPED_STATE)?.map_or(0, |count| count as u64))
    }

    /// Calls [`Session::try_skipped_updates`], and panics on errors.
    #[track_caller]
    pub fn skipped_updates(&mut self) -> u64 {
        unwrap_report(self.try_skipped_updates())
    }

    /// Reads a state of loss scaling; `None` if the plan has none.
    fn scaling_state(&mut self, name: &str) -> Result<Option<f32>> {
        if !self.plan.state_buffers.iter().any(|s| s.name == name) {
            return Ok(None);
        }
        Ok(self.try_read_state(name)?.first().copied())
    }
}
