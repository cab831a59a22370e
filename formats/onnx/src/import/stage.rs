//! Stages of a model whose shapes depend on computed data, such as the number of elements that `NonZero` finds.
//!
//! A pass over the nodes imports what it can. A node whose result shapes depend on data that is not known yet is blocked, and
//! so are the nodes that use its results. The imported part becomes a graph with the values that blocked nodes use as outputs.
//! After it has run, the next pass imports the blocked nodes with these values as constants or inputs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::{Frame, Import, Importer, Operand, Source, TensorInfo};
use crate::error::{Issue, IssueKind};
use crate::proto::{GraphProto, NodeProto};
use crate::report::DEPENDS_ON_DATA;
use crate::tensor::Tensor;

/// Returns true for a value that becomes a constant of the next stage, because shapes may depend on it: integers, and
/// up to 64 floats.
pub(crate) fn may_decide_shapes(tensor: &Tensor) -> bool {
    const MAX_FLOATS: usize = 64;
    tensor.len() <= MAX_FLOATS || tensor.ints().is_some()
}

/// Value that an earlier stage computed.
#[derive(Clone, Debug)]
pub(crate) struct CarriedValue {
    pub(crate) tensor: Arc<Tensor>,
    /// True if the value is a constant of the stage; otherwise it is an input.
    pub(crate) is_constant: bool,
}

/// Results of earlier stages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Indices of the top-level nodes that earlier stages computed.
    done: HashSet<usize>,
    /// Values that later nodes use and outputs of the model, by name.
    pub(crate) carried: HashMap<String, CarriedValue>,
}

/// Part of a model between two points at which shapes depend on data.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Graph whose outputs are the values that later stages need. For the last stage, these are the outputs of the
    /// model that it computes.
    pub(crate) import: Import,
    /// Values that need no step, because they are computed at import.
    known: Vec<(String, Arc<Tensor>)>,
    /// Indices of the nodes of this stage.
    nodes: Vec<usize>,
    /// Names of the values that blocked nodes use; empty for the last stage.
    wanted: HashSet<String>,
    /// Subset of `wanted`: values of nodes whose own result shapes depend on unknown data. (Other blocked nodes only
    /// use their results.)
    decisive: HashSet<String>,
}

impl Stage {
    pub(crate) fn is_last(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Returns the progress after the stage, from the results of its graph and the inputs of the model by name.
    pub(crate) fn advance(
        &self,
        before: &Progress,
        results: Vec<Tensor>,
        inputs: &HashMap<&str, &Tensor>,
        outputs: &HashSet<&str>,
    ) -> Progress {
        let names = self.import.outputs.iter().map(|info| info.name.clone());
        let computed = names.zip(results.into_iter().map(Arc::new));
        let mut values: HashMap<String, Arc<Tensor>> = computed.chain(self.known.iter().cloned()).collect();
        let earlier = before.carried.iter().map(|(name, c)| (name.clone(), c.tensor.clone()));
        values.extend(earlier);
        let of_model = inputs
            .iter()
            .map(|(name, tensor)| ((*name).to_owned(), Arc::new((*tensor).clone())));
        for (name, tensor) in of_model.filter(|(name, _)| self.decisive.contains(name)) {
            values.entry(name).or_insert(tensor);
        }
        values.retain(|name, _| self.wanted.contains(name) || outputs.contains(name.as_str()));
        let carried = values.into_iter().map(|(name, tensor)| {
            let is_constant = may_decide_shapes(&tensor) || self.decisive.contains(&name);
            (name, CarriedValue { tensor, is_constant })
        });
        Progress {
            done: before.done.iter().copied().chain(self.nodes.iter().copied()).collect(),
            carried: carried.collect(),
        }
    }

    /// Returns true if a stage that was imported for `own` can also be used for `progress`: constants are equal, and
    /// inputs have the same types and shapes.
    pub(crate) fn serves(own: &Progress, progress: &Progress) -> bool {
        own.carried.len() == progress.carried.len()
            && own.done == progress.done
            && own.carried.iter().all(|(name, own)| {
                progress.carried.get(name).is_some_and(|given| {
                    own.is_constant == given.is_constant
                        && own.tensor.element() == given.tensor.element()
                        && own.tensor.dims() == given.tensor.dims()
                        && (!own.is_constant || own.tensor == given.tensor)
                })
            })
    }
}

/// Blocked nodes of a pass.
#[derive(Default)]
struct Blocked<'m> {
    names: HashSet<&'m str>,
    /// Names that nodes use whose own result shapes depend on unknown data.
    decisive: HashSet<&'m str>,
    /// Issues of these nodes, reported if no further stage is possible.
    issues: Vec<Issue>,
}

