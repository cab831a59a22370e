//! Analysis of faults (errors that a kernel detects, such as an index out of range): the parameters and states that a
//! faulty step may already have changed.

use std::collections::{HashMap, HashSet};

use super::{BufferRef, Dispatch, ExecutionPlan};
use crate::ops::registered;

impl ExecutionPlan {
    /// Returns the parameters and states that a step writes before a fault is ruled out: at or
    /// before the level of the last dispatch that may fault. A backend that rolls back a faulty
    /// step saves these buffers; later writes need no copy.
    pub fn exposed_to_faults(&self, may_fault: &dyn Fn(usize) -> bool) -> Vec<BufferRef> {
        let positions = || {
            let segments = self.segments.iter().enumerate();
            segments.flat_map(|(s, segment)| segment.range().map(move |i| (i, (s, self.dispatches[i].level))))
        };
        let Some(last) = positions().filter(|(i, _)| may_fault(*i)).map(|(_, at)| at).max() else {
            return Vec::new();
        };
        let before = positions().filter(|(_, at)| *at <= last);
        let written: HashSet<BufferRef> = before
            .flat_map(|(i, _)| self.dispatches[i].outputs.iter().map(|o| o.buffer))
            .collect();
        let mut exposed: Vec<BufferRef> = self.persistent().filter(|b| written.contains(b)).collect();
        exposed.sort_unstable();
        exposed.dedup();
        exposed
    }

    /// Returns the parameters and states: the data that is kept between steps.
    pub fn persistent(&self) -> impl Iterator<Item = BufferRef> + '_ {
        let parameters = self.param_buffers.iter().map(|(_, b)| *b);
        parameters.chain(self.state_buffers.iter().map(|s| s.buffer))
    }
}

/// Indices that a dispatch reads from an input. As nothing changes them within the step, the host can check their range
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostIndices {
    /// Index of the dispatch.
    pub dispatch: usize,
    /// Buffer of the indices, an input.
    pub buffer: BufferRef,
    /// Number of indices, each a `u32`.
    pub count: usize,
    /// Exclusive upper bound.
    pub bound: usize,
}

impl HostIndices {
    /// Returns the first index in the buffer's bytes that is out of range.
    pub fn first_outside(&self, bytes: &[u8]) -> Option<u32> {
        /// Number of indices whose maximum is computed at a time, with vector instructions.
        const CHUNK_WORDS: usize = 1024;
        let (words, _) = bytes.as_chunks::<4>();
        let words = &words[..self.count.min(words.len())];
        let is_outside = |index: u32| index as usize >= self.bound;
        let largest = |words: &[[u8; 4]]| words.iter().fold(0, |most, &word| u32::from_le_bytes(word).max(most));
        let outside = words.chunks(CHUNK_WORDS).find(|words| is_outside(largest(words)))?;
        let mut indices = outside.iter().map(|&word| u32::from_le_bytes(word));
        indices.find(|&index| is_outside(index))
    }

    /// Keeps one of all entries with the same buffer, count and bound. Such entries occur if several dispatches read
    /// the same indices, as in all layers of a model.
    pub fn distinct(all: impl IntoIterator<Item = HostIndices>) -> Vec<HostIndices> {
        let mut found: Vec<HostIndices> = Vec::new();
        for own in all {
            let is_same =
                |other: &HostIndices| (other.buffer, other.count, other.bound) == (own.buffer, own.count, own.bound);
            if !found.iter().any(is_same) {
                found.push(own);
            }
        }
        found
    }
}

impl ExecutionPlan {
    /// Returns the indices in inputs, for backends that check them before anything is written: such
    /// dispatches cannot fault, so fewer buffers are [exposed](Self::exposed_to_faults).
    pub fn host_indices(&self) -> Vec<HostIndices> {
        let is_input = |buffer| self.input_buffers.iter().any(|(_, b)| *b == buffer);
        let fed = |(dispatch, d): (usize, &Dispatch)| {
            let (operand, bound) = d.index_operand()?;
            let indices = d.inputs.get(operand).filter(|o| is_input(o.buffer))?;
            Some(HostIndices {
                dispatch,
                buffer: indices.buffer,
                count: indices.ty.numel(),
                bound,
            })
        };
        self.dispatches.iter().enumerate().filter_map(fed).collect()
    }
}

impl ExecutionPlan {
    /// Returns the dispatches whose indices are below their bound for any inputs, because an operator such as `core.top_k`
    /// computes them: such dispatches cannot fault. The router of a mixture of experts computes such indices.
    pub fn proven_indices(&self) -> HashSet<usize> {
        let mut proven = HashSet::new();
        for segment in &self.segments {
            // Bounds of the values in buffers that contain indices at this point of the step.
            let mut bounds: HashMap<BufferRef, usize> = HashMap::new();
            for i in segment.range() {
                let dispatch = &self.dispatches[i];
                if let Some((operand, bound)) = dispatch.index_operand()
                    && let Some(read) = dispatch.inputs.get(operand)
                    && bounds.get(&read.buffer).is_some_and(|&known| known <= bound)
                {
                    proven.insert(i);
                }
                let result = dispatch.index_result();
                for (port, output) in dispatch.outputs.iter().enumerate() {
                    match result.filter(|(own, _)| *own == port) {
                        Some((_, bound)) => bounds.insert(output.buffer, bound),
                        None => bounds.remove(&output.buffer),
                    };
                }
            }
        }
        proven
    }
}

