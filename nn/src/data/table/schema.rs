//! The schema of a table: its columns and their features.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::DecimalMark;
use super::dates::{ISO, days, read_date};
use crate::data::{Dataset, Standardiser};

/// Maximum number of features of an example.
const MAX_WIDTH: usize = 1 << 20;

/// A column that a model takes features from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureColumn {
    /// Name in the header; `column N` without one.
    pub name: String,
    /// Kind of its cells.
    pub kind: ColumnKind,
}

/// The features of a column's cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ColumnKind {
    /// A finite number, which is one feature.
    Number {
        /// Fill value of missing cells; without it, they are errors.
        fill: Option<f32>,
    },
    /// One of some texts, with one feature per text: 1 for the text of the cell, 0 for all others.
    Categorical {
        /// The texts, sorted.
        categories: Vec<String>,
        /// Fill value of missing cells; without it, they are errors.
        fill: Option<String>,
    },
    /// A date: the days since 1970, the month (1 to 12), the day of the week (1 for Monday), and the hour if `time` is true.
    Date {
        /// `iso` for ISO 8601, or conversions of `strftime`.
        format: String,
        /// True if the dates have times.
        time: bool,
        /// Fill value of missing cells; without it, they are errors.
        fill: Option<String>,
    },
    /// A text with one feature per bucket of a hash (Weinberger et al., 2009, "Feature Hashing for Large Scale Multitask
    /// Learning"). Words are sequences of letters and digits, in lower case. Each adds plus or minus 1 to the feature of its
    /// bucket; all features are divided by the square root of the number of words.
    Text {
        /// Number of buckets.
        buckets: usize,
        /// Fill value of missing cells; without it, they are errors.
        fill: Option<String>,
    },
}

impl ColumnKind {
    /// Returns the number of features of a cell.
    pub fn width(&self) -> usize {
        match self {
            ColumnKind::Number { .. } => 1,
            ColumnKind::Categorical { categories, .. } => categories.len(),
            ColumnKind::Date { time, .. } => Self::date_parts(*time).len(),
            ColumnKind::Text { buckets, .. } => *buckets,
        }
    }

    /// Returns the names of a date's features.
    fn date_parts(time: bool) -> &'static [&'static str] {
        const PARTS: [&str; 4] = ["days", "month", "weekday", "hour"];
        if time { &PARTS } else { &PARTS[..3] }
    }

    /// Returns the features of a text.
    pub(super) fn text_features(text: &str, buckets: usize) -> Vec<f32> {
        let mut features = vec![0.0; buckets];
        let mut count = 0;
        for word in text
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
        {
            let hash = fnv1a(word.to_lowercase().as_bytes());
            // The last bit is the sign, so that collisions cancel out on average.
            features[((hash >> 1) % buckets as u64) as usize] += if hash & 1 == 0 { 1.0 } else { -1.0 };
            count += 1;
        }
        let scale = (count.max(1) as f32).sqrt();
        features.iter_mut().for_each(|feature| *feature /= scale);
        features
    }

    /// Returns the features of a date; `None` if the cell is none.
    pub(super) fn date_features(cell: &str, format: &str, time: bool) -> Option<Vec<f32>> {
        let date = read_date(cell, format)?;
        let weekday = date.weekday().to_monday_one_offset();
        let mut features = vec![days(date) as f32, f32::from(date.month()), f32::from(weekday)];
        if time {
            features.push(f32::from(date.hour()) + f32::from(date.minute()) / 60.0);
        }
        Some(features)
    }
}

/// Returns the 64-bit FNV-1a hash. Saved models depend on it.
fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The columns of a table of training data, with their roles: features and target. The schema reads
/// tables with the same columns for the trained model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSchema {
    /// True if the first line has the names of the columns. If not, they are `column 1` and so on.
    pub header: bool,
    /// Separator of fields.
    pub delimiter: u8,
    /// Decimal mark of numbers.
    #[serde(default)]
    pub decimal: DecimalMark,
    /// Words for missing cells, in lower case, in addition to the usual ones.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Feature columns, in the order of the model's features.
    pub columns: Vec<FeatureColumn>,
    /// Column of the target.
    pub target: String,
    /// Columns that are neither features nor target; tables may have them or not.
    pub ignored: Vec<String>,
}

