//! Operators of a plugin as the core sees them: the decomposition is the definition and gives the gradient.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use meganeura_core::TensorType;
use meganeura_core::attrs::Attrs;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::sample::{Sample, Sizes as Dice};
use meganeura_core::ops::{
    Arity, AttrDecls, Call, Cost, Doc, Expansion, Gradient, OpRef, Operator, Semantics, graph_flops,
};
use meganeura_core::reference::call_operands;

use crate::builder::{Builder, base_name, is_form};
use crate::definition::{Bound, Definition};

/// Maximum number of elements of any value in a decomposition, per element of the operands and results.
const MAX_GROWTH: usize = 4096;
/// Maximum number of arithmetic operations of a decomposition, per element of the operands and results.
const MAX_OPERATIONS: u64 = 1 << 20;
/// Number of arithmetic operations that is always allowed.
const ANY_WORK: u64 = 1 << 26;
/// Number of elements that is always allowed.
const ANY_SIZE: usize = 1 << 16;
/// Maximum number of cached calls.
const MAX_REMEMBERED: usize = 256;

type CallKey = (Attrs, Vec<TensorType>);

/// Properties of a call, determined by building its decomposition.
#[derive(Clone, Debug)]
pub(crate) struct CheckedCall {
    outputs: Vec<TensorType>,
    /// Number of arithmetic operations.
    pub(crate) flops: u64,
    /// Operands that contain indices, each with its exclusive upper bound.
    pub(crate) indices: Vec<(usize, usize)>,
}

/// An operator that a manifest defines by its decomposition.
#[derive(Debug)]
pub(crate) struct DataOp {
    pub(crate) definition: Definition,
    /// Names of the results. Like operators, they are stored until the program ends.
    ports: &'static [&'static str],
    /// The operators that its decomposition calls, by the names in its text.
    calls: HashMap<String, OpRef>,
    version: u32,
    /// Cache of checked calls, because the same calls are queried repeatedly.
    known: Mutex<HashMap<CallKey, Result<CheckedCall, String>>>,
}

impl DataOp {
    /// Creates an operator. `find` returns the operator with a name, or the reason why there is
    /// none. `version` must change with every change of the plugin.
    ///
    /// # Errors
    /// A name that is not an operator.
    pub(crate) fn new(
        definition: Definition,
        version: u32,
        find: impl Fn(&str) -> Result<OpRef, String>,
    ) -> Result<Self, String> {
        let mut calls = HashMap::new();
        let mut missing = None;
        for (_, term) in &definition.steps {
            term.names(&mut |name, is_call| {
                if is_call && !is_form(name) {
                    match find(base_name(name)) {
                        Ok(op) => _ = calls.insert(name.to_owned(), op),
                        Err(why) => missing = missing.take().or(Some(format!("'{name}', {why}"))),
                    }
                }
            });
        }
        if let Some(missing) = missing {
            return Err(format!("its decomposition calls {missing}"));
        }
        // A decomposition cannot express writes of persistent data.
        if let Some(op) = calls.values().find(|op| !op.writes().is_empty()) {
            return Err(format!(
                "its decomposition calls '{}', which writes an operand",
                op.name()
            ));
        }
        Ok(DataOp {
            ports: Box::leak(definition.outputs.iter().map(|o| o.name).collect()),
            definition,
            calls,
            version,
            known: Mutex::default(),
        })
    }

    /// Returns the operator that this operator's decomposition calls by `name`.
    pub(crate) fn called(&self, name: &str) -> Option<OpRef> {
        self.calls.get(name).copied()
    }

    /// Builds the decomposition of a call on a separate graph and checks it; returns the types of
    /// the results and the cost. Each call is checked only once.
    ///
    /// # Errors
    /// Reason why the call is invalid.
    pub(crate) fn checked(&self, attrs: &Attrs, inputs: &[TensorType]) -> Result<CheckedCall, String> {
        let asked = (attrs.clone(), inputs.to_vec());
        // A panic cannot leave the map half changed.
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = lock().get(&asked) {
            return answer.clone();
        }
        let answer = self.check(attrs, inputs);
        let mut known = lock();
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(asked, answer.clone());
        answer
    }

    fn check(&self, attrs: &Attrs, inputs: &[TensorType]) -> Result<CheckedCall, String> {
        let bound = self.definition.bind(attrs, inputs)?;
        let (mut graph, operands) = call_operands(inputs);
        let values = self.build(&mut graph, &operands, attrs, &bound)?;
        let all = inputs.iter().chain(&bound.outputs).map(TensorType::numel);
        let elements = all.fold(0, usize::saturating_add);
        let most = elements.saturating_mul(MAX_GROWTH).max(ANY_SIZE);
        for node in graph.nodes() {
            if let Some(ty) = node.outputs.iter().find(|ty| ty.numel() > most) {
                return Err(format!(
                    "its decomposition has a value {ty}, far larger than operands and results"
                ));
            }
        }
        let flops = graph_flops(&graph);
        if flops > (elements as u64).saturating_mul(MAX_OPERATIONS).max(ANY_WORK) {
            return Err(format!(
                "its decomposition has {flops} operations, far more than go with {elements} elements"
            ));
        }
        for ((value, wanted), name) in values.iter().zip(&bound.outputs).zip(self.ports) {
            match graph.ty(*value) {
                Some(found) if found == wanted => {}
                Some(found) => {
                    return Err(format!(
                        "its decomposition makes '{name}' {found}, but it is declared to be {wanted}"
                    ));
                }
                None => return Err(format!("its decomposition does not compute '{name}'")),
            }
        }
        Ok(CheckedCall {
            outputs: bound.outputs,
            flops,
            indices: indices(&graph, &operands),
        })
    }

