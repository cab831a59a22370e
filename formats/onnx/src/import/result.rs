//! Options and results of an import.

use std::collections::{BTreeSet, HashMap};

use meganeura_core::Session;
use meganeura_core::graph::{Graph, Value};
use serde::Serialize;

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::port::Dims;
use crate::tensor::Tensor;

use super::flag::{Guard, with_code};

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Sizes of the dimensions that the model leaves open.
    pub dims: Dims,
    /// Parameters whose names match one of these patterns are not trained; `*` matches any characters.
    pub freeze: Vec<String>,
    /// Values of inputs that become constants of the graph, by name. A value for an input with a default, such as a
    /// weight that is also an input, replaces this default.
    pub constants: HashMap<String, Tensor>,
}

impl ImportOptions {
    /// Creates options with these dimensions and defaults otherwise.
    pub fn new(dims: Dims) -> Self {
        ImportOptions {
            dims,
            ..ImportOptions::default()
        }
    }
}

/// An input or result of an imported graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the model and, for an input, in the graph.
    pub name: String,
    /// Element type in the model (`int64` for results of strings); the graph's is [`ElementType::dtype`].
    pub element: ElementType,
    /// Dimensions.
    pub dims: Vec<usize>,
}

/// Meaning of [`OutputLabels::labels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelKind {
    /// The elements of the result are indices (from 0) of labels. In the model, the elements are these strings.
    Elements,
    /// Column `i` of the result belongs to label `i`. In the model, the result is a map from labels to numbers.
    Columns,
}

/// Labels of a result whose type does not exist in graphs: strings or maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutputLabels {
    /// Name of the result.
    pub output: String,
    /// Meaning of the labels.
    pub kind: LabelKind,
    /// Labels by index.
    pub labels: Vec<String>,
}

/// A parameter of an imported graph with its value.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Name in the graph, which equals the name in the file.
    pub name: String,
    /// Value of the parameter.
    pub tensor: std::sync::Arc<Tensor>,
}

/// An imported model as a graph.
#[derive(Clone, Debug, Default)]
pub struct Import {
    /// The graph. Result `i` is output `i` of the model.
    pub graph: Graph,
    /// Inputs of the graph, in the order of the model.
    pub inputs: Vec<TensorInfo>,
    /// Results of the graph.
    pub outputs: Vec<TensorInfo>,
    /// Parameters of the graph. In a session they are zero until [`Import::set_parameters`] is called.
    pub parameters: Vec<Parameter>,
    /// Deviations of the computation from the model, such as `f64` computed in `f32`.
    pub notes: Vec<String>,
    /// Checks of nodes whose 64-bit integers may exceed 32 bits. [`Runner`](crate::Runner) checks them after each step.
    pub guards: Vec<Guard>,
    /// Labels of the results that are strings or maps in the model.
    pub labels: Vec<OutputLabels>,
}

impl Import {
    /// Returns the graph, with one more `u32` result if there are guards: the number of guards minus the index of the
    /// first failed one, or 0 if none failed.
    pub fn checked_graph(&self) -> Graph {
        with_code(&self.graph, &self.guards)
    }

    /// Sets the parameters of a session of the graph. Parameters that rewriting removed from the plan are ignored, and
    /// so are parameters that the session shares with another one.
    ///
    /// # Errors
    /// The same errors as [`Session::try_set_parameter_bytes`].
    pub fn set_parameters(&self, session: &mut Session) -> Result<()> {
        let planned: BTreeSet<String> = session
            .plan()
            .parameters()
            .into_iter()
            .map(|p| p.name.clone())
            .collect();
        let own = |name: &String| planned.contains(name) && !session.shares_parameter(name);
        let own: Vec<&Parameter> = self.parameters.iter().filter(|p| own(&p.name)).collect();
        for parameter in own {
            let bytes = parameter.tensor.graph_bytes().map_err(Error::Input)?;
            session.try_set_parameter_bytes(&parameter.name, &bytes)?;
        }
        Ok(())
    }
}

impl Import {
    /// Replaces an input by a value that `make` computes from new inputs, such as an image of bytes that becomes normalized numbers.
    /// `make` adds the new inputs to the graph, and returns them with that value, which has the type and shape of the old one.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no input of this name; errors of [`Graph::splice`], such as for a value of another shape.
    pub fn compute_input(
        &mut self,
        name: &str,
        make: impl FnOnce(&mut Graph, &TensorInfo) -> (Vec<TensorInfo>, Value),
    ) -> Result<()> {
        let at = self.inputs.iter().position(|input| input.name == name);
        let at = at.ok_or_else(|| Error::Input(format!("the model has no input `{name}`")))?;
        let mut graph = Graph::new();
        let (inputs, value) = make(&mut graph, &self.inputs[at]);
        let map = graph.splice_all(&self.graph, &[(name, value)])?;
        graph.set_outputs(self.graph.outputs().iter().map(|v| map[v]).collect());
        graph.verify()?;
        for guard in &mut self.guards {
            guard.flag = map[&guard.flag];
            guard.result = map[&guard.result];
        }
        self.graph = graph;
        self.inputs.splice(at..=at, inputs);
        Ok(())
    }

    /// Adds a classifier to a graph that fine-tunes it: applies the model to `x`, and returns its logits.
    ///
    /// A softmax at the end is omitted, because the cross-entropy contains it. [`Import::set_parameters`] sets the values of the
    /// parameters, as for the model's graph.
    ///
    /// # Errors
    /// [`Error::Input`] if the model does not have exactly one input, or its first result is not `[batch, classes]`; errors of
    /// [`Graph::splice`].
    pub fn logits(&self, graph: &mut Graph, x: impl Into<Value>) -> Result<Value> {
        let [input] = self.inputs.as_slice() else {
            let names: Vec<&str> = self.inputs.iter().map(|i| i.name.as_str()).collect();
            return Err(Error::Input(format!(
                "expected a classifier with one input, found the inputs {}",
                names.join(", ")
            )));
        };
        let mut own = self.graph.clone();
        let mut result = *own
            .outputs()
            .first()
            .ok_or_else(|| Error::Input("the model has no results".into()))?;
        let node = &own.nodes()[result.node.index()];
        if node
            .op()
            .is_some_and(|(op, _)| matches!(op.name(), "core.softmax" | "core.log_softmax"))
        {
            result = node.inputs[0];
        }
        if own.shape(result).len() != 2 {
            let shape = own.shape(result);
            return Err(Error::Input(format!(
                "expected a classifier with the result [batch, classes], found {shape:?}"
            )));
        }
        own.set_outputs(vec![result]);
        let results = graph.splice(&own, &[(&input.name, x.into())])?;
        results
            .first()
            .copied()
            .ok_or_else(|| Error::Input("the model has no results".into()))
    }
}
