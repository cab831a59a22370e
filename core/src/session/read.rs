//! Reading of a session's results, parameters and states.

use std::collections::BTreeSet;

use super::weights::listed;
use super::{Session, bytes_of_mut};
use crate::backend::Executable;
use crate::dtype::DType;
use crate::error::{Error, Result, TensorKind, unwrap_report};
use crate::host_memory;
use crate::plan::BufferRef;

impl Session {
    /// Reads the loss of the last step: the first output.
    ///
    /// # Errors
    /// A plan without outputs, or whose first output is not one `f32`; errors of the step.
    pub fn try_read_loss(&mut self) -> Result<f32> {
        let mut loss = [0.0];
        self.try_read_output_by_index(0, &mut loss)?;
        Ok(loss[0])
    }

    /// Calls [`Session::try_read_loss`], and panics on errors.
    #[track_caller]
    pub fn read_loss(&mut self) -> f32 {
        unwrap_report(self.try_read_loss())
    }

    /// Reads the first `len` elements of the first output.
    ///
    /// # Errors
    /// As [`Session::try_read_output_by_index`].
    pub fn try_read_output(&mut self, len: usize) -> Result<Vec<f32>> {
        let mut data = host_memory::filled("an output", len, 0.0)?;
        self.read_output_prefix(0, &mut data, true)?;
        Ok(data)
    }

    /// Calls [`Session::try_read_output`], and panics on errors.
    #[track_caller]
    pub fn read_output(&mut self, len: usize) -> Vec<f32> {
        unwrap_report(self.try_read_output(len))
    }

    /// Reads the whole output with this index.
    ///
    /// # Errors
    /// No such output, another number of elements or another dtype; errors of the step.
    pub fn try_read_output_by_index(&mut self, index: usize, data: &mut [f32]) -> Result<()> {
        self.read_output_prefix(index, data, false)
    }

    /// Reads the first elements of an output, as many as fit into `data`.
    ///
    /// # Errors
    /// As [`Session::try_read_output_by_index`]; an output with fewer elements.
    pub fn try_read_output_start(&mut self, index: usize, data: &mut [f32]) -> Result<()> {
        self.read_output_prefix(index, data, true)
    }

    /// Calls [`Session::try_read_output_by_index`], and panics on errors.
    #[track_caller]
    pub fn read_output_by_index(&mut self, index: usize, data: &mut [f32]) {
        unwrap_report(self.try_read_output_by_index(index, data));
    }

    /// Reads the whole output with this name, which
    /// [`Graph::set_named_outputs`](crate::Graph::set_named_outputs) assigned; unnamed outputs have
    /// their index as a name, from `"0"` on. Half precision is widened to `f32`.
    ///
    /// # Errors
    /// [`Error::UnknownTensor`] with the existing names; another dtype; no step made yet; errors of
    /// the step.
    pub fn try_read_output_named(&mut self, name: &str) -> Result<Vec<f32>> {
        let index = self.tensors.output_named(name)?;
        let len = self.tensors.output(index)?.ty.numel();
        let mut data = host_memory::filled(&format!("the output '{name}'"), len, 0.0)?;
        self.read_output_prefix(index, &mut data, false)?;
        Ok(data)
    }

    /// Calls [`Session::try_read_output_named`], and panics on errors.
    #[track_caller]
    pub fn read_output_named(&mut self, name: &str) -> Vec<f32> {
        unwrap_report(self.try_read_output_named(name))
    }

    /// Returns the index of the output with this name, for the methods that take an index.
    ///
    /// # Errors
    /// [`Error::UnknownTensor`] with the existing names.
    pub fn try_output_index(&self, name: &str) -> Result<usize> {
        self.tensors.output_named(name)
    }

    /// Reads the whole `u32` output with this index.
    ///
    /// # Errors
    /// As [`Session::try_read_output_by_index`].
    pub fn try_read_output_u32(&mut self, index: usize, data: &mut [u32]) -> Result<()> {
        let buffer = self.tensors.output(index)?.checked(DType::U32, data.len())?;
        self.check_stepped()?;
        self.fetch(buffer, bytes_of_mut(data))
    }

    /// Reads the storage bytes of the output with this index.
    ///
    /// # Errors
    /// No such output; no step made yet; errors of the step.
    pub fn try_read_output_bytes(&mut self, index: usize) -> Result<Vec<u8>> {
        let tensor = self.tensors.output(index)?;
        let (buffer, mut bytes) = (tensor.buffer, host_memory::filled("an output", tensor.ty.bytes(), 0)?);
        self.check_stepped()?;
        self.fetch(buffer, &mut bytes)?;
        Ok(bytes)
    }

    fn read_output_prefix(&mut self, index: usize, data: &mut [f32], prefix: bool) -> Result<()> {
        let tensor = self.tensors.output(index)?;
        let enough = prefix && data.len() <= tensor.ty.numel();
        let len = if enough { tensor.ty.numel() } else { data.len() };
        if tensor.ty.dtype.is_half() {
            let (dtype, buffer) = (tensor.ty.dtype, tensor.checked(tensor.ty.dtype, len)?);
            self.check_stepped()?;
            let mut bytes = host_memory::filled("an output", 2 * data.len(), 0)?;
            self.fetch(buffer, &mut bytes)?;
            for (value, pair) in data.iter_mut().zip(bytes.chunks_exact(2)) {
                let pair = [pair[0], pair[1]];
                *value = match dtype {
                    DType::F16 => half::f16::from_le_bytes(pair).to_f32(),
                    _ => half::bf16::from_le_bytes(pair).to_f32(),
                };
            }
            return Ok(());
        }
        let buffer = tensor.checked(DType::F32, len)?;
        self.check_stepped()?;
        self.fetch(buffer, bytes_of_mut(data))
    }

