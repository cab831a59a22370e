//! Parts of a data set for training, validation and test.

use std::collections::BTreeMap;

use super::dataset::Dataset;
use super::error::DataError;
use super::prng::{SPLIT_DOMAIN, Shuffler};
use super::standardise::Standardiser;

/// Options of [`Dataset::split_parts`]. By default, a fifth is held out for the test, stratified.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitOptions {
    /// Share of the examples for validation, at least 0; with 0 there is none.
    pub validation: f64,
    /// Share of the examples for the test, at least 0; with 0 there is none.
    pub test: f64,
    /// Seed of the order; equal seeds give equal parts on every platform and in every release.
    pub seed: u64,
    /// True if all parts have nearly equal shares of each class, and the training part has at least one example of
    /// every class. It has no effect on regression.
    pub stratify: bool,
}

impl Default for SplitOptions {
    fn default() -> Self {
        SplitOptions {
            validation: 0.0,
            test: 0.2,
            seed: 0,
            stratify: true,
        }
    }
}

/// The parts of a data set. No example is in two of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// Examples that the model learns from, and that standardisers are fitted on.
    pub train: Dataset,
    /// Examples for decisions during training: early stopping, the best weights.
    pub validation: Option<Dataset>,
    /// Examples that measure the final model and influence no decision.
    pub test: Option<Dataset>,
}

impl Parts {
    /// Returns all parts with [`Dataset::standardised`] features.
    ///
    /// # Errors
    ///
    /// The errors of [`Dataset::standardised`].
    pub fn standardised(self, scale: &Standardiser) -> Result<Self, DataError> {
        self.map(|part| part.standardised(scale))
    }

    /// Returns all parts with [`Dataset::standardised_targets`].
    ///
    /// # Errors
    ///
    /// The errors of [`Dataset::standardised_targets`].
    pub fn standardised_targets(self, scale: &Standardiser) -> Result<Self, DataError> {
        self.map(|part| part.standardised_targets(scale))
    }

    fn map(self, change: impl Fn(Dataset) -> Result<Dataset, DataError>) -> Result<Self, DataError> {
        Ok(Parts {
            train: change(self.train)?,
            validation: self.validation.map(&change).transpose()?,
            test: self.test.map(&change).transpose()?,
        })
    }
}

impl Dataset {
    /// Shuffles and splits into parts for training, validation and test. Their names get " (train)", " (validation)"
    /// and " (test)" appended.
    ///
    /// A part has `ceil(len × share)` examples, as in [`split_indices`](Self::split_indices), whose
    /// order this follows: without stratification the test part is the same. With it, each class
    /// contributes its share, rounded by the largest remainders; a part has fewer examples if a
    /// class would otherwise lose its last one for training.
    ///
    /// # Errors
    ///
    /// [`DataError::Split`] for shares that are negative, or 1 or more together, or a part that would be empty;
    /// [`DataError::OutOfMemory`].
    pub fn split_parts(&self, options: SplitOptions) -> Result<Parts, DataError> {
        let rows = SplitRows::of(self.name(), self.len(), self.labels(), options)?;
        let part = |rows: &[usize], suffix: &str| match rows {
            [] => Ok(None),
            rows => {
                let part = self.subset(rows)?;
                Ok::<_, DataError>(Some(part.with_name(format!("{} ({suffix})", self.name()))))
            }
        };
        Ok(Parts {
            train: self.subset(&rows.train)?.with_name(format!("{} (train)", self.name())),
            validation: part(&rows.validation, "validation")?,
            test: part(&rows.test, "test")?,
        })
    }
}

/// Rows of the parts, in shuffled order.
pub(super) struct SplitRows {
    pub(super) train: Vec<usize>,
    pub(super) validation: Vec<usize>,
    pub(super) test: Vec<usize>,
}

impl SplitRows {
    /// Splits `len` examples with these labels, if they have any.
    pub(super) fn of(name: &str, len: usize, labels: &[u32], options: SplitOptions) -> Result<Self, DataError> {
        let shares = [options.test, options.validation];
        let refuse = |fraction: f64| DataError::Split {
            name: name.into(),
            fraction,
            len,
        };
        if let Some(&share) = shares.iter().find(|s| !(0.0..1.0).contains(*s)) {
            return Err(refuse(share));
        }
        if shares[0] + shares[1] >= 1.0 {
            return Err(refuse(shares[0] + shares[1]));
        }
        let group = |row: usize| {
            if options.stratify {
                labels.get(row).copied().unwrap_or(0)
            } else {
                0
            }
        };
        let mut left: BTreeMap<u32, usize> = BTreeMap::new();
        for row in 0..len {
            *left.entry(group(row)).or_default() += 1;
        }
        let sizes = left.clone();
        // Number of examples of each group in each of the two held-out parts.
        let quotas = shares.map(|share| {
            let quota = quotas(share, len, &sizes, &left);
            for (group, count) in &quota {
                left.entry(*group).and_modify(|left| *left -= count);
            }
            quota
        });
        let mut rows = [Vec::new(), Vec::new(), Vec::new()];
        let mut open = quotas;
        for row in Shuffler::derive(options.seed, SPLIT_DOMAIN, 0).permutation(len) {
            let group = group(row);
            let part = open.iter_mut().position(|quota| match quota.get_mut(&group) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    true
                }
                _ => false,
            });
            rows[part.unwrap_or(2)].push(row);
        }
        let [test, validation, train] = rows;
        if train.is_empty() {
            return Err(refuse(shares[0] + shares[1]));
        }
        for (rows, share) in [(&test, options.test), (&validation, options.validation)] {
            if rows.is_empty() && share > 0.0 {
                return Err(refuse(share));
            }
        }
        Ok(SplitRows {
            train,
            validation,
            test,
        })
    }
}

