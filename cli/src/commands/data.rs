//! Command `meganeura data`, and the report on a table that `train` prints, too.

use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::nn::data::{
    Column, ColumnProfile, ColumnType, ColumnUse, DecimalMark, Header, RawTable, TableFormat, TableOptions,
    TableProfile, TextEncoding, TypeChoice, profile_table,
};

use super::Outcome;
use crate::output::{aligned, columns, line, lines, shortened};

/// Maximum length of a column's name in the report, in characters.
const MAX_NAME: usize = 30;
/// Maximum length of an example, in characters.
const MAX_EXAMPLE: usize = 20;

/// Options of `data`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File of CSV or JSON lines; also Parquet, in a program that is built with `--features parquet`.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Column to predict, by its name or its number from 1 [default: the last column]
    #[arg(long, visible_alias = "label", value_name = "COLUMN")]
    target: Option<String>,

    /// Columns to leave out: names or numbers, separated by commas.
    #[arg(long, visible_alias = "drop", value_name = "COLUMNS", value_delimiter = ',')]
    ignore: Vec<String>,

    /// Type of a column, instead of the guessed one: number, category, date, date:FORMAT such as date:%d/%m/%Y, or text:N,
    /// which hashes its words to N features (`text` uses 64). May be repeated.
    #[arg(long = "type", value_name = "COLUMN=TYPE", value_parser = column_type)]
    types: Vec<(String, TypeChoice)>,

    /// Header of the file: `yes` if its first line contains the column names, `no` if not. `auto` decides by the first lines.
    #[arg(long, value_enum, default_value_t = HeaderChoice::Auto)]
    header: HeaderChoice,

    /// Character encoding, such as windows-1252 [default: guessed]
    #[arg(long, value_name = "NAME")]
    encoding: Option<TextEncoding>,

    /// Field separator, such as ';'; `tab` for tabs [default: guessed]
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    delimiter: Option<u8>,

    /// Decimal mark of numbers: . or , [default: guessed]
    #[arg(long, value_name = "MARK", value_parser = decimal)]
    decimal: Option<DecimalMark>,

    /// Words for missing cells, separated by commas, in addition to empty cells, ?, NA, N/A, NaN and NULL.
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    missing_words: Vec<String>,

    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Meaning of the first line of a CSV file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum HeaderChoice {
    Auto,
    Yes,
    No,
}

