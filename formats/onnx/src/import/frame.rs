//! Scopes of values during an import, and the nodes that quantize values in a scope.

use std::collections::HashMap;

use super::{Call, Importer, Operand, find_function};
use crate::attributes::Attributes;
use crate::element::ElementType;
use crate::proto::{FunctionProto, GraphProto, NodeProto, OperatorSetIdProto};

/// Scope of the values of a graph or function. A branch can also use the values of the enclosing scope, a function
/// cannot.
pub(super) struct Frame<'m> {
    /// Values by name; `None` if the node of the value failed.
    pub(super) values: HashMap<&'m str, Option<Operand>>,
    pub(super) sees_parent: bool,
    /// Prefix of the names of leaves (constants and parameters) and nodes.
    pub(super) prefix: String,
    /// Attributes of the function call.
    pub(super) attributes: Attributes<'m>,
    pub(super) opsets: &'m [OperatorSetIdProto],
    /// All nodes of the graph or function.
    pub(super) nodes: &'m [NodeProto],
    /// Names of the results of the graph or function.
    pub(super) results: Vec<&'m str>,
    /// Nodes that quantize or dequantize, by the name of their result.
    pub(super) quantizers: HashMap<&'m str, &'m NodeProto>,
}

impl<'m> Frame<'m> {
    /// Returns the frame of a graph, without values.
    pub(super) fn of(graph: &'m GraphProto, opsets: &'m [OperatorSetIdProto]) -> Self {
        let results = graph.output.iter().map(|output| output.name.as_str());
        Frame::new(&graph.node, results.collect(), opsets)
    }

    /// Returns the frame of a function, without values.
    pub(super) fn of_function(function: &'m FunctionProto) -> Self {
        let results = function.output.iter().map(String::as_str);
        Frame::new(&function.node, results.collect(), &function.opset_import)
    }

    fn new(nodes: &'m [NodeProto], results: Vec<&'m str>, opsets: &'m [OperatorSetIdProto]) -> Self {
        Frame {
            values: HashMap::new(),
            sees_parent: false,
            prefix: String::new(),
            attributes: Attributes::default(),
            opsets,
            nodes,
            results,
            quantizers: HashMap::new(),
        }
    }
}

impl<'m> Importer<'m> {
    /// Notes that a node quantizes or dequantizes, so that users of its result can find its operands.
    pub(super) fn note_quantizer(&mut self, node: &'m NodeProto) {
        let quantizes = matches!(node.op_type.as_str(), "QuantizeLinear" | "DequantizeLinear");
        if quantizes
            && find_function(self.model, node).is_none()
            && let (Some(frame), Some(name)) = (self.frames.last_mut(), node.output.first())
        {
            frame.quantizers.insert(name, node);
        }
    }

    /// Returns the innermost visible frame that contains a value of this name.
    pub(super) fn frame_of(&self, name: &str) -> Option<&Frame<'m>> {
        for frame in self.frames.iter().rev() {
            if frame.values.contains_key(name) {
                return Some(frame);
            }
            if !frame.sees_parent {
                return None;
            }
        }
        None
    }
}

impl<'m> Call<'_, 'm> {
    /// Returns the node of type `operator`, which quantizes or dequantizes, that computes operand `i` of `node`; of this
    /// call's node if that is `None`.
    pub(crate) fn quantizer(&self, node: Option<&'m NodeProto>, i: usize, operator: &str) -> Option<&'m NodeProto> {
        let name = node.unwrap_or(self.node).input.get(i)?;
        let found = self.importer.frame_of(name)?.quantizers.get(name.as_str()).copied();
        found.filter(|node| node.op_type == operator)
    }

    /// Returns true if result 0 is used, and all its users convert it to floats.
    pub(crate) fn is_converted_to_floats(&self) -> bool {
        let (Some(frame), Some(name)) = (self.importer.frames.last(), self.node.output.first()) else {
            return false;
        };
        let mut users = frame.nodes.iter().filter(|node| node.input.contains(name)).peekable();
        let to_float = |node: &NodeProto| {
            let to = self.int_of(node, "to", 0).map(ElementType::from_number);
            node.op_type == "Cast" && matches!(to, Some(Ok(element)) if element.is_float())
        };
        !frame.results.contains(&name.as_str()) && users.peek().is_some() && users.all(to_float)
    }

    /// Returns operands of a node that has been imported.
    pub(crate) fn operands_of<const N: usize>(&self, node: &NodeProto, indices: [usize; N]) -> [Option<Operand>; N] {
        indices.map(|i| self.importer.lookup(node.input.get(i)?)?)
    }

    /// Returns an integer attribute of a node, or its default; `None` if it has another type.
    pub(crate) fn int_of(&self, node: &NodeProto, name: &str, default: i64) -> Option<i64> {
        let attributes = Attributes::of(node, self.importer.frames.last().map(|f| &f.attributes));
        attributes.int(name).ok().map(|int| int.unwrap_or(default))
    }
}
