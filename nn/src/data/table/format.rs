//! The format of a table's text. The encoding, the delimiter and the decimal mark are guessed, unless the options give them.

use std::io::{self, Cursor, Read};

use csv::{ByteRecord, ReaderBuilder};
use serde::{Deserialize, Serialize};

use super::numbers::{CommaForm, comma_form, read_number};
use super::{RawTable, TextEncoding, parquet};
use crate::data::Header;

/// Number of bytes at the start of a file that the delimiter is guessed from.
const HEAD: usize = 64 << 10;
/// Maximum number of records at the start of a file that the delimiter is guessed from.
const RECORDS: usize = 200;
/// Maximum number of rows that the decimal mark is guessed from.
const ROWS: usize = 10_000;
/// First bytes of files of spreadsheets: ZIP archives (`.xlsx`, `.ods`), and the compound files of old programs (`.xls`).
const SPREADSHEETS: [&[u8]; 2] = [b"PK\x03\x04", b"\xd0\xcf\x11\xe0"];
/// Delimiters that are guessed, the most usual first.
const DELIMITERS: [u8; 4] = *b",;\t|";

/// Mark between the whole and the fractional part of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecimalMark {
    /// As in `3.14`; groups of thousands may be separated by commas.
    #[default]
    Point,
    /// As in `3,14`; groups of thousands may be separated by points.
    Comma,
}

/// The format of a table's text. By default, everything is guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableFormat {
    /// Character encoding. `None` guesses it from the first 64 KiB.
    pub encoding: Option<TextEncoding>,
    /// Meaning of the first line.
    pub header: Header,
    /// Separator of fields. `None` guesses a comma, a semicolon, a tab or a vertical bar from the first 200 lines.
    pub delimiter: Option<u8>,
    /// Decimal mark. `None` guesses it from the numbers.
    pub decimal: Option<DecimalMark>,
    /// Words for missing cells in any column, in addition to empty cells, `?`, `NA`, `N/A`, `NaN` and `NULL`. Upper and lower
    /// case are the same.
    pub missing: Vec<String>,
}

/// The contents of a file.
pub(super) enum Contents<'r> {
    Text(Decoded<'r>),
    /// A file of Apache Parquet.
    Parquet(Vec<u8>),
}

/// The text of a file as UTF-8, with its beginning.
pub(super) struct Decoded<'r> {
    pub(super) text: Box<dyn Read + 'r>,
    head: Vec<u8>,
    /// True if the head is the whole text.
    is_whole: bool,
    /// Encoding of the file.
    pub(super) encoding: TextEncoding,
}

/// Returns the contents of a file. Texts in another encoding than UTF-8 are converted.
pub(super) fn contents<'r>(mut reader: impl Read + 'r, encoding: Option<TextEncoding>) -> io::Result<Contents<'r>> {
    let mut head = Vec::new();
    reader.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    if parquet::is_parquet(&head) {
        reader.read_to_end(&mut head)?;
        return Ok(Contents::Parquet(head));
    }
    if SPREADSHEETS.iter().any(|magic| head.starts_with(magic)) {
        return Err(invalid(
            "the file is a spreadsheet or an archive; save the table as CSV".into(),
        ));
    }
    let encoding = encoding.unwrap_or_else(|| TextEncoding::guess(&head));
    if encoding == TextEncoding::UTF_8 {
        // The reader of records checks UTF-8, because it can report the line.
        return Ok(Contents::Text(Decoded {
            is_whole: head.len() < HEAD,
            text: Box::new(Cursor::new(head.clone()).chain(reader)),
            head,
            encoding,
        }));
    }
    let mut bytes = head;
    reader.read_to_end(&mut bytes)?;
    let mut text = encoding.decode(&bytes).map_err(invalid)?.into_owned();
    // Some spreadsheet programs write NUL characters at the end of UTF-16.
    text.truncate(text.trim_end_matches('\0').len());
    let bytes = text.into_bytes();
    Ok(Contents::Text(Decoded {
        head: bytes[..bytes.len().min(HEAD)].to_vec(),
        is_whole: bytes.len() < HEAD,
        text: Box::new(Cursor::new(bytes)),
        encoding,
    }))
}

