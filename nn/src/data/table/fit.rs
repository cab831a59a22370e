//! Reading of tables for training.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use super::apply::{Encoded, Row, TableReadOptions};
use super::profile::{MAX_CATEGORIES, TableProfile, TypeChoice, TypedColumn, has_times};
use super::roles::Roles;
use super::{ColumnKind, ColumnType, FeatureColumn, RawTable, TableFormat, TableSchema};
use crate::data::classes::Labels;
use crate::data::{Column, DataError, Dataset};

/// Maximum number of distinct whole numbers that are guessed to be classes.
const MAX_NUMBERED_CLASSES: usize = 20;

/// The task of a table's target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskChoice {
    /// Guessed from the data. Words are classes. Whole numbers are classes if there are few
    /// distinct ones: at most 20, and at most a tenth of the rows (three are always allowed). Other
    /// numbers are targets of regression.
    #[default]
    Guess,
    /// Classes: words, or whole numbers.
    Classification,
    /// Numbers to predict.
    Regression,
}

/// The handling of missing cells in training data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingCells {
    /// They are errors, also when the model is used.
    #[default]
    Refuse,
    /// Missing numbers become the mean of their column, missing texts its most frequent one; the
    /// same values fill missing cells when the model is used. A missing target is an error.
    Mean,
    /// Rows with missing cells or without a target are skipped. When the model is used, missing
    /// cells are errors.
    Drop,
}

/// Options for reading a table of training data. By default, the last column is the target and all
/// previous ones are features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The column of the target.
    pub target: Column,
    /// Task of the target.
    pub task: TaskChoice,
    /// Format of the text. By default, it is guessed.
    pub format: TableFormat,
    /// Columns that are neither target nor features; they may hold anything.
    pub ignore: Vec<Column>,
    /// Columns of numbers that are categories, such as postal codes.
    pub categorical: Vec<Column>,
    /// Types of columns, instead of the guessed ones. These columns are never left out.
    pub types: Vec<(Column, TypeChoice)>,
    /// Handling of missing cells.
    pub missing: MissingCells,
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions {
            target: Column::Last,
            task: TaskChoice::Guess,
            format: TableFormat::default(),
            ignore: Vec::new(),
            categorical: Vec::new(),
            types: Vec::new(),
            missing: MissingCells::Refuse,
        }
    }
}

/// Training data from a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingTable {
    /// Examples, with features `[width]` in the order of [`TableSchema::feature_names`], not
    /// standardised, and classes or one target of regression.
    pub data: Dataset,
    /// Columns, for reading tables for the trained model.
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
}

/// Reads the CSV file at `path` for training: columns of numbers and texts, one of them the target.
///
/// Types of columns are guessed from all rows ([`ColumnType`]), unless the options give them. Identifiers, constant columns and
/// texts that rarely repeat are left out. Categories and fill values of missing cells come from the whole file
/// ([`read_table_parts`](super::read_table_parts) takes them only from the training part). A file
/// in which all columns contain words needs [`Header::Yes`](crate::data::Header::Yes) or
/// [`Header::No`](crate::data::Header::No): otherwise its first line is taken for the header.
///
/// # Errors
///
/// [`DataError::Io`], and the errors of [`parse_table`].
pub fn read_table(path: impl AsRef<Path>, options: &TableOptions) -> Result<TrainingTable, DataError> {
    fit_table(&RawTable::read(path, &options.format)?, options)
}

/// Reads a table like [`read_table`] from any reader; `name` appears in errors.
///
/// # Errors
///
/// The errors of [`RawTable::parse`]; [`DataError::NotFound`] if a column does not exist;
/// [`DataError::Csv`], with line and column, for missing cells (depending on [`MissingCells`]), a number
/// that is not finite, a text among numbers, a given column of categories with more than 1000 of them, no column that is left for
/// features, two columns of the same name, targets of regression that are no numbers, and a
/// target with one class only; [`DataError::OutOfMemory`].
///
/// # Example
///
/// ```
/// use meganeura_nn::data::{Column, MissingCells, TableOptions, parse_table};
///
/// # fn main() -> Result<(), meganeura_nn::data::DataError> {
/// let text = "rooms,district,price\n3,north,250.5\n2,south,180\n1,north,?\n";
/// let options = TableOptions {
///     target: Column::name("rooms"),
///     missing: MissingCells::Drop,
///     ..TableOptions::default()
/// };
/// let table = parse_table(text.as_bytes(), "t.csv", &options)?;
/// assert_eq!(table.schema.feature_names(), ["district=north", "district=south", "price"]);
/// assert_eq!(table.data.features(), [1.0, 0.0, 250.5, 0.0, 1.0, 180.0]);
/// assert_eq!((table.dropped, table.class_names.join(" ")), (1, "2 3".into()));
/// # Ok(())
/// # }
/// ```
pub fn parse_table(reader: impl Read, name: &str, options: &TableOptions) -> Result<TrainingTable, DataError> {
    fit_table(&RawTable::parse(reader, name, &options.format)?, options)
}

