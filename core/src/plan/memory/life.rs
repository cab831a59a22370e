//! Lifetimes of buffers.

use crate::plan::{BufferRef, ExecutionPlan};

/// Range of the levels of a step that need a buffer. Levels are numbered through all segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The level that writes the buffer first.
    pub first: usize,
    /// The last level that uses the buffer.
    pub last: usize,
}

/// Summary of the dispatches that use a buffer.
#[derive(Clone, Copy)]
struct Uses {
    segment: usize,
    life: Lifetime,
    /// `true` if several segments use the buffer, of which a step may skip some, or if it is read
    /// before it is written.
    persists: bool,
}

impl ExecutionPlan {
    /// Returns the lifetime of each buffer; `None` if it persists between steps, or is never written.
    ///
    /// Levels are those of all segments one after the other, as in a step that skips none.
    pub fn lifetimes(&self) -> Vec<Option<Lifetime>> {
        let mut uses: Vec<Option<Uses>> = vec![None; self.buffers.len()];
        let mut start = 0;
        for (segment, range) in self.segments.iter().map(|s| s.range()).enumerate() {
            for d in &self.dispatches[range] {
                let level = start + d.level as usize;
                let mut note = |buffer: BufferRef, reads: bool| {
                    let Some(slot) = uses.get_mut(buffer.index()) else {
                        return;
                    };
                    let used = slot.get_or_insert(Uses {
                        segment,
                        life: Lifetime {
                            first: level,
                            last: level,
                        },
                        persists: reads,
                    });
                    used.persists |= used.segment != segment;
                    used.life.last = used.life.last.max(level);
                };
                // Reads first: a buffer that is updated in place had contents before.
                d.inputs.iter().for_each(|o| note(o.buffer, true));
                d.outputs.iter().for_each(|o| note(o.buffer, false));
            }
            start += self.levels(&self.segments[segment]);
        }
        for buffer in self.external() {
            if let Some(slot) = uses.get_mut(buffer.index()) {
                *slot = None;
            }
        }
        let life = |used: Option<Uses>| used.filter(|u| !u.persists).map(|u| u.life);
        uses.into_iter().map(life).collect()
    }

    /// Returns the buffers that are written before the step or read after it.
    pub fn external(&self) -> impl Iterator<Item = BufferRef> + '_ {
        let named = self.param_buffers.iter().chain(&self.input_buffers);
        let named = named.chain(&self.scalar_buffers).chain(&self.gradient_buffers);
        let constants = self.constant_buffers.iter().map(|(b, _)| *b);
        let raw = self.raw_constant_buffers.iter().map(|(b, _)| *b);
        let trained = self.param_grad_pairs.iter().flat_map(|&(p, g)| [p, g]);
        let states = self.state_buffers.iter().map(|s| s.buffer);
        let results = self.output_buffers.iter().chain(&self.loss_buffer).copied();
        let all = named.map(|(_, b)| *b).chain(constants).chain(raw);
        all.chain(trained).chain(states).chain(results)
    }
}
