//! The cells of a table as text.

use std::io::Read;
use std::path::Path;

use meganeura_core::files::open_within_memory;

use crate::data::csv::{Records, length_error, names};
use crate::data::{DataError, Header};

/// A table as it is in its file: cells as text, with the numbers of their lines.
///
/// Cells that are empty, `NA`, `NaN` (in any case) or `?` are missing.
#[derive(Clone, Debug)]
pub struct RawTable {
    name: String,
    header: bool,
    delimiter: u8,
    columns: Vec<String>,
    /// All cells, concatenated, row by row.
    text: String,
    /// End of each cell in the text.
    ends: Vec<usize>,
    /// Line of each row, from 1.
    lines: Vec<usize>,
}

impl RawTable {
    /// Reads the CSV file at `path`.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and the errors of [`parse`](Self::parse).
    pub fn read(path: impl AsRef<Path>, header: Header, delimiter: u8) -> Result<Self, DataError> {
        let name = path.as_ref().display().to_string();
        match open_within_memory(path.as_ref()) {
            Ok(file) => RawTable::parse(file, &name, header, delimiter),
            Err(source) => Err(DataError::Io { name, source }),
        }
    }

    /// Reads a table like [`read`](Self::read) from any reader; `name` appears in errors.
    ///
    /// # Errors
    ///
    /// [`DataError::Csv`], with line and column, for a line of another length than the first one, and bytes that are
    /// not UTF-8; [`DataError::Empty`] without rows; [`DataError::Io`].
    pub fn parse(reader: impl Read, name: &str, header: Header, delimiter: u8) -> Result<Self, DataError> {
        let mut records = Records::of(reader, name, delimiter);
        let empty = || DataError::Empty { name: name.into() };
        let first = records.next()?.ok_or_else(empty)?;
        let (header, columns) = names(&first, header);
        let mut table = RawTable {
            name: name.into(),
            header,
            delimiter,
            columns,
            text: String::new(),
            ends: Vec::new(),
            lines: Vec::new(),
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
            Err(empty())
        } else {
            Ok(table)
        }
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

    /// Returns the names of the columns; without a header, `column 1` and so on.
    pub fn columns(&self) -> &[String] {
        &self.columns
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
        let missing = cell.is_empty() || cell == "?" || ["na", "nan"].iter().any(|m| cell.eq_ignore_ascii_case(m));
        (!missing).then_some(cell)
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
