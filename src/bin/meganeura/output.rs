//! What commands print. A closed pipe (`| head`) ends the program quietly instead of with a panic.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};

/// Prints to standard output and ends the line.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    self::text(format_args!("{text}\n"))
}

/// Prints to standard output as it is.
pub(crate) fn text(text: impl Display) -> io::Result<()> {
    match write!(io::stdout(), "{text}") {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result,
    }
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
