//! Dependency levels: dispatches of one level may run at the same time.

use std::collections::HashMap;

use super::memory::MemoryLayout;
use super::{BufferRef, Dispatch, ExecutionPlan, Segment};

impl ExecutionPlan {
    /// Returns the plan with one segment for each level, and for each new segment the index of the original one. No
    /// buffers share memory, so that the results of a level can be inspected after it.
    pub(crate) fn by_levels(&self) -> (ExecutionPlan, Vec<usize>) {
        let mut plan = self.clone();
        plan.memory = MemoryLayout::default();
        plan.segments.clear();
        let mut origins = Vec::new();
        for (number, segment) in self.segments.iter().enumerate() {
            let mut first = segment.first;
            for level in self.dispatches[segment.range()].chunk_by(|a, b| a.level == b.level) {
                plan.segments.push(Segment {
                    name: format!("{} {}", segment.name, level[0].level),
                    first,
                    count: level.len(),
                    skip_if: segment.skip_if,
                    once: false,
                });
                first += level.len();
                origins.push(number);
            }
        }
        (plan, origins)
    }

    /// Returns the index of the first dispatch that does not belong to a segment yet.
    fn first_open(&self) -> usize {
        self.segments.last().map_or(0, |s| s.range().end)
    }

    /// Returns `true` if some dispatches do not belong to a segment yet.
    pub(super) fn has_open_dispatches(&self) -> bool {
        self.first_open() < self.dispatches.len()
    }

    /// Ends a segment: sorts the dispatches that belong to no segment yet into levels, and adds them as a segment.
    pub(super) fn end_segment(&mut self, name: &str, once: bool) {
        let first = self.first_open();
        let count = self.dispatches.len() - first;
        assign_levels(&mut self.dispatches[first..]);
        self.segments.push(Segment {
            name: name.to_owned(),
            first,
            count,
            skip_if: None,
            once,
        });
    }
}

/// Last accesses of a buffer while walking the dispatches in program order.
#[derive(Clone, Copy, Default)]
struct Access {
    /// One more than the level of the last write.
    after_write: u32,
    /// One more than the highest level of a read since then.
    after_reads: u32,
}

/// Sets each dispatch's level to the longest chain of hazards that leads to it, and sorts by level.
///
/// The dispatches come in program order. Hazards are over buffers: read after write, write after read,
/// write after write. The levels are those of Kahn's algorithm, which repeatedly removes all nodes
/// without remaining dependencies; walking in program order finds the same level in one pass,
/// because every hazard points forwards. Dispatches of a level keep their program order.
fn assign_levels(dispatches: &mut [Dispatch]) {
    let mut accesses: HashMap<BufferRef, Access> = HashMap::new();
    for d in dispatches.iter_mut() {
        let at = |b: &BufferRef, map: &HashMap<_, Access>| map.get(b).copied().unwrap_or_default();
        let reads = d.inputs.iter().map(|o| at(&o.buffer, &accesses).after_write);
        let writes = d.outputs.iter().map(|o| {
            let a = at(&o.buffer, &accesses);
            a.after_write.max(a.after_reads)
        });
        d.level = reads.chain(writes).max().unwrap_or(0);
        for o in &d.inputs {
            let a = accesses.entry(o.buffer).or_default();
            a.after_reads = a.after_reads.max(d.level + 1);
        }
        for o in &d.outputs {
            let a = accesses.entry(o.buffer).or_default();
            *a = Access {
                after_write: d.level + 1,
                after_reads: 0,
            };
        }
    }
    dispatches.sort_by_key(|d| d.level);
}

/// Finds two dispatches of one level that use the same buffer, if one of them writes it.
pub(super) fn find_conflict(dispatches: &[Dispatch]) -> Option<(usize, usize, BufferRef)> {
    let mut touched: HashMap<BufferRef, (usize, bool)> = HashMap::new();
    let mut level = None;
    for (i, d) in dispatches.iter().enumerate() {
        if level != Some(d.level) {
            touched.clear();
            level = Some(d.level);
        }
        let operands = d.inputs.iter().map(|o| (o.buffer, false));
        for (buffer, writes) in operands.chain(d.outputs.iter().map(|o| (o.buffer, true))) {
            match touched.get(&buffer) {
                Some(&(other, wrote)) if other != i && (wrote || writes) => {
                    return Some((other, i, buffer));
                }
                Some(&(other, wrote)) if other != i => {
                    touched.insert(buffer, (other, wrote));
                }
                _ => {
                    let wrote = touched.get(&buffer).is_some_and(|t| t.1);
                    touched.insert(buffer, (i, wrote || writes));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::Attrs;
    use crate::plan::{KernelRef, Operand};
    use crate::shape::{Shape, TensorType};

    fn dispatch(reads: &[u32], writes: &[u32]) -> Dispatch {
        let operands = |list: &[u32]| {
            list.iter()
                .map(|&b| Operand {
                    buffer: BufferRef(b),
                    ty: TensorType::f32(Shape::scalar()),
                })
                .collect()
        };
        Dispatch {
            kernel: KernelRef {
                name: "test".into(),
                version: 1,
            },
            attrs: Attrs::new(),
            inputs: operands(reads),
            outputs: operands(writes),
            level: 0,
            label: format!("{reads:?} {writes:?}"),
            source: None,
            use_coop: false,
            variant: None,
        }
    }

    #[test]
    fn independent_branches_share_a_level() {
        let mut d = vec![dispatch(&[0], &[1]), dispatch(&[0], &[2]), dispatch(&[1, 2], &[3])];
        assign_levels(&mut d);
        assert_eq!(d.iter().map(|d| d.level).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn writes_wait_for_earlier_reads_and_writes() {
        // read 0, overwrite 0 in place, read it again; a second writer of the same buffer comes later
        let mut d = vec![
            dispatch(&[0], &[1]),
            dispatch(&[0], &[0]),
            dispatch(&[0], &[2]),
            dispatch(&[], &[0]),
        ];
        assign_levels(&mut d);
        assert_eq!(d.iter().map(|d| d.level).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(find_conflict(&d), None);
    }

    #[test]
    fn conflicts_within_a_level_are_found() {
        let d = vec![dispatch(&[0], &[1]), dispatch(&[1], &[2])];
        assert_eq!(find_conflict(&d), Some((0, 1, BufferRef(1))));
        let d = vec![dispatch(&[0], &[1]), dispatch(&[0], &[2])];
        assert_eq!(find_conflict(&d), None);
    }
}
