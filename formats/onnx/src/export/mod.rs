//! Export of a graph to a file. An operator with a row in the table of `rows.rs` is written as ONNX nodes; other
//! operators are decomposed into such operators.

mod open_batch;
mod recurrent;
mod rows;

pub use open_batch::export_open_batch;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

use bytes::Bytes;
use meganeura_core::DType;
use meganeura_core::attrs::Attrs;
use meganeura_core::files::{clean_partial_files, folder_of, sha256, write_atomically};
use meganeura_core::graph::{ConstantData, Graph, NodeKind, Value};
use meganeura_core::host_memory::room;
use meganeura_core::ops::OpRef;
use meganeura_core::reference::{expand_call, operand_name};
use meganeura_core::shape::TensorType;
use prost::Message;

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::proto::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, dimension_proto,
    type_proto,
};

/// Version of the operators that are written.
const OPSET: i64 = 21;

/// Version of the format that corresponds to [`OPSET`].
const IR_VERSION: i64 = 10;

/// Maximum bytes of weights inside the model file. Larger weights are written to a separate file, because a protobuf
/// message has at most 2 GB.
const MAX_INLINE: u64 = 1_900_000_000;

/// Maximum nesting depth of decompositions.
const MAX_DEPTH: usize = 32;

/// Options of an export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Name of the graph in the file.
    pub name: String,
    /// Names of the results, in order; further results are named `output_0`, `output_1` and so on.
    pub outputs: Vec<String>,
    /// Metadata of the file: keys and values.
    pub metadata: Vec<(String, String)>,
    /// Maximum total bytes of weights in the file. Larger weights are written to `FILE.HASH.data`, where `HASH` is a hash of
    /// them.
    pub max_inline_bytes: u64,
}

impl Default for ExportOptions {
    fn default() -> Self {
        ExportOptions {
            name: "graph".into(),
            outputs: Vec::new(),
            metadata: Vec::new(),
            max_inline_bytes: MAX_INLINE,
        }
    }
}

/// Writes the inference form of a graph as an ONNX file (opset 21). `parameter` returns the values of its parameters
/// and states by name; a state without a value is exported with its initial value.
///
/// Inputs and parameters keep their names. `u32` and `i32` keep their types; results of comparisons are `uint32` 0 or 1.
///
/// # Errors
/// [`Error::Input`] if a parameter has no value or a value of another size, or for a node that a file cannot represent: state
/// that a step changes, gradients, random numbers. [`Error::Io`] if the file cannot be written.
pub fn export(
    graph: &Graph,
    parameter: &mut dyn FnMut(&str) -> Option<Vec<f32>>,
    options: &ExportOptions,
    path: impl AsRef<Path>,
) -> Result<()> {
    export_tensors(graph, &mut floats(parameter), options, path)
}

/// Writes a file like [`export`], with tensors as the values of parameters. Unlike `f32`, they represent all integers of 32 bits.
///
/// # Errors
/// The errors of [`export`].
pub fn export_tensors(
    graph: &Graph,
    parameter: &mut dyn FnMut(&str) -> Option<crate::Tensor>,
    options: &ExportOptions,
    path: impl AsRef<Path>,
) -> Result<()> {
    write(to_proto(graph, parameter, options)?, options, path.as_ref())
}

/// Returns a function that makes tensors of the numbers of parameters.
pub(crate) fn floats<'p>(
    parameter: &'p mut dyn FnMut(&str) -> Option<Vec<f32>>,
) -> impl FnMut(&str) -> Option<crate::Tensor> + 'p {
    |name| parameter(name).map(|data| crate::Tensor::f32(&[data.len()], data))
}

