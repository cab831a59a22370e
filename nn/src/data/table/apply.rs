//! Reading of tables for a trained model.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;

use super::fit::{known_classes, missing_cell, numbers, some_of};
use super::{ColumnKind, RawTable, TableFormat, TableSchema};
use crate::data::{DataError, Dataset, Header};

/// Position of a row in a [`RawTable`].
pub(super) type Row = usize;

/// Options for reading a table for a trained model. By default, anything that the training data did
/// not have is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableReadOptions {
    /// True if an unknown category becomes features that are all 0, instead of an error.
    pub unknown_as_zeros: bool,
    /// True if rows with missing cells are skipped when the training data gave no fill value for
    /// them, instead of an error. Rows without a target are skipped as well.
    pub drop_missing: bool,
    /// True if a target column is ignored.
    pub ignore_target: bool,
}

/// The rows of a table for a trained model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TableRows {
    /// The file.
    pub name: String,
    /// Features, `[rows, width]`, not standardised.
    pub features: Vec<f32>,
    /// Position in the table of each row that was read.
    pub rows: Vec<usize>,
    /// Line in the file of each row that was read, from 1.
    pub lines: Vec<usize>,
    /// Targets in the table.
    pub targets: TableTargets,
    /// Number of missing cells that were filled.
    pub filled: usize,
    /// Number of rows that were skipped because of missing cells.
    pub dropped: usize,
    /// Number of cells with a category that the training data did not have.
    pub unknown: usize,
}

impl TableRows {
    /// Returns the rows with their targets, for an evaluation; `None` without targets. `classes` is
    /// the number of classes, for classification.
    ///
    /// # Errors
    ///
    /// The errors of [`Dataset::new`] and [`Dataset::regression`].
    pub fn dataset(&self, classes: usize) -> Result<Option<Dataset>, DataError> {
        let (name, features) = (self.name.clone(), || self.features.clone());
        let shape = vec![self.features.len() / self.rows.len().max(1)];
        match &self.targets {
            TableTargets::None => Ok(None),
            TableTargets::Classes(labels) => Dataset::new(name, features(), shape, labels.clone(), classes).map(Some),
            TableTargets::Numbers(values) => Dataset::regression(name, features(), shape, values.clone(), 1).map(Some),
        }
    }
}

/// The targets in a table.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TableTargets {
    /// No targets: the column is missing, empty or ignored.
    None,
    /// Class ids of all rows.
    Classes(Vec<u32>),
    /// Numbers of all rows.
    Numbers(Vec<f32>),
}

/// Features of some rows.
pub(super) struct Encoded {
    /// Features, `[rows, width]`.
    pub(super) values: Vec<f32>,
    pub(super) filled: usize,
    pub(super) unknown: usize,
}

impl TableSchema {
    /// Reads the CSV file at `path` for the trained model. Columns are found by their names, in any order; the target's
    /// may be missing. `classes` are the names of the classes by id, or none for regression.
    ///
    /// Without a header in the training data, columns are found by their numbers; the target's may be missing.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and the errors of [`parse`](Self::parse).
    pub fn read(
        &self,
        path: impl AsRef<Path>,
        classes: &[String],
        options: TableReadOptions,
    ) -> Result<TableRows, DataError> {
        self.apply(&RawTable::read(path, &self.format())?, classes, options)
    }

    /// Reads a table like [`read`](Self::read) from any reader; `name` appears in errors.
    ///
    /// # Errors
    ///
    /// The errors of [`RawTable::parse`] and [`apply`](Self::apply).
    pub fn parse(
        &self,
        reader: impl Read,
        name: &str,
        classes: &[String],
        options: TableReadOptions,
    ) -> Result<TableRows, DataError> {
        let raw = RawTable::parse(reader, name, &self.format())?;
        self.apply(&raw, classes, options)
    }

    /// Returns the format of the table that the schema was determined from. The encoding is guessed.
    pub fn format(&self) -> TableFormat {
        TableFormat {
            encoding: None,
            header: if self.header { Header::Yes } else { Header::No },
            delimiter: Some(self.delimiter),
            decimal: Some(self.decimal),
            missing: self.missing.clone(),
        }
    }