impl<'m> Importer<'m> {
    /// Imports the nodes that can be imported after `progress`. Returns `None` if there are issues.
    pub(super) fn stage(&mut self, progress: &'m Progress) -> Option<Stage> {
        let graph = self.model.graph_proto()?;
        let opsets = self.model.proto.opset_import.as_slice();
        self.frames.push(Frame::of(graph, opsets));
        let mut inputs = self.declare_inputs(graph);
        self.import_initializers(graph);
        let mut nodes = Vec::new();
        let mut blocked = Blocked::default();
        for (index, node) in graph.node.iter().enumerate() {
            if progress.done.contains(&index) {
                for name in &node.output {
                    if let Some(carried) = progress.carried.get(name) {
                        let operand = self.carried(name, carried, &mut inputs);
                        // Names are unique: the pass that imported the node checked it.
                        let _ = self.define(name, operand);
                    }
                }
                continue;
            }
            let first = self.issues.len();
            self.node(node);
            let has_failed = node.output.iter().any(|name| matches!(self.lookup(name), Some(None)));
            let own = self.issues.split_off(first);
            let (depending, others): (Vec<Issue>, Vec<Issue>) = own
                .into_iter()
                .partition(|issue| issue.message.contains(DEPENDS_ON_DATA));
            self.issues.extend(others);
            if has_failed {
                let names = used_names(node);
                if !depending.is_empty() {
                    blocked.decisive.extend(&names);
                }
                blocked.names.extend(names);
                blocked.issues.extend(depending);
            } else {
                nodes.push(index);
            }
        }
        let produced: HashSet<&str> = graph.node.iter().flat_map(|n| &n.output).map(String::as_str).collect();
        let of_model: HashSet<&str> = inputs.iter().map(|info| info.name.as_str()).collect();
        let outputs: BTreeSet<&str> = graph.output.iter().map(|o| o.name.as_str()).collect();
        // Without new values the next pass would be blocked at the same node.
        let has_new_input = blocked
            .decisive
            .iter()
            .any(|name| of_model.contains(name) && !progress.carried.contains_key(*name));
        if nodes.is_empty() && !has_new_input {
            self.issues.append(&mut blocked.issues);
        }
        let mut known = Vec::new();
        let (mut infos, mut values) = (Vec::new(), Vec::new());
        let fetched = produced.iter().filter(|name| {
            (blocked.names.contains(**name) || outputs.contains(**name)) && !progress.carried.contains_key(**name)
        });
        let fetched: BTreeSet<&str> = fetched.copied().collect();
        for name in fetched {
            let Some(Some(operand)) = self.lookup(name) else {
                continue;
            };
            if operand.strings().is_some() && !outputs.contains(name) {
                let message = "strings are not supported where a shape depends on computed data";
                self.issue(IssueKind::Unsupported, name, "", message.into());
                continue;
            }
            match &operand.source {
                // The last stage has a session in any case.
                Source::Known(tensor) if !blocked.names.is_empty() => {
                    known.push((name.to_owned(), tensor.tensor.clone()))
                }
                Source::List(_) => self.issue(
                    IssueKind::Unsupported,
                    name,
                    "",
                    "a sequence is used where a shape depends on computed data, which is not supported".into(),
                ),
                Source::Node(_) | Source::Known(_) => {
                    if let Some((info, value)) = self.output(name) {
                        infos.push(info);
                        values.push(value);
                    }
                }
            }
        }
        if !self.issues.is_empty() {
            return None;
        }
        self.graph.set_outputs(values);
        if let Err(error) = self.graph.verify() {
            self.issue(IssueKind::Unsupported, "the graph", "", error.to_string());
            return None;
        }
        let guards = self.live_guards();
        let own = |names: HashSet<&str>| names.into_iter().map(str::to_owned).collect();
        Some(Stage {
            import: Import {
                graph: std::mem::take(&mut self.graph),
                inputs,
                outputs: infos,
                parameters: std::mem::take(&mut self.parameters),
                notes: std::mem::take(&mut self.notes).into_iter().collect(),
                guards,
                labels: std::mem::take(&mut self.labels),
            },
            known,
            nodes,
            wanted: own(blocked.names),
            decisive: own(blocked.decisive),
        })
    }

    /// Returns a value of an earlier stage as an operand: a constant, or a further input of the graph.
    fn carried(&mut self, name: &str, carried: &CarriedValue, inputs: &mut Vec<TensorInfo>) -> Option<Operand> {
        let tensor = &carried.tensor;
        if carried.is_constant {
            return Some(Operand::known((**tensor).clone(), name.to_owned(), false));
        }
        let before = self.graph.errors().len();
        let node = self.graph.input_typed(name, tensor.dims(), tensor.element().dtype());
        if let Some(error) = self.graph.errors().get(before) {
            let message = error.to_string();
            self.issue(IssueKind::Unsupported, name, "", message);
            return None;
        }
        inputs.push(TensorInfo {
            name: name.to_owned(),
            element: tensor.element(),
            dims: tensor.dims().to_vec(),
        });
        Some(Operand::node(node.into(), tensor.element(), tensor.dims()))
    }
}

/// Returns the names that a node and the graphs in its attributes use. They include names that these graphs define
/// themselves. Then a value with the same name outside of the graphs becomes an unnecessary output of the stage.
fn used_names(node: &NodeProto) -> HashSet<&str> {
    let mut names: HashSet<&str> = node.input.iter().map(String::as_str).collect();
    let mut graphs: Vec<&GraphProto> = node.attribute.iter().filter_map(|a| a.g.as_deref()).collect();
    while let Some(graph) = graphs.pop() {
        names.extend(graph.output.iter().map(|o| o.name.as_str()));
        for inner in &graph.node {
            names.extend(inner.input.iter().map(String::as_str));
            graphs.extend(inner.attribute.iter().filter_map(|a| a.g.as_deref()));
        }
    }
    names.remove("");
    names
}
