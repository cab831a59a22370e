//! Candidates of clusters: the fused call that would replace a set of nodes.

use std::collections::{HashMap, HashSet};

use meganeura_core::attrs::Attrs;
use meganeura_core::cost::Target;
use meganeura_core::graph::{Graph, NodeId, NodeKind, Uses, Value};
use meganeura_core::kernel::KernelDesc;
use meganeura_core::ops::{FUSED, FusionRole};
use meganeura_core::program::{Program, Slot, Step};
use meganeura_core::shape::TensorType;

/// Returns the fusion role of a node.
pub(super) fn fusing(graph: &Graph, id: NodeId) -> FusionRole {
    let node = &graph.nodes()[id.index()];
    match &node.kind {
        NodeKind::Op { op, .. } if op.writes().is_empty() => match op.fusing() {
            FusionRole::Rows => FusionRole::Rows,
            kind if node.outputs.len() == 1 => kind,
            _ => FusionRole::Opaque,
        },
        _ => FusionRole::Opaque,
    }
}

/// Returns the value that a chain of views reads, and the views, innermost first.
pub(super) fn behind_views(graph: &Graph, mut value: Value) -> (Value, Vec<NodeId>) {
    let mut views = Vec::new();
    while fusing(graph, value.node) == FusionRole::View {
        views.push(value.node);
        value = graph.nodes()[value.node.index()].inputs[0];
    }
    views.reverse();
    (value, views)
}

/// A fused call that may replace a set of nodes (its members).
pub(super) struct CandidateCall {
    pub(super) program: Program,
    /// Values of the graph that the call reads.
    pub(super) operands: Vec<Value>,
    /// Values of the graph that the call's results replace.
    pub(super) results: Vec<Value>,
    operand_types: Vec<TensorType>,
    result_types: Vec<TensorType>,
    /// Views and parts that the call reads through, so that they are not computed separately.
    pub(super) views: Vec<NodeId>,
    /// Number of these views that would cost time as separate calls.
    pub(super) costly_views: usize,
}

impl CandidateCall {
    /// Creates the call of some nodes, in topological order; `None` if that is impossible, for
    /// instance because it would be too large.
    pub(super) fn new(graph: &Graph, uses: &Uses, members: &[NodeId]) -> Option<Self> {
        let inside: HashSet<NodeId> = members.iter().copied().collect();
        let mut builder = Builder {
            graph,
            uses,
            inside: &inside,
            slots: HashMap::new(),
            steps: Vec::new(),
            operands: Vec::new(),
            views: Vec::new(),
            costly_views: 0,
        };
        for &id in members {
            builder.member(id)?;
        }
        let results: Vec<Value> = members
            .iter()
            .flat_map(|&id| graph.values(id))
            .filter(|&value| is_needed(graph, uses, &inside, value))
            .collect();
        let slots = results.iter().map(|v| builder.slots[v]).collect();
        let types = |values: &[Value]| values.iter().map(|&v| graph.ty(v).cloned()).collect::<Option<Vec<_>>>();
        let operand_types = types(&builder.operands)?;
        let result_types = types(&results)?;
        let program = Program::new(builder.operands.len(), builder.steps, slots).ok()?;
        Some(CandidateCall {
            program,
            operands: builder.operands,
            results,
            operand_types,
            result_types,
            views: builder.views,
            costly_views: builder.costly_views,
        })
    }

    /// Returns the bytes read and written.
    pub(super) fn bytes(&self) -> u64 {
        let types = self.operand_types.iter().chain(&self.result_types);
        types.map(|t| t.bytes() as u64).fold(0, u64::saturating_add)
    }

    /// Returns `true` if a device has a kernel for the call.
    pub(super) fn runs_on(&self, target: &dyn Target) -> bool {
        let launches = target.launches(&KernelDesc {
            name: FUSED.name(),
            version: FUSED.version(),
            attrs: &self.attrs(),
            inputs: &self.operand_types,
            outputs: &self.result_types,
        });
        launches.is_some()
    }

    /// Returns the attributes of the call.
    pub(super) fn attrs(&self) -> Attrs {
        Attrs::new().with("program", self.program.clone())
    }
}

/// Returns `true` if a member's value has users outside of the cluster. Views do not count as users if only the cluster
/// reads them.
fn is_needed(graph: &Graph, uses: &Uses, inside: &HashSet<NodeId>, value: Value) -> bool {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        if uses.roots.contains(&value) {
            return true;
        }
        for &user in &uses.users[value.node.index()] {
            if inside.contains(&user) || !graph.nodes()[user.index()].inputs.contains(&value) {
                continue;
            }
            if fusing(graph, user) != FusionRole::View {
                return true;
            }
            open.push(user.into());
        }
    }
    false
}

