//! Tables that a trained model is applied to: columns are found by their names, in any order.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{DataError, Header, Line, Records, first_fields, number};

/// The columns to take from a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureOptions<'a> {
    /// Names of the feature columns, in the order that the model takes them.
    pub columns: &'a [String],
    /// Name of a column that may be there with the label, or with the target of a regression.
    pub label: &'a str,
    /// Further columns that may be there, and that are left out.
    pub ignore: &'a [String],
    /// Whether the first line names the columns. Where it does not, they are called `column 1` and so on, as when a table
    /// without a header is trained on.
    pub header: Header,
    /// Separator of fields.
    pub delimiter: u8,
}

/// Features of a table, and its labels if it has any.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureTable {
    /// `[rows, columns]`, finite.
    pub features: Vec<f32>,
    /// Number of rows, at least 1.
    pub rows: usize,
    /// The fields of the label column with their line numbers, as they are in the file.
    pub labels: Option<Vec<(usize, String)>>,
}

/// Reads the features of a model from the CSV file at `path`.
///
/// # Errors
///
/// [`DataError::Io`], and those of [`parse_features`].
pub fn read_features(path: impl AsRef<Path>, options: &FeatureOptions) -> Result<FeatureTable, DataError> {
    let name = path.as_ref().display().to_string();
    match File::open(path) {
        Ok(file) => parse_features(file, &name, options),
        Err(source) => Err(DataError::Io { name, source }),
    }
}

/// [`read_features`] from any reader; `name` appears in errors.
///
/// # Errors
///
/// [`DataError::Csv`] naming the columns that are missing, are there twice or belong to nothing; with line and column, a line
/// of another length, or a feature that is not a finite number; [`DataError::Empty`] without rows.
pub fn parse_features(reader: impl Read, name: &str, options: &FeatureOptions) -> Result<FeatureTable, DataError> {
    let mut records = Records::of(reader, name, options.delimiter);
    let empty = || DataError::Empty { name: name.into() };
    let first = records.next()?.ok_or_else(empty)?;
    let (header, columns) = first_fields(&first, options.header);
    let (places, label) = places(name, first.number, &columns, options)?;
    let mut table = FeatureTable {
        features: Vec::new(),
        rows: 0,
        labels: label.map(|_| Vec::new()),
    };
    let mut push = |line: &Line| {
        let refuse = |column: usize, reason: String| DataError::Csv {
            name: name.into(),
            line: line.number,
            column: column + 1,
            reason,
        };
        if line.fields.len() != columns.len() {
            let reason = format!(
                "the line has {} fields, the first one {}",
                line.fields.len(),
                columns.len()
            );
            return Err(refuse(line.fields.len().min(columns.len()), reason));
        }
        if table.features.try_reserve(places.len()).is_err() {
            return Err(DataError::OutOfMemory {
                name: name.into(),
                rows: line.number,
                columns: places.len(),
            });
        }
        for &at in &places {
            let value = number(line.fields[at])
                .map_err(|what| refuse(at, format!("{what} in '{}'; features are finite numbers", columns[at])))?;
            table.features.push(value);
        }
        if let (Some(at), Some(labels)) = (label, &mut table.labels) {
            labels.push((line.number, line.fields[at].to_owned()));
        }
        table.rows += 1;
        Ok(())
    };
    if !header {
        push(&first)?;
    }
    while let Some(line) = records.next()? {
        push(&line)?;
    }
    match table.rows {
        0 => Err(empty()),
        _ => Ok(table),
    }
}

/// Index of each feature column, and of the label.
fn places(
    name: &str,
    line: usize,
    columns: &[String],
    options: &FeatureOptions,
) -> Result<(Vec<usize>, Option<usize>), DataError> {
    let refuse = |column: usize, reason: String| DataError::Csv {
        name: name.into(),
        line,
        column: column + 1,
        reason,
    };
    let quoted = |names: &[&str]| names.iter().map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
    let mut places = Vec::with_capacity(options.columns.len());
    let mut missing = Vec::new();
    for wanted in options.columns {
        let mut same = (0..columns.len()).filter(|&at| columns[at] == *wanted);
        match (same.next(), same.next()) {
            (Some(_), Some(second)) => return Err(refuse(second, format!("a second column is called '{wanted}'"))),
            (Some(at), None) => places.push(at),
            (None, _) => missing.push(wanted.as_str()),
        }
    }
    if !missing.is_empty() {
        let there: Vec<&str> = columns.iter().map(String::as_str).collect();
        let reason = format!(
            "the model needs the columns {}, which are missing; the file has {}",
            quoted(&missing),
            quoted(&there)
        );
        return Err(refuse(0, reason));
    }
    let label = columns.iter().position(|c| c == options.label);
    let known = |at: &usize| places.contains(at) || label == Some(*at) || options.ignore.contains(&columns[*at]);
    let unknown: Vec<usize> = (0..columns.len()).filter(|at| !known(at)).collect();
    if let Some(&first) = unknown.first() {
        let names: Vec<&str> = unknown.iter().map(|&at| columns[at].as_str()).collect();
        let reason = format!(
            "the model has not been trained with the columns {}; remove or ignore them",
            quoted(&names)
        );
        return Err(refuse(first, reason));
    }
    Ok((places, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<FeatureTable, String> {
        let columns = ["length".to_owned(), "width".to_owned()];
        let options = FeatureOptions {
            columns: &columns,
            label: "kind",
            ignore: &["id".to_owned()],
            header: Header::Auto,
            delimiter: b',',
        };
        parse_features(text.as_bytes(), "new.csv", &options).map_err(|e| e.to_string())
    }

    #[test]
    fn columns_are_found_by_name_in_any_order() {
        let table = parse("id,width,kind,length\n7,2,a,1\n8,4,b,3\n").unwrap();
        assert_eq!(table.features, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(table.rows, 2);
        assert_eq!(table.labels, Some(vec![(2, "a".into()), (3, "b".into())]));
        assert_eq!(parse("width,length\n2,1\n").unwrap().labels, None);
    }

    #[test]
    fn missing_unknown_and_double_columns_are_named() {
        let missing = parse("width,kind\n2,a\n").unwrap_err();
        assert!(missing.contains("'length'") && missing.contains("'kind'"), "{missing}");
        let unknown = parse("width,length,colour\n2,1,3\n").unwrap_err();
        assert!(unknown.contains("'colour'"), "{unknown}");
        let double = parse("width,length,width\n2,1,3\n").unwrap_err();
        assert!(double.contains("second column is called 'width'"), "{double}");
    }

    #[test]
    fn lines_that_do_not_fit_are_refused_with_line_and_column() {
        let word = parse("width,length\n2,1\nx,1\n").unwrap_err();
        assert!(
            word.contains("line 3") && word.contains("'x' is not a number"),
            "{word}"
        );
        assert!(parse("width,length\n2\n").unwrap_err().contains("1 fields"));
        assert!(parse("width,length\n").is_err());
        assert!(parse("").is_err());
    }
}
