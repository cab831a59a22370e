//! Results in `f16`: those of which everything that reads them rounds every element to `f16` in any case, as cooperative matrices
//! do. Rounding where they are written is the same arithmetic, of half as many bytes.
//!
//! The plan knows nothing of it: its buffers are of `f32`, and as large. Only kernels that are made for a plan know.

use std::collections::HashSet;
use std::rc::Rc;

use meganeura_core::DType;
use meganeura_core::plan::{BufferRef, ExecutionPlan};

use super::facts::Facts;

/// Buffers of a plan that can be in `f16`, for kernels that were made as if none were.
///
/// None where buffers do not share memory: such plans are made to look at what is in each.
pub fn choose(plan: &ExecutionPlan, facts: &[Rc<Facts>]) -> HashSet<BufferRef> {
    if plan.memory.offsets.is_empty() || facts.iter().all(|kernels| kernels.rounded.is_empty()) {
        return HashSet::new();
    }
    let (mut written, mut others, mut rounded) = (HashSet::new(), HashSet::new(), HashSet::new());
    // What is read from outside of the step: by the host, or by other plans.
    others.extend(plan.external());
    others.extend(plan.lse_buffers.iter().map(|(_, buffer)| *buffer));
    others.extend(plan.segments.iter().filter_map(|segment| segment.skip_if));
    for (dispatch, facts) in plan.dispatches.iter().zip(facts) {
        for (i, operand) in dispatch.inputs.iter().enumerate() {
            match facts.rounded.contains(&i) {
                true => rounded.insert(operand.buffer),
                false => others.insert(operand.buffer),
            };
        }
        for output in &dispatch.outputs {
            // Written twice, it may be read between.
            if !written.insert(output.buffer) || facts.is_custom || output.ty.dtype != DType::F32 {
                others.insert(output.buffer);
            }
        }
    }
    rounded.retain(|buffer| written.contains(buffer) && !others.contains(buffer));
    rounded
}
