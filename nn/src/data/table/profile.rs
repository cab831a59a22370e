//! The types of a table's columns, and their use.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::str::FromStr;

use serde::Serialize;

use super::dates::{ISO, formats, read_date};
use super::{DecimalMark, RawTable, TextEncoding};
use crate::data::DataError;

/// Maximum number of categories of a column.
pub(super) const MAX_CATEGORIES: usize = 1000;
/// Default number of features of a column of texts.
const TEXT_BUCKETS: usize = 64;
/// Maximum number of features of a column of texts.
pub(super) const MAX_BUCKETS: usize = 1 << 16;
/// Minimum number of cells of a column that can be left out because its cells differ.
const MIN_CELLS: usize = 20;
/// Maximum number of categories of a column in which most cells differ.
const MAX_RARE: usize = 50;
/// Minimum absolute value of a whole number that `f32` may round.
const ROUNDED: f64 = (1 << 24) as f64;
/// Maximum length of an example, in characters.
const MAX_EXAMPLE: usize = 60;

/// Type of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ColumnType {
    /// Numbers, some with fractions.
    Number,
    /// Whole numbers.
    Integer,
    /// Words that repeat.
    Category,
    /// Dates, with or without a time.
    Date,
    /// Texts that rarely repeat.
    Text,
    /// A different number or word in each row, such as a row number.
    Identifier,
    /// The same value in each row.
    Constant,
    /// No values.
    Empty,
}

impl ColumnType {
    /// Returns the name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            ColumnType::Number => "number",
            ColumnType::Integer => "integer",
            ColumnType::Category => "category",
            ColumnType::Date => "date",
            ColumnType::Text => "text",
            ColumnType::Identifier => "identifier",
            ColumnType::Constant => "constant",
            ColumnType::Empty => "empty",
        }
    }
}

/// A given type of a column, instead of the guessed one. The column becomes features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeChoice {
    /// Numbers.
    Number,
    /// Categories, also if the cells are numbers.
    Category,
    /// Dates in a format with the conversions of `strftime` (`%d/%m/%Y`), or `iso` for ISO 8601. `None` guesses the format.
    Date(Option<String>),
    /// Texts, whose words are hashed to this number of features ([`ColumnKind::Text`](super::ColumnKind::Text)).
    Text(usize),
}

impl FromStr for TypeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text
            .split_once(':')
            .map_or((text, None), |(kind, format)| (kind, Some(format)))
        {
            ("number", None) => Ok(TypeChoice::Number),
            ("category", None) => Ok(TypeChoice::Category),
            ("date", format) => Ok(TypeChoice::Date(format.map(str::to_owned))),
            ("text", None) => Ok(TypeChoice::Text(TEXT_BUCKETS)),
            ("text", Some(count)) => match count.parse() {
                Ok(buckets) if (1..=MAX_BUCKETS).contains(&buckets) => Ok(TypeChoice::Text(buckets)),
                _ => Err(format!(
                    "expected text:N with 1 to {MAX_BUCKETS} features, found '{text}'"
                )),
            },
            _ => Err(format!(
                "expected number, category, date, date:FORMAT (such as date:%d/%m/%Y), text or text:N, found '{text}'"
            )),
        }
    }
}

/// Use of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ColumnUse {
    /// The target.
    Target,
    /// It becomes features.
    Features,
    /// The options exclude it.
    Ignored,
    /// It is left out, for this reason.
    LeftOut(String),
}

/// A column of a table, for a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ColumnProfile {
    /// Name in the header; `column N` without one.
    pub name: String,
    /// Type of the cells.
    pub column_type: ColumnType,
    /// Number of distinct values.
    pub distinct: usize,
    /// Number of missing cells.
    pub missing: usize,
    /// First value, shortened to 60 characters.
    pub example: String,
    /// Use of the column.
    pub usage: ColumnUse,
    /// Warnings.
    pub notes: Vec<String>,
}

/// The format and the columns of a table, for a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TableProfile {
    /// The file.
    pub name: String,
    /// Number of rows, without the header.
    pub rows: usize,
    /// True if the first line has the names of the columns.
    pub header: bool,
    /// Separator of fields.
    pub delimiter: char,
    /// Decimal mark of numbers.
    pub decimal: DecimalMark,
    /// Character encoding of the file; `None` for Parquet.
    pub encoding: Option<TextEncoding>,
    /// True if the file has JSON lines.
    #[serde(skip)]
    pub is_json_lines: bool,
    /// All columns, in the order of the file.
    pub columns: Vec<ColumnProfile>,
}

/// A column with its type.
#[derive(Clone, Debug)]
pub(super) struct TypedColumn {
    pub(super) column_type: ColumnType,
    /// Format of dates.
    pub(super) date_format: Option<String>,
    /// Number of features of texts.
    pub(super) buckets: Option<usize>,
    distinct: usize,
    missing: usize,
    example: String,
    /// Reason for leaving the column out, if any.
    pub(super) left_out: Option<String>,
    pub(super) notes: Vec<String>,
}

