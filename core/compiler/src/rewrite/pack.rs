//! Packed parameters: parameters that a graph concatenates are stored concatenated.
//!
//! The packed storage is the only copy; other uses of a source take a slice of it. Sessions, plans
//! and optimizers still use the names of the sources.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use meganeura_core::attrs::Attrs;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId, NodeKind, PackedSource, Packing, Value};
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::shape::TensorType;

/// Packs parameters: a call that only concatenates different parameters
/// ([`Operator::packs`](meganeura_core::ops::Operator::packs)) becomes one parameter, and other
/// uses of its operands become slices of it. Works on forward graphs and on graphs with gradients.
///
/// The operands must agree in trainability, in whether their gradient is requested, and in
/// `group_of` their names (parameters that an optimizer treats alike); none may be written by the
/// graph or already be packed. If two calls share an operand, the one with more elements is packed,
/// or the first of equal ones; the other call remains a computation.
///
/// # Errors
/// All errors of [`Graph::verify`].
pub fn pack_parameters(graph: &Graph, group_of: &dyn Fn(&str) -> u64) -> Result<Graph> {
    pack_calls(graph, &|_| true, group_of)
}

/// Packs like [`pack_parameters`], but only for the calls that `wanted` accepts.
///
/// # Errors
/// As [`pack_parameters`].
pub fn pack_calls(graph: &Graph, wanted: &dyn Fn(NodeId) -> bool, group_of: &dyn Fn(&str) -> u64) -> Result<Graph> {
    Ok(pack_calls_mapped(graph, wanted, group_of)?.0)
}

/// For values of a graph, the values of the derived graph; values that are absent did not change.
pub(super) type ValueMap = HashMap<Value, Value>;

/// Packs like [`pack_calls`], and also returns the map from old to new values.
pub(super) fn pack_calls_mapped(
    graph: &Graph,
    wanted: &dyn Fn(NodeId) -> bool,
    group_of: &dyn Fn(&str) -> u64,
) -> Result<(Graph, ValueMap)> {
    graph.verify()?;
    let packs = choose(graph, wanted, group_of);
    if packs.is_empty() {
        return Ok((graph.clone(), ValueMap::new()));
    }
    let (packed, map) = Packer::new(graph, packs).build()?;
    packed.verify()?;
    Ok((packed, map))
}

/// Parameters that become one packed parameter.
struct Pack {
    /// The equal calls that concatenate them.
    calls: Vec<NodeId>,
    axis: usize,
    sources: Vec<NodeId>,
    /// Type of the packed parameter.
    ty: TensorType,
}

/// Properties that parameters must share to be packed together: trainability, whether their gradient is requested,
/// whether they have a gradient, and their group.
pub(super) type Kind = (bool, bool, bool, u64);

/// Returns the properties that parameters must share to be packed together; `None` for a value that cannot be packed.
pub(super) fn kind_of(graph: &Graph, id: NodeId, group_of: &dyn Fn(&str) -> u64) -> Option<Kind> {
    let node = &graph.nodes()[id.index()];
    let NodeKind::Parameter {
        trainable,
        packing: None,
        ..
    } = node.kind
    else {
        return None;
    };
    let wanted = graph.wants_gradient().contains(&id);
    let has_gradient = graph.gradients().iter().any(|(leaf, _)| *leaf == id);
    let written = graph.effects().iter().any(|e| e.target == id);
    let group = group_of(node.name.as_deref().unwrap_or_default());
    (!written).then_some((trainable, wanted, has_gradient, group))
}

/// Chooses the calls to pack. Of calls with common operands, the larger one is preferred.
fn choose(graph: &Graph, wanted: &dyn Fn(NodeId) -> bool, group_of: &dyn Fn(&str) -> u64) -> Vec<Pack> {
    let kind_of = |value: &Value| {
        (value.port == 0)
            .then(|| kind_of(graph, value.node, group_of))
            .flatten()
    };
    let mut packs: Vec<Pack> = Vec::new();
    for id in graph.node_ids() {
        let node = &graph.nodes()[id.index()];
        let Some(axis) = node.op().and_then(|(op, attrs)| op.packs(attrs)) else {
            continue;
        };
        let [ty] = &node.outputs[..] else { continue };
        let (Ok(axis), true) = (ty.shape.axis(axis), wanted(id)) else {
            continue;
        };
        let different: HashSet<&Value> = node.inputs.iter().collect();
        let kinds: Option<Vec<Kind>> = node.inputs.iter().map(kind_of).collect();
        let alike = kinds.is_some_and(|kinds| kinds.windows(2).all(|w| w[0] == w[1]));
        if node.inputs.len() < 2 || different.len() < node.inputs.len() || !alike {
            continue;
        }
        let sources: Vec<NodeId> = node.inputs.iter().map(|v| v.node).collect();
        match packs.iter_mut().find(|p| p.axis == axis && p.sources == sources) {
            Some(same) => same.calls.push(id),
            None => packs.push(Pack {
                calls: vec![id],
                axis,
                sources,
                ty: ty.clone(),
            }),
        }
    }
    // A stable sort, so the first of equal ones stays first.
    packs.sort_by_key(|pack| std::cmp::Reverse(pack.ty.numel()));
    let mut used: HashSet<NodeId> = HashSet::new();
    packs.retain(|pack| {
        let free = pack.sources.iter().all(|source| !used.contains(source));
        if free {
            used.extend(&pack.sources);
        }
        free
    });
    packs
}

