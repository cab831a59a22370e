//! Lowering of a graph to a plan.
//!
//! Calls without a kernel on the device are replaced here, while the graph is available: half-precision calls are
//! widened, composites are decomposed. Calls that have no kernel after that are listed in an error.

use std::collections::{HashMap, HashSet};

use super::{
    BufferRef, DerivedInfo, Dispatch, ExecutionPlan, FORWARD_BACKWARD, KernelRef, Operand, PLAN_VERSION, PREPARE,
    ParamInfo, StateBuffer, call_title,
};
use crate::attrs::Attrs;
use crate::backend::Device;
use crate::dtype::DType;
use crate::error::{Error, MissingKernel, Result, unwrap_report};
use crate::graph::{ConstantData, Graph, Node, NodeId, NodeKind, Value};
use crate::kernel::{KernelDesc, Support, widen};
use crate::ops::{ATTENTION_LSE, COPY, OpRef, SNAPSHOT};
use crate::precision::Precision;
use crate::reference::{expand_call, operand_name};
use crate::shape::TensorType;

/// Compiles a graph to a plan for a device that has a kernel for every operator. `meganeura::compile` compiles for the
/// selected device.
///
/// # Panics
/// Panics with the text of the error if [`try_compile`] fails.
#[must_use]
#[track_caller]
pub fn compile(graph: &Graph) -> ExecutionPlan {
    unwrap_report(try_compile(graph))
}

/// Compiles like [`compile`], but returns errors instead of panicking.
///
/// # Errors
/// All errors of [`Graph::verify`].
pub fn try_compile(graph: &Graph) -> Result<ExecutionPlan> {
    let mut plan = compile_with(graph, "any", &|_| Support::Yes)?;
    plan.place_buffers(None)?;
    Ok(plan)
}

/// Compiles a graph for a device, at full precision: calls without a kernel are widened or
/// decomposed.
///
/// # Errors
/// All errors of [`Graph::verify`]; [`Error::MissingKernels`] if the device lacks primitives that
/// the graph needs.
pub fn compile_for(graph: &Graph, device: &dyn Device) -> Result<ExecutionPlan> {
    compile_at(graph, device, Precision::F32)
}

/// Compiles like [`compile_for`], but at a given precision.
///
/// # Errors
/// As [`compile_for`].
pub fn compile_at(graph: &Graph, device: &dyn Device, precision: Precision) -> Result<ExecutionPlan> {
    let name = device.capabilities().name.clone();
    let mut plan = compile_with(graph, &name, &|k| device.supports(k))?;
    plan.precision = precision;
    device.finalize(&mut plan)?;
    plan.place_buffers(device.capabilities().max_buffer_bytes)?;
    plan.verify()?;
    Ok(plan)
}

/// Copies the outputs and gradients whose data may be overwritten before they are read, because they are aliases of
/// written or trained leaves, or of inputs. The copies keep the old contents.
fn snapshot_overwritten(graph: &Graph) -> Graph {
    let written: HashSet<Value> = writes(graph).into_iter().map(|(_, old)| old).collect();
    let trains = !graph.gradients().is_empty();
    let is_trained = |id: NodeId| {
        let kind = &graph.nodes()[id.index()].kind;
        trains && matches!(kind, NodeKind::Parameter { trainable: true, .. })
    };
    // A value that a graph assigns to a trained parameter is in the parameter's own buffer, which
    // updates overwrite.
    let assigned: HashSet<Value> = graph
        .effects()
        .iter()
        .filter(|e| is_trained(e.target))
        .map(|e| e.value)
        .collect();
    let overwritten = |mut value: Value| {
        loop {
            let node = &graph.nodes()[value.node.index()];
            // The caller may overwrite an input before it reads the result of the step.
            let fed = matches!(node.kind, NodeKind::Input);
            if fed || is_trained(value.node) || written.contains(&value) || assigned.contains(&value) {
                return true;
            }
            match node.op().and_then(|(op, _)| op.alias()) {
                Some(operand) => value = node.inputs[operand],
                None => return false,
            }
        }
    };
    let mut out = graph.clone();
    out.freeze_writes();
    let mut snapshot = |value: Value| {
        if !overwritten(value) {
            return value;
        }
        let attrs = Attrs::new().with("to", graph.dtype(value));
        let provenance = graph.provenance(value.node);
        out.with_provenance(provenance, |out| out.call(SNAPSHOT, attrs, vec![value]).into())
    };
    let outputs: Vec<Value> = graph.outputs().iter().map(|&v| snapshot(v)).collect();
    let gradients: Vec<(NodeId, Value)> = graph.gradients().iter().map(|&(l, v)| (l, snapshot(v))).collect();
    out.outputs = outputs;
    out.gradients = gradients;
    out
}

