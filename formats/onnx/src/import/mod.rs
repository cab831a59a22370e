//! Import of a file's nodes into a graph, in one pass in the order of the file. Nodes whose operands are available at
//! import are computed immediately (folded); all others are built in the graph. A node that fails makes dependent
//! values unavailable, and the pass continues, so that it reports all problems.

mod call;
mod flag;
mod frame;
mod guard;
mod inputs;
mod labels;
mod made;
mod operand;
mod result;
mod stage;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use meganeura_core::graph::{Graph, Value};
use meganeura_core::pattern;

use crate::attributes::Attributes;
use crate::element::ElementType;
use crate::error::{Error, Issue, IssueKind, Result};
use crate::model::{Model, domain};
use crate::ops::{self, OnnxOp};
use crate::proto::{FunctionProto, GraphProto, NodeProto, TensorProto};
use crate::read::{ReadError, STRING, read_strings, read_tensor};
use crate::small::SmallFloat;
use frame::Frame;
use made::MemoryLimit;

pub use call::Call;
pub(crate) use call::normalize_axis;
pub use flag::{Guard, GuardKind};
pub use operand::Operand;
pub(crate) use operand::{KnownTensor, Source};
pub use result::{Import, ImportOptions, LabelKind, OutputLabels, Parameter, TensorInfo};
pub(crate) use stage::{Progress, Stage, may_decide_shapes};

/// Maximum nesting depth of functions and branches.
const MAX_DEPTH: usize = 64;

/// The newest supported version of the ONNX operators (onnx 1.23).
const NEWEST: i64 = 28;

/// Maximum number of nodes after functions are expanded and loops unrolled.
pub(crate) const MAX_NODES: usize = 1 << 20;

/// Imports a model, or reports all issues.
pub(crate) fn import(model: &Model, options: &ImportOptions) -> Result<Import> {
    let (import, issues) = try_import(model, options);
    match import {
        Some(import) if issues.is_empty() => Ok(import),
        _ => Err(Error::Unsupported(Box::new(model.report(issues)))),
    }
}

/// Imports the next stage of a model whose shapes depend on computed data.
pub(crate) fn import_stage(model: &Model, options: &ImportOptions, progress: &Progress) -> Result<Stage> {
    let mut importer = Importer::new(model, options);
    let stage = importer.stage(progress);
    let issues = importer.sorted_issues();
    match stage {
        Some(stage) if issues.is_empty() => Ok(stage),
        _ => Err(Error::Unsupported(Box::new(model.report(issues)))),
    }
}

/// Returns the import if it succeeds, and all issues.
pub(crate) fn try_import(model: &Model, options: &ImportOptions) -> (Option<Import>, Vec<Issue>) {
    let mut importer = Importer::new(model, options);
    let import = importer.run();
    (import, importer.sorted_issues())
}

/// Kind and message of the issue of a node that cannot be imported.
pub(crate) type Failure = (IssueKind, String);

pub(crate) struct Importer<'m> {
    model: &'m Model,
    options: &'m ImportOptions,
    pub(crate) graph: Graph,
    frames: Vec<Frame<'m>>,
    /// Tensors that are already leaves (constants or parameters) of the graph, by name.
    leaves: HashMap<String, Value>,
    parameters: Vec<Parameter>,
    notes: BTreeSet<String>,
    issues: Vec<Issue>,
    visited: usize,
    made: MemoryLimit,
    /// Functions that are being expanded.
    functions: Vec<&'m FunctionProto>,
    guards: Vec<Guard>,
    /// Names of the columns of results, by the name of the result.
    columns: HashMap<String, Vec<String>>,
    labels: Vec<OutputLabels>,
    /// Conditions of the enclosing branches that are computed in a step, not at import.
    conditions: Vec<Value>,
}

