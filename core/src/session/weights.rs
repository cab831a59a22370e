//! Weights of a session in memory and in files: parameters and states of the model, by name.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView as FileView};

use super::Session;
use crate::dtype::DType;
use crate::error::{Error, Result, TensorKind, unwrap_report};
use crate::files::{read_within_memory, write_atomically};
use crate::host_memory;
use crate::shape::{Shape, TensorType};
use crate::storage::{decode, scalar_bytes};

/// Maximum number of names of each kind in a message.
const MAX_LISTED: usize = 10;

/// Tensors by name, as they are stored: little-endian, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    tensors: BTreeMap<String, Weight>,
}

/// A tensor in the memory of the host, such as an input or a result of a model.
pub type Tensor = Weight;

/// A tensor of [`Weights`].
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    ty: TensorType,
    bytes: Vec<u8>,
}

impl Weight {
    /// Creates a tensor of `f32`, row-major.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if the shape has another number of elements, or too many;
    /// [`Error::HostMemory`].
    pub fn f32(shape: &[usize], data: &[f32]) -> Result<Self> {
        let shape = checked_shape(shape, data.len())?;
        let mut bytes = host_memory::room("a tensor", size_of_val(data))?;
        bytes.extend(data.iter().flat_map(|v| v.to_le_bytes()));
        Ok(Weight {
            ty: TensorType::f32(shape),
            bytes,
        })
    }

    /// Creates a tensor of `u32`, row-major, such as token ids.
    ///
    /// # Errors
    /// As [`Weight::f32`].
    pub fn u32(shape: &[usize], data: &[u32]) -> Result<Self> {
        let shape = checked_shape(shape, data.len())?;
        let mut bytes = host_memory::room("a tensor", size_of_val(data))?;
        bytes.extend(data.iter().flat_map(|v| v.to_le_bytes()));
        Ok(Weight {
            ty: TensorType::new(DType::U32, shape),
            bytes,
        })
    }

    /// Creates a tensor of any type from its storage bytes, little-endian and row-major.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if the type has another number of bytes.
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Result<Self> {
        if ty.bytes() == bytes.len() {
            Ok(Weight { ty, bytes })
        } else {
            Err(Error::misuse(
                format!(
                    "a tensor of {ty} has {} bytes, and the data {}",
                    ty.bytes(),
                    bytes.len()
                ),
                "pass the number of bytes of the type",
            ))
        }
    }

    /// Returns shape and element type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Returns the elements, little-endian and row-major.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the elements as `f32`; integers beyond 2^24 are rounded.
    pub fn to_f32(&self) -> Vec<f32> {
        decode(self.ty.dtype, &self.bytes)
            .into_iter()
            .map(|v| v as f32)
            .collect()
    }

    /// Returns the elements as another floating-point type.
    fn converted(&self, dtype: DType) -> Option<Vec<u8>> {
        if self.ty.dtype == dtype {
            return Some(self.bytes.clone());
        }
        if !self.ty.dtype.is_float() || !dtype.is_float() {
            return None;
        }
        let size = dtype.block().bytes;
        let values = decode(self.ty.dtype, &self.bytes).into_iter();
        Some(
            values
                .flat_map(|v| scalar_bytes(dtype, v).into_iter().take(size))
                .collect(),
        )
    }

    /// Returns the transposed matrix; `None` if the tensor is not a matrix.
    pub fn transposed(&self) -> Option<Weight> {
        self.transposed_in(Vec::with_capacity(self.bytes.len()))
    }

    /// Returns the same as [`Weight::transposed`], but returns an error if there is not enough memory.
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn try_transposed(&self) -> Result<Option<Weight>> {
        host_memory::room("a transposed matrix", self.bytes.len()).map(|bytes| self.transposed_in(bytes))
    }

    fn transposed_in(&self, mut bytes: Vec<u8>) -> Option<Weight> {
        let &[rows, columns] = self.ty.shape.dims() else {
            return None;
        };
        let size = self.ty.dtype.block().bytes;
        for column in 0..columns {
            for row in 0..rows {
                let at = (row * columns + column) * size;
                bytes.extend_from_slice(&self.bytes[at..at + size]);
            }
        }
        let shape = Shape::new(&[columns, rows]).ok()?;
        Some(Weight {
            ty: TensorType::new(self.ty.dtype, shape),
            bytes,
        })
    }
}

