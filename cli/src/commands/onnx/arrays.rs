//! Tensors from and to NumPy files.

use std::path::{Path, PathBuf};

use meganeura::nn::data::{NpyType, read_npy, write_npy_bytes};
use meganeura::onnx::{ElementType, Port, Tensor};

use super::Result;

/// Types with a name in both formats.
const TYPES: [(NpyType, ElementType); 12] = [
    (NpyType::Bool, ElementType::Bool),
    (NpyType::I8, ElementType::I8),
    (NpyType::I16, ElementType::I16),
    (NpyType::I32, ElementType::I32),
    (NpyType::I64, ElementType::I64),
    (NpyType::U8, ElementType::U8),
    (NpyType::U16, ElementType::U16),
    (NpyType::U32, ElementType::U32),
    (NpyType::U64, ElementType::U64),
    (NpyType::F16, ElementType::F16),
    (NpyType::F32, ElementType::F32),
    (NpyType::F64, ElementType::F64),
];

/// The array of a `.npy` file.
pub(super) fn read(path: &Path) -> Result<Tensor> {
    let array = read_npy(path)?;
    let found = TYPES.iter().find(|(npy, _)| *npy == array.dtype());
    let Some(&(_, element)) = found else {
        return Err(format!("{}: {} is no type of a tensor", path.display(), array.dtype()).into());
    };
    Ok(match element.is_float() {
        true => Tensor::floats(element, array.shape(), array.to_f64()),
        false => Tensor::integers(element, array.shape(), array.to_i64()?),
    })
}

/// Writes a tensor as a `.npy` file. Types that NumPy does not have become larger ones.
pub(super) fn write(path: &Path, tensor: &Tensor) -> Result<()> {
    let dtype = match tensor.element() {
        ElementType::BF16 => NpyType::F32,
        ElementType::U4 => NpyType::U8,
        ElementType::I4 => NpyType::I8,
        element => TYPES
            .iter()
            .find(|(_, e)| *e == element)
            .map_or(NpyType::F32, |(npy, _)| *npy),
    };
    let bytes: Vec<u8> = match dtype {
        NpyType::F64 => tensor.to_f64().iter().flat_map(|v| v.to_le_bytes()).collect(),
        NpyType::F32 => tensor.to_f32().iter().flat_map(|v| v.to_le_bytes()).collect(),
        NpyType::F16 => tensor.f16_bits().iter().flat_map(|v| v.to_le_bytes()).collect(),
        // The low bytes of a 64-bit integer are those of a smaller one.
        dtype => tensor
            .to_i64()
            .iter()
            .flat_map(|v| v.to_le_bytes().into_iter().take(dtype.size()))
            .collect(),
    };
    Ok(write_npy_bytes(path, dtype, tensor.dims(), &bytes)?)
}

/// The file of a port in a folder: `NAME.npy`, or `PREFIX_NUMBER.npy`.
pub(super) fn file_of(folder: &Path, port: &str, prefix: &str, number: usize) -> Option<PathBuf> {
    let numbered = folder.join(format!("{prefix}_{number}.npy"));
    let is_file_name = Path::new(port).file_name().is_some_and(|name| name == port);
    let named = folder.join(format!("{port}.npy"));
    match is_file_name && named.exists() {
        true => Some(named),
        false => numbered.exists().then_some(numbered),
    }
}

/// All inputs of a model from a folder.
pub(super) fn inputs_of(folder: &Path, ports: &[Port]) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::with_capacity(ports.len());
    for (i, port) in ports.iter().enumerate() {
        let Some(path) = file_of(folder, &port.name, "input", i) else {
            return Err(format!(
                "{} has neither `{}.npy` nor `input_{i}.npy`, for the input {port}",
                folder.display(),
                port.name
            )
            .into());
        };
        tensors.push(read(&path)?);
    }
    Ok(tensors)
}
