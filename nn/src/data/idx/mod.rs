//! The IDX array format, in which MNIST and its relatives are distributed.
//!
//! ```text
//! bytes 0-1       zero
//! byte  2         element type: 08 u8, 09 i8, 0b i16, 0c i32, 0d f32, 0e f64
//! byte  3         number of dimensions, r
//! next 4·r bytes  size of each dimension, u32
//! the rest        elements, row-major
//! ```
//!
//! All numbers are big-endian. The well-known magic numbers 0x00000803 (MNIST images) and
//! 0x00000801 (labels) are the first four bytes of this header.

use std::{fmt, path::Path};

use super::{error::DataError, stream::Stream};

/// Maximum bytes of elements that the reader accepts: 1 GiB, about twice the largest set of the
/// MNIST family. A limit keeps a damaged or hostile file that decompresses without end from filling
/// the memory.
pub const IDX_MAX_BYTES: usize = 1 << 30;

/// The element type of an IDX file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdxType {
    /// Type byte 0x08.
    U8,
    /// Type byte 0x09.
    I8,
    /// Type byte 0x0b.
    I16,
    /// Type byte 0x0c.
    I32,
    /// Type byte 0x0d.
    F32,
    /// Type byte 0x0e.
    F64,
}

impl IdxType {
    /// Returns the type for a header's type byte.
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x08 => Self::U8,
            0x09 => Self::I8,
            0x0b => Self::I16,
            0x0c => Self::I32,
            0x0d => Self::F32,
            0x0e => Self::F64,
            _ => return None,
        })
    }

    /// Returns the bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// Formats the type as in Rust: `u8` to `f64`.
impl fmt::Display for IdxType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::F64 => "f64",
        })
    }
}

/// The elements of an IDX file, row-major, in native byte order.
#[derive(Clone, Debug, PartialEq)]
pub enum IdxData {
    /// Unsigned bytes.
    U8(Vec<u8>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// 16-bit integers.
    I16(Vec<i16>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// Single-precision floats, possibly NaN or infinite.
    F32(Vec<f32>),
    /// Double-precision floats, possibly NaN or infinite.
    F64(Vec<f64>),
}

impl IdxData {
    /// Converts big-endian `bytes`, whose length is a multiple of the element
    /// size. Unsigned bytes, by far the most frequent, are not copied.
    fn decode(dtype: IdxType, bytes: Vec<u8>) -> Self {
        /// Applies `convert` to each `N` bytes.
        fn each<const N: usize, T>(bytes: &[u8], convert: fn([u8; N]) -> T) -> Vec<T> {
            bytes.as_chunks::<N>().0.iter().map(|&chunk| convert(chunk)).collect()
        }
        match dtype {
            IdxType::U8 => Self::U8(bytes),
            IdxType::I8 => Self::I8(each(&bytes, i8::from_be_bytes)),
            IdxType::I16 => Self::I16(each(&bytes, i16::from_be_bytes)),
            IdxType::I32 => Self::I32(each(&bytes, i32::from_be_bytes)),
            IdxType::F32 => Self::F32(each(&bytes, f32::from_be_bytes)),
            IdxType::F64 => Self::F64(each(&bytes, f64::from_be_bytes)),
        }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> IdxType {
        match self {
            Self::U8(_) => IdxType::U8,
            Self::I8(_) => IdxType::I8,
            Self::I16(_) => IdxType::I16,
            Self::I32(_) => IdxType::I32,
            Self::F32(_) => IdxType::F32,
            Self::F64(_) => IdxType::F64,
        }
    }

    /// Returns the elements as `f32`, rounded to the nearest if `i32` or `f64` are more precise
    /// than `f32`; an `f64` beyond its range becomes infinite.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::U8(data) => data.iter().map(|&x| f32::from(x)).collect(),
            Self::I8(data) => data.iter().map(|&x| f32::from(x)).collect(),
            Self::I16(data) => data.iter().map(|&x| f32::from(x)).collect(),
            Self::I32(data) => data.iter().map(|&x| x as f32).collect(),
            Self::F32(data) => data.clone(),
            Self::F64(data) => data.iter().map(|&x| x as f32).collect(),
        }
    }
}

/// An array read from an IDX file. The number of elements is the product of
/// the shape, which has at least one dimension and none of size 0.
#[derive(Clone, Debug, PartialEq)]
pub struct IdxArray {
    shape: Vec<usize>,
    data: IdxData,
}

impl IdxArray {
    /// Returns the size of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> IdxType {
        self.data.dtype()
    }

    /// Returns the elements.
    pub fn data(&self) -> &IdxData {
        &self.data
    }

    /// Returns shape and elements.
    pub fn into_parts(self) -> (Vec<usize>, IdxData) {
        (self.shape, self.data)
    }
}

/// Reads the IDX file at `path`, plain or gzip-compressed.
///
/// # Errors
///
/// [`DataError::Io`] if the file cannot be read, and the errors of [`parse_idx`].
pub fn read_idx(path: impl AsRef<Path>) -> Result<IdxArray, DataError> {
    let path = path.as_ref();
    parse(Stream::open(path, &path.display().to_string())?)
}

/// Parses the content of an IDX file, plain or gzip-compressed (detected from its content); `name`
/// appears in errors.
///
/// # Errors
///
/// [`DataError::NotIdx`], [`DataError::IdxType`], [`DataError::IdxEmpty`],
/// [`DataError::IdxTooLarge`] above [`IDX_MAX_BYTES`], [`DataError::Truncated`],
/// [`DataError::TrailingBytes`], or [`DataError::Gzip`] for damaged compression. Memory use is
/// limited by the bytes that actually exist, whatever size the header declares.
pub fn parse_idx(bytes: &[u8], name: &str) -> Result<IdxArray, DataError> {
    parse(Stream::from_bytes(bytes, name)?)
}

fn parse(mut stream: Stream<'_>) -> Result<IdxArray, DataError> {
    let name = stream.name();
    let [zero0, zero1, code, rank] = stream.array(4)?;
    if (zero0, zero1) != (0, 0) {
        return Err(DataError::NotIdx {
            name: name.into(),
            found: [zero0, zero1],
        });
    }
    let dtype = IdxType::from_code(code).ok_or_else(|| DataError::IdxType {
        name: name.into(),
        code,
    })?;

    let header_len = 4 + 4 * u64::from(rank);
    let mut shape = Vec::with_capacity(rank.into());
    for _ in 0..rank {
        shape.push(u32::from_be_bytes(stream.array(header_len)?) as usize);
    }
    if shape.is_empty() || shape.contains(&0) {
        return Err(DataError::IdxEmpty {
            name: name.into(),
            shape,
        });
    }
    let size = shape.iter().try_fold(dtype.size(), |size, &dim| size.checked_mul(dim));
    match size {
        Some(size) if size <= IDX_MAX_BYTES => {
            let data = IdxData::decode(dtype, stream.rest(size, dtype.size())?);
            Ok(IdxArray { shape, data })
        }
        _ => Err(DataError::IdxTooLarge {
            name: name.into(),
            shape,
            element_bytes: dtype.size(),
            limit: IDX_MAX_BYTES,
        }),
    }
}

#[cfg(test)]
mod tests;
