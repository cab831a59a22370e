//! Arrays in the `.npy` format of NumPy.
//!
//! ```text
//! bytes 0-5    93 4e 55 4d 50 59 (\x93NUMPY)
//! bytes 6-7    version: 1.0, 2.0 or 3.0
//! next 2 or 4  length of the header, u16 in version 1, u32 after
//! the header   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
//! the rest     elements, row-major, or column-major in Fortran's order
//! ```
//!
//! The numbers are little-endian; `descr` specifies the type and byte order of the elements. The
//! format is described in NumPy's documentation of `numpy.lib.format`.

mod text;
mod write;

pub use text::{NpyLabels, NpyText, parse_npy_labels, read_npy_labels};
pub use write::{write_npy, write_npy_bytes};

use std::{fmt, path::Path};

use half::f16;

use self::text::TextType;
use super::{error::DataError, stream::Stream};

/// Maximum bytes of elements that the reader accepts: 4 GiB. A limit keeps a damaged or hostile
/// file that decompresses without end from filling the memory.
pub const NPY_MAX_BYTES: u64 = 1 << 32;

/// Maximum length of a header; NumPy's own headers have some 100 bytes.
const MAX_HEADER: usize = 1 << 16;

/// Maximum number of dimensions of an array in NumPy.
const MAX_RANK: usize = 64;

/// The element type of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NpyType {
    /// `bool`, a byte of 0 or 1.
    Bool,
    /// `int8`.
    I8,
    /// `int16`.
    I16,
    /// `int32`.
    I32,
    /// `int64`.
    I64,
    /// `uint8`.
    U8,
    /// `uint16`.
    U16,
    /// `uint32`.
    U32,
    /// `uint64`.
    U64,
    /// `float16`.
    F16,
    /// `float32`.
    F32,
    /// `float64`.
    F64,
}

impl NpyType {
    /// Returns the type for a description without its byte order.
    fn from_code(code: &str) -> Option<Self> {
        Some(match code {
            "b1" => Self::Bool,
            "i1" => Self::I8,
            "i2" => Self::I16,
            "i4" => Self::I32,
            "i8" => Self::I64,
            "u1" => Self::U8,
            "u2" => Self::U16,
            "u4" => Self::U32,
            "u8" => Self::U64,
            "f2" => Self::F16,
            "f4" => Self::F32,
            "f8" => Self::F64,
            _ => return None,
        })
    }

    /// Returns the description of the type without the byte order, such as `f4`.
    fn code(self) -> &'static str {
        match self {
            Self::Bool => "b1",
            Self::I8 => "i1",
            Self::I16 => "i2",
            Self::I32 => "i4",
            Self::I64 => "i8",
            Self::U8 => "u1",
            Self::U16 => "u2",
            Self::U32 => "u4",
            Self::U64 => "u8",
            Self::F16 => "f2",
            Self::F32 => "f4",
            Self::F64 => "f8",
        }
    }

    /// Returns the bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns the value of a little-endian element. Whole numbers of 64 bits are rounded above
    /// 2^53.
    fn to_f64(self, bytes: &[u8]) -> f64 {
        match self {
            Self::F16 => f16::from_bits(bits(bytes) as u16).to_f64(),
            Self::F32 => f32::from_bits(bits(bytes) as u32).into(),
            Self::F64 => f64::from_bits(bits(bytes)),
            Self::U64 => bits(bytes) as f64,
            _ => self.to_i64(bytes).map_or(f64::NAN, |n| n as f64),
        }
    }

    /// Returns the value of a little-endian element, if it is a whole number that fits.
    fn to_i64(self, bytes: &[u8]) -> Option<i64> {
        /// Beyond this magnitude, floats do not represent every whole number.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match self {
            Self::Bool | Self::U8 | Self::U16 | Self::U32 | Self::U64 => i64::try_from(bits(bytes)).ok(),
            Self::I8 => Some((bits(bytes) as i8).into()),
            Self::I16 => Some((bits(bytes) as i16).into()),
            Self::I32 => Some((bits(bytes) as i32).into()),
            Self::I64 => Some(bits(bytes) as i64),
            Self::F16 | Self::F32 | Self::F64 => {
                let value = self.to_f64(bytes);
                (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
            }
        }
    }
}