impl From<HeaderChoice> for Header {
    fn from(choice: HeaderChoice) -> Self {
        match choice {
            HeaderChoice::Auto => Header::Auto,
            HeaderChoice::Yes => Header::Yes,
            HeaderChoice::No => Header::No,
        }
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    let options = TableOptions {
        target: args.target.as_ref().map_or(Column::Last, Column::name),
        format: TableFormat {
            encoding: args.encoding,
            header: args.header.into(),
            delimiter: args.delimiter,
            decimal: args.decimal,
            missing: args.missing_words.clone(),
        },
        ignore: args.ignore.iter().map(Column::name).collect(),
        types: typed_columns(&args.types),
        ..TableOptions::default()
    };
    let table = RawTable::read(&args.file, &options.format)?;
    let profile = profile_table(&table, &options)?;
    check_text_options(&profile, &options.format)?;
    if args.json {
        line(serde_json::to_value(&profile)?)?;
    } else {
        print(&profile, usize::MAX)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses options for CSV if the file is Parquet or JSON lines.
pub(super) fn check_text_options(profile: &TableProfile, format: &TableFormat) -> Result<(), String> {
    let kind = match profile.encoding {
        None => "a Parquet file",
        Some(_) if profile.is_json_lines => "JSON lines",
        Some(_) => return Ok(()),
    };
    let given = [
        ("--encoding", format.encoding.is_some() && profile.encoding.is_none()),
        ("--delimiter", format.delimiter.is_some()),
        ("--decimal", format.decimal.is_some()),
        ("--header", format.header != Header::Auto),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(format!("{option} does not work with {kind}: {}", profile.name)),
        None => Ok(()),
    }
}

/// Prints the report on a table, with at most `most` columns.
pub(super) fn print(profile: &TableProfile, most: usize) -> std::io::Result<()> {
    lines(format_line(profile), 2)?;
    let shown = &profile.columns[..profile.columns.len().min(most)];
    let titles = ["column", "type", "distinct", "missing", "example", "use"].map(str::to_owned);
    let rows: Vec<Vec<String>> = [titles.to_vec()].into_iter().chain(shown.iter().map(row)).collect();
    // Continuation lines begin below the last title.
    let table = aligned(&rows);
    let last = table[0].rfind("use").unwrap_or(0);
    let indent = if columns(false).is_some_and(|width| last * 2 > width) {
        4
    } else {
        last
    };
    for row in table {
        lines(row, indent)?;
    }
    let hidden = profile.columns.len() - shown.len();
    if hidden > 0 {
        line(format_args!(
            "... and {hidden} more columns; `meganeura data {}` prints all",
            profile.name
        ))?;
    }
    for column in &profile.columns {
        for note in &column.notes {
            lines(format_args!("note: '{}': {note}", shortened(&column.name, MAX_NAME)), 2)?;
        }
    }
    Ok(())
}

fn format_line(profile: &TableProfile) -> String {
    let delimiter = match (profile.encoding, profile.delimiter) {
        (None, _) => " of Parquet".to_owned(),
        (_, ',') => " between commas".to_owned(),
        (_, ';') => " between semicolons".to_owned(),
        (_, '\t') => " between tabs".to_owned(),
        (_, other) => format!(" between '{other}'"),
    };
    format!(
        "{}: {} rows, {} columns{delimiter}, {}{}{}",
        profile.name,
        profile.rows,
        profile.columns.len(),
        if profile.header {
            "with a header"
        } else {
            "without a header"
        },
        match profile.decimal {
            DecimalMark::Point => "",
            DecimalMark::Comma => ", decimal commas",
        },
        match profile.encoding {
            Some(encoding) if encoding != TextEncoding::UTF_8 => format!(", {encoding}"),
            _ => String::new(),
        }
    )
}

fn row(column: &ColumnProfile) -> Vec<String> {
    let name = if column.name.is_empty() {
        "(no name)"
    } else {
        &column.name
    };
    let usage = match &column.usage {
        ColumnUse::Target => "target".to_owned(),
        ColumnUse::Features if column.column_type == ColumnType::Category => {
            format!("{} features, one for each value", column.distinct)
        }
        ColumnUse::Features if column.column_type == ColumnType::Date => {
            "features: days, month, weekday, and hour of times".to_owned()
        }
        ColumnUse::Features if column.column_type == ColumnType::Text => "features: its words, hashed".to_owned(),
        ColumnUse::Ignored => "left out by --ignore".to_owned(),
        ColumnUse::LeftOut(reason) => format!("left out: {reason}"),
        _ => "feature".to_owned(),
    };
    vec![
        shortened(name, MAX_NAME),
        column.column_type.name().to_owned(),
        column.distinct.to_string(),
        column.missing.to_string(),
        shortened(&column.example, MAX_EXAMPLE),
        usage,
    ]
}

/// Returns columns with given types.
pub(super) fn typed_columns(types: &[(String, TypeChoice)]) -> Vec<(Column, TypeChoice)> {
    types
        .iter()
        .map(|(name, choice)| (Column::name(name), choice.clone()))
        .collect()
}

/// Parses a column with its type.
pub(super) fn column_type(text: &str) -> Result<(String, TypeChoice), String> {
    let (column, choice) = text
        .rsplit_once('=')
        .filter(|(column, _)| !column.is_empty())
        .ok_or("expected COLUMN=TYPE, such as zip=category")?;
    Ok((column.to_owned(), choice.parse()?))
}

pub(super) fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        _ => Err("give one ASCII character other than a quote, such as ';', or tab".into()),
    }
}

pub(super) fn decimal(text: &str) -> Result<DecimalMark, String> {
    match text {
        "." | "point" => Ok(DecimalMark::Point),
        "," | "comma" => Ok(DecimalMark::Comma),
        _ => Err("expected . (or point) or , (or comma)".into()),
    }
}
