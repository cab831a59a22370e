//! A parsed model file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use meganeura_core::graph::Graph;
use prost::Message;

use crate::element::ElementType;
use crate::error::{Error, Issue, Result};
use crate::import::{Import, ImportOptions};
use crate::port::{Dim, Dims, Port};
use crate::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto, dimension_proto, type_proto};
use crate::read::STRING;
use crate::report::Report;

/// Supported versions of the intermediate representation.
const IR_VERSIONS: std::ops::RangeInclusive<i64> = 3..=14;

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
    /// Reads a file. Data in other files are read when they are needed, and only from the file's folder.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Broken`] if the file is not an ONNX model.
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

    /// Reads a model from memory, which cannot have data in other files.
    ///
    /// # Errors
    /// [`Error::Broken`] if the bytes are not an ONNX model.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Model::parse(bytes.into().into())
    }

    fn parse(bytes: Bytes) -> Result<Self> {
        if bytes.starts_with(b"GGUF") {
            return Err(Error::broken(
                "expected an ONNX model, found a GGUF file; use it with `generate`, `chat`, `serve` or `train text`",
            ));
        }
        let proto = ModelProto::decode(bytes).map_err(|e| Error::broken(format!("this is not an ONNX model: {e}")))?;
        Model::of(proto)
    }

    fn of(proto: ModelProto) -> Result<Self> {
        let Some(graph) = proto.graph.as_deref() else {
            return Err(Error::broken("this is not an ONNX model: it has no graph"));
        };
        if !IR_VERSIONS.contains(&proto.ir_version) {
            let (first, last) = IR_VERSIONS.into_inner();
            return Err(Error::broken(format!(
                "version {} of the format is not supported; expected {first} to {last}",
                proto.ir_version
            )));
        }
        // An initializer is the default of the input with its name; before version 4 of the format every initializer is an input.
        let parameters: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
        let (defaults, inputs): (Vec<_>, Vec<_>) =
            graph.input.iter().partition(|v| parameters.contains(v.name.as_str()));
        let inputs = inputs.into_iter().map(port).collect::<Result<_>>()?;
        let defaults = defaults.into_iter().map(port).collect::<Result<_>>()?;
        let outputs = graph.output.iter().map(|info| output(graph, info));
        let outputs = outputs.collect::<Result<_>>()?;
        Ok(Model {
            inputs,
            outputs,
            defaults,
            path: None,
            proto,
        })
    }

    /// Returns a model with a changed graph, and the result of `change`. Data in other files are in the same folder.
    pub(crate) fn changed<T>(&self, change: impl FnOnce(&mut GraphProto) -> Result<T>) -> Result<(Self, T)> {
        let mut proto = self.proto.clone();
        let result = change(proto.graph.get_or_insert_default())?;
        let model = Model {
            path: self.path.clone(),
            ..Model::of(proto)?
        };
        Ok((model, result))
    }

    /// Returns the version of the operators of ONNX; 1 if the file does not specify it.
    pub(crate) fn opset(&self) -> i64 {
        self.opsets()
            .find(|(name, _)| name.is_empty())
            .map_or(1, |(_, version)| version)
    }

    /// Returns the inputs of the model, in the order of the file.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// Returns the optional inputs, whose default values are initializers. [`ImportOptions::constants`] replaces these values.
    pub fn defaults(&self) -> &[Port] {
        &self.defaults
    }

    /// Returns the results of the model, in the order of the file. If the file does not specify their shapes, the
    /// imported graph does.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Returns the domains with the versions of their operators; the empty domain is `ai.onnx`.
    pub fn opsets(&self) -> impl Iterator<Item = (&str, i64)> {
        self.proto.opset_import.iter().map(|o| (domain(&o.domain), o.version))
    }

    /// Returns the program that wrote the file, with its version.
    pub fn producer(&self) -> String {
        [self.proto.producer_name.as_str(), &self.proto.producer_version]
            .join(" ")
            .trim()
            .to_owned()
    }

    /// Returns the metadata entries of the file.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.proto.metadata_props.iter();
        entries.map(|entry| (entry.key.as_str(), entry.value.as_str()))
    }

    /// Returns the model's graph for these dimensions, with its weights as parameters without values. [`Model::import`] returns
    /// more details, and [`crate::Runner`] runs the model.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with all issues.
    pub fn graph(&self, dims: &Dims) -> Result<Graph> {
        Ok(self.import(&ImportOptions::new(dims.clone()))?.graph)
    }

    /// Imports the model: its graph, with the values of its parameters and the types of its inputs and results.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with all issues.
    pub fn import(&self, options: &ImportOptions) -> Result<Import> {
        crate::import::import(self, options)
    }

    /// Returns a report of what an import would encounter: all unsupported operators, dimensions without a size and missing data,
    /// and the required memory and arithmetic.
    pub fn preflight(&self, dims: &Dims) -> Report {
        self.preflight_with(&ImportOptions::new(dims.clone()))
    }

    /// Returns the report of [`Model::preflight`] for an import with other options.
    pub fn preflight_with(&self, options: &ImportOptions) -> Report {
        crate::preflight::preflight(self, options)
    }

    /// Creates a report of issues.
    pub(crate) fn report(&self, issues: Vec<Issue>) -> Report {
        Report {
            inputs: self.inputs().to_vec(),
            outputs: self.outputs().to_vec(),
            opsets: self
                .opsets()
                .map(|(name, version)| (name.to_owned(), version))
                .collect(),
            nodes: self.graph_proto().map_or(0, |g| g.node.len()),
            issues,
            notes: Vec::new(),
            labels: Vec::new(),
            assumed: Vec::new(),
            estimate: None,
        }
    }

    /// Returns the sizes of the model's open dimensions for inputs of these shapes.
    ///
    /// # Errors
    /// [`Error::Input`] if the model does not have an input, an input has another rank or size, or two inputs contradict each
    /// other.
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
            let wrong = || Error::Input(format!("expected {port}, found an input of shape {shape:?}"));
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

/// Returns the normalized name of a domain: both spellings of the standard domain have the same one.
pub(crate) fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// Returns the type of a result of the model. Maps of ZipMap are tensors.
fn output(graph: &GraphProto, info: &ValueInfoProto) -> Result<Port> {
    let is_map = |node: &NodeProto| {
        let is_result = node.output.first().is_some_and(|name| *name == info.name);
        is_result && node.op_type == "ZipMap" && node.domain == "ai.onnx.ml"
    };
    let is_tensor = |info: &ValueInfoProto| {
        let value = info.r#type.as_ref().and_then(|t| t.value.as_ref());
        matches!(value, Some(type_proto::Value::Tensor(_)))
    };
    if !is_tensor(info) && graph.node.iter().any(is_map) {
        return Ok(Port {
            name: info.name.clone(),
            element: ElementType::F32,
            dims: None,
        });
    }
    port(info)
}

/// Returns the type of an input or result of the model.
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
    let element = match tensor.elem_type {
        STRING => ElementType::Text,
        number => ElementType::from_number(number.into()).map_err(|e| fail(&e))?,
    };
    let dims = tensor.shape.as_ref().map(|shape| {
        let dims = shape.dim.iter().enumerate();
        dims.map(|(axis, dim)| match &dim.value {
            Some(dimension_proto::Value::DimValue(size)) if *size >= 0 => Dim::Size(*size as usize),
            // Some exporters name all unknown dimensions `?`, although they differ.
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