impl<'m> Importer<'m> {
    fn new(model: &'m Model, options: &'m ImportOptions) -> Self {
        Importer {
            model,
            options,
            graph: Graph::new(),
            frames: Vec::new(),
            leaves: HashMap::new(),
            parameters: Vec::new(),
            notes: BTreeSet::new(),
            issues: Vec::new(),
            visited: 0,
            made: MemoryLimit::default(),
            functions: Vec::new(),
            guards: Vec::new(),
            columns: HashMap::new(),
            labels: Vec::new(),
            conditions: Vec::new(),
        }
    }

    /// Returns the issues in the order of reports, without duplicates.
    fn sorted_issues(self) -> Vec<Issue> {
        let mut issues = self.issues;
        issues.sort_by(|a, b| (a.kind, &a.place, &a.message).cmp(&(b.kind, &b.place, &b.message)));
        issues.dedup();
        issues
    }

    fn run(&mut self) -> Option<Import> {
        let graph = self.model.graph_proto()?;
        let opsets = self.model.proto.opset_import.as_slice();
        self.frames.push(Frame::of(graph, opsets));
        let inputs = self.declare_inputs(graph);
        self.import_nodes(graph);
        let outputs: Vec<Option<(TensorInfo, Value)>> = graph.output.iter().map(|o| self.output(&o.name)).collect();
        if !self.issues.is_empty() {
            return None;
        }
        let (outputs, values) = outputs.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
        let values: Vec<Value> = values;
        self.graph.set_outputs(values);
        if let Err(error) = self.graph.verify() {
            self.issue(IssueKind::Unsupported, "the graph", "", error.to_string());
            return None;
        }
        for info in inputs.iter().chain(&outputs) {
            self.note_element(info.element);
        }
        self.note_versions();
        let guards = self.live_guards();
        Some(Import {
            graph: std::mem::take(&mut self.graph),
            inputs,
            outputs,
            parameters: std::mem::take(&mut self.parameters),
            notes: std::mem::take(&mut self.notes).into_iter().collect(),
            guards,
            labels: std::mem::take(&mut self.labels),
        })
    }

    /// Imports the initializers and nodes of a graph into the innermost frame.
    fn import_nodes(&mut self, graph: &'m GraphProto) {
        self.import_initializers(graph);
        for node in &graph.node {
            self.node(node);
        }
    }

    fn import_initializers(&mut self, graph: &'m GraphProto) {
        for proto in &graph.initializer {
            let operand = match self.replaced_default(&proto.name) {
                Some(replaced) => replaced,
                None => self.initializer(proto, &proto.name),
            };
            let taken = self.define(&proto.name, operand.clone()).is_err();
            // Before version 4 of the format, parameters were also inputs; the model's list excludes them.
            if taken {
                self.issue(IssueKind::Broken, &proto.name, "", "two values have this name".into());
            }
        }
        if let Some(sparse) = graph.sparse_initializer.first() {
            let name = sparse.values.as_ref().map_or("", |v| v.name.as_str());
            self.issue(
                IssueKind::Unsupported,
                name,
                "",
                "sparse initializers are not supported".into(),
            );
        }
    }

    fn initializer(&mut self, proto: &'m TensorProto, name: &str) -> Option<Operand> {
        let read = if proto.data_type == STRING {
            read_strings(proto).map(|(tensor, strings)| {
                Operand::known(tensor, self.full_name(name), false).with_strings(Arc::new(strings))
            })
        } else {
            read_tensor(proto, self.model.folder()).map(|tensor| {
                let parameter = tensor.element().is_float() && !tensor.dims().is_empty();
                Operand::known(tensor, self.full_name(name), parameter)
            })
        };
        match read {
            Ok(operand) => Some(operand),
            Err(error) => {
                let kind = match error {
                    ReadError::Broken(_) => IssueKind::Broken,
                    ReadError::Missing(_) => IssueKind::MissingData,
                    ReadError::Unsupported(_) => IssueKind::Unsupported,
                };
                self.issue(kind, name, "", error.message().to_owned());
                None
            }
        }
    }

    fn full_name(&self, name: &str) -> String {
        match self.frames.last() {
            Some(frame) => format!("{}{name}", frame.prefix),
            None => name.to_owned(),
        }
    }