/// Returns the bits of a little-endian number of at most 8 bytes.
fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

/// Formats the type as in NumPy: `float32`.
impl fmt::Display for NpyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "bool",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::F16 => "float16",
            Self::F32 => "float32",
            Self::F64 => "float64",
        })
    }
}

/// An array in row-major order, regardless of the order in the file.
#[derive(Clone, PartialEq)]
pub struct NpyArray {
    name: String,
    shape: Vec<usize>,
    dtype: NpyType,
    /// Little-endian elements.
    bytes: Vec<u8>,
}

impl NpyArray {
    /// Returns the names of the file and of the array in it, which appear in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size of each dimension; none for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> NpyType {
        self.dtype
    }

    /// Returns the elements as `f32`, row-major, rounded to the nearest if they are more precise; a
    /// `float64` beyond its range becomes infinite.
    pub fn to_f32(&self) -> Vec<f32> {
        self.elements().map(|e| self.dtype.to_f64(e) as f32).collect()
    }

    /// Returns the elements as `f64`, row-major; whole numbers of 64 bits are rounded above 2^53.
    pub fn to_f64(&self) -> Vec<f64> {
        self.elements().map(|e| self.dtype.to_f64(e)).collect()
    }

    /// Returns the elements as whole numbers, row-major.
    ///
    /// # Errors
    ///
    /// [`DataError::Npy`] for the first one that is not whole, or beyond `i64`.
    pub fn to_i64(&self) -> Result<Vec<i64>, DataError> {
        let whole = |(at, element)| {
            self.dtype.to_i64(element).ok_or_else(|| DataError::Npy {
                name: self.name.clone(),
                reason: format!("element {at} is {}, not a whole number", self.dtype.to_f64(element)),
            })
        };
        self.elements().enumerate().map(whole).collect()
    }

    fn elements(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.dtype.size())
    }
}

/// Prints only sizes, because printing every element would be too long.
impl fmt::Debug for NpyArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NpyArray")
            .field("name", &self.name)
            .field("shape", &self.shape)
            .field("dtype", &self.dtype)
            .finish_non_exhaustive()
    }
}

/// Reads the `.npy` file at `path`, plain or gzip-compressed.
///
/// # Errors
///
/// [`DataError::Io`] if the file cannot be read, and the errors of [`parse_npy`].
pub fn read_npy(path: impl AsRef<Path>) -> Result<NpyArray, DataError> {
    let path = path.as_ref();
    parse(Stream::open(path, &path.display().to_string())?)
}

/// Parses the content of a `.npy` file, plain or gzip-compressed (detected from its content);
/// `name` appears in errors.
///
/// # Errors
///
/// [`DataError::Npy`] for anything else than such a file, an element type that is no number, or
/// more than [`NPY_MAX_BYTES`]; [`DataError::Truncated`], [`DataError::TrailingBytes`], or
/// [`DataError::Gzip`] for damage. Memory use is limited by the bytes that actually exist, whatever
/// size the header declares.
pub fn parse_npy(bytes: &[u8], name: &str) -> Result<NpyArray, DataError> {
    parse(Stream::from_bytes(bytes, name)?)
}

fn parse(stream: Stream<'_>) -> Result<NpyArray, DataError> {
    numbers_of(parse_raw(stream)?)
}

/// Returns an array of numbers.
pub(super) fn numbers_of(raw: Raw) -> Result<NpyArray, DataError> {
    match NpyLabels::of(raw) {
        NpyLabels::Numbers(array) => Ok(array),
        NpyLabels::Text(text) => Err(DataError::Npy {
            name: text.name().into(),
            reason: "elements that are text cannot be read as numbers; only labels may be text".into(),
        }),
    }
}

