//! Loss and accuracy of a model on a data set.

use std::borrow::Cow;

use meganeura_core::distributed::Communicator;
use meganeura_core::{Session, host_memory};

use super::distributed;
use super::feed::Feed;
use super::regression::Errors;
use super::{Evaluation, TrainError};
use crate::data::{Batches, Dataset, Remainder};

/// Evaluates the model of an inference session whose only output is the logits, or the prediction of regression.
///
/// The loss is computed from them here, not read from the graph: the mean of a batch would count the
/// repeated rows that fill up the last one. With other ranks, each evaluates its part of the examples.
pub(super) fn evaluate(
    session: &mut Session,
    feed: &mut Feed,
    logits: &mut Vec<f32>,
    data: &Dataset,
    ranks: Option<&dyn Communicator>,
) -> Result<Evaluation, TrainError> {
    feed.check(data)?;
    let classes = feed.classes();
    let mut sums = Sums {
        loss: 0.0,
        correct: 0,
        counted: 0,
        errors: data.is_regression().then(|| {
            let rows = data.targets().chunks_exact(classes);
            let original = |(at, &value)| original(data, at, value);
            Errors::new(rows.flat_map(|row| row.iter().enumerate()).map(original), classes)
        }),
    };
    match ranks {
        None => add(session, feed, logits, data, &mut sums)?,
        Some(ranks) => {
            let bound = |rank| data.len() * rank / ranks.size();
            let rows: Vec<usize> = (bound(ranks.rank())..bound(ranks.rank() + 1)).collect();
            if !rows.is_empty() {
                add(session, feed, logits, &data.subset(&rows)?, &mut sums)?;
            }
            sums = sums.over(ranks)?;
        }
    }
    Ok(Evaluation {
        loss: sums.loss / sums.counted as f64,
        correct: sums.correct,
        examples: sums.counted,
        regression: sums.errors.map(|errors| errors.finish()),
    })
}

/// Sums over examples.
struct Sums {
    loss: f64,
    correct: usize,
    /// Number of predictions that count.
    counted: usize,
    /// Sums of errors for regression.
    errors: Option<Errors>,
}

impl Sums {
    /// Adds up the sums of all ranks, in the order of the ranks.
    fn over(self, ranks: &dyn Communicator) -> Result<Self, TrainError> {
        let mut own = vec![self.loss, self.correct as f64, self.counted as f64];
        own.extend(self.errors.iter().flat_map(Errors::sums));
        let sums = distributed::sums(ranks, "the evaluation", &own)?;
        let errors = self.errors.map(|errors| errors.with_sums(&sums[3..]));
        Ok(Sums {
            loss: sums[0],
            // Whole numbers, which `f64` holds exactly.
            correct: sums[1] as usize,
            counted: sums[2] as usize,
            errors,
        })
    }
}

/// Converts a target or prediction to the units of the data.
fn original(data: &Dataset, at: usize, value: f32) -> f64 {
    match data.target_scale() {
        Some(scale) => scale.restore(at, f64::from(value)),
        None => f64::from(value),
    }
}

/// Adds the examples of a data set.
fn add(
    session: &mut Session,
    feed: &mut Feed,
    logits: &mut Vec<f32>,
    data: &Dataset,
    sums: &mut Sums,
) -> Result<(), TrainError> {
    let (classes, batch_size) = (feed.classes(), feed.batch_size());
    let predictions = feed.predictions();
    let padded = pad(data, batch_size)?;
    let mut batches = Batches::sequential(&padded, batch_size, Remainder::Wrap)?;
    let size = batch_size * predictions * classes;
    if logits.len() != size {
        *logits = host_memory::filled("the results of a batch", size, 0.0)?;
    }
    let Sums {
        loss,
        correct,
        counted,
        errors,
    } = sums;
    let mut left = data.len();
    let original = |(at, &value): (usize, &f32)| original(data, at, value);
    loop {
        let buffer = feed.buffer();
        batches.reserve(&mut buffer.features, &mut buffer.labels, &mut buffer.targets)?;
        let Some(fresh) = batches.next_into(&mut buffer.features, &mut buffer.labels) else {
            break;
        };
        batches.targets_into(&mut buffer.targets);
        feed.upload(session)?;
        session.try_step()?;
        session.try_read_output_by_index(0, logits)?;
        if let Some(errors) = errors {
            let rows = logits.chunks_exact(classes).zip(feed.targets().chunks_exact(classes));
            for (row, target) in rows.take(fresh.min(left)) {
                let squares = row
                    .iter()
                    .zip(target)
                    .map(|(p, t)| (f64::from(*p) - f64::from(*t)).powi(2));
                *loss += squares.sum::<f64>() / classes as f64;
                let predicted = row.iter().enumerate().map(original);
                errors.add(predicted.zip(target.iter().enumerate().map(original)));
                *counted += 1;
            }
            left = left.saturating_sub(fresh);
            continue;
        }
        let rows = logits.chunks_exact(classes).zip(feed.labels());
        let weights = feed.token_weights();
        let does_count = |at: usize| weights.is_none_or(|weights| weights[at] > 0.0);
        let rows = rows.take(fresh.min(left) * predictions).enumerate();
        for (_, (row, &label)) in rows.filter(|&(at, _)| does_count(at)) {
            *counted += 1;
            *loss += cross_entropy(row, label as usize);
            *correct += usize::from(largest(row) == Some(label as usize));
        }
        left = left.saturating_sub(fresh);
    }
    Ok(())
}

/// Returns the data set, repeated to the size of one batch if it is smaller.
fn pad(data: &Dataset, batch_size: usize) -> Result<Cow<'_, Dataset>, TrainError> {
    if data.len() >= batch_size {
        return Ok(Cow::Borrowed(data));
    }
    let rows: Vec<usize> = (0..batch_size).map(|row| row % data.len()).collect();
    Ok(Cow::Owned(data.subset(&rows)?))
}

/// Computes `-ln softmax(row)[label]`.
pub(crate) fn cross_entropy(row: &[f32], label: usize) -> f64 {
    // Subtracting the largest logit keeps `exp` from overflowing.
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&v| (f64::from(v) - max).exp()).sum();
    max + sum.ln() - f64::from(row[label])
}

/// Returns the position of the largest number, the first of equals; `None` if no number is above
/// minus infinity.
fn largest(row: &[f32]) -> Option<usize> {
    let mut best = (None, f32::NEG_INFINITY);
    for (i, &value) in row.iter().enumerate() {
        if value > best.1 {
            best = (Some(i), value);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_entropy_matches_hand_computed_values() {
        assert!((cross_entropy(&[0.0, 0.0], 1) - 2f64.ln()).abs() < 1e-12);
        // softmax of [0, ln 3] is [1/4, 3/4]
        assert!((cross_entropy(&[0.0, 3f32.ln()], 0) - 4f64.ln()).abs() < 1e-7);
        assert_eq!(cross_entropy(&[1e38, 0.0], 0), 0.0);
        assert!(cross_entropy(&[f32::NAN, 0.0], 0).is_nan());
    }

    #[test]
    fn the_first_of_the_largest_logits_is_the_prediction() {
        assert_eq!(largest(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(largest(&[f32::NAN, -1.0]), Some(1));
        assert_eq!(largest(&[f32::NAN; 2]), None);
    }
}
