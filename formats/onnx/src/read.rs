//! Reader of a tensor's elements, from the file or from an external data file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use half::{bf16, f16};

use crate::element::ElementType;
use crate::proto::TensorProto;
use crate::small::SmallFloat;
use crate::tensor::{Data, Tensor, element_count};

/// Reason why a tensor cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReadError {
    /// The message is inconsistent.
    Broken(String),
    /// Data in another file are not available.
    Missing(String),
    /// An element type that graphs do not support.
    Unsupported(String),
}

impl ReadError {
    pub(crate) fn message(&self) -> &str {
        match self {
            ReadError::Broken(message) | ReadError::Missing(message) | ReadError::Unsupported(message) => message,
        }
    }
}

/// Returns the element type and dimensions, whose product must fit into an allocation.
pub(crate) fn tensor_type(proto: &TensorProto) -> Result<(ElementType, Vec<usize>), ReadError> {
    let element = ElementType::from_number(proto.data_type.into()).map_err(ReadError::Unsupported)?;
    let dims = dimensions(&proto.dims).map_err(ReadError::Broken)?;
    Ok((element, dims))
}

/// Converts dimensions of a file to sizes.
pub(crate) fn dimensions(dims: &[i64]) -> Result<Vec<usize>, String> {
    let sizes: Option<Vec<usize>> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    let sizes = sizes.ok_or_else(|| format!("dimensions {dims:?} have a negative size"))?;
    match element_count(&sizes) {
        Some(_) => Ok(sizes),
        None => Err(format!("a tensor of {dims:?} is larger than any memory")),
    }
}

/// Returns the number of bytes that the elements of a tensor take in a file.
fn stored_bytes(element: ElementType, dims: &[usize]) -> usize {
    (element_count(dims).unwrap_or(0) * element.bits()).div_ceil(8)
}

/// Reads the tensor with its elements. `folder` is the folder of files with external data.
pub(crate) fn read_tensor(proto: &TensorProto, folder: Option<&Path>) -> Result<Tensor, ReadError> {
    let (element, dims) = tensor_type(proto)?;
    let count = element_count(&dims).unwrap_or(0);
    let bytes = stored_bytes(element, &dims);
    let data = if proto.data_location == 1 {
        let data = read_external(proto, folder, bytes)?;
        from_bytes(element, count, &data)
    } else if !proto.raw_data.is_empty() {
        let found = proto.raw_data.len();
        if found != bytes {
            return Err(ReadError::Broken(format!(
                "{element} {dims:?}: expected {bytes} bytes, found {found}"
            )));
        }
        from_bytes(element, count, &proto.raw_data)
    } else {
        let data = from_fields(element, proto).map_err(ReadError::Broken)?;
        if data.len() != count {
            let found = data.len();
            return Err(ReadError::Broken(format!(
                "{element} {dims:?}: expected {count} elements, found {found}"
            )));
        }
        data
    };
    Ok(Tensor::new(element, &dims, data))
}

/// Number of strings in `TensorProto.DataType`.
pub(crate) const STRING: i32 = 8;

/// Reads a tensor of strings: the index of each element in a list of distinct strings, and this list.
pub(crate) fn read_strings(proto: &TensorProto) -> Result<(Tensor, Vec<String>), ReadError> {
    let dims = dimensions(&proto.dims).map_err(ReadError::Broken)?;
    let (count, found) = (element_count(&dims).unwrap_or(0), proto.string_data.len());
    if found != count {
        return Err(ReadError::Broken(format!(
            "string {dims:?}: expected {count} elements, found {found}"
        )));
    }
    let mut list = StringList::default();
    let mut places = Vec::with_capacity(count);
    for bytes in &proto.string_data {
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|_| ReadError::Broken("one of its strings is not UTF-8".into()))?;
        places.push(list.index(text));
    }
    Ok((Tensor::integers(ElementType::Text, &dims, places), list.strings))
}

/// Distinct strings with their indices.
#[derive(Default)]
pub(crate) struct StringList {
    pub(crate) strings: Vec<String>,
    places: HashMap<String, i64>,
}

impl StringList {
    /// Returns the index of a string. Adds the string if it is new.
    pub(crate) fn index(&mut self, text: &str) -> i64 {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        let place = self.strings.len() as i64;
        self.strings.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        place
    }
}

