//! Conversion of tensors from and to NumPy files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use meganeura::nn::data::{NpyType, read_npy, write_npy_bytes};
use meganeura::onnx::{ElementType, Model, Tensor};

use super::Result;

/// Types that exist in both formats.
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

/// Reads the array of a `.npy` file.
pub(super) fn read(path: &Path) -> Result<Tensor> {
    let array = read_npy(path)?;
    let found = TYPES.iter().find(|(npy, _)| *npy == array.dtype());
    let Some(&(_, element)) = found else {
        return Err(format!("{}: {} is not a supported tensor type", path.display(), array.dtype()).into());
    };
    Ok(if element.is_float() {
        Tensor::floats(element, array.shape(), array.to_f64())
    } else {
        Tensor::integers(element, array.shape(), array.to_i64()?)
    })
}

/// Writes a tensor as a `.npy` file. Types that NumPy does not have are widened.
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
        // The low bytes of a 64-bit integer are the bytes of the smaller type.
        dtype => tensor
            .to_i64()
            .iter()
            .flat_map(|v| v.to_le_bytes().into_iter().take(dtype.size()))
            .collect(),
    };
    Ok(write_npy_bytes(path, dtype, tensor.dims(), &bytes)?)
}

/// Returns the file `NAME.npy` of a port (an input or output of the model) in a folder, if it exists.
fn named_file(folder: &Path, port: &str) -> Option<PathBuf> {
    let is_file_name = Path::new(port).file_name().is_some_and(|name| name == port);
    let path = folder.join(format!("{port}.npy"));
    (is_file_name && path.exists()).then_some(path)
}

/// Returns the file of a port in a folder: `NAME.npy`, or `PREFIX_NUMBER.npy`.
pub(super) fn file_of(folder: &Path, port: &str, prefix: &str, number: usize) -> Option<PathBuf> {
    let numbered = folder.join(format!("{prefix}_{number}.npy"));
    named_file(folder, port).or_else(|| numbered.exists().then_some(numbered))
}

/// Values of a model's inputs.
pub(super) struct Inputs {
    /// Inputs of every run, in the order of the model.
    pub(super) tensors: Vec<Tensor>,
    /// Values that replace a default, or that are set by `--set`.
    pub(super) constants: HashMap<String, Tensor>,
}

/// Reads all inputs of a model from a folder, except constants.
///
/// # Errors
/// A file is missing or cannot be read, or no input has its name.
pub(super) fn inputs_of(folder: &Path, model: &Model, mut constants: HashMap<String, Tensor>) -> Result<Inputs> {
    if !folder.is_dir() {
        return Err(format!("{}: the folder of inputs does not exist", folder.display()).into());
    }
    let mut tensors = Vec::new();
    let mut used = Vec::new();
    for (i, port) in model.inputs().iter().enumerate() {
        if constants.contains_key(&port.name) {
            continue;
        }
        let Some(path) = file_of(folder, &port.name, "input", i) else {
            return Err(format!(
                "{} has neither `{}.npy` nor `input_{i}.npy`, for the input {port}",
                folder.display(),
                port.name
            )
            .into());
        };
        tensors.push(read(&path)?);
        used.push(path);
    }
    for port in model.defaults() {
        if let Some(path) = named_file(folder, &port.name).filter(|_| !constants.contains_key(&port.name)) {
            constants.insert(port.name.clone(), read(&path)?);
            used.push(path);
        }
    }
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut others = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        let is_array = path.extension().is_some_and(|extension| extension == "npy");
        // References of `check --against` are in the same folder.
        let is_output = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("output_"));
        if is_array && !is_output && !used.contains(&path) {
            others.push(path.display().to_string());
        }
    }
    others.sort();
    if let Some(first) = others.first() {
        let ports = model.inputs().iter().chain(model.defaults());
        let names: Vec<&str> = ports.map(|p| p.name.as_str()).collect();
        return Err(format!(
            "{first} belongs to no input, or to an input with another file or --set; the model has {}",
            names.join(", ")
        )
        .into());
    }
    Ok(Inputs { tensors, constants })
}
