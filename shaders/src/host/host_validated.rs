//! Validation of indices in inputs by the host, before a step. Data that are written at such indices need no backup
//! copy. Otherwise every step would copy a key-value cache, whose write position is such an index.

use std::collections::HashMap;

use meganeura_core::plan::{BufferRef, ExecutionPlan, HostIndices};
use meganeura_core::{Error, Result};

/// The indices that the host validates, and the contents of their inputs.
pub(super) struct HostValidated {
    /// Validated indices by segment, with the labels of their dispatches.
    segments: Vec<Vec<(HostIndices, String)>>,
    contents: HashMap<BufferRef, Vec<u8>>,
}

impl HostValidated {
    /// Creates the validation of a plan whose inputs are zeros.
    pub(super) fn of(plan: &ExecutionPlan) -> Self {
        let all = plan.host_indices();
        let zeros = |host_validated: &HostIndices| {
            (
                host_validated.buffer,
                vec![0; plan.buffers[host_validated.buffer.index()]],
            )
        };
        let labelled =
            |host_validated: &HostIndices| (*host_validated, plan.dispatches[host_validated.dispatch].label.clone());
        let segments = plan.segments.iter().map(|segment| {
            let own = all
                .iter()
                .filter(|host_validated| segment.range().contains(&host_validated.dispatch));
            let own = HostIndices::distinct(own.copied());
            own.iter().map(labelled).collect()
        });
        HostValidated {
            segments: segments.collect(),
            contents: all.iter().map(zeros).collect(),
        }
    }

    /// Records a write to a buffer. The write must be within the buffer.
    pub(super) fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) {
        if let Some(own) = self.contents.get_mut(&buffer) {
            own[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Returns true if the host validates the contents of a buffer.
    pub(super) fn holds(&self, buffer: BufferRef) -> bool {
        self.contents.contains_key(&buffer)
    }

    /// Validates the indices that the segments of a step read.
    ///
    /// # Errors
    /// An index is out of range.
    pub(super) fn check(&self, segments: &[usize]) -> Result<()> {
        for (host_validated, label) in segments.iter().filter_map(|&s| self.segments.get(s)).flatten() {
            let bytes = self.contents.get(&host_validated.buffer).map_or(&[][..], |bytes| bytes);
            if let Some(index) = host_validated.first_outside(bytes) {
                return Err(Error::IndexOutOfRange {
                    label: label.clone(),
                    index,
                    rows: host_validated.bound,
                });
            }
        }
        Ok(())
    }
}