/// Returns every write of persistent data, as pairs of the new and the old value.
fn writes(graph: &Graph) -> Vec<(Value, Value)> {
    let mut writes = Vec::new();
    for id in graph.node_ids() {
        let node = &graph.nodes()[id.index()];
        for &(operand, port) in node.op().map_or(&[][..], |(op, _)| op.get().writes()) {
            let port = port as u32;
            writes.push((Value { node: id, port }, node.inputs[operand]));
        }
    }
    writes
}

pub(super) type Supports<'a> = &'a dyn Fn(&KernelDesc) -> Support;

fn compile_with(graph: &Graph, device: &str, supports: Supports) -> Result<ExecutionPlan> {
    graph.verify()?;
    let graph = &snapshot_overwritten(graph);
    let mut plan = ExecutionPlan {
        version: PLAN_VERSION,
        ..ExecutionPlan::default()
    };
    let values = lower(graph, &mut plan, &HashMap::new(), FORWARD_BACKWARD, device, supports)?;
    for output in graph.outputs() {
        plan.output_buffers.push(values[output]);
        plan.output_types.extend(graph.ty(*output).cloned());
    }
    plan.output_names = graph.output_names().map(str::to_owned).collect();
    plan.loss_buffer = plan.output_buffers.first().copied();
    for &(leaf, gradient) in graph.gradients() {
        let node = &graph.nodes()[leaf.index()];
        let buffer = values[&gradient];
        let name = node.name.as_deref().unwrap_or_default().to_owned();
        plan.gradient_buffers.push((name, buffer));
        if matches!(node.kind, NodeKind::Parameter { trainable: true, .. }) {
            plan.param_grad_pairs.push((values[&leaf.into()], buffer));
        }
    }
    plan.verify()?;
    Ok(plan)
}

/// Appends a graph to a plan as a new segment. Leaves in `bound` use the given buffers; other
/// leaves get their own.
pub(super) fn lower(
    graph: &Graph,
    plan: &mut ExecutionPlan,
    bound: &HashMap<NodeId, BufferRef>,
    segment: &str,
    device: &str,
    supports: Supports,
) -> Result<HashMap<Value, BufferRef>> {
    let schedule = schedule(graph)?;
    // Invariant values come first, in a segment of their own.
    let invariant = if segment == FORWARD_BACKWARD {
        graph.invariant_calls()?
    } else {
        vec![false; graph.nodes().len()]
    };
    let (prepared, stepped): (Vec<NodeId>, Vec<NodeId>) = if invariant.contains(&true) {
        (schedule.order.iter()).partition(|id| invariant[id.index()] || !graph.nodes()[id.index()].is_op())
    } else {
        (Vec::new(), schedule.order.clone())
    };
    let mut lowering = Lowering {
        plan,
        supports,
        missing: Vec::new(),
        // The graph builders of updates belong to the library.
        sourced: segment == FORWARD_BACKWARD,
        source: None,
    };
    let mut values = HashMap::new();
    lowering.calls(graph, &prepared, &schedule, bound, None, &mut values)?;
    // A graph of views has no dispatches.
    if lowering.plan.has_open_dispatches() {
        lowering.plan.end_segment(PREPARE, true);
    }
    lowering.calls(graph, &stepped, &schedule, bound, None, &mut values)?;
    lowering.deferred_writes(graph, &values);
    let missing = lowering.missing;
    if !missing.is_empty() {
        return Err(Error::MissingKernels {
            device: device.to_owned(),
            missing,
        });
    }
    plan.end_segment(segment, false);
    Ok(values)
}

/// Order of execution of the nodes, and the writes that happen in place.
struct Schedule {
    order: Vec<NodeId>,
    /// Values that are computed into the buffer of the persistent data that they replace.
    in_place: HashMap<Value, Value>,
}

