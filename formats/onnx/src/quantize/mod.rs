//! Quantization of a model to 8 bits (W8A8), after training.
//!
//! The inputs and weights of convolutions and matrix products become 8-bit integers. Weights are signed, with a scale
//! for each output channel. Activations are unsigned, with one scale and zero point from the range that they have in
//! samples. The result is an ONNX model with `QuantizeLinear` and `DequantizeLinear` nodes, which other programs also read.

mod ranges;
mod rewrite;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use meganeura_compiler::Builder;

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::export::{ExportOptions, write};
use crate::model::Model;
use crate::proto::{
    GraphProto, NodeProto, TensorProto, TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, type_proto,
};
use crate::read::read_into;
use crate::report::bytes;
use crate::shared::SharedRunner;
use crate::tensor::Tensor;
use ranges::Range;

/// Minimum version of the operators of ONNX that has `QuantizeLinear`.
const MIN_OPSET: i64 = 10;
/// Minimum version with a scale for each channel.
const PER_CHANNEL_OPSET: i64 = 13;
/// Weights with fewer elements stay floats: quantization would not make them faster.
const MIN_WEIGHTS: usize = 64;

/// A node that is to be quantized.
#[derive(Clone, Debug)]
struct Target {
    /// Index of the node.
    node: usize,
    /// Name of its activations.
    activation: String,
    weight: String,
    /// Axis of the output channels of the weight.
    axis: usize,
}

/// Options of [`Quantizer::finish`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// Percentage of the activations in the range of the integers, from 50 to 100; the largest magnitudes are clamped.
    pub percentile: f64,
    /// Quantizes weights with a scale for each output channel instead of one scale.
    pub per_channel: bool,
}

impl Default for QuantizeOptions {
    fn default() -> Self {
        QuantizeOptions {
            percentile: 100.0,
            per_channel: true,
        }
    }
}

/// Report of [`Quantizer::finish`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct QuantizeReport {
    /// Number of quantized convolutions and matrix products.
    pub quantized: usize,
    /// Convolutions and matrix products that stay floats, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Bytes of the weights of the quantized nodes before and after.
    pub weight_bytes: [u64; 2],
}

impl fmt::Display for QuantizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = self.weight_bytes.map(bytes);
        write!(
            f,
            "{} of {} convolutions and matrix products are quantized; their weights take {after} instead of {before}",
            self.quantized,
            self.quantized + self.skipped.len()
        )?;
        let mut reasons: Vec<(&str, usize)> = Vec::new();
        for (_, reason) in &self.skipped {
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, count)) => *count += 1,
                None => reasons.push((reason, 1)),
            }
        }
        for (reason, count) in reasons {
            write!(f, "\n  {count} not quantized: {reason}")?;
        }
        Ok(())
    }
}

/// Quantizes a model: calibrate it with samples, then write the result.
///
/// ```no_run
/// use meganeura_compiler::Builder;
/// use meganeura_onnx::{Model, QuantizeOptions, Quantizer, Tensor};
///
/// # fn main() -> meganeura_onnx::Result<()> {
/// # let samples: Vec<Vec<Tensor>> = Vec::new();
/// let model = Model::open("classifier.onnx")?;
/// let mut quantizer = Quantizer::new(&model, &Builder::new())?;
/// for inputs in &samples {
///     quantizer.calibrate(inputs)?;
/// }
/// let (model, report) = quantizer.finish(&QuantizeOptions::default())?;
/// println!("{report}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Quantizer {
    model: Model,
    /// The model with all activations of targets as further results.
    watched: SharedRunner,
    targets: Vec<Target>,
    skipped: Vec<(String, String)>,
    /// Names of the further results, and their ranges.
    ranges: Vec<(String, Range)>,
    samples: usize,
}

impl Quantizer {
    /// Prepares the quantization of a model, which runs with this builder.
    ///
    /// # Errors
    /// [`Error::Input`] if nothing in the model can be quantized; errors of opening the device.
    pub fn new(model: &Model, builder: &Builder) -> Result<Self> {
        let graph = model
            .graph_proto()
            .ok_or_else(|| Error::broken("the model has no graph"))?;
        let opset = model.opset();
        if opset < MIN_OPSET {
            return Err(Error::Input(format!(
                "expected a model with at least version {MIN_OPSET} of the operators (opset), found {opset}: export it again with a later one"
            )));
        }
        let (mut targets, mut skipped) = (Vec::new(), Vec::new());
        for (index, node) in graph.node.iter().enumerate() {
            match target(graph, index) {
                None => {}
                Some(Ok(target)) => targets.push(target),
                Some(Err(reason)) => skipped.push((node_name(node), reason)),
            }
        }
        if targets.is_empty() {
            let mut message = "the model has no convolution or matrix product that can be quantized".to_owned();
            if let Some((name, reason)) = skipped.first() {
                message += &format!(", for example `{name}`: {reason}");
            }
            return Err(Error::Input(message));
        }
        let mut names: Vec<String> = targets.iter().map(|t| t.activation.clone()).collect();
        names.sort();
        names.dedup();
        let (watched, ()) = model.changed(|graph| {
            graph.output = names.iter().map(|name| float_info(name)).collect();
            Ok(())
        })?;
        Ok(Quantizer {
            model: model.clone(),
            watched: SharedRunner::new(&watched, builder)?,
            targets,
            skipped,
            ranges: names.into_iter().map(|name| (name, Range::default())).collect(),
            samples: 0,
        })
    }