impl TableSchema {
    /// Returns the number of features of an example.
    pub fn width(&self) -> usize {
        self.columns
            .iter()
            .map(|c| c.kind.width())
            .fold(0, usize::saturating_add)
    }

    /// Returns the names of all features: that of the column, with `=` and the category for
    /// categorical ones, with `.` and the part for dates, and with `#` and the bucket for texts.
    pub fn feature_names(&self) -> Vec<String> {
        let mut names = Vec::with_capacity(self.width().min(MAX_WIDTH));
        for column in &self.columns {
            match &column.kind {
                ColumnKind::Number { .. } => names.push(column.name.clone()),
                ColumnKind::Categorical { categories, .. } => {
                    names.extend(categories.iter().map(|c| format!("{}={c}", column.name)));
                }
                ColumnKind::Date { time, .. } => {
                    let parts = ColumnKind::date_parts(*time).iter();
                    names.extend(parts.map(|part| format!("{}.{part}", column.name)));
                }
                ColumnKind::Text { buckets, .. } => {
                    names.extend((0..*buckets).map(|bucket| format!("{}#{bucket}", column.name)));
                }
            }
        }
        names
    }

    /// Returns the indices of the features of each column, in the order of [`columns`](Self::columns).
    pub fn feature_ranges(&self) -> Vec<Range<usize>> {
        let mut start = 0;
        let of_column = |column: &FeatureColumn| {
            let range = start..start + column.kind.width();
            start = range.end;
            range
        };
        self.columns.iter().map(of_column).collect()
    }

    /// Returns the statistics of the numbers in training data that this schema read; features of
    /// categorical columns stay 0 and 1. Data of another width gets
    /// [`Standardiser::fit_per_feature`].
    pub fn standardiser(&self, train: &Dataset) -> Standardiser {
        let fitted = Standardiser::fit_per_feature(train);
        if train.feature_len() != self.width() {
            return fitted;
        }
        let (mut mean, mut std) = (fitted.mean().to_vec(), fitted.std().to_vec());
        let mut at = 0;
        for column in &self.columns {
            let width = column.kind.width();
            if matches!(column.kind, ColumnKind::Categorical { .. }) {
                mean[at..at + width].fill(0.0);
                std[at..at + width].fill(1.0);
            }
            at += width;
        }
        Standardiser::new(mean, std).unwrap_or(fitted)
    }

    /// Checks a schema that may come from a damaged file; the error is the reason why it is
    /// invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.columns.is_empty() || self.width() == 0 {
            return Err("there are no feature columns".into());
        }
        if self.width() > MAX_WIDTH {
            return Err(format!("there are more than {MAX_WIDTH} features"));
        }
        let mut names = BTreeSet::from([self.target.as_str()]);
        for FeatureColumn { name, kind } in &self.columns {
            if !names.insert(name) {
                return Err(format!("two columns are called '{name}'"));
            }
            match kind {
                ColumnKind::Number { fill: Some(fill) } if !fill.is_finite() => {
                    return Err(format!(
                        "column '{name}': the fill value is {fill}, not a finite number"
                    ));
                }
                ColumnKind::Number { .. } => {}
                ColumnKind::Categorical { categories, fill } => {
                    let different: BTreeSet<_> = categories.iter().collect();
                    if categories.is_empty() || different.len() != categories.len() {
                        return Err(format!("column '{name}': categories are missing or repeated"));
                    }
                    if fill.as_ref().is_some_and(|fill| !different.contains(fill)) {
                        return Err(format!("column '{name}': the fill value is none of the categories"));
                    }
                }
                ColumnKind::Date { format, fill, .. } => {
                    if format != ISO && !format.contains('%') {
                        return Err(format!("column '{name}': '{format}' is no format of dates"));
                    }
                    if fill.as_ref().is_some_and(|fill| read_date(fill, format).is_none()) {
                        return Err(format!("column '{name}': the fill value is no date of its format"));
                    }
                }
                ColumnKind::Text { buckets: 0, .. } => return Err(format!("column '{name}': there are no buckets")),
                ColumnKind::Text { .. } => {}
            }
        }
        Ok(())
    }
}
