//! Tables in files of Apache Parquet.

use crate::data::DataError;

/// Returns true for the first bytes of a file. Binary data follows the name of the format, but not in a CSV file with this name
/// of a column.
pub(super) fn is_parquet(head: &[u8]) -> bool {
    let is_binary = |byte: &u8| *byte < b' ' && !byte.is_ascii_whitespace();
    head.starts_with(b"PAR1") && head[4..].iter().take(8).any(is_binary)
}

/// Rows of cells, with the names of the columns.
pub(super) struct ParquetRows {
    pub(super) columns: Vec<String>,
    pub(super) rows: usize,
    /// All cells, concatenated, row by row.
    pub(super) text: String,
    /// End of each cell in the text.
    pub(super) ends: Vec<usize>,
}

/// Returns an error: the file cannot be read without the feature.
#[cfg(not(feature = "parquet"))]
pub(super) fn read_parquet(_bytes: Vec<u8>, name: &str) -> Result<ParquetRows, DataError> {
    let reason = "this program cannot read Parquet; build it with `--features parquet`, or convert the file to CSV";
    Err(DataError::Io {
        name: name.into(),
        source: std::io::Error::new(std::io::ErrorKind::Unsupported, reason),
    })
}

#[cfg(feature = "parquet")]
pub(super) use reader::read_parquet;

#[cfg(feature = "parquet")]
mod reader {
    use std::fmt::Write;
    use std::io;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use ::parquet::basic::{LogicalType, TimeUnit};
    use ::parquet::file::metadata::ParquetMetaData;
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use ::parquet::record::Field;
    use jiff::Timestamp;
    use jiff::civil::Date;
    use jiff::tz::TimeZone;

    use super::{DataError, ParquetRows};

    /// Maximum number of columns, as in CSV files.
    const MAX_COLUMNS: usize = 1 << 17;

    /// Reads all rows of a file. Nulls are empty cells; dates and times are in the form of ISO 8601.
    ///
    /// # Errors
    /// [`DataError::Csv`] for a nested column; [`DataError::OutOfMemory`]; [`DataError::Io`] for a damaged file.
    pub(in crate::data::table) fn read_parquet(bytes: Vec<u8>, name: &str) -> Result<ParquetRows, DataError> {
        // The crate may panic for damaged files.
        catch_unwind(AssertUnwindSafe(|| read(bytes, name))).unwrap_or_else(|_| {
            Err(DataError::Io {
                name: name.into(),
                source: io::Error::new(io::ErrorKind::InvalidData, "the Parquet file is damaged"),
            })
        })
    }

    fn read(bytes: Vec<u8>, name: &str) -> Result<ParquetRows, DataError> {
        let damaged = |error: String| DataError::Io {
            name: name.into(),
            source: io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the Parquet file cannot be read: {error}"),
            ),
        };
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).map_err(|e| damaged(e.to_string()))?;
        let metadata = Arc::new(reader.metadata().clone());
        let columns = column_names(&metadata, name)?;
        let are_nanoseconds = nanoseconds(&metadata);
        let rows = usize::try_from(metadata.file_metadata().num_rows()).unwrap_or(0);
        let mut found = ParquetRows {
            columns,
            rows: 0,
            text: String::new(),
            ends: Vec::new(),
        };
        let width = found.columns.len();
        // A small file can have a huge number of repeated rows.
        let cells = rows.checked_mul(width);
        let has_room = cells.is_some_and(|cells| found.ends.try_reserve_exact(cells).is_ok());
        if !has_room {
            return Err(DataError::OutOfMemory {
                name: name.into(),
                rows,
                columns: width,
            });
        }
        for row in reader.get_row_iter(None).map_err(|e| damaged(e.to_string()))? {
            let row = row.map_err(|e| damaged(e.to_string()))?;
            found.rows += 1;
            for (column, (_, field)) in row.get_column_iter().enumerate() {
                push_cell(&mut found.text, field, are_nanoseconds[column]).map_err(|kind| DataError::Csv {
                    name: name.into(),
                    line: found.rows,
                    column: column + 1,
                    reason: format!(
                        "'{}': expected a column of numbers, strings, booleans, dates or times, found {kind}",
                        found.columns[column]
                    ),
                })?;
                found.ends.push(found.text.len());
            }
        }
        Ok(found)
    }

    /// Returns the names of the columns.
    fn column_names(metadata: &ParquetMetaData, name: &str) -> Result<Vec<String>, DataError> {
        let fields = metadata.file_metadata().schema().get_fields();
        if fields.len() > MAX_COLUMNS {
            return Err(DataError::Csv {
                name: name.into(),
                line: 1,
                column: MAX_COLUMNS + 1,
                reason: format!("the file has {} columns, expected at most {MAX_COLUMNS}", fields.len()),
            });
        }
        Ok(fields.iter().map(|field| field.name().to_owned()).collect())
    }

    /// Returns one flag per column: true for times in nanoseconds. The crate returns such times as whole numbers.
    fn nanoseconds(metadata: &ParquetMetaData) -> Vec<bool> {
        let fields = metadata.file_metadata().schema().get_fields().iter();
        let is_nanoseconds = |logical: Option<&LogicalType>| matches!(logical, Some(LogicalType::Timestamp(time)) if time.unit == TimeUnit::NANOS);
        fields
            .map(|field| is_nanoseconds(field.get_basic_info().logical_type_ref()))
            .collect()
    }

    /// Appends the text of a cell. Returns the kind of a field that is no cell.
    fn push_cell(text: &mut String, field: &Field, is_nanoseconds: bool) -> Result<(), &'static str> {
        let date = |time: Timestamp| TimeZone::UTC.to_datetime(time).to_string();
        let cell = match field {
            Field::Null => String::new(),
            Field::Str(value) => value.trim().to_owned(),
            Field::Bytes(value) => std::str::from_utf8(value.data())
                .map_err(|_| "bytes that are not UTF-8")?
                .trim()
                .to_owned(),
            Field::Date(days) => {
                let days = jiff::Span::new().try_days(*days).map_err(|_| "a date out of range")?;
                let date = Date::constant(1970, 1, 1).checked_add(days);
                date.map_err(|_| "a date out of range")?.to_string()
            }
            Field::TimestampMillis(time) => {
                date(Timestamp::from_millisecond(*time).map_err(|_| "a time out of range")?)
            }
            Field::TimestampMicros(time) => {
                date(Timestamp::from_microsecond(*time).map_err(|_| "a time out of range")?)
            }
            Field::Long(time) if is_nanoseconds => {
                date(Timestamp::from_nanosecond(i128::from(*time)).map_err(|_| "a time out of range")?)
            }
            Field::Float(value) => value.to_string(),
            Field::Double(value) => value.to_string(),
            Field::Float16(value) => value.to_string(),
            Field::Group(_) => return Err("a structure"),
            Field::ListInternal(_) => return Err("a list"),
            Field::MapInternal(_) => return Err("a map"),
            number => {
                return write!(text, "{number}").map_err(|_| "a value without a text");
            }
        };
        text.push_str(&cell);
        Ok(())
    }
}
