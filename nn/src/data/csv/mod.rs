//! Tables of numbers in CSV files.

mod records;

use std::io::Read;
use std::path::Path;

use meganeura_core::files::open_within_memory;

pub(super) use records::{Line, Records, length_error, number};

use super::classes::Labels;
use super::dataset::Dataset;
use super::error::DataError;

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// By its name in the header. If no column has this name, but the name is a number, it is the number of the column,
    /// from 1.
    Name(String),
    /// By its number, from 1, as in error messages.
    Number(usize),
    /// The last one.
    Last,
}

impl Column {
    /// Creates a [`Column::Name`].
    pub fn name(name: impl Into<String>) -> Self {
        Column::Name(name.into())
    }
}

/// The meaning of the first line of a table: column names, or an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// Names if none of its fields is a number, else an example.
    #[default]
    Auto,
    /// Names of the columns.
    Yes,
    /// An example, like all further lines.
    No,
}

/// Options for reading a CSV file. By default, the last column is the label, and all previous ones
/// are features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvOptions {
    /// The column of the class labels: words, or whole numbers.
    pub label: Column,
    /// Meaning of the first line.
    pub header: Header,
    /// Separator of fields; a comma by default.
    pub delimiter: u8,
    /// Columns that are neither label nor features; they may hold anything.
    pub ignore: Vec<Column>,
    /// Names of the classes by id, such as those of the training data for the test data. By
    /// default, they are the labels that occur, sorted: as numbers if all are, or else as text.
    pub classes: Option<Vec<String>>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions {
            label: Column::Last,
            header: Header::Auto,
            delimiter: b',',
            ignore: Vec::new(),
            classes: None,
        }
    }
}

/// The contents of a CSV file.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The examples, with one feature for each feature column.
    pub data: Dataset,
    /// Names of the feature columns; without a header, `column 1` and so on.
    pub feature_names: Vec<String>,
    /// Name of the label column.
    pub label_name: String,
    /// Labels as they are in the file, by class id; numbers in their shortest form.
    pub class_names: Vec<String>,
}

/// Reads the CSV file at `path`: one example per line; one of its columns is the label, the rest
/// are numbers.
///
/// Fields may be quoted and surrounded by spaces; empty lines and a byte order mark are skipped.
///
/// # Errors
///
/// [`DataError::Io`], and the errors of [`parse_csv`].
pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Table, DataError> {
    let name = path.as_ref().display().to_string();
    match open_within_memory(path.as_ref()) {
        Ok(file) => parse_csv(file, &name, options),
        Err(source) => Err(DataError::Io { name, source }),
    }
}

/// Reads a table like [`read_csv`] from any reader; `name` appears in errors. Memory grows with the
/// lines that actually exist.
///
/// # Errors
///
/// [`DataError::NotFound`] when there is no such column; [`DataError::Csv`], with line and column, for a line
/// of another length, a feature that is not a finite number, a label that is empty, a fraction, or none of the
/// given classes, and bytes that are not UTF-8; [`DataError::Empty`] without examples;
/// [`DataError::OutOfMemory`]; [`DataError::Io`].
///
/// # Example
///
/// ```
/// use meganeura_nn::data::{Column, CsvOptions, Standardiser, parse_csv};
///
/// # fn main() -> Result<(), meganeura_nn::data::DataError> {
/// let text = "id,length,width,kind\n1,5.1,3.5,setosa\n2,6.3,2.9,virginica\n3,4.9,3.0,setosa\n4,6.5,3.0,virginica\n";
/// let options = CsvOptions {
///     label: Column::name("kind"),
///     ignore: vec![Column::name("id")],
///     ..CsvOptions::default()
/// };
/// let table = parse_csv(text.as_bytes(), "flowers.csv", &options)?;
/// assert_eq!(table.feature_names, ["length", "width"]);
/// assert_eq!(table.class_names, ["setosa", "virginica"]);
/// assert_eq!(table.data.labels(), [0, 1, 0, 1]);
///
/// // Columns have different units: scale each of them before training.
/// let (train, test) = table.data.split(0.25, 0)?;
/// let scale = Standardiser::fit_per_feature(&train);
/// let (train, test) = (train.standardised(&scale)?, test.standardised(&scale)?);
/// # assert_eq!((train.len(), test.len()), (3, 1));
/// # Ok(())
/// # }
/// ```
pub fn parse_csv(reader: impl Read, name: &str, options: &CsvOptions) -> Result<Table, DataError> {
    let mut records = Records::of(reader, name, options.delimiter);
    let Some(first) = records.next()? else {
        return Err(DataError::Empty { name: name.into() });
    };
    let mut rows = Rows::of(name, &first, options)?;
    if !rows.header {
        rows.push(&first)?;
    }
    while let Some(line) = records.next()? {
        rows.push(&line)?;
    }
    rows.finish()
}

