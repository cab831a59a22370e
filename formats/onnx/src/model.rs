//! A model as its file describes it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use meganeura_core::graph::Graph;
use prost::Message;
use serde::Serialize;

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::import::{Import, ImportOptions};
use crate::preflight::Report;
use crate::proto::{GraphProto, ModelProto, ValueInfoProto, dimension_proto, type_proto};

/// Versions of the intermediate representation that are read.
const IR_VERSIONS: std::ops::RangeInclusive<i64> = 3..=14;

/// A dimension of an input or result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Dim {
    /// A number.
    Size(usize),
    /// A name that [`Dims`] gives a number. One that the file leaves open has the name of its place: `x.2` is the third
    /// dimension of `x`.
    Name(String),
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Size(size) => write!(f, "{size}"),
            Dim::Name(name) => f.write_str(name),
        }
    }
}

/// An input or result as the file declares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub element: ElementType,
    /// Its dimensions; `None` where the file does not even say how many there are.
    pub dims: Option<Vec<Dim>>,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.element)?;
        match &self.dims {
            None => f.write_str(" of any shape"),
            Some(dims) => {
                let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
                write!(f, "[{}]", dims.join(", "))
            }
        }
    }
}

/// Numbers for the dimensions that a model leaves open, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dims(BTreeMap<String, usize>);

impl Dims {
    /// No numbers: enough for a model without open dimensions.
    pub fn new() -> Self {
        Dims::default()
    }

    /// With this number for that name: the name of the file, or `INPUT.AXIS`, which goes first.
    #[must_use]
    pub fn bind(mut self, name: impl Into<String>, size: usize) -> Self {
        self.0.insert(name.into(), size);
        self
    }

    /// The number for a name.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }

    /// All names with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(name, size)| (name.as_str(), *size))
    }

    pub(crate) fn insert(&mut self, name: &str, size: usize) -> Option<usize> {
        self.0.insert(name.to_owned(), size)
    }

    /// The size of a dimension: that of `place` (`INPUT.AXIS`) if it is given, else that of the dimension's own name.
    pub(crate) fn resolve(&self, dim: &Dim, place: &str) -> Option<usize> {
        match dim {
            Dim::Size(size) => Some(*size),
            Dim::Name(name) => self.get(place).or_else(|| self.get(name)),
        }
    }
}

/// An ONNX model.
///
/// ```no_run
/// use meganeura_onnx::{Dims, Model};
///
/// # fn main() -> meganeura_onnx::Result<()> {
/// let model = Model::open("classifier.onnx")?;
/// let dims = Dims::new().bind("batch", 8);
/// println!("{}", model.preflight(&dims));
/// let graph = model.graph(&dims)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) proto: ModelProto,
    path: Option<PathBuf>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// Inputs whose initializer is their default value.
    defaults: Vec<Port>,
}

