//! Tensors in the memory of the device, for other code of that device.

use super::Session;
use crate::backend::DeviceBuffer;
use crate::error::{Error, Result, TensorKind};
use crate::plan::BufferRef;
use crate::shape::TensorType;

/// A tensor of a session in the memory of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Where it is, row-major, without gaps.
    pub buffer: DeviceBuffer,
    /// Dtype and shape.
    pub ty: TensorType,
}

impl Session {
    /// Where an input is in the memory of the device, for code of the same device that writes it without a copy: a pointer of the host
    /// on the CPU, a device pointer on CUDA. It stays there as long as the session. The input counts as set from now on.
    ///
    /// Whoever writes there has to be done, or enqueued in [`DeviceBuffer::stream`], before the next step, and must not write while a
    /// step that was submitted before may read.
    ///
    /// # Errors
    /// Unknown name; a device that does not tell ([`Executable::device_buffer`](crate::backend::Executable::device_buffer)); an input
    /// with indices on a device whose host checks them before a step.
    pub fn try_input_on_device(&mut self, name: &str) -> Result<DeviceTensor> {
        let tensor = self.tensors.find(TensorKind::Input, name)?;
        let (buffer, ty) = (tensor.buffer, tensor.ty.clone());
        let tensor = self.on_device(buffer, ty, &format!("input '{name}'"))?;
        self.tensors.mark_set(name);
        Ok(tensor)
    }

    /// Where the output of that index is in the memory of the device. Its contents are those of the last step, in the order of
    /// [`DeviceBuffer::stream`] or after [`Session::wait`], until the next step.
    ///
    /// # Errors
    /// No such output; a device that does not tell.
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
                    "{} does not tell where {what} is in its memory",
                    self.device.capabilities().name
                ),
                "copy it with the methods that set inputs and read outputs",
            )
        })?;
        Ok(DeviceTensor { buffer, ty })
    }
}
