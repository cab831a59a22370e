//! Bytes of a file that may be gzip-compressed and may be hostile.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;

use super::error::DataError;

/// How much a buffer grows at first. It at most doubles after that, so memory
/// stays proportional to bytes that were really there, whatever was declared.
const FIRST_STEP: usize = 64 * 1024;

/// Uncompressed bytes, read from the front.
///
/// Gzip is recognised by its first two bytes rather than by a file name:
/// browsers and unpacking tools often leave one without the other.
pub(super) struct Stream<'a> {
    name: &'a str,
    reader: Box<dyn Read + 'a>,
    gzip: bool,
    /// Bytes read so far.
    position: u64,
    /// Total length when known, which it is for uncompressed input.
    len: Option<u64>,
}

impl<'a> Stream<'a> {
    /// Reads from memory; `name` appears in errors.
    pub(super) fn from_bytes(bytes: &'a [u8], name: &'a str) -> Result<Self, DataError> {
        Self::new(bytes, bytes.len() as u64, name)
    }

    /// Opens the file at `path`; `name` appears in errors.
    pub(super) fn open(path: &Path, name: &'a str) -> Result<Self, DataError> {
        let io_error = |source| DataError::Io {
            name: name.into(),
            source,
        };
        let file = File::open(path).map_err(io_error)?;
        let metadata = file.metadata().map_err(io_error)?;
        if !metadata.is_file() {
            // A device or pipe has no length to hold the header against.
            return Err(io_error(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            )));
        }
        Self::new(BufReader::new(file), metadata.len(), name)
    }

    /// Reads from any reader; `len` is the length that is declared for it.
    pub(super) fn from_reader(reader: impl Read + 'a, len: u64, name: &'a str) -> Result<Self, DataError> {
        Self::new(BufReader::new(reader), len, name)
    }

    fn new(mut input: impl BufRead + 'a, len: u64, name: &'a str) -> Result<Self, DataError> {
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
        })
    }

    /// What errors call the stream.
    pub(super) fn name(&self) -> &'a str {
        self.name
    }

    /// The next `N` bytes, part of a header whose end is `expected` bytes into
    /// the stream.
    pub(super) fn array<const N: usize>(&mut self, expected: u64) -> Result<[u8; N], DataError> {
        let mut out = [0; N];
        if self.fill(&mut out)? < N {
            return Err(self.truncated(expected));
        }
        Ok(out)
    }

    /// The next `len` bytes, part of a header whose length is known to be small.
    pub(super) fn bytes(&mut self, len: usize) -> Result<Vec<u8>, DataError> {
        let expected = self.position.saturating_add(len as u64);
        let mut out = vec![0; len];
        if self.fill(&mut out)? < len {
            return Err(self.truncated(expected));
        }
        Ok(out)
    }

    /// The next `len` bytes, after which the stream must end.
    ///
    /// An uncompressed stream of the wrong length is refused before anything
    /// is allocated. A compressed one is decompressed up to `len` bytes plus
    /// one, which also verifies its checksum, and no further.
    pub(super) fn rest(mut self, len: usize) -> Result<Vec<u8>, DataError> {
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
        let mut out = Vec::new();
        while out.len() < len {
            let start = out.len();
            let step = (len - start).min(start.max(FIRST_STEP));
            out.reserve_exact(step);
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
        // The decompressor reports damage with these kinds, a disk does not.
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
