//! How far a session has come, beside what its tensors hold.

use serde::{Deserialize, Serialize};

use super::Session;
use crate::error::{Error, Result};

/// Counters of a session. Together with parameters and states (the optimizer's included) they are all that the
/// following steps depend on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Seed of random numbers, as the steps see it.
    pub seed: u32,
    /// Steps made.
    pub steps: u64,
    /// Form of the optimizer's update, if there is one: rule, clipping, parameter groups, accumulation.
    pub optimizer: Option<String>,
    /// Updates made by the optimizer.
    pub updates: u64,
    /// Steps since the last update whose gradients were accumulated.
    pub accumulated: u32,
    /// Scalars of the graph by name.
    pub scalars: Vec<(String, f64)>,
}

impl Session {
    /// How far the session has come. Steps count that nobody has waited for; [`Session::try_wait`] says whether they met a
    /// fault.
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

    /// Goes on from where another session of the same plan had come to. Its parameters and states are to be set too.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] when the optimizer is of another form, or a scalar does not exist; errors of the last step.
    /// Nothing has changed then.
    pub fn try_set_progress(&mut self, progress: &Progress) -> Result<()> {
        self.try_wait()?;
        self.settle();
        let own = self.progress().optimizer;
        if own != progress.optimizer {
            let word = |form: &Option<String>| form.clone().unwrap_or_else(|| "none".into());
            return Err(Error::misuse(
                format!(
                    "the optimizer is '{}', but that of the progress was '{}'",
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
                "go on with the graph that the progress is of",
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