struct Builder<'a> {
    graph: &'a Graph,
    uses: &'a Uses,
    inside: &'a HashSet<NodeId>,
    slots: HashMap<Value, Slot>,
    steps: Vec<Step>,
    operands: Vec<Value>,
    views: Vec<NodeId>,
    costly_views: usize,
}

impl Builder<'_> {
    fn member(&mut self, id: NodeId) -> Option<()> {
        let node = &self.graph.nodes()[id.index()];
        // Products read their operands in place unless the operands are computed in the prologue;
        // norms read their parameters in place.
        let kind = fusing(self.graph, id);
        let through = |at: usize, v: Value| match kind {
            FusionRole::Contraction => self.inside.contains(&behind_views(self.graph, v).0.node),
            FusionRole::Rows => at == 0,
            _ => true,
        };
        let inputs = node.inputs.iter().enumerate();
        let inputs: Vec<Slot> = inputs
            .map(|(at, &v)| match kind {
                FusionRole::OfPart if at == 0 => self.read_part(v),
                FusionRole::OfPart => Some(self.operand(v)),
                _ if through(at, v) => self.read(v),
                _ => Some(self.operand(v)),
            })
            .collect::<Option<_>>()?;
        self.push(id, inputs)
    }

    fn push(&mut self, id: NodeId, inputs: Vec<Slot>) -> Option<()> {
        let (op, attrs) = self.graph.nodes()[id.index()].op()?;
        let step = self.steps.len() as u32;
        for value in self.graph.values(id) {
            self.slots.insert(value, Slot::result(step, value.port));
        }
        self.steps.push(Step {
            op,
            attrs: attrs.clone(),
            inputs,
        });
        Some(())
    }

    fn operand(&mut self, value: Value) -> Slot {
        let next = Slot::Operand(self.operands.len() as u32);
        *self.slots.entry(value).or_insert_with(|| {
            self.operands.push(value);
            next
        })
    }

    /// Returns the slot of a value that a member reads. Views of members' results become steps; so do views of other
    /// values if only this cluster needs them.
    fn read(&mut self, value: Value) -> Option<Slot> {
        if let Some(&slot) = self.slots.get(&value) {
            return Some(slot);
        }
        let (base, views) = behind_views(self.graph, value);
        let first = if self.inside.contains(&base.node) {
            0
        } else {
            // Start at the first view that moves or repeats elements; views that only rename axes
            // stay outside.
            let moves = |id: &NodeId| {
                self.graph.nodes()[id.index()]
                    .op()
                    .is_some_and(|(op, _)| op.alias().is_none())
            };
            let from = views.iter().position(moves).unwrap_or(views.len());
            let shared = views[from..].iter().rposition(|&id| !self.is_cheap(id));
            shared.map_or(from, |at| from + at + 1)
        };
        let rest = &views[first..];
        let start = rest
            .first()
            .map_or(value, |id| self.graph.nodes()[id.index()].inputs[0]);
        let mut slot = match self.slots.get(&start) {
            Some(&slot) => slot,
            None => self.operand(start),
        };
        for &view in rest {
            if let Some(&known) = self.slots.get(&view.into()) {
                slot = known;
                continue;
            }
            let free = self.graph.nodes()[view.index()].op()?.0.alias().is_some();
            self.costly_views += usize::from(!free);
            self.views.push(view);
            self.push(view, vec![slot])?;
            slot = self.slots[&view.into()];
        }
        Some(slot)
    }

    /// Returns the slot of a value. If it is a part of a larger value and has no other users, it
    /// becomes a step.
    fn read_part(&mut self, value: Value) -> Option<Slot> {
        let id = value.node;
        if fusing(self.graph, id) != FusionRole::Part || !self.uses.is_private(id) {
            return Some(self.operand(value));
        }
        let whole = self.operand(self.graph.nodes()[id.index()].inputs[0]);
        self.costly_views += 1;
        self.views.push(id);
        self.push(id, vec![whole])?;
        self.slots.get(&value).copied()
    }

    /// Returns `true` if reading through a view costs no more than it saves: no other call reads the view, or it
    /// repeats the elements of a smaller tensor.
    fn is_cheap(&self, id: NodeId) -> bool {
        let node = &self.graph.nodes()[id.index()];
        let smaller = self
            .graph
            .ty(node.inputs[0])
            .is_some_and(|from| from.numel() < node.outputs[0].numel());
        smaller || self.uses.is_private(id)
    }
}
