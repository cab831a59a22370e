//! Interface between one node and its operator's importer: operands, attributes, and the graph under construction.

use std::borrow::Cow;
use std::iter::repeat;
use std::sync::Arc;

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, NodeKind, Value};

use super::operand::MAX_FOLDED;
use super::{Importer, Operand, node_place};
use crate::attributes::Attributes;
use crate::element::ElementType;
use crate::ops::OnnxOp;
use crate::proto::{GraphProto, NodeProto, TensorProto};
use crate::read::{StringList, read_strings, read_tensor};
use crate::report::DEPENDS_ON_DATA;
use crate::tensor::Tensor;

/// Message of a node that cannot be imported for a reason that another issue reports.
pub(super) const UNAVAILABLE: &str = "unavailable";

/// A node that is being imported.
pub struct Call<'c, 'm> {
    pub(super) importer: &'c mut Importer<'m>,
    pub(super) node: &'m NodeProto,
    pub(super) op: &'static OnnxOp,
    attributes: Attributes<'m>,
    pub(super) inputs: Vec<Option<Operand>>,
    /// Version of the operators of the node's domain.
    pub opset: i64,
}

impl<'c, 'm> Call<'c, 'm> {
    pub(super) fn new(
        importer: &'c mut Importer<'m>,
        node: &'m NodeProto,
        op: &'static OnnxOp,
        attributes: Attributes<'m>,
        inputs: Vec<Option<Operand>>,
        opset: i64,
    ) -> Self {
        Call {
            importer,
            node,
            op,
            attributes,
            inputs,
            opset,
        }
    }

    /// Returns the node's results: computed now (folded) if all operands are available at import, and otherwise built
    /// in the graph.
    pub(super) fn build(&mut self) -> Result<Vec<Operand>, String> {
        let of_strings = |operand: &&Operand| operand.element == ElementType::Text;
        let strings = self.inputs.iter().flatten().find(of_strings);
        if strings.is_some() && !self.op.takes_strings {
            return Err("expected numbers, found strings: strings are not supported by this operator".into());
        }
        let strings = strings.and_then(Operand::strings).cloned();
        let mut results = self.build_numbers()?;
        for result in &mut results {
            if result.element == ElementType::Text && result.strings().is_none() {
                let strings = strings.clone().ok_or("strings are not supported as its result")?;
                *result = result.clone().with_strings(strings);
            }
        }
        Ok(results)
    }

    /// Returns the node's results; the elements of strings are indices.
    fn build_numbers(&mut self) -> Result<Vec<Operand>, String> {
        if self.opset < self.op.since {
            let (since, opset) = (self.op.since, self.opset);
            return Err(format!(
                "expected at least version {since} of its domain, found {opset}"
            ));
        }
        let lists = self.inputs.iter().flatten().any(|input| input.values().is_some());
        if lists && !self.op.takes_sequences {
            return Err("expected a tensor, found a sequence, which is not supported".into());
        }
        if let Some(results) = self.fold()? {
            return Ok(results);
        }
        let errors = self.importer.graph.errors().len();
        let nodes = self.importer.graph.nodes().len();
        let built = (self.op.build)(self);
        if matches!(&built, Err(message) if message.contains(DEPENDS_ON_DATA))
            && let Some(results) = self.fold_determined(usize::MAX)?
        {
            let results = results.into_iter().enumerate();
            return Ok(results.map(|(i, t)| self.known_result(i, t)).collect());
        }
        let mut results = built?;
        if self.importer.graph.errors().len() == errors {
            self.check_integers(&mut results)?;
        }
        if let Some(error) = self.importer.graph.errors().get(errors) {
            return Err(error.to_string());
        }
        self.name_nodes(nodes);
        // No folding for large parameters, or if the graph reports a division error.
        if let Ok(Some(tensors)) = self.fold_determined(MAX_FOLDED) {
            let all = results
                .into_iter()
                .zip(tensors.into_iter().map(Some).chain(repeat(None)));
            results = all
                .map(|(result, tensor)| match tensor {
                    Some(tensor) => result.with_elements(tensor),
                    None => result,
                })
                .collect();
        }
        Ok(results)
    }

    /// Sets the name of this node on the graph nodes from index `first` on.
    fn name_nodes(&mut self, first: usize) {
        let name = self.importer.full_name(node_place(self.node));
        let graph = &mut self.importer.graph;
        for index in first..graph.nodes().len() {
            let id = NodeId::new(index as u32);
            let node = &graph.nodes()[id.index()];
            if node.name.is_none() && node.is_op() {
                graph.named(id, &name);
            }
        }
    }

