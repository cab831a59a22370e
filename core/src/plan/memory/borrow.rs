//! Buffers whose contents are equal in several plans, and plans that use them in the memory of another executable.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::Result;
use crate::files::sha256;
use crate::plan::{BufferRef, Dispatch, ExecutionPlan, Operand, TensorView};

impl ExecutionPlan {
    /// Returns the buffers that no step changes, by a key of their contents: parameters, constants, states that are only
    /// read (such as the statistics of a batch norm in inference), and the values that are prepared from them. If two
    /// plans have a buffer of the same key, and their parameters and states of equal names have equal values, the buffers
    /// contain the same bytes.
    pub fn lasting_contents(&self) -> BTreeMap<String, BufferRef> {
        let (leaves, kept) = (self.lasting_leaves(), self.kept_between_steps());
        let lasting = self.lasting_keys().into_iter();
        let lasting = lasting.filter(|(buffer, _)| leaves.contains(buffer) || kept.contains(buffer));
        lasting.map(|(buffer, key)| (key, buffer)).collect()
    }

    /// Returns the key of each buffer whose contents depend only on parameters, states and constants that no step changes.
    fn lasting_keys(&self) -> HashMap<BufferRef, String> {
        // A buffer that is written twice has no unique contents.
        let mut writes: HashMap<BufferRef, usize> = HashMap::new();
        for output in self.dispatches.iter().flat_map(|d| &d.outputs) {
            *writes.entry(output.buffer).or_default() += 1;
        }
        let mut keys = HashMap::new();
        for (name, buffer) in &self.param_buffers {
            let packing = self
                .derived(*buffer)
                .map(|i| (&self.derived_params[i].1, self.derived_info[i].axis));
            let ty = &self.buffer_types[buffer.index()];
            keys.insert(*buffer, format!("parameter {name}: {ty} {packing:?}"));
        }
        for state in self.state_buffers.iter().filter(|s| !s.optimizer && s.packed.is_none()) {
            let ty = &self.buffer_types[state.buffer.index()];
            keys.insert(state.buffer, format!("state {}: {ty}", state.name));
        }
        for (buffer, data) in self.constants() {
            let ty = &self.buffer_types[buffer.index()];
            keys.insert(buffer, format!("constant {ty} {}", sha256([&data[..]])));
        }
        keys.retain(|buffer, _| !writes.contains_key(buffer));
        for dispatch in self.prepared_dispatches() {
            let Some(call) = call_key(dispatch, &keys) else {
                continue;
            };
            for (port, output) in dispatch.outputs.iter().enumerate() {
                if writes[&output.buffer] == 1 {
                    keys.insert(output.buffer, format!("result {port} of {call}"));
                }
            }
        }
        keys
    }

    /// Returns the states that no step writes.
    pub(crate) fn read_only_states(&self) -> Vec<TensorView> {
        let written = self.written_buffers();
        let views = self.states().into_iter();
        views.filter(|view| !written.contains(&view.buffer)).collect()
    }

    /// Moves these buffers to the memory of another executable, which has filled them. Their values are not prepared
    /// any more. The plan's own buffers are placed again.
    ///
    /// # Errors
    /// As [`ExecutionPlan::place_buffers`]; [`Error::InvalidPlan`](crate::Error::InvalidPlan) for a buffer that a step
    /// writes.
    pub fn borrow_buffers(&mut self, buffers: impl IntoIterator<Item = BufferRef>, limit: Option<u64>) -> Result<()> {
        let borrowed: HashSet<BufferRef> = buffers.into_iter().collect();
        self.remove_prepared(&borrowed);
        self.memory.borrowed = borrowed.into_iter().collect();
        self.memory.borrowed.sort_unstable();
        self.place_buffers(limit)?;
        self.verify()
    }

    /// Removes the dispatches of preparing segments that compute only borrowed buffers and operands of each other.
    fn remove_prepared(&mut self, borrowed: &HashSet<BufferRef>) {
        let mut needed: HashSet<BufferRef> = self.kept_between_steps();
        needed.extend(self.external());
        needed.retain(|buffer| !borrowed.contains(buffer));
        let mut keep = vec![true; self.dispatches.len()];
        for segment in self.segments.iter().filter(|s| s.once) {
            for index in segment.range().rev() {
                let dispatch = &self.dispatches[index];
                keep[index] = dispatch.outputs.iter().any(|o| needed.contains(&o.buffer));
                if keep[index] {
                    let read = dispatch.inputs.iter().map(|o| o.buffer);
                    needed.extend(read.filter(|b| !borrowed.contains(b)));
                }
            }
        }
        let mut first = 0;
        for segment in &mut self.segments {
            let count = segment.range().filter(|&i| keep[i]).count();
            (segment.first, segment.count) = (first, count);
            first += count;
        }
        let mut index = 0..;
        self.dispatches.retain(|_| index.next().is_some_and(|i| keep[i]));
        self.segments.retain(|s| !s.once || s.count > 0);
        self.recomputation = None;
    }
}

/// Returns a key of a call whose operands all have keys.
fn call_key(dispatch: &Dispatch, keys: &HashMap<BufferRef, String>) -> Option<String> {
    let mut text = format!(
        "{} {} {{{}}} {} {:?}",
        dispatch.kernel.name, dispatch.kernel.version, dispatch.attrs, dispatch.use_coop, dispatch.variant
    );
    for Operand { buffer, ty } in &dispatch.inputs {
        text += &format!("; {ty} {}", keys.get(buffer)?);
    }
    for output in &dispatch.outputs {
        text += &format!("; {}", output.ty);
    }
    Some(sha256([text.as_bytes()]))
}
