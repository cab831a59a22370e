//! Fusion of projections (matmuls) with the calls after them: the rotation of their rows (RoPE), and the write into a
//! cache.
//!
//! A rotation reads elements at other indices, and a write cannot be part of a program, so neither
//! is a member of a cluster. A device with a kernel for a contraction with such an epilogue saves a
//! separate pass.

use std::collections::{HashMap, HashSet};

use super::report::Cluster;
use crate::rewrite::clean::clean_with_places;
use crate::rewrite::join::{PlannedCall, data};
use crate::rewrite::request::Pass;
use meganeura_core::attrs::Attrs;
use meganeura_core::cost::Target;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId, NodeKind, Uses, Value};
use meganeura_core::ops::{FUSED, FusionRole, OpRef};
use meganeura_core::program::{Program, Slot, Step};

/// A graph with fused projections.
pub(crate) struct FusedProjections {
    pub(crate) graph: Graph,
    /// The new calls.
    pub(crate) clusters: Vec<Cluster>,
    /// Maps each node that is still needed to its node in the new graph, or to the call that contains it.
    pub(crate) moved: HashMap<NodeId, NodeId>,
}

/// Steps of a program that is being built, and the values that they read.
#[derive(Clone, Default)]
struct StepsAndReads {
    steps: Vec<Step>,
    operands: Vec<Value>,
    /// Calls of the graph that the steps replace.
    members: Vec<NodeId>,
}

impl StepsAndReads {
    /// Returns the slot of an operand.
    fn operand(&mut self, value: Value) -> Slot {
        let known = self.operands.iter().position(|&v| v == value);
        let at = known.unwrap_or_else(|| {
            self.operands.push(value);
            self.operands.len() - 1
        });
        Slot::Operand(at as u32)
    }

    fn push(&mut self, op: OpRef, attrs: Attrs, inputs: Vec<Slot>) -> Slot {
        self.steps.push(Step { op, attrs, inputs });
        Slot::Step(self.steps.len() as u32 - 1)
    }

    /// Adds the steps of another program, and returns the slot of its last result.
    fn extend(&mut self, other: &StepsAndReads) -> Slot {
        let first = self.steps.len() as u32;
        let slots: Vec<Slot> = other.operands.iter().map(|&v| self.operand(v)).collect();
        let moved = |slot: &Slot| match *slot {
            Slot::Operand(at) => slots[at as usize],
            Slot::Step(step) => Slot::Step(step + first),
            Slot::Port { step, port } => Slot::Port {
                step: step + first,
                port,
            },
        };
        for step in &other.steps {
            let inputs = step.inputs.iter().map(moved).collect();
            self.push(step.op, step.attrs.clone(), inputs);
        }
        self.members.extend(&other.members);
        Slot::Step(self.steps.len() as u32 - 1)
    }
}

/// A planned call that replaces several calls.
struct Plan {
    call: PlannedCall,
    /// Calls of the graph that it replaces, except for the one at whose position it is inserted.
    members: Vec<NodeId>,
    saving_ps: u64,
}

struct Finder<'a> {
    graph: &'a Graph,
    target: &'a dyn Target,
    uses: Uses,
    /// `true` for each invariant node.
    invariant: Vec<bool>,
    /// Persistent data that calls of the graph write.
    written: HashSet<Value>,
    plans: HashMap<NodeId, Plan>,
}

/// Returns the graph with fused projections; `None` if there are none.
///
/// # Errors
/// All errors of [`Graph::verify`].
pub(crate) fn join_projections(graph: &Graph, target: &dyn Target, pass: Pass) -> Result<Option<FusedProjections>> {
    let ops = graph
        .node_ids()
        .filter_map(|id| Some((id, graph.nodes()[id.index()].op()?.0)));
    let written = ops.flat_map(|(id, op)| {
        let inputs = &graph.nodes()[id.index()].inputs;
        op.writes()
            .iter()
            .filter_map(move |&(operand, _)| Some(data(graph, *inputs.get(operand)?)))
    });
    let mut finder = Finder {
        graph,
        target,
        uses: Uses::of(graph),
        invariant: pass.invariant_nodes(graph)?,
        written: written.collect(),
        plans: HashMap::new(),
    };
    for id in graph.topological_order()? {
        if let Some(plan) = finder.plan(id) {
            finder.plans.insert(id, plan);
        }
    }
    let mut plans = finder.plans;
    let taken: Vec<NodeId> = plans.values().flat_map(|plan| plan.members.clone()).collect();
    plans.retain(|id, _| !taken.contains(id));
    if plans.is_empty() {
        return Ok(None);
    }
    let mut out = graph.clone();
    for (&id, plan) in &plans {
        let PlannedCall { op, attrs, inputs } = plan.call.clone();
        out.replace_call(id, NodeKind::Op { op, attrs }, inputs);
    }
    let (out, _, _, places) = clean_with_places(&out)?;
    let place = |id: NodeId| places[id.index()];
    let mut moved: HashMap<NodeId, NodeId> = graph.node_ids().filter_map(|id| Some((id, place(id)?))).collect();
    let mut clusters = Vec::with_capacity(plans.len());
    let mut ids: Vec<&NodeId> = plans.keys().collect();
    ids.sort();
    for id in ids {
        let (plan, Some(node)) = (&plans[id], place(*id)) else {
            continue;
        };
        moved.extend(plan.members.iter().map(|&member| (member, node)));
        clusters.push(Cluster {
            node,
            label: out.label(node).0,
            calls: plan.members.len() + 1,
            program: plan
                .call
                .attrs
                .program("program")
                .map(ToString::to_string)
                .unwrap_or_default(),
            saving_ps: plan.saving_ps,
        });
    }
    Ok(Some(FusedProjections {
        graph: out,
        clusters,
        moved,
    }))
}

