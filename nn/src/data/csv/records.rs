//! Lines of CSV files, with their numbers.

use std::collections::VecDeque;
use std::io::{self, Read};

use csv::{ByteRecord, Reader, ReaderBuilder, Trim};

use crate::data::DataError;

/// Maximum number of columns, because each column is an input of the model, which has weights for it.
const MAX_COLUMNS: usize = 1 << 17;

/// A reader that records the offsets of line ends. The `csv` crate counts lines as well, but it numbers a record by the
/// first empty line before it.
struct Newlines<R> {
    reader: R,
    read: u64,
    places: VecDeque<u64>,
}

impl<R> Newlines<R> {
    fn of(reader: R) -> Self {
        Newlines {
            reader,
            read: 0,
            places: VecDeque::new(),
        }
    }
}

impl<R: Read> Read for Newlines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        let bytes = (self.read..).zip(&buffer[..count]);
        self.places
            .extend(bytes.filter(|&(_, &b)| b == b'\n').map(|(place, _)| place));
        self.read += count as u64;
        Ok(count)
    }
}

/// The records of a file, in reused memory.
pub(in crate::data) struct Records<'n, R> {
    name: &'n str,
    reader: Reader<Newlines<R>>,
    record: ByteRecord,
    /// Number of line ends up to the end of the last record.
    lines: usize,
}

impl<'n, R: Read> Records<'n, R> {
    /// Creates a reader of the records of a file with this name.
    pub(in crate::data) fn of(reader: R, name: &'n str, delimiter: u8) -> Self {
        Records {
            name,
            reader: ReaderBuilder::new()
                .has_headers(false)
                .flexible(true)
                .trim(Trim::All)
                .delimiter(delimiter)
                .from_reader(Newlines::of(reader)),
            record: ByteRecord::new(),
            lines: 0,
        }
    }

    /// Returns the next line that is not empty.
    pub(in crate::data) fn next(&mut self) -> Result<Option<Line<'_>>, DataError> {
        let more = self.reader.read_byte_record(&mut self.record);
        let more = more.map_err(|error| DataError::Io {
            name: self.name.into(),
            source: error.into(),
        })?;
        if !more {
            return Ok(None);
        }
        let end = self.reader.position().byte();
        let places = &mut self.reader.get_mut().places;
        let mut last = None;
        while let Some(&place) = places.front().filter(|&&place| place < end) {
            places.pop_front();
            self.lines += 1;
            last = Some(place);
        }
        // Line ends after the first line of the record: its own line end, if it was read already, and line ends within
        // quotes.
        let own = usize::from(last.is_some_and(|place| place + 1 == end));
        let quoted = self.record.as_slice().iter().filter(|&&b| b == b'\n').count();
        line(self.name, (1 + self.lines).saturating_sub(own + quoted), &self.record).map(Some)
    }
}

/// One line: its number, and its fields.
pub(in crate::data) struct Line<'r> {
    pub(in crate::data) number: usize,
    pub(in crate::data) fields: Vec<&'r str>,
}

/// Returns the fields of a record, which must be UTF-8.
fn line<'r>(name: &str, number: usize, record: &'r ByteRecord) -> Result<Line<'r>, DataError> {
    if record.len() > MAX_COLUMNS {
        return Err(DataError::Csv {
            name: name.into(),
            line: number,
            column: MAX_COLUMNS + 1,
            reason: format!("the line has {} fields, expected at most {MAX_COLUMNS}", record.len()),
        });
    }
    let mut fields = Vec::with_capacity(record.len());
    for (i, bytes) in record.iter().enumerate() {
        let field = std::str::from_utf8(bytes).map_err(|_| DataError::Csv {
            name: name.into(),
            line: number,
            column: i + 1,
            reason: format!(
                "'{}' is not UTF-8; save the file in UTF-8, or give its encoding, such as `--encoding windows-1252`",
                String::from_utf8_lossy(bytes)
            ),
        })?;
        fields.push(field);
    }
    if let (1, Some(field)) = (number, fields.first_mut()) {
        *field = field.trim_start_matches('\u{feff}').trim();
    }
    Ok(Line { number, fields })
}

/// Returns the error for a line whose number of fields differs from that of the first one.
pub(in crate::data) fn length_error(name: &str, line: &Line, expected: usize, delimiter: u8) -> DataError {
    let found = line.fields.len();
    DataError::Csv {
        name: name.into(),
        line: line.number,
        column: found.min(expected) + 1,
        reason: format!(
            "expected {expected} fields as in the first line, found {found}; {}separate fields with '{}', and quote a field \
             that contains it",
            if expected == 1 {
                "remove titles above the header, "
            } else {
                ""
            },
            char::from(delimiter)
        ),
    }
}

/// Parses a finite number; the error describes the field.
pub(in crate::data) fn number(field: &str) -> Result<f32, String> {
    if field.is_empty() {
        return Err("there is nothing".into());
    }
    match field.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(format!("'{field}' is not a finite f32")),
        Err(_) => Err(format!("'{field}' is not a number")),
    }
}