/// Returns a shape that has this number of elements.
fn checked_shape(shape: &[usize], elements: usize) -> Result<Shape> {
    let shape = Shape::new(shape).map_err(|message| Error::misuse(message, "use a smaller shape"))?;
    if shape.numel() == elements {
        return Ok(shape);
    }
    Err(Error::misuse(
        format!(
            "a tensor of the shape {shape} has {} elements, and the data {elements}",
            shape.numel()
        ),
        "pass the number of elements of the shape",
    ))
}

impl Weights {
    /// Iterates over the names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the tensor with this name.
    pub fn get(&self, name: &str) -> Option<&Weight> {
        self.tensors.get(name)
    }

    /// Adds a tensor, or replaces the one with this name.
    pub fn insert(&mut self, name: impl Into<String>, weight: Weight) {
        self.tensors.insert(name.into(), weight);
    }

    /// Keeps only the tensors whose names match.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| wanted(name));
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns `true` if there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Reads a safetensors file: tensors of `F32`, `F16`, `BF16`, `F64` (narrowed to `f32`), `U32`
    /// and `I32`. The whole file is read; its header is checked against its size before any tensor
    /// is parsed.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read, is damaged, or has a tensor of another type.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = read_within_memory(path)
            .map_err(|e| Error::file(path, format!("cannot be read: {e}"), "name a .safetensors file"))?;
        Weights::parse(path, &bytes)
    }

    /// Reads like [`Weights::read`], but from bytes in memory; the path is for messages.
    ///
    /// # Errors
    /// As [`Weights::read`].
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let damaged = |what: String| {
            Error::file(
                path,
                what,
                "it is damaged or not a safetensors file; download it \
            again",
            )
        };
        let file = SafeTensors::deserialize(bytes).map_err(|e| damaged(format!("is not a safetensors file: {e}")))?;
        let mut weights = Weights::default();
        for (name, view) in file.iter() {
            let shape = Shape::new(view.shape()).map_err(|e| damaged(format!("the tensor '{name}': {e}")))?;
            let (dtype, bytes) = match view.dtype() {
                Dtype::F32 => (DType::F32, view.data().to_vec()),
                Dtype::F16 => (DType::F16, view.data().to_vec()),
                Dtype::BF16 => (DType::BF16, view.data().to_vec()),
                Dtype::U32 => (DType::U32, view.data().to_vec()),
                Dtype::I32 => (DType::I32, view.data().to_vec()),
                Dtype::F64 => (DType::F32, narrowed(view.data())),
                other => {
                    return Err(Error::file(
                        path,
                        format!("the tensor '{name}' is of type {other:?}"),
                        "store it as F32, F16, BF16, F64, U32 or I32",
                    ));
                }
            };
            let ty = TensorType::new(dtype, shape);
            weights.insert(name, Weight { ty, bytes });
        }
        Ok(weights)
    }

    /// Returns the bytes of a safetensors file, with the metadata `pt`, which readers of other
    /// libraries expect.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if the format cannot hold them.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.to_bytes_with_metadata("format", "pt")
    }

    /// Returns the same as [`Weights::to_bytes`], but with this entry as the metadata. Only one entry is possible,
    /// because the order of several is not fixed, and equal tensors must give equal bytes.
    ///
    /// # Errors
    /// As [`Weights::to_bytes`].
    pub fn to_bytes_with_metadata(&self, key: &str, value: &str) -> Result<Vec<u8>> {
        let failed = |e: safetensors::SafeTensorError| {
            Error::misuse(
                format!("safetensors cannot store these tensors: {e}"),
                "save fewer of them",
            )
        };
        let views = self.tensors.iter().map(|(name, weight)| {
            let dtype = match weight.ty.dtype {
                DType::F32 => Dtype::F32,
                DType::F16 => Dtype::F16,
                DType::BF16 => Dtype::BF16,
                DType::U32 => Dtype::U32,
                DType::I32 => Dtype::I32,
            };
            let view = FileView::new(dtype, weight.ty.shape.to_vec(), &weight.bytes);
            view.map(|view| (name.as_str(), view))
        });
        let views = views.collect::<std::result::Result<Vec<_>, _>>().map_err(failed)?;
        let metadata = HashMap::from([(key.to_owned(), value.to_owned())]);
        safetensors::serialize(views, Some(metadata)).map_err(failed)
    }

    /// Writes a safetensors file atomically.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written; an earlier file is then unchanged.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let bytes = self.to_bytes()?;
        write_atomically(path.as_ref(), |w| w.write_all(&bytes))
    }
}