/// The element type of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Element {
    Number(NpyType),
    Text(TextType),
}

impl Element {
    /// Returns the bytes per element.
    fn size(self) -> usize {
        match self {
            Element::Number(dtype) => dtype.size(),
            Element::Text(dtype) => dtype.size(),
        }
    }

    /// Returns the number of bytes that are reversed to change the byte order.
    fn unit(self) -> usize {
        match self {
            Element::Number(dtype) => dtype.size(),
            Element::Text(dtype) => dtype.unit(),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Number(dtype) => dtype.fmt(f),
            Element::Text(dtype) => dtype.fmt(f),
        }
    }
}

/// An array of either kind, in row-major order, little-endian.
pub(super) struct Raw {
    name: String,
    shape: Vec<usize>,
    element: Element,
    bytes: Vec<u8>,
}

pub(super) fn parse_raw(mut stream: Stream<'_>) -> Result<Raw, DataError> {
    let name = stream.name();
    let refuse = |reason: String| DataError::Npy {
        name: name.into(),
        reason,
    };
    let [magic @ .., major, _] = stream.array::<8>(10)?;
    if magic != *b"\x93NUMPY" {
        return Err(refuse(
            "not a .npy file: it does not start with \\x93NUMPY; save the array with numpy.save".into(),
        ));
    }
    let length = match major {
        1 => u16::from_le_bytes(stream.array(10)?).into(),
        2 | 3 => u32::from_le_bytes(stream.array(12)?) as usize,
        _ => return Err(refuse(format!("version {major} of the .npy format is not supported"))),
    };
    if length > MAX_HEADER {
        return Err(refuse(format!(
            "the header declares {length} bytes for itself, at most {MAX_HEADER} are accepted; the file is damaged"
        )));
    }
    let text = stream.bytes(length)?;
    let header = Header::parse(&text).map_err(|what| refuse(format!("the header is damaged: {what}")))?;
    let element = element_type(&header.descr).map_err(refuse)?;

    let count = header
        .shape
        .iter()
        .try_fold(1_u64, |product, &dim| product.checked_mul(dim));
    let size = count.and_then(|count| count.checked_mul(element.size() as u64));
    let Some(size) = size.filter(|&size| size <= NPY_MAX_BYTES && usize::try_from(size).is_ok()) else {
        return Err(refuse(format!(
            "the header declares the shape {:?} of {element}; at most {NPY_MAX_BYTES} bytes are accepted: the file is \
             damaged, or split it into smaller ones",
            header.shape
        )));
    };
    let mut bytes = stream.rest(size as usize, element.size())?;
    if header.descr.starts_with('>') {
        bytes.chunks_exact_mut(element.unit()).for_each(<[u8]>::reverse);
    }
    // A dimension that does not fit only occurs together with one of 0, that is, without elements.
    let shape = header
        .shape
        .iter()
        .map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX));
    let shape: Vec<usize> = shape.collect();
    if header.fortran && !bytes.is_empty() {
        bytes = row_major(&bytes, &shape, element.size());
    }
    Ok(Raw {
        name: name.into(),
        shape,
        element,
        bytes,
    })
}

/// Parses the type of a description like `<f4`.
fn element_type(descr: &str) -> Result<Element, String> {
    let code = descr.strip_prefix(['<', '>', '|', '=']).unwrap_or(descr);
    let number = NpyType::from_code(code).map(Element::Number);
    let known = number.or_else(|| TextType::from_code(code).map(Element::Text));
    known.ok_or_else(|| {
        let what = match code.get(..1) {
            Some("O") => " (Python objects)",
            Some("U" | "S") => " (text)",
            Some("c") => " (complex numbers)",
            Some("[") => " (records)",
            _ => "",
        };
        format!(
            "elements of type '{descr}'{what} cannot be read; save an array of float16 to float64, int8 to int64, \
             uint8 to uint64 or bool"
        )
    })
}

