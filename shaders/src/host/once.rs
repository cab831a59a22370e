//! One step of a plan, as the tests make that decide what of a device is used.

use meganeura_core::backend::{Executable, StepArgs};
use meganeura_core::{ExecutionPlan, Result};

/// A number of 32 bits of a tensor.
pub type Word = [u8; 4];

/// Feeds an executable of a plan, makes a step and waits for it; `words` are the contents of an input by its name. Returns
/// the words of all outputs.
///
/// # Errors
/// A device that fails.
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
