//! Growth of clusters: decides which calls are fused. Each call is a unit at first; merging two units gives a unit with
//! the members of both.

use std::collections::HashSet;

use super::draft::{CandidateCall, behind_views, fusing};
use super::spans::Spans;
use meganeura_core::cost::Target;
use meganeura_core::dtype::DType;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId, Uses, Value};
use meganeura_core::ops::FusionRole;
use meganeura_core::shape::TensorType;

/// Maximum number of calls in a cluster. It keeps programs readable and bounds the time of trying a merge.
const MAX_MEMBERS: usize = 32;
/// Maximum number of nodes that the search for a path visits. Beyond it, a path is assumed to exist.
const MAX_VISITS: usize = 2048;

/// A group of calls to be fused.
pub(super) struct FusionGroup {
    /// The calls, in topological order.
    pub(super) members: Vec<NodeId>,
    /// The fused call.
    pub(super) draft: CandidateCall,
    /// Estimated time saved by the fusion, in picoseconds.
    pub(super) saving: u64,
}

/// A set of calls that run as one fused call. It has one member at first.
struct Unit {
    /// The calls, in topological order.
    members: Vec<NodeId>,
    /// Number of elements that the fused call iterates over.
    domain: usize,
    /// Fusion role of the only member that is not elementwise, if there is one.
    anchor: Option<FusionRole>,
    /// Estimated time of the fused call, in picoseconds.
    cost: u64,
    /// Estimated total time of the members as separate calls, in picoseconds.
    apart: u64,
}

struct Growth<'a> {
    graph: &'a Graph,
    target: &'a dyn Target,
    uses: Uses,
    /// Position of each node in the topological order.
    place: Vec<usize>,
    /// Unit of each node; `None` for nodes that cannot be merged.
    unit_of: Vec<Option<usize>>,
    units: Vec<Option<Unit>>,
    /// Positions of the first and last member of each unit.
    spans: Spans,
    /// `true` for each invariant node. Units of invariant nodes are not merged with other units.
    invariant: Vec<bool>,
    launch_ps: f64,
    ps_per_byte: f64,
}

/// Finds the clusters of a graph. `invariant` is `true` for each node whose value does not change between steps.
///
/// # Errors
/// A cycle.
pub(super) fn grow(graph: &Graph, target: &dyn Target, invariant: Vec<bool>) -> Result<Vec<FusionGroup>> {
    let order = graph.topological_order()?;
    let mut place = vec![0; order.len()];
    for (i, id) in order.iter().enumerate() {
        place[id.index()] = i;
    }
    let model = target.cost_model();
    let mut growth = Growth {
        graph,
        target,
        uses: Uses::of(graph),
        place,
        unit_of: vec![None; order.len()],
        units: Vec::new(),
        spans: Spans::new(order.len()),
        invariant,
        launch_ps: model.launch.as_secs_f64() * 1e12,
        ps_per_byte: 1e12 / model.bytes_per_second.max(1.0),
    };
    for &id in &order {
        growth.add(id);
        growth.merge_with_producers(id);
    }
    for &id in &order {
        growth.merge_readers(id);
        growth.move_to_reduction(id);
    }
    Ok(growth.finish())
}

