//! What an import takes, and what it gives.

use std::collections::{BTreeSet, HashMap};

use meganeura_core::Session;
use meganeura_core::graph::{Graph, Value};

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::model::Dims;
use crate::tensor::Tensor;

/// How a model is imported.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Sizes of the dimensions that the model leaves open.
    pub dims: Dims,
    /// Parameters whose names match one of these patterns are not trained; `*` stands for any characters.
    pub freeze: Vec<String>,
    /// Values of inputs that are constants, by name; the graph does not have them as inputs. The value of an input with a
    /// default, such as a weight that is an input too, replaces this default.
    pub constants: HashMap<String, Tensor>,
}

impl ImportOptions {
    /// With these dimensions, and everything else as the model says.
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
    /// Its name in the model and, if it is an input, in the graph.
    pub name: String,
    /// Element type in the model; the graph's is [`ElementType::dtype`].
    pub element: ElementType,
    /// Dimensions.
    pub dims: Vec<usize>,
}

/// A parameter of an imported graph with its value.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in the graph, which is that of the file.
    pub name: String,
    /// Its value.
    pub tensor: std::sync::Arc<Tensor>,
}

/// A model as a graph.
#[derive(Clone, Debug, Default)]
pub struct Import {
    /// The graph. Result `i` is output `i` of the model.
    pub graph: Graph,
    /// Its inputs, in the order of the model.
    pub inputs: Vec<TensorInfo>,
    /// Its results.
    pub outputs: Vec<TensorInfo>,
    /// Its parameters, which are zero until [`Import::set_parameters`] sets them.
    pub parameters: Vec<Parameter>,
    /// What is not computed exactly as the model says, such as `f64` in `f32`.
    pub notes: Vec<String>,
}

impl Import {
    /// Sets the parameters of a session of the graph.
    ///
    /// # Errors
    /// As [`Session::try_set_parameter_bytes`]. A parameter that rewriting left out of the plan is none.
    pub fn set_parameters(&self, session: &mut Session) -> Result<()> {
        let planned: BTreeSet<String> = session
            .plan()
            .parameters()
            .into_iter()
            .map(|p| p.name.clone())
            .collect();
        for parameter in self.parameters.iter().filter(|p| planned.contains(&p.name)) {
            let bytes = parameter.tensor.graph_bytes().map_err(Error::Input)?;
            session.try_set_parameter_bytes(&parameter.name, &bytes)?;
        }
        Ok(())
    }
}

impl Import {
    /// Adds a classifier to a graph that trains it further: the model applied to `x`, and its logits.
    ///
    /// A softmax at the end is left out, because the cross-entropy contains it. Values of the parameters are set with
    /// [`Import::set_parameters`] as for the model's own graph.
    ///
    /// # Errors
    /// [`Error::Input`] if the model has not one input, or its first result is not `[batch, classes]`; those of
    /// [`Graph::splice`].
    pub fn logits(&self, graph: &mut Graph, x: impl Into<Value>) -> Result<Value> {
        let [input] = self.inputs.as_slice() else {
            let names: Vec<&str> = self.inputs.iter().map(|i| i.name.as_str()).collect();
            return Err(Error::Input(format!(
                "a classifier has one input, and the model takes {}",
                names.join(", ")
            )));
        };
        let mut own = self.graph.clone();
        let mut result = *own
            .outputs()
            .first()
            .ok_or_else(|| Error::Input("the model gives nothing".into()))?;
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
                "a classifier gives [batch, classes], and the model {shape:?}"
            )));
        }
        own.set_outputs(vec![result]);
        let results = graph.splice(&own, &[(&input.name, x.into())])?;
        results
            .first()
            .copied()
            .ok_or_else(|| Error::Input("the model gives nothing".into()))
    }
}