/// Writes a model to a file, and its weights to a second file if they are large.
pub(crate) fn write(mut model: ModelProto, options: &ExportOptions, path: &Path) -> Result<()> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let total: u64 = model
        .graph
        .iter()
        .flat_map(|g| &g.initializer)
        .map(|t| t.raw_data.len() as u64)
        .sum();
    let beside = if total > options.max_inline_bytes {
        Some(move_data(&mut model, path)?)
    } else {
        None
    };
    let mut bytes = room("the file", model.encoded_len())?;
    model.encode(&mut bytes).map_err(|e| Error::Input(e.to_string()))?;
    write_atomically(path, |file| file.write_all(&bytes))?;
    remove_others(path, beside.as_deref());
    File::open(path).map(drop).map_err(io)
}

/// Suffix of the names of files with large tensors.
const SUFFIX: &str = ".data";
/// Alignment of tensors, because readers map the file to memory page by page.
const PAGE: u64 = 4096;

/// Writes large tensors to a separate file next to the model, and stores their offsets in the model. The file name contains a
/// hash of the contents, so an existing model keeps its data until the new model replaces it.
fn move_data(model: &mut ModelProto, path: &Path) -> Result<String> {
    let own = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let own = own.ok_or_else(|| Error::Input(format!("{} is not a file name", path.display())))?;
    let tensors = || model.graph.iter().flat_map(|g| &g.initializer);
    let padding = |data: &[u8]| (data.len() as u64).next_multiple_of(PAGE) as usize - data.len();
    const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
    let parts = || tensors().flat_map(|t| [&t.raw_data[..], &ZEROS[..padding(&t.raw_data)]]);
    let hash = sha256(parts());
    let name = format!("{own}.{}{SUFFIX}", &hash[..HASH_DIGITS]);
    write_atomically(&path.with_file_name(&name), |file| {
        parts().try_for_each(|part| file.write_all(part))
    })?;
    let mut offset = 0u64;
    for tensor in model.graph.iter_mut().flat_map(|g| &mut g.initializer) {
        let length = std::mem::take(&mut tensor.raw_data).len() as u64;
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        tensor.external_data = vec![
            entry("location", name.clone()),
            entry("offset", offset.to_string()),
            entry("length", length.to_string()),
        ];
        tensor.data_location = 1;
        offset += length.next_multiple_of(PAGE);
    }
    Ok(name)
}

/// Number of digits of the hash in the name of a file with large tensors.
const HASH_DIGITS: usize = 16;

/// Removes the files with large tensors of earlier models of this name.
fn remove_others(path: &Path, current: Option<&str>) {
    let prefix = format!("{}.", path.file_name().unwrap_or_default().to_string_lossy());
    for entry in fs::read_dir(folder_of(path)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let hash = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(SUFFIX));
        let is_hash = |hash: &str| hash.len() == HASH_DIGITS && hash.chars().all(|c| c.is_ascii_hexdigit());
        if hash.is_some_and(is_hash) && current != Some(name.as_str()) {
            // A file that cannot be removed only wastes space.
            let _ = fs::remove_file(entry.path());
        }
    }
    clean_partial_files(&folder_of(path), &prefix);
}

