//! Features with mean 0 and standard deviation 1.

use serde::{Deserialize, Serialize};

use meganeura_core::{Graph, NodeId};

use super::{dataset::Dataset, error::DataError};

/// The mean and standard deviation of the features of a training set.
///
/// Fit it on the training part and apply it to the training and the test part
/// with [`Dataset::standardised`], so that both get the same transformation:
///
/// ```
/// use meganeura_nn::data::{Standardiser, digits_split};
///
/// # fn main() -> Result<(), meganeura_nn::data::DataError> {
/// let (train, test) = digits_split()?;
/// let standardiser = Standardiser::fit_global(&train);
/// let train = train.standardised(&standardiser)?;
/// let test = test.standardised(&standardiser)?;
/// # assert_eq!((train.len(), test.len()), (1437, 360));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Values", into = "Values")]
pub struct Standardiser {
    // Both hold one value (global) or one per feature. `std` is never 0.
    mean: Vec<f32>,
    std: Vec<f32>,
}

/// A [`Standardiser`] in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Values {
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl TryFrom<Values> for Standardiser {
    type Error = DataError;

    fn try_from(values: Values) -> Result<Self, DataError> {
        Standardiser::new(values.mean, values.std)
    }
}

impl From<Standardiser> for Values {
    fn from(Standardiser { mean, std }: Standardiser) -> Self {
        Values { mean, std }
    }
}

impl Standardiser {
    /// Creates a standardiser from known means and standard deviations: one of each, or one per
    /// feature.
    ///
    /// # Errors
    ///
    /// [`DataError::Standardiser`] if there are none, their numbers differ, a mean is not finite,
    /// or a deviation is not a finite number above 0.
    pub fn new(mean: Vec<f32>, std: Vec<f32>) -> Result<Self, DataError> {
        let refuse = |reason: String| Err(DataError::Standardiser { reason });
        if mean.is_empty() || mean.len() != std.len() {
            return refuse(format!("{} means and {} deviations", mean.len(), std.len()));
        }
        if let Some(at) = mean.iter().position(|v| !v.is_finite()) {
            return refuse(format!("mean {at} is {}, not a finite number", mean[at]));
        }
        if let Some(at) = std.iter().position(|v| !v.is_finite() || *v <= 0.0) {
            return refuse(format!("deviation {at} is {}, not a finite number above 0", std[at]));
        }
        Ok(Self { mean, std })
    }

    /// Fits a mean and deviation for each target of a regression data set, over its targets in their current units. For
    /// a classification data set, which has no targets, returns an identity.
    pub fn fit_targets(data: &Dataset) -> Self {
        match data.outputs() {
            0 => Self {
                mean: vec![0.0],
                std: vec![1.0],
            },
            outputs => Self::fit(data.targets(), outputs),
        }
    }

    /// Converts the value of one feature or target from standardised to original units.
    pub fn restore(&self, feature: usize, value: f64) -> f64 {
        let at = feature % self.mean.len();
        value * f64::from(self.std[at]) + f64::from(self.mean[at])
    }

    /// Fits one mean and deviation over all features of all examples.
    ///
    /// The usual choice for images: their border pixels hardly ever vary, so statistics of each pixel would scale them
    /// up.
    pub fn fit_global(data: &Dataset) -> Self {
        Self::fit(data.features(), 1)
    }

    /// Fits a mean and deviation for each of the [`feature_len`](Dataset::feature_len) features.
    ///
    /// The usual choice for tables, whose columns have different units.
    pub fn fit_per_feature(data: &Dataset) -> Self {
        Self::fit(data.features(), data.feature_len())
    }

    /// Returns the means that are subtracted: one, or one per feature.
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// Returns the population standard deviations that values are divided by: one, or one per
    /// feature. 1 if the feature does not vary.
    pub fn std(&self) -> &[f32] {
        &self.std
    }

    /// Adds mean and deviation as constants to a graph, in the shape of an example of
    /// `x [batch, features...]`.
    fn constants(&self, graph: &mut Graph, x: NodeId) -> [NodeId; 2] {
        let shape = match self.mean.len() {
            1 => Vec::new(),
            _ => graph.shape(x).get(1..).unwrap_or_default().to_vec(),
        };
        [&self.mean, &self.std].map(|values| graph.constant(values.clone(), &shape))
    }

    /// Transforms `x [batch, features...]` in a graph.
    pub fn standardise_in(&self, graph: &mut Graph, x: NodeId) -> NodeId {
        let [mean, std] = self.constants(graph, x);
        let centred = graph.sub(x, mean);
        graph.div(centred, std)
    }

    /// Applies the inverse of [`Standardiser::standardise_in`] in a graph.
    pub fn restore_in(&self, graph: &mut Graph, x: NodeId) -> NodeId {
        let [mean, std] = self.constants(graph, x);
        let scaled = graph.mul(x, std);
        graph.add(scaled, mean)
    }