/// A gradient of the new graph, by values of the old one.
struct Derivative {
    /// The leaf that the gradient belongs to; for a packed parameter, the first source.
    leaf: NodeId,
    /// Value of the gradient; for a packed parameter, the gradients of the sources in order.
    values: Vec<Value>,
}

/// State of building the graph with packed parameters.
struct Packer<'a> {
    graph: &'a Graph,
    packs: Vec<Pack>,
    /// For each source, the index of its packed parameter and its first entry along the axis.
    places: HashMap<NodeId, (usize, usize)>,
    /// For each call that packing replaces, the index of its packed parameter.
    calls: HashMap<NodeId, usize>,
    out: Graph,
    /// The leaf of each packed parameter in the new graph, once it was added.
    leaves: Vec<Option<NodeId>>,
    map: HashMap<Value, Value>,
}

impl<'a> Packer<'a> {
    fn new(graph: &'a Graph, packs: Vec<Pack>) -> Self {
        let mut places = HashMap::new();
        let mut calls = HashMap::new();
        for (i, pack) in packs.iter().enumerate() {
            calls.extend(pack.calls.iter().map(|&call| (call, i)));
            let mut start = 0;
            for &source in &pack.sources {
                places.insert(source, (i, start));
                start += graph.shape(source)[pack.axis];
            }
        }
        Packer {
            leaves: vec![None; packs.len()],
            graph,
            packs,
            places,
            calls,
            out: Graph::new(),
            map: HashMap::new(),
        }
    }

    fn build(mut self) -> Result<(Graph, ValueMap)> {
        let derivatives = self.derivatives();
        let order = self.graph.topological_order()?;
        let live = self.live(&order, &derivatives);
        for id in order {
            if let Some(&(pack, _)) = self.places.get(&id) {
                self.leaf(pack);
            } else if let Some(&pack) = self.calls.get(&id) {
                let leaf = self.leaf(pack);
                self.map.insert(id.into(), leaf.into());
            } else if live[id.index()] {
                self.copy(id);
            }
        }
        let gradients = derivatives.iter().map(|d| self.gradient(d)).collect();
        let mut wanted: Vec<NodeId> = Vec::new();
        for &leaf in self.graph.wants_gradient() {
            let leaf = self.target(leaf);
            if !wanted.contains(&leaf) {
                wanted.push(leaf);
            }
        }
        let effects = self.graph.effects().iter().map(|e| e.value);
        for root in self.graph.outputs().iter().copied().chain(effects) {
            self.value(root);
        }
        let Packer {
            graph, mut out, map, ..
        } = self;
        // Unused sources have no value any more; their roots are replaced below.
        out.adopt_roots(graph, |v| map.get(&v).copied().unwrap_or(v));
        out.replace_gradients(gradients, wanted);
        Ok((out, map))
    }

    /// Returns the gradients of the new graph.
    fn derivatives(&self) -> Vec<Derivative> {
        let all: HashMap<NodeId, Value> = self.graph.gradients().iter().copied().collect();
        let mut seen = HashSet::new();
        let mut derivatives = Vec::new();
        for &(leaf, value) in self.graph.gradients() {
            let Some(&(pack, _)) = self.places.get(&leaf) else {
                derivatives.push(Derivative {
                    leaf,
                    values: vec![value],
                });
                continue;
            };
            if !seen.insert(pack) {
                continue;
            }
            let sources = &self.packs[pack].sources;
            let parts: Vec<Value> = sources.iter().filter_map(|s| all.get(s).copied()).collect();
            derivatives.push(Derivative {
                leaf: sources[0],
                values: match self.whole(pack, &parts) {
                    Some(whole) => vec![whole],
                    None => parts,
                },
            });
        }
        derivatives
    }

    /// Returns a value whose slices are the gradients of the sources of a packed parameter, if there is one.
    fn whole(&self, pack: usize, parts: &[Value]) -> Option<Value> {
        let pack = &self.packs[pack];
        let mut whole: Option<Value> = None;
        for (part, source) in parts.iter().zip(&pack.sources) {
            let node = &self.graph.nodes()[part.node.index()];
            let (op, attrs) = node.op()?;
            let inputs: Option<Vec<TensorType>> = node.inputs.iter().map(|v| self.graph.ty(*v).cloned()).collect();
            let call = Call {
                attrs,
                inputs: &inputs?,
                outputs: &node.outputs,
            };
            let operand = *node.inputs.first()?;
            let (axis, start) = op.entries(&call)?;
            let in_place = part.port == 0 && axis == pack.axis && start == self.places[source].1;
            if !in_place || whole.is_some_and(|w| w != operand) {
                return None;
            }
            whole = Some(operand);
        }
        whole.filter(|w| self.graph.ty(*w) == Some(&pack.ty))
    }

