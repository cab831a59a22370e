//! Labelled examples in memory.

use std::{collections::BTreeMap, fmt};

mod sequences;
mod targets;

use super::{
    error::DataError,
    prng::{SPLIT_DOMAIN, Shuffler},
    standardise::Standardiser,
};

pub use sequences::TokenSequence;
pub(crate) use sequences::token_of;
use targets::Targets;

/// Labelled examples in memory, checked when built and immutable after.
///
/// * features: `f32`, `[n, feature_shape...]`, row-major, all finite
/// * labels: `u32`, `[n]`, each below [`classes`](Self::classes)
/// * or, for regression ([`regression`](Self::regression)), targets: `f32`, `[n, outputs]`, all finite
/// * `n >= 1`, and `feature_shape` has at least one dimension, none of size 0
///
/// Methods that change a data set consume it, so that a large one is never
/// copied by accident; `clone` it first to keep the original.
#[derive(Clone, PartialEq)]
pub struct Dataset {
    name: String,
    features: Vec<f32>,
    feature_shape: Vec<usize>,
    labels: Vec<u32>,
    classes: usize,
    /// Targets of regression, which has no labels and 0 classes.
    targets: Option<Targets>,
}

impl Dataset {
    /// Builds a data set from `features` of shape `[labels.len(), feature_shape...]`
    /// in row-major order and one label per example.
    ///
    /// `name` is the origin of the data and appears in error messages.
    ///
    /// # Errors
    ///
    /// [`DataError::Empty`] without labels, [`DataError::FeatureShape`],
    /// [`DataError::LengthMismatch`], [`DataError::NoClasses`],
    /// [`DataError::LabelOutOfRange`], or [`DataError::NonFinite`] for the
    /// first NaN or infinity.
    pub fn new(
        name: impl Into<String>,
        features: Vec<f32>,
        feature_shape: Vec<usize>,
        labels: Vec<u32>,
        classes: usize,
    ) -> Result<Self, DataError> {
        let name = name.into();
        let feature_len = shape_len(&name, &feature_shape)?;
        if labels.is_empty() {
            return Err(DataError::Empty { name });
        }
        // Saturating is safe: no vector holds `usize::MAX` values of f32.
        let expected = labels.len().saturating_mul(feature_len);
        if features.len() != expected {
            return Err(DataError::LengthMismatch {
                name,
                labels: labels.len(),
                shape: feature_shape,
                expected,
                found: features.len(),
            });
        }
        check_labels(&name, &labels, classes)?;
        check_finite(&name, &features, feature_len)?;
        Ok(Self {
            name,
            features,
            feature_shape,
            labels,
            classes,
            targets: None,
        })
    }

    /// Cuts a text into examples of `rows` tokens each for a language model; the label is the token
    /// that follows an example. Examples begin `stride` tokens apart. With a stride below `rows`
    /// they overlap, so that a model sees every token at several positions. Remaining tokens at the
    /// end are ignored.
    ///
    /// Features are the tokens as numbers, which `f32` holds exactly, as `vocab` is at most 2^24.
    ///
    /// # Errors
    ///
    /// [`DataError::ShortText`]; [`DataError::LabelOutOfRange`] for a token that is not below
    /// `vocab`, with its index in the text as the row; [`DataError::Empty`] for a stride of 0;
    /// [`DataError::NoClasses`] for a `vocab` of 0 or beyond 2^24; [`DataError::OutOfMemory`].
    pub fn from_tokens(
        name: impl Into<String>,
        tokens: &[u32],
        rows: usize,
        stride: usize,
        vocab: usize,
    ) -> Result<Self, DataError> {
        const EXACT: usize = 1 << f32::MANTISSA_DIGITS;
        let name = name.into();
        check_labels(&name, tokens, if vocab > EXACT { 0 } else { vocab })?;
        if rows == 0 || tokens.len() <= rows {
            return Err(DataError::ShortText {
                name,
                tokens: tokens.len(),
                rows,
            });
        }
        if stride == 0 {
            return Err(DataError::Empty { name });
        }
        let examples = tokens.windows(rows + 1).step_by(stride);
        let labels = examples.clone().map(|example| example[rows]).collect();
        let mut features = Vec::new();
        let count = examples.len();
        let size = count.checked_mul(rows);
        if size.is_none_or(|size| features.try_reserve_exact(size).is_err()) {
            return Err(DataError::OutOfMemory {
                name,
                rows: count,
                columns: rows,
            });
        }
        features.extend(examples.flat_map(|example| &example[..rows]).map(|&token| token as f32));
        Dataset::new(name, features, vec![rows], labels, vocab)
    }

