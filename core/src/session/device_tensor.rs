//! Access to tensors in device memory, for other code that runs on the same device.

use super::Session;
use crate::backend::DeviceBuffer;
use crate::error::{Error, Result, TensorKind};
use crate::plan::BufferRef;
use crate::shape::TensorType;

/// A tensor of a session in device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Buffer of the tensor, row-major and dense.
    pub buffer: DeviceBuffer,
    /// Dtype and shape.
    pub ty: TensorType,
}

impl Session {
    /// Returns the location of an input in device memory, so that code for the same device can
    /// write it without a copy: a host pointer on the CPU, a device pointer on CUDA. It stays valid
    /// for the lifetime of the session. The input counts as set from now on.
    ///
    /// Writes must be complete, or enqueued in [`DeviceBuffer::stream`], before the next step, and
    /// must not overlap with an earlier step that may still read the input.
    ///
    /// # Errors
    /// Unknown name; a device that does not support it
    /// ([`Executable::device_buffer`](crate::backend::Executable::device_buffer)); an input with
    /// indices on a device whose host checks them before a step.
    pub fn try_input_on_device(&mut self, name: &str) -> Result<DeviceTensor> {
        let tensor = self.tensors.find(TensorKind::Input, name)?;
        let (buffer, ty) = (tensor.buffer, tensor.ty.clone());
        let tensor = self.on_device(buffer, ty, &format!("input '{name}'"))?;
        self.tensors.mark_set(name);
        Ok(tensor)
    }

    /// Returns the location of an output in device memory. It contains the results of the last
    /// step, in the order of [`DeviceBuffer::stream`] or after [`Session::wait`], until the next
    /// step.
    ///
    /// # Errors
    /// No such output; a device that does not support it.
    pub fn try_output_on_device(&mut self, index: usize) -> Result<DeviceTensor> {
        let tensor = self.tensors.output(index)?;
        let (buffer, ty) = (tensor.buffer, tensor.ty.clone());
        self.on_device(buffer, ty, &format!("output {index}"))
    }

    fn on_device(&mut self, buffer: BufferRef, ty: TensorType, what: &str) -> Result<DeviceTensor> {
        use crate::backend::Executable as _;
        let found = self.executable.device_buffer(buffer)?;
        let buffer = found.ok_or_else(|| {
            Error::misuse(
                format!(
                    "{} does not expose the memory of {what}",
                    self.device.capabilities().name
                ),
                "copy the data with the methods that set inputs and read outputs",
            )
        })?;
        Ok(DeviceTensor { buffer, ty })
    }
}
