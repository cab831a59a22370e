//! Changes of a model's nodes and weights.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::Target;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, attribute_type};
use crate::read::read_tensor;
use crate::tensor::Tensor;

/// Scale and zero point of activations.
#[derive(Clone, Copy)]
struct Steps {
    scale: f32,
    zero: i64,
}

impl Steps {
    /// Returns the steps that cover a range, which contains 0.
    fn of([low, high]: [f32; 2]) -> Self {
        let scale = (high - low) / 255.0;
        if scale == 0.0 || !scale.is_finite() {
            return Steps { scale: 1.0, zero: 0 };
        }
        Steps {
            scale,
            zero: (-low / scale).round() as i64,
        }
    }
}

/// Returns the initializer of a tensor.
///
/// # Errors
/// A type that has no form of its own in a file.
fn tensor(name: &str, data: &Tensor) -> Result<TensorProto> {
    let bytes: Vec<u8> = match data.element() {
        ElementType::F32 => data.to_f32().iter().flat_map(|x| x.to_le_bytes()).collect(),
        ElementType::I32 => data.to_i64().iter().flat_map(|&x| (x as i32).to_le_bytes()).collect(),
        ElementType::I8 | ElementType::U8 => data.to_i64().iter().map(|&x| x as u8).collect(),
        other => return Err(Error::Input(format!("{other} is not written to a file"))),
    };
    Ok(TensorProto {
        name: name.to_owned(),
        dims: data.dims().iter().map(|&d| d as i64).collect(),
        data_type: data.element().number(),
        raw_data: bytes.into(),
        ..TensorProto::default()
    })
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: attribute_type::INT,
        i: value,
        ..AttributeProto::default()
    }
}

fn node(operator: &str, inputs: &[&str], result: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: operator.into(),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![result.to_owned()],
        name: result.to_owned(),
        attribute,
        ..NodeProto::default()
    }
}

/// The graph that is being changed, and names that are in use.
struct Rewriter<'a> {
    graph: &'a mut GraphProto,
    names: HashSet<String>,
    folder: Option<&'a Path>,
}

/// Quantizes the targets. Returns the bytes of their weights before and after.
pub(super) fn quantize(
    graph: &mut GraphProto,
    targets: &[Target],
    ranges: &HashMap<&str, [f32; 2]>,
    per_channel: bool,
    folder: Option<&Path>,
) -> Result<[u64; 2]> {
    let mut names: HashSet<String> = graph.node.iter().flat_map(|node| node.output.iter().cloned()).collect();
    names.extend(graph.initializer.iter().map(|t| t.name.clone()));
    names.extend(graph.input.iter().map(|info| info.name.clone()));
    let mut rewriter = Rewriter { graph, names, folder };
    // New nodes in front of the node with this index.
    let mut added: HashMap<usize, Vec<NodeProto>> = HashMap::new();
    let mut activations: HashMap<&str, (String, Steps)> = HashMap::new();
    let mut weights: HashMap<&str, (String, Vec<f32>)> = HashMap::new();
    let mut bytes = [0; 2];
    for target in targets {
        let before = added.entry(target.node).or_default();
        let name = target.activation.as_str();
        if !activations.contains_key(name) {
            let steps = Steps::of(ranges.get(name).copied().unwrap_or_default());
            activations.insert(name, (rewriter.activation(name, steps, before)?, steps));
        }
        if !weights.contains_key(target.weight.as_str()) {
            let weight = rewriter.weight(target, per_channel, before, &mut bytes)?;
            weights.insert(&target.weight, weight);
        }
        let ((input, steps), (weight, scales)) = (&activations[name], &weights[target.weight.as_str()]);
        let bias = rewriter.bias(target.node, steps.scale, scales, before)?;
        let own = &mut rewriter.graph.node[target.node];
        own.input[0].clone_from(input);
        own.input[1].clone_from(weight);
        if let Some(bias) = bias {
            own.input[2] = bias;
        }
    }
    let nodes = std::mem::take(&mut rewriter.graph.node);
    for (index, node) in nodes.into_iter().enumerate() {
        rewriter.graph.node.extend(added.remove(&index).unwrap_or_default());
        rewriter.graph.node.push(node);
    }
    rewriter.drop_unused();
    Ok(bytes)
}

