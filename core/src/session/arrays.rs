//! Parameters as arrays with a shape, as other frameworks have them.

use super::Session;
use crate::error::{Error, Result, TensorKind, unwrap_report};

impl Session {
    /// Uploads an `f32` parameter from an array in row-major order, whose shape has to be the parameter's:
    /// [`Session::try_set_parameter`] takes any data with as many elements, that of a transposed matrix as well.
    ///
    /// # Errors
    /// [`Error::WrongShape`], also where the shape would fit transposed, which the error says; data with another number
    /// of elements than `shape`; as [`Session::try_set_parameter`].
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

    /// [`Session::try_set_parameter_array`], panicking with its report.
    #[track_caller]
    pub fn set_parameter_array(&mut self, name: &str, shape: &[usize], data: &[f32]) {
        unwrap_report(self.try_set_parameter_array(name, shape, data));
    }
}