impl Decoded<'_> {
    /// Returns true if the text begins with an object of JSON, as JSON lines do.
    pub(super) fn is_json_lines(&self) -> bool {
        let head = self.head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.head);
        head.trim_ascii_start().starts_with(b"{")
    }

    /// Returns the delimiter that the first line announces, as in `sep=;`, which Excel writes.
    pub(super) fn announced_delimiter(&self) -> Option<u8> {
        let head = self.head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.head);
        let line = head.split(|byte| *byte == b'\n').next()?.trim_ascii_end();
        // A tab is trimmed, too.
        match (line.strip_prefix(b"sep="), head.get(4)) {
            (Some([delimiter]), _) if delimiter.is_ascii() => Some(*delimiter),
            (Some([]), Some(b'\t')) => Some(b'\t'),
            _ => None,
        }
    }

    /// Guesses the delimiter: the one for which most lines have as many fields as the first one, and the fewest fields contain
    /// another delimiter. Returns a comma if no line has several fields.
    pub(super) fn delimiter(&self) -> u8 {
        let scores = DELIMITERS.iter().map(|&delimiter| (self.score(delimiter), delimiter));
        // The first one of several with the same score.
        let best = scores.rev().max_by_key(|&(score, _)| score);
        best.filter(|(score, _)| score.is_some()).map_or(b',', |(_, best)| best)
    }

    /// Returns the percentage of lines with as many fields as the first one, the percentage of fields without another delimiter,
    /// and the number of fields; `None` if the first line has one field.
    fn score(&self, delimiter: u8) -> Option<(usize, usize, usize)> {
        let mut reader = ReaderBuilder::new();
        let reader = reader.has_headers(false).flexible(true).delimiter(delimiter);
        let records = reader.from_reader(&self.head[..]).into_byte_records();
        let mut records: Vec<ByteRecord> = records.take(RECORDS).map_while(Result::ok).collect();
        if !self.is_whole && records.len() < RECORDS {
            // It may be cut off.
            records.pop();
        }
        let width = records.first().map(ByteRecord::len).filter(|&width| width > 1)?;
        let alike = records.iter().filter(|record| record.len() == width).count();
        let fields: usize = records.iter().map(ByteRecord::len).sum();
        let is_clean = |field: &[u8]| {
            let has_other = field.iter().any(|byte| *byte != delimiter && DELIMITERS.contains(byte));
            let text = || std::str::from_utf8(field).unwrap_or_default();
            !has_other || read_number(text(), DecimalMark::Comma).is_ok()
        };
        let clean = records.iter().flatten().filter(|field| is_clean(field)).count();
        Some((alike * 100 / records.len(), clean * 100 / fields, width))
    }
}

/// Guesses the decimal mark of a table from columns in which every number has the same form.
pub(super) fn guess_decimal(raw: &RawTable) -> DecimalMark {
    let (mut commas, mut points, mut unclear) = (0, 0, 0);
    for column in 0..raw.columns().len() {
        let (mut comma, mut three_digits, mut point, mut other) = (0, 0, 0, 0);
        for row in 0..raw.len().min(ROWS) {
            let Some(cell) = raw.value(row, column) else { continue };
            match comma_form(cell) {
                CommaForm::Decimal => comma += 1,
                CommaForm::ThreeDigits => three_digits += 1,
                CommaForm::None if cell.contains('.') && read_number(cell, DecimalMark::Point).is_ok() => point += 1,
                CommaForm::None => other += usize::from(read_number(cell, DecimalMark::Point).is_err()),
            }
        }
        let all = comma + three_digits + point;
        if other * 2 > all {
            continue;
        }
        commas += usize::from(comma > point);
        points += usize::from(point > comma);
        unclear += usize::from(comma == 0 && point == 0 && three_digits > 0);
    }
    // If all numbers look like `1,234`, the mark is unclear. The comma is then a decimal mark only in files with another
    // delimiter.
    if commas > points || (commas + points == 0 && unclear > 0 && raw.delimiter() != b',') {
        DecimalMark::Comma
    } else {
        DecimalMark::Point
    }
}
