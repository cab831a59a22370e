//! Consistency checks of a plan, after compilation and before execution.

use std::collections::HashSet;

use super::{BufferRef, Dispatch, ExecutionPlan, Operand, PLAN_VERSION, levels};
use crate::error::{Error, Result};
use crate::ops::Call;
use crate::ops::registered;

impl ExecutionPlan {
    /// Checks versions, indices, sizes, segment bounds, levels and hazards.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] with the first inconsistency.
    pub fn verify(&self) -> Result<()> {
        if self.version != PLAN_VERSION {
            return Err(Error::plan(format!(
                "it has format version {}, expected {PLAN_VERSION}; compile it again",
                self.version
            )));
        }
        if self.buffers.len() != self.buffer_types.len() || self.param_info.len() != self.param_buffers.len() {
            return Err(Error::plan("its tables have different lengths"));
        }
        for (i, (bytes, ty)) in self.buffers.iter().zip(&self.buffer_types).enumerate() {
            if *bytes != ty.bytes() {
                let wanted = ty.bytes();
                return Err(Error::plan(format!(
                    "buffer b{i} has {bytes} bytes, but {ty} takes {wanted}"
                )));
            }
        }
        self.verify_tables()?;
        self.verify_segments()?;
        self.verify_prepare()?;
        self.verify_memory()?;
        let repeated = self.recomputation.iter().flat_map(|r| &r.repeated);
        if let Some(index) = repeated.into_iter().find(|i| **i as usize >= self.dispatches.len()) {
            return Err(Error::plan(format!(
                "dispatch {index}, which is marked as recomputed, does not exist"
            )));
        }
        for d in &self.dispatches {
            if d.source.is_some() && self.source_of(d).is_none() {
                return Err(Error::plan(format!("{}: its source line is not in the table", d.label)));
            }
            verify_dispatch(d).map_err(|m| Error::plan(format!("{}: {m}", d.label)))?;
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
            .ok_or_else(|| Error::plan(format!("{user}: buffer {buffer} does not exist")))
    }

    fn verify_tables(&self) -> Result<()> {
        let named = self.param_buffers.iter().chain(&self.input_buffers);
        for (name, buffer) in named.chain(&self.scalar_buffers).chain(&self.gradient_buffers) {
            self.size_of(*buffer, name)?;
        }
        for state in &self.state_buffers {
            self.size_of(state.buffer, &state.name)?;
        }
        let others = self.loss_buffer.iter().chain(self.lse_buffers.iter().map(|(_, b)| b));
        for buffer in others {
            self.size_of(*buffer, "tables")?;
        }
        self.verify_packed()?;
        self.verify_names()?;
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
        let names: std::collections::BTreeSet<&String> = self.output_names.iter().collect();
        if names.len() != self.output_names.len() || ![0, self.output_buffers.len()].contains(&names.len()) {
            return Err(Error::plan("names of outputs are missing or repeated"));
        }
        for (buffer, ty) in self.output_buffers.iter().zip(&self.output_types) {
            if ty.bytes() > self.size_of(*buffer, "outputs")? {
                return Err(Error::plan(format!("output {buffer} is smaller than its type {ty}")));
            }
        }
        let floats = self.constant_buffers.iter().map(|(b, v)| (*b, size_of_val(&v[..])));
        for (buffer, len) in floats.chain(self.raw_constant_buffers.iter().map(|(b, v)| (*b, v.len()))) {
            let bytes = self.size_of(buffer, "constants")?;
            if len != bytes {
                return Err(Error::plan(format!(
                    "constant {buffer} has {len} bytes of data for {bytes}"
                )));
            }
        }
        Ok(())
    }

    /// Checks that the sources of each packed parameter fill it, and that buffers with the layout of a packed parameter
    /// have its size.
    fn verify_packed(&self) -> Result<()> {
        if self.derived_params.len() != self.derived_info.len() {
            return Err(Error::plan("its tables have different lengths"));
        }
        for (i, ((buffer, sources), info)) in self.derived_params.iter().zip(&self.derived_info).enumerate() {
            let Some(name) = self.parameter_name(*buffer) else {
                return Err(Error::plan(format!("{buffer} is packed, but is not a parameter")));
            };
            let whole = &self.buffer_types[buffer.index()];
            let sizes = sources.iter().map(|(_, size)| *size);
            let total = sizes.into_iter().try_fold(0usize, usize::checked_add);
            let fills = total.is_some() && total == whole.shape.get(info.axis).copied();
            if !fills || info.init.len() != sources.len() || self.sources(i).len() != sources.len() {
                return Err(Error::plan(format!(
                    "the packed parameter '{name}' of type {whole} is not filled by its sources {sources:?} along axis {}",
                    info.axis
                )));
            }
            if self.derived(*buffer) != Some(i) {
                return Err(Error::plan(format!("'{name}' is packed twice")));
            }
        }
        for state in &self.state_buffers {
            let Some(parameter) = state.packed else { continue };
            let name = self.derived(parameter).and_then(|_| self.parameter_name(parameter));
            let fits = name.is_some_and(|name| state.name.ends_with(name))
                && self.buffer_types[state.buffer.index()] == self.buffer_types[parameter.index()];
            if !fits {
                return Err(Error::plan(format!(
                    "the state '{}' does not have the layout of a packed parameter in {parameter}",
                    state.name
                )));
            }
        }
        Ok(())
    }

    /// Checks that the names of inputs, parameters, sources of packed parameters and states are
    /// unique.
    fn verify_names(&self) -> Result<()> {
        let mut seen = HashSet::new();
        let leaves = self.param_buffers.iter().chain(&self.input_buffers).map(|(n, _)| n);
        let sources = self.derived_params.iter().flat_map(|(_, s)| s.iter().map(|(n, _)| n));
        let states = self.state_buffers.iter().map(|s| &s.name);
        match leaves.chain(sources).chain(states).find(|name| !seen.insert(*name)) {
            None => Ok(()),
            Some(name) => Err(Error::plan(format!("two of its tensors are named '{name}'"))),
        }
    }

    fn verify_segments(&self) -> Result<()> {
        let mut next = 0;
        for segment in &self.segments {
            if segment.first != next || segment.count > self.dispatches.len() - next {
                return Err(Error::plan(format!("segment '{}' is out of bounds", segment.name)));
            }
            next += segment.count;
            if let Some(buffer) = segment.skip_if
                && self.size_of(buffer, &segment.name)? != size_of::<f32>()
            {
                return Err(Error::plan(format!(
                    "segment '{}' depends on more than one number",
                    segment.name
                )));
            }
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

/// Verifies a dispatch against its operator. Kernels rely on these checks, so that a plan from a
/// file cannot make them access memory outside of their operands.
fn verify_dispatch(d: &Dispatch) -> Result<(), String> {
    let op = registered::op(&d.kernel.name).ok_or_else(|| format!("there is no operator '{}'", d.kernel.name))?;
    if op.version() != d.kernel.version {
        return Err(format!(
            "it was compiled for version {} of '{}', this program has {}",
            d.kernel.version,
            d.kernel.name,
            op.version()
        ));
    }
    let [inputs, outputs] = d.types();
    op.arity().check(inputs.len())?;
    let inferred = op.infer(&Call {
        attrs: &d.attrs,
        inputs: &inputs,
        outputs: &[],
    })?;
    if inferred != outputs {
        return Err(format!("its results are listed as {outputs:?}, but are {inferred:?}"));
    }
    for (port, output) in d.outputs.iter().enumerate() {
        if d.outputs[..port].iter().any(|o| o.buffer == output.buffer) {
            return Err(format!("two of its results share {}", output.buffer));
        }
        // A result may only overwrite the operand that the operator writes. That buffer may also be
        // read as another operand, for instance as a gradient that is the parameter.
        let shares = |operand: &Operand| operand.buffer == output.buffer;
        let declared = op.writes().iter().any(|&(o, p)| p == port && shares(&d.inputs[o]));
        if d.inputs.iter().any(shares) && !declared {
            return Err(format!("a result overwrites its operand in {}", output.buffer));
        }
    }
    Ok(())
}
