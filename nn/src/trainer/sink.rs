//! A file that a run is logged to.

use std::io;
use std::ops::ControlFlow;

/// A writer that keeps its first error: observers have nobody to return one to but whoever made them.
#[derive(Debug)]
pub(super) struct Sink<W> {
    writer: W,
    error: Option<io::Error>,
}

impl<W> Sink<W> {
    pub(super) fn new(writer: W) -> Self {
        Sink { writer, error: None }
    }

    /// Writes by a function, and ends the run if that fails or something has failed before.
    pub(super) fn write(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) -> ControlFlow<()> {
        if self.error.is_none() {
            self.error = write(&mut self.writer).err();
        }
        match self.error {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    /// The first error since it was made, or that of flushing the writer.
    pub(super) fn finish(mut self, flush: impl FnOnce(&mut W) -> io::Result<()>) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => flush(&mut self.writer),
        }
    }
}