/// Creates the protobuf message of a graph.
pub(crate) fn to_proto(
    graph: &Graph,
    parameter: &mut dyn FnMut(&str) -> Option<crate::Tensor>,
    options: &ExportOptions,
) -> Result<ModelProto> {
    let graph = &meganeura_compiler::optimize::for_inference(graph)?;
    if !graph.effects().is_empty() {
        return Err(Error::Input(
            "a graph that changes its state or parameters cannot be exported".into(),
        ));
    }
    let mut writer = Writer::default();
    let mut inputs = Vec::new();
    let mut names: HashMap<Value, String> = HashMap::new();
    for id in graph.node_ids() {
        let node = &graph.nodes()[id.index()];
        let Some(ty) = node.outputs.first() else { continue };
        let name = node.name.as_deref().unwrap_or("").to_owned();
        match &node.kind {
            NodeKind::Input | NodeKind::Scalar => {
                inputs.push(value_info(&name, ty));
                names.insert(id.into(), name);
            }
            NodeKind::Parameter { .. } => {
                let tensor =
                    parameter(&name).ok_or_else(|| Error::Input(format!("parameter `{name}` has no value")))?;
                if tensor.len() != ty.numel() {
                    let (found, wanted) = (tensor.len(), ty.numel());
                    return Err(Error::Input(format!(
                        "parameter `{name}`: expected {wanted} elements, found {found}"
                    )));
                }
                let element = element_of(ty.dtype);
                let tensor = if element == tensor.element() {
                    tensor
                } else {
                    tensor.cast(element)
                };
                writer.initializer(&name, ty, tensor.graph_bytes().map_err(Error::Input)?);
                names.insert(id.into(), name);
            }
            NodeKind::State { fill } => {
                let data = match parameter(&name) {
                    Some(tensor) if tensor.len() == ty.numel() => tensor.graph_bytes(),
                    _ => Ok(ConstantData::repeated(ty.dtype, (*fill).into(), ty.numel())
                        .bytes()
                        .to_vec()),
                };
                writer.initializer(&name, ty, data.map_err(Error::Input)?);
                names.insert(id.into(), name);
            }
            _ => {}
        }
    }
    writer.used.extend(names.values().cloned());
    let results = writer.graph(graph, names, graph.outputs(), 0)?;
    let mut outputs = Vec::new();
    for (i, (value, result)) in graph.outputs().iter().zip(results).enumerate() {
        let name = options.outputs.get(i).cloned().unwrap_or_else(|| format!("output_{i}"));
        if !writer.used.insert(name.clone()) && name != result {
            return Err(Error::Input(format!(
                "result {i} has the name `{name}`, which another value already has"
            )));
        }
        writer.node("Identity", &[&result], &[&name], Vec::new());
        if let Some(ty) = graph.ty(*value) {
            outputs.push(value_info(&name, ty));
        }
    }
    let kept: Vec<&str> = outputs.iter().map(|o| o.name.as_str()).collect();
    writer.drop_unread(&kept);
    Ok(ModelProto {
        ir_version: IR_VERSION,
        producer_name: "meganeura".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        metadata_props: options
            .metadata
            .iter()
            .map(|(key, value)| StringStringEntryProto {
                key: key.clone(),
                value: value.clone(),
            })
            .collect(),
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: OPSET,
        }],
        graph: Some(Box::new(GraphProto {
            name: options.name.clone(),
            node: writer.nodes,
            initializer: writer.initializers,
            input: inputs,
            output: outputs,
            ..GraphProto::default()
        })),
        ..ModelProto::default()
    })
}

/// Returns the element type in a file for a dtype of a graph.
fn element_of(dtype: DType) -> ElementType {
    match dtype {
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::BF16,
        DType::U32 => ElementType::U32,
        DType::I32 => ElementType::I32,
        _ => ElementType::F32,
    }
}

fn value_info(name: &str, ty: &TensorType) -> ValueInfoProto {
    let dim = ty.shape.dims().iter().map(|&size| DimensionProto {
        value: Some(dimension_proto::Value::DimValue(size as i64)),
    });
    let tensor = TensorTypeProto {
        elem_type: element_of(ty.dtype).number(),
        shape: Some(TensorShapeProto { dim: dim.collect() }),
    };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::Tensor(tensor)),
        }),
    }
}

/// An operand with its type.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) name: &'a str,
    pub(crate) ty: &'a TensorType,
}

/// A call of an operator that is being written.
pub(crate) struct ExportCall<'a> {
    pub(crate) attrs: &'a Attrs,
    pub(crate) inputs: Vec<Operand<'a>>,
    pub(crate) outputs: &'a [TensorType],
}

/// Builder of the nodes and constants of a file.
#[derive(Default)]
pub(crate) struct Writer {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    used: std::collections::HashSet<String>,
    /// Constants by type, dimensions and bytes.
    constants: HashMap<(i32, Vec<i64>, Vec<u8>), String>,
    count: usize,
}