impl TypedColumn {
    /// Determines the type of a column from all rows.
    ///
    /// # Errors
    /// [`DataError::Csv`] for a cell that is no date of the given format.
    pub(super) fn of(raw: &RawTable, column: usize, choice: Option<&TypeChoice>) -> Result<Self, DataError> {
        let rows = 0..raw.len();
        let cells: Vec<&str> = rows.clone().filter_map(|row| raw.number_text(row, column)).collect();
        let numbers: Vec<f64> = cells.iter().filter_map(|cell| raw.number(cell).ok()).collect();
        let are_numbers = match choice {
            Some(choice) => *choice == TypeChoice::Number,
            None => !numbers.is_empty() && numbers.len() * 2 >= cells.len(),
        };
        if are_numbers {
            let mut typed = TypedColumn::new(raw, ColumnType::Number, &cells);
            typed.note_numbers(raw, column, &numbers, choice.is_some());
            return Ok(typed);
        }
        let date_formats = match choice {
            Some(TypeChoice::Date(Some(format))) => {
                let is_wrong = |&row: &usize| {
                    raw.number_text(row, column)
                        .is_some_and(|c| read_date(c, format).is_none())
                };
                if let Some(row) = rows.clone().find(is_wrong) {
                    let reason = format!("'{}' is no date of the format {format}", raw.cell(row, column));
                    return Err(raw.refuse(row, column, reason));
                }
                vec![format.clone()]
            }
            Some(TypeChoice::Number | TypeChoice::Category | TypeChoice::Text(_)) => Vec::new(),
            Some(TypeChoice::Date(None)) | None => formats(cells.iter().copied()),
        };
        match &date_formats[..] {
            [] if matches!(choice, Some(TypeChoice::Date(_))) => {
                let reason = format!(
                    "no format of dates fits all cells of '{}'; give the format, such as date:%d/%m/%Y",
                    raw.columns()[column]
                );
                return Err(raw.refuse(0, column, reason));
            }
            [] => {}
            several => {
                let mut typed = TypedColumn::new(raw, ColumnType::Date, &cells);
                let format = several[0].clone();
                if let [first, second, ..] = several {
                    typed.left_out = Some(format!(
                        "its dates may be {first} or {second}; give the format of the dates"
                    ));
                } else if typed.distinct == 1 {
                    typed.leave_out_constant(raw, choice.is_some());
                }
                typed.date_format = Some(format);
                return Ok(typed);
            }
        }
        let cells: Vec<&str> = rows.filter_map(|row| raw.value(row, column)).collect();
        if let Some(&TypeChoice::Text(buckets)) = choice {
            return Ok(TypedColumn {
                buckets: Some(buckets),
                ..TypedColumn::new(raw, ColumnType::Text, &cells)
            });
        }
        let mut typed = TypedColumn::new(raw, ColumnType::Category, &cells);
        typed.note_texts(raw, &cells, choice.is_some());
        Ok(typed)
    }

    fn new(raw: &RawTable, column_type: ColumnType, cells: &[&str]) -> Self {
        let example = cells.first().copied().unwrap_or_default();
        TypedColumn {
            column_type,
            date_format: None,
            buckets: None,
            distinct: cells.iter().collect::<HashSet<_>>().len(),
            missing: raw.len() - cells.len(),
            example: example.chars().take(MAX_EXAMPLE).collect(),
            left_out: None,
            notes: Vec::new(),
        }
    }

    fn leave_out(&mut self, column_type: ColumnType, reason: &str) {
        self.column_type = column_type;
        self.left_out = Some(reason.to_owned());
    }

    fn leave_out_constant(&mut self, raw: &RawTable, is_given: bool) {
        // In a tiny table, every column may be constant.
        if !is_given && self.missing == 0 && raw.len() >= MIN_CELLS {
            self.leave_out(ColumnType::Constant, "it has the same value in every row");
        }
    }

    /// Determines the type of a column of numbers.
    fn note_numbers(&mut self, raw: &RawTable, column: usize, numbers: &[f64], is_given: bool) {
        let are_whole = numbers.iter().all(|value| value.fract() == 0.0);
        if are_whole && self.distinct > 0 {
            self.column_type = ColumnType::Integer;
        }
        if self.distinct == 1 {
            return self.leave_out_constant(raw, is_given);
        }
        let are_all_distinct = self.missing == 0 && self.distinct == raw.len() && raw.len() >= MIN_CELLS;
        let counts_rows = || {
            let first = numbers[0];
            (first == 0.0 || first == 1.0) && (0..).zip(numbers).all(|(row, value)| *value == first + f64::from(row))
        };
        if are_whole && are_all_distinct && !is_given {
            if counts_rows() {
                return self.leave_out(ColumnType::Identifier, "it numbers the rows");
            }
            if raw.header() && names_identifiers(&raw.columns()[column]) {
                return self.leave_out(ColumnType::Identifier, "it has a different number in every row");
            }
        }
        if are_whole && numbers.iter().any(|value| value.abs() >= ROUNDED) {
            self.notes.push("numbers of 16,777,216 and above are rounded".into());
        }
    }

