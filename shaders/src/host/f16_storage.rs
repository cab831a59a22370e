//! Selection of the results that are stored as `f16`. All readers of such a result round every element to `f16`
//! anyway, as cooperative matrices do. Rounding when the result is written has the same effect and needs half the
//! bytes.
//!
//! The plan is not affected: its buffers are `f32` and keep their size. Only the generated kernels depend on this.

use std::collections::HashSet;
use std::rc::Rc;

use meganeura_core::DType;
use meganeura_core::plan::{BufferRef, ExecutionPlan};

use super::facts::Facts;

/// Returns the buffers of a plan that can be stored as `f16`. `facts` describes kernels that assume `f32` for all
/// buffers.
///
/// The set is empty if no buffers share memory. Such plans exist so that the contents of each buffer can be
/// inspected.
pub fn choose(plan: &ExecutionPlan, facts: &[Rc<Facts>]) -> HashSet<BufferRef> {
    if plan.memory.offsets.is_empty() || facts.iter().all(|kernels| kernels.rounded.is_empty()) {
        return HashSet::new();
    }
    let (mut written, mut others, mut rounded) = (HashSet::new(), HashSet::new(), HashSet::new());
    // These buffers are read outside of the step, by the host or by other plans.
    others.extend(plan.external());
    others.extend(plan.lse_buffers.iter().map(|(_, buffer)| *buffer));
    others.extend(plan.segments.iter().filter_map(|segment| segment.skip_if));
    for (dispatch, facts) in plan.dispatches.iter().zip(facts) {
        for (i, operand) in dispatch.inputs.iter().enumerate() {
            if facts.rounded.contains(&i) {
                rounded.insert(operand.buffer)
            } else {
                others.insert(operand.buffer)
            };
        }
        for output in &dispatch.outputs {
            // If a buffer is written twice, it may be read between the two writes.
            if !written.insert(output.buffer) || facts.is_custom || output.ty.dtype != DType::F32 {
                others.insert(output.buffer);
            }
        }
    }
    rounded.retain(|buffer| written.contains(buffer) && !others.contains(buffer));
    rounded
}
