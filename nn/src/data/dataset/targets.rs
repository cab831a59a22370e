//! Targets of regression examples, in place of labels.

use super::{Dataset, check_finite, shape_len};
use crate::data::{DataError, Standardiser};

/// The values that a regression predicts.
#[derive(Clone, PartialEq)]
pub(super) struct Targets {
    /// The values, `[n, outputs]`.
    values: Vec<f32>,
    /// Number of values per example, at least 1.
    outputs: usize,
    /// Standardiser of the values, if they were standardised.
    scale: Option<Standardiser>,
}

impl Targets {
    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.values.len() / self.outputs
    }

    /// Returns the values of one row.
    fn row(&self, row: usize) -> Option<&[f32]> {
        let start = row.checked_mul(self.outputs)?;
        self.values.get(start..start.checked_add(self.outputs)?)
    }

    /// Returns the targets of these rows, in this order.
    pub(super) fn subset(&self, rows: &[usize]) -> Self {
        Targets {
            values: rows
                .iter()
                .filter_map(|&row| self.row(row))
                .flatten()
                .copied()
                .collect(),
            outputs: self.outputs,
            scale: self.scale.clone(),
        }
    }
}

impl Dataset {
    /// Builds a data set for regression from `features` of shape `[n, feature_shape...]` and `targets` of shape
    /// `[n, outputs]`, both in row-major order. It has no labels, and 0 classes.
    ///
    /// # Errors
    ///
    /// [`DataError::Empty`] without targets, [`DataError::Targets`] for 0 outputs, targets that are no whole number
    /// of rows or not finite; and as for [`new`](Self::new).
    pub fn regression(
        name: impl Into<String>,
        features: Vec<f32>,
        feature_shape: Vec<usize>,
        targets: Vec<f32>,
        outputs: usize,
    ) -> Result<Self, DataError> {
        let name = name.into();
        let feature_len = shape_len(&name, &feature_shape)?;
        if targets.is_empty() {
            return Err(DataError::Empty { name });
        }
        if outputs == 0 || !targets.len().is_multiple_of(outputs) {
            let reason = format!(
                "{} values are not a whole number of rows with {outputs} outputs",
                targets.len()
            );
            return Err(DataError::Targets { name, reason });
        }
        let rows = targets.len() / outputs;
        let expected = rows.saturating_mul(feature_len);
        if features.len() != expected {
            return Err(DataError::LengthMismatch {
                name,
                labels: rows,
                shape: feature_shape,
                expected,
                found: features.len(),
            });
        }
        check_finite(&name, &features, feature_len)?;
        check_targets(&name, &targets, outputs)?;
        Ok(Self {
            name,
            features,
            feature_shape,
            labels: Vec::new(),
            classes: 0,
            targets: Some(Targets {
                values: targets,
                outputs,
                scale: None,
            }),
        })
    }

    /// Returns true if the examples have targets instead of labels.
    pub fn is_regression(&self) -> bool {
        self.targets.is_some()
    }

    /// Returns all targets of regression, `[len, outputs]`, row-major; none for classification.
    /// They are in the units of [`target_scale`](Self::target_scale) if there is one.
    pub fn targets(&self) -> &[f32] {
        self.targets.as_ref().map_or(&[], |t| &t.values)
    }

    /// Returns the number of targets of an example of regression; 0 for classification.
    pub fn outputs(&self) -> usize {
        self.targets.as_ref().map_or(0, |t| t.outputs)
    }

    /// Returns the standardiser that [`standardised_targets`](Self::standardised_targets) applied
    /// to the targets.
    pub fn target_scale(&self) -> Option<&Standardiser> {
        self.targets.as_ref()?.scale.as_ref()
    }