    /// Returns the nodes of the old graph that the new one needs.
    fn live(&self, order: &[NodeId], derivatives: &[Derivative]) -> Vec<bool> {
        let mut live: Vec<bool> = self.graph.nodes().iter().map(|n| n.is_named_leaf()).collect();
        let effects = self.graph.effects().iter().map(|e| e.value);
        let gradients = derivatives.iter().flat_map(|d| d.values.iter().copied());
        for root in self.graph.outputs().iter().copied().chain(effects).chain(gradients) {
            live[root.node.index()] = true;
        }
        for id in order.iter().rev() {
            if live[id.index()] {
                for v in &self.graph.nodes()[id.index()].inputs {
                    live[v.node.index()] = true;
                }
            }
        }
        live
    }

    fn copy(&mut self, id: NodeId) {
        let node = &self.graph.nodes()[id.index()];
        let inputs = node.inputs.iter().map(|&v| self.value(v)).collect();
        let new = self.out.copy_node(self.graph, id, inputs);
        let ports = (0..node.outputs.len() as u32).map(|port| (Value { node: id, port }, Value { node: new, port }));
        self.map.extend(ports);
    }

    /// Returns a packed parameter of the new graph, and adds it on the first call.
    fn leaf(&mut self, pack: usize) -> NodeId {
        if let Some(leaf) = self.leaves[pack] {
            return leaf;
        }
        let Pack { axis, sources, ty, .. } = &self.packs[pack];
        let source = |&id: &NodeId| {
            let node = &self.graph.nodes()[id.index()];
            let NodeKind::Parameter { trainable, init, .. } = node.kind else {
                return None;
            };
            let name = node.name.clone()?;
            let size = self.graph.shape(id)[*axis];
            Some((trainable, PackedSource { name, size, init }))
        };
        let found: Vec<(bool, PackedSource)> = sources.iter().filter_map(source).collect();
        let trainable = found.iter().all(|(trainable, _)| *trainable);
        let packing = Packing {
            axis: *axis,
            sources: found.into_iter().map(|(_, source)| source).collect(),
        };
        let is_taken = |name: &str| self.graph.leaf_named(name).is_some();
        let provenance = self.graph.provenance(sources[0]);
        let leaf = self
            .out
            .packed_parameter(ty.clone(), trainable, packing, is_taken, provenance);
        self.leaves[pack] = Some(leaf);
        leaf
    }

    /// Returns the value of the new graph for one of the old graph. For a source, it is a slice of the packed
    /// parameter.
    fn value(&mut self, value: Value) -> Value {
        if let Some(&known) = self.map.get(&value) {
            return known;
        }
        let Some(&(pack, start)) = self.places.get(&value.node) else {
            // Operands come first, so this cannot happen; `verify` would report it.
            return value;
        };
        let leaf = self.leaf(pack);
        let axis = self.packs[pack].axis;
        let size = self.graph.shape(value)[axis];
        let part = self.out.with_provenance(self.graph.provenance(value.node), |out| {
            out.narrow(leaf, axis as i32, start, size)
        });
        self.map.insert(value, part.into());
        part.into()
    }

    /// Returns the leaf of the new graph that replaces a leaf of the old one, or contains it.
    fn target(&mut self, leaf: NodeId) -> NodeId {
        match self.places.get(&leaf) {
            Some(&(pack, _)) => self.leaf(pack),
            None => self.value(leaf.into()).node,
        }
    }

    fn gradient(&mut self, derivative: &Derivative) -> (NodeId, Value) {
        let leaf = self.target(derivative.leaf);
        let values: Vec<Value> = derivative.values.iter().map(|&v| self.value(v)).collect();
        if let [value] = values[..] {
            return (leaf, value);
        }
        let pack = self.places.get(&derivative.leaf).map(|(pack, _)| &self.packs[*pack]);
        let call: Option<(OpRef, &Attrs)> = pack.and_then(|p| self.graph.nodes()[p.calls[0].index()].op());
        let provenance = self.graph.provenance(derivative.values[0].node);
        match call {
            Some((op, attrs)) => {
                let attrs = attrs.clone();
                let joined = self.out.with_provenance(provenance, |out| out.call(op, attrs, values));
                (leaf, joined.into())
            }
            // Several values belong to a packed parameter, which always comes from a call.
            None => (leaf, values[0]),
        }
    }
}

/// Returns the packing group of a parameter: [`pack_calls`] packs only parameters with equal
/// groups.
pub(super) fn pack_group(graph: &Graph, id: NodeId, group_of: &dyn Fn(&str) -> u64) -> Option<i64> {
    let kind = kind_of(graph, id, group_of)?;
    let mut hasher = rustc_hash::FxHasher::default();
    kind.hash(&mut hasher);
    Some((hasher.finish() >> 1) as i64)
}
