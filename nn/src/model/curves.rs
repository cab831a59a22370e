//! The quality of predicted probabilities: ROC and precision-recall curves, and calibration.

use serde::{Deserialize, Serialize};

use super::Prediction;

/// Number of bins of [`Calibration`].
const BINS: usize = 10;

/// Quality of the probability of one class against all other classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassCurves {
    /// Id of the class.
    pub class: usize,
    /// Points of the ROC curve, from (0, 0) to (1, 1): false positive rate and true positive rate.
    pub roc: Vec<[f64; 2]>,
    /// Area under the ROC curve: the probability that an example of the class has a higher probability than another
    /// one. 0.5 is random.
    pub auc: f64,
    /// Points of the precision-recall curve: recall and precision.
    pub precision_recall: Vec<[f64; 2]>,
    /// Average precision: the mean precision over all examples of the class.
    pub average_precision: f64,
}

/// Agreement of the probability of the predicted class with the frequency of correct predictions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Bins that have examples: mean probability, fraction of correct predictions, and number of examples.
    pub bins: Vec<(f64, f64, usize)>,
    /// Expected calibration error: the mean distance of probability and frequency over all examples (Guo et al., "On
    /// Calibration of Modern Neural Networks", 2017, equation 3, with 10 bins).
    pub error: f64,
}

/// Computes the curves of each class that has examples and is not the class of all examples. There are none for two
/// classes except the second one, because they are the same.
///
/// `labels` are the class ids of the examples. Predictions of numbers are ignored.
pub fn class_curves(predictions: &[Prediction], labels: &[u32]) -> Vec<ClassCurves> {
    let rows: Vec<(&[f64], usize)> = rows(predictions, labels).map(|(row, label, _)| (row, label)).collect();
    let classes = rows.first().map_or(0, |(row, _)| row.len());
    let first = usize::from(classes == 2);
    (first..classes)
        .filter_map(|class| {
            let scored: Vec<(f64, bool)> = rows.iter().map(|(row, label)| (row[class], *label == class)).collect();
            curves_of(class, scored)
        })
        .collect()
}

/// Computes the calibration of the probabilities of the predicted classes. `labels` are the class ids of the examples.
pub fn calibration(predictions: &[Prediction], labels: &[u32]) -> Calibration {
    let mut sums = [(0.0, 0.0, 0); BINS];
    let mut all = 0;
    for (row, label, class) in rows(predictions, labels) {
        let bin = &mut sums[((row[class] * BINS as f64) as usize).min(BINS - 1)];
        bin.0 += row[class];
        bin.1 += f64::from(u8::from(label == class));
        bin.2 += 1;
        all += 1;
    }
    let filled = sums.into_iter().filter(|bin| bin.2 > 0);
    let bins: Vec<(f64, f64, usize)> = filled
        .map(|(probability, correct, count)| (probability / count as f64, correct / count as f64, count))
        .collect();
    let distances = bins
        .iter()
        .map(|(p, correct, count)| (p - correct).abs() * *count as f64);
    Calibration {
        error: distances.sum::<f64>() / f64::from(all.max(1)),
        bins,
    }
}

/// Returns the probabilities, the label and the predicted class of each example.
fn rows<'a>(predictions: &'a [Prediction], labels: &'a [u32]) -> impl Iterator<Item = (&'a [f64], usize, usize)> {
    predictions
        .iter()
        .zip(labels)
        .filter_map(|(prediction, label)| match prediction {
            Prediction::Class { class, probabilities } => Some((&probabilities[..], *label as usize, *class)),
            Prediction::Values(_) => None,
        })
}

/// Computes the curves of a class from the probability of each example, and whether the example belongs to the class.
fn curves_of(class: usize, mut scored: Vec<(f64, bool)>) -> Option<ClassCurves> {
    let positives = scored.iter().filter(|(_, is_positive)| *is_positive).count();
    let negatives = scored.len() - positives;
    if positives == 0 || negatives == 0 {
        return None;
    }
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut roc, mut precision_recall) = (vec![[0.0, 0.0]], Vec::new());
    let (mut auc, mut average_precision) = (0.0, 0.0);
    let (mut hits, mut misses) = (0, 0);
    // Examples of the same probability are one point.
    for equal in scored.chunk_by(|a, b| a.0 == b.0) {
        let more = equal.iter().filter(|(_, is_positive)| *is_positive).count();
        hits += more;
        misses += equal.len() - more;
        let point = [misses as f64 / negatives as f64, hits as f64 / positives as f64];
        let [x, y] = roc[roc.len() - 1];
        auc += (point[0] - x) * (point[1] + y) / 2.0;
        let precision = hits as f64 / (hits + misses) as f64;
        average_precision += (point[1] - y) * precision;
        precision_recall.push([point[1], precision]);
        roc.push(point);
    }
    Some(ClassCurves {
        class,
        roc,
        auc,
        precision_recall,
        average_precision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(probabilities: &[f64]) -> Vec<Prediction> {
        let prediction = |p: &f64| Prediction::Class {
            class: usize::from(*p > 0.5),
            probabilities: vec![1.0 - p, *p],
        };
        probabilities.iter().map(prediction).collect()
    }

    #[test]
    fn areas_are_those_of_all_pairs() {
        let probabilities = [0.1, 0.4, 0.35, 0.8, 0.4, 0.9];
        let labels = [0, 0, 1, 1, 1, 0];
        let curves = class_curves(&binary(&probabilities), &labels);
        assert_eq!((curves.len(), curves[0].class), (1, 1));
        // Each pair of a positive and a negative example counts 1, and 1/2 if the probabilities are equal.
        let pairs: f64 = (0..6)
            .flat_map(|i| (0..6).map(move |j| (i, j)))
            .filter(|&(i, j)| labels[i] == 1 && labels[j] == 0)
            .map(|(i, j)| match probabilities[i].total_cmp(&probabilities[j]) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Less => 0.0,
            })
            .sum();
        assert!((curves[0].auc - pairs / 9.0).abs() < 1e-12, "{curves:?}");
        assert_eq!(curves[0].roc.last(), Some(&[1.0, 1.0]));
        // By hand: precision 1/2 at recall 1/3, 2/4 at 2/3, 3/5 at 1.
        let expected = (0.5 + 0.5 + 0.6) / 3.0;
        assert!((curves[0].average_precision - expected).abs() < 1e-12, "{curves:?}");
        // Without negative examples there is no curve.
        assert_eq!(class_curves(&binary(&[0.3, 0.6]), &[1, 1]), []);
    }

    #[test]
    fn calibration_compares_probabilities_with_frequencies() {
        // Eight predictions at 0.75, of which six are correct, and two at 0.95, of which one is.
        let probabilities = [[0.75; 8].as_slice(), &[0.95; 2]].concat();
        let labels = [1, 1, 1, 1, 1, 1, 0, 0, 1, 0];
        let found = calibration(&binary(&probabilities), &labels);
        assert_eq!(found.bins.len(), 2);
        assert_eq!((found.bins[0].1, found.bins[0].2), (0.75, 8));
        assert!((found.error - 0.2 * 0.45).abs() < 1e-12, "{found:?}");
        assert_eq!(calibration(&[], &[]).bins, []);
    }
}