    /// Shifts and scales the targets of regression, for training. [`target_scale`](Self::target_scale) keeps the
    /// statistics, with which evaluations convert results back to the original units.
    ///
    /// # Errors
    ///
    /// [`DataError::Targets`] for classification, targets that were standardised before, statistics of another
    /// number of outputs, or a result that overflows `f32`.
    pub fn standardised_targets(mut self, scale: &Standardiser) -> Result<Self, DataError> {
        let refuse = |name: &str, reason: &str| {
            Err(DataError::Targets {
                name: name.into(),
                reason: reason.into(),
            })
        };
        let Some(targets) = &mut self.targets else {
            return refuse(&self.name, "the targets are classes, which cannot be standardised");
        };
        if targets.scale.is_some() {
            return refuse(&self.name, "they are standardised already");
        }
        if !scale.accepts(targets.outputs) {
            return refuse(&self.name, "the standardiser was fitted on another number of outputs");
        }
        for row in targets.values.chunks_exact_mut(targets.outputs) {
            scale.apply(row);
        }
        check_targets(&self.name, &targets.values, targets.outputs)?;
        targets.scale = Some(scale.clone());
        Ok(self)
    }

    /// Returns the targets of one example of regression, `[outputs]`; `None` past the end and for
    /// classification.
    pub fn target(&self, row: usize) -> Option<&[f32]> {
        self.targets.as_ref()?.row(row)
    }
}

/// Checks that all targets are finite.
fn check_targets(name: &str, targets: &[f32], outputs: usize) -> Result<(), DataError> {
    match targets.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => Err(DataError::Targets {
            name: name.into(),
            reason: format!(
                "target {} of row {} is {}; remove the row or replace the value",
                at % outputs,
                at / outputs,
                targets[at]
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Dataset {
        Dataset::regression(
            "r",
            vec![0.0, 1.0, 2.0],
            vec![1],
            vec![10.0, 1.0, 20.0, 1.0, 60.0, 1.0],
            2,
        )
        .unwrap()
    }

    #[test]
    fn targets_go_with_their_examples() {
        let data = data();
        assert_eq!((data.len(), data.outputs(), data.classes()), (3, 2, 0));
        assert!(data.labels().is_empty() && data.is_regression() && data.class_counts().is_empty());
        let part = data.subset(&[2, 0]).unwrap();
        assert_eq!(
            (part.features(), part.targets()),
            (&[2.0, 0.0][..], &[60.0, 1.0, 10.0, 1.0][..])
        );
        assert_eq!(part.target(1), Some(&[10.0, 1.0][..]));
        assert_eq!((part.target(2), part.target(usize::MAX)), (None, None));
        assert!(data.one_hot(&[0]).is_err() && data.example(3).is_none());
        let (train, test) = data.split(0.3, 0).unwrap();
        assert_eq!((train.targets().len(), test.targets().len()), (4, 2));
    }

    #[test]
    fn targets_are_standardised_once_and_restored() {
        let scale = Standardiser::fit_targets(&data());
        assert_eq!((scale.mean(), scale.std()[1]), (&[30.0, 1.0][..], 1.0));
        let scaled = data().standardised_targets(&scale).unwrap();
        assert!(scaled.targets().iter().step_by(2).sum::<f32>().abs() < 1e-6);
        assert!((scale.restore(0, scaled.targets()[4].into()) - 60.0).abs() < 1e-4);
        assert!(scaled.standardised_targets(&scale).is_err());
        let other = Standardiser::new(vec![0.0; 3], vec![1.0; 3]).unwrap();
        assert!(data().standardised_targets(&other).is_err());
    }

    #[test]
    fn targets_that_cannot_be_used_are_refused() {
        let make =
            |targets: &[f32], outputs| Dataset::regression("r", vec![0.0; 2], vec![1], targets.to_vec(), outputs);
        for (targets, outputs, part) in [
            (&[][..], 1, "no examples"),
            (&[1.0, 2.0], 0, "rows with 0 outputs"),
            (&[1.0, 2.0, 3.0], 2, "rows with 2 outputs"),
            (&[1.0], 1, "need 1"),
            (&[1.0, f32::NAN], 1, "target 0 of row 1 is NaN"),
        ] {
            let error = make(targets, outputs).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        for (mean, std) in [(0, 0), (1, 2)] {
            assert!(Standardiser::new(vec![0.0; mean], vec![1.0; std]).is_err());
        }
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(Standardiser::new(vec![0.0], vec![bad]).is_err());
        }
        assert!(Standardiser::new(vec![f32::NAN], vec![1.0]).is_err());
    }
}