    /// Adds a value to the innermost frame; `Err` if the name is already used.
    fn define(&mut self, name: &'m str, operand: Option<Operand>) -> Result<(), ()> {
        match self.frames.last_mut() {
            Some(frame) if !name.is_empty() => match frame.values.insert(name, operand) {
                None => Ok(()),
                Some(_) => Err(()),
            },
            _ => Ok(()),
        }
    }

    /// Returns the value with this name: `None` if it does not exist, `Some(None)` if its node failed.
    fn lookup(&self, name: &str) -> Option<Option<Operand>> {
        self.frame_of(name)?.values.get(name).cloned()
    }

    fn issue(&mut self, kind: IssueKind, place: &str, operator: &str, message: String) {
        self.issues.push(Issue {
            kind,
            place: place.to_owned(),
            operator: operator.to_owned(),
            message,
        });
    }

    /// Imports one node. Its results are defined even if it fails.
    fn node(&mut self, node: &'m NodeProto) {
        let outputs = match self.try_node(node) {
            Ok(outputs) => outputs,
            Err((kind, message)) => {
                self.issue(kind, node_place(node), &operator_name(node), message);
                None
            }
        };
        self.note_quantizer(node);
        let mut outputs = outputs.map(Vec::into_iter);
        for name in &node.output {
            let operand = outputs.as_mut().and_then(Iterator::next);
            if self.define(name, operand).is_err() {
                let message = format!("another value has the name of its result `{name}`");
                self.issue(IssueKind::Broken, node_place(node), &operator_name(node), message);
            }
        }
    }

    /// Returns the results of a node; `None` if it cannot be imported for a reason that another issue reports.
    fn try_node(&mut self, node: &'m NodeProto) -> Result<Option<Vec<Operand>>, Failure> {
        self.visited += 1;
        if self.visited > MAX_NODES {
            return if self.visited == MAX_NODES + 1 {
                Err((IssueKind::Unsupported, format!("there are more than {MAX_NODES} nodes")))
            } else {
                Ok(None)
            };
        }
        if self.made.is_too_much() {
            // Another issue reports the reason.
            return Ok(None);
        }
        let operator = self.operator(node)?;
        let mut inputs = Vec::with_capacity(node.input.len());
        for name in &node.input {
            inputs.push(match name.as_str() {
                "" => None,
                name => match self.lookup(name) {
                    Some(Some(operand)) => Some(operand),
                    Some(None) => {
                        self.check_bodies(node);
                        return Ok(None);
                    }
                    None => {
                        let message = format!("no earlier node computes its input `{name}`");
                        return Err((IssueKind::Broken, message));
                    }
                },
            });
        }
        let attributes = Attributes::of(node, self.frames.last().map(|f| &f.attributes));
        let op = match operator {
            Operator::Function(function) => return self.expand(node, function, attributes, inputs),
            Operator::Row(op) => op,
        };
        let opset = self.opset(&node.domain);
        let mut call = Call::new(self, node, op, attributes, inputs, opset);
        match call.build() {
            Ok(results) => match self.made.count(&self.graph, &results) {
                Ok(()) => Ok(Some(results)),
                Err(message) => Err((IssueKind::Unsupported, message)),
            },
            Err(message) if message == call::UNAVAILABLE => Ok(None),
            Err(message) => Err((IssueKind::Unsupported, message)),
        }
    }

