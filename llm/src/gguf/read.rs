//! A reader of header fields in order.

use std::borrow::Cow;
use std::ops::Range;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(List),
}

/// A list of values of one type. The values stay in the file instead of being parsed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct List {
    kind: u32,
    count: usize,
    bytes: Range<usize>,
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the texts of a list of texts, and `None` for other lists; `file` is the whole file that contains the
    /// list.
    pub(super) fn texts<'a>(&self, file: &'a [u8]) -> Option<impl Iterator<Item = Cow<'a, str>> + use<'a>> {
        let mut reader = self.reader(file, self.kind == TEXT)?;
        Some((0..self.count).map_while(move |_| reader.text().ok()))
    }

    /// Returns the integers of a list of integers, and `None` for other lists.
    pub(super) fn ints<'a>(&self, file: &'a [u8]) -> Option<impl Iterator<Item = i64> + use<'a>> {
        self.singles(file, matches!(self.kind, 0..=5 | 10 | 11), |value| match value {
            Value::Int(value) => Some(value),
            _ => None,
        })
    }

    /// Returns the numbers of a list of floats, and `None` for other lists.
    pub(super) fn floats<'a>(&self, file: &'a [u8]) -> Option<impl Iterator<Item = f64> + use<'a>> {
        self.singles(file, matches!(self.kind, 6 | 12), |value| match value {
            Value::Float(value) => Some(value),
            _ => None,
        })
    }

    fn singles<'a, T>(
        &self,
        file: &'a [u8],
        is_right: bool,
        of: fn(Value) -> Option<T>,
    ) -> Option<impl Iterator<Item = T> + use<'a, T>> {
        let mut reader = self.reader(file, is_right)?;
        let kind = self.kind;
        Some((0..self.count).map_while(move |_| of(reader.single(kind).ok()?)))
    }

    fn reader<'a>(&self, file: &'a [u8], is_right: bool) -> Option<Reader<'a>> {
        let bytes = file.get(self.bytes.clone()).filter(|_| is_right)?;
        Some(Reader::new(bytes))
    }
}

type Result<T> = std::result::Result<T, String>;

