//! Fusion of writes with the call that computes their operand.
//!
//! Rules do not rewrite writes of persistent data. Instead, an operator that writes defines the [fused
//! operator](meganeura_core::ops::Operator::fused_write) that replaces it and the call before it. A pair becomes one
//! call if the intermediate value has no other user, the device has a kernel for the fused call, and that call costs no
//! more than the two.

use super::clean::clean;
use super::outcome::Fusion;
use meganeura_core::attrs::Attrs;
use meganeura_core::cost::Target;
use meganeura_core::cost::call_cost;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId, NodeKind, Uses, Value};
use meganeura_core::kernel::KernelDesc;
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::shape::TensorType;

/// Name of the rule set under which reports list these fusions.
const RULE_SET: &str = "joins";

/// A call that exists in the graph or is planned.
#[derive(Clone)]
pub(crate) struct PlannedCall {
    pub(crate) op: OpRef,
    pub(crate) attrs: Attrs,
    pub(crate) inputs: Vec<Value>,
}

impl PlannedCall {
    pub(crate) fn of(graph: &Graph, id: NodeId) -> Option<Self> {
        let node = &graph.nodes()[id.index()];
        let (op, attrs) = node.op()?;
        Some(PlannedCall {
            op,
            attrs: attrs.clone(),
            inputs: node.inputs.clone(),
        })
    }

    fn types(&self, graph: &Graph) -> Vec<TensorType> {
        self.inputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect()
    }

    /// Returns the cost of the call on a device, or of its decomposition if there is no kernel.
    pub(crate) fn cost(&self, graph: &Graph, outputs: &[TensorType], target: &dyn Target) -> u64 {
        let call = Call {
            attrs: &self.attrs,
            inputs: &self.types(graph),
            outputs,
        };
        call_cost(target, self.op, &call)
    }

    /// Returns the launches of the device's kernel for the call; `None` if there is no kernel, or if its results do not
    /// have these types.
    pub(crate) fn launches(&self, graph: &Graph, outputs: &[TensorType], target: &dyn Target) -> Option<u32> {
        let inputs = self.types(graph);
        let fits = self.op.infer(&Call {
            attrs: &self.attrs,
            inputs: &inputs,
            outputs: &[],
        });
        let kernel = KernelDesc {
            name: self.op.get().name(),
            version: self.op.version(),
            attrs: &self.attrs,
            inputs: &inputs,
            outputs,
        };
        fits.is_ok_and(|types| types == outputs)
            .then(|| target.launches(&kernel))
            .flatten()
    }
}

/// Returns the graph in which such pairs are fused, and the list of these fusions with their savings; `None` if there
/// is no such pair.
///
/// # Errors
/// All errors of [`Graph::verify`].
pub(crate) fn join_writes(graph: &Graph, target: &dyn Target) -> Result<Option<(Graph, Vec<Fusion>)>> {
    let joins = |id: &NodeId| {
        graph.nodes()[id.index()]
            .op()
            .is_some_and(|(op, _)| op.fused_write().is_some())
    };
    let candidates: Vec<NodeId> = graph.node_ids().filter(joins).collect();
    if candidates.is_empty() {
        return Ok(None);
    }
    let uses = Uses::of(graph);
    let pairs: Vec<(NodeId, PlannedCall, i64)> = candidates
        .into_iter()
        .filter_map(|id| pair(graph, id, &uses, target).map(|(joined, saving_ps)| (id, joined, saving_ps)))
        .collect();
    if pairs.is_empty() {
        return Ok(None);
    }
    let mut out = graph.clone();
    let mut fusions = Vec::with_capacity(pairs.len());
    for (id, joined, saving_ps) in pairs {
        fusions.push(Fusion {
            rule: joined.op.name().to_owned(),
            rule_set: RULE_SET.to_owned(),
            node_name: name(graph, id),
            saving_ps,
            ..Fusion::default()
        });
        let kind = NodeKind::Op {
            op: joined.op,
            attrs: joined.attrs,
        };
        out.replace_call(id, kind, joined.inputs);
    }
    Ok(Some((clean(&out)?.0, fusions)))
}

/// Returns one call that replaces a node and the producer of its operand 0, with the saving in picoseconds; `None` if
/// that is not possible or saves nothing.
fn pair(graph: &Graph, id: NodeId, uses: &Uses, target: &dyn Target) -> Option<(PlannedCall, i64)> {
    let call = PlannedCall::of(graph, id)?;
    let rule = call.op.fused_write()?;
    let between = *call.inputs.first()?;
    let producer = PlannedCall::of(graph, between.node)?;
    let makes_one = graph.nodes()[between.node.index()].outputs.len() == 1;
    let is_private = makes_one && uses.is_private(between.node);
    let same = |&(of_producer, of_call): &(usize, usize)| {
        let value = producer.inputs.get(of_producer);
        value.is_some() && value == call.inputs.get(of_call)
    };
    let fits = producer.op.name() == rule.producer
        && producer.op.writes().is_empty()
        && producer.inputs.len() == rule.same.len() + 1
        && rule.same.iter().all(same);
    if !is_private || !fits {
        return None;
    }
    // The fused call would read the buffer that it writes.
    let written = call
        .op
        .writes()
        .iter()
        .filter_map(|&(operand, _)| call.inputs.get(operand));
    if written
        .map(|&v| data(graph, v))
        .any(|v| v == data(graph, producer.inputs[0]))
    {
        return None;
    }
    let outputs = &graph.nodes()[id.index()].outputs;
    let joined = PlannedCall {
        op: rule.op,
        attrs: producer.attrs.clone(),
        inputs: [&producer.inputs[..1], &call.inputs[1..]].concat(),
    };
    joined.launches(graph, outputs, target)?;
    let before = producer
        .cost(graph, &graph.nodes()[between.node.index()].outputs, target)
        .saturating_add(call.cost(graph, outputs, target));
    let saving = before.checked_sub(joined.cost(graph, outputs, target))?;
    Some((joined, i64::try_from(saving).unwrap_or(i64::MAX)))
}

/// Returns the name that a node keeps in derived graphs, or an empty text.
fn name(graph: &Graph, id: NodeId) -> String {
    graph
        .provenance(id)
        .name
        .map_or_else(String::new, |name| name.to_string())
}

/// Returns the value that a chain of aliases ends at, whose bytes they share.
pub(crate) fn data(graph: &Graph, mut value: Value) -> Value {
    while let Some((op, _)) = graph.nodes()[value.node.index()].op()
        && let Some(operand) = op.alias().filter(|_| value.port == 0)
    {
        value = graph.nodes()[value.node.index()].inputs[operand];
    }
    value
}

/// Sets the nodes of the fusions: finds each fused call by operator and name in `graph`, which later passes derived
/// from the graph with these calls.
pub(crate) fn find_joined(fusions: &mut [Fusion], graph: &Graph) {
    let mut taken = vec![false; graph.nodes().len()];
    for fusion in fusions {
        let is_it = |id: &NodeId| {
            let op = graph.nodes()[id.index()].op();
            let same_op = op.is_some_and(|(op, _)| op.name() == fusion.rule);
            same_op && !taken[id.index()] && name(graph, *id) == fusion.node_name
        };
        fusion.node = graph.node_ids().find(is_it);
        if let Some(id) = fusion.node {
            taken[id.index()] = true;
        }
    }
}