    /// Reads a table in memory, like [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`DataError::Columns`] for columns that are missing, duplicate or unknown; [`DataError::Csv`], with line and
    /// column, for cells that are missing, not finite numbers or unknown categories, and targets that are none of the
    /// classes or no numbers; [`DataError::Empty`] when no row is left; [`DataError::OutOfMemory`].
    pub fn apply(&self, raw: &RawTable, classes: &[String], options: TableReadOptions) -> Result<TableRows, DataError> {
        let names = self.names_of(raw);
        let columns = self.find(raw, &names)?;
        let target = names.iter().position(|name| *name == self.target);
        let target = target
            .filter(|&target| !options.ignore_target && (0..raw.len()).any(|row| raw.value(row, target).is_some()));
        let is_whole = |row: Row| {
            let mut features = columns.iter().zip(&self.columns);
            features.all(|(&at, column)| column.kind.text(raw, row, at).is_some() || column.kind.has_fill())
                && target.is_none_or(|target| raw.value(row, target).is_some())
        };
        let rows: Vec<Row> = if options.drop_missing {
            (0..raw.len()).filter(|&row| is_whole(row)).collect()
        } else {
            (0..raw.len()).collect()
        };
        if rows.is_empty() {
            return Err(DataError::Empty {
                name: raw.name().into(),
            });
        }
        let read = self.features(raw, &columns, &rows, options)?;
        let targets = match target {
            None => TableTargets::None,
            Some(target) if classes.is_empty() => TableTargets::Numbers(numbers(raw, target, &rows)?),
            Some(target) => TableTargets::Classes(known_classes(raw, target, &rows, classes)?),
        };
        Ok(TableRows {
            name: raw.name().to_owned(),
            features: read.values,
            lines: rows.iter().map(|&row| raw.line(row)).collect(),
            targets,
            filled: read.filled,
            dropped: raw.len() - rows.len(),
            unknown: read.unknown,
            rows,
        })
    }

    /// Returns the names of the columns of a table, in its order.
    fn names_of(&self, raw: &RawTable) -> Vec<String> {
        let all = self.columns.len() + self.ignored.len() + 1;
        let number = self
            .target
            .strip_prefix("column ")
            .and_then(|n| n.parse::<usize>().ok());
        match number {
            // Without a header and without the target, the columns after the target have moved.
            Some(target) if !self.header && raw.columns().len() + 1 == all => {
                let moved = |n: usize| if n < target { n } else { n + 1 };
                (1..all).map(|n| format!("column {}", moved(n))).collect()
            }
            _ => raw.columns().to_vec(),
        }
    }

    /// Returns the positions of the feature columns among these names.
    fn find(&self, raw: &RawTable, names: &[String]) -> Result<Vec<usize>, DataError> {
        let mut places: HashMap<&str, usize> = HashMap::new();
        // Tables have up to some hundred thousand columns, so each name is looked up in a hash set
        // instead of being compared with all names.
        let features: HashSet<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        let ignored: HashSet<&str> = self.ignored.iter().map(String::as_str).collect();
        let is_feature = |name: &String| features.contains(name.as_str());
        let is_ignored = |name: &String| ignored.contains(name.as_str()) && !is_feature(name);
        let mut twice = Vec::new();
        for (at, name) in names.iter().enumerate() {
            if places.insert(name, at).is_some() && !is_ignored(name) {
                twice.push(name.clone());
            }
        }
        let wanted = self.columns.iter();
        let missing: Vec<String> = wanted
            .clone()
            .filter(|c| !places.contains_key(c.name.as_str()))
            .map(|c| c.name.clone())
            .collect();
        let is_known = |name: &&String| **name == self.target || is_ignored(name) || is_feature(name);
        let unknown: Vec<String> = names.iter().filter(|name| !is_known(name)).cloned().collect();
        if !missing.is_empty() || !unknown.is_empty() || !twice.is_empty() {
            return Err(DataError::Columns {
                name: raw.name().into(),
                missing,
                unknown,
                twice,
            });
        }
        Ok(wanted.filter_map(|c| places.get(c.name.as_str()).copied()).collect())
    }