impl Writer {
    /// Returns an unused name.
    pub(crate) fn fresh(&mut self) -> String {
        loop {
            self.count += 1;
            let name = format!("t{}", self.count);
            if self.used.insert(name.clone()) {
                return name;
            }
        }
    }

    fn initializer(&mut self, name: &str, ty: &TensorType, bytes: Vec<u8>) {
        self.initializers.push(TensorProto {
            name: name.into(),
            dims: ty.shape.dims().iter().map(|&d| d as i64).collect(),
            data_type: element_of(ty.dtype).number(),
            raw_data: Bytes::from(bytes),
            ..TensorProto::default()
        });
    }

    /// Adds a constant; equal constants are written once.
    fn constant(&mut self, number: i32, dims: &[i64], bytes: Vec<u8>) -> String {
        let key = (number, dims.to_vec(), bytes);
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.fresh();
        self.initializers.push(TensorProto {
            name: name.clone(),
            dims: dims.to_vec(),
            data_type: number,
            raw_data: Bytes::from(key.2.clone()),
            ..TensorProto::default()
        });
        self.constants.insert(key, name.clone());
        name
    }

    /// Adds a constant list of `int64`.
    pub(crate) fn int_list(&mut self, list: &[i64]) -> String {
        let bytes = list.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(ElementType::I64.number(), &[list.len() as i64], bytes)
    }

    /// Adds a scalar constant of a dtype.
    pub(crate) fn number(&mut self, dtype: DType, value: f64) -> String {
        let data = ConstantData::splat(dtype, value);
        self.constant(element_of(dtype).number(), &[], data.bytes().to_vec())
    }

    pub(crate) fn node(&mut self, op: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<AttributeProto>) {
        self.nodes.push(NodeProto {
            op_type: op.into(),
            name: format!("n{}", self.nodes.len()),
            input: inputs.iter().map(|s| (*s).to_owned()).collect(),
            output: outputs.iter().map(|s| (*s).to_owned()).collect(),
            attribute: attributes,
            ..NodeProto::default()
        });
    }

    /// Adds a node with one result, and returns the name of the result.
    pub(crate) fn call(&mut self, op: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let name = self.fresh();
        self.node(op, inputs, &[&name], attributes);
        name
    }

    pub(crate) fn cast(&mut self, x: &str, to: ElementType) -> String {
        self.call("Cast", &[x], vec![int("to", to.number().into())])
    }

    /// Removes nodes and constants that no result needs. There are some if one ONNX node has replaced several calls of
    /// the graph.
    fn drop_unread(&mut self, results: &[&str]) {
        let mut read: std::collections::HashSet<String> = results.iter().map(|s| (*s).to_owned()).collect();
        let mut nodes: Vec<NodeProto> = Vec::with_capacity(self.nodes.len());
        for node in std::mem::take(&mut self.nodes).into_iter().rev() {
            if node.output.iter().any(|name| read.contains(name)) {
                read.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
                nodes.push(node);
            }
        }
        nodes.reverse();
        self.nodes = nodes;
        self.initializers.retain(|tensor| read.contains(&tensor.name));
    }