    /// Returns the operator or function that a node calls. A function of the model has priority over an operator of the same
    /// name.
    fn operator(&self, node: &NodeProto) -> Result<Operator<'m>, Failure> {
        if let Some(function) = find_function(self.model, node) {
            return Ok(Operator::Function(function));
        }
        match ops::find(domain(&node.domain), &node.op_type) {
            Some(op) => Ok(Operator::Row(op)),
            None => Err((IssueKind::Unsupported, "the operator is not supported".into())),
        }
    }

    /// Reports unsupported operators in the branches and bodies of a node that cannot be imported itself.
    fn check_bodies(&mut self, node: &'m NodeProto) {
        for graph in node.attribute.iter().filter_map(|a| a.g.as_deref()) {
            for inner in &graph.node {
                if let Err((kind, message)) = self.operator(inner) {
                    self.issue(kind, node_place(inner), &operator_name(inner), message);
                }
                self.check_bodies(inner);
            }
        }
    }

    /// Returns the operator version (opset) of a domain; 1 if the model does not specify it.
    fn opset(&self, name: &str) -> i64 {
        let opsets = self.frames.last().map_or(&[][..], |f| f.opsets);
        let found = opsets.iter().find(|o| domain(&o.domain) == domain(name));
        found.map_or(1, |o| o.version)
    }

    /// Imports a function's nodes instead of its call.
    fn expand(
        &mut self,
        node: &'m NodeProto,
        function: &'m FunctionProto,
        mut attributes: Attributes<'m>,
        inputs: Vec<Option<Operand>>,
    ) -> Result<Option<Vec<Operand>>, Failure> {
        if self.functions.iter().any(|f| std::ptr::eq(*f, function)) {
            return Err((IssueKind::Broken, "the function calls itself".into()));
        }
        if self.functions.len() >= MAX_DEPTH {
            return Err((IssueKind::Unsupported, "functions call each other too deeply".into()));
        }
        attributes.add_defaults(&function.attribute_proto);
        let prefix = format!("{}{}.", self.full_name(""), node_place(node));
        let mut values = HashMap::new();
        for (name, operand) in function.input.iter().zip(inputs) {
            // An operand that the call omits is an empty name inside.
            values.insert(name.as_str(), operand);
        }
        self.functions.push(function);
        self.frames.push(Frame {
            values,
            prefix,
            attributes,
            ..Frame::of_function(function)
        });
        for inner in &function.node {
            self.node(inner);
        }
        let results: Vec<_> = function.output.iter().map(|name| self.lookup(name)).collect();
        self.frames.pop();
        self.functions.pop();
        let mut outputs = Vec::new();
        for (name, result) in function.output.iter().zip(results) {
            match result {
                Some(Some(operand)) => outputs.push(operand),
                Some(None) => return Ok(None),
                None => return Err((IssueKind::Broken, format!("no node of the function computes `{name}`"))),
            }
        }
        Ok(Some(outputs))
    }

    /// Imports the graph of a branch or loop body with values for its inputs. It can use the values of the enclosing
    /// scope.
    pub(crate) fn body(
        &mut self,
        graph: &'m GraphProto,
        prefix: &str,
        inputs: Vec<Operand>,
    ) -> Result<Option<Vec<Operand>>, String> {
        if self.frames.len() >= MAX_DEPTH {
            return Err("branches and bodies are nested too deeply".into());
        }
        if graph.input.len() != inputs.len() {
            let (takes, given) = (graph.input.len(), inputs.len());
            return Err(format!("its body expects {takes} values, found {given}"));
        }
        let prefix = format!("{}{prefix}.", self.full_name(""));
        let opsets = self.frames.last().map_or(&[][..], |f| f.opsets);
        let attributes = self.frames.last().map(|f| f.attributes.clone()).unwrap_or_default();
        let names = graph.input.iter().map(|i| i.name.as_str());
        self.frames.push(Frame {
            values: names.zip(inputs.into_iter().map(Some)).collect(),
            sees_parent: true,
            prefix,
            attributes,
            ..Frame::of(graph, opsets)
        });
        self.import_nodes(graph);
        let results: Vec<_> = graph.output.iter().map(|o| self.lookup(&o.name)).collect();
        self.frames.pop();
        let mut outputs = Vec::new();
        for (output, result) in graph.output.iter().zip(results) {
            match result {
                Some(Some(operand)) => outputs.push(operand),
                Some(None) => return Ok(None),
                None => return Err(format!("no node of its body computes `{}`", output.name)),
            }
        }
        Ok(Some(outputs))
    }

    /// Returns an operand as a value of the graph; tensors become leaves (constants or parameters).
    pub(crate) fn value(&mut self, operand: &Operand) -> Result<Value, String> {
        match &operand.source {
            Source::Node(value) => Ok(*value),
            Source::Known(known) => self.leaf(known),
            Source::List(_) => Err("expected a tensor, found a sequence, which is not supported".into()),
        }
    }

    fn leaf(&mut self, known: &KnownTensor) -> Result<Value, String> {
        if let Some(value) = self.leaves.get(&known.name) {
            return Ok(*value);
        }
        let tensor = &known.tensor;
        let dtype = tensor.element().dtype();
        let before = self.graph.errors().len();
        let node = if known.parameter {
            let node = match dtype {
                meganeura_core::DType::F32 => self.graph.parameter(&known.name, tensor.dims()),
                _ => self.graph.parameter_typed(&known.name, tensor.dims(), dtype),
            };
            if dtype == meganeura_core::DType::F32
                && self.options.freeze.iter().any(|p| pattern::matches(p, &known.name))
            {
                self.graph.trainable(node, false);
            }
            self.parameters.push(Parameter {
                name: known.name.clone(),
                tensor: known.tensor.clone(),
            });
            node
        } else {
            let data = tensor
                .to_constant()
                .map_err(|e| format!("constant `{}`: {e}", known.name))?;
            self.graph.constant_data(data, tensor.dims())
        };
        if let Some(error) = self.graph.errors().get(before) {
            return Err(error.to_string());
        }
        self.note_element(tensor.element());
        self.leaves.insert(known.name.clone(), node.into());
        Ok(node.into())
    }

    /// Adds a note for newer operator versions, which are imported as the newest supported version.
    fn note_versions(&mut self) {
        let newer = self
            .model
            .opsets()
            .filter(|&(name, version)| name.is_empty() && version > NEWEST);
        let notes = newer.map(|(_, version)| {
            format!(
                "the operators have version {version}; versions after {NEWEST} are unknown and are read as \
                version {NEWEST}"
            )
        });
        self.notes.extend(notes);
    }

    /// Adds a note if the graph computes in another type than the model specifies.
    fn note_element(&mut self, element: ElementType) {
        let note = match element {
            ElementType::F64 => "float64 is computed in float32",
            element if SmallFloat::of(element).is_some() => "floats of 8 and 4 bits are computed in float32",
            ElementType::I64 | ElementType::U64 => "64-bit integers are computed with 32 bits",
            _ => return,
        };
        self.notes.insert(note.to_owned());
    }

    fn output(&mut self, name: &str) -> Option<(TensorInfo, Value)> {
        let operand = match self.lookup(name) {
            Some(found) => found?,
            None => {
                self.issue(IssueKind::Broken, name, "", "no node computes this output".into());
                return None;
            }
        };
        let info = TensorInfo {
            name: name.to_owned(),
            element: operand.element.of_result(),
            dims: operand.dims.clone(),
        };
        self.label_output(name, &operand);
        match self.value(&operand) {
            Ok(value) => Some((info, value)),
            Err(message) => {
                self.issue(IssueKind::Unsupported, name, "", message);
                None
            }
        }
    }
}

/// Operator or function that a node calls.
enum Operator<'m> {
    Function(&'m FunctionProto),
    Row(&'static OnnxOp),
}

/// Returns the function of the model that a node calls.
pub(super) fn find_function<'m>(model: &'m Model, node: &NodeProto) -> Option<&'m FunctionProto> {
    let functions = model.proto.functions.iter();
    let mut same = functions
        .filter(|f| f.name == node.op_type && domain(&f.domain) == domain(&node.domain) && f.overload == node.overload);
    same.next()
}

/// Returns the name of a node in issues: its name, or that of its first result.
pub(crate) fn node_place(node: &NodeProto) -> &str {
    match node.name.as_str() {
        "" => node.output.iter().find(|o| !o.is_empty()).map_or("", String::as_str),
        name => name,
    }
}

/// Returns the operator of a node, with its domain unless that is the standard one.
pub(crate) fn operator_name(node: &NodeProto) -> String {
    match domain(&node.domain) {
        "" => node.op_type.clone(),
        domain => format!("{domain}.{}", node.op_type),
    }
}