/// Fits a table in memory, like [`parse_table`]; the options must contain the format of the file.
///
/// # Errors
///
/// The errors of [`parse_table`], except for those of [`RawTable::parse`].
pub fn fit_table(raw: &RawTable, options: &TableOptions) -> Result<TrainingTable, DataError> {
    let begun = UnfittedTable::of(raw, options)?;
    let schema = begun.schema(raw, options, &begun.rows)?;
    let all: Vec<usize> = (0..begun.rows.len()).collect();
    let (data, read) = begun.data(raw, &schema, &all, TableReadOptions::default())?;
    Ok(TrainingTable {
        data,
        schema,
        profile: begun.profile,
        filled: read.filled,
        dropped: begun.dropped,
        class_names: begun.targets.into_names(),
        guess: begun.guess,
    })
}

/// Returns the format and the types of the columns of a table in memory, for a report. Missing cells are no errors.
///
/// # Errors
///
/// [`DataError::NotFound`] if a column does not exist; [`DataError::Csv`], with line and column, if no column is left for features, and
/// for two columns of the same name.
pub fn profile_table(raw: &RawTable, options: &TableOptions) -> Result<TableProfile, DataError> {
    let options = TableOptions {
        missing: MissingCells::Drop,
        ..options.clone()
    };
    // Missing or invalid targets are no errors in a report.
    match UnfittedTable::of(raw, &options) {
        Ok(table) => Ok(table.profile),
        Err(_) => Ok(Roles::of(raw, &options)?.profile(raw)),
    }
}

/// The contents of the target column.
pub(super) enum Targets {
    /// Class ids, and names of the classes.
    Classes(Vec<u32>, Vec<String>),
    Numbers(Vec<f32>),
}

impl Targets {
    /// Returns the class ids; none for regression.
    pub(super) fn labels(&self) -> &[u32] {
        match self {
            Targets::Classes(labels, _) => labels,
            Targets::Numbers(_) => &[],
        }
    }

    pub(super) fn into_names(self) -> Vec<String> {
        match self {
            Targets::Classes(_, names) => names,
            Targets::Numbers(_) => Vec::new(),
        }
    }
}

/// A table with known rows and targets, but without features.
pub(super) struct UnfittedTable {
    roles: Roles,
    pub(super) profile: TableProfile,
    pub(super) rows: Vec<Row>,
    pub(super) dropped: usize,
    pub(super) guess: Option<String>,
    /// Targets of the rows.
    pub(super) targets: Targets,
}

impl UnfittedTable {
    pub(super) fn of(raw: &RawTable, options: &TableOptions) -> Result<Self, DataError> {
        let mut roles = Roles::of(raw, options)?;
        let (rows, dropped) = roles.rows(raw, options.missing)?;
        let (is_regression, guess) = match options.task {
            TaskChoice::Classification => (false, None),
            TaskChoice::Regression => (true, None),
            TaskChoice::Guess => {
                let (is_regression, why) = guess(raw, roles.target, &rows)?;
                (is_regression, Some(why))
            }
        };
        let targets = if is_regression {
            Targets::Numbers(numbers(raw, roles.target, &rows)?)
        } else {
            let (labels, names) = classes(raw, roles.target, &rows)?;
            Targets::Classes(labels, names)
        };
        for &column in &roles.features {
            let typed = &mut roles.types[column];
            match &targets {
                Targets::Classes(labels, _) => typed.note_leak(raw, column, &rows, labels),
                Targets::Numbers(values) => typed.note_correlation(raw, column, &rows, values),
            }
        }
        Ok(UnfittedTable {
            profile: roles.profile(raw),
            roles,
            rows,
            dropped,
            guess,
            targets,
        })
    }

