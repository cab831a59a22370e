//! How good predictions are, class by class.

use std::fmt;

use super::Prediction;

/// Columns of a confusion matrix that a terminal of 80 columns has room for.
const MAX_SHOWN: usize = 10;

/// Quality of a classifier on labelled examples.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassificationReport {
    classes: Vec<String>,
    /// Examples by label, then by predicted class.
    confusion: Vec<Vec<usize>>,
    /// Sum of the cross-entropies, in nats.
    loss: f64,
}

/// Quality for one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassMetrics {
    /// Examples of the class.
    pub support: usize,
    /// Share of correct ones among the examples that were predicted as the class; 0 if none was.
    pub precision: f64,
    /// Share of correct ones among the examples of the class; 0 if there are none.
    pub recall: f64,
    /// Harmonic mean of both; 0 if both are.
    pub f1: f64,
}

fn share(part: usize, all: usize) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

impl ClassificationReport {
    /// A report of no examples.
    pub fn new(classes: &[String]) -> Self {
        ClassificationReport {
            classes: classes.to_vec(),
            confusion: vec![vec![0; classes.len()]; classes.len()],
            loss: 0.0,
        }
    }

    /// Adds an example with its label; one that is no class counts for nothing.
    pub fn add(&mut self, label: usize, prediction: &Prediction) {
        let (predicted, _) = prediction.best();
        let count = self.confusion.get_mut(label).and_then(|row| row.get_mut(predicted));
        if let (Some(count), Some(&p)) = (count, prediction.probabilities().get(label)) {
            *count += 1;
            self.loss -= f64::from(p).max(f64::from(f32::MIN_POSITIVE)).ln();
        }
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.confusion.iter().flatten().sum()
    }

    /// Number of examples whose most probable class is their label.
    pub fn correct(&self) -> usize {
        (0..self.classes.len()).map(|class| self.confusion[class][class]).sum()
    }

    /// Share of correct examples.
    pub fn accuracy(&self) -> f64 {
        share(self.correct(), self.examples())
    }

    /// Mean cross-entropy in nats, from the probabilities in `f32`.
    pub fn loss(&self) -> f64 {
        self.loss / self.examples().max(1) as f64
    }

    /// Names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Examples by label (row) and predicted class (column).
    pub fn confusion(&self) -> &[Vec<usize>] {
        &self.confusion
    }

    /// Quality for a class.
    pub fn class(&self, class: usize) -> ClassMetrics {
        let support: usize = self.confusion[class].iter().sum();
        let predicted: usize = self.confusion.iter().map(|row| row[class]).sum();
        let correct = self.confusion[class][class];
        let (precision, recall) = (share(correct, predicted), share(correct, support));
        let sum = precision + recall;
        let f1 = if sum > 0.0 { 2.0 * precision * recall / sum } else { 0.0 };
        ClassMetrics {
            support,
            precision,
            recall,
            f1,
        }
    }

    /// Means of precision, recall and F1 over the classes that have examples; their support is that of all.
    pub fn macro_average(&self) -> ClassMetrics {
        let all: Vec<ClassMetrics> = (0..self.classes.len()).map(|c| self.class(c)).collect();
        let seen = all.iter().filter(|m| m.support > 0);
        let count = seen.clone().count().max(1) as f64;
        let mean = |of: fn(&ClassMetrics) -> f64| seen.clone().map(of).sum::<f64>() / count;
        ClassMetrics {
            support: self.examples(),
            precision: mean(|m| m.precision),
            recall: mean(|m| m.recall),
            f1: mean(|m| m.f1),
        }
    }
}

/// The first characters of a name.
fn short(name: &str, width: usize) -> String {
    match name.chars().count() > width {
        true => name.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

impl fmt::Display for ClassificationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAME: usize = 20;
        writeln!(
            f,
            "accuracy {:.2} % ({} of {}), loss {:.4}",
            100.0 * self.accuracy(),
            self.correct(),
            self.examples(),
            self.loss()
        )?;
        writeln!(f)?;
        writeln!(f, "{:NAME$}  precision  recall      F1  examples", "class")?;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, m: ClassMetrics| {
            let (p, r, f1) = (100.0 * m.precision, 100.0 * m.recall, 100.0 * m.f1);
            writeln!(
                f,
                "{:NAME$}  {p:7.1} %{r:6.1} %{f1:6.1} %{:10}",
                short(name, NAME),
                m.support
            )
        };
        for (class, name) in self.classes.iter().enumerate() {
            row(f, name, self.class(class))?;
        }
        row(f, "mean of classes", self.macro_average())?;
        if self.classes.len() > MAX_SHOWN {
            return Ok(());
        }
        writeln!(f)?;
        writeln!(f, "Rows are labels, columns predictions:")?;
        write!(f, "{:NAME$}", "")?;
        for number in 1..=self.classes.len() {
            write!(f, "{number:>6}")?;
        }
        writeln!(f)?;
        for (class, name) in self.classes.iter().enumerate() {
            write!(f, "{:NAME$}", short(&format!("{} {name}", class + 1), NAME))?;
            for count in &self.confusion[class] {
                write!(f, "{count:>6}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_match_numbers_computed_by_hand() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let mut report = ClassificationReport::new(&names);
        let of = |class: usize| {
            let mut logits = [0.0f32; 3];
            logits[class] = 2f32.ln();
            Prediction::of(&logits)
        };
        // Labels and predictions: a a, a b, b b, b b, b a.
        for (label, predicted) in [(0, 0), (0, 1), (1, 1), (1, 1), (1, 0)] {
            report.add(label, &of(predicted));
        }
        assert_eq!((report.examples(), report.correct()), (5, 3));
        let a = report.class(0);
        assert_eq!((a.support, a.precision, a.recall, a.f1), (2, 0.5, 0.5, 0.5));
        let b = report.class(1);
        assert!((b.precision - 2.0 / 3.0).abs() < 1e-12 && (b.recall - 2.0 / 3.0).abs() < 1e-12);
        // c has no examples, and takes no part in the mean.
        assert_eq!(report.class(2).f1, 0.0);
        assert!((report.macro_average().f1 - (0.5 + 2.0 / 3.0) / 2.0).abs() < 1e-12);
        // Probabilities are 1/2 for the predicted class and 1/4 for the others.
        let loss = (3.0 * 2f64.ln() + 2.0 * 4f64.ln()) / 5.0;
        assert!((report.loss() - loss).abs() < 1e-6);
        assert_eq!(report.confusion()[1], [1, 2, 0]);
        assert!(report.to_string().lines().all(|line| line.chars().count() <= 80));
    }
}
