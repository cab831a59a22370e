//! GGUF files: a model with its configuration, weights and tokenizer in one file, or split into
//! several. They are only read.
//!
//! This library has its own reader, because existing crates parse streams into memory or do not check hostile files,
//! and the format is simple. It reads versions 2 and 3, little-endian, with tensors in F32, F16, BF16, Q8_0, Q5_1,
//! Q5_0, Q4_1, Q4_0, Q6_K, Q5_K, Q4_K, Q3_K, Q2_K, IQ4_NL, IQ4_XS and MXFP4. Every length is compared with the rest of
//! the file before anything is allocated for it.

mod encoder;
mod model;
mod names;
pub(crate) mod parts;
mod pieces;
mod positions;
mod pre_tokenizers;
mod read;
mod summary;
mod tokenizer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meganeura_core::{Error, Result};
use memmap2::Mmap;

use crate::files::damaged;
use crate::tensors::arrangement::Arrangement;
use crate::tensors::element::Element;
use crate::tensors::shard::{Entry, Shard, map};
use read::{List, Reader, Value};

/// Returns true if a path is that of a GGUF file.
pub(crate) fn is_one(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && !path.is_dir()
}

/// A file with its header read, or the parts of a split one.
pub(crate) struct Gguf {
    /// The file, or the first part.
    path: PathBuf,
    map: Mmap,
    values: BTreeMap<String, Value>,
    /// Tensors of all parts.
    tensors: BTreeMap<String, Info>,
    /// Further parts.
    rest: Vec<Part>,
}

/// A part of a split file, except for the first.
struct Part {
    path: PathBuf,
    map: Mmap,
}

/// The description of a tensor in a header.
struct Info {
    /// Sizes, the outermost axis first.
    shape: Vec<usize>,
    element: Option<Element>,
    /// Element type, by its number in the format.
    stored: u32,
    /// Index of the part that contains the tensor, and offset of its first byte in that part.
    part: usize,
    start: usize,
}

/// Supported versions of the format.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// Maximum axes of a tensor.
const MAX_AXES: u32 = 4;
/// Keys of split files: the number of parts, the index of this one from 0, and the number of
/// tensors of all.
const PARTS: &str = "split.count";
const NUMBER: &str = "split.no";
const ALL_TENSORS: &str = "split.tensors.count";
/// Default alignment of tensors.
const ALIGNMENT: usize = 32;