/// Converts `f64` numbers to `f32`, both as little-endian bytes.
fn narrowed(bytes: &[u8]) -> Vec<u8> {
    let values = bytes.chunks_exact(8).map(|c| {
        let mut array = [0; 8];
        array.copy_from_slice(c);
        f64::from_le_bytes(array) as f32
    });
    values.flat_map(f32::to_le_bytes).collect()
}

/// Function that returns the new name of a tensor of a file; `None` skips the tensor.
pub type Rename<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Options for matching tensors in [`Session::try_load_weights`].
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// Requires equal sets of names: a tensor that the session or the file lacks is an error.
    /// Otherwise the [`LoadReport`] lists them. Shapes must match in any case.
    pub strict: bool,
    /// Maps the name of a tensor of the file to its name in the session; `None` skips the tensor.
    /// By default names are equal.
    pub rename: Option<Rename<'a>>,
    /// Returns whether the matrix with this name (in the session) is stored transposed in the file,
    /// as PyTorch's `Linear` stores its weight. By default none is.
    pub transpose: Option<&'a dyn Fn(&str) -> bool>,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        LoadOptions {
            strict: true,
            rename: None,
            transpose: None,
        }
    }
}

/// Result of [`Session::try_load_weights`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Tensors that were set, by the session's names.
    pub loaded: Vec<String>,
    /// Tensors of the session that the file lacks: they are unchanged.
    pub missing: Vec<String>,
    /// Tensors of the file, by their new names, that the session lacks.
    pub unexpected: Vec<String>,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors loaded", self.loaded.len())?;
        if !self.missing.is_empty() {
            write!(f, "; the file lacks {}", listed(&self.missing))?;
        }
        if !self.unexpected.is_empty() {
            write!(f, "; the model lacks {}", listed(&self.unexpected))?;
        }
        Ok(())
    }
}

