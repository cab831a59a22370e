//! Consistency of a plan, checked after compilation and before execution.

use super::{BufferRef, ExecutionPlan, PLAN_VERSION, levels};
use crate::error::{Error, Result};

impl ExecutionPlan {
    /// Checks versions, indices, sizes, segment bounds, levels and hazards.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] with the first inconsistency.
    pub fn verify(&self) -> Result<()> {
        if self.version != PLAN_VERSION {
            return Err(Error::plan(format!(
                "it has format version {}, this build reads {PLAN_VERSION}; compile it anew",
                self.version
            )));
        }
        if self.buffers.len() != self.buffer_types.len() || self.param_info.len() != self.param_buffers.len() {
            return Err(Error::plan("its tables have different lengths"));
        }
        self.verify_tables()?;
        self.verify_segments()?;
        for d in &self.dispatches {
            for operand in d.inputs.iter().chain(&d.outputs) {
                let bytes = self.size_of(operand.buffer, &d.label)?;
                if operand.ty.bytes() > bytes {
                    return Err(Error::plan(format!(
                        "{}: operand {} of type {} needs {} bytes, its buffer has {bytes}",
                        d.label,
                        operand.buffer,
                        operand.ty,
                        operand.ty.bytes()
                    )));
                }
            }
        }
        Ok(())
    }

    fn size_of(&self, buffer: BufferRef, user: &str) -> Result<usize> {
        self.buffers
            .get(buffer.index())
            .copied()
            .ok_or_else(|| Error::plan(format!("{user}: there is no buffer {buffer}")))
    }

    fn verify_tables(&self) -> Result<()> {
        let named = self.param_buffers.iter().chain(&self.input_buffers);
        for (name, buffer) in named.chain(&self.scalar_buffers).chain(&self.gradient_buffers) {
            self.size_of(*buffer, name)?;
        }
        for state in &self.state_buffers {
            self.size_of(state.buffer, &state.name)?;
        }
        for &(parameter, gradient) in &self.param_grad_pairs {
            let (p, g) = (
                self.size_of(parameter, "parameter and gradient")?,
                self.size_of(gradient, "parameter and gradient")?,
            );
            if p != g {
                return Err(Error::plan(format!("{parameter} has {p} bytes, its gradient {g}")));
            }
        }
        if self.output_buffers.len() != self.output_types.len() {
            return Err(Error::plan("outputs and their types differ in number"));
        }
        for (buffer, ty) in self.output_buffers.iter().zip(&self.output_types) {
            if ty.bytes() > self.size_of(*buffer, "outputs")? {
                return Err(Error::plan(format!("output {buffer} is smaller than its type {ty}")));
            }
        }
        for (buffer, data) in self.constants() {
            let bytes = self.size_of(buffer, "constants")?;
            if data.len() != bytes {
                return Err(Error::plan(format!(
                    "constant {buffer} has {} bytes of data for {bytes}",
                    data.len()
                )));
            }
        }
        Ok(())
    }

    fn verify_segments(&self) -> Result<()> {
        let mut next = 0;
        for segment in &self.segments {
            if segment.first != next || segment.count > self.dispatches.len() - next {
                return Err(Error::plan(format!("segment '{}' is out of bounds", segment.name)));
            }
            next += segment.count;
            let dispatches = &self.dispatches[segment.range()];
            if dispatches.windows(2).any(|w| w[0].level > w[1].level) {
                return Err(Error::plan(format!(
                    "segment '{}' is not sorted by level",
                    segment.name
                )));
            }
            if let Some((a, b, buffer)) = levels::find_conflict(dispatches) {
                return Err(Error::plan(format!(
                    "'{}' and '{}' are in one level, but one writes {buffer}, which the other uses",
                    dispatches[a].label, dispatches[b].label
                )));
            }
        }
        if next != self.dispatches.len() {
            return Err(Error::plan("some dispatches belong to no segment"));
        }
        Ok(())
    }
}