    /// Determines the schema of the columns from these rows.
    pub(super) fn schema(
        &self,
        raw: &RawTable,
        options: &TableOptions,
        rows: &[Row],
    ) -> Result<TableSchema, DataError> {
        let roles = &self.roles;
        let name = |&column: &usize| raw.columns()[column].clone();
        let mut columns = Vec::new();
        for column in &roles.features {
            columns.push(FeatureColumn {
                name: name(column),
                kind: kind(raw, *column, rows, &roles.types[*column], options.missing)?,
            });
        }
        let schema = TableSchema {
            header: raw.header(),
            delimiter: raw.delimiter(),
            decimal: raw.decimal(),
            missing: raw.missing_words().to_vec(),
            columns,
            target: name(&roles.target),
            ignored: roles.ignored().map(|column| name(&column)).collect(),
        };
        match schema.check() {
            Ok(()) => Ok(schema),
            Err(reason) => Err(raw.refuse(rows[0], roles.features[0], reason)),
        }
    }

    /// Returns the examples at these positions of the rows.
    pub(super) fn data(
        &self,
        raw: &RawTable,
        schema: &TableSchema,
        positions: &[usize],
        options: TableReadOptions,
    ) -> Result<(Dataset, Encoded), DataError> {
        let rows: Vec<Row> = positions.iter().map(|&at| self.rows[at]).collect();
        let mut read = schema.features(raw, &self.roles.features, &rows, options)?;
        let (name, shape, values) = (raw.name(), vec![schema.width()], std::mem::take(&mut read.values));
        let data = match &self.targets {
            Targets::Numbers(all) => {
                let targets = positions.iter().map(|&at| all[at]).collect();
                Dataset::regression(name, values, shape, targets, 1)?
            }
            Targets::Classes(all, names) => {
                let labels = positions.iter().map(|&at| all[at]).collect();
                Dataset::new(name, values, shape, labels, names.len())?
            }
        };
        Ok((data, read))
    }
}

/// Creates the error at a missing cell.
pub(super) fn missing_cell(raw: &RawTable, row: usize, column: usize) -> DataError {
    let reason = format!(
        "the value of '{}' is missing; fill it in, or fill or drop all missing values (`--missing mean`, `--missing drop`)",
        raw.columns()[column]
    );
    raw.refuse(row, column, reason)
}

/// Determines the kind of a column from its cells.
fn kind(
    raw: &RawTable,
    column: usize,
    rows: &[usize],
    typed: &TypedColumn,
    missing: MissingCells,
) -> Result<ColumnKind, DataError> {
    let name = &raw.columns()[column];
    let cells = || {
        rows.iter()
            .filter_map(|&row| Some((row, typed.text(raw, row, column)?)))
    };
    let all = cells().count();
    if all == 0 {
        let reason = format!("'{name}' has no values in the rows to train on; ignore the column");
        return Err(raw.refuse(rows[0], column, reason));
    }
    let fill = missing == MissingCells::Mean;
    if let Some(buckets) = typed.buckets {
        // Missing texts have no words.
        let fill = fill.then(String::new);
        return Ok(ColumnKind::Text { buckets, fill });
    }
    if !matches!(typed.column_type, ColumnType::Number | ColumnType::Integer) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, cell) in cells() {
            *counts.entry(cell).or_default() += 1;
        }
        // The most frequent text; of several, the first one.
        let frequent = counts.iter().rev().max_by_key(|(_, count)| **count);
        let fill = frequent.filter(|_| fill).map(|(text, _)| (*text).to_owned());
        if let Some(format) = &typed.date_format {
            return Ok(ColumnKind::Date {
                time: has_times(counts.keys().copied(), format),
                format: format.clone(),
                fill,
            });
        }
        if counts.len() > MAX_CATEGORIES {
            let reason = format!(
                "'{name}' has more than {MAX_CATEGORIES} different texts, which is too many for categories; ignore the \
                 column, or give it the type text"
            );
            return Err(raw.refuse(rows[0], column, reason));
        }
        return Ok(ColumnKind::Categorical {
            fill,
            categories: counts.keys().map(|&text| text.to_owned()).collect(),
        });
    }
    let mut sum = 0.0;
    for (row, cell) in cells() {
        sum += raw.number(cell).map_err(|what| {
            let reason = format!(
                "{what} in '{name}', where most cells are numbers; correct it, ignore the column (`--ignore`), read it as \
                 categories (`--type`), or list words for missing values (`--missing-words`)"
            );
            raw.refuse(row, column, reason)
        })?;
    }
    Ok(ColumnKind::Number {
        fill: fill.then_some((sum / all as f64) as f32),
    })
}

