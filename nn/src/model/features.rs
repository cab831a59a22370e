//! Examples for predictions.

use super::ModelError;
use crate::data::{Dataset, TableRows};

/// Examples without labels, in the original units of the training data: `f32`, `[len, shape...]`,
/// row-major, all finite. There may be none.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    name: String,
    values: Vec<f32>,
    shape: Vec<usize>,
}

impl Features {
    /// Takes values of shape `[len, shape...]`; `name` appears in errors.
    ///
    /// # Errors
    /// [`ModelError::Features`] for a shape that is empty or has a 0, values that are no whole number of examples, or
    /// values that are not finite.
    pub fn new(name: impl Into<String>, values: Vec<f32>, shape: impl Into<Vec<usize>>) -> Result<Self, ModelError> {
        let (name, shape) = (name.into(), shape.into());
        let refuse = |message: String| {
            Err(ModelError::Features {
                name: name.clone(),
                message,
            })
        };
        let width = shape.iter().try_fold(1_usize, |product, &d| product.checked_mul(d));
        let width = match width {
            Some(width) if width > 0 && !shape.is_empty() => width,
            _ => return refuse(format!("an example cannot have the shape {shape:?}")),
        };
        if !values.len().is_multiple_of(width) {
            let message = format!(
                "{} values are not a whole number of examples of {shape:?}",
                values.len()
            );
            return refuse(message);
        }
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            let (row, feature) = (at / width, at % width);
            return refuse(format!("feature {feature} of row {row} is {}", values[at]));
        }
        Ok(Features { name, values, shape })
    }

    /// Returns the origin of the examples.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of examples.
    pub fn len(&self) -> usize {
        self.values.len() / self.width().max(1)
    }

    /// Returns true if there are no examples.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the shape of one example.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns all values, `[len, shape...]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the number of values of one example.
    pub(super) fn width(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The features of a data set, which must not be standardised yet.
impl From<&Dataset> for Features {
    fn from(data: &Dataset) -> Self {
        // A data set has checked them.
        Features {
            name: data.name().to_owned(),
            values: data.features().to_vec(),
            shape: data.feature_shape().to_vec(),
        }
    }
}

/// The features of the rows of a table, in their order.
impl From<&TableRows> for Features {
    fn from(rows: &TableRows) -> Self {
        // There is at least one row, and all its numbers are finite.
        Features {
            name: rows.name.clone(),
            values: rows.features.clone(),
            shape: vec![rows.features.len() / rows.rows.len().max(1)],
        }
    }
}
