//! Quality measures of classifiers, class by class.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of columns of a terminal.
const COLUMNS: usize = 80;
/// Maximum number of characters of a class name in a table.
const NAME: usize = 24;
/// Maximum number of listed classes and confusions.
const MAX_LISTED: usize = 40;

/// Quality of a classifier by class. As text it has at most 80 columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassificationReport {
    /// All classes, by id.
    pub classes: Vec<ClassMetrics>,
    /// The confusion matrix, without its zeros: by class, then by predicted class.
    pub confusion: Vec<Confusion>,
    /// Number of examples whose predicted class is correct.
    pub correct: usize,
    /// Number of examples.
    pub examples: usize,
    /// Means over the classes that have examples or were predicted.
    pub macro_average: Averages,
}

/// Quality for one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassMetrics {
    /// Name of the class.
    pub name: String,
    /// Fraction of the examples with this predicted class that belong to the class; 0 if there are none.
    pub precision: f64,
    /// Fraction of the examples of the class whose predicted class is correct; 0 if there are none.
    pub recall: f64,
    /// Harmonic mean of precision and recall; 0 if both are 0.
    pub f1: f64,
    /// Number of examples of the class.
    pub examples: usize,
    /// Number of examples whose predicted class is this one.
    pub predicted: usize,
}

/// Means over classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Averages {
    /// Mean precision.
    pub precision: f64,
    /// Mean recall, also called balanced accuracy.
    pub recall: f64,
    /// Mean F1.
    pub f1: f64,
}

/// A cell of a confusion matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusion {
    /// Id of the class of the examples.
    pub class: usize,
    /// Id of the predicted class.
    pub predicted: usize,
    /// Number of examples, at least 1.
    pub count: usize,
}

impl ClassificationReport {
    /// Computes the report from the class ids of examples and the predicted ids. Pairs are ignored if one of their ids
    /// has no name. If one list is longer, its remaining entries are ignored.
    pub fn of(names: &[String], labels: &[u32], predicted: &[usize]) -> Self {
        let mut cells: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut classes: Vec<ClassMetrics> = names.iter().map(|name| ClassMetrics::of(name)).collect();
        let (mut correct, mut hits) = (0, vec![0_usize; names.len()]);
        let mut examples = 0;
        for (&label, &predicted) in labels.iter().zip(predicted) {
            let label = label as usize;
            if label.max(predicted) >= classes.len() {
                continue;
            }
            *cells.entry((label, predicted)).or_default() += 1;
            classes[label].examples += 1;
            classes[predicted].predicted += 1;
            hits[label] += usize::from(label == predicted);
            correct += usize::from(label == predicted);
            examples += 1;
        }
        let ratio = |part: usize, all: usize| part as f64 / all.max(1) as f64;
        let (mut sums, mut count) = (Averages::default(), 0);
        for (class, hits) in classes.iter_mut().zip(hits) {
            class.precision = ratio(hits, class.predicted);
            class.recall = ratio(hits, class.examples);
            class.f1 = ratio(2 * hits, class.predicted + class.examples);
            if class.predicted + class.examples > 0 {
                sums.precision += class.precision;
                sums.recall += class.recall;
                sums.f1 += class.f1;
                count += 1;
            }
        }
        let mean = |sum: f64| sum / f64::from(count.max(1));
        let cell = |((class, predicted), count)| Confusion {
            class,
            predicted,
            count,
        };
        ClassificationReport {
            classes,
            confusion: cells.into_iter().map(cell).collect(),
            correct,
            examples,
            macro_average: Averages {
                precision: mean(sums.precision),
                recall: mean(sums.recall),
                f1: mean(sums.f1),
            },
        }
    }

