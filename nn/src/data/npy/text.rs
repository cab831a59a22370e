//! Arrays of text, which may be labels.

use std::{fmt, path::Path};

use super::{Element, NPY_MAX_BYTES, NpyArray, Raw, parse_raw};
use crate::data::error::DataError;
use crate::data::stream::Stream;

/// The encoding of characters in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// `str`, NumPy's `<U10`: characters of four bytes.
    Utf32,
    /// `bytes`, NumPy's `|S10`, interpreted as UTF-8.
    Bytes,
}

/// Element type of an array of text. All of its texts take the same number of bytes; shorter ones end in zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextType {
    encoding: Encoding,
    /// Bytes per element, at least 1.
    size: usize,
}

impl TextType {
    /// Returns the type for a description without its byte order: `U10` or `S10`.
    pub(super) fn from_code(code: &str) -> Option<Self> {
        let (encoding, length) = match code.split_at_checked(1)? {
            ("U", length) => (Encoding::Utf32, length),
            ("S", length) => (Encoding::Bytes, length),
            _ => return None,
        };
        let unit = match encoding {
            Encoding::Utf32 => 4,
            Encoding::Bytes => 1,
        };
        let length: usize = length.parse().ok()?;
        let size = length.checked_mul(unit)?;
        (size > 0 && size as u64 <= NPY_MAX_BYTES).then_some(TextType { encoding, size })
    }

    /// Returns the bytes per element.
    pub(super) fn size(self) -> usize {
        self.size
    }

    /// Returns the number of bytes that are reversed to change the byte order.
    pub(super) fn unit(self) -> usize {
        match self.encoding {
            Encoding::Utf32 => 4,
            Encoding::Bytes => 1,
        }
    }

    /// Returns the text of an element, without the zeros at its end.
    fn decode(self, element: &[u8]) -> Result<String, &'static str> {
        match self.encoding {
            Encoding::Bytes => {
                let end = element.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                let text = std::str::from_utf8(&element[..end]);
                text.map(str::to_owned).map_err(|_| "its bytes are not UTF-8")
            }
            Encoding::Utf32 => {
                let (characters, _) = element.as_chunks::<4>();
                let codes = characters.iter().map(|&c| u32::from_le_bytes(c));
                let text: Option<String> = codes.map(char::from_u32).collect();
                let text = text.ok_or("it has an invalid character code")?;
                Ok(text.trim_end_matches('\0').to_owned())
            }
        }
    }
}

/// Formats the type as in NumPy, such as `<U10` for `str` of 10 characters.
impl fmt::Display for TextType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.encoding {
            Encoding::Utf32 => write!(f, "<U{}", self.size / 4),
            Encoding::Bytes => write!(f, "|S{}", self.size),
        }
    }
}

/// An array of text (`<U10` or `|S10` in NumPy), in row-major order, regardless of the order in the file.
#[derive(Clone, PartialEq)]
pub struct NpyText {
    name: String,
    shape: Vec<usize>,
    dtype: TextType,
    /// Little-endian elements.
    bytes: Vec<u8>,
}

impl NpyText {
    /// Returns the names of the file and of the array in it, which appear in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size of each dimension; none for a single text.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the texts, row-major, without the zeros at their ends.
    ///
    /// # Errors
    ///
    /// [`DataError::Npy`] for the first text with a code that is no character, or with bytes that are not UTF-8.
    pub fn to_strings(&self) -> Result<Vec<String>, DataError> {
        self.texts().collect()
    }

    /// Returns the texts one by one.
    pub(in crate::data) fn texts(&self) -> impl Iterator<Item = Result<String, DataError>> {
        let elements = self.bytes.chunks_exact(self.dtype.size()).enumerate();
        elements.map(|(at, element)| {
            self.dtype.decode(element).map_err(|what| DataError::Npy {
                name: self.name.clone(),
                reason: format!("element {at} of type '{}' cannot be read: {what}", self.dtype),
            })
        })
    }
}

/// Prints only sizes, because printing every element would be too long.
impl fmt::Debug for NpyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NpyText")
            .field("name", &self.name)
            .field("shape", &self.shape)
            .field("dtype", &self.dtype)
            .finish_non_exhaustive()
    }
}

/// An array whose elements may be labels of classes.
#[derive(Clone, Debug, PartialEq)]
pub enum NpyLabels {
    /// Numbers.
    Numbers(NpyArray),
    /// Text.
    Text(NpyText),
}

impl NpyLabels {
    pub(in crate::data) fn of(raw: Raw) -> Self {
        let Raw {
            name,
            shape,
            element,
            bytes,
        } = raw;
        match element {
            Element::Number(dtype) => NpyLabels::Numbers(NpyArray {
                name,
                shape,
                dtype,
                bytes,
            }),
            Element::Text(dtype) => NpyLabels::Text(NpyText {
                name,
                shape,
                dtype,
                bytes,
            }),
        }
    }

    /// Returns the names of the file and of the array in it, which appear in error messages.
    pub fn name(&self) -> &str {
        match self {
            NpyLabels::Numbers(array) => array.name(),
            NpyLabels::Text(text) => text.name(),
        }
    }

    /// Returns the size of each dimension; none for a single element.
    pub fn shape(&self) -> &[usize] {
        match self {
            NpyLabels::Numbers(array) => array.shape(),
            NpyLabels::Text(text) => text.shape(),
        }
    }

