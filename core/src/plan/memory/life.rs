//! When buffers are needed.

use crate::plan::{BufferRef, ExecutionPlan};

/// Levels of a step in which a buffer is needed, both included. Levels are counted through all segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The level that writes it first.
    pub first: usize,
    /// The last level that uses it.
    pub last: usize,
}

/// What the dispatches do with a buffer.
#[derive(Clone, Copy)]
struct Uses {
    segment: usize,
    life: Lifetime,
    /// Whether it is used in several segments, of which a step may leave some out, or read before it is written.
    persists: bool,
}

impl ExecutionPlan {
    /// Lifetime of each buffer; `None` for one that holds something between steps, or that nothing writes.
    ///
    /// Levels are those of all segments one after the other, as in a step that leaves none out.
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
                // Reads first: what is updated in place had contents before.
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

    /// Buffers that somebody outside of the step fills or reads.
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