impl Gguf {
    /// Opens a model by its path: a file, or all parts of a split one (`NAME-00001-of-00003.gguf`
    /// and further ones in the same folder), by the path of the first.
    ///
    /// # Errors
    /// As [`Gguf::open_part`]; parts that are missing, or do not belong together.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let first = Gguf::open_part(path)?;
        let others = first.others()?;
        first.with_others(others.iter().map(|path| Gguf::open_part(path)))
    }

    /// Combines a first part with [all further ones](Gguf::others).
    ///
    /// # Errors
    /// The errors of opening parts; [`Error::File`] for parts that do not belong together.
    pub(crate) fn with_others(mut self, others: impl IntoIterator<Item = Result<Gguf>>) -> Result<Self> {
        for (number, part) in (1..).zip(others) {
            self.join(number, part?)?;
        }
        match self.count(ALL_TENSORS)?.filter(|_| !self.rest.is_empty()) {
            Some(all) if all != self.tensors.len() as u64 => Err(self.damaged(format!(
                "its parts have {} tensors in total, expected {all}",
                self.tensors.len()
            ))),
            _ => Ok(self),
        }
    }

    /// Returns the paths of the further parts, if the file is the first of several.
    ///
    /// # Errors
    /// [`Error::File`]: another part than the first, or a name without the number of the part.
    pub(crate) fn others(&self) -> Result<Vec<PathBuf>> {
        let count = match self.count(PARTS)? {
            None | Some(0 | 1) => return Ok(Vec::new()),
            Some(count) => count,
        };
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let named = parts::stem(name).and_then(parts::part_of);
        let number = self.count(NUMBER)?.unwrap_or(0);
        match named {
            Some((model, [1, of])) if of as u64 == count && number == 0 => {
                let ending = &name[name.len() - ".gguf".len()..];
                Ok((2..=of)
                    .map(|part| {
                        self.path
                            .with_file_name(format!("{}{ending}", parts::name(model, part, of)))
                    })
                    .collect())
            }
            Some((model, [_, of])) if of as u64 == count => Err(Error::file(
                &self.path,
                format!("is part {} of {count} of a model", number.saturating_add(1)),
                format!("give the first part, '{}.gguf'", parts::name(model, 1, of)),
            )),
            _ => Err(Error::file(
                &self.path,
                format!("is one of {count} parts of a model, but its name contains no part number"),
                "restore the original names of the parts: NAME-00001-of-00003.gguf, NAME-00002-of-00003.gguf ...",
            )),
        }
    }

    /// Adds the tensors of the part with this index, from 1.
    fn join(&mut self, number: usize, part: Gguf) -> Result<()> {
        let of_part = [part.count(NUMBER)?, part.count(PARTS)?];
        let of_this = [Some(number as u64), self.count(PARTS)?];
        if of_part != of_this {
            return Err(part.damaged("its part number or its number of parts differs from its name"));
        }
        for (name, info) in part.tensors {
            let info = Info { part: number, ..info };
            if self.tensors.insert(name.clone(), info).is_some() {
                return Err(damaged(
                    &part.path,
                    format!("another part has the tensor '{name}', too"),
                ));
            }
        }
        self.rest.push(Part {
            path: part.path,
            map: part.map,
        });
        Ok(())
    }

    /// Returns the bytes of a tensor, if the file contains them.
    fn bytes(&self, info: &Info, size: usize) -> Option<&[u8]> {
        let map = match info.part {
            0 => &self.map,
            part => &self.rest.get(part - 1)?.map,
        };
        map.get(info.start..info.start.checked_add(size)?)
    }

    /// Opens a file that may be a part of a model.
    ///
    /// # Errors
    /// [`Error::File`]: a file that cannot be read, or whose header is damaged or inconsistent.
    pub(crate) fn open_part(path: &Path) -> Result<Self> {
        let map = map(
            path,
            "give a GGUF file, or the folder of a checkpoint in Hugging Face's layout",
        )?;
        let (values, tensors) = header(&map).map_err(|message| damaged(path, message))?;
        Ok(Gguf {
            path: path.to_owned(),
            map,
            values,
            tensors,
            rest: Vec::new(),
        })
    }

    /// Creates the error for a valid file with an unsupported feature.
    fn unsupported(&self, what: impl std::fmt::Display, remedy: &str) -> Error {
        Error::file(&self.path, format!("has {what}, which is not supported"), remedy)
    }

    fn damaged(&self, message: impl std::fmt::Display) -> Error {
        damaged(&self.path, message)
    }

    /// Returns the value of a key as a type, if there is one. The error for another type contains `what`, a phrase such
    /// as "no list".
    fn typed<'a, T>(&'a self, key: &str, what: &str, of: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        match of(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.damaged(format!("'{key}' is {what}"))),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "no text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "neither yes nor no", |value| match *value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// Returns the value of a key as a non-negative integer, if there is one.
    fn count(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "not a non-negative whole number", |value| match *value {
            Value::Int(value) => u64::try_from(value).ok(),
            _ => None,
        })
    }

    /// Returns the value of a key as a float, if there is one; files may also store it as an integer.
    fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "no number", |value| match *value {
            Value::Float(value) => Some(value),
            Value::Int(value) => Some(value as f64),
            _ => None,
        })
    }

    /// Returns the chat template, if there is one.
    ///
    /// # Errors
    /// [`Error::File`] if it is not a text.
    pub(crate) fn chat_template(&self) -> Result<Option<&str>> {
        self.text("tokenizer.chat_template")
    }

    /// Returns an additional chat template, by its name.
    pub(crate) fn named_chat_template(&self, name: &str) -> Result<Option<&str>> {
        self.text(&format!("tokenizer.chat_template.{name}"))
    }

    /// Returns the tensors of each part under their names in checkpoints.
    pub(crate) fn shards(self) -> Result<Vec<Shard>> {
        let heads = self.paired_heads()?;
        let architecture = self.architecture()?.to_owned();
        let mut tensors: Vec<BTreeMap<String, Entry>> = Vec::new();
        tensors.resize_with(1 + self.rest.len(), BTreeMap::new);
        for (name, info) in &self.tensors {
            if name == names::FREQUENCIES {
                // Part of the configuration.
                continue;
            }
            let count = info.shape.iter().product();
            let bytes = info.element.and_then(|element| element.bytes(count)).unwrap_or(0);
            let entry = Entry {
                element: info.element,
                stored: format!("type {} of GGUF", info.stored),
                shape: match info.shape.as_slice() {
                    &[width] if names::is_row(name) => vec![1, width],
                    shape => shape.to_vec(),
                },
                range: info.start..info.start + bytes,
                arrangement: match (heads, names::paired(name)) {
                    (Some([heads, _]), Some(names::PairedProjection::Queries)) => Arrangement::Pairs(heads),
                    (Some([_, heads]), Some(names::PairedProjection::Keys)) => Arrangement::Pairs(heads),
                    _ => Arrangement::Rows,
                },
            };
            tensors[info.part].insert(names::of_checkpoint(&architecture, name), entry);
        }
        let first = Part {
            path: self.path,
            map: self.map,
        };
        let parts = std::iter::once(first).chain(self.rest).zip(tensors);
        Ok(parts
            .map(|(Part { path, map }, tensors)| Shard { path, map, tensors })
            .collect())
    }
}