/// Formats the first names of a list, and the number of the rest.
pub(super) fn listed(names: &[String]) -> String {
    let first: Vec<String> = names.iter().take(MAX_LISTED).map(|n| format!("'{n}'")).collect();
    match names.len().saturating_sub(MAX_LISTED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

impl Session {
    /// Returns the names of the model's tensors: parameters, and states that are not the
    /// optimizer's.
    fn weight_names(&self) -> Vec<(TensorKind, String)> {
        let parameters = self.plan.parameters().into_iter();
        let parameters = parameters.map(|view| (TensorKind::Parameter, view.name));
        let states = self.plan.state_buffers.iter().filter(|s| !s.optimizer);
        let states = states.map(|s| (TensorKind::State, s.name.clone()));
        parameters.chain(states).collect()
    }

    /// Reads parameters and states (not the optimizer's) by name.
    ///
    /// # Errors
    /// Errors of the last step.
    pub fn try_weights(&mut self) -> Result<Weights> {
        self.try_wait()?;
        let mut weights = Weights::default();
        for (kind, name) in self.weight_names() {
            let tensor = self.tensors.find(kind, &name)?;
            let mut bytes = host_memory::filled(&format!("a copy of '{name}'"), tensor.ty.bytes(), 0)?;
            tensor.read(&mut *self.executable, &mut bytes)?;
            let ty = tensor.ty.clone();
            weights.insert(name, Weight { ty, bytes });
        }
        Ok(weights)
    }

    /// Sets parameters and states by name. Floating-point types are converted to the session's
    /// types. Everything is checked before the first tensor is set, so an error changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] listing tensors that are missing or unexpected
    /// ([`LoadOptions::strict`]), or that have another shape (with a hint if it fits transposed) or
    /// a type that cannot be converted; no tensor that matches.
    pub fn try_load_weights(&mut self, weights: &Weights, options: &LoadOptions) -> Result<LoadReport> {
        let mut by_name: BTreeMap<String, (&str, &Weight)> = BTreeMap::new();
        for (theirs, weight) in &weights.tensors {
            let ours = options
                .rename
                .map_or_else(|| Some(theirs.clone()), |rename| rename(theirs));
            let Some(ours) = ours else { continue };
            if let Some((other, _)) = by_name.insert(ours.clone(), (theirs, weight)) {
                return Err(Error::misuse(
                    format!("'{other}' and '{theirs}' are both renamed to '{ours}'"),
                    "give every tensor a unique name",
                ));
            }
        }
        let mut report = LoadReport::default();
        let (mut writes, mut wrong) = (Vec::new(), Vec::new());
        for (kind, name) in self.weight_names() {
            let Some((theirs, weight)) = by_name.remove(&name) else {
                report.missing.push(name);
                continue;
            };
            let wanted = &self.tensors.find(kind, &name)?.ty;
            match fitted(
                weight,
                wanted,
                options.transpose.is_some_and(|transpose| transpose(&name)),
            ) {
                Ok(bytes) => writes.push((kind, name, bytes)),
                Err(problem) => wrong.push(format!("'{theirs}' for '{name}' {problem}")),
            }
        }
        report.unexpected = by_name.into_keys().collect();
        if !wrong.is_empty() {
            let more = wrong.len().saturating_sub(MAX_LISTED);
            let more = if more > 0 {
                format!("; and {more} more")
            } else {
                String::new()
            };
            wrong.truncate(MAX_LISTED);
            return Err(Error::misuse(
                format!("weights do not fit the model: {}{more}", wrong.join("; ")),
                "build the model that the weights belong to, or transpose or rename them",
            ));
        }
        let differs = !report.missing.is_empty() || !report.unexpected.is_empty();
        if (options.strict && differs) || (writes.is_empty() && !weights.is_empty()) {
            return Err(Error::misuse(
                mismatch(&report),
                "rename the tensors, or load only the common ones without `strict`",
            ));
        }
        self.parameters_set = true;
        for (kind, name, bytes) in writes {
            let tensor = self.tensors.find(kind, &name)?;
            tensor.write(&mut *self.executable, &bytes)?;
            self.unshared.remove(&name);
            report.loaded.push(name);
        }
        Ok(report)
    }

    /// Saves parameters and states (not the optimizer's) to a safetensors file, atomically. Weights
    /// trained on one device can be loaded on any other, bit for bit.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written; errors of the last step.
    pub fn try_save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.try_weights()?.write(path)
    }

    /// Calls [`Session::try_save`], and panics on errors.
    #[track_caller]
    pub fn save(&mut self, path: impl AsRef<Path>) {
        unwrap_report(self.try_save(path));
    }

    /// Loads a file of [`Session::try_save`], or any other safetensors file whose tensors have the
    /// names and shapes of the session's. [`Session::try_load_weights`] can rename, transpose, and
    /// load only a part.
    ///
    /// # Errors
    /// Those of [`Weights::read`] and [`Session::try_load_weights`].
    pub fn try_load(&mut self, path: impl AsRef<Path>) -> Result<LoadReport> {
        let path = path.as_ref();
        let weights = Weights::read(path)?;
        self.try_load_weights(&weights, &LoadOptions::default())
            .map_err(|error| match error {
                Error::InvalidUse { message, remedy } => Error::file(path, message, remedy),
                other => other,
            })
    }

    /// Calls [`Session::try_load`], and panics on errors.
    #[track_caller]
    pub fn load(&mut self, path: impl AsRef<Path>) {
        unwrap_report(self.try_load(path).map(drop));
    }
}

/// Returns the message of a strict load about tensors without a counterpart.
fn mismatch(report: &LoadReport) -> String {
    let mut parts = Vec::new();
    if !report.missing.is_empty() {
        parts.push(format!(
            "the weights lack {} that the model has",
            listed(&report.missing)
        ));
    }
    if !report.unexpected.is_empty() {
        parts.push(format!(
            "the model lacks {} that the weights have",
            listed(&report.unexpected)
        ));
    }
    parts.join("; ")
}

/// Converts a tensor to the storage bytes of the session's type. If it does not match, returns the reason.
fn fitted(weight: &Weight, wanted: &TensorType, transpose: bool) -> std::result::Result<Vec<u8>, String> {
    let turned;
    let weight = if !transpose {
        weight
    } else {
        turned = weight
            .transposed()
            .ok_or_else(|| format!("is {} and cannot be transposed: it is not a matrix", weight.ty))?;
        &turned
    };
    if weight.ty.shape != wanted.shape {
        let reversed: Vec<usize> = weight.ty.shape.dims().iter().rev().copied().collect();
        let hint = if weight.ty.shape.dims().len() == 2 && reversed == wanted.shape.dims() {
            " (it would fit transposed)"
        } else {
            ""
        };
        return Err(format!(
            "has the shape {} instead of {}{hint}",
            weight.ty.shape, wanted.shape
        ));
    }
    weight
        .converted(wanted.dtype)
        .ok_or_else(|| format!("is {} instead of {}", weight.ty.dtype, wanted.dtype))
}
