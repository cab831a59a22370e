//! A file that a run is logged to.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::Path;

/// A writer that stores its first error, because observers cannot return errors; the owner reads it later.
#[derive(Debug)]
pub(super) struct ErrorKeepingWriter<W> {
    writer: W,
    error: Option<io::Error>,
}

impl<W> ErrorKeepingWriter<W> {
    pub(super) fn new(writer: W) -> Self {
        ErrorKeepingWriter { writer, error: None }
    }

    /// Writes by a function, and ends the run if that fails or an earlier write failed.
    pub(super) fn write(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) -> ControlFlow<()> {
        if self.error.is_none() {
            self.error = write(&mut self.writer).err();
        }
        match self.error {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    /// Returns the first error; without one, flushes the writer and returns its error.
    pub(super) fn finish(mut self, flush: impl FnOnce(&mut W) -> io::Result<()>) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => flush(&mut self.writer),
        }
    }
}

/// Opens a text file for appending after its last whole line, or creates it: a killed process may
/// have left a partial line. Returns true if there are any lines.
pub(super) fn open_at_end(path: &Path) -> io::Result<(File, bool)> {
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        // A device or a pipe has no earlier lines, and no end.
        return Ok((file, false));
    }
    let mut end = found.len();
    let mut block = [0; 4096];
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        match part.iter().rposition(|&b| b == b'\n') {
            Some(at) => {
                end = start + at as u64 + 1;
                break;
            }
            None => end = start,
        }
    }
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    Ok((file, end > 0))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_a_killed_run_left_of_a_line_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let long = "x".repeat(5000);
        for (before, kept) in [
            (String::new(), ""),
            ("a\nb\n".into(), "a\nb\n"),
            ("a\nhalf".into(), "a\n"),
            ("half".into(), ""),
            (format!("a\n{long}"), "a\n"),
            (long, ""),
        ] {
            std::fs::write(&path, &before).unwrap();
            let (mut file, lines) = open_at_end(&path).unwrap();
            file.write_all(b"next\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{kept}next\n"));
            assert_eq!(lines, !kept.is_empty());
        }
    }
}