impl Growth<'_> {
    fn cost(&self, draft: &CandidateCall) -> u64 {
        (self.launch_ps + draft.bytes() as f64 * self.ps_per_byte) as u64
    }

    /// Creates a unit for a node, if it may be merged.
    fn add(&mut self, id: NodeId) {
        let kind = fusing(self.graph, id);
        if matches!(kind, FusionRole::Opaque | FusionRole::View | FusionRole::Part) {
            return;
        }
        let Some(draft) = CandidateCall::new(self.graph, &self.uses, &[id]) else {
            return;
        };
        let node = &self.graph.nodes()[id.index()];
        let read = node.inputs.first().and_then(|&v| self.graph.ty(v));
        let domain = match (kind, read) {
            (FusionRole::Reduction, Some(ty)) => ty.numel(),
            _ => node.outputs[0].numel(),
        };
        if domain == 0 {
            return;
        }
        let cost = self.cost(&draft);
        self.unit_of[id.index()] = Some(self.units.len());
        self.units.push(Some(Unit {
            members: vec![id],
            domain,
            anchor: (kind != FusionRole::Pointwise).then_some(kind),
            cost,
            apart: cost,
        }));
    }

    fn unit(&self, id: NodeId) -> Option<(usize, &Unit)> {
        let index = self.unit_of[id.index()]?;
        Some((index, self.units[index].as_ref()?))
    }

    /// Tries to merge the unit of a node with the units that compute its operands, the latest first.
    fn merge_with_producers(&mut self, id: NodeId) {
        let Some((_, unit)) = self.unit(id) else { return };
        let product = unit.anchor == Some(FusionRole::Contraction);
        let inputs = self.graph.nodes()[id.index()].inputs.iter().enumerate();
        let producers = inputs.map(|(at, &v)| (at, behind_views(self.graph, v).0.node));
        let taken =
            producers.filter(|&(at, producer)| !product || at == 0 || self.widens(producer) || self.expands(producer));
        let mut producers: Vec<NodeId> = taken.map(|(_, producer)| producer).collect();
        producers.sort_by_key(|p| std::cmp::Reverse(self.place[p.index()]));
        for producer in producers {
            let (Some((a, _)), Some((b, _))) = (self.unit(producer), self.unit(id)) else {
                continue;
            };
            if a != b && self.fits(a, b) && !self.has_indirect_path(a, b) {
                self.try_merge(a, b);
            }
        }
    }

    /// Returns `true` if a node only converts half-precision data in memory to `f32`, because matmuls and convolutions
    /// convert elements when they read them.
    fn widens(&self, id: NodeId) -> bool {
        let node = &self.graph.nodes()[id.index()];
        let is_half = |value: &Value| self.graph.ty(*value).is_some_and(|ty| ty.dtype.is_half());
        let is_wide = matches!(&node.outputs[..], [ty] if ty.dtype == DType::F32);
        is_wide && matches!(&node.inputs[..], [x] if is_half(x))
    }

    /// Returns `true` if a node's operands have fewer bytes than its result, for example if it dequantizes weights.
    fn expands(&self, id: NodeId) -> bool {
        let node = &self.graph.nodes()[id.index()];
        let read = node.inputs.iter().filter_map(|&v| self.graph.ty(v));
        let read: usize = read.map(TensorType::bytes).sum();
        fusing(self.graph, id) == FusionRole::Prologue && read < node.outputs[0].bytes()
    }

    /// Tries to merge elementwise units that read the same value.
    fn merge_readers(&mut self, id: NodeId) {
        let elements = self.graph.nodes()[id.index()].outputs.first().map_or(0, |t| t.numel());
        let mut readers: Vec<NodeId> = self.uses.users[id.index()].clone();
        readers.dedup();
        readers.retain(|&r| fusing(self.graph, r) == FusionRole::Pointwise);
        for pair in readers.windows(2) {
            let (Some((a, first)), Some((b, second))) = (self.unit(pair[0]), self.unit(pair[1])) else {
                continue;
            };
            let whole = first.domain == elements && second.domain == elements;
            let alike = whole && self.have_same_invariance(first, second);
            if a == b || !alike || first.anchor.is_some() || second.anchor.is_some() {
                continue;
            }
            if !self.leads_to(a, b) && !self.leads_to(b, a) {
                self.try_merge(a, b);
            }
        }
    }

    /// Moves the elementwise call whose result a reduction reads from the unit of a product (matmul or convolution) to
    /// the unit of the reduction, if no other call reads that result and this causes less memory traffic: a product
    /// whose result has other users then writes one tensor instead of two. This cannot create a cycle, as no other call
    /// depends on the moved one.
    fn move_to_reduction(&mut self, id: NodeId) {
        if fusing(self.graph, id) != FusionRole::Reduction {
            return;
        }
        let producer = behind_views(self.graph, self.graph.nodes()[id.index()].inputs[0])
            .0
            .node;
        let (Some((from, product)), Some((to, reduction))) = (self.unit(producer), self.unit(id)) else {
            return;
        };
        let is_taken =
            fusing(self.graph, producer) == FusionRole::Pointwise && product.anchor == Some(FusionRole::Contraction);
        if !is_taken || reduction.members != [id] {
            return;
        }
        let rest: Vec<NodeId> = product.members.iter().copied().filter(|&m| m != producer).collect();
        let draft = |members: &[NodeId]| CandidateCall::new(self.graph, &self.uses, members);
        let (Some(left), Some(taken), Some(alone)) = (draft(&rest), draft(&[producer, id]), draft(&[producer])) else {
            return;
        };
        let is_private = taken.results.iter().all(|r| r.node == id);
        let costs = [self.cost(&left), self.cost(&taken)];
        let is_cheaper = costs[0].saturating_add(costs[1]) < product.cost.saturating_add(reduction.cost);
        let runs = taken.runs_on(self.target) && (rest.len() == 1 || left.runs_on(self.target));
        if !(is_private && is_cheaper && runs) {
            return;
        }
        let apart = self.cost(&alone);
        let reduced = Unit {
            members: vec![producer, id],
            domain: reduction.domain,
            anchor: reduction.anchor,
            cost: costs[1],
            apart: reduction.apart.saturating_add(apart),
        };
        let multiplied = Unit {
            members: rest,
            domain: product.domain,
            anchor: product.anchor,
            cost: costs[0],
            apart: product.apart.saturating_sub(apart),
        };
        self.spans.add(self.place[producer.index()], self.place[id.index()]);
        self.unit_of[producer.index()] = Some(to);
        self.units[to] = Some(reduced);
        self.units[from] = Some(multiplied);
    }

    /// Returns `true` if unit `b`, which reads results of unit `a`, may be merged with it, by their fusion roles and
    /// sizes.
    fn fits(&self, a: usize, b: usize) -> bool {
        let (Some(first), Some(second)) = (&self.units[a], &self.units[b]) else {
            return false;
        };
        if first.members.len() + second.members.len() > MAX_MEMBERS || !self.have_same_invariance(first, second) {
            return false;
        }
        // Nothing follows a reduction, and a unit contains at most one reduction or product.
        match (first.anchor, second.anchor) {
            (Some(FusionRole::OfPart), _) | (_, Some(FusionRole::OfPart)) => false,
            (None | Some(FusionRole::Prologue), Some(FusionRole::Contraction)) => true,
            (Some(FusionRole::Reduction), _) | (Some(_), Some(_)) => false,
            _ => first.domain == second.domain || first.domain == 1,
        }
    }

    /// Returns `true` if both are invariant, or neither is.
    fn have_same_invariance(&self, first: &Unit, second: &Unit) -> bool {
        let is_invariant = |unit: &Unit| unit.members.iter().all(|m| self.invariant[m.index()]);
        is_invariant(first) == is_invariant(second)
    }

    /// Returns `true` if `b` depends on `a` through other nodes. Operands of `b` that are results of `a`, or views of
    /// them, do not count.
    fn has_indirect_path(&self, a: usize, b: usize) -> bool {
        let direct = |v: Value| {
            let (base, _) = behind_views(self.graph, v);
            self.unit_of[base.node.index()] == Some(a)
        };
        let starts = self.operands(b).filter(|&v| !direct(v)).map(|v| v.node).collect();
        self.may_depend_on(starts, a, b)
    }

    /// Returns `true` if `b` depends on `a`.
    fn leads_to(&self, a: usize, b: usize) -> bool {
        let starts = self.operands(b).map(|v| v.node).collect();
        self.may_depend_on(starts, a, b)
    }

    fn operands(&self, unit: usize) -> impl Iterator<Item = Value> + '_ {
        let members = self.units[unit].iter().flat_map(|u| &u.members);
        members.flat_map(|m| self.graph.nodes()[m.index()].inputs.iter().copied())
    }

    /// Returns `true` if these nodes depend on unit `goal`, without searching through unit `from`, or if the search
    /// takes too long.
    fn may_depend_on(&self, mut open: Vec<NodeId>, goal: usize, from: usize) -> bool {
        let members = |unit: usize| self.units[unit].iter().flat_map(|u| &u.members);
        let Some(first) = members(goal).map(|m| self.place[m.index()]).min() else {
            return true;
        };
        let low = self.independent_below(first);
        let mut seen_nodes: HashSet<NodeId> = HashSet::new();
        let mut seen_units: HashSet<usize> = HashSet::from([from]);
        let mut visits = 0;
        while let Some(id) = open.pop() {
            match self.unit_of[id.index()] {
                Some(unit) if unit == goal => return true,
                Some(unit) => {
                    if !seen_units.insert(unit) {
                        continue;
                    }
                    visits += members(unit).count();
                    if members(unit).all(|m| self.place[m.index()] < low) {
                        continue;
                    }
                    open.extend(self.operands(unit).map(|v| v.node));
                }
                None => {
                    if self.place[id.index()] < low || !seen_nodes.insert(id) {
                        continue;
                    }
                    visits += 1;
                    open.extend(self.graph.nodes()[id.index()].inputs.iter().map(|v| v.node));
                }
            }
            if visits > MAX_VISITS {
                return true;
            }
        }
        false
    }

    /// Returns the largest position of the topological order, up to the given one, that no unit spans: nodes before it
    /// then do not depend on nodes at or after it. A unit that spans a position could cause such a dependency: it is
    /// one call, so a reader of its first member also waits for the operands of its last member. Returns 0 if the
    /// search takes too long.
    fn independent_below(&self, place: usize) -> usize {
        let mut low = place;
        for _ in 0..MAX_VISITS {
            match self.spans.first(low) {
                first if first < low => low = first,
                _ => return low,
            }
        }
        0
    }

    /// Merges two units, if the device can run the fused call and it is estimated to be faster.
    fn try_merge(&mut self, a: usize, b: usize) {
        let (Some(first), Some(second)) = (&self.units[a], &self.units[b]) else {
            return;
        };
        let mut members: Vec<NodeId> = first.members.iter().chain(&second.members).copied().collect();
        if members.len() > MAX_MEMBERS {
            return;
        }
        members.sort_by_key(|m| self.place[m.index()]);
        let Some(draft) = CandidateCall::new(self.graph, &self.uses, &members) else {
            return;
        };
        let product = second.anchor == Some(FusionRole::Contraction);
        // Values with other readers are computed once, for all of them.
        if product && draft.results.iter().any(|r| !second.members.contains(&r.node)) {
            return;
        }
        let cost = self.cost(&draft);
        if cost >= first.cost.saturating_add(second.cost) || !draft.runs_on(self.target) {
            return;
        }
        let merged = Unit {
            domain: if product {
                second.domain
            } else {
                first.domain.max(second.domain)
            },
            anchor: if product {
                second.anchor
            } else {
                first.anchor.or(second.anchor)
            },
            cost,
            apart: first.apart.saturating_add(second.apart),
            members,
        };
        if let (Some(first), Some(last)) = (merged.members.first(), merged.members.last()) {
            self.spans.add(self.place[first.index()], self.place[last.index()]);
        }
        for m in &merged.members {
            self.unit_of[m.index()] = Some(a);
        }
        self.units[a] = Some(merged);
        self.units[b] = None;
    }

    /// Returns the units that become fused calls.
    fn finish(mut self) -> Vec<FusionGroup> {
        let units = std::mem::take(&mut self.units);
        units
            .into_iter()
            .flatten()
            .filter_map(|unit| self.finished(unit))
            .collect()
    }

    /// Returns the fused call of a unit; `None` for a unit with one member that reads through no costly view, or that
    /// the device cannot run as a fused call.
    fn finished(&self, unit: Unit) -> Option<FusionGroup> {
        let draft = CandidateCall::new(self.graph, &self.uses, &unit.members)?;
        if unit.members.len() == 1 && (draft.costly_views == 0 || !draft.runs_on(self.target)) {
            return None;
        }
        let views = (draft.costly_views as f64 * self.launch_ps) as u64;
        Some(FusionGroup {
            saving: unit.apart.saturating_add(views).saturating_sub(unit.cost),
            members: unit.members,
            draft,
        })
    }
}