/// Orders the nodes so that all readers of the old contents of persistent data come before the write that
/// replaces them. Where that is impossible, because a reader depends on the write, the write goes to a
/// buffer of its own and is copied at the end of the step.
fn schedule(graph: &Graph) -> Result<Schedule> {
    let writes = writes(graph);
    if writes.is_empty() {
        return Ok(Schedule {
            order: graph.topological_order()?,
            in_place: HashMap::new(),
        });
    }
    let mut order = Ordering::of(graph);
    let mut in_place = HashMap::new();
    for (new, old) in writes {
        if order.put_readers_first(graph, new.node, old) {
            in_place.insert(new, old);
        }
    }
    Ok(Schedule {
        order: graph.topological_order_after(&order.extra)?,
        in_place,
    })
}

/// Edges of a graph: from each node to its users, and additional ones that only determine the order.
struct Ordering {
    users: Vec<Vec<NodeId>>,
    /// For each node, additional predecessors that it does not use as operands.
    extra: Vec<Vec<NodeId>>,
}

impl Ordering {
    fn of(graph: &Graph) -> Self {
        let mut users = vec![Vec::new(); graph.nodes().len()];
        for id in graph.node_ids() {
            for v in &graph.nodes()[id.index()].inputs {
                users[v.node.index()].push(id);
            }
        }
        Ordering {
            extra: vec![Vec::new(); users.len()],
            users,
        }
    }

    /// Orders every other reader of `old` before `writer`. Returns `false`, without a change, if one of them depends on
    /// the writer.
    fn put_readers_first(&mut self, graph: &Graph, writer: NodeId, old: Value) -> bool {
        let readers = self.readers(graph, writer, old);
        if readers.is_empty() {
            return true;
        }
        let after = self.reachable(writer);
        if readers.iter().any(|r| after.contains(r)) {
            return false;
        }
        for &reader in &readers {
            // Treat it like any other edge, so that later writes respect it.
            self.users[reader.index()].push(writer);
        }
        self.extra[writer.index()].extend(readers);
        true
    }

    /// Returns the calls that read a value, also through aliases.
    fn readers(&self, graph: &Graph, writer: NodeId, old: Value) -> Vec<NodeId> {
        let mut aliases = vec![old];
        let mut readers = Vec::new();
        let mut next = 0;
        while let Some(&value) = aliases.get(next) {
            next += 1;
            for &id in &self.users[value.node.index()] {
                let node = &graph.nodes()[id.index()];
                let Some((op, _)) = node.op() else { continue };
                if id == writer || !node.inputs.contains(&value) {
                    continue;
                }
                if op.alias().is_some_and(|i| node.inputs[i] == value) {
                    aliases.push(id.into());
                } else {
                    readers.push(id);
                }
            }
        }
        readers
    }

    /// Returns all nodes that depend on a node.
    fn reachable(&self, from: NodeId) -> HashSet<NodeId> {
        let mut seen = HashSet::new();
        let mut open = vec![from];
        while let Some(id) = open.pop() {
            for &user in &self.users[id.index()] {
                if seen.insert(user) {
                    open.push(user);
                }
            }
        }
        seen
    }
}

struct Lowering<'a> {
    plan: &'a mut ExecutionPlan,
    supports: Supports<'a>,
    missing: Vec<MissingKernel>,
    /// `true` if source locations are lines of the user's code.
    sourced: bool,
    /// Source line of the current call.
    source: Option<u32>,
}

