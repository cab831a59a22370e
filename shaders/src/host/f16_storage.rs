//! Selection of the results that are stored as `f16`. All readers of such a result round every element to `f16`
//! anyway, as cooperative matrices do. Rounding when the result is written has the same effect and needs half the
//! bytes. Readers may also add the elements to their own result, or select elements from them, if that result is
//! stored as `f16`: it is rounded anyway. A result that its writer rounds may have any readers.
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
    let (mut written, mut others, mut chosen) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut excluded, mut rounded_by_writer) = (HashSet::new(), HashSet::new());
    // These buffers are read outside of the step, by the host or by other plans.
    excluded.extend(plan.external());
    excluded.extend(plan.lse_buffers.iter().map(|(_, buffer)| *buffer));
    excluded.extend(plan.segments.iter().filter_map(|segment| segment.skip_if));
    // Pairs of an operand and the only result of its reader.
    let mut with_result = Vec::new();
    for (dispatch, facts) in plan.dispatches.iter().zip(facts) {
        for (i, operand) in dispatch.inputs.iter().enumerate() {
            if facts.is_custom {
                // Custom kernels read `f32`.
                excluded.insert(operand.buffer);
            }
            match &dispatch.outputs[..] {
                _ if facts.rounded.contains(&i) => _ = chosen.insert(operand.buffer),
                [output] if facts.rounded_with_result.contains(&i) => {
                    chosen.insert(operand.buffer);
                    with_result.push((operand.buffer, output.buffer));
                }
                _ => _ = others.insert(operand.buffer),
            }
        }
        for output in &dispatch.outputs {
            // If a buffer is written twice, it may be read between the two writes.
            if !written.insert(output.buffer) || facts.is_custom || output.ty.dtype != DType::F32 {
                excluded.insert(output.buffer);
            } else if facts.has_rounded_result {
                rounded_by_writer.insert(output.buffer);
            }
        }
    }
    chosen.retain(|buffer| written.contains(buffer) && !others.contains(buffer));
    chosen.extend(&rounded_by_writer);
    chosen.retain(|buffer| !excluded.contains(buffer));
    // A removed buffer may be the result that another one depends on.
    loop {
        let removed = with_result
            .iter()
            .filter(|(operand, result)| !chosen.contains(result) && !rounded_by_writer.contains(operand))
            .map(|(operand, _)| *operand);
        let removed: HashSet<BufferRef> = removed.filter(|operand| chosen.contains(operand)).collect();
        if removed.is_empty() {
            return chosen;
        }
        chosen.retain(|buffer| !removed.contains(buffer));
    }
}
