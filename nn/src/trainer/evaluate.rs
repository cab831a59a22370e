//! Loss and accuracy of a model on a data set.

use std::borrow::Cow;

use meganeura_core::Session;

use super::feed::Feed;
use super::regression::Errors;
use super::{Evaluation, TrainError};
use crate::data::{Batches, Dataset, Remainder};

/// Evaluates the model of an inference session whose only output is the logits, or the prediction of regression.
///
/// The loss is computed from them here, not read from the graph: the mean of a batch would count the
/// repeated rows that fill up the last one.
pub(super) fn evaluate(
    session: &mut Session,
    feed: &mut Feed,
    logits: &mut Vec<f32>,
    data: &Dataset,
) -> Result<Evaluation, TrainError> {
    feed.check(data)?;
    let (classes, batch_size) = (feed.classes(), feed.batch_size());
    let predictions = feed.predictions();
    let all = data.len() * predictions;
    let padded = pad(data, batch_size)?;
    let mut batches = Batches::sequential(&padded, batch_size, Remainder::Wrap)?;
    logits.resize(batch_size * predictions * classes, 0.0);
    let (mut loss, mut correct, mut left) = (0.0, 0, data.len());
    let original = |(at, &value): (usize, &f32)| match data.target_scale() {
        Some(scale) => scale.restore(at, f64::from(value)),
        None => f64::from(value),
    };
    let mut errors = data.is_regression().then(|| {
        let rows = data.targets().chunks_exact(classes);
        Errors::new(rows.flat_map(|row| row.iter().enumerate()).map(original), classes)
    });
    loop {
        let buffer = feed.buffer();
        let Some(fresh) = batches.next_into(&mut buffer.features, &mut buffer.labels) else {
            break;
        };
        batches.targets_into(&mut buffer.targets);
        feed.upload(session)?;
        session.try_step()?;
        session.try_read_output_by_index(0, logits)?;
        if let Some(errors) = &mut errors {
            let rows = logits.chunks_exact(classes).zip(feed.targets().chunks_exact(classes));
            for (row, target) in rows.take(fresh.min(left)) {
                let squares = row
                    .iter()
                    .zip(target)
                    .map(|(p, t)| (f64::from(*p) - f64::from(*t)).powi(2));
                loss += squares.sum::<f64>() / classes as f64;
                let predicted = row.iter().enumerate().map(original);
                errors.add(predicted.zip(target.iter().enumerate().map(original)));
            }
            left = left.saturating_sub(fresh);
            continue;
        }
        let rows = logits.chunks_exact(classes).zip(feed.labels());
        for (row, &label) in rows.take(fresh.min(left) * predictions) {
            loss += cross_entropy(row, label as usize);
            correct += usize::from(largest(row) == Some(label as usize));
        }
        left = left.saturating_sub(fresh);
    }
    Ok(Evaluation {
        loss: loss / all as f64,
        correct,
        examples: all,
        regression: errors.map(|errors| errors.finish()),
    })
}

/// The data set, repeated to the size of one batch if it is smaller than that.
fn pad(data: &Dataset, batch_size: usize) -> Result<Cow<'_, Dataset>, TrainError> {
    if data.len() >= batch_size {
        return Ok(Cow::Borrowed(data));
    }
    let rows: Vec<usize> = (0..batch_size).map(|row| row % data.len()).collect();
    Ok(Cow::Owned(data.subset(&rows)?))
}

/// `-ln softmax(row)[label]`.
pub(crate) fn cross_entropy(row: &[f32], label: usize) -> f64 {
    // Subtracting the largest logit keeps `exp` from overflowing.
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&v| (f64::from(v) - max).exp()).sum();
    max + sum.ln() - f64::from(row[label])
}

/// Position of the largest number, the first of equals; `None` if no number is above minus infinity.
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