impl Model {
    /// Reads a file. Data that it has in other files are read when they are needed, from the file's folder alone.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Broken`] if the file is no ONNX model.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = meganeura_core::files::read_within_memory(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        let mut model = Model::parse(bytes.into()).map_err(|e| e.of_file(path))?;
        model.path = Some(path.to_owned());
        Ok(model)
    }

    /// Reads a model from memory, which can have no data in other files.
    ///
    /// # Errors
    /// [`Error::Broken`] if the bytes are no ONNX model.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Model::parse(bytes.into().into())
    }

    fn parse(bytes: Bytes) -> Result<Self> {
        let proto = ModelProto::decode(bytes).map_err(|e| Error::broken(format!("this is no ONNX model: {e}")))?;
        let Some(graph) = proto.graph.as_deref() else {
            return Err(Error::broken("this is no ONNX model: it has no graph"));
        };
        if !IR_VERSIONS.contains(&proto.ir_version) {
            let (first, last) = IR_VERSIONS.into_inner();
            return Err(Error::broken(format!(
                "version {} of the format is not supported; versions {first} to {last} are",
                proto.ir_version
            )));
        }
        // An input with an initializer has that as its default; before version 4 of the format every initializer is an input.
        let parameters: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
        let (defaults, inputs): (Vec<_>, Vec<_>) =
            graph.input.iter().partition(|v| parameters.contains(v.name.as_str()));
        let inputs = inputs.into_iter().map(port).collect::<Result<_>>()?;
        let defaults = defaults.into_iter().map(port).collect::<Result<_>>()?;
        let outputs = graph.output.iter().map(port).collect::<Result<_>>()?;
        Ok(Model {
            inputs,
            outputs,
            defaults,
            path: None,
            proto,
        })
    }

    /// What the model takes, in the order of the file.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// Inputs that need not be given, because an initializer has their default value. [`ImportOptions::constants`] gives
    /// them other values.
    pub fn defaults(&self) -> &[Port] {
        &self.defaults
    }

    /// What the model gives, in the order of the file. The graph knows shapes that the file leaves open.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Domains with the versions of their operators; the empty domain is `ai.onnx`.
    pub fn opsets(&self) -> impl Iterator<Item = (&str, i64)> {
        self.proto.opset_import.iter().map(|o| (domain(&o.domain), o.version))
    }

    /// Program that wrote the file, with its version.
    pub fn producer(&self) -> String {
        [self.proto.producer_name.as_str(), &self.proto.producer_version]
            .join(" ")
            .trim()
            .to_owned()
    }

    /// Entries that the file's writer added.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.proto.metadata_props.iter();
        entries.map(|entry| (entry.key.as_str(), entry.value.as_str()))
    }

    /// The model's graph for these dimensions, with its weights as parameters without values. [`Model::import`] tells more,
    /// and [`crate::Runner`] runs it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with everything that is in the way.
    pub fn graph(&self, dims: &Dims) -> Result<Graph> {
        Ok(self.import(&ImportOptions::new(dims.clone()))?.graph)
    }

    /// The model's graph, with the values of its parameters and what its inputs and results are.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with everything that is in the way.
    pub fn import(&self, options: &ImportOptions) -> Result<Import> {
        crate::import::import(self, options)
    }

    /// What importing the model would meet, all at once: operators that are not supported, dimensions without a number,
    /// missing data, and how much memory and arithmetic it would take.
    pub fn preflight(&self, dims: &Dims) -> Report {
        self.preflight_with(&ImportOptions::new(dims.clone()))
    }

    /// [`Model::preflight`] of an import with other options.
    pub fn preflight_with(&self, options: &ImportOptions) -> Report {
        crate::preflight::preflight(self, options)
    }

    /// The numbers that inputs of these shapes give the model's open dimensions.
    ///
    /// # Errors
    /// [`Error::Input`] if an input is not one of the model's, has another rank or size, or two of them contradict.
    pub fn dims_of<'a>(&self, shapes: impl IntoIterator<Item = (&'a str, &'a [usize])>) -> Result<Dims> {
        let mut dims = Dims::new();
        for (name, shape) in shapes {
            let Some(port) = self.inputs.iter().find(|p| p.name == name) else {
                let known: Vec<&str> = self.inputs.iter().map(|p| p.name.as_str()).collect();
                return Err(Error::Input(format!(
                    "the model has no input `{name}`; it has {}",
                    known.join(", ")
                )));
            };
            let wrong = || Error::Input(format!("an input of shape {shape:?} is given for {port}"));
            let Some(declared) = &port.dims else {
                dims.insert(&format!("{name}.rank"), shape.len());
                for (axis, &size) in shape.iter().enumerate() {
                    dims.insert(&format!("{name}.{axis}"), size);
                }
                continue;
            };
            if declared.len() != shape.len() {
                return Err(wrong());
            }
            for (dim, &size) in declared.iter().zip(shape) {
                match dim {
                    Dim::Size(expected) if *expected != size => return Err(wrong()),
                    Dim::Size(_) => {}
                    Dim::Name(dim) => {
                        if let Some(other) = dims.insert(dim, size).filter(|other| *other != size) {
                            return Err(Error::Input(format!(
                                "dimension `{dim}` is {other} in one input and {size} in `{name}`"
                            )));
                        }
                    }
                }
            }
        }
        Ok(dims)
    }

    pub(crate) fn graph_proto(&self) -> Option<&GraphProto> {
        self.proto.graph.as_deref()
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        let parent = self.path.as_deref()?.parent()?;
        Some(if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        })
    }
}

/// A domain's name, the same for both spellings of the standard's own.
pub(crate) fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// The type of an input or result of the model.
fn port(info: &ValueInfoProto) -> Result<Port> {
    let fail = |message: &str| Error::broken(format!("`{}`: {message}", info.name));
    let tensor = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(type_proto::Value::Tensor(tensor)) => tensor,
        Some(_) => {
            return Err(fail(
                "sequences, maps, optional values and sparse tensors are not supported",
            ));
        }
        None => return Err(fail("it has no type")),
    };
    let element = ElementType::from_number(tensor.elem_type.into()).map_err(|e| fail(&e))?;
    let dims = tensor.shape.as_ref().map(|shape| {
        let dims = shape.dim.iter().enumerate();
        dims.map(|(axis, dim)| match &dim.value {
            Some(dimension_proto::Value::DimValue(size)) if *size >= 0 => Dim::Size(*size as usize),
            // Some exporters give all unknown dimensions the name `?`, though they differ.
            Some(dimension_proto::Value::DimParam(name)) if !name.is_empty() && name != "?" => Dim::Name(name.clone()),
            _ => Dim::Name(format!("{}.{axis}", info.name)),
        })
        .collect()
    });
    Ok(Port {
        name: info.name.clone(),
        element,
        dims,
    })
}