    /// Computes the results now if all operands depend only on constants and parameters, and have at most `most`
    /// elements each.
    fn fold_determined(&self, most: usize) -> Result<Option<Vec<Tensor>>, String> {
        let Some(fold) = self.op.fold else {
            return Ok(None);
        };
        let all = self.inputs.iter().map(|input| match input {
            None => Some(None),
            Some(operand) => operand.determined().filter(|t| t.len() <= most).map(Some),
        });
        match all.collect::<Option<Vec<_>>>() {
            Some(tensors) => fold(self, &tensors),
            None => Ok(None),
        }
    }

    fn fold(&self) -> Result<Option<Vec<Operand>>, String> {
        let Some(fold) = self.op.fold else {
            return Ok(None);
        };
        let all: Option<Vec<Option<&Tensor>>> = self
            .inputs
            .iter()
            .map(|input| match input {
                None => Some(None),
                Some(operand) => operand.foldable().map(Some),
            })
            .collect();
        let Some(tensors) = all else { return Ok(None) };
        let Some(results) = fold(self, &tensors)? else {
            return Ok(None);
        };
        Ok(Some(
            results
                .into_iter()
                .enumerate()
                .map(|(i, t)| self.known_result(i, t))
                .collect(),
        ))
    }

    /// Returns the graph under construction.
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.importer.graph
    }

    /// Returns the domain and name of the operator.
    pub(crate) fn operator(&self) -> (&'static str, &'static str) {
        (self.op.domain, self.op.name)
    }

    /// Returns the number of operands, including omitted ones in between.
    pub fn arity(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of results of the node.
    pub fn result_count(&self) -> usize {
        self.node.output.len()
    }

    /// Returns true if result `i` is used.
    pub fn wants(&self, i: usize) -> bool {
        self.node.output.get(i).is_some_and(|name| !name.is_empty())
    }

    /// Returns true if operand `i` is present.
    pub fn has_input(&self, i: usize) -> bool {
        matches!(self.inputs.get(i), Some(Some(_)))
    }

    pub(crate) fn operand(&self, i: usize) -> Result<&Operand, String> {
        match self.inputs.get(i) {
            Some(Some(operand)) => Ok(operand),
            _ => Err(format!("operand {i} is missing")),
        }
    }

    /// Returns operand `i` as a value of the graph.
    ///
    /// # Errors
    /// The operand is missing.
    pub fn value(&mut self, i: usize) -> Result<Value, String> {
        let operand = self.operand(i)?.clone();
        self.importer.value(&operand)
    }

    /// Returns operand `i` as a value of the graph, or `None` if it is omitted.
    pub fn optional(&mut self, i: usize) -> Result<Option<Value>, String> {
        if self.has_input(i) {
            self.value(i).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(crate) fn value_of(&mut self, operand: &Operand) -> Result<Value, String> {
        self.importer.value(operand)
    }

    /// Returns the dimensions of operand `i`.
    ///
    /// # Errors
    /// The operand is missing.
    pub fn dims(&self, i: usize) -> Result<Vec<usize>, String> {
        Ok(self.operand(i)?.dims.clone())
    }

    /// Returns the element type of operand `i`.
    ///
    /// # Errors
    /// The operand is missing.
    pub fn element(&self, i: usize) -> Result<ElementType, String> {
        Ok(self.operand(i)?.element)
    }

    /// Returns operand `i`, if it is known at import.
    pub fn tensor(&self, i: usize) -> Option<&Tensor> {
        self.inputs.get(i)?.as_ref()?.tensor()
    }

    /// Returns the elements of operand `i`, if they depend only on constants and parameters.
    pub(crate) fn determined(&self, i: usize) -> Option<&Tensor> {
        self.inputs.get(i)?.as_ref()?.determined()
    }

    /// Returns the integers of operand `i`, which must be known at import; `None` if it is omitted.
    pub(crate) fn known_ints(&self, i: usize, what: &str) -> Result<Option<Vec<i64>>, String> {
        if !self.has_input(i) {
            return Ok(None);
        }
        match self.determined(i) {
            Some(tensor) => Ok(Some(tensor.to_i64())),
            None => Err(self.not_known(i, what)),
        }
    }

    /// Returns the numbers of operand `i`, which must be known at import; `None` if it is omitted.
    pub(crate) fn known_floats(&self, i: usize, what: &str) -> Result<Option<Vec<f64>>, String> {
        if !self.has_input(i) {
            return Ok(None);
        }
        match self.determined(i) {
            Some(tensor) => Ok(Some(tensor.to_f64())),
            None => Err(self.not_known(i, what)),
        }
    }

    /// Returns a single number, which must be known at import.
    pub(crate) fn known_scalar(&self, i: usize, what: &str) -> Result<Option<f64>, String> {
        match self.known_floats(i, what)? {
            None => Ok(None),
            Some(list) => match list.as_slice() {
                [one] => Ok(Some(*one)),
                list => Err(format!("{what}: expected one element, found {}", list.len())),
            },
        }
    }

    pub(crate) fn not_known(&self, i: usize, what: &str) -> String {
        let name = self.node.input.get(i).map_or("", String::as_str);
        format!("{what} (operand {i}, `{name}`) {DEPENDS_ON_DATA}, but shapes must be known at import")
    }

    /// Returns integers from an attribute or, in later versions, from an operand.
    pub(crate) fn attribute_or_operand(&self, name: &str, i: usize) -> Result<Option<Vec<i64>>, String> {
        match self.attributes.ints(name)? {
            Some(list) => Ok(Some(list.to_vec())),
            None => self.known_ints(i, name),
        }
    }

    pub(crate) fn attributes(&self) -> &Attributes<'m> {
        &self.attributes
    }

    /// Returns an integer attribute, or its default.
    ///
    /// # Errors
    /// The attribute has another type.
    pub fn int(&self, name: &str, default: i64) -> Result<i64, String> {
        Ok(self.attributes.int(name)?.unwrap_or(default))
    }

    /// Returns a float attribute, or its default.
    ///
    /// # Errors
    /// The attribute has another type.
    pub fn float(&self, name: &str, default: f32) -> Result<f32, String> {
        Ok(self.attributes.float(name)?.unwrap_or(default))
    }

    /// Returns a list of integers, if the attribute is present.
    ///
    /// # Errors
    /// The attribute has another type.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, String> {
        Ok(self.attributes.ints(name)?.map(<[i64]>::to_vec))
    }

    /// Returns a string attribute, or its default.
    ///
    /// # Errors
    /// The attribute has another type.
    pub fn string<'a>(&self, name: &str, default: &'a str) -> Result<Cow<'a, str>, String> {
        Ok(match self.attributes.string(name)? {
            Some(s) => Cow::Owned(s.to_owned()),
            None => Cow::Borrowed(default),
        })
    }

    pub(crate) fn subgraph(&self, name: &str) -> Result<&'m GraphProto, String> {
        self.attributes
            .graph(name)?
            .ok_or_else(|| format!("attribute `{name}` is missing"))
    }

    /// Returns the strings that the elements of operand `i` are indices of; `None` if they are numbers.
    pub(crate) fn strings(&self, i: usize) -> Option<&Arc<Vec<String>>> {
        self.inputs.get(i)?.as_ref()?.strings()
    }

    /// Returns a result of strings, from their indices in a list.
    pub(crate) fn string_result(&self, places: impl Into<Value>, strings: Vec<String>) -> Operand {
        self.result(places, ElementType::Text).with_strings(Arc::new(strings))
    }

    /// Stores the names of the columns of result 0, if it is a result of the model.
    pub(crate) fn label_columns(&mut self, labels: Vec<String>) {
        let name = self.node.output.first().map_or("", String::as_str);
        let name = self.importer.full_name(name);
        self.importer.columns.insert(name, labels);
    }

    /// Returns result 0 with these strings, whose number must match the dimensions.
    pub(crate) fn known_strings(&self, dims: &[usize], texts: &[&str]) -> Operand {
        let mut list = StringList::default();
        let places = texts.iter().map(|text| list.index(text)).collect();
        let places = Tensor::integers(ElementType::Text, dims, places);
        self.known_result(0, places).with_strings(Arc::new(list.strings))
    }

    /// Returns result 0 from a tensor of strings in the file.
    pub(crate) fn read_strings(&self, proto: &TensorProto) -> Result<Vec<Operand>, String> {
        let (places, strings) = read_strings(proto).map_err(|e| e.message().to_owned())?;
        Ok(vec![self.known_result(0, places).with_strings(Arc::new(strings))])
    }

    pub(crate) fn read(&self, proto: &TensorProto) -> Result<Tensor, String> {
        read_tensor(proto, self.importer.model.folder()).map_err(|e| e.message().to_owned())
    }

    /// Imports the graph of a branch or loop body, with these values for its inputs.
    pub(crate) fn body(
        &mut self,
        graph: &'m GraphProto,
        prefix: &str,
        inputs: Vec<Operand>,
    ) -> Result<Vec<Operand>, String> {
        let prefix = format!("{}.{prefix}", node_place(self.node));
        // A missing value inside the body is reported as a separate issue.
        self.importer
            .body(graph, &prefix, inputs)?
            .ok_or_else(|| UNAVAILABLE.into())
    }

    /// Imports a branch whose results are always computed, and used only if a scalar `condition` is true. Its integer
    /// checks apply only in this case.
    pub(crate) fn branch(
        &mut self,
        graph: &'m GraphProto,
        prefix: &str,
        condition: Value,
    ) -> Result<Vec<Operand>, String> {
        self.importer.conditions.push(condition);
        let results = self.body(graph, prefix, Vec::new());
        self.importer.conditions.pop();
        results
    }

    /// Converts an axis of the file, which may be negative, to a non-negative one.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, String> {
        normalize_axis(axis, rank)
    }

    /// Returns a result in the graph.
    pub fn result(&self, value: impl Into<Value>, element: ElementType) -> Operand {
        let value = value.into();
        Operand::node(value, element, self.importer.graph.shape(value))
    }

    /// Returns a list of one result in the graph.
    pub(crate) fn one(&self, value: impl Into<Value>, element: ElementType) -> Result<Vec<Operand>, String> {
        Ok(vec![self.result(value, element)])
    }

    /// Returns a result that is known at import.
    pub(crate) fn known_result(&self, i: usize, tensor: Tensor) -> Operand {
        let name = self.node.output.get(i).map_or("", String::as_str);
        let parameter = tensor.element().is_float() && !tensor.dims().is_empty() && tensor.len() > 1;
        Operand::known(tensor, self.importer.full_name(name), parameter)
    }

    /// Returns a parameter that is computed from others at import, named after the node.
    pub(crate) fn derived(&self, what: &str, tensor: Tensor) -> Operand {
        let name = format!("{}.{what}", node_place(self.node));
        Operand::known(tensor, self.importer.full_name(&name), true)
    }

    /// Excludes `value` from training, if it is a parameter.
    pub(crate) fn freeze(&mut self, value: Value) {
        let graph = &mut self.importer.graph;
        if let NodeKind::Parameter { .. } = graph.nodes()[value.node.index()].kind {
            graph.trainable(value.node, false);
        }
    }

    /// Adds a scalar constant of an element type.
    pub(crate) fn scalar(&mut self, element: ElementType, value: f64) -> Value {
        self.importer.graph.scalar_of(element.dtype(), value).into()
    }

    /// Casts `value` to `f32` if it has another type.
    pub(crate) fn as_f32(&mut self, value: Value) -> Value {
        match self.importer.graph.dtype(value) {
            DType::F32 => value,
            _ => self.importer.graph.cast(value, DType::F32).into(),
        }
    }

    /// Casts `value` to the type that a graph has for `element`.
    pub(crate) fn as_element(&mut self, value: Value, element: ElementType) -> Value {
        if self.importer.graph.dtype(value) == element.dtype() {
            value
        } else {
            self.importer.graph.cast(value, element.dtype()).into()
        }
    }

    /// Wraps an integer result to its 8 or 16 bits, as arithmetic of its type does.
    pub(crate) fn wrap(&mut self, value: Value, element: ElementType) -> Value {
        use ElementType::*;
        let bits = element.bits();
        match element {
            U2 | U4 | U8 | U16 => {
                let mask = self.scalar(element, ((1u64 << bits) - 1) as f64);
                self.importer.graph.bit_and(value, mask).into()
            }
            I2 | I4 | I8 | I16 => {
                // ((x + half) mod 2^bits) - half
                let half = (1u64 << (bits - 1)) as f64;
                let graph = &mut self.importer.graph;
                let unsigned = graph.cast(value, DType::U32);
                let up = graph.scalar_of(DType::U32, half);
                let mask = graph.scalar_of(DType::U32, half * 2.0 - 1.0);
                let down = graph.scalar_of(DType::I32, half);
                let moved = graph.add(unsigned, up);
                let kept = graph.bit_and(moved, mask);
                let signed = graph.cast(kept, DType::I32);
                graph.sub(signed, down).into()
            }
            _ => value,
        }
    }

    /// Returns a short description of a node's operands, for messages.
    pub(crate) fn types(&self) -> String {
        let types = self.inputs.iter().map(|input| match input {
            Some(operand) => format!("{}{:?}", operand.element, operand.dims),
            None => "none".into(),
        });
        types.collect::<Vec<_>>().join(", ")
    }
}

/// Converts an axis of a file, which may be negative, to a non-negative one.
pub(crate) fn normalize_axis(axis: i64, rank: usize) -> Result<usize, String> {
    let at = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(at) {
        Ok(at) if at < rank => Ok(at),
        _ => Err(format!("axis {axis} is out of range for {rank} dimensions")),
    }
}
