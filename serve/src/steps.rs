//! The interface of the threads that run a model's steps.

use meganeura_llm::engine::EngineCounts;

/// Thread that runs the steps of a model.
pub(crate) trait Steps: Send + Sync {
    /// Returns counters since the start of the thread.
    fn counts(&self) -> EngineCounts;

    /// Returns true for a short time after a failed step.
    fn is_failing(&self) -> bool;
}