    /// Writes the nodes that compute the wanted values of a graph; `names` contains the values that are already
    /// written, with their names.
    fn graph(
        &mut self,
        graph: &Graph,
        mut names: HashMap<Value, String>,
        wanted: &[Value],
        depth: usize,
    ) -> Result<Vec<String>> {
        if depth > MAX_DEPTH {
            return Err(Error::Input("decompositions are nested too deeply".into()));
        }
        for id in graph.topological_order()? {
            let node = &graph.nodes()[id.index()];
            if names.contains_key(&id.into()) {
                continue;
            }
            match &node.kind {
                NodeKind::Constant(data) => {
                    let Some(ty) = node.outputs.first() else { continue };
                    let dims: Vec<i64> = ty.shape.dims().iter().map(|&d| d as i64).collect();
                    let name = self.constant(element_of(ty.dtype).number(), &dims, data.bytes().to_vec());
                    names.insert(id.into(), name);
                }
                NodeKind::Op { op, attrs } => {
                    let written = self.recurrent(graph, id, &mut names, wanted);
                    if written.map_err(|message| Error::Input(format!("{}: {message}", graph.label(id))))? {
                        continue;
                    }
                    let types: Option<Vec<&TensorType>> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
                    let operands: Option<Vec<&String>> = node.inputs.iter().map(|v| names.get(v)).collect();
                    let (Some(types), Some(operands)) = (types, operands) else {
                        return Err(Error::Input(format!(
                            "{} has an operand that cannot be exported",
                            graph.label(id)
                        )));
                    };
                    let inputs = types.iter().zip(&operands).map(|(ty, name)| Operand { name, ty });
                    let call = ExportCall {
                        attrs,
                        inputs: inputs.collect(),
                        outputs: &node.outputs,
                    };
                    let results = self.operator(*op, &call, depth).map_err(|e| match e {
                        Error::Input(message) => Error::Input(format!("{}: {message}", graph.label(id))),
                        other => other,
                    })?;
                    for (value, result) in graph.values(id).zip(results) {
                        names.insert(value, result);
                    }
                }
                kind => {
                    let _ = kind;
                    return Err(Error::Input(format!("{} cannot be exported", graph.label(id))));
                }
            }
        }
        let found: Option<Vec<String>> = wanted.iter().map(|v| names.get(v).cloned()).collect();
        found.ok_or_else(|| Error::Input("no node computes a result of the graph".into()))
    }

    /// Writes a call as the nodes of its row, or else by its decomposition. Returns the names of its results.
    fn operator(&mut self, op: OpRef, call: &ExportCall, depth: usize) -> Result<Vec<String>> {
        let row = rows::find(op.name());
        if let Some(results) = row
            .map(|row| row(self, call))
            .transpose()
            .map_err(Error::Input)?
            .flatten()
        {
            return Ok(results);
        }
        if op.semantics().decomposition().is_none() {
            return Err(Error::Input(format!("{} has no counterpart in ONNX", op.name())));
        }
        let types: Vec<TensorType> = call.inputs.iter().map(|o| o.ty.clone()).collect();
        let (graph, results) = expand_call(op, call.attrs, &types, call.outputs)?;
        let mut names = HashMap::new();
        for (i, operand) in call.inputs.iter().enumerate() {
            if let Some(leaf) = graph.leaf_named(&operand_name(i)) {
                names.insert(leaf.into(), operand.name.to_owned());
            }
        }
        self.graph(&graph, names, &results, depth + 1)
    }
}

/// Creates an integer attribute.
pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        i: value,
        r#type: attribute_type::INT,
        ..AttributeProto::default()
    }
}

/// Creates an attribute with a list of integers.
pub(crate) fn ints(name: &str, values: impl IntoIterator<Item = i64>) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: values.into_iter().collect(),
        r#type: attribute_type::INTS,
        ..AttributeProto::default()
    }
}

/// Creates a float attribute.
pub(crate) fn float(name: &str, value: f64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        f: value as f32,
        r#type: attribute_type::FLOAT,
        ..AttributeProto::default()
    }
}

/// Creates an attribute with a list of strings.
pub(crate) fn strings(name: &str, values: &[&str]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        strings: values.iter().map(|v| Bytes::copy_from_slice(v.as_bytes())).collect(),
        r#type: attribute_type::STRINGS,
        ..AttributeProto::default()
    }
}

/// Creates a string attribute.
pub(crate) fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        s: Bytes::copy_from_slice(value.as_bytes()),
        r#type: attribute_type::STRING,
        ..AttributeProto::default()
    }
}