/// Returns whether the task is guessed to be regression, and the reason.
fn guess(raw: &RawTable, target: usize, rows: &[usize]) -> Result<(bool, String), DataError> {
    let name = &raw.columns()[target];
    let mut different = BTreeSet::new();
    let (mut numbers, mut fractions, mut word) = (0, 0, None);
    for &row in rows {
        let cell = raw.cell(row, target);
        different.insert(cell);
        match raw.number(cell) {
            Ok(value) => {
                numbers += 1;
                fractions += usize::from(value.fract() != 0.0);
            }
            Err(_) => word = word.or(Some(row)),
        }
    }
    let count = different.len();
    if let Some(row) = word {
        if numbers * 2 > rows.len() && count > MAX_NUMBERED_CLASSES {
            let reason = format!(
                "'{}' is not a number, but most targets in '{name}' are; correct it, or select classification",
                raw.cell(row, target)
            );
            return Err(raw.refuse(row, target, reason));
        }
        return Ok((
            false,
            format!("classification, as '{name}' has words, {count} different ones"),
        ));
    }
    if fractions > 0 {
        return Ok((true, format!("regression, as '{name}' has numbers with fractions")));
    }
    let limit = MAX_NUMBERED_CLASSES.min((rows.len() / 10).max(3));
    let numbers = format!("'{name}' has {count} different whole numbers in {} rows", rows.len());
    Ok(if count <= limit {
        (false, format!("classification, as {numbers}"))
    } else {
        (true, format!("regression, as {numbers}"))
    })
}

/// Reads targets of regression.
pub(super) fn numbers(raw: &RawTable, target: usize, rows: &[usize]) -> Result<Vec<f32>, DataError> {
    let value = |&row: &usize| {
        let value = raw.number(raw.cell(row, target)).map_err(|what| {
            let reason = format!(
                "{what}; expected a finite number as target in '{}'",
                raw.columns()[target]
            );
            raw.refuse(row, target, reason)
        })?;
        Ok(value as f32)
    };
    rows.iter().map(value).collect()
}

/// Reads class ids, and the names of the classes.
fn classes(raw: &RawTable, target: usize, rows: &[usize]) -> Result<(Vec<u32>, Vec<String>), DataError> {
    let name = &raw.columns()[target];
    let mut labels = Labels::default();
    for &row in rows {
        let pushed = labels.push(raw.cell(row, target));
        pushed.map_err(|reason| raw.refuse(row, target, reason))?;
    }
    let (labels, names) = labels.finish().map_err(|fraction| {
        let row = rows.iter().find(|&&row| raw.cell(row, target) == fraction);
        let reason = format!(
            "{fraction} in '{name}' has a fraction; class labels are words or whole numbers: is this regression?"
        );
        raw.refuse(row.copied().unwrap_or(rows[0]), target, reason)
    })?;
    if let [only] = &names[..] {
        let reason = format!("'{name}' is '{only}' in every row; expected at least two classes");
        return Err(raw.refuse(rows[0], target, reason));
    }
    Ok((labels, names))
}

/// Reads class ids among known classes.
pub(super) fn known_classes(
    raw: &RawTable,
    target: usize,
    rows: &[Row],
    classes: &[String],
) -> Result<Vec<u32>, DataError> {
    let mut labels = Labels::of(classes);
    for &row in rows {
        let pushed = labels.push(raw.cell(row, target));
        pushed.map_err(|reason| raw.refuse(row, target, format!("{reason}: {}", some_of(classes))))?;
    }
    // Known classes are never fractions.
    Ok(labels.finish().map(|(labels, _)| labels).unwrap_or_default())
}

/// Returns names with commas between them, unless they are too many to help.
pub(super) fn some_of(names: &[String]) -> String {
    crate::data::error::listed(names)
}
