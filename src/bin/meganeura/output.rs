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