    /// Returns the origin of the data, which appears in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same data under another name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Returns the number of examples, at least 1.
    pub fn len(&self) -> usize {
        match &self.targets {
            Some(targets) => targets.len(),
            None => self.labels.len(),
        }
    }

    /// Returns `false`: a data set has at least one example.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the shape of one example, without the example dimension; `[1, 28, 28]` (channels,
    /// height, width) for MNIST images.
    pub fn feature_shape(&self) -> &[usize] {
        &self.feature_shape
    }

    /// Returns the number of values in one example: the product of
    /// [`feature_shape`](Self::feature_shape).
    pub fn feature_len(&self) -> usize {
        // The product was checked when the shape was set.
        self.feature_shape.iter().product()
    }

    /// Returns all features, `[len, feature_shape...]`, row-major.
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    /// Returns all labels, `[len]`; none for regression.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Returns the number of classes; every label is below it. 0 for regression.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Returns the features, `[feature_shape...]`, and the label of one example, or `None` past the
    /// end. The label is 0 for regression.
    pub fn example(&self, row: usize) -> Option<(&[f32], u32)> {
        let label = match &self.targets {
            Some(_) if row < self.len() => 0,
            _ => *self.labels.get(row)?,
        };
        let width = self.feature_len();
        let features = self.features.get(row * width..(row + 1) * width)?;
        Some((features, label))
    }