/// The examples read so far.
struct Rows<'o> {
    file: &'o str,
    delimiter: u8,
    /// True if the first line is the header.
    header: bool,
    columns: Vec<String>,
    label: usize,
    /// True for each column that is a feature.
    is_feature: Vec<bool>,
    features: Vec<f32>,
    labels: Labels,
}

impl<'o> Rows<'o> {
    /// Determines the columns from the first line.
    fn of(file: &'o str, first: &Line, options: &CsvOptions) -> Result<Self, DataError> {
        let (header, columns) = names(first, options.header);
        let find = |column: &Column| find(file, column, &columns, header);
        let label = find(&options.label)?;
        let mut is_feature = vec![true; columns.len()];
        is_feature[label] = false;
        for column in &options.ignore {
            is_feature[find(column)?] = false;
        }
        if !is_feature.contains(&true) {
            let reason = format!(
                "none of the {} columns is left for features; is '{}' the right delimiter?",
                columns.len(),
                char::from(options.delimiter)
            );
            return Err(DataError::Csv {
                name: file.into(),
                line: first.number,
                column: 1,
                reason,
            });
        }
        Ok(Rows {
            file,
            delimiter: options.delimiter,
            header,
            columns,
            label,
            is_feature,
            features: Vec::new(),
            labels: options.classes.as_deref().map_or_else(Labels::default, Labels::of),
        })
    }

    /// Adds an example.
    fn push(&mut self, line: &Line) -> Result<(), DataError> {
        let (found, expected) = (line.fields.len(), self.columns.len());
        if found != expected {
            return Err(length_error(self.file, line, expected, self.delimiter));
        }
        if self.features.try_reserve(expected).is_err() {
            return Err(DataError::OutOfMemory {
                name: self.file.into(),
                rows: line.number,
                columns: expected,
            });
        }
        for (at, &field) in line.fields.iter().enumerate().filter(|&(at, _)| self.is_feature[at]) {
            let value = number(field).map_err(|what| {
                let reason = format!(
                    "{what} in '{}'; expected a finite number: correct it, remove the line, or ignore the column",
                    self.columns[at]
                );
                self.refuse(line, at, reason)
            })?;
            self.features.push(value);
        }
        let pushed = self.labels.push(line.fields[self.label]);
        pushed.map_err(|reason| self.refuse(line, self.label, reason))
    }

    fn refuse(&self, line: &Line, column: usize, reason: String) -> DataError {
        DataError::Csv {
            name: self.file.into(),
            line: line.number,
            column: column + 1,
            reason,
        }
    }

    fn finish(mut self) -> Result<Table, DataError> {
        let label_name = self.columns[self.label].clone();
        let (labels, class_names) = self.labels.finish().map_err(|fraction| DataError::Csv {
            name: self.file.into(),
            line: 1,
            column: self.label + 1,
            reason: format!(
                "the labels in '{label_name}' are numbers with fractions, such as {fraction}; class labels are words \
                 or whole numbers: is this the label column?"
            ),
        })?;
        let mut is_feature = self.is_feature.iter();
        self.columns.retain(|_| is_feature.next() == Some(&true));
        let width = self.columns.len();
        Ok(Table {
            data: Dataset::new(self.file, self.features, vec![width], labels, class_names.len().max(1))?,
            feature_names: self.columns,
            label_name,
            class_names,
        })
    }
}

/// Returns whether the first line is a header, and the names of the columns.
pub(super) fn names(first: &Line, header: Header) -> (bool, Vec<String>) {
    let is_number = |field: &&str| field.parse::<f64>().is_ok();
    let header = match header {
        Header::Auto => !first.fields.iter().any(is_number),
        Header::Yes => true,
        Header::No => false,
    };
    let columns = if header {
        first.fields.iter().map(|&f| f.to_owned()).collect()
    } else {
        (1..=first.fields.len()).map(|n| format!("column {n}")).collect()
    };
    (header, columns)
}

/// Returns the index of a column.
pub(super) fn find(file: &str, column: &Column, columns: &[String], header: bool) -> Result<usize, DataError> {
    let by_number = |number: usize| number.checked_sub(1).filter(|&at| at < columns.len());
    let (wanted, found) = match column {
        Column::Last => ("last".to_owned(), columns.len().checked_sub(1)),
        Column::Number(number) => (number.to_string(), by_number(*number)),
        Column::Name(name) => {
            let mut same = (0..columns.len()).filter(|&at| header && columns[at] == *name);
            let found = same.next();
            if let (Some(first), Some(second)) = (found, same.next()) {
                return Err(DataError::Csv {
                    name: file.into(),
                    line: 1,
                    column: second + 1,
                    reason: format!("column {} is called '{name}', too; give its number instead", first + 1),
                });
            }
            (name.clone(), found.or_else(|| by_number(name.parse().ok()?)))
        }
    };
    found.ok_or_else(|| DataError::NotFound {
        name: file.into(),
        what: "column",
        wanted,
        there: columns.to_vec(),
    })
}

#[cfg(test)]
mod tests;