/// Converts elements of `size` bytes from column-major to row-major order.
fn row_major(bytes: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    // Distance between neighbours along each axis in the source, whose first axis varies fastest.
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = size;
    for &dim in shape {
        strides.push(stride);
        stride *= dim;
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0; shape.len()];
    let mut from = 0;
    while out.len() < bytes.len() {
        out.extend_from_slice(&bytes[from..from + size]);
        // Increment the last axis, and carry.
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            from += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            from -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    out
}

/// The contents of a header.
#[derive(Debug, PartialEq)]
struct Header {
    /// The element type; for records, the whole list of types.
    descr: String,
    fortran: bool,
    shape: Vec<u64>,
}

impl Header {
    /// Parses the Python dictionary, in the forms that NumPy writes. The error is the reason of the
    /// failure.
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
        let mut cursor = Cursor(text);
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        cursor.expect("{")?;
        while !cursor.eat("}") {
            let key = cursor.string()?;
            cursor.expect(":")?;
            match key {
                "descr" => descr = Some(cursor.description()?),
                "fortran_order" => fortran = Some(cursor.boolean()?),
                "shape" => shape = Some(cursor.sizes()?),
                _ => return Err(format!("the key '{key}' is unknown")),
            }
            if !cursor.eat(",") {
                cursor.expect("}")?;
                break;
            }
        }
        if !cursor.0.trim().is_empty() {
            return Err("it has trailing characters".into());
        }
        match (descr, fortran, shape) {
            (Some(descr), Some(fortran), Some(shape)) => Ok(Header { descr, fortran, shape }),
            _ => Err("it lacks 'descr', 'fortran_order' or 'shape'".into()),
        }
    }
}

/// The rest of a text to be parsed.
struct Cursor<'t>(&'t str);

impl<'t> Cursor<'t> {
    /// Skips spaces, and the token if it comes next; returns true if it did.
    fn eat(&mut self, token: &str) -> bool {
        self.0 = self.0.trim_start();
        let rest = self.0.strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(format!(
                "expected {token}, found '{}'",
                self.0.chars().take(20).collect::<String>()
            ))
        }
    }

    /// Parses a string in quotes of either kind, without escapes.
    fn string(&mut self) -> Result<&'t str, String> {
        let quote = if self.eat("\"") { '"' } else { '\'' };
        if quote == '\'' {
            self.expect("'")?;
        }
        let (string, rest) = self.0.split_once(quote).ok_or("a string does not end")?;
        self.0 = rest;
        Ok(string)
    }

    /// Parses a type: a string, or a list, which is returned as unparsed text.
    fn description(&mut self) -> Result<String, String> {
        if !self.eat("[") {
            return self.string().map(str::to_owned);
        }
        let (list, rest) = self.0.split_once(']').ok_or("a list does not end")?;
        self.0 = rest;
        Ok(format!("[{list}]"))
    }

    fn boolean(&mut self) -> Result<bool, String> {
        if self.eat("True") {
            return Ok(true);
        }
        self.expect("False").map(|()| false)
    }

    /// Parses a tuple of sizes.
    fn sizes(&mut self) -> Result<Vec<u64>, String> {
        let mut sizes = Vec::new();
        self.expect("(")?;
        while !self.eat(")") {
            let digits = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
            let (number, rest) = self.0.split_at(digits);
            let size = number.parse();
            sizes.push(size.map_err(|_| format!("'{number}' is not a size"))?);
            self.0 = rest;
            if sizes.len() > MAX_RANK {
                return Err(format!("there are more than {MAX_RANK} dimensions"));
            }
            // Python 2 wrote long numbers with this suffix.
            self.eat("L");
            if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
pub(super) mod tests;
#[cfg(test)]
pub(super) use text::tests as text_tests;