/// The rest of a file.
pub(super) struct Reader<'a> {
    all: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(all: &'a [u8]) -> Self {
        Reader { all, position: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.position.checked_add(count);
        let bytes = end.and_then(|end| self.all.get(self.position..end));
        let bytes = bytes.ok_or_else(|| format!("it ends within the {count} bytes at offset {}", self.position))?;
        self.position += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.bytes(N)?.try_into().map_err(|_| "it ends".to_owned())
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a count of items of at least `least` bytes each. A count whose items exceed the rest of the file is an
    /// error.
    pub(super) fn count(&mut self, least: usize) -> Result<usize> {
        let count = self.u64()?;
        let room = (self.all.len() - self.position) / least.max(1);
        match usize::try_from(count) {
            Ok(count) if count <= room => Ok(count),
            _ => Err(format!("it declares {count} elements, but has room for only {room}")),
        }
    }

    pub(super) fn text(&mut self) -> Result<Cow<'a, str>> {
        let length = self.count(1)?;
        let text = self.bytes(length)?;
        // Tokens of some vocabularies are no text.
        Ok(String::from_utf8_lossy(text))
    }

    pub(super) fn value(&mut self) -> Result<Value> {
        let kind = self.u32()?;
        if kind == ARRAY {
            return self.list(0);
        }
        self.single(kind)
    }

    fn single(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Int(i64::from(self.array::<1>()?[0])),
            1 => Value::Int(i64::from(self.array::<1>()?[0].cast_signed())),
            2 => Value::Int(i64::from(u16::from_le_bytes(self.array()?))),
            3 => Value::Int(i64::from(i16::from_le_bytes(self.array()?))),
            4 => Value::Int(i64::from(self.u32()?)),
            5 => Value::Int(i64::from(i32::from_le_bytes(self.array()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            TEXT => Value::Text(self.text()?.into_owned()),
            // Numbers beyond i64 are no valid sizes.
            10 => Value::Int(i64::try_from(self.u64()?).unwrap_or(i64::MAX)),
            11 => Value::Int(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("a value of type {other}")),
        })
    }

    /// Reads a list at a nesting depth. Lists of lists are skipped: no supported key has one.
    fn list(&mut self, depth: usize) -> Result<Value> {
        let kind = self.u32()?;
        let least = match kind {
            // Type and length of each list.
            ARRAY if depth < MAX_DEPTH => 4 + 8,
            ARRAY => return Err(format!("expected at most {MAX_DEPTH} nested lists, found more")),
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            TEXT | 10..=12 => 8,
            other => return Err(format!("a list of type {other}")),
        };
        let count = self.count(least)?;
        let start = self.position;
        match kind {
            TEXT => (0..count).try_for_each(|_| self.text().map(drop))?,
            ARRAY => (0..count).try_for_each(|_| self.list(depth + 1).map(drop))?,
            _ => self.bytes(count * least).map(drop)?,
        }
        Ok(Value::List(List {
            kind,
            count,
            bytes: start..self.position,
        }))
    }
}

/// Numbers of the value types that are not numeric.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
/// Maximum depth of lists in lists.
const MAX_DEPTH: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_type() {
        let mut bytes = Vec::new();
        let mut add = |kind: u32, value: &[u8]| {
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        };
        add(1, &[0xff]);
        add(3, &(-300i16).to_le_bytes());
        add(10, &u64::MAX.to_le_bytes());
        add(6, &0.5f32.to_le_bytes());
        add(7, &[1]);
        let text = [&2u64.to_le_bytes()[..], b"ab"].concat();
        add(8, &text);
        add(9, &[&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &text].concat());
        add(
            9,
            &[&5u32.to_le_bytes()[..], &1u64.to_le_bytes(), &(-7i32).to_le_bytes()].concat(),
        );
        add(
            9,
            &[&6u32.to_le_bytes()[..], &1u64.to_le_bytes(), &2.5f32.to_le_bytes()].concat(),
        );
        let mut reader = Reader::new(&bytes);
        let wanted = [
            Value::Int(-1),
            Value::Int(-300),
            Value::Int(i64::MAX),
            Value::Float(0.5),
            Value::Bool(true),
            Value::Text("ab".into()),
        ];
        for value in wanted {
            assert_eq!(reader.value(), Ok(value));
        }
        let mut list = || match reader.value() {
            Ok(Value::List(list)) => list,
            other => panic!("no list: {other:?}"),
        };
        let (texts, ints, floats) = (list(), list(), list());
        assert_eq!(texts.texts(&bytes).expect("texts").collect::<Vec<_>>(), ["ab"]);
        assert_eq!(ints.ints(&bytes).expect("numbers").collect::<Vec<_>>(), [-7]);
        assert_eq!(floats.floats(&bytes).expect("numbers").collect::<Vec<_>>(), [2.5]);
        assert!(texts.ints(&bytes).is_none() && ints.floats(&bytes).is_none() && floats.texts(&bytes).is_none());
        assert_eq!(reader.position(), bytes.len());
        assert!(reader.value().is_err(), "nothing is left");
    }

    /// Returns nested lists of a type with this depth, with a number in the innermost one.
    fn nested(depth: usize) -> Vec<u8> {
        let mut bytes = [&5u32.to_le_bytes()[..], &1u64.to_le_bytes(), &7i32.to_le_bytes()].concat();
        for _ in 1..depth {
            bytes = [&ARRAY.to_le_bytes()[..], &1u64.to_le_bytes(), &bytes].concat();
        }
        [&ARRAY.to_le_bytes()[..], &bytes].concat()
    }

    #[test]
    fn lists_of_lists_are_skipped() {
        for depth in [2, 3, MAX_DEPTH + 1] {
            let bytes = [nested(depth), vec![1; 3]].concat();
            let mut reader = Reader::new(&bytes);
            let Ok(Value::List(list)) = reader.value() else {
                panic!("{depth}: no list");
            };
            assert_eq!(reader.position(), bytes.len() - 3);
            assert!(list.ints(&bytes).is_none() && list.texts(&bytes).is_none());
        }
        let deep = nested(100_000);
        let error = Reader::new(&deep).value().expect_err("too deep");
        assert!(error.contains("at most 8 nested lists"), "{error}");
    }

    #[test]
    fn lengths_are_compared_with_the_file() {
        for kind in [8u32, 9] {
            let mut bytes = kind.to_le_bytes().to_vec();
            if kind == 9 {
                bytes.extend(4u32.to_le_bytes());
            }
            bytes.extend(u64::MAX.to_le_bytes());
            let error = Reader::new(&bytes).value().expect_err("too long");
            assert!(error.contains("declares 18446744073709551615"), "{error}");
        }
        let nested = [9u32.to_le_bytes(), 9u32.to_le_bytes()].concat();
        assert!(Reader::new(&nested).value().is_err());
        let long = [nested, u64::MAX.to_le_bytes().to_vec()].concat();
        let error = Reader::new(&long).value().expect_err("too long");
        assert!(error.contains("declares 18446744073709551615"), "{error}");
    }
}