    /// Returns true if examples of `width` features can be transformed.
    pub(crate) fn accepts(&self, width: usize) -> bool {
        self.mean.len() == 1 || self.mean.len() == width
    }

    /// Transforms one example in place.
    pub(crate) fn apply(&self, row: &mut [f32]) {
        // `cycle` repeats the single global pair, and is a no-op otherwise.
        let pairs = self.mean.iter().zip(&self.std).cycle();
        for (value, (&mean, &std)) in row.iter_mut().zip(pairs) {
            // In f64, whose range covers the difference of any two f32 values.
            *value = ((f64::from(*value) - f64::from(mean)) / f64::from(std)) as f32;
        }
    }

    /// Computes the statistics in two passes in `f64`: subtracting the mean first preserves small deviations of large
    /// values.
    fn fit(features: &[f32], width: usize) -> Self {
        let rows = (features.len() / width) as f64;
        let mut mean = vec![0.0_f64; width];
        for row in features.chunks_exact(width) {
            for (sum, &value) in mean.iter_mut().zip(row) {
                *sum += f64::from(value);
            }
        }
        mean.iter_mut().for_each(|sum| *sum /= rows);

        let mut variance = vec![0.0_f64; width];
        for row in features.chunks_exact(width) {
            for ((sum, &mean), &value) in variance.iter_mut().zip(&mean).zip(row) {
                *sum += (f64::from(value) - mean).powi(2);
            }
        }
        let deviation = |(&sum, &mean): (&f64, &f64)| {
            let std = (sum / rows).sqrt();
            // A feature that varies by less than f32 can resolve is constant;
            // dividing by its deviation would only amplify rounding.
            let constant = std <= f64::from(f32::EPSILON) * mean.abs() || std as f32 == 0.0;
            if constant { 1.0 } else { std as f32 }
        };
        Self {
            std: variance.iter().zip(&mean).map(deviation).collect(),
            mean: mean.iter().map(|&mean| mean as f32).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::DataError;

    fn table() -> Dataset {
        // Columns: 1 and 3; constant 5.
        Dataset::new("t", vec![1.0, 5.0, 3.0, 5.0], vec![2], vec![0, 1], 2).unwrap()
    }

    #[test]
    fn per_feature_statistics_and_constant_columns() {
        let fitted = Standardiser::fit_per_feature(&table());
        assert_eq!(fitted.mean(), [2.0, 5.0]);
        assert_eq!(fitted.std(), [1.0, 1.0]);
        let out = table().standardised(&fitted).unwrap();
        assert_eq!(out.features(), [-1.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn global_statistics() {
        let fitted = Standardiser::fit_global(&table());
        assert_eq!(fitted.mean(), [3.5]);
        let out = table().standardised(&fitted).unwrap();
        let mean: f32 = out.features().iter().sum::<f32>() / 4.0;
        let var: f32 = out.features().iter().map(|v| v * v).sum::<f32>() / 4.0;
        assert!(mean.abs() < 1e-6 && (var - 1.0).abs() < 1e-6, "{mean} {var}");
    }

    #[test]
    fn constants_that_are_not_binary_fractions_stay_zero() {
        let data = Dataset::new("c", vec![0.1; 999], vec![1], vec![0; 999], 1).unwrap();
        let fitted = Standardiser::fit_per_feature(&data);
        assert_eq!(fitted.std(), [1.0]);
        assert!(data.standardised(&fitted).unwrap().features().iter().all(|&v| v == 0.0));
    }

    #[test]
    fn extreme_values_do_not_overflow_the_fit() {
        let extreme = vec![f32::MAX, -f32::MAX];
        let data = Dataset::new("x", extreme, vec![1], vec![0, 0], 1).unwrap();
        let fitted = Standardiser::fit_global(&data);
        assert_eq!(data.standardised(&fitted).unwrap().features(), [1.0, -1.0]);
    }

    #[test]
    fn overflow_on_other_data_and_wrong_width_are_errors() {
        let tiny = Dataset::new("tiny", vec![0.0, 1e-30], vec![1], vec![0, 0], 1).unwrap();
        let fitted = Standardiser::fit_global(&tiny);
        let big = Dataset::new("big", vec![1.0, 1e30], vec![2], vec![0], 1).unwrap();
        let error = big.standardised(&fitted).unwrap_err();
        assert!(
            matches!(error, DataError::NonFinite { row: 0, feature: 1, .. }),
            "{error}"
        );

        let wide = Dataset::new("wide", vec![0.0; 3], vec![3], vec![0], 1).unwrap();
        let error = wide.standardised(&Standardiser::fit_per_feature(&table())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "wide: the standardiser was fitted on 2 features per example, these have 3; \
             fit it on data of the same shape"
        );
    }
}