    /// Returns true if these can be classes: text, or whole numbers.
    pub fn are_classes(&self) -> bool {
        match self {
            NpyLabels::Numbers(array) => array.to_i64().is_ok(),
            NpyLabels::Text(_) => true,
        }
    }
}

/// Reads the `.npy` file at `path`, plain or gzip-compressed, whose elements are numbers or text.
///
/// # Errors
///
/// [`DataError::Io`] if the file cannot be read, and the errors of [`parse_npy_labels`].
pub fn read_npy_labels(path: impl AsRef<Path>) -> Result<NpyLabels, DataError> {
    let path = path.as_ref();
    let raw = parse_raw(Stream::open(path, &path.display().to_string())?)?;
    Ok(NpyLabels::of(raw))
}

/// Parses the content of a `.npy` file like [`parse_npy`](super::parse_npy), but also accepts text (`<U10` and `|S10`).
///
/// # Errors
///
/// The errors of [`parse_npy`](super::parse_npy), except that text is accepted.
pub fn parse_npy_labels(bytes: &[u8], name: &str) -> Result<NpyLabels, DataError> {
    Ok(NpyLabels::of(parse_raw(Stream::from_bytes(bytes, name)?)?))
}

#[cfg(test)]
pub(in crate::data) mod tests {
    use super::super::parse_npy;
    use super::super::tests::npy;
    use super::*;

    /// Returns elements of `<U{width}`, or of `>U{width}` if `big`.
    pub(in crate::data) fn utf32(texts: &[&str], width: usize, big: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        for text in texts {
            let codes = text.chars().map(u32::from).chain(std::iter::repeat(0)).take(width);
            bytes.extend(codes.flat_map(|code| if big { code.to_be_bytes() } else { code.to_le_bytes() }));
        }
        bytes
    }

    fn texts(descr: &str, fortran: bool, shape: &str, elements: &[u8]) -> Result<Vec<String>, String> {
        let array = parse_npy_labels(&npy(descr, fortran, shape, elements), "a.npy");
        match array.map_err(|e| e.to_string())? {
            NpyLabels::Text(text) => text.to_strings().map_err(|e| e.to_string()),
            NpyLabels::Numbers(array) => Err(format!("numbers: {array:?}")),
        }
    }

    #[test]
    fn texts_of_either_kind_and_byte_order_are_read() {
        let words = ["rose", "größe", "", "日本"];
        for (descr, big) in [("<U5", false), (">U5", true)] {
            assert_eq!(
                texts(descr, false, "(4,)", &utf32(&words, 5, big)).as_deref(),
                Ok(&words.map(str::to_owned)[..])
            );
        }
        assert_eq!(
            texts("|S3", false, "(3,)", b"a\0\0bcdz\0\0").unwrap(),
            ["a", "bcd", "z"]
        );
        // Zeros within a text stay, and the first index is fastest in Fortran's order.
        assert_eq!(texts("|S3", false, "(1,)", b"a\0b").unwrap(), ["a\0b"]);
        assert_eq!(texts("S1", true, "(2, 2)", b"abcd").unwrap(), ["a", "c", "b", "d"]);
        assert_eq!(texts("<U7", false, "(0,)", b"").unwrap(), [""; 0]);
    }

    #[test]
    fn numbers_stay_numbers() {
        let array = parse_npy_labels(&npy("|u1", false, "(2,)", &[1, 2]), "a.npy").unwrap();
        assert_eq!(
            (array.name(), array.shape(), array.are_classes()),
            ("a.npy", &[2][..], true)
        );
        let halves = npy("<f4", false, "(1,)", &0.5f32.to_le_bytes());
        assert!(!parse_npy_labels(&halves, "a.npy").unwrap().are_classes());
    }

    #[test]
    fn what_is_no_text_is_refused() {
        for (descr, elements, part) in [
            ("<U1", &0xD800_u32.to_le_bytes()[..], "element 0 of type '<U1'"),
            ("<U1", &u32::MAX.to_le_bytes(), "invalid character code"),
            ("|S2", &[0xff, 0xfe], "not UTF-8"),
            ("<U0", &[], "cannot be read"),
            ("<U99999999999999999999", &[], "cannot be read"),
            ("|S4294967297", &[], "cannot be read"),
            ("<U2", &[0; 4], "truncated"),
        ] {
            let error = texts(descr, false, "(1,)", elements).expect_err(descr);
            assert!(error.contains(part) && error.contains("a.npy"), "{error}");
        }
        let error = parse_npy(&npy("|S1", false, "(1,)", b"a"), "a.npy").expect_err("text");
        assert!(error.to_string().contains("only labels may be text"), "{error}");
    }

    /// Parsing does not panic for any truncation or flipped bit.
    #[test]
    fn no_damage_panics() {
        let bytes = npy("<U2", true, "(2, 2)", &utf32(&["a", "bc", "é", ""], 2, false));
        for end in 0..bytes.len() {
            assert!(parse_npy_labels(&bytes[..end], "cut").is_err());
        }
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(NpyLabels::Text(text)) = parse_npy_labels(&damaged, "flipped") {
                let _ = text.to_strings();
            }
        }
    }
}
