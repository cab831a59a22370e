//! Quality of predicted numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Errors of a regression on a data set, in the original units of the targets, over all examples and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegressionMetrics {
    /// Root of the mean squared error.
    pub rmse: f64,
    /// Mean absolute error.
    pub mae: f64,
    /// Coefficient of determination, the mean over the outputs: 1 for predictions without error, 0
    /// for a model that always predicts the mean, below 0 for worse ones. An output whose targets
    /// are all equal counts as 1 without errors, or else as 0.
    pub r2: f64,
}

impl RegressionMetrics {
    /// Computes the metrics from predictions and targets, both `[n, outputs]`. Without any, all
    /// numbers are NaN.
    pub fn of(predictions: &[f64], targets: &[f64], outputs: usize) -> Self {
        let outputs = outputs.max(1);
        let mut errors = Errors::new(targets.iter().copied(), outputs);
        for (prediction, target) in predictions.chunks_exact(outputs).zip(targets.chunks_exact(outputs)) {
            errors.add(prediction.iter().copied().zip(target.iter().copied()));
        }
        errors.finish()
    }
}

impl fmt::Display for RegressionMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RMSE {:.4}, MAE {:.4}, R² {:.4}", self.rmse, self.mae, self.r2)
    }
}

/// Sums of errors, example by example.
#[derive(Debug)]
pub(super) struct Errors {
    /// Mean of each output's targets.
    means: Vec<f64>,
    /// Squared errors of each output, and squared distances of its targets from their mean.
    squares: Vec<[f64; 2]>,
    absolute: f64,
    rows: usize,
}

impl Errors {
    /// Creates sums for these targets, row by row.
    pub(super) fn new(targets: impl Iterator<Item = f64>, outputs: usize) -> Self {
        let mut means = vec![0.0; outputs];
        let mut count = 0_usize;
        for (i, target) in targets.enumerate() {
            means[i % outputs] += target;
            count = i + 1;
        }
        let rows = (count / outputs).max(1) as f64;
        means.iter_mut().for_each(|sum| *sum /= rows);
        Errors {
            squares: vec![[0.0; 2]; outputs],
            means,
            absolute: 0.0,
            rows: 0,
        }
    }

    /// Adds the predictions and targets of an example.
    pub(super) fn add(&mut self, pairs: impl Iterator<Item = (f64, f64)>) {
        for ((prediction, target), (squares, mean)) in pairs.zip(self.squares.iter_mut().zip(&self.means)) {
            squares[0] += (prediction - target).powi(2);
            squares[1] += (target - mean).powi(2);
            self.absolute += (prediction - target).abs();
        }
        self.rows += 1;
    }

    /// Returns the sums, which can be added to the sums of other ranks.
    pub(super) fn sums(&self) -> Vec<f64> {
        let squares = self.squares.iter().flatten().copied();
        squares.chain([self.absolute, self.rows as f64]).collect()
    }

    /// Replaces the sums, in the form of [`sums`](Self::sums), and keeps the means.
    pub(super) fn with_sums(mut self, sums: &[f64]) -> Self {
        let (squares, rest) = sums.split_at(2 * self.squares.len());
        for (own, new) in self.squares.iter_mut().zip(squares.chunks_exact(2)) {
            own.copy_from_slice(new);
        }
        self.absolute = rest[0];
        self.rows = rest[1] as usize;
        self
    }

    pub(super) fn finish(&self) -> RegressionMetrics {
        let outputs = self.squares.len() as f64;
        let all = self.rows as f64 * outputs;
        let r2 = |&[error, total]: &[f64; 2]| {
            if total > 0.0 {
                1.0 - error / total
            } else {
                // Also if the sum is NaN.
                f64::from(u8::from(error == 0.0))
            }
        };
        RegressionMetrics {
            rmse: (self.squares.iter().map(|s| s[0]).sum::<f64>() / all).sqrt(),
            mae: self.absolute / all,
            r2: match self.rows {
                0 => f64::NAN,
                _ => self.squares.iter().map(r2).sum::<f64>() / outputs,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_match_hand_computed_values() {
        // The errors are 1, -1 and 2. The squared distances of the targets 1, 2 and 6 from their mean 3 are 4, 1 and 9.
        let metrics = RegressionMetrics::of(&[2.0, 1.0, 8.0], &[1.0, 2.0, 6.0], 1);
        assert!((metrics.rmse - 2f64.sqrt()).abs() < 1e-12);
        assert!((metrics.mae - 4.0 / 3.0).abs() < 1e-12);
        assert!((metrics.r2 - (1.0 - 6.0 / 14.0)).abs() < 1e-12);
        // Two outputs: R² of 1 - 6/14, and of 1.
        let metrics = RegressionMetrics::of(&[2.0, 5.0, 1.0, 6.0, 8.0, 7.0], &[1.0, 5.0, 2.0, 6.0, 6.0, 7.0], 2);
        assert!((metrics.rmse - 1.0).abs() < 1e-12 && (metrics.mae - 4.0 / 6.0).abs() < 1e-12);
        assert!((metrics.r2 - (2.0 - 6.0 / 14.0) / 2.0).abs() < 1e-12);
    }

    #[test]
    fn constant_targets_and_none() {
        assert_eq!(RegressionMetrics::of(&[5.0, 5.0], &[5.0, 5.0], 1).r2, 1.0);
        assert_eq!(RegressionMetrics::of(&[5.0, 6.0], &[5.0, 5.0], 1).r2, 0.0);
        let mean = RegressionMetrics::of(&[2.0, 2.0], &[1.0, 3.0], 1);
        assert_eq!((mean.r2, mean.rmse), (0.0, 1.0));
        let none = RegressionMetrics::of(&[], &[], 1);
        assert!(none.rmse.is_nan() && none.mae.is_nan() && none.r2.is_nan());
        assert_eq!(mean.to_string(), "RMSE 1.0000, MAE 1.0000, R² 0.0000");
    }
}
