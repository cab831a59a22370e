//! Summary of a session's memory.

use std::fmt;

use crate::plan::ExecutionPlan;
use crate::plan::optimizer::is_moment;

/// Sizes of a session's buffers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySummary {
    /// Bytes of all buffers; shared memory is counted once.
    pub total_buffer_bytes: usize,
    /// Bytes of the optimizer's moments (for Adam both, twice the size of the parameters), without
    /// accumulated gradients and their norm.
    pub adam_state_bytes: usize,
    /// Number of buffers.
    pub num_buffers: usize,
    /// Size of the largest buffer.
    pub largest_buffer_bytes: usize,
}

impl MemorySummary {
    pub(super) fn of(plan: &ExecutionPlan) -> Self {
        let moments = plan.state_buffers.iter().filter(|s| s.optimizer && is_moment(&s.name));
        MemorySummary {
            total_buffer_bytes: plan.memory_forecast().planned,
            adam_state_bytes: moments.map(|s| plan.buffers[s.buffer.index()]).sum(),
            num_buffers: plan.buffers.len(),
            largest_buffer_bytes: plan.buffers.iter().copied().max().unwrap_or(0),
        }
    }
}

impl fmt::Display for MemorySummary {
    /// Writes `42 buffers, 128.4 MB total (64.2 MB adam state), largest 32.0 MB`, in units of 10^6
    /// bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: usize| bytes as f64 / 1e6;
        write!(
            f,
            "{} buffers, {:.1} MB total ({:.1} MB adam state), largest {:.1} MB",
            self.num_buffers,
            mb(self.total_buffer_bytes),
            mb(self.adam_state_bytes),
            mb(self.largest_buffer_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_documented() {
        let summary = MemorySummary {
            total_buffer_bytes: 128_400_000,
            adam_state_bytes: 64_200_000,
            num_buffers: 42,
            largest_buffer_bytes: 32_000_000,
        };
        assert_eq!(
            summary.to_string(),
            "42 buffers, 128.4 MB total (64.2 MB adam state), largest 32.0 MB"
        );
    }
}