    /// Returns the share of correct examples, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.examples.max(1) as f64
    }

    /// Returns the number of examples of `class` for which `predicted` was predicted, both by id.
    pub fn count(&self, class: usize, predicted: usize) -> usize {
        let found = self
            .confusion
            .iter()
            .find(|c| (c.class, c.predicted) == (class, predicted));
        found.map_or(0, |c| c.count)
    }

    fn name(&self, class: usize) -> String {
        self.classes
            .get(class)
            .map_or_else(String::new, |c| short(&c.name, NAME))
    }

    /// Writes all cells, with the classes by number.
    fn matrix(&self, f: &mut fmt::Formatter<'_>, cell: usize, name: usize) -> fmt::Result {
        writeln!(
            f,
            "confusion matrix: a row for each class, a column for each predicted one"
        )?;
        let number = digits(self.classes.len());
        write!(f, "{:number$} {:name$}", "", "")?;
        (1..=self.classes.len()).try_for_each(|id| write!(f, " {id:>cell$}"))?;
        writeln!(f)?;
        let mut cells = self.confusion.iter().peekable();
        for class in 0..self.classes.len() {
            write!(f, "{:>number$} {:name$}", class + 1, self.name(class))?;
            for predicted in 0..self.classes.len() {
                let found = cells.next_if(|c| (c.class, c.predicted) == (class, predicted));
                write!(f, " {:>cell$}", found.map_or(0, |c| c.count))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// Writes the largest cells off the diagonal.
    fn confusions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wrong: Vec<&Confusion> = self.confusion.iter().filter(|c| c.class != c.predicted).collect();
        wrong.sort_by_key(|c| std::cmp::Reverse(c.count));
        if wrong.is_empty() {
            return Ok(());
        }
        writeln!(f, "most frequent confusions")?;
        for c in wrong.iter().take(10) {
            let (class, predicted) = (self.name(c.class), self.name(c.predicted));
            writeln!(f, "{:>8} of {class:NAME$} as {predicted}", c.count)?;
        }
        match wrong.len().saturating_sub(10) {
            0 => Ok(()),
            more => writeln!(f, "         and {more} other pairs"),
        }
    }
}

impl ClassMetrics {
    fn of(name: &str) -> Self {
        ClassMetrics {
            name: name.to_owned(),
            precision: 0.0,
            recall: 0.0,
            f1: 0.0,
            examples: 0,
            predicted: 0,
        }
    }
}

impl fmt::Display for ClassificationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = self.classes.len().min(MAX_LISTED);
        let names = self.classes.iter().map(|c| c.name.chars().count());
        let name = names.max().unwrap_or(0).clamp("macro average".len(), NAME);
        writeln!(f, "{:name$} precision    recall        F1  examples", "class")?;
        let mut row = |label: &str, [precision, recall, f1]: [f64; 3], examples: usize| {
            writeln!(
                f,
                "{label:name$} {precision:>9.4} {recall:>9.4} {f1:>9.4} {examples:>9}"
            )
        };
        for (id, class) in self.classes[..listed].iter().enumerate() {
            row(
                &self.name(id),
                [class.precision, class.recall, class.f1],
                class.examples,
            )?;
        }
        let Averages { precision, recall, f1 } = self.macro_average;
        row("macro average", [precision, recall, f1], self.examples)?;
        if self.classes.len() > listed {
            writeln!(f, "(and {} other classes)", self.classes.len() - listed)?;
        }
        let (percent, correct, examples) = (100.0 * self.accuracy(), self.correct, self.examples);
        writeln!(f, "accuracy {percent:.2} % ({correct} of {examples})\n")?;
        let largest = self.confusion.iter().map(|c| c.count).max().unwrap_or(0);
        let cell = digits(largest).max(digits(self.classes.len()));
        let name = name.min(self.classes.iter().map(|c| c.name.chars().count()).max().unwrap_or(0));
        let width = self.classes.len().saturating_mul(cell + 1) + digits(self.classes.len()) + 1 + name;
        if width <= COLUMNS {
            self.matrix(f, cell, name)
        } else {
            self.confusions(f)
        }
    }
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |n| n as usize + 1)
}

/// Shortens a text to at most `most` characters, and replaces characters that would break a table.
fn short(text: &str, most: usize) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    if text.chars().count() > most {
        text.chars().take(most - 1).map(clean).chain(['…']).collect()
    } else {
        text.chars().map(clean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("class {i}")).collect()
    }

    fn close(found: [f64; 3], expected: [f64; 3]) {
        assert!(
            found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12),
            "{found:?}"
        );
    }

    #[test]
    fn metrics_match_hand_computed_values() {
        let report = ClassificationReport::of(&names(4), &[0, 0, 0, 1, 1, 2], &[0, 0, 1, 1, 0, 0]);
        let of = |id: usize| {
            [
                report.classes[id].precision,
                report.classes[id].recall,
                report.classes[id].f1,
            ]
        };
        close(of(0), [0.5, 2.0 / 3.0, 4.0 / 7.0]);
        close(of(1), [0.5, 0.5, 0.5]);
        close(of(2), [0.0; 3]);
        let mean = report.macro_average;
        let third = |sum: f64| sum / 3.0;
        // The last class neither has examples nor was predicted.
        close(
            [mean.precision, mean.recall, mean.f1],
            [third(1.0), third(2.0 / 3.0 + 0.5), third(4.0 / 7.0 + 0.5)],
        );
        assert_eq!((report.correct, report.examples, report.accuracy()), (3, 6, 0.5));
        assert_eq!((report.count(0, 1), report.count(2, 0), report.count(2, 2)), (1, 1, 0));
        let none = ClassificationReport::of(&[], &[1], &[0]);
        assert_eq!(
            (none.examples, none.accuracy(), none.macro_average),
            (0, 0.0, Averages::default())
        );
        assert!(!none.to_string().is_empty());
    }

    #[test]
    fn the_text_is_a_table() {
        let report = ClassificationReport::of(&["cat".into(), "dog".into()], &[0, 0, 1], &[0, 1, 1]);
        let expected = "\
class         precision    recall        F1  examples
cat              1.0000    0.5000    0.6667         2
dog              0.5000    1.0000    0.6667         1
macro average    0.7500    0.7500    0.6667         3
accuracy 66.67 % (2 of 3)

confusion matrix: a row for each class, a column for each predicted one
      1 2
1 cat 1 1
2 dog 0 1
";
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn the_text_fits_into_eighty_columns() {
        for (classes, examples) in [
            (1, 10),
            (3, 1_000_000),
            (10, 5000),
            (25, 100),
            (30, 100_000),
            (2000, 5000),
        ] {
            let mut names = names(classes);
            names[0] = "a name\nthat is\tmuch longer than any column of a table could be".into();
            let labels: Vec<u32> = (0..examples).map(|i| i % classes as u32).collect();
            let predicted: Vec<usize> = (0..examples as usize).map(|i| i / 7 % classes).collect();
            let report = ClassificationReport::of(&names, &labels, &predicted);
            let text = report.to_string();
            for line in text.lines() {
                assert!(line.chars().count() <= COLUMNS, "{line}");
            }
            assert!(text.lines().count() < 100);
            let json = serde_json::to_string(&report).expect("JSON");
            assert_eq!(
                serde_json::from_str::<ClassificationReport>(&json)
                    .expect("JSON")
                    .classes
                    .len(),
                classes
            );
        }
    }
}
