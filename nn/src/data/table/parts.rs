//! Reading of training tables that are split into parts.

use std::path::Path;

use super::apply::TableReadOptions;
use super::fit::{TableOptions, UnfittedTable};
use super::{RawTable, TableProfile, TableSchema};
use crate::data::split::SplitRows;
use crate::data::{DataError, Parts, SplitOptions};

/// Parts of a table for training, validation and test.
#[derive(Clone, Debug, PartialEq)]
pub struct TableParts {
    /// Parts, with features `[width]` in the order of [`TableSchema::feature_names`], not
    /// standardised, and classes or one target of regression.
    pub parts: Parts,
    /// The columns, with the categories and fill values of the training part.
    pub schema: TableSchema,
    /// Names of the classes, by id; none for regression. Numbers are in their shortest form.
    pub class_names: Vec<String>,
    /// Reason for the guessed task, in words; `None` if the task was given.
    pub guess: Option<String>,
    /// Format and types of the columns, for a report.
    pub profile: TableProfile,
    /// Number of missing cells that were filled.
    pub filled: usize,
    /// Number of rows that were skipped because of missing cells.
    pub dropped: usize,
    /// Number of cells of the validation and test parts with a category that the training part does not have. Their
    /// features are all 0.
    pub unknown: usize,
}

/// Reads the CSV file at `path` and splits it, like [`read_table`](super::read_table) and
/// [`Dataset::split_parts`](crate::data::Dataset::split_parts), but the schema of the columns
/// (kinds, categories and fill values of missing cells) comes only from the training part. So the
/// validation and test parts measure a model on completely unseen data.
///
/// # Errors
///
/// [`DataError::Io`], and the errors of both functions.
pub fn read_table_parts(
    path: impl AsRef<Path>,
    options: &TableOptions,
    split: SplitOptions,
) -> Result<TableParts, DataError> {
    fit_table_parts(&RawTable::read(path, &options.format)?, options, split)
}

/// Splits a table in memory, like [`read_table_parts`]; the options must contain the format of the file.
///
/// # Errors
///
/// The errors of [`read_table_parts`], except for those of [`RawTable::parse`].
pub fn fit_table_parts(raw: &RawTable, options: &TableOptions, split: SplitOptions) -> Result<TableParts, DataError> {
    let begun = UnfittedTable::of(raw, options)?;
    let rows = SplitRows::of(raw.name(), begun.rows.len(), begun.targets.labels(), split)?;
    let mut train: Vec<usize> = rows.train.iter().map(|&at| begun.rows[at]).collect();
    // Errors name the first line that has them.
    train.sort_unstable();
    let schema = begun.schema(raw, options, &train)?;
    let unseen = TableReadOptions {
        unknown_as_zeros: true,
        ..TableReadOptions::default()
    };
    let (mut filled, mut unknown) = (0, 0);
    let mut part = |positions: &[usize], suffix: &str| {
        if positions.is_empty() {
            return Ok(None);
        }
        let (data, read) = begun.data(raw, &schema, positions, unseen)?;
        filled += read.filled;
        unknown += read.unknown;
        Ok::<_, DataError>(Some(data.with_name(format!("{} ({suffix})", raw.name()))))
    };
    let train = part(&rows.train, "train")?.ok_or_else(|| DataError::Empty {
        name: raw.name().into(),
    })?;
    let parts = Parts {
        train,
        validation: part(&rows.validation, "validation")?,
        test: part(&rows.test, "test")?,
    };
    Ok(TableParts {
        parts,
        schema,
        filled,
        unknown,
        profile: begun.profile,
        dropped: begun.dropped,
        class_names: begun.targets.into_names(),
        guess: begun.guess,
    })
}
