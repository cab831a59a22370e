//! A file with tensors that is mapped into memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use meganeura_core::files::open_regular;
use meganeura_core::{Error, Result};
use memmap2::Mmap;
use safetensors::SafeTensors;

use super::arrangement::{self, Arrangement};
use super::element::Element;
use crate::files::damaged;

/// Minimum number of bytes of a tensor whose memory is given back to the system.
#[cfg(unix)]
const MIN_RELEASED_BYTES: usize = 1 << 20;

/// A file and its tensors.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) map: Mmap,
    pub(crate) tensors: BTreeMap<String, Entry>,
}

/// A tensor of a file.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Element type; `None` if it is not supported.
    pub(crate) element: Option<Element>,
    /// Name of the type in the file.
    pub(crate) stored: String,
    pub(crate) shape: Vec<usize>,
    /// Range of its bytes in the file.
    pub(crate) range: Range<usize>,
    /// Order of its numbers in the file.
    pub(crate) arrangement: Arrangement,
}

impl Entry {
    /// Returns the number of elements.
    pub(crate) fn count(&self) -> u64 {
        self.shape
            .iter()
            .fold(1, |count: u64, &size| count.saturating_mul(size as u64))
    }
}

/// A tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor<'a> {
    pub(crate) element: Element,
    pub(crate) shape: &'a [usize],
    pub(crate) bytes: &'a [u8],
    /// Order of its numbers in `bytes`.
    pub(crate) arrangement: &'a Arrangement,
    /// Scales of [`Arrangement::SplitMxfp4`].
    pub(crate) scales: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Returns the bytes of the whole tensor, if it is stored in the layout of a session for this
    /// type.
    pub(crate) fn bytes_in(&self, element: Element) -> Option<&'a [u8]> {
        let same = self.element == element && *self.arrangement == Arrangement::Rows && cfg!(target_endian = "little");
        same.then_some(self.bytes)
    }
}

impl Tensor<'_> {
    /// Returns the number of rows and their width. A vector is one row; a tensor of several matrices has the rows of
    /// all of them.
    pub(crate) fn rows(&self) -> [usize; 2] {
        match *self.shape {
            [len] if matches!(self.arrangement, Arrangement::Pairs(_)) => [len, 1],
            [len] => [1, len],
            [ref rows @ .., width] => [rows.iter().product(), width],
            [] => [1, 1],
        }
    }

    /// Returns the bytes of a row.
    pub(crate) fn row(&self, row: usize) -> Cow<'_, [u8]> {
        arrangement::row(self, row)
    }

    /// Reads some numbers of a row, which must be whole blocks.
    pub(crate) fn read_part(&self, row: usize, numbers: Range<usize>, out: &mut [f32]) {
        let at = |number| self.element.bytes(number).unwrap_or(0);
        let row = self.row(row);
        let bytes = row.get(at(numbers.start)..at(numbers.end));
        self.element.read(bytes.unwrap_or_default(), out);
    }

    /// Reads the numbers of a row.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        self.element.read(&self.row(row), out);
    }
}

/// Maps a file into memory.
pub(crate) fn map(path: &Path, remedy: &str) -> Result<Mmap> {
    let unreadable = |e: std::io::Error| Error::file(path, format!("cannot be read: {e}"), remedy);
    let file = open_regular(path).map_err(unreadable)?;
    // SAFETY: the map is only read. The caller is required to keep the file unchanged. Its contents
    // are checked before use, and only ever converted to numbers.
    unsafe { Mmap::map(&file) }.map_err(unreadable)
}

impl Shard {
    /// Opens a safetensors file.
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let remedy = "give the folder of a checkpoint with model.safetensors, or with all files that its index lists";
        let map = map(&path, remedy)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| damaged(&path, e))?;
        let start = size_of::<u64>() + header;
        let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
            let (from, to) = info.data_offsets;
            let entry = Entry {
                element: Element::of_safetensors(info.dtype),
                stored: format!("{:?}", info.dtype),
                shape: info.shape.clone(),
                range: start + from..start + to,
                arrangement: Arrangement::Rows,
            };
            (name, entry)
        };
        let tensors = metadata.tensors().into_iter().map(entry).collect();
        Ok(Shard { path, map, tensors })
    }

    /// Returns a tensor, if its type is supported and the file contains all of it.
    pub(crate) fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let entry = self.tensors.get(name)?;
        let (element, bytes) = (entry.element?, self.map.get(entry.range.clone())?);
        let count: usize = entry.shape.iter().product();
        let sizes = entry.arrangement.stored_sizes(element, count)?;
        let scales = match &entry.arrangement {
            Arrangement::SplitMxfp4 { scales, .. } => self.map.get(scales.clone())?,
            _ => &[],
        };
        (sizes == [bytes.len(), scales.len()]).then_some(Tensor {
            element,
            shape: &entry.shape,
            bytes,
            arrangement: &entry.arrangement,
            scales,
        })
    }

    /// Returns the size of a tensor in the file, in bytes.
    pub(crate) fn stored_bytes(&self, name: &str) -> u64 {
        self.tensors.get(name).map_or(0, |entry| entry.range.len() as u64)
    }

    /// Gives the memory of a tensor's bytes back to the system. They are read from the file again when they are used.
    pub(crate) fn release(&self, name: &str) {
        #[cfg(unix)]
        if let Some(entry) = self.tensors.get(name)
            && entry.range.len() >= MIN_RELEASED_BYTES
        {
            // SAFETY: this is a map of a file that is only read, so no contents are lost.
            let released = unsafe {
                self.map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    entry.range.start,
                    entry.range.len(),
                )
            };
            if let Err(error) = released {
                log::debug!("the memory of '{name}' is not released: {error}");
            }
        }
        #[cfg(not(unix))]
        let _ = name;
    }
}
