//! The oracle, to which tests compare backends: it evaluates a graph in `f64` with each operator's own definition.
//!
//! It is slow and simple, and shares no code with any backend.

use std::collections::HashMap;

use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, NodeKind, Value};
use crate::ops::{Call, Expansion, OpRef};
use crate::shape::TensorType;

/// A tensor in row-major `f64`, for any dtype (`u32` and `i32` are exact).
#[derive(Clone, Debug, PartialEq)]
pub struct RefTensor {
    /// Dtype and shape.
    pub ty: TensorType,
    /// Elements.
    pub data: Vec<f64>,
}

impl RefTensor {
    /// Returns the dimensions.
    pub fn shape(&self) -> &[usize] {
        self.ty.shape.dims()
    }
}

/// Context of a reference loop: the call of an operator, with its operands' values.
pub struct RefCall<'a> {
    /// Attributes of the call.
    pub attrs: &'a Attrs,
    /// Values of the operands.
    pub inputs: &'a [&'a RefTensor],
    /// Types of the results.
    pub outputs: &'a [TensorType],
}

impl RefCall<'_> {
    /// Returns an integer attribute.
    ///
    /// # Panics
    /// If the attribute is absent, which the operator's own `infer` rules out; this holds for all
    /// getters here.
    pub fn int(&self, name: &str) -> i64 {
        checked(self.attrs.int(name))
    }

    /// Returns a list of integers; panics like [`RefCall::int`].
    pub fn ints(&self, name: &str) -> &[i64] {
        checked(self.attrs.ints(name))
    }

    /// Returns a fixed number of sizes; panics like [`RefCall::int`].
    pub fn sizes<const N: usize>(&self, name: &str) -> [usize; N] {
        checked(self.attrs.sizes(name))
    }

    /// Returns a real number; panics like [`RefCall::int`].
    pub fn float(&self, name: &str) -> f64 {
        checked(self.attrs.float(name))
    }

    /// Returns a flag; panics like [`RefCall::int`].
    pub fn bool(&self, name: &str) -> bool {
        checked(self.attrs.bool(name))
    }
}

fn checked<T>(attr: Result<T, String>) -> T {
    match attr {
        Ok(v) => v,
        // Verified before evaluation: `infer` reads the same attributes.
        Err(message) => panic!("{message}"),
    }
}

/// The values of all nodes of a graph, and of its persistent leaves after the step.
#[derive(Clone, Debug, Default)]
pub struct Evaluation {
    values: HashMap<Value, RefTensor>,
    /// New values of the persistent leaves that were written, by name.
    pub written: HashMap<String, Vec<f64>>,
}

impl Evaluation {
    /// Returns a value of the graph; `None` if it does not exist.
    pub fn get(&self, value: impl Into<Value>) -> Option<&RefTensor> {
        self.values.get(&value.into())
    }
}

/// Evaluates every node. `feeds` contains inputs, parameters, states and scalars by name. Absent
/// parameters and states have their fill value (zero for parameters); packed parameters are fed by
/// their sources.
///
/// # Errors
/// All errors of [`Graph::verify`]; a missing or wrongly sized input.
pub fn evaluate(graph: &Graph, feeds: &HashMap<String, Vec<f64>>) -> Result<Evaluation> {
    graph.verify()?;
    let mut evaluation = Evaluation::default();
    for id in graph.topological_order()? {
        let results = evaluate_node(graph, id, feeds, &evaluation)?;
        for (port, tensor) in results.into_iter().enumerate() {
            let port = port as u32;
            evaluation.values.insert(Value { node: id, port }, tensor);
        }
    }
    for effect in graph.effects() {
        let name = graph.nodes()[effect.target.index()].name.as_deref();
        let value = evaluation.values.get(&effect.value);
        if let (Some(name), Some(value)) = (name, value) {
            evaluation.written.insert(name.to_owned(), value.data.clone());
        }
    }
    Ok(evaluation)
}