    /// Returns `(label, number of examples)` of each class that has any, by label.
    pub fn class_counts(&self) -> Vec<(u32, usize)> {
        let mut counts = BTreeMap::new();
        for &label in &self.labels {
            *counts.entry(label).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    /// Returns weights of the classes, `[classes]`, that give all classes the same influence on
    /// training, independent of their numbers of examples: the number of examples divided by the
    /// number of classes that occur and by the class's own examples. Their mean over the examples
    /// is 1. A class without examples gets 1.
    pub fn balanced_class_weights(&self) -> Vec<f32> {
        let counts = self.class_counts();
        let mut weights = vec![1.0; self.classes];
        for &(label, count) in &counts {
            weights[label as usize] = (self.len() as f64 / (counts.len() * count) as f64) as f32;
        }
        weights
    }

    /// Returns the examples at `rows`, in this order; a row may be repeated.
    ///
    /// # Errors
    ///
    /// [`DataError::Empty`] without rows, [`DataError::RowOutOfRange`], or
    /// [`DataError::OutOfMemory`].
    pub fn subset(&self, rows: &[usize]) -> Result<Self, DataError> {
        if rows.is_empty() {
            return Err(DataError::Empty {
                name: format!("{} (subset)", self.name),
            });
        }
        let mut features = reserve(&self.name, rows.len(), self.feature_len())?;
        let mut labels = Vec::with_capacity(rows.len());
        for &row in rows {
            let (values, label) = self.example(row).ok_or_else(|| self.row_out_of_range(row))?;
            features.extend_from_slice(values);
            labels.push(label);
        }
        let targets = self.targets.as_ref().map(|targets| targets.subset(rows));
        if targets.is_some() {
            labels.clear();
        }
        Ok(Self {
            name: self.name.clone(),
            features,
            feature_shape: self.feature_shape.clone(),
            labels,
            classes: self.classes,
            targets,
        })
    }

    /// Shuffles and splits into `(train, test)`; see
    /// [`split_indices`](Self::split_indices) for sizes and order. The names
    /// get " (train)" and " (test)" appended.
    ///
    /// # Errors
    ///
    /// [`DataError::Split`] or [`DataError::OutOfMemory`].
    pub fn split(&self, test_fraction: f64, seed: u64) -> Result<(Self, Self), DataError> {
        let (train, test) = self.split_indices(test_fraction, seed)?;
        let train = self.subset(&train)?.with_name(format!("{} (train)", self.name));
        let test = self.subset(&test)?.with_name(format!("{} (test)", self.name));
        Ok((train, test))
    }

    /// Returns the rows that [`split`](Self::split) puts into `(train, test)`.
    ///
    /// The test part has `ceil(len × test_fraction)` examples, where a product
    /// within 10⁻⁹ above a whole number counts as that number, so that 0.28 of
    /// 25 is 7 in spite of rounding. Classes are not balanced between parts.
    ///
    /// The order is fixed for all releases and platforms: `0..len` is shuffled by Fisher-Yates from
    /// the last position down (position `i` swaps with one drawn from `0..=i` by Lemire's unbiased
    /// multiply-and-reject method on 64-bit draws); the first rows of the result are the test part,
    /// the remaining ones the training part. The generator is SplitMix64 with the initial state
    /// `mix(mix(seed ^ 0x73706c6974))`, where `mix` is SplitMix64's output function.
    ///
    /// # Errors
    ///
    /// [`DataError::Split`] when `test_fraction` is not strictly between 0 and
    /// 1, or when a part would be empty.
    pub fn split_indices(&self, test_fraction: f64, seed: u64) -> Result<(Vec<usize>, Vec<usize>), DataError> {
        let len = self.len();
        let in_range = test_fraction > 0.0 && test_fraction < 1.0; // false for NaN
        let test_len = (len as f64 * test_fraction - 1e-9).ceil().max(0.0) as usize;
        if !in_range || test_len == 0 || test_len >= len {
            return Err(DataError::Split {
                name: self.name.clone(),
                fraction: test_fraction,
                len,
            });
        }
        let mut test = Shuffler::derive(seed, SPLIT_DOMAIN, 0).permutation(len);
        let train = test.split_off(test_len);
        Ok((train, test))
    }

    /// Divides every feature by `full_scale`, the value that becomes 1: 255 for raw 8-bit images, 16 for raw digits.
    ///
    /// # Errors
    ///
    /// [`DataError::Scale`] when `full_scale` is 0, NaN or infinite;
    /// [`DataError::NonFinite`] when a quotient overflows `f32`.
    pub fn normalised(mut self, full_scale: f32) -> Result<Self, DataError> {
        if full_scale == 0.0 || !full_scale.is_finite() {
            return Err(DataError::Scale {
                name: self.name,
                scale: full_scale,
            });
        }
        for value in &mut self.features {
            *value /= full_scale;
        }
        self.checked_finite()
    }

    /// Shifts and scales features with the statistics of `standardiser`. Fit it on the training part, and apply it to
    /// all parts.
    ///
    /// # Errors
    ///
    /// [`DataError::StandardiserShape`] when it was fitted on examples of
    /// another size; [`DataError::NonFinite`] when a result overflows `f32`.
    pub fn standardised(mut self, standardiser: &Standardiser) -> Result<Self, DataError> {
        let width = self.feature_len();
        if !standardiser.accepts(width) {
            return Err(DataError::StandardiserShape {
                name: self.name,
                fitted: standardiser.mean().len(),
                found: width,
            });
        }
        for row in self.features.chunks_exact_mut(width) {
            standardiser.apply(row);
        }
        self.checked_finite()
    }

    /// Returns the same values under another feature shape with the same number of elements;
    /// `vec![64]` flattens `[1, 8, 8]`.
    ///
    /// # Errors
    ///
    /// [`DataError::FeatureShape`] when the shape is empty, has a 0, or holds
    /// another number of elements.
    pub fn with_feature_shape(mut self, shape: Vec<usize>) -> Result<Self, DataError> {
        if shape_len(&self.name, &shape)? != self.feature_len() {
            return Err(DataError::FeatureShape {
                name: self.name,
                shape,
                reason: "the number of elements differs from the present shape's",
            });
        }
        self.feature_shape = shape;
        Ok(self)
    }

    /// Returns the labels of `rows` as 0-or-1 values, `[rows.len(), classes]`, row-major.
    ///
    /// # Errors
    ///
    /// [`DataError::RowOutOfRange`] or [`DataError::OutOfMemory`]; [`DataError::NoClasses`] for regression.
    pub fn one_hot(&self, rows: &[usize]) -> Result<Vec<f32>, DataError> {
        check_labels(&self.name, &[], self.classes)?;
        let mut labels = Vec::with_capacity(rows.len());
        for &row in rows {
            let label = self.labels.get(row).ok_or_else(|| self.row_out_of_range(row))?;
            labels.push(*label);
        }
        let mut out = Vec::new();
        one_hot(&labels, self.classes, &mut out)?;
        Ok(out)
    }

    fn row_out_of_range(&self, index: usize) -> DataError {
        DataError::RowOutOfRange {
            name: self.name.clone(),
            index,
            len: self.len(),
        }
    }

    fn checked_finite(self) -> Result<Self, DataError> {
        check_finite(&self.name, &self.features, self.feature_len())?;
        Ok(self)
    }
}

/// Prints only sizes, because printing every feature would be too long.
impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset")
            .field("name", &self.name)
            .field("len", &self.len())
            .field("feature_shape", &self.feature_shape)
            .field("classes", &self.classes)
            .field("outputs", &self.outputs())
            .finish_non_exhaustive()
    }
}

