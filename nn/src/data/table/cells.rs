//! The cells of a table as text.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;

use meganeura_core::files::open_within_memory;

use super::format::{Contents, contents, guess_decimal};
use super::json_lines::{JsonRows, read_json_lines};
use super::numbers::read_number;
use super::parquet::{ParquetRows, read_parquet};
use super::{DecimalMark, TableFormat, TextEncoding};
use crate::data::csv::{Records, find, length_error, names};
use crate::data::{Column, DataError, Header};

/// Words for missing cells in any column, in lower case.
const MISSING: [&str; 8] = ["", "?", "na", "n/a", "#n/a", "<na>", "nan", "null"];
/// Words for missing cells in columns of numbers and dates. In other columns, they may be values.
const NO_NUMBER: [&str; 9] = ["none", "nil", "n.a.", "missing", "unknown", "-", "--", ".", "..."];

/// Maximum number of cells for each given one in JSON lines with many cells.
const MAX_SPARSITY: usize = 20;
/// Number of cells that is always allowed.
const MIN_CELLS: usize = 1 << 20;

/// A table as it is in its file, CSV, JSON lines or Parquet: cells as text, with the numbers of their lines.
///
/// Cells that are empty, `NA`, `N/A`, `NaN`, `NULL` (in any case) or `?` are missing, and the words of
/// [`TableFormat::missing`].
#[derive(Clone, Debug)]
pub struct RawTable {
    name: String,
    header: bool,
    delimiter: u8,
    decimal: DecimalMark,
    /// Character encoding of the file; `None` for Parquet.
    encoding: Option<TextEncoding>,
    is_json_lines: bool,
    /// Further words for missing cells, in lower case.
    missing: Vec<String>,
    columns: Vec<String>,
    /// All cells, concatenated, row by row.
    text: String,
    /// End of each cell in the text.
    ends: Vec<usize>,
    /// Line of each row, from 1.
    lines: Vec<usize>,
}

impl RawTable {
    /// Reads the file of CSV, JSON lines or Parquet at `path`.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and the errors of [`parse`](Self::parse).
    pub fn read(path: impl AsRef<Path>, format: &TableFormat) -> Result<Self, DataError> {
        let name = path.as_ref().display().to_string();
        match open_within_memory(path.as_ref()) {
            Ok(file) => RawTable::parse(file, &name, format),
            Err(source) => Err(DataError::Io { name, source }),
        }
    }

    /// Reads a table like [`read`](Self::read) from any reader; `name` appears in errors. A text in another encoding than UTF-8
    /// is converted. A text that begins with `{` is JSON lines: each line is an object with the cells of a row by the names of
    /// their columns; cells that are missing or `null` are missing. A file that begins with `PAR1` is Parquet, which needs the
    /// feature `parquet`; its lines are the numbers of its rows.
    ///
    /// # Errors
    ///
    /// [`DataError::Csv`], with line and column, for a line of another length than the first one, bytes that are not UTF-8, and
    /// nested columns; [`DataError::Empty`] without rows; [`DataError::OutOfMemory`]; [`DataError::Io`], also for a text that is
    /// not valid in its encoding, and for Parquet without the feature.
    pub fn parse(reader: impl Read, name: &str, format: &TableFormat) -> Result<Self, DataError> {
        let io = |source| DataError::Io {
            name: name.into(),
            source,
        };
        let decoded = match contents(reader, format.encoding).map_err(io)? {
            Contents::Text(decoded) => decoded,
            Contents::Parquet(bytes) => return RawTable::of_parquet(read_parquet(bytes, name)?, name, format),
        };
        let encoding = Some(decoded.encoding);
        if decoded.is_json_lines() {
            let table = RawTable::of_json_lines(read_json_lines(decoded.text, name)?, name, format)?;
            return Ok(RawTable {
                encoding,
                is_json_lines: true,
                ..table
            });
        }
        let announced = decoded.announced_delimiter();
        let delimiter = format.delimiter.or(announced).unwrap_or_else(|| decoded.delimiter());
        let mut records = Records::of(decoded.text, name, delimiter);
        let empty = || DataError::Empty { name: name.into() };
        if announced.is_some() {
            records.next()?;
        }
        let first = records.next()?.ok_or_else(empty)?;
        // The decimal mark is guessed later.
        let is_number = |field: &&str| {
            let marks = [DecimalMark::Point, DecimalMark::Comma];
            let has_letters = field.contains(char::is_alphabetic) && field.parse::<f64>().is_err();
            // A name such as `EUR 2024` is no number.
            !has_letters && marks.iter().any(|mark| read_number(field, *mark).is_ok())
        };
        let assumed = match format.header {
            Header::Auto if first.fields.iter().any(is_number) => Header::No,
            Header::Auto => Header::Yes,
            given => given,
        };
        let (header, columns) = names(&first, assumed);
        let mut table = RawTable {
            header,
            delimiter,
            decimal: format.decimal.unwrap_or_default(),
            encoding,
            ..RawTable::empty(name, columns, format)
        };
        if !header {
            table.push(&first.fields, first.number);
        }
        while let Some(line) = records.next()? {
            if line.fields.len() != table.columns.len() {
                return Err(length_error(name, &line, table.columns.len(), delimiter));
            }
            table.push(&line.fields, line.number);
        }
        if table.lines.is_empty() {
            return Err(empty());
        }
        table.drop_empty_last();
        if format.decimal.is_none() {
            table.decimal = guess_decimal(&table);
        }
        if format.header == Header::Auto && !header && table.begins_with_names() {
            table.take_names();
        }
        Ok(table)
    }

