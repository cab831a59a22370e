//! Execution of a single step of a plan, for the tests that select device features.

use meganeura_core::backend::{Executable, StepArgs};
use meganeura_core::{ExecutionPlan, Result};

/// A 32-bit word of a tensor.
pub type Word = [u8; 4];

/// Writes the inputs of an executable, runs a step and waits for it. `words` returns the contents of an input by
/// name. Returns the words of all outputs.
///
/// # Errors
/// The device fails.
pub fn run_once(
    executable: &mut dyn Executable,
    plan: &ExecutionPlan,
    words: impl Fn(&str) -> Vec<Word>,
) -> Result<Vec<Vec<Word>>> {
    for (name, buffer) in &plan.input_buffers {
        executable.write(*buffer, 0, words(name).as_flattened())?;
    }
    let ticket = executable.run(&StepArgs {
        segments: &[0],
        scalars: &[],
    })?;
    executable.wait(ticket)?;
    let outputs = plan.output_buffers.iter().map(|&buffer| {
        let mut bytes = vec![0; plan.buffers[buffer.index()]];
        executable.read(buffer, 0, &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.to_vec())
    });
    outputs.collect()
}