fn evaluate_node(
    graph: &Graph,
    id: NodeId,
    feeds: &HashMap<String, Vec<f64>>,
    done: &Evaluation,
) -> Result<Vec<RefTensor>> {
    let node = &graph.nodes()[id.index()];
    let fill = match &node.kind {
        NodeKind::Op { op, attrs } => {
            let inputs: Vec<&RefTensor> = node.inputs.iter().map(|v| &done.values[v]).collect();
            return evaluate_call(*op, attrs, &inputs, &node.outputs);
        }
        NodeKind::Constant(data) => {
            return Ok(vec![RefTensor {
                ty: node.outputs[0].clone(),
                data: data.to_f64(),
            }]);
        }
        NodeKind::Parameter { .. } => Some(0.0),
        NodeKind::State { fill } => Some(f64::from(*fill)),
        NodeKind::Input | NodeKind::Scalar | NodeKind::Poison => None,
    };
    let name = node.name.as_deref().unwrap_or_default();
    let ty = node.outputs[0].clone();
    let data = match (feeds.get(name), fill) {
        (Some(data), _) => data.clone(),
        (None, Some(fill)) if node.packing().is_some() => packed_values(graph, id, feeds, fill)?,
        (None, Some(fill)) => vec![fill; ty.numel()],
        (None, None) => {
            return Err(Error::InputNotSet {
                names: vec![name.to_owned()],
            });
        }
    };
    if data.len() != ty.numel() {
        return Err(Error::graph(
            format!("{} got {} elements", graph.label(id), data.len()),
            "pass the number of elements of the shape",
        ));
    }
    Ok(vec![RefTensor { ty, data }])
}

/// Returns the contents of a packed parameter, from its sources.
fn packed_values(graph: &Graph, id: NodeId, feeds: &HashMap<String, Vec<f64>>, fill: f64) -> Result<Vec<f64>> {
    let node = &graph.nodes()[id.index()];
    let (Some(packing), Some(ty)) = (node.packing(), node.outputs.first()) else {
        return Ok(Vec::new());
    };
    let outer: usize = ty.shape[..packing.axis].iter().product();
    let inner: usize = ty.shape[packing.axis + 1..].iter().product();
    let mut data = vec![fill; ty.numel()];
    let (stride, mut start) = (ty.shape[packing.axis] * inner, 0);
    for source in &packing.sources {
        let run = source.size * inner;
        if let Some(values) = feeds.get(&*source.name) {
            if values.len() != outer * run {
                return Err(Error::graph(
                    format!("parameter '{}' got {} elements", source.name, values.len()),
                    "pass the number of elements of the shape",
                ));
            }
            for row in 0..outer {
                let to = row * stride + start;
                data[to..to + run].copy_from_slice(&values[row * run..(row + 1) * run]);
            }
        }
        start += run;
    }
    Ok(data)
}

/// Evaluates one call by the operator's loop, or by its decomposition if it has no loop.
///
/// # Errors
/// A decomposition that cannot be built.
pub fn evaluate_call(
    op: OpRef,
    attrs: &Attrs,
    inputs: &[&RefTensor],
    outputs: &[TensorType],
) -> Result<Vec<RefTensor>> {
    if let Some(reference) = op.semantics().reference() {
        let call = RefCall { attrs, inputs, outputs };
        let results = reference(&call);
        let typed = outputs.iter().cloned().zip(results);
        return Ok(typed.map(|(ty, data)| RefTensor { ty, data }).collect());
    }
    evaluate_decomposed(op, attrs, inputs, outputs)
}

/// Evaluates one call by the operator's decomposition.
///
/// # Errors
/// There is no decomposition, or it cannot be built.
pub fn evaluate_decomposed(
    op: OpRef,
    attrs: &Attrs,
    inputs: &[&RefTensor],
    outputs: &[TensorType],
) -> Result<Vec<RefTensor>> {
    let types: Vec<TensorType> = inputs.iter().map(|t| t.ty.clone()).collect();
    let (graph, results) = expand_call(op, attrs, &types, outputs)?;
    let feeds = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| (operand_name(i), t.data.clone()))
        .collect();
    let evaluation = evaluate(&graph, &feeds)?;
    Ok(results.iter().filter_map(|&v| evaluation.get(v).cloned()).collect())
}

/// Returns the name of the input for operand `i` in the graph of [`expand_call`].
pub fn operand_name(i: usize) -> String {
    format!("operand{i}")
}

/// Cost of evaluating a graph with the oracle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Number of elements of all values, including intermediate values of decompositions; each is
    /// an `f64`.
    pub elements: u64,
    /// Number of operations, counting each read or written element as one.
    pub work: u64,
}

impl Extent {
    fn add(&mut self, elements: u64, work: u64) {
        self.elements = self.elements.saturating_add(elements);
        self.work = self.work.saturating_add(work);
    }

    /// Returns `true` if neither number exceeds that of `most`.
    fn is_within(&self, most: &Extent) -> bool {
        self.elements <= most.elements && self.work <= most.work
    }
}

/// Returns the cost of [`evaluate`] for a graph, without evaluating it. A decomposition is not
/// built if its own values or operations already exceed the limit.
///
/// # Errors
/// The call at which the cost exceeds `most`; a decomposition that cannot be built.
pub fn extent(graph: &Graph, most: Extent) -> Result<Extent> {
    let mut sum = Extent::default();
    add_extent(graph, &most, &mut sum)?;
    Ok(sum)
}

