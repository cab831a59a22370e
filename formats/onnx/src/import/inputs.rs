//! Declaration of a model's inputs in the graph, and inputs that become constants.

use std::collections::BTreeSet;

use super::{Importer, Operand, TensorInfo, node_place, operator_name};
use crate::element::ElementType;
use crate::error::IssueKind;
use crate::port::{Dim, Port};
use crate::proto::{GraphProto, NodeProto};
use crate::tensor::Tensor;

impl<'m> Importer<'m> {
    /// Creates the model's inputs, if all their dimensions have sizes.
    pub(super) fn declare_inputs(&mut self, graph: &'m GraphProto) -> Vec<TensorInfo> {
        let mut inputs = Vec::new();
        for port in self.model.inputs() {
            let name = port.name.as_str();
            let Some(proto) = graph.input.iter().find(|i| i.name == name) else {
                continue;
            };
            let operand = match self.options.constants.get(name) {
                _ if port.element == ElementType::Text => {
                    self.string_input(name, graph);
                    None
                }
                Some(tensor) => self.constant_input(tensor, port, false),
                None => self.input(port, &mut inputs),
            };
            if self.define(&proto.name, operand).is_err() {
                self.issue(IssueKind::Broken, name, "", "two inputs have this name".into());
            }
        }
        let all = self.model.inputs().iter().chain(self.model.defaults());
        let names: BTreeSet<&str> = all.map(|p| p.name.as_str()).collect();
        for name in self
            .options
            .constants
            .keys()
            .filter(|name| !names.contains(name.as_str()))
        {
            self.issue(
                IssueKind::Broken,
                name,
                "",
                "the model has no input of this name".into(),
            );
        }
        inputs
    }

    /// Returns the value that replaces an initializer of the model: `None` if there is none, `Some(None)` if it has another type.
    pub(super) fn replaced_default(&mut self, name: &str) -> Option<Option<Operand>> {
        let (model, options) = (self.model, self.options);
        if self.frames.len() != 1 {
            return None;
        }
        let tensor = options.constants.get(name)?;
        let port = model.defaults().iter().find(|p| p.name == name)?;
        let parameter = tensor.element().is_float() && !tensor.dims().is_empty();
        Some(self.constant_input(tensor, port, parameter))
    }

    fn constant_input(&mut self, tensor: &Tensor, port: &Port, parameter: bool) -> Option<Operand> {
        let fits = tensor.element() == port.element
            && port.dims.as_ref().is_none_or(|dims| {
                dims.len() == tensor.dims().len()
                    && dims.iter().zip(tensor.dims()).all(|(d, &size)| match d {
                        Dim::Size(s) => *s == size,
                        Dim::Name(_) => true,
                    })
            });
        if !fits {
            let found = format!("{}{:?}", tensor.element(), tensor.dims());
            self.issue(
                IssueKind::Broken,
                &port.name,
                "",
                format!("expected {port}, found the constant {found}"),
            );
            return None;
        }
        Some(Operand::known(tensor.clone(), port.name.clone(), parameter))
    }

    /// Reports the nodes that read an input of strings, which graphs do not have.
    fn string_input(&mut self, name: &str, graph: &GraphProto) {
        let readers = graph.node.iter().filter(|node| node.input.iter().any(|i| i == name));
        let readers: Vec<&NodeProto> = readers.collect();
        let message = |help: &str| {
            format!("expected numbers, found the input `{name}` of strings: strings are not supported as inputs{help}")
        };
        for node in &readers {
            let help = match node.op_type.as_str() {
                "OneHotEncoder" | "LabelEncoder" | "CategoryMapper" => {
                    "\n  help: encode the strings before the model (each category as a number, for example with the \
                     OrdinalEncoder of scikit-learn), and export the model with a numeric input"
                }
                _ => "\n  help: export the model with numeric inputs",
            };
            let (place, operator) = (node_place(node), operator_name(node));
            self.issue(IssueKind::Unsupported, place, &operator, message(help));
        }
        if readers.is_empty() {
            self.issue(IssueKind::Unsupported, name, "", message(""));
        }
    }

    fn input(&mut self, port: &Port, inputs: &mut Vec<TensorInfo>) -> Option<Operand> {
        let name = port.name.as_str();
        let dims = match &port.dims {
            Some(dims) => dims.clone(),
            None => {
                let rank = self.options.dims.get(&format!("{name}.rank"));
                let Some(rank) = rank else {
                    let message = format!("its number of dimensions is open: bind `{name}.rank`, `{name}.0` and so on");
                    self.issue(IssueKind::UnboundDimension, name, "", message);
                    return None;
                };
                (0..rank.min(64))
                    .map(|axis| Dim::Name(format!("{name}.{axis}")))
                    .collect()
            }
        };
        let mut sizes = Vec::new();
        for (axis, dim) in dims.iter().enumerate() {
            match self.options.dims.resolve(dim, &format!("{name}.{axis}")) {
                Some(size) => sizes.push(size),
                None => self.issue(
                    IssueKind::UnboundDimension,
                    &dim.to_string(),
                    "",
                    format!("dimension {axis} of input `{name}` is open: bind `{dim}` to a size"),
                ),
            }
        }
        if sizes.len() != dims.len() {
            return None;
        }
        let before = self.graph.errors().len();
        let node = self.graph.input_typed(name, &sizes, port.element.dtype());
        if let Some(error) = self.graph.errors().get(before) {
            let message = error.to_string();
            self.issue(IssueKind::Broken, name, "", message);
            return None;
        }
        inputs.push(TensorInfo {
            name: name.to_owned(),
            element: port.element,
            dims: sizes.clone(),
        });
        Some(Operand::node(node.into(), port.element, &sizes))
    }
}