impl Rewriter<'_> {
    /// Returns a name that no value has.
    fn name(&mut self, base: &str, what: &str) -> String {
        let mut name = format!("{base}_{what}");
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    fn constant(&mut self, base: &str, what: &str, data: &Tensor) -> Result<String> {
        let name = self.name(base, what);
        self.graph.initializer.push(tensor(&name, data)?);
        Ok(name)
    }

    /// Quantizes and dequantizes activations. Returns the name of the result.
    fn activation(&mut self, name: &str, steps: Steps, nodes: &mut Vec<NodeProto>) -> Result<String> {
        let scale = self.constant(name, "scale", &Tensor::f32(&[], vec![steps.scale]))?;
        let zero = Tensor::integers(ElementType::U8, &[], vec![steps.zero]);
        let zero = self.constant(name, "zero_point", &zero)?;
        let [quantized, dequantized] = ["quantized", "dequantized"].map(|what| self.name(name, what));
        nodes.push(node("QuantizeLinear", &[name, &scale, &zero], &quantized, Vec::new()));
        nodes.push(node(
            "DequantizeLinear",
            &[&quantized, &scale, &zero],
            &dequantized,
            Vec::new(),
        ));
        Ok(dequantized)
    }

    fn read(&self, name: &str) -> Result<Tensor> {
        let found = self.graph.initializer.iter().find(|t| t.name == name);
        let proto = found.ok_or_else(|| Error::broken(format!("the file has no weight `{name}`")))?;
        read_tensor(proto, self.folder).map_err(|e| Error::broken(format!("`{name}`: {}", e.message())))
    }

    /// Quantizes a weight. Returns the name of the dequantized weight, and its scales.
    fn weight(
        &mut self,
        target: &Target,
        per_channel: bool,
        nodes: &mut Vec<NodeProto>,
        bytes: &mut [u64; 2],
    ) -> Result<(String, Vec<f32>)> {
        let weight = self.read(&target.weight)?;
        let (dims, numbers) = (weight.dims().to_vec(), weight.to_f32());
        if let Some(wrong) = numbers.iter().find(|w| !w.is_finite()) {
            return Err(Error::Input(format!("`{}` contains {wrong}", target.weight)));
        }
        let step: usize = dims[target.axis + 1..].iter().product();
        let channels = if per_channel { dims[target.axis] } else { 1 };
        let channel = |i: usize| if per_channel { i / step % channels } else { 0 };
        let mut scales = vec![0.0f32; channels];
        for (i, w) in numbers.iter().enumerate() {
            scales[channel(i)] = scales[channel(i)].max(w.abs());
        }
        for scale in &mut scales {
            *scale = if *scale == 0.0 { 1.0 } else { *scale / 127.0 };
        }
        let integers = numbers.iter().enumerate();
        let integers = integers
            .map(|(i, w)| (w / scales[channel(i)]).round_ties_even() as i64)
            .collect();
        let shape: &[usize] = if per_channel { &[channels] } else { &[] };
        let base = target.weight.as_str();
        let quantized = self.constant(base, "quantized", &Tensor::integers(ElementType::I8, &dims, integers))?;
        let scale = self.constant(base, "scale", &Tensor::f32(shape, scales.clone()))?;
        let zero = Tensor::integers(ElementType::I8, shape, vec![0; channels]);
        let zero = self.constant(base, "zero_point", &zero)?;
        let axis = if per_channel {
            vec![int("axis", target.axis as i64)]
        } else {
            Vec::new()
        };
        let dequantized = self.name(base, "dequantized");
        nodes.push(node(
            "DequantizeLinear",
            &[&quantized, &scale, &zero],
            &dequantized,
            axis,
        ));
        bytes[0] += 4 * numbers.len() as u64;
        bytes[1] += (numbers.len() + 4 * channels) as u64;
        Ok((dequantized, scales))
    }

    /// Quantizes the bias of a convolution or Gemm to 32 bits, with the scale of its sums, so that programs can add it to
    /// them. Returns its new name.
    fn bias(&mut self, index: usize, scale: f32, scales: &[f32], nodes: &mut Vec<NodeProto>) -> Result<Option<String>> {
        let own = &self.graph.node[index];
        let Some(name) = own.input.get(2).filter(|name| !name.is_empty()).cloned() else {
            return Ok(None);
        };
        let is_scaled = ["alpha", "beta"]
            .iter()
            .any(|scale| own.attribute.iter().any(|a| a.name == *scale && a.f != 1.0));
        let is_known = self.graph.initializer.iter().any(|t| t.name == name);
        if own.op_type == "MatMul" || is_scaled || !is_known {
            return Ok(None);
        }
        let bias = self.read(&name)?;
        let &[channels] = bias.dims() else { return Ok(None) };
        let numbers = bias.to_f64();
        let of = |i: usize| f64::from(scale) * f64::from(scales[if scales.len() == 1 { 0 } else { i }]);
        let integers: Vec<f64> = numbers
            .iter()
            .enumerate()
            .map(|(i, b)| (b / of(i)).round_ties_even())
            .collect();
        let fits = scales.len() == 1 || scales.len() == channels;
        if bias.element() != ElementType::F32 || !fits || integers.iter().any(|b| b.abs() > f64::from(i32::MAX)) {
            return Ok(None);
        }
        let shape: &[usize] = if scales.len() == 1 { &[] } else { &[channels] };
        let factors = (0..scales.len()).map(|i| of(i) as f32).collect();
        let integers = integers.into_iter().map(|b| b as i64).collect();
        let integers = Tensor::integers(ElementType::I32, &[channels], integers);
        let quantized = self.constant(&name, "quantized", &integers)?;
        let scale = self.constant(&name, "scale", &Tensor::f32(shape, factors))?;
        let axis = if shape.is_empty() {
            Vec::new()
        } else {
            vec![int("axis", 0)]
        };
        let dequantized = self.name(&name, "dequantized");
        nodes.push(node("DequantizeLinear", &[&quantized, &scale], &dequantized, axis));
        Ok(Some(dequantized))
    }

    /// Removes initializers that no node of any graph uses.
    fn drop_unused(&mut self) {
        let mut used: HashSet<String> = self.graph.output.iter().map(|info| info.name.clone()).collect();
        add_used(self.graph, &mut used);
        let unused = |name: &String| !used.contains(name);
        let removed: HashSet<String> = self
            .graph
            .initializer
            .iter()
            .map(|t| t.name.clone())
            .filter(unused)
            .collect();
        self.graph.initializer.retain(|t| !removed.contains(&t.name));
        // Before version 4 of the format, weights are also inputs.
        self.graph.input.retain(|info| !removed.contains(&info.name));
    }
}

fn add_used(graph: &GraphProto, used: &mut HashSet<String>) {
    for node in &graph.node {
        used.extend(node.input.iter().cloned());
        for body in node.attribute.iter().filter_map(|a| a.g.as_deref()) {
            used.extend(body.output.iter().map(|info| info.name.clone()));
            add_used(body, used);
        }
    }
}
