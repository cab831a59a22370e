//! The progress of a session: its counters and scalars, without its tensors.

use serde::{Deserialize, Serialize};

use super::Session;
use crate::error::{Error, Result};

/// Counters of a session. Together with parameters and states (including the optimizer's), they
/// determine the following steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Seed of random numbers in steps.
    pub seed: u32,
    /// Number of steps made.
    pub steps: u64,
    /// Description of the optimizer's update, if there is one: rule, clipping, parameter groups, accumulation.
    pub optimizer: Option<String>,
    /// Number of updates made by the optimizer.
    pub updates: u64,
    /// Number of steps since the last update whose gradients were accumulated.
    pub accumulated: u32,
    /// Scalars of the graph by name.
    pub scalars: Vec<(String, f64)>,
}

impl Session {
    /// Returns the progress. Steps count even if they were not awaited; [`Session::try_wait`]
    /// returns their faults.
    pub fn progress(&self) -> Progress {
        let counters = self.counters();
        let mut scalars: Vec<(String, f64)> = self.user_scalars.iter().map(|(n, v)| (n.clone(), *v)).collect();
        scalars.sort_by(|a, b| a.0.cmp(&b.0));
        Progress {
            seed: self.seed,
            steps: counters.steps,
            optimizer: self.optimizer.as_ref().and(self.attached.clone()),
            updates: counters.updates,
            accumulated: counters.accumulated,
            scalars,
        }
    }

    /// Sets the progress, as another session of the same plan returned it. Parameters and states must be set
    /// separately.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if the optimizer's update has another description, or a scalar does not exist; errors of
    /// the last step. The session is then unchanged.
    pub fn try_set_progress(&mut self, progress: &Progress) -> Result<()> {
        self.try_wait()?;
        self.settle();
        let own = self.progress().optimizer;
        if own != progress.optimizer {
            let word = |form: &Option<String>| form.clone().unwrap_or_else(|| "none".into());
            return Err(Error::misuse(
                format!(
                    "the optimizer is '{}', but the saved progress is of '{}'",
                    word(&own),
                    word(&progress.optimizer)
                ),
                "set the same optimizer first",
            ));
        }
        let known = |name: &str| self.plan.scalar_buffers.iter().any(|(n, _)| n == name);
        if let Some((name, _)) = progress.scalars.iter().find(|(name, _)| !known(name)) {
            return Err(Error::misuse(
                format!("the graph has no scalar '{name}'"),
                "continue with the graph of the saved progress",
            ));
        }
        self.seed = progress.seed;
        self.steps = progress.steps;
        self.user_scalars = progress.scalars.iter().cloned().collect();
        if let Some(active) = &mut self.optimizer {
            active.go_on(progress.updates, progress.accumulated);
        }
        Ok(())
    }
}