    /// Reads a buffer, after waiting for the last step.
    fn fetch(&mut self, buffer: BufferRef, bytes: &mut [u8]) -> Result<()> {
        let _read = tracing::debug_span!("read", bytes = bytes.len()).entered();
        let read = self.executable.read(buffer, 0, bytes);
        self.collect_passes();
        read
    }

    /// Returns an error before the first step, as there are no results yet.
    pub(super) fn check_stepped(&self) -> Result<()> {
        if self.counters().steps > 0 {
            return Ok(());
        }
        Err(Error::misuse(
            "the session has made no step yet, so there are no results",
            "call `step` first",
        ))
    }

    /// Reads a parameter.
    ///
    /// # Errors
    /// Unknown name; errors of the step.
    pub fn try_read_parameter(&mut self, name: &str) -> Result<Vec<f32>> {
        self.read_tensor(TensorKind::Parameter, name)
    }

    /// Reads a parameter of any dtype as storage bytes (little-endian).
    ///
    /// # Errors
    /// Unknown name; errors of the step.
    pub fn try_read_parameter_bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        let tensor = self.tensors.find(TensorKind::Parameter, name)?;
        let mut bytes = host_memory::filled(&format!("a copy of '{name}'"), tensor.ty.bytes(), 0)?;
        tensor.read(&mut *self.executable, &mut bytes)?;
        Ok(bytes)
    }

    /// Calls [`Session::try_read_parameter`], and panics on errors.
    #[track_caller]
    pub fn read_parameter(&mut self, name: &str) -> Vec<f32> {
        unwrap_report(self.try_read_parameter(name))
    }

    /// Reads the gradient of a parameter, or of an input marked by `require_grad`, in the last
    /// step.
    ///
    /// # Errors
    /// Unknown name, or one without a gradient; errors of the step.
    pub fn try_read_grad(&mut self, name: &str) -> Result<Vec<f32>> {
        self.tensors.find(TensorKind::Gradient, name)?;
        self.check_stepped()?;
        self.read_tensor(TensorKind::Gradient, name)
    }

    /// Calls [`Session::try_read_grad`], and panics on errors.
    #[track_caller]
    pub fn read_grad(&mut self, name: &str) -> Vec<f32> {
        unwrap_report(self.try_read_grad(name))
    }

    /// Reads persistent data that is not a parameter.
    ///
    /// # Errors
    /// Unknown name; errors of the step.
    pub fn try_read_state(&mut self, name: &str) -> Result<Vec<f32>> {
        self.read_tensor(TensorKind::State, name)
    }

    /// Calls [`Session::try_read_state`], and panics on errors.
    #[track_caller]
    pub fn read_state(&mut self, name: &str) -> Vec<f32> {
        unwrap_report(self.try_read_state(name))
    }

    fn read_tensor(&mut self, kind: TensorKind, name: &str) -> Result<Vec<f32>> {
        let tensor = self.tensors.find(kind, name)?;
        let len = tensor.ty.numel();
        tensor.checked(DType::F32, len)?;
        let mut data = host_memory::filled(&format!("a copy of '{name}'"), len, 0.0)?;
        tensor.read(&mut *self.executable, bytes_of_mut(&mut data))?;
        Ok(data)
    }

    /// Copies parameters and states (not the optimizer's) of the same names and types from another session,
    /// such as from a training to an evaluation session.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with both lists of names if both sessions have parameters, but no
    /// common name; a tensor of another size; errors of either device.
    pub fn try_copy_weights_from(&mut self, other: &mut Session) -> Result<()> {
        let names = |s: &Session| -> Vec<String> { s.plan.parameters().into_iter().map(|v| v.name).collect() };
        let (ours, theirs) = (names(self), names(other));
        let known: BTreeSet<&String> = theirs.iter().collect();
        let common: Vec<&String> = ours.iter().filter(|name| known.contains(name)).collect();
        if common.is_empty() && !ours.is_empty() && !theirs.is_empty() {
            return Err(Error::misuse(
                format!(
                    "no parameter has the same name in both sessions: {} here, {} in the other one",
                    listed(&ours),
                    listed(&theirs)
                ),
                "name the layers of both models alike, or use `try_weights` and `try_load_weights` with names of your own",
            ));
        }
        for name in common {
            let bytes = other.try_read_parameter_bytes(name)?;
            self.try_set_parameter_bytes(name, &bytes)?;
        }
        let own = |s: &Session| -> Vec<String> {
            let states = s.plan.state_buffers.iter().filter(|s| !s.optimizer);
            states.map(|s| s.name.clone()).collect()
        };
        let theirs = own(other);
        let states = own(self).into_iter().filter(|name| theirs.contains(name));
        for name in states {
            let data = other.try_read_state(&name)?;
            self.try_set_state(&name, &data)?;
        }
        Ok(())
    }
}