    /// Removes the last column if its name and its cells are empty: each line ends with a delimiter. Without a header, the column
    /// stays, because numbers identify columns.
    fn drop_empty_last(&mut self) {
        let width = self.columns.len();
        let is_unnamed = self.header && self.columns.last().is_some_and(String::is_empty);
        if width < 2 || !is_unnamed || (0..self.len()).any(|row| !self.cell(row, width - 1).is_empty()) {
            return;
        }
        self.columns.pop();
        let mut place = 0usize;
        self.ends.retain(|_| {
            place += 1;
            !place.is_multiple_of(width)
        });
    }

    /// Returns a table without rows, with a header and a decimal point.
    fn empty(name: &str, columns: Vec<String>, format: &TableFormat) -> Self {
        RawTable {
            name: name.into(),
            header: true,
            delimiter: format.delimiter.unwrap_or(b','),
            decimal: DecimalMark::Point,
            encoding: None,
            is_json_lines: false,
            missing: format.missing.iter().map(|word| word.to_lowercase()).collect(),
            columns,
            text: String::new(),
            ends: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Converts rows of JSON lines, which always have names and a decimal point.
    fn of_json_lines(found: JsonRows, name: &str, format: &TableFormat) -> Result<Self, DataError> {
        let JsonRows { columns, rows } = found;
        if rows.is_empty() || columns.is_empty() {
            return Err(DataError::Empty { name: name.into() });
        }
        let mut table = RawTable::empty(name, columns, format);
        let width = table.columns.len();
        let given: usize = rows.iter().map(|(_, cells)| cells.len()).sum();
        // Missing cells take memory, too.
        if width.saturating_mul(rows.len()) > given.saturating_mul(MAX_SPARSITY).saturating_add(MIN_CELLS) {
            return Err(DataError::Csv {
                name: name.into(),
                line: rows.last().map_or(1, |(line, _)| *line),
                column: 1,
                reason: format!(
                    "expected the same keys in most lines, found {width} keys in all, and {} in a line on average",
                    given / rows.len()
                ),
            });
        }
        for (line, cells) in &rows {
            let mut fields = vec![""; width];
            for (column, text) in cells {
                fields[*column] = text;
            }
            table.push(&fields, *line);
        }
        Ok(table)
    }

    /// Converts rows of a Parquet file, which always have names and a decimal point. The lines are the numbers of the rows.
    fn of_parquet(found: ParquetRows, name: &str, format: &TableFormat) -> Result<Self, DataError> {
        let width = found.columns.len();
        if found.rows == 0 || width == 0 {
            return Err(DataError::Empty { name: name.into() });
        }
        Ok(RawTable {
            lines: (1..=found.rows).collect(),
            text: found.text,
            ends: found.ends,
            ..RawTable::empty(name, found.columns, format)
        })
    }

    /// Returns true if the first row, which has numbers, still looks like names of the columns: it has a word above numbers
    /// only, or whole numbers (such as years) next to a word that occurs once above words that all occur several times.
    fn begins_with_names(&self) -> bool {
        const ROWS: usize = 3;
        if self.len() <= ROWS {
            return false;
        }
        let columns = 0..self.columns.len();
        let below = |column: usize| (1..self.len()).filter_map(move |row| self.value(row, column));
        let is_number = |cell: &str| self.number(cell).is_ok();
        let is_word = |column: &usize| self.value(0, *column).is_some_and(|cell| !is_number(cell));
        let above_numbers = |column: usize| below(column).count() >= ROWS && below(column).all(is_number);
        if columns.clone().filter(is_word).any(above_numbers) {
            return true;
        }
        let is_whole = |cell: &str| self.number(cell).is_ok_and(|value| value.fract() == 0.0);
        let numbers: Vec<&str> = columns
            .clone()
            .filter(|c| !is_word(c))
            .map(|c| self.cell(0, c))
            .collect();
        let are_distinct = numbers.iter().collect::<HashSet<_>>().len() == numbers.len();
        let above_repeated = |column: usize| {
            let mut counts: HashMap<&str, usize> = HashMap::new();
            for cell in below(column) {
                *counts.entry(cell).or_default() += 1;
            }
            !counts.contains_key(self.cell(0, column)) && counts.values().all(|&count| count > 1)
        };
        numbers.into_iter().all(is_whole) && are_distinct && columns.filter(is_word).any(above_repeated)
    }

    /// Makes the first row the names of the columns.
    fn take_names(&mut self) {
        let width = self.columns.len();
        self.columns = (0..width).map(|column| self.cell(0, column).to_owned()).collect();
        let length = self.ends[width - 1];
        self.text.drain(..length);
        self.ends.drain(..width);
        self.ends.iter_mut().for_each(|end| *end -= length);
        self.lines.remove(0);
        self.header = true;
    }

    fn push(&mut self, fields: &[&str], line: usize) {
        for field in fields {
            self.text.push_str(field);
            self.ends.push(self.text.len());
        }
        self.lines.push(line);
    }

    /// Returns the name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the first line has the names of the columns.
    pub fn header(&self) -> bool {
        self.header
    }

    /// Returns the separator of fields.
    pub fn delimiter(&self) -> u8 {
        self.delimiter
    }

    /// Returns the decimal mark of numbers.
    pub fn decimal(&self) -> DecimalMark {
        self.decimal
    }

    /// Returns true if the file has JSON lines.
    pub(super) fn is_json_lines(&self) -> bool {
        self.is_json_lines
    }

    /// Returns the character encoding of the file; `None` for Parquet.
    pub fn encoding(&self) -> Option<TextEncoding> {
        self.encoding
    }

    /// Returns the further words for missing cells, in lower case.
    pub fn missing_words(&self) -> &[String] {
        &self.missing
    }

    /// Returns the names of the columns; without a header, `column 1` and so on.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Returns the index of a column, by its name or its number from 1.
    ///
    /// # Errors
    ///
    /// [`DataError::NotFound`] if it does not exist.
    pub fn column(&self, column: &Column) -> Result<usize, DataError> {
        find(&self.name, column, &self.columns, self.header)
    }

    /// Returns the number of rows, without the header; at least 1.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns `false`: a table has at least one row.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the line of a row in the file, from 1; 0 past the end.
    pub fn line(&self, row: usize) -> usize {
        self.lines.get(row).copied().unwrap_or(0)
    }

    /// Returns the text of a cell, without spaces around it; empty past the end.
    pub fn cell(&self, row: usize, column: usize) -> &str {
        if column >= self.columns.len() {
            return "";
        }
        let at = row * self.columns.len() + column;
        let start = at
            .checked_sub(1)
            .map_or(0, |before| self.ends.get(before).copied().unwrap_or(0));
        let end = self.ends.get(at).copied().unwrap_or(start);
        &self.text[start..end]
    }

    /// Returns the text of a cell, unless it is missing.
    pub(super) fn value(&self, row: usize, column: usize) -> Option<&str> {
        let cell = self.cell(row, column);
        let is = |word: &str| cell.eq_ignore_ascii_case(word);
        let is_missing = MISSING.iter().any(|word| is(word))
            || !self.missing.is_empty() && self.missing.contains(&cell.to_lowercase());
        (!is_missing).then_some(cell)
    }

    /// Returns the text of a cell of a column of numbers or dates, unless it is missing.
    pub(super) fn number_text(&self, row: usize, column: usize) -> Option<&str> {
        let is_missing = |cell: &&str| NO_NUMBER.iter().any(|word| cell.eq_ignore_ascii_case(word));
        self.value(row, column).filter(|cell| !is_missing(cell))
    }

    /// Reads a number. Errors describe the cell.
    pub(super) fn number(&self, cell: &str) -> Result<f64, String> {
        read_number(cell, self.decimal)
    }

    /// Creates an error at a cell.
    pub(super) fn refuse(&self, row: usize, column: usize, reason: impl Into<String>) -> DataError {
        DataError::Csv {
            name: self.name.clone(),
            line: self.line(row),
            column: column + 1,
            reason: reason.into(),
        }
    }
}