/// Returns the number of examples of each group in a part, given the sizes of the groups and their
/// remaining examples.
fn quotas(share: f64, len: usize, sizes: &BTreeMap<u32, usize>, left: &BTreeMap<u32, usize>) -> BTreeMap<u32, usize> {
    let wanted = (len as f64 * share - 1e-9).ceil().max(0.0) as usize;
    // A group keeps at least one example for training.
    let most = |group: &u32| left.get(group).map_or(0, |n| n.saturating_sub(1));
    let exact = |size: usize| size as f64 * wanted as f64 / len as f64;
    let mut quota: BTreeMap<u32, usize> = sizes
        .iter()
        .map(|(group, &size)| (*group, (exact(size) as usize).min(most(group))))
        .collect();
    let mut order: Vec<(&u32, f64)> = sizes
        .iter()
        .map(|(group, &size)| (group, exact(size).fract()))
        .collect();
    // Stable: equal fractions keep the order of the groups.
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut missing = wanted.saturating_sub(quota.values().sum());
    // The second pass distributes the rest.
    for (group, _) in order.iter().chain(&order) {
        if let Some(count) = quota
            .get_mut(*group)
            .filter(|count| missing > 0 && **count < most(group))
        {
            *count += 1;
            missing -= 1;
        }
    }
    quota
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates this number of examples of each class; the feature is the row.
    fn data(counts: &[usize]) -> Dataset {
        let labels: Vec<u32> = (0..).zip(counts).flat_map(|(label, &n)| vec![label; n]).collect();
        let features = (0..labels.len()).map(|i| i as f32).collect();
        Dataset::new("d", features, vec![1], labels, counts.len()).unwrap()
    }

    fn counts(part: &Option<Dataset>) -> Vec<usize> {
        part.iter().flat_map(Dataset::class_counts).map(|(_, n)| n).collect()
    }

    fn options(validation: f64, test: f64) -> SplitOptions {
        SplitOptions {
            validation,
            test,
            ..SplitOptions::default()
        }
    }

    #[test]
    fn classes_have_their_shares_in_every_part() {
        for seed in 0..5 {
            let options = SplitOptions {
                seed,
                ..options(0.1, 0.2)
            };
            let parts = data(&[50, 30, 20]).split_parts(options).unwrap();
            assert_eq!(counts(&Some(parts.train.clone())), [35, 21, 14]);
            assert_eq!(
                (counts(&parts.validation), counts(&parts.test)),
                (vec![5, 3, 2], vec![10, 6, 4])
            );
            let all = [Some(&parts.train), parts.validation.as_ref(), parts.test.as_ref()];
            let mut rows: Vec<u32> = all
                .iter()
                .flatten()
                .flat_map(|p| p.features())
                .map(|&f| f as u32)
                .collect();
            rows.sort_unstable();
            assert_eq!(rows, (0..100).collect::<Vec<u32>>(), "every example once");
        }
    }

    #[test]
    fn rare_classes_stay_in_training() {
        let parts = data(&[97, 2, 1]).split_parts(options(0.2, 0.3)).unwrap();
        assert_eq!(counts(&Some(parts.train.clone())).len(), 3);
        assert_eq!(parts.test.unwrap().len(), 30);
        assert_eq!(parts.validation.unwrap().len(), 20);
        // Ten classes with one example each: all are needed for training.
        assert!(data(&[1; 10]).split_parts(options(0.0, 0.2)).is_err());
    }

    #[test]
    fn without_stratification_the_test_part_is_that_of_split() {
        let data = data(&[30, 11]);
        let options = SplitOptions {
            seed: 3,
            stratify: false,
            ..options(0.0, 0.3)
        };
        let parts = data.split_parts(options).unwrap();
        let (train, test) = data.split(0.3, 3).unwrap();
        assert_eq!((parts.train, parts.test, parts.validation), (train, Some(test), None));
    }

    #[test]
    fn regression_is_split_too() {
        let data = Dataset::regression("r", vec![0.0; 10], vec![1], (0..10).map(|i| i as f32).collect(), 1).unwrap();
        let parts = data.split_parts(options(0.1, 0.2)).unwrap();
        let sizes = (
            parts.train.len(),
            parts.validation.as_ref().map(Dataset::len),
            parts.test.as_ref().map(Dataset::len),
        );
        assert_eq!(sizes, (7, Some(1), Some(2)));
        let scale = Standardiser::fit_targets(&parts.train);
        let parts = parts.standardised_targets(&scale).unwrap();
        assert_eq!(parts.test.unwrap().target_scale(), Some(&scale));
    }

    #[test]
    fn shares_that_make_no_sense_are_refused() {
        let data = data(&[5, 5]);
        for (validation, test) in [(-0.1, 0.2), (0.0, 1.0), (f64::NAN, 0.1), (0.5, 0.6), (0.9, 0.1)] {
            assert!(
                data.split_parts(options(validation, test)).is_err(),
                "{validation} {test}"
            );
        }
        let none = data.split_parts(options(0.0, 0.0)).unwrap();
        assert_eq!((none.train.len(), none.validation, none.test), (10, None, None));
    }
}