    /// Returns the decomposition of a checked call, on a separate graph.
    ///
    /// # Errors
    /// Reason why the call is invalid.
    pub(crate) fn decomposition(&self, attrs: &Attrs, inputs: &[TensorType]) -> Result<Graph, String> {
        self.checked(attrs, inputs)?;
        let bound = self.definition.bind(attrs, inputs)?;
        let (mut graph, operands) = call_operands(inputs);
        self.build(&mut graph, &operands, attrs, &bound)?;
        Ok(graph)
    }

    /// Builds the decomposition of a call in a graph. Returns one value for each result.
    fn build(&self, graph: &mut Graph, inputs: &[Value], attrs: &Attrs, bound: &Bound) -> Result<Vec<Value>, String> {
        let errors = graph.errors().len();
        let operands = self
            .definition
            .inputs
            .iter()
            .map(|i| i.name)
            .zip(inputs.iter().map(|&v| vec![v]));
        let mut builder = Builder {
            op: self,
            graph,
            attrs,
            bound,
            values: operands.collect(),
        };
        for (name, term) in &self.definition.steps {
            let made = builder
                .ports(term)
                .map_err(|e| format!("in its decomposition, '{name}': {e}"))?;
            builder.values.insert(name, made);
        }
        let values: Vec<Value> = self
            .definition
            .outputs
            .iter()
            .filter_map(|o| builder.values.get(o.name)?.first().copied())
            .collect();
        match graph.errors().get(errors) {
            None => Ok(values),
            Some(error) => Err(format!("in its decomposition, {error}")),
        }
    }
}

/// Returns the operands that calls of a graph use as indices, directly or in another shape, and
/// their exclusive upper bounds.
fn indices(graph: &Graph, operands: &[Value]) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for node in graph.nodes() {
        let Some((op, attrs)) = node.op() else { continue };
        let inputs: Vec<TensorType> = node.inputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect();
        let call = Call {
            attrs,
            inputs: &inputs,
            outputs: &node.outputs,
        };
        let Some((operand, bound)) = op.index_bound(&call) else {
            continue;
        };
        let source = node.inputs.get(operand).map(|&value| unaliased(graph, value));
        let Some(own) = operands.iter().position(|o| Some(*o) == source) else {
            continue;
        };
        match found.iter_mut().find(|(known, _)| *known == own) {
            Some((_, known)) => *known = bound.min(*known),
            None => found.push((own, bound)),
        }
    }
    found.sort_unstable();
    found
}

/// Returns the source of a value, without the calls that only changed its shape.
fn unaliased(graph: &Graph, mut value: Value) -> Value {
    while value.port == 0
        && let Some((op, _)) = graph.nodes()[value.node.index()].op()
        && let Some(operand) = op.alias()
        && let Some(&source) = graph.nodes()[value.node.index()].inputs.get(operand)
    {
        value = source;
    }
    value
}

impl Operator for DataOp {
    fn name(&self) -> &'static str {
        self.definition.name
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "those that its manifest states",
            formula: self.definition.formula,
            source: self.definition.source,
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(self.definition.inputs.len())
    }

    fn attributes(&self) -> AttrDecls {
        self.definition.attributes.iter().map(|a| (a.name, a.kind)).collect()
    }

    fn ports(&self) -> &'static [&'static str] {
        self.ports
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        self.arity().check(call.inputs.len())?;
        Ok(self.checked(call.attrs, call.inputs)?.outputs)
    }

    /// Returns the index bound of the decomposition, so that kernel and decomposition behave alike. If several operands
    /// contain indices, returns `None`, and no kernel is used, because only one bound can be returned.
    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        match self.checked(call.attrs, call.inputs).ok()?.indices[..] {
            [index] => Some(index),
            _ => None,
        }
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx: &mut Expansion| {
            let types: Vec<TensorType> = cx.inputs.iter().filter_map(|&v| cx.graph.ty(v).cloned()).collect();
            let bound = self.definition.bind(cx.attrs, &types)?;
            self.build(cx.graph, cx.inputs, cx.attrs, &bound)
        })
    }

    /// Returns the cost of a call: operands and results are moved once, and the arithmetic is that of the
    /// decomposition.
    fn cost(&self, call: &Call) -> Cost {
        let flops = self.checked(call.attrs, call.inputs).map_or(0, |checked| checked.flops);
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Dice) -> Vec<Sample> {
        // There are samples: the operator was tested before it was registered.
        self.calls(sizes).unwrap_or_default()
    }

    fn version(&self) -> u32 {
        self.version
    }
}
