//! What commands print. A closed pipe (`| head`) is an error like others, so that commands save what they have and end;
//! the program ends quietly with it.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};

/// Prints to standard output and ends the line.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    self::text(format_args!("{text}\n"))
}

/// Prints to standard output as it is.
pub(crate) fn text(text: impl Display) -> io::Result<()> {
    write!(io::stdout(), "{text}")
}

/// Rows of a table whose columns are as wide as their widest cell, two spaces apart.
pub(crate) fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let text: String = cells.map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        text.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Whether an error is that nobody reads what is printed any more.
pub(crate) fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(closed)
}

/// Prints to standard error what is about the run and not its result.
pub(crate) fn notice(text: impl Display) -> io::Result<()> {
    writeln!(io::stderr(), "{text}")
}

/// Prints an error and its causes to standard error.
pub(crate) fn report(error: &dyn Error) {
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "error: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        let _ = writeln!(io::stderr(), "  caused by: {inner}");
        cause = inner.source();
    }
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a", "long name", "x"], vec!["wider", "b"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        assert_eq!(aligned(&rows), ["a      long name  x", "wider  b"]);
        assert!(aligned(&[]).is_empty());
    }
}
