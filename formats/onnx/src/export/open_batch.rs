//! Export of a model whose batch size is chosen when it runs.
//!
//! A graph has fixed shapes. Therefore the model is written for two batch sizes, and the files are compared: numbers that
//! differ depend on the batch size.

use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use meganeura_core::graph::Graph;

use super::{ExportOptions, to_proto, write};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::proto::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, dimension_proto, type_proto};

/// Batch sizes whose files are compared: primes that are no usual sizes of a model.
const SIZES: [i64; 2] = [1009, 1013];
/// Name of the batch dimension in the file.
const BATCH: &str = "batch";

/// Writes the inference form of a model as an ONNX file, like [`export`](super::export), with an open batch size: the
/// dimension `batch` of inputs and outputs. `graph` builds the graph for a batch size.
///
/// # Errors
/// The errors of [`export`](super::export), and [`Error::Input`] for a node that only works for one batch size, such as an
/// operator that repeats its operand `batch` times.
pub fn export_open_batch(
    graph: &mut dyn FnMut(usize) -> Result<Graph>,
    parameter: &mut dyn FnMut(&str) -> Option<Vec<f32>>,
    options: &ExportOptions,
    path: impl AsRef<Path>,
) -> Result<()> {
    let [first, second] = SIZES;
    let mut model = to_proto(&graph(first as usize)?, &mut super::floats(parameter), options)?;
    // Values of parameters do not matter here.
    let other = graph(second as usize)?;
    let sizes: HashMap<String, usize> = other
        .nodes()
        .iter()
        .filter_map(|node| Some((node.name.as_deref()?.to_owned(), node.outputs.first()?.numel())))
        .collect();
    let mut zeros = |name: &str| sizes.get(name).map(|&size| vec![0.0; size]);
    let other = to_proto(&other, &mut super::floats(&mut zeros), options)?;
    open(&mut model, &other)?;
    write(model, options, path.as_ref())
}

/// Replaces the numbers of the model that depend on the batch size, by comparison with the other model.
fn open(model: &mut ModelProto, other: &ModelProto) -> Result<()> {
    let (Some(graph), Some(other)) = (&mut model.graph, &other.graph) else {
        return Ok(());
    };
    let infos = |graph: &GraphProto| graph.input.len() + graph.output.len();
    if graph.node.len() != other.node.len() || infos(graph) != infos(other) {
        return Err(Error::Input("the graph has other nodes for other batch sizes".into()));
    }
    let own = graph.input.iter_mut().chain(&mut graph.output);
    own.zip(other.input.iter().chain(&other.output))
        .for_each(|(info, other)| open_info(info, other));
    let constants = |graph: &GraphProto| -> HashMap<String, TensorProto> {
        let small = graph
            .initializer
            .iter()
            .filter(|tensor| tensor.data_type == ElementType::I64.number());
        small.map(|tensor| (tensor.name.clone(), tensor.clone())).collect()
    };
    let (own_constants, other_constants) = (constants(graph), constants(other));
    let mut opened: HashMap<[String; 2], String> = HashMap::new();
    for (node, other) in graph.node.iter_mut().zip(&other.node) {
        if node.op_type != other.op_type || node.attribute != other.attribute || node.input.len() != other.input.len() {
            return Err(depends(node, "its attributes"));
        }
        for place in 0..node.input.len() {
            let names = [node.input[place].clone(), other.input[place].clone()];
            let (Some(own), Some(changed)) = (own_constants.get(&names[0]), other_constants.get(&names[1])) else {
                continue;
            };
            if own.raw_data == changed.raw_data && own.dims == changed.dims {
                continue;
            }
            if let Some(name) = opened.get(&names) {
                node.input[place].clone_from(name);
                continue;
            }
            if node.op_type != "Reshape" || place != 1 {
                return Err(depends(node, "a constant"));
            }
            let list = opened_list(&integers(own), &integers(changed));
            let list = list.ok_or_else(|| depends(node, "its shape, in several dimensions"))?;
            let name = format!("{}_{BATCH}{}", names[0], opened.len());
            graph.initializer.push(TensorProto {
                name: name.clone(),
                raw_data: Bytes::from(list.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()),
                ..own.clone()
            });
            node.input[place].clone_from(&name);
            opened.insert(names, name);
        }
    }
    let read: std::collections::HashSet<&String> = graph.node.iter().flat_map(|node| &node.input).collect();
    graph.initializer.retain(|tensor| read.contains(&tensor.name));
    Ok(())
}

/// Returns the error for a node that depends on the batch size.
fn depends(node: &NodeProto, what: &str) -> Error {
    Error::Input(format!(
        "node `{}` ({}): {what} depends on the batch size; export the model for one batch size",
        node.name, node.op_type
    ))
}

/// Gives a name to dimensions that are the batch size. Dimensions that are a multiple of it become unknown.
fn open_info(info: &mut ValueInfoProto, other: &ValueInfoProto) {
    let other: Vec<i64> = dims(other);
    let Some(type_proto::Value::Tensor(tensor)) = info.r#type.as_mut().and_then(|ty| ty.value.as_mut()) else {
        return;
    };
    let own = tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim);
    for (dim, other) in own.zip(other) {
        let Some(dimension_proto::Value::DimValue(size)) = dim.value else {
            continue;
        };
        if size != other {
            dim.value = (size == SIZES[0]).then(|| dimension_proto::Value::DimParam(BATCH.into()));
        }
    }
}

/// Returns the sizes of the dimensions.
fn dims(info: &ValueInfoProto) -> Vec<i64> {
    let Some(type_proto::Value::Tensor(tensor)) = info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) else {
        return Vec::new();
    };
    let all = tensor.shape.iter().flat_map(|shape| &shape.dim);
    all.map(|dim| match dim.value {
        Some(dimension_proto::Value::DimValue(size)) => size,
        _ => 0,
    })
    .collect()
}

/// Returns the integers of a constant.
fn integers(tensor: &TensorProto) -> Vec<i64> {
    let (words, _) = tensor.raw_data.as_chunks::<8>();
    words.iter().map(|word| i64::from_le_bytes(*word)).collect()
}

/// Returns a shape with -1 for the dimension that depends on the batch size; `None` if there are several, or one does not
/// grow with it.
fn opened_list(own: &[i64], other: &[i64]) -> Option<Vec<i64>> {
    if own.len() != other.len() || own.contains(&-1) {
        return None;
    }
    let mut list = own.to_vec();
    let mut differs = list
        .iter_mut()
        .zip(own.iter().zip(other))
        .filter(|(_, (own, other))| own != other);
    let (size, (own, other)) = differs.next()?;
    if differs.next().is_some() || own % SIZES[0] != 0 || own / SIZES[0] * SIZES[1] != *other {
        return None;
    }
    *size = -1;
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dimension_of_a_shape_may_depend_on_the_batch() {
        assert_eq!(opened_list(&[1009, 3], &[1013, 3]), Some(vec![-1, 3]));
        assert_eq!(opened_list(&[4, 2 * 1009], &[4, 2 * 1013]), Some(vec![4, -1]));
        for (own, other) in [
            (&[1009, 1009][..], &[1013, 1013][..]),
            (&[1009, -1], &[1013, -1]),
            (&[1010, 2], &[1014, 2]),
            (&[1009], &[1013, 1]),
        ] {
            assert_eq!(opened_list(own, other), None, "{own:?}");
        }
    }
}