fn add_extent(graph: &Graph, most: &Extent, sum: &mut Extent) -> Result<()> {
    let elements = |types: &[TensorType]| types.iter().fold(0u64, |n, ty| n.saturating_add(ty.numel() as u64));
    let mut composites = Vec::new();
    // Count all values of a graph before any decomposition.
    for id in graph.node_ids() {
        let node = &graph.nodes()[id.index()];
        let own = elements(&node.outputs);
        sum.add(own, own);
        let mut all = *sum;
        if let NodeKind::Op { op, attrs } = &node.kind {
            let inputs: Vec<TensorType> = node.inputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect();
            let call = Call {
                attrs,
                inputs: &inputs,
                outputs: &node.outputs,
            };
            all.add(0, elements(&inputs).saturating_add(op.cost(&call).flops));
            match op.semantics().reference() {
                Some(_) => *sum = all,
                // The arithmetic of a composite is that of its parts, which are counted later.
                None => composites.push((*op, attrs, inputs, &node.outputs)),
            }
        }
        if !all.is_within(most) {
            let (elements, work) = (all.elements, all.work);
            return Err(Error::graph(
                format!(
                    "{} needs {elements} elements and {work} operations to be evaluated; {} and {} are allowed",
                    graph.label(id),
                    most.elements,
                    most.work
                ),
                "use smaller shapes",
            ));
        }
    }
    for (op, attrs, inputs, outputs) in composites {
        let (inner, _) = expand_call(op, attrs, &inputs, outputs)?;
        add_extent(&inner, most, sum)?;
    }
    Ok(())
}

/// Returns a graph with only inputs for the operands of a call, named by [`operand_name`], and
/// these inputs.
pub fn call_operands(types: &[TensorType]) -> (Graph, Vec<Value>) {
    let mut graph = Graph::new();
    let operands = types
        .iter()
        .enumerate()
        .map(|(i, ty)| graph.input_typed(&operand_name(i), &ty.shape, ty.dtype).into())
        .collect();
    (graph, operands)
}

/// Returns the decomposition of a call as a separate graph, whose inputs are named by
/// [`operand_name`].
///
/// # Errors
/// There is no decomposition, it cannot be built, or it gives other types than `outputs`.
pub fn expand_call(
    op: OpRef,
    attrs: &Attrs,
    inputs: &[TensorType],
    outputs: &[TensorType],
) -> Result<(Graph, Vec<Value>)> {
    let (mut graph, operands) = call_operands(inputs);
    let values = expand_into(&mut graph, op, attrs, &operands, outputs)?;
    graph.set_outputs(values.clone());
    graph.verify()?;
    Ok((graph, values))
}

/// Builds the decomposition of a call on `graph` and checks the types of the results.
///
/// # Errors
/// There is no decomposition, it cannot be built, or it gives other types than `outputs`.
pub fn expand_into(
    graph: &mut Graph,
    op: OpRef,
    attrs: &Attrs,
    inputs: &[Value],
    outputs: &[TensorType],
) -> Result<Vec<Value>> {
    let failed = |message: String| Error::graph(format!("decomposition of {}: {message}", op.name()), "");
    let rule = op
        .semantics()
        .decomposition()
        .ok_or_else(|| failed("it is a primitive".into()))?;
    let values = rule(&mut Expansion {
        graph,
        attrs,
        inputs,
        outputs,
    })
    .map_err(failed)?;
    let types: Vec<Option<&TensorType>> = values.iter().map(|&v| graph.ty(v)).collect();
    if types.iter().map(|t| t.cloned()).ne(outputs.iter().cloned().map(Some)) {
        if let Some(error) = graph.errors().first() {
            return Err(error.clone());
        }
        return Err(failed(format!("it yields {types:?} instead of {outputs:?}")));
    }
    Ok(values)
}

/// Calls `visit` with every multi-index of `shape`, in row-major order.
pub fn for_each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        visit(&index);
        let mut axis = shape.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// Returns the row-major offset of a multi-index in elements.
pub fn offset(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |o, (&d, &i)| o * d + i)
}

/// Returns the offset of an element of a tensor that is broadcast to the shape of the index.
pub fn broadcast_offset(shape: &[usize], index: &[usize]) -> usize {
    let skip = index.len() - shape.len();
    shape
        .iter()
        .zip(&index[skip..])
        .fold(0, |o, (&d, &i)| o * d + if d == 1 { 0 } else { i })
}

/// Wraps an integer to the range of the dtype, like integer arithmetic on devices. Floats are not
/// changed: the oracle does not round.
pub fn wrap(dtype: DType, value: i128) -> f64 {
    match dtype {
        DType::U32 => f64::from(value as u32),
        DType::I32 => f64::from(value as i32),
        _ => value as f64,
    }
}