type Header = (BTreeMap<String, Value>, BTreeMap<String, Info>);

fn header(bytes: &[u8]) -> std::result::Result<Header, String> {
    let mut reader = Reader::new(bytes);
    if reader.bytes(4)? != b"GGUF" {
        return Err("it does not begin with GGUF".into());
    }
    let version = reader.u32()?;
    if !VERSIONS.contains(&version) {
        return Err(format!("expected version 2 or 3, found {version}"));
    }
    // A tensor takes at least the length of a name, a number of axes, a type and an offset; a value
    // at least the length of a key and a type.
    let tensors = reader.count(8 + 4 + 4 + 8)?;
    let values = reader.count(8 + 4 + 1)?;
    let mut found = BTreeMap::new();
    for _ in 0..values {
        let key = reader.text()?.into_owned();
        let value = reader.value().map_err(|e| format!("the value of '{key}': {e}"))?;
        if found.insert(key.clone(), value).is_some() {
            return Err(format!("'{key}' has two values"));
        }
    }
    let alignment = match found.get("general.alignment") {
        None => ALIGNMENT,
        Some(Value::Int(n @ 1..=0xffff)) => *n as usize,
        Some(_) => return Err("its alignment is invalid".into()),
    };
    let mut list = Vec::new();
    for _ in 0..tensors {
        let name = reader.text()?.into_owned();
        let info = tensor(&mut reader).map_err(|e| format!("the tensor '{name}': {e}"))?;
        list.push((name, info));
    }
    let data = reader.position().next_multiple_of(alignment);
    let mut all = BTreeMap::new();
    for (name, mut info) in list {
        let count = info.shape.iter().product();
        let size = match info.element {
            Some(element) => element.bytes(count),
            None => Some(0),
        };
        let start = data.checked_add(info.start);
        let end = start.zip(size).and_then(|(start, size)| start.checked_add(size));
        let (Some(start), true) = (start, end.is_some_and(|end| end <= bytes.len())) else {
            return Err(format!(
                "the tensor '{name}' of shape {:?} extends beyond the end of the file",
                info.shape
            ));
        };
        info.start = start;
        if all.insert(name.clone(), info).is_some() {
            return Err(format!("there are two tensors '{name}'"));
        }
    }
    Ok((found, all))
}

fn tensor(reader: &mut Reader) -> std::result::Result<Info, String> {
    let axes = reader.u32()?;
    if !(1..=MAX_AXES).contains(&axes) {
        return Err(format!("it has {axes} axes"));
    }
    let mut shape = Vec::new();
    let mut count = 1usize;
    for _ in 0..axes {
        let size = usize::try_from(reader.u64()?).map_err(|e| e.to_string())?;
        count = count.checked_mul(size.max(1)).ok_or("it has too many elements")?;
        shape.push(size);
    }
    // The innermost axis comes first in files.
    shape.reverse();
    let stored = reader.u32()?;
    let element = Element::of_gguf(stored);
    let row = shape.last().copied().unwrap_or(0);
    if element.is_some_and(|element| element.bytes(row).is_none()) {
        return Err(format!(
            "rows of {row} elements are not divisible into blocks of type {stored}"
        ));
    }
    let start = usize::try_from(reader.u64()?).map_err(|e| e.to_string())?;
    Ok(Info {
        shape,
        element,
        stored,
        part: 0,
        start,
    })
}