    /// Returns the features of these rows, from the columns at these positions.
    pub(super) fn features(
        &self,
        raw: &RawTable,
        places: &[usize],
        rows: &[Row],
        options: TableReadOptions,
    ) -> Result<Encoded, DataError> {
        let width = self.width();
        let mut values: Vec<f32> = Vec::new();
        let size = rows.len().checked_mul(width);
        if size.is_none_or(|size| values.try_reserve_exact(size).is_err()) {
            return Err(DataError::OutOfMemory {
                name: raw.name().into(),
                rows: rows.len(),
                columns: width,
            });
        }
        let ids: Vec<HashMap<&str, usize>> = self.columns.iter().map(|c| c.kind.ids()).collect();
        let (mut filled, mut unknown) = (0, 0);
        for &row in rows {
            for ((column, &at), ids) in self.columns.iter().zip(places).zip(&ids) {
                let cell = column.kind.text(raw, row, at);
                match &column.kind {
                    ColumnKind::Number { fill } => {
                        values.push(match (cell, fill) {
                            (Some(cell), _) => raw.number(cell).map_err(|what| {
                                raw.refuse(row, at, format!("{what} in '{}', a column of numbers", column.name))
                            })? as f32,
                            (None, Some(fill)) => {
                                filled += 1;
                                *fill
                            }
                            (None, None) => return Err(missing_cell(raw, row, at)),
                        });
                    }
                    ColumnKind::Date { format, time, fill } => {
                        filled += usize::from(cell.is_none());
                        let text = cell.or(fill.as_deref()).ok_or_else(|| missing_cell(raw, row, at))?;
                        let features = ColumnKind::date_features(text, format, *time).ok_or_else(|| {
                            let reason = format!("'{text}' in '{}' is no date of the format {format}", column.name);
                            raw.refuse(row, at, reason)
                        })?;
                        values.extend(features);
                    }
                    ColumnKind::Text { buckets, fill } => {
                        filled += usize::from(cell.is_none());
                        let text = cell.or(fill.as_deref()).ok_or_else(|| missing_cell(raw, row, at))?;
                        values.extend(ColumnKind::text_features(text, *buckets));
                    }
                    ColumnKind::Categorical { categories, fill } => {
                        filled += usize::from(cell.is_none());
                        let text = cell.or(fill.as_deref()).ok_or_else(|| missing_cell(raw, row, at))?;
                        let id = ids.get(text).copied();
                        if id.is_none() && !options.unknown_as_zeros {
                            let reason = format!(
                                "'{text}' in '{}' is not a category of the training data, which has {}; encode unknown words \
                                 as zeros (`--unknown-words`), or train again",
                                column.name,
                                some_of(categories)
                            );
                            return Err(raw.refuse(row, at, reason));
                        }
                        unknown += usize::from(id.is_none());
                        values.extend((0..categories.len()).map(|i| f32::from(u8::from(Some(i) == id))));
                    }
                }
            }
        }
        Ok(Encoded {
            values,
            filled,
            unknown,
        })
    }
}

impl ColumnKind {
    fn has_fill(&self) -> bool {
        match self {
            ColumnKind::Number { fill } => fill.is_some(),
            ColumnKind::Categorical { fill, .. } | ColumnKind::Date { fill, .. } | ColumnKind::Text { fill, .. } => {
                fill.is_some()
            }
        }
    }

    /// Returns the text of a cell, unless it is missing.
    fn text<'r>(&self, raw: &'r RawTable, row: usize, column: usize) -> Option<&'r str> {
        match self {
            ColumnKind::Number { .. } | ColumnKind::Date { .. } => raw.number_text(row, column),
            ColumnKind::Categorical { .. } | ColumnKind::Text { .. } => raw.value(row, column),
        }
    }

    /// Returns the ids of the categories.
    fn ids(&self) -> HashMap<&str, usize> {
        match self {
            ColumnKind::Number { .. } | ColumnKind::Date { .. } | ColumnKind::Text { .. } => HashMap::new(),
            ColumnKind::Categorical { categories, .. } => {
                let ids = categories.iter().enumerate();
                ids.map(|(id, text)| (text.as_str(), id)).collect()
            }
        }
    }
}
