//! What the columns of a table become.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::data::{Dataset, Standardiser};

/// Most values that an example of a table may become.
const MAX_WIDTH: usize = 1 << 20;

/// A column that a model takes features from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureColumn {
    /// Name in the header; `column N` without one.
    pub name: String,
    /// What its cells become.
    pub kind: ColumnKind,
}

/// What the cells of a column become.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ColumnKind {
    /// A finite number, which is one feature.
    Number {
        /// Number that is taken for a missing one; without, a missing one is an error.
        fill: Option<f32>,
    },
    /// One of some texts, which is as many features: 1 for that text, 0 for the others.
    Categorical {
        /// The texts, sorted.
        categories: Vec<String>,
        /// Text that is taken for a missing one; without, a missing one is an error.
        fill: Option<String>,
    },
}

impl ColumnKind {
    /// Features that a cell becomes.
    pub fn width(&self) -> usize {
        match self {
            ColumnKind::Number { .. } => 1,
            ColumnKind::Categorical { categories, .. } => categories.len(),
        }
    }
}

/// The columns of a table of training data: which of them are features, and which is the target. It reads tables of
/// the same columns for the model that was trained on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSchema {
    /// Whether the first line has the names of the columns. If not, they are `column 1` and so on.
    pub header: bool,
    /// What stands between fields.
    pub delimiter: u8,
    /// Feature columns, in the order in which the model takes them.
    pub columns: Vec<FeatureColumn>,
    /// Column of the target.
    pub target: String,
    /// Columns that are neither; tables may or may not have them.
    pub ignored: Vec<String>,
}

impl TableSchema {
    /// Features of an example.
    pub fn width(&self) -> usize {
        self.columns
            .iter()
            .map(|c| c.kind.width())
            .fold(0, usize::saturating_add)
    }

    /// Names of all features: of the column, with `=` and the category for categorical ones.
    pub fn feature_names(&self) -> Vec<String> {
        let mut names = Vec::with_capacity(self.width().min(MAX_WIDTH));
        for column in &self.columns {
            match &column.kind {
                ColumnKind::Number { .. } => names.push(column.name.clone()),
                ColumnKind::Categorical { categories, .. } => {
                    names.extend(categories.iter().map(|c| format!("{}={c}", column.name)));
                }
            }
        }
        names
    }

    /// Statistics of the numbers of training data that this schema read; features of categorical columns stay 0 and 1.
    /// Data of another width gets [`Standardiser::fit_per_feature`].
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

    /// Checks a schema that may come from a damaged file; the error says what is wrong.
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
                        return Err(format!("column '{name}': categories are missing, or there twice"));
                    }
                    if fill.as_ref().is_some_and(|fill| !different.contains(fill)) {
                        return Err(format!("column '{name}': the fill value is none of the categories"));
                    }
                }
            }
        }
        Ok(())
    }
}
