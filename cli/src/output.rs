//! Output of commands. A closed pipe (`| head`) is an error like others, so that commands save their results and end; the program
//! then ends without a message. Commands that write files continue without a reader ([`outlast_reader`]).

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use console::Term;

/// True if only errors are printed.
static SILENT: AtomicBool = AtomicBool::new(false);

/// True if the command continues after standard output is closed.
static OUTLASTS: AtomicBool = AtomicBool::new(false);
/// True after standard output was closed in this case.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// Makes a closed pipe end only the output, for commands whose files are more important than their output.
pub(crate) fn outlast_reader() {
    OUTLASTS.store(true, Ordering::Relaxed);
}

/// Suppresses all output except errors, because another process of the same run prints.
pub(crate) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Returns true if only errors are printed.
pub(crate) fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Prints a line to standard output.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    self::text(format_args!("{text}\n"))
}

/// Prints to standard output. Control characters are replaced on a terminal, because texts contain names from files or the output
/// of a model.
pub(crate) fn text(text: impl Display) -> io::Result<()> {
    if SILENT.load(Ordering::Relaxed) || UNREAD.load(Ordering::Relaxed) {
        return Ok(());
    }
    let written = if io::stdout().is_terminal() {
        write!(io::stdout(), "{}", printable(&text.to_string()))
    } else {
        write!(io::stdout(), "{text}")
    };
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe && OUTLASTS.load(Ordering::Relaxed) => {
            UNREAD.store(true, Ordering::Relaxed);
            // Standard error may be closed as well.
            let _ = notice("standard output was closed; the command continues without it");
            Ok(())
        }
        written => written,
    }
}

/// Returns a text whose control characters, except newlines and tabs, are replaced, so that they cannot control the terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(steers) {
        Cow::Borrowed(text)
    } else {
        text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
    }
}

/// Returns the line width of standard output or standard error: COLUMNS, otherwise the width of the terminal; `None` if it is not
/// a terminal.
pub(crate) fn columns(of_errors: bool) -> Option<usize> {
    let wanted = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = if of_errors { Term::stderr() } else { Term::stdout() };
    let measured = || terminal.size_checked().map(|(_, columns)| usize::from(columns));
    wanted.filter(|&columns| columns > 0).or_else(measured)
}

/// Prints lines to standard output, wrapped at spaces to the width of the terminal; continuation lines are indented.
pub(crate) fn lines(text: impl Display, indent: usize) -> io::Result<()> {
    line(wrapped(&text.to_string(), columns(false), indent))
}

/// Wraps lines at spaces to the given width, if possible.
pub(crate) fn wrapped(text: &str, columns: Option<usize>, indent: usize) -> String {
    let Some(columns) = columns else {
        return text.to_owned();
    };
    let indent = indent.min(columns / 2);
    let lines: Vec<String> = text.split('\n').map(|line| broken(line, columns, indent)).collect();
    lines.join("\n")
}

fn broken(line: &str, columns: usize, indent: usize) -> String {
    let (mut text, mut rest, mut room) = (String::new(), line, columns);
    while rest.chars().count() > room {
        let begin = rest.len() - rest.trim_start().len();
        let end = rest.char_indices().nth(room + 1).map_or(rest.len(), |(at, _)| at);
        let within = rest[..end].rfind(' ').filter(|&at| at > begin);
        let Some(at) = within.or_else(|| rest[end..].find(' ').map(|at| end + at)) else {
            break;
        };
        text += rest[..at].trim_end();
        text += &format!("\n{:indent$}", "");
        (rest, room) = (rest[at..].trim_start(), columns - indent);
    }
    text + rest
}

/// Truncates a text to the given number of characters, with an ellipsis.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        text.to_owned()
    } else {
        text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
    }
}

/// Returns rows of a table whose columns are as wide as their widest cell, two spaces apart.
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

/// Returns true if the error is caused by a closed pipe.
pub(crate) fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(closed)
}

/// Prints a message about the run to standard error.
pub(crate) fn notice(text: impl Display) -> io::Result<()> {
    if SILENT.load(Ordering::Relaxed) {
        Ok(())
    } else {
        writeln!(io::stderr(), "{}", printable(&text.to_string()))
    }
}

/// Truncates long lines of a text, because errors can contain values from files of any length.
fn with_short_lines(text: &str) -> String {
    const MAX_LINE: usize = 2000;
    let lines: Vec<String> = text.split('\n').map(|line| shortened(line, MAX_LINE)).collect();
    lines.join("\n")
}

/// Prints an error and its causes to standard error.
pub(crate) fn report(error: &dyn Error) {
    let mut text = format!("error: {}\n", with_short_lines(&error.to_string()));
    let mut cause = error.source();
    while let Some(inner) = cause {
        text += &format!("  caused by: {}\n", with_short_lines(&inner.to_string()));
        cause = inner.source();
    }
    // Written in one call, because other ranks of a distributed run may print as well. Output errors are ignored.
    let _ = io::stderr().write_all(printable(&text).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::{aligned, printable, shortened, wrapped};

    #[test]
    fn control_characters_do_not_reach_terminals() {
        assert_eq!(printable("a\tb\nc µ"), "a\tb\nc µ");
        assert_eq!(
            printable("\u{1b}]0;owned\u{7}\r\u{9b}2J"),
            "\u{fffd}]0;owned\u{fffd}\u{fffd}\u{fffd}2J"
        );
    }

    #[test]
    fn lines_are_broken_at_spaces() {
        let text = "name   first second third\n  short";
        assert_eq!(wrapped(text, None, 7), text);
        assert_eq!(wrapped(text, Some(20), 7), "name   first second\n       third\n  short");
        // Words and lines without spaces are not broken, and an indent leaves room.
        assert_eq!(
            wrapped("/a/very/long/path and", Some(8), 30),
            "/a/very/long/path\n    and"
        );
        assert_eq!(wrapped("/a/very/long/path", Some(8), 2), "/a/very/long/path");
        assert_eq!(wrapped("µs µs µs", Some(5), 0), "µs µs\nµs");
    }

    #[test]
    fn what_is_cut_has_an_ellipsis() {
        assert_eq!([shortened("matmul", 6), shortened("matmul", 4)], ["matmul", "mat…"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a", "long name", "x"], vec!["wider", "b"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        assert_eq!(aligned(&rows), ["a      long name  x", "wider  b"]);
        assert!(aligned(&[]).is_empty());
    }
}