    /// Runs the model on the inputs of a sample, in the order of [`Model::inputs`], and records the ranges of its activations.
    ///
    /// # Errors
    /// Errors of the run; [`Error::Input`] if an activation is not finite.
    pub fn calibrate(&mut self, inputs: &[Tensor]) -> Result<()> {
        let results = self.watched.run(inputs)?;
        for ((name, range), tensor) in self.ranges.iter_mut().zip(&results) {
            if !range.add(&tensor.to_f32()) {
                return Err(Error::Input(format!("`{name}` contains numbers that are not finite")));
            }
        }
        self.samples += 1;
        Ok(())
    }

    /// Returns the quantized model, and what changed.
    ///
    /// # Errors
    /// [`Error::Input`] without samples, or if an option is out of range; weights that cannot be read.
    pub fn finish(self, options: &QuantizeOptions) -> Result<(Model, QuantizeReport)> {
        if self.samples == 0 {
            return Err(Error::Input("expected samples to calibrate with, found none".into()));
        }
        if !(50.0..=100.0).contains(&options.percentile) {
            return Err(Error::Input(format!(
                "expected a percentile from 50 to 100, found {}",
                options.percentile
            )));
        }
        let ranges: HashMap<&str, [f32; 2]> = self
            .ranges
            .iter()
            .map(|(name, range)| (name.as_str(), range.bounds(options.percentile)))
            .collect();
        let per_channel = options.per_channel && self.model.opset() >= PER_CHANNEL_OPSET;
        let folder = self.model.folder();
        let change = |graph: &mut GraphProto| rewrite::quantize(graph, &self.targets, &ranges, per_channel, folder);
        let (model, weight_bytes) = self.model.changed(change)?;
        let report = QuantizeReport {
            quantized: self.targets.len(),
            skipped: self.skipped,
            weight_bytes,
        };
        Ok((model, report))
    }
}

impl Model {
    /// Writes the model to a file. Weights in other files become part of it. Weights of more than 1.9 GB are written to a
    /// second file in the same folder.
    ///
    /// # Errors
    /// Weights that cannot be read; [`Error::Io`] if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut proto = self.proto.clone();
        for tensor in proto.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
            read_into(tensor, self.folder()).map_err(|e| Error::broken(e.message()))?;
        }
        write(proto, &ExportOptions::default(), path.as_ref())
    }
}

fn node_name(node: &NodeProto) -> String {
    match (node.name.as_str(), node.output.first()) {
        ("", Some(result)) => result.clone(),
        (name, _) => name.to_owned(),
    }
}

fn int_attribute(node: &NodeProto, name: &str, default: i64) -> i64 {
    let found = node
        .attribute
        .iter()
        .find(|a| a.name == name && a.r#type == attribute_type::INT);
    found.map_or(default, |a| a.i)
}

/// Returns the target of a node, or the reason why it stays a float; `None` if it is no convolution or matrix product.
fn target(graph: &GraphProto, index: usize) -> Option<std::result::Result<Target, String>> {
    let node = &graph.node[index];
    let is_known = matches!(node.op_type.as_str(), "Conv" | "MatMul" | "Gemm");
    if !is_known || !node.domain.is_empty() && node.domain != "ai.onnx" {
        return None;
    }
    let name = |i: usize| node.input.get(i).map(String::as_str).unwrap_or_default();
    let [activation, weight] = [name(0), name(1)];
    let initializer = |name: &str| graph.initializer.iter().find(|t| t.name == name);
    let Some(tensor) = initializer(weight) else {
        return Some(Err("the second operand is not a weight of the file".into()));
    };
    if initializer(activation).is_some() {
        return Some(Err("the first operand is a weight".into()));
    }
    let fits = weight_axis(node, tensor);
    Some(fits.map(|axis| Target {
        node: index,
        activation: activation.to_owned(),
        weight: weight.to_owned(),
        axis,
    }))
}

/// Returns the axis of the output channels of a node's weight.
fn weight_axis(node: &NodeProto, weight: &TensorProto) -> std::result::Result<usize, String> {
    if ElementType::from_number(weight.data_type.into()) != Ok(ElementType::F32) {
        return Err("the weight is not float32".into());
    }
    if weight.dims.iter().product::<i64>() < MIN_WEIGHTS as i64 {
        return Err("the weight is small".into());
    }
    match (node.op_type.as_str(), weight.dims.len()) {
        ("Conv", 4) if int_attribute(node, "group", 1) == 1 => Ok(0),
        ("Conv", 4) => Err("a convolution with groups".into()),
        ("Conv", _) => Err("a convolution over one or three axes".into()),
        ("Gemm", 2) if int_attribute(node, "transA", 0) != 0 => Err("a transposed first operand".into()),
        ("Gemm", 2) => Ok(usize::from(int_attribute(node, "transB", 0) == 0)),
        (_, 2) => Ok(1),
        _ => Err("the weight is not a matrix".into()),
    }
}

fn float_info(name: &str) -> ValueInfoProto {
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::Tensor(TensorTypeProto {
                elem_type: ElementType::F32.number(),
                shape: None,
            })),
        }),
    }
}
