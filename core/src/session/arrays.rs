//! Upload of parameters and inputs as arrays whose shape is checked.

use super::{Session, Tensor};
use crate::error::{Error, Result, TensorKind, unwrap_report};

impl Session {
    /// Uploads an `f32` parameter from an array in row-major order, whose shape must be that of the
    /// parameter. [`Session::try_set_parameter`], in contrast, accepts any data with the right
    /// number of elements, even a transposed matrix.
    ///
    /// # Errors
    /// [`Error::WrongShape`], with a hint if the transposed array would fit; data with another
    /// number of elements than `shape`; as [`Session::try_set_parameter`].
    pub fn try_set_parameter_array(&mut self, name: &str, shape: &[usize], data: &[f32]) -> Result<()> {
        let tensor = self.tensors.find(TensorKind::Parameter, name)?;
        if tensor.ty.shape.dims() != shape {
            return Err(Error::WrongShape {
                kind: TensorKind::Parameter,
                name: name.to_owned(),
                shape: tensor.ty.shape.clone(),
                found: shape.to_vec(),
            });
        }
        self.try_set_parameter(name, data)
    }

    /// Sets an input from a tensor of any dtype, whose shape must be that of the input.
    ///
    /// # Errors
    /// [`Error::UnknownTensor`], [`Error::WrongShape`], [`Error::WrongDType`]; as [`Session::try_set_input_bytes`].
    pub fn try_set_input_tensor(&mut self, name: &str, data: &Tensor) -> Result<()> {
        let tensor = self.tensors.find(TensorKind::Input, name)?;
        let shape = &data.ty().shape;
        if tensor.ty.shape != *shape {
            return Err(Error::WrongShape {
                kind: TensorKind::Input,
                name: name.to_owned(),
                shape: tensor.ty.shape.clone(),
                found: shape.to_vec(),
            });
        }
        tensor.checked(data.ty().dtype, shape.numel())?;
        self.try_set_input_bytes(name, data.bytes())
    }

    /// Calls [`Session::try_set_parameter_array`], and panics on errors.
    #[track_caller]
    pub fn set_parameter_array(&mut self, name: &str, shape: &[usize], data: &[f32]) {
        unwrap_report(self.try_set_parameter_array(name, shape, data));
    }
}