/// Converts little-endian bytes to elements; the number of bytes must match.
fn from_bytes(element: ElementType, count: usize, bytes: &[u8]) -> Data {
    use ElementType::*;
    let nibble = |i: usize| i64::from((bytes[i / 2] >> (4 * (i % 2))) & 15);
    match element {
        F32 => Data::F32(
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
        ),
        F64 => Data::F64(
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| f64::from_le_bytes(*b))
                .collect(),
        ),
        F16 => Data::F32(
            bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| f16::from_le_bytes(*b).to_f32())
                .collect(),
        ),
        BF16 => Data::F32(
            bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| bf16::from_le_bytes(*b).to_f32())
                .collect(),
        ),
        F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ => Data::F32(bytes.iter().map(|&b| small(element, b)).collect()),
        F4E2M1 => Data::F32((0..count).map(|i| small(element, nibble(i) as u8)).collect()),
        U2 | I2 => {
            let quarter = |i: usize| i64::from(bytes[i / 4] >> (2 * (i % 4)) & 3);
            Data::Int((0..count).map(|i| element.wrap(quarter(i))).collect())
        }
        U4 | I4 => Data::Int((0..count).map(|i| element.wrap(nibble(i))).collect()),
        U8 | I8 | Bool => Data::Int(bytes.iter().map(|&b| element.wrap(b.into())).collect()),
        U16 | I16 => {
            let words = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
            Data::Int(words.map(|w| element.wrap(w.into())).collect())
        }
        U32 | I32 | Text => {
            let words = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b));
            Data::Int(words.map(|w| element.wrap(w.into())).collect())
        }
        U64 | I64 => Data::Int(
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| i64::from_le_bytes(*b))
                .collect(),
        ),
    }
}

/// Returns the number with these bits of a small floating-point type.
fn small(element: ElementType, bits: u8) -> f32 {
    SmallFloat::of(element).map_or(0.0, |small| small.decode(bits))
}

/// Reads elements from the field of the message for this element type.
fn from_fields(element: ElementType, proto: &TensorProto) -> Result<Data, String> {
    use ElementType::*;
    let of_int32 = |wrap: &dyn Fn(i32) -> i64| Data::Int(proto.int32_data.iter().map(|&v| wrap(v)).collect());
    Ok(match element {
        F32 => Data::F32(proto.float_data.clone()),
        F64 => Data::F64(proto.double_data.clone()),
        F16 => Data::F32(
            proto
                .int32_data
                .iter()
                .map(|&v| f16::from_bits(v as u16).to_f32())
                .collect(),
        ),
        BF16 => Data::F32(
            proto
                .int32_data
                .iter()
                .map(|&v| bf16::from_bits(v as u16).to_f32())
                .collect(),
        ),
        U8 | I8 | U16 | I16 | I32 | Bool => of_int32(&|v| element.wrap(v.into())),
        // `read_strings` reads strings.
        Text => return Err("strings are not supported".into()),
        F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ => {
            Data::F32(proto.int32_data.iter().map(|&v| small(element, v as u8)).collect())
        }
        U2 | I2 | U4 | I4 | F4E2M1 => {
            // Several elements in a byte, the first in its lowest bits.
            let bits = element.bits();
            let count = element_count(&dimensions(&proto.dims)?).unwrap_or(0);
            let bytes = proto.int32_data.iter().map(|&v| v as u8);
            let parts = bytes.flat_map(|byte| (0..8 / bits).map(move |i| byte >> (i * bits) & ((1 << bits) - 1)));
            let parts = parts.take(count);
            match element {
                F4E2M1 => Data::F32(parts.map(|v| small(element, v)).collect()),
                _ => Data::Int(parts.map(|v| element.wrap(v.into())).collect()),
            }
        }
        I64 => Data::Int(proto.int64_data.clone()),
        U32 | U64 => Data::Int(proto.uint64_data.iter().map(|&v| element.wrap(v as i64)).collect()),
    })
}

/// Location of a tensor's external data.
#[derive(Debug)]
pub(crate) struct Location {
    pub(crate) file: PathBuf,
    offset: u64,
    length: Option<u64>,
}