impl Dispatch {
    /// Returns the exclusive upper bound of indices that the dispatch reads, if its operator reads
    /// any.
    pub fn index_bound(&self) -> Option<usize> {
        self.index_operand().map(|(_, bound)| bound)
    }

    /// Returns the port with indices that the dispatch computes, and their exclusive upper bound.
    fn index_result(&self) -> Option<(usize, usize)> {
        let types = self.types();
        registered::op(&self.kernel.name)?.index_result(&self.kernel_desc(&types).call())
    }

    /// Returns the operand that contains indices, and their exclusive upper bound.
    pub fn index_operand(&self) -> Option<(usize, usize)> {
        let types = self.types();
        registered::op(&self.kernel.name)?.index_bound(&self.kernel_desc(&types).call())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;

    #[test]
    fn the_first_index_out_of_range_is_found() {
        let indices = |count| HostIndices {
            dispatch: 0,
            buffer: BufferRef(0),
            count,
            bound: 50,
        };
        let mut words: Vec<u32> = (0..5000).map(|i| i % 50).collect();
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(indices(5000).first_outside(&bytes(&words)), None);
        (words[1500], words[1499], words[4999]) = (51, 50, u32::MAX);
        assert_eq!(indices(5000).first_outside(&bytes(&words)), Some(50));
        assert_eq!(indices(1500).first_outside(&bytes(&words)), Some(50));
        assert_eq!(indices(1499).first_outside(&bytes(&words)), None);
        // If the buffer is shorter, only the existing indices are checked.
        assert_eq!(indices(9000).first_outside(&bytes(&words[1501..])), Some(u32::MAX));
        assert_eq!(
            HostIndices::distinct([indices(3), indices(4), indices(3)]),
            [indices(3), indices(4)]
        );
    }
    use crate::plan::try_compile;

    /// Indices of `top_k` are in range of an axis of the same size, so that a state that is written before is not exposed.
    #[test]
    fn computed_indices_are_proven() {
        let faults = |experts: usize| {
            let mut g = Graph::new();
            let x = g.input("x", &[3, 8]);
            let state = g.state("cache", &[3, 8]);
            let doubled = g.add(x, x);
            let written = g.assign(state, doubled);
            let chosen = g.top_k(written, -1, 2);
            let indices = g.port(chosen, 1);
            let table = g.input("table", &[experts, 4]);
            let rows = g.gather(table, indices);
            g.set_outputs(vec![rows]);
            let plan = try_compile(&g).expect("a plan");
            let proven = plan.proven_indices();
            let reads = |i: usize| !proven.contains(&i) && plan.dispatches[i].index_bound().is_some();
            plan.exposed_to_faults(&reads).len()
        };
        assert_eq!((faults(8), faults(9), faults(7)), (0, 0, 1));
    }

    /// A state that is written before an index is read is exposed to its fault; a state that is written after it is
    /// not.
    #[test]
    fn what_is_written_before_the_last_fault_is_exposed() {
        let mut g = Graph::new();
        let x = g.input("x", &[4]);
        let [early, late, unrelated] = ["early", "late", "unrelated"].map(|name| g.state(name, &[4]));
        let doubled = g.add(x, x);
        let written = g.assign(early, doubled);
        let scaled = g.mul(written, x);
        let ids = g.input_u32("ids", &[4]);
        let row = g.gather(scaled, ids);
        g.assign(late, row);
        let y = g.add(row, unrelated);
        g.set_outputs(vec![y]);
        let plan = try_compile(&g).expect("a plan");
        let state = |name: &str| {
            plan.state_buffers
                .iter()
                .find(|s| s.name == name)
                .expect("a state")
                .buffer
        };
        let reads = |i: usize| plan.dispatches[i].index_bound().is_some();
        assert_eq!(
            plan.dispatches
                .iter()
                .filter_map(Dispatch::index_bound)
                .collect::<Vec<_>>(),
            [4]
        );
        let exposed = plan.exposed_to_faults(&reads);
        assert!(exposed.contains(&state("early")), "{exposed:?}\n{plan}");
        assert!(!exposed.contains(&state("unrelated")), "{exposed:?}\n{plan}");
        assert_eq!(plan.exposed_to_faults(&|_| false), []);
        let all = plan.exposed_to_faults(&|_| true);
        assert_eq!(all.len(), 2, "{all:?}\n{plan}");
    }
}