/// Writes `labels` as 0-or-1 values, `[labels.len(), classes]`, row-major,
/// into `out`, whose former content is dropped and whose memory is reused.
///
/// It is for the labels of a batch; [`Dataset::one_hot`] does it for rows.
///
/// # Errors
///
/// [`DataError::LabelOutOfRange`] or [`DataError::OutOfMemory`]; `out` is then
/// empty.
pub fn one_hot(labels: &[u32], classes: usize, out: &mut Vec<f32>) -> Result<(), DataError> {
    out.clear();
    check_labels("one-hot", labels, classes)?;
    let size = labels.len().checked_mul(classes);
    let size = size
        .filter(|&size| out.try_reserve_exact(size).is_ok())
        .ok_or_else(|| DataError::OutOfMemory {
            name: "one-hot".into(),
            rows: labels.len(),
            columns: classes,
        })?;
    out.resize(size, 0.0);
    for (row, &label) in out.chunks_exact_mut(classes).zip(labels) {
        row[label as usize] = 1.0;
    }
    Ok(())
}

/// Checks that there are classes and that every label is below their number.
/// `name` is the data set or file that the labels come from.
pub(super) fn check_labels(name: &str, labels: &[u32], classes: usize) -> Result<(), DataError> {
    if classes == 0 {
        return Err(DataError::NoClasses { name: name.into() });
    }
    match labels.iter().position(|&label| label as usize >= classes) {
        None => Ok(()),
        Some(row) => Err(DataError::LabelOutOfRange {
            name: name.into(),
            row,
            label: labels[row],
            classes,
        }),
    }
}

fn check_finite(name: &str, features: &[f32], feature_len: usize) -> Result<(), DataError> {
    match features.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => Err(DataError::NonFinite {
            name: name.into(),
            row: at / feature_len,
            feature: at % feature_len,
            value: features[at],
        }),
    }
}

/// Returns the number of elements of a feature shape, at least 1.
fn shape_len(name: &str, shape: &[usize]) -> Result<usize, DataError> {
    let refuse = |reason| {
        Err(DataError::FeatureShape {
            name: name.into(),
            shape: shape.to_vec(),
            reason,
        })
    };
    if shape.is_empty() {
        return refuse("it needs at least one dimension");
    }
    if shape.contains(&0) {
        return refuse("a dimension is 0");
    }
    match shape.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim)) {
        Some(len) => Ok(len),
        None => refuse("it has more elements than can be addressed"),
    }
}

/// Returns an empty vector with room for `[rows, columns]`, or an error if there is not enough
/// memory.
pub(super) fn reserve(name: &str, rows: usize, columns: usize) -> Result<Vec<f32>, DataError> {
    let mut out = Vec::new();
    match rows.checked_mul(columns).map(|size| out.try_reserve_exact(size)) {
        Some(Ok(())) => Ok(out),
        _ => Err(DataError::OutOfMemory {
            name: name.into(),
            rows,
            columns,
        }),
    }
}