    /// Determines the type of a column of words.
    fn note_texts(&mut self, raw: &RawTable, cells: &[&str], is_given: bool) {
        if cells.is_empty() {
            return self.leave_out(ColumnType::Empty, "it has no values");
        }
        if is_given {
            return;
        }
        if self.distinct == 1 {
            return self.leave_out_constant(raw, is_given);
        }
        if cells.len() >= MIN_CELLS && self.distinct * 20 >= cells.len() * 19 {
            let has_blanks = cells.iter().any(|cell| cell.contains(char::is_whitespace));
            return if has_blanks {
                self.leave_out(
                    ColumnType::Text,
                    "almost every row has another text; the type text uses its words",
                )
            } else {
                self.leave_out(ColumnType::Identifier, "almost every row has another word")
            };
        }
        if self.distinct > MAX_RARE && self.distinct * 2 > cells.len() {
            return self.leave_out(
                ColumnType::Text,
                "most of its texts occur once; the type text uses its words",
            );
        }
        if self.distinct > MAX_CATEGORIES {
            let reason = format!("it has more than {MAX_CATEGORIES} different texts; the type text uses its words");
            return self.leave_out(ColumnType::Text, &reason);
        }
        let mut spellings: BTreeMap<String, &str> = BTreeMap::new();
        for cell in cells {
            let first = spellings.entry(cell.to_lowercase()).or_insert(cell);
            if first != cell {
                self.notes
                    .push(format!("'{first}' and '{cell}' are different categories"));
                break;
            }
        }
    }

    /// Returns the text of a cell, unless it is missing.
    pub(super) fn text<'r>(&self, raw: &'r RawTable, row: usize, column: usize) -> Option<&'r str> {
        match self.column_type {
            ColumnType::Number | ColumnType::Integer | ColumnType::Date => raw.number_text(row, column),
            _ => raw.value(row, column),
        }
    }

    /// Adds a warning if each value of a column of categories belongs to one class of the target.
    pub(super) fn note_leak(&mut self, raw: &RawTable, column: usize, rows: &[usize], labels: &[u32]) {
        if self.column_type != ColumnType::Category || self.distinct * 3 > rows.len() {
            return;
        }
        let mut classes: HashMap<&str, u32> = HashMap::new();
        let mut cells = rows.iter().zip(labels);
        let has_one = cells.all(|(&row, &label)| {
            let cell = raw.value(row, column).unwrap_or_default();
            *classes.entry(cell).or_insert(label) == label
        });
        if has_one && self.distinct > 1 {
            self.notes
                .push("each of its values has one class of the target: does it contain the answer?".into());
        }
    }

    /// Adds a warning if a column of numbers is almost the target of regression, up to a factor.
    pub(super) fn note_correlation(&mut self, raw: &RawTable, column: usize, rows: &[usize], targets: &[f32]) {
        if !matches!(self.column_type, ColumnType::Number | ColumnType::Integer) || rows.len() < MIN_CELLS {
            return;
        }
        let pair =
            |(&row, &target): (&usize, &f32)| Some((raw.number(self.text(raw, row, column)?).ok()?, f64::from(target)));
        let pairs: Vec<(f64, f64)> = rows.iter().zip(targets).filter_map(pair).collect();
        let count = pairs.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|p| p.0), mean(|p| p.1));
        let sum = |of: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|p| of(p.0 - x, p.1 - y)).sum::<f64>();
        let correlation = sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
        if correlation.abs() > 0.9999 {
            self.notes.push(format!(
                "its correlation with the target is {correlation:.5}: does it contain the answer?"
            ));
        }
    }

    pub(super) fn profile(self, name: &str, usage: ColumnUse) -> ColumnProfile {
        ColumnProfile {
            name: name.to_owned(),
            column_type: self.column_type,
            distinct: self.distinct,
            missing: self.missing,
            example: self.example,
            usage: match self.left_out {
                Some(reason) if usage == ColumnUse::Features => ColumnUse::LeftOut(reason),
                _ => usage,
            },
            notes: self.notes,
        }
    }
}

/// Returns true if a name is usual for row numbers and keys.
fn names_identifiers(name: &str) -> bool {
    let lower = name.to_lowercase();
    let is_whole = [
        "",
        "id",
        "index",
        "idx",
        "row",
        "rowid",
        "uuid",
        "guid",
        "key",
        "nr",
        "no",
        "#",
        "unnamed: 0",
    ];
    let ends = ["_id", " id", "-id", ".id", "_no", "_nr", "_key", "number"];
    is_whole.contains(&lower.as_str())
        || ends.iter().any(|end| lower.ends_with(end))
        || name.ends_with("Id")
        || name.ends_with("ID")
}

/// Returns true if dates of a column have times.
pub(super) fn has_times<'c>(mut cells: impl Iterator<Item = &'c str>, format: &str) -> bool {
    let midnight = jiff::civil::Time::midnight();
    if format == ISO {
        cells.any(|cell| read_date(cell, format).is_some_and(|date| date.time() != midnight))
    } else {
        format.contains("%H")
    }
}
