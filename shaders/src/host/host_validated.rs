//! Indices that inputs hold, which the host looks at before a step: what they would spoil needs no copy to restore it
//! from. A key-value cache, whose place of writing is such an index, would be copied in every step.

use std::collections::HashMap;

use meganeura_core::plan::{BufferRef, ExecutionPlan, HostIndices};
use meganeura_core::{Error, Result};

/// What is looked at, and what the inputs hold.
pub struct HostValidated {
    /// By segment, with the labels of the dispatches.
    segments: Vec<Vec<(HostIndices, String)>>,
    contents: HashMap<BufferRef, Vec<u8>>,
}

impl HostValidated {
    /// Of a plan whose inputs are zeros.
    pub fn of(plan: &ExecutionPlan) -> Self {
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

    /// Notes what is written to a buffer, within it.
    pub fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) {
        if let Some(own) = self.contents.get_mut(&buffer) {
            own[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Whether the host looks at what a buffer holds.
    pub fn holds(&self, buffer: BufferRef) -> bool {
        self.contents.contains_key(&buffer)
    }

    /// Looks at what the segments of a step read.
    ///
    /// # Errors
    /// An index out of range.
    pub fn check(&self, segments: &[usize]) -> Result<()> {
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