/// Returns the location of external data. Only files in the model's folder are allowed, so that a model cannot read other files
/// of its user.
pub(crate) fn location(proto: &TensorProto, folder: Option<&Path>) -> Result<Location, ReadError> {
    let entry = |key: &str| {
        proto
            .external_data
            .iter()
            .find(|e| e.key == key)
            .map(|e| e.value.as_str())
    };
    let number = |key: &str| match entry(key).map(str::parse::<u64>) {
        None => Ok(None),
        Some(Ok(n)) => Ok(Some(n)),
        Some(Err(_)) => Err(ReadError::Broken(format!("{key} of its external data is not a number"))),
    };
    let name = entry("location").ok_or_else(|| ReadError::Broken("its external data have no location".into()))?;
    let folder = folder.ok_or_else(|| {
        ReadError::Missing(format!(
            "its data are in the file `{name}`, and a model from memory has no folder"
        ))
    })?;
    let path = Path::new(name);
    let inside = path
        .components()
        .all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if !inside || name.is_empty() {
        return Err(ReadError::Broken(format!(
            "its external data are in `{name}`, outside of the model's folder"
        )));
    }
    let file = folder.join(path);
    // A symbolic link may point outside of the folder.
    let resolved = file
        .canonicalize()
        .map_err(|e| ReadError::Missing(format!("its data are in {}, which cannot be read: {e}", file.display())))?;
    let root = folder.canonicalize().map_err(|e| ReadError::Missing(e.to_string()))?;
    let is_blob = || hub_blobs(&root).is_some_and(|blobs| resolved.starts_with(blobs));
    if !resolved.starts_with(&root) && !is_blob() {
        return Err(ReadError::Broken(format!(
            "its external data are in `{name}`, a link out of the model's folder to {}; only a snapshot in the cache of the \
             Hugging Face Hub may link to other folders: `models--*/snapshots` to `models--*/blobs` of the same repository",
            resolved.display()
        )));
    }
    Ok(Location {
        file: resolved,
        offset: number("offset")?.unwrap_or(0),
        length: number("length")?,
    })
}

/// Returns the folder with the file contents of a Hub repository, if `folder` is a snapshot or inside one:
/// `models--OWNER--NAME/blobs` of `models--OWNER--NAME/snapshots/REVISION`.
fn hub_blobs(folder: &Path) -> Option<PathBuf> {
    let is_repository = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("models--"))
    };
    let repository = folder.ancestors().find(is_repository)?;
    let revision = folder.strip_prefix(repository.join("snapshots")).ok()?;
    let is_in_snapshot = revision.components().next().is_some();
    is_in_snapshot.then(|| repository.join("blobs").canonicalize().ok())?
}

fn open_external(place: &Location, bytes: usize) -> Result<File, ReadError> {
    let failed = |e: std::io::Error| ReadError::Missing(format!("{}: {e}", place.file.display()));
    let file = meganeura_core::files::open_regular(&place.file).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    if place.length.is_some_and(|length| length != bytes as u64) {
        let length = place.length.unwrap_or(0);
        return Err(ReadError::Broken(format!(
            "expected {bytes} bytes of external data, found {length}"
        )));
    }
    if place.offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
        return Err(ReadError::Missing(format!(
            "{} has {size} bytes, and the data are {bytes} bytes from {} on",
            place.file.display(),
            place.offset
        )));
    }
    Ok(file)
}

/// Reads a tensor's elements from another file into the tensor itself.
pub(crate) fn read_into(proto: &mut TensorProto, folder: Option<&Path>) -> Result<(), ReadError> {
    if proto.data_location != 1 {
        return Ok(());
    }
    let (element, dims) = tensor_type(proto)?;
    proto.raw_data = read_external(proto, folder, stored_bytes(element, &dims))?.into();
    proto.external_data.clear();
    proto.data_location = 0;
    Ok(())
}

fn read_external(proto: &TensorProto, folder: Option<&Path>, bytes: usize) -> Result<Vec<u8>, ReadError> {
    let place = location(proto, folder)?;
    let mut file = open_external(&place, bytes)?;
    let failed = |e: std::io::Error| ReadError::Missing(format!("{}: {e}", place.file.display()));
    file.seek(SeekFrom::Start(place.offset)).map_err(failed)?;
    let mut data = vec![0; bytes];
    file.read_exact(&mut data).map_err(failed)?;
    Ok(data)
}
