//! A reader of bytes from a file that may be gzip-compressed and hostile.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;
use meganeura_core::files::{free_memory, open_regular};

use super::error::DataError;

/// Initial growth of a buffer. It at most doubles after that, so memory stays proportional to the
/// bytes that actually existed, whatever size was declared.
const FIRST_STEP: usize = 64 * 1024;

/// Uncompressed bytes, read from the front.
///
/// Gzip is recognised by its first two bytes rather than by a file name:
/// browsers and unpacking tools often leave one without the other.
pub(super) struct Stream<'a> {
    name: &'a str,
    reader: Box<dyn Read + 'a>,
    gzip: bool,
    /// Number of bytes read so far.
    position: u64,
    /// Total length, if it is known, as for uncompressed input.
    len: Option<u64>,
    /// Number of bytes in the file, which may be compressed.
    stored: u64,
}

impl<'a> Stream<'a> {
    /// Reads from memory; `name` appears in errors.
    pub(super) fn from_bytes(bytes: &'a [u8], name: &'a str) -> Result<Self, DataError> {
        let len = bytes.len() as u64;
        Self::new(bytes, len, len, name)
    }

    /// Opens the file at `path`; `name` appears in errors.
    pub(super) fn open(path: &Path, name: &'a str) -> Result<Self, DataError> {
        let io_error = |source| DataError::Io {
            name: name.into(),
            source,
        };
        // A device or pipe has no length that could be compared with the header.
        let file = open_regular(path).map_err(io_error)?;
        let len = file.metadata().map_err(io_error)?.len();
        Self::new(BufReader::new(file), len, len, name)
    }

    /// Creates a stream of any reader with a declared length of `len` bytes, stored as `stored`
    /// bytes in a file.
    pub(super) fn from_reader(reader: impl Read + 'a, len: u64, stored: u64, name: &'a str) -> Result<Self, DataError> {
        Self::new(BufReader::new(reader), len, stored, name)
    }

    fn new(mut input: impl BufRead + 'a, len: u64, stored: u64, name: &'a str) -> Result<Self, DataError> {
        let start = input.fill_buf().map_err(|source| DataError::Io {
            name: name.into(),
            source,
        })?;
        let gzip = start.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn Read + 'a> = if gzip {
            Box::new(MultiGzDecoder::new(input))
        } else {
            Box::new(input)
        };
        Ok(Self {
            name,
            reader,
            gzip,
            position: 0,
            len: (!gzip).then_some(len),
            stored,
        })
    }

    /// Returns the name of the stream in errors.
    pub(super) fn name(&self) -> &'a str {
        self.name
    }

    /// Reads the next `N` bytes, part of a header whose end is `expected` bytes into the stream.
    pub(super) fn array<const N: usize>(&mut self, expected: u64) -> Result<[u8; N], DataError> {
        let mut out = [0; N];
        if self.fill(&mut out)? < N {
            return Err(self.truncated(expected));
        }
        Ok(out)
    }

    /// Reads the next `len` bytes, part of a header of small length.
    pub(super) fn bytes(&mut self, len: usize) -> Result<Vec<u8>, DataError> {
        let expected = self.position.saturating_add(len as u64);
        let mut out = vec![0; len];
        if self.fill(&mut out)? < len {
            return Err(self.truncated(expected));
        }
        Ok(out)
    }

    /// Reads the next `len` bytes, values of `value_bytes` bytes each, after which the stream must
    /// end.
    ///
    /// An uncompressed stream of the wrong length is refused before anything
    /// is allocated. A compressed one is decompressed up to `len` bytes plus
    /// one, which also verifies its checksum, and no further.
    pub(super) fn rest(mut self, len: usize, value_bytes: usize) -> Result<Vec<u8>, DataError> {
        let expected = self.position.saturating_add(len as u64);
        match self.len {
            Some(found) if found < expected => {
                return Err(DataError::Truncated {
                    name: self.name.into(),
                    expected,
                    found,
                });
            }
            Some(found) if found > expected => return Err(self.trailing(expected, found)),
            _ => {}
        }
        self.check_expansion(len, value_bytes)?;
        let mut out = Vec::new();
        while out.len() < len {
            let start = out.len();
            let step = (len - start).min(start.max(FIRST_STEP));
            out.try_reserve_exact(step)
                .map_err(|_| self.read_error(io::ErrorKind::OutOfMemory.into()))?;
            out.resize(start + step, 0);
            if self.fill(&mut out[start..])? < step {
                return Err(self.truncated(expected));
            }
        }
        if self.fill(&mut [0])? > 0 {
            let found = self.position;
            return Err(self.trailing(expected, found));
        }
        Ok(out)
    }

    /// Refuses compressed data that exceed the free memory when decompressed. In addition to the
    /// data, this counts the values as `f32`, and their scaled copy.
    fn check_expansion(&self, len: usize, value_bytes: usize) -> Result<(), DataError> {
        let needed = memory_for(len as u64, value_bytes as u64);
        match free_memory() {
            Some(free) if len as u64 > self.stored && needed > free => Err(DataError::Expansion {
                name: self.name.into(),
                stored: self.stored,
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    /// Reads until `buffer` is full or the stream ends; returns the bytes read.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, DataError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.reader.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.read_error(source)),
            }
        }
        self.position += filled as u64;
        Ok(filled)
    }

    fn read_error(&self, source: io::Error) -> DataError {
        // The decompressor reports damage with these kinds of errors, a disk does not.
        let damage = matches!(
            source.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        );
        let name = self.name.into();
        if self.gzip && damage {
            DataError::Gzip { name, source }
        } else {
            DataError::Io { name, source }
        }
    }

    fn truncated(&self, expected: u64) -> DataError {
        DataError::Truncated {
            name: self.name.into(),
            expected,
            found: self.position,
        }
    }

    fn trailing(&self, expected: u64, found: u64) -> DataError {
        DataError::TrailingBytes {
            name: self.name.into(),
            expected,
            found,
        }
    }
}

/// Returns the bytes of memory for this number of bytes of values and for the copies that training
/// makes.
fn memory_for(len: u64, value_bytes: u64) -> u64 {
    const COPIES: u64 = 2 * size_of::<f32>() as u64;
    (len / value_bytes.max(1)).saturating_mul(COPIES).saturating_add(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_data_beyond_the_memory_are_refused_before_they_are_read() {
        assert_eq!(memory_for(100, 1), 900);
        assert_eq!(memory_for(100, 4), 300);
        // No machine has that much memory. Data of this stored size pass the check, because only
        // expansion is limited.
        let stream = |stored| Stream::from_reader(io::repeat(0), u64::MAX, stored, "bomb").expect("a stream");
        let error = stream(1000).check_expansion(1 << 60, 1);
        if cfg!(target_os = "linux") {
            let error = error.expect_err("too much").to_string();
            assert!(error.contains("bomb: 1000 compressed bytes need"), "{error}");
        }
        assert!(stream(1 << 60).check_expansion(1 << 60, 1).is_ok());
        assert!(stream(1000).check_expansion(1 << 20, 1).is_ok());
    }
}