impl Finder<'_> {
    /// Returns the call that replaces a rotation or a write and the projection before it, if that
    /// is faster.
    fn plan(&self, id: NodeId) -> Option<Plan> {
        let node = &self.graph.nodes()[id.index()];
        let (op, attrs) = node.op()?;
        let first = *node.inputs.first()?;
        if let Some(rule) = op.program_write() {
            let mut draft = StepsAndReads::default();
            for &operand in &node.inputs[1..] {
                draft.operand(operand);
            }
            let mut last = draft.extend(&self.projection(first, id)?);
            if let Some(before) = rule.before {
                let places = draft.operand(*node.inputs.last()?);
                last = draft.push(before, attrs.clone(), vec![last, places]);
            }
            let program = Program::new(draft.operands.len(), draft.steps.clone(), vec![last]).ok()?;
            let attrs = Attrs::new().with("program", program).with("paged", rule.paged);
            return self.checked(id, rule.op, attrs, draft);
        }
        if op.fusing() != FusionRole::OfPart || node.outputs.len() != 1 {
            return None;
        }
        let mut draft = self.projection(first, id)?;
        let mut inputs = vec![Slot::Step(draft.steps.len() as u32 - 1)];
        for &operand in &node.inputs[1..] {
            inputs.push(draft.operand(operand));
        }
        let last = draft.push(op, attrs.clone(), inputs);
        let program = Program::new(draft.operands.len(), draft.steps.clone(), vec![last]).ok()?;
        self.checked(id, FUSED, Attrs::new().with("program", program), draft)
    }

    /// Returns the contraction that computes a value, with everything fused into it so far, if `user` is its only
    /// reader (through reshapes). The contraction is computed at the position of that reader. So it must not read
    /// persistent data that the graph writes, because a write could come first.
    fn projection(&self, value: Value, user: NodeId) -> Option<StepsAndReads> {
        let draft = self.draft(value, user)?;
        let is_stable = |&value: &Value| !self.written.contains(&data(self.graph, value));
        draft.operands.iter().all(is_stable).then_some(draft)
    }

    fn draft(&self, value: Value, user: NodeId) -> Option<StepsAndReads> {
        let id = value.node;
        let (PlannedCall { op, attrs, inputs }, mut members) = match self.plans.get(&id) {
            Some(plan) => (plan.call.clone(), plan.members.clone()),
            None => (PlannedCall::of(self.graph, id)?, Vec::new()),
        };
        members.push(id);
        let is_private = self.uses.is_private(id) && value.port == 0;
        if !is_private || self.invariant[id.index()] != self.invariant[user.index()] || !op.writes().is_empty() {
            return None;
        }
        if op.alias() == Some(0) {
            let mut draft = self.draft(inputs[0], id)?;
            let last = Slot::Step(draft.steps.len() as u32 - 1);
            draft.push(op, attrs, vec![last]);
            draft.members.push(id);
            return Some(draft);
        }
        let mut draft = StepsAndReads {
            members,
            ..StepsAndReads::default()
        };
        match attrs.program("program").ok().filter(|_| op == FUSED) {
            Some(program) => {
                let ends = program.results() == [Slot::Step(program.steps().len() as u32 - 1)];
                let is_projection = program
                    .steps()
                    .iter()
                    .any(|step| step.op.fusing() == FusionRole::Contraction);
                draft.steps = program.steps().to_vec();
                draft.operands = inputs;
                (ends && is_projection).then_some(draft)
            }
            None if op.fusing() == FusionRole::Contraction => {
                let inputs = inputs.into_iter().map(|v| draft.operand(v)).collect();
                draft.push(op, attrs, inputs);
                Some(draft)
            }
            None => None,
        }
    }

    /// Returns the call if the device has a kernel for it that costs no more than the replaced
    /// calls.
    fn checked(&self, id: NodeId, op: OpRef, attrs: Attrs, draft: StepsAndReads) -> Option<Plan> {
        let (graph, target) = (self.graph, self.target);
        let outputs = |id: NodeId| &*graph.nodes()[id.index()].outputs;
        let call = PlannedCall {
            op,
            attrs,
            inputs: draft.operands,
        };
        let own = PlannedCall::of(graph, id)?;
        if call.launches(graph, outputs(id), target)? > own.launches(graph, outputs(id), target)? {
            return None;
        }
        let calls = draft.members.iter().chain([&id]);
        let costs = calls.filter_map(|&id| Some(PlannedCall::of(graph, id)?.cost(graph, outputs(id), target)));
        let before = costs.fold(0, u64::saturating_add);
        Some(Plan {
            saving_ps: before.checked_sub(call.cost(graph, outputs(id), target))?,
            call,
            members: draft.members,
        })
    }
}