impl Lowering<'_> {
    /// Lowers all nodes. `label` replaces the nodes' own labels when a decomposition is lowered.
    fn graph(
        &mut self,
        graph: &Graph,
        schedule: &Schedule,
        bound: &HashMap<NodeId, BufferRef>,
        label: Option<&str>,
    ) -> Result<HashMap<Value, BufferRef>> {
        let mut values = HashMap::new();
        self.calls(graph, &schedule.order, schedule, bound, label, &mut values)?;
        self.deferred_writes(graph, &values);
        Ok(values)
    }

    /// Lowers some of the nodes. Each operand is in `values` already, or is a result of these nodes.
    fn calls(
        &mut self,
        graph: &Graph,
        nodes: &[NodeId],
        schedule: &Schedule,
        bound: &HashMap<NodeId, BufferRef>,
        label: Option<&str>,
        values: &mut HashMap<Value, BufferRef>,
    ) -> Result<()> {
        for &id in nodes {
            let node = &graph.nodes()[id.index()];
            if let Some(&buffer) = bound.get(&id) {
                values.insert(id.into(), buffer);
                continue;
            }
            let Some((op, _)) = node.op() else {
                let buffer = self.leaf(node);
                values.insert(id.into(), buffer);
                continue;
            };
            if let Some(operand) = op.alias() {
                values.insert(id.into(), values[&node.inputs[operand]]);
                continue;
            }
            let ports = || (0..node.outputs.len() as u32).map(|port| Value { node: id, port });
            let targets: Vec<Option<BufferRef>> = ports()
                .map(|value| schedule.in_place.get(&value).map(|old| values[old]))
                .collect();
            let inputs: Vec<Operand> = node
                .inputs
                .iter()
                .filter_map(|v| {
                    let ty = graph.ty(*v)?.clone();
                    Some(Operand { buffer: values[v], ty })
                })
                .collect();
            if label.is_none() && self.sourced {
                self.source = node.location.map(|location| self.plan.source_index(location));
            }
            let label = label.map_or_else(|| dispatch_label(node, id, op), str::to_owned);
            let outputs = self.call(node, op, inputs, &targets, &label)?;
            values.extend(ports().zip(outputs.iter().copied()));
            let names = op.ports().iter().zip(&outputs);
            let saved = names.filter(|(name, _)| **name == ATTENTION_LSE);
            self.plan.lse_buffers.extend(saved.map(|(_, &buffer)| (id, buffer)));
        }
        Ok(())
    }

    /// Copies new values that could not be written in place to their leaves; only the last write of each leaf counts.
    fn deferred_writes(&mut self, graph: &Graph, values: &HashMap<Value, BufferRef>) {
        for effect in graph.effects() {
            let (target, source) = (values[&effect.target.into()], values[&effect.value]);
            if target != source {
                let ty = &graph.nodes()[effect.target.index()].outputs[0];
                self.copy(target, source, ty, "deferred write");
            }
        }
    }

    fn leaf(&mut self, node: &Node) -> BufferRef {
        let buffer = self.plan.add_buffer(&node.outputs[0]);
        let name = || node.name.as_deref().unwrap_or_default().to_owned();
        match &node.kind {
            NodeKind::Input => self.plan.input_buffers.push((name(), buffer)),
            NodeKind::Scalar => self.plan.scalar_buffers.push((name(), buffer)),
            NodeKind::Parameter { trainable, init, .. } => {
                if let Some(packing) = node.packing() {
                    let sources = packing.sources.iter().map(|s| (s.name.to_string(), s.size));
                    self.plan.derived_params.push((buffer, sources.collect()));
                    self.plan.derived_info.push(DerivedInfo {
                        axis: packing.axis,
                        init: packing.sources.iter().map(|s| s.init).collect(),
                    });
                }
                self.plan.param_buffers.push((name(), buffer));
                self.plan.param_info.push(ParamInfo {
                    trainable: *trainable,
                    init: *init,
                });
            }
            NodeKind::State { fill } => self.plan.state_buffers.push(StateBuffer {
                name: name(),
                buffer,
                fill: *fill,
                optimizer: false,
                packed: None,
            }),
            NodeKind::Constant(data) => self.constant(buffer, data),
            NodeKind::Op { .. } | NodeKind::Poison => {}
        }
        buffer
    }

    fn constant(&mut self, buffer: BufferRef, data: &ConstantData) {
        if data.dtype() == DType::F32 {
            let words = data.bytes().chunks_exact(4);
            let values = words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            self.plan.constant_buffers.push((buffer, values.collect()));
        } else {
            self.plan.raw_constant_buffers.push((buffer, data.bytes().to_vec()));
        }
    }

    /// Lowers one call: to a kernel of the device, a widened call, or the decomposition. Results
    /// are written to their targets, or to buffers of their own; returns their buffers.
    fn call(
        &mut self,
        node: &Node,
        op: OpRef,
        inputs: Vec<Operand>,
        targets: &[Option<BufferRef>],
        label: &str,
    ) -> Result<Vec<BufferRef>> {
        let Some((_, attrs)) = node.op() else {
            return Ok(Vec::new());
        };
        let types: Vec<TensorType> = inputs.iter().map(|o| o.ty.clone()).collect();
        let desc = KernelDesc {
            name: op.name(),
            version: op.version(),
            attrs,
            inputs: &types,
            outputs: &node.outputs,
        };
        let Support::No(reason) = (self.supports)(&desc) else {
            return Ok(self.dispatch(&desc, inputs, targets, label));
        };
        let (graph, results) = if let Some(widened) = widen(op, &desc)? {
            widened
        } else if op.semantics().decomposition().is_some() {
            expand_call(op, attrs, &types, &node.outputs)?
        } else {
            self.missing.push(MissingKernel {
                kernel: desc.to_string(),
                label: label.to_owned(),
                reason,
            });
            return Ok(self.targets(targets, &node.outputs));
        };
        self.replacement(&graph, &results, &inputs, targets, label)
    }

    fn targets(&mut self, targets: &[Option<BufferRef>], types: &[TensorType]) -> Vec<BufferRef> {
        targets
            .iter()
            .zip(types)
            .map(|(target, ty)| target.unwrap_or_else(|| self.plan.add_buffer(ty)))
            .collect()
    }

    fn dispatch(
        &mut self,
        desc: &KernelDesc,
        inputs: Vec<Operand>,
        targets: &[Option<BufferRef>],
        label: &str,
    ) -> Vec<BufferRef> {
        let buffers = self.targets(targets, desc.outputs);
        let outputs = buffers
            .iter()
            .zip(desc.outputs)
            .map(|(&buffer, ty)| Operand { buffer, ty: ty.clone() });
        self.plan.dispatches.push(Dispatch {
            kernel: KernelRef {
                name: desc.name.to_owned(),
                version: desc.version,
            },
            attrs: desc.attrs.clone(),
            inputs,
            outputs: outputs.collect(),
            level: 0,
            label: label.to_owned(),
            source: self.source,
            use_coop: false,
            variant: None,
        });
        buffers
    }

    /// Lowers the graph that replaces a call.
    fn replacement(
        &mut self,
        graph: &Graph,
        results: &[Value],
        inputs: &[Operand],
        targets: &[Option<BufferRef>],
        label: &str,
    ) -> Result<Vec<BufferRef>> {
        let bound: HashMap<NodeId, BufferRef> = inputs
            .iter()
            .enumerate()
            .filter_map(|(i, o)| Some((graph.leaf_named(&operand_name(i))?, o.buffer)))
            .collect();
        let schedule = schedule(graph)?;
        let values = self.graph(graph, &schedule, &bound, Some(label))?;
        let mut buffers = Vec::new();
        for (result, target) in results.iter().zip(targets) {
            let source = values[result];
            let is_operand = inputs.iter().any(|o| o.buffer == source);
            let Some(ty) = graph.ty(*result).cloned() else {
                continue;
            };
            // A result that is an operand itself must not change when the operand is written later.
            let target = target.or_else(|| is_operand.then(|| self.plan.add_buffer(&ty)));
            if let Some(target) = target {
                self.copy(target, source, &ty, label);
            }
            buffers.push(target.unwrap_or(source));
        }
        Ok(buffers)
    }

    fn copy(&mut self, target: BufferRef, source: BufferRef, ty: &TensorType, label: &str) {
        let operand = |buffer| Operand { buffer, ty: ty.clone() };
        self.plan.dispatches.push(Dispatch {
            kernel: KernelRef {
                name: COPY.name().to_owned(),
                version: COPY.version(),
            },
            attrs: Attrs::new(),
            inputs: vec![operand(target), operand(source)],
            outputs: vec![operand(target)],
            level: 0,
            label: format!("{label}.write"),
            source: self.source,
            use_coop: false,
            variant: None,
        });
    }
}

fn dispatch_label(node: &Node, id: NodeId, op: OpRef) -> String {
    let title = match node.op() {
        Some((_, attrs)) => call_title(op.name(), attrs),
        None => op.name().to_owned(),
    };
    match &node.name {
        Some(name) => format!("{name} ({title})"),
        None => format!("{id} ({title})"),
    }
}
