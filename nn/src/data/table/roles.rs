//! The roles of a table's columns: target, features, and columns that are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::RawTable;
use super::fit::{MissingCells, TableOptions, missing_cell};
use super::profile::{ColumnUse, TableProfile, TypeChoice, TypedColumn};
use crate::data::{Column, DataError};

/// Columns by role.
pub(super) struct Roles {
    pub(super) target: usize,
    pub(super) features: Vec<usize>,
    /// Types of all columns.
    pub(super) types: Vec<TypedColumn>,
    /// Columns that the options exclude.
    excluded: BTreeSet<usize>,
}

impl Roles {
    pub(super) fn of(raw: &RawTable, options: &TableOptions) -> Result<Self, DataError> {
        let find = |column: &Column| raw.column(column);
        let target = find(&options.target)?;
        let mut excluded = options.ignore.iter().map(find).collect::<Result<BTreeSet<_>, _>>()?;
        excluded.remove(&target);
        let mut choices: BTreeMap<usize, &TypeChoice> = BTreeMap::new();
        for column in &options.categorical {
            choices.insert(find(column)?, &TypeChoice::Category);
        }
        for (column, choice) in &options.types {
            choices.insert(find(column)?, choice);
        }
        let typed = |column| TypedColumn::of(raw, column, choices.get(&column).copied());
        let types: Vec<TypedColumn> = (0..raw.columns().len()).map(typed).collect::<Result<_, _>>()?;
        let is_left_out = |column: &usize| types[*column].left_out.is_some();
        let all = 0..raw.columns().len();
        let candidates: Vec<usize> = all.filter(|c| *c != target && !excluded.contains(c)).collect();
        let features: Vec<usize> = candidates.iter().copied().filter(|c| !is_left_out(c)).collect();
        if features.is_empty() {
            return Err(raw.refuse(0, 0, no_features(raw, &candidates, &types)));
        }
        // Names must be unique, because the trained model finds columns by their names.
        let mut seen = BTreeMap::from([(&raw.columns()[target], target)]);
        for &column in &features {
            if let Some(first) = seen.insert(&raw.columns()[column], column) {
                return Err(DataError::Csv {
                    name: raw.name().into(),
                    line: 1,
                    column: column + 1,
                    reason: format!(
                        "column {} is called '{}', too; rename one of them, or ignore one by its number",
                        first + 1,
                        raw.columns()[column]
                    ),
                });
            }
        }
        Ok(Roles {
            target,
            features,
            types,
            excluded,
        })
    }

    /// Returns the columns that are neither target nor features, because the options exclude them or because of their type.
    pub(super) fn ignored(&self) -> impl Iterator<Item = usize> {
        // The features are in the order of the table.
        let is_feature = |column: &usize| self.features.binary_search(column).is_ok();
        (0..self.types.len()).filter(move |column| *column != self.target && !is_feature(column))
    }

    /// Returns the report on the columns.
    pub(super) fn profile(&self, raw: &RawTable) -> TableProfile {
        let column = |(at, typed): (usize, &TypedColumn)| {
            let usage = if at == self.target {
                ColumnUse::Target
            } else if self.excluded.contains(&at) {
                ColumnUse::Ignored
            } else {
                ColumnUse::Features
            };
            typed.clone().profile(&raw.columns()[at], usage)
        };
        TableProfile {
            name: raw.name().to_owned(),
            rows: raw.len(),
            header: raw.header(),
            delimiter: char::from(raw.delimiter()),
            decimal: raw.decimal(),
            encoding: raw.encoding(),
            is_json_lines: raw.is_json_lines(),
            columns: self.types.iter().enumerate().map(column).collect(),
        }
    }

    /// Returns the rows to train on, and the number of skipped ones.
    pub(super) fn rows(&self, raw: &RawTable, missing: MissingCells) -> Result<(Vec<usize>, usize), DataError> {
        let mut rows = Vec::with_capacity(raw.len());
        for row in 0..raw.len() {
            let is_missing = |column: &&usize| self.types[**column].text(raw, row, **column).is_none();
            let feature = self.features.iter().find(is_missing);
            let target = Some(&self.target).filter(is_missing);
            match (missing, feature, target) {
                (MissingCells::Drop, None, None)
                | (MissingCells::Mean, _, None)
                | (MissingCells::Refuse, None, None) => rows.push(row),
                (MissingCells::Drop, ..) => {}
                (MissingCells::Refuse, Some(&column), _) => return Err(missing_cell(raw, row, column)),
                (_, _, Some(&column)) => {
                    let reason = format!(
                        "the target '{}' is missing; fill it in, or remove the row",
                        raw.columns()[column]
                    );
                    return Err(raw.refuse(row, column, reason));
                }
            }
        }
        if rows.is_empty() {
            return Err(raw.refuse(0, 0, "every row has a missing value, so none is left"));
        }
        let dropped = raw.len() - rows.len();
        Ok((rows, dropped))
    }
}

/// Maximum number of columns in the error for a table without features.
const MAX_REASONS: usize = 5;

/// Returns the error message for a table without features.
fn no_features(raw: &RawTable, candidates: &[usize], types: &[TypedColumn]) -> String {
    let reasons: Vec<String> = candidates
        .iter()
        .filter_map(|&column| {
            Some(format!(
                "'{}': {}",
                raw.columns()[column],
                types[column].left_out.as_ref()?
            ))
        })
        .collect();
    match &reasons[..] {
        [] => format!(
            "none of the {} columns is left for features; is '{}' the right delimiter?",
            raw.columns().len(),
            char::from(raw.delimiter())
        ),
        _ => format!(
            "no column is left for features ({}{}); give a column a type to keep it",
            reasons[..reasons.len().min(MAX_REASONS)].join("; "),
            if reasons.len() > MAX_REASONS { "; ..." } else { "" }
        ),
    }
}
