//! Layout of images: computes convolutions and the calls between them in channels-last layout if
//! that is faster on a device.
//!
//! This pass runs after rewriting and before clustering, so rules match only one layout. Images of a graph are
//! `[batch, channels, height, width]`; the pass computes each convolution on images `[batch, height, width, channels]`,
//! and calls that read its result as well, as their operators [define](ChannelsLast). A call that needs the other
//! layout gets a permutation. The new graph is used if it is faster by the cost model, including permutations;
//! otherwise the graph is not changed.

use std::collections::{HashMap, HashSet};

use crate::rewrite::clean::clean_with_places;
use crate::rewrite::request::Pass;
use meganeura_core::cost::Target;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, Node, NodeId, Value};
use meganeura_core::ops::{ChannelsLast, ChannelsLastCx, FusionRole, ImageLayout, OperandOrder};
use meganeura_core::shape::TensorType;

/// A graph with images in channels-last layout.
pub(crate) struct ConvertedGraph {
    pub(crate) graph: Graph,
    /// Maps each node of the source graph to its node in the new graph.
    pub(crate) moved: HashMap<NodeId, NodeId>,
}

/// Returns the graph with images in channels-last layout, if that is faster.
///
/// # Errors
/// A cycle; an operator whose channels-last form has other results.
pub(crate) fn channels_last(graph: &Graph, target: &dyn Target, pass: Pass) -> Result<Option<ConvertedGraph>> {
    let starts = |node: &Node| {
        node.op()
            .is_some_and(|(op, _)| matches!(op.channels_last(), ChannelsLast::Starts(_)))
    };
    if !graph.nodes().iter().any(starts) {
        return Ok(None);
    }
    let converted = Conversion::of(graph)?;
    let is_faster = pass.cost(&converted.graph, target)? < pass.cost(graph, target)?;
    Ok(is_faster.then_some(converted))
}

/// The new values of a value of the source graph, in both layouts.
#[derive(Clone, Copy, Debug, Default)]
struct Layouts {
    first: Option<Value>,
    last: Option<Value>,
}

impl Layouts {
    fn of(value: Value, layout: ImageLayout) -> Self {
        match layout {
            ImageLayout::Nchw => Layouts {
                first: Some(value),
                last: None,
            },
            ImageLayout::Nhwc => Layouts {
                first: None,
                last: Some(value),
            },
        }
    }
}

/// The values of the source graph that exist in the new graph.
#[derive(Default)]
struct Values {
    images: HashMap<Value, Layouts>,
    /// Maps the original weights to the weights in the axis order of channels-last convolutions.
    weights: HashMap<Value, Value>,
}

impl Values {
    /// Returns a value in a layout; if it exists only in the other one, adds a permutation. It exists in one, because
    /// operands are converted before their users.
    fn get(&mut self, graph: &mut Graph, value: Value, layout: ImageLayout) -> Value {
        let known = self
            .images
            .entry(value)
            .or_insert_with(|| Layouts::of(value, ImageLayout::Nchw));
        match (layout, known.first, known.last) {
            (ImageLayout::Nchw, Some(first), _) => first,
            (ImageLayout::Nhwc, _, Some(last)) => last,
            (ImageLayout::Nchw, None, last) => {
                let first = graph.to_channels_first(last.unwrap_or(value));
                known.first = Some(first);
                first
            }
            (ImageLayout::Nhwc, first, None) => {
                let last = graph.to_channels_last(first.unwrap_or(value));
                known.last = Some(last);
                last
            }
        }
    }

    /// Returns an operand of a call in the axis order that a rule requests.
    fn operand(&mut self, source: &Graph, graph: &mut Graph, value: Value, order: OperandOrder) -> Value {
        match order {
            OperandOrder::Same => self.get(graph, value, ImageLayout::Nchw),
            OperandOrder::Nhwc => self.get(graph, value, ImageLayout::Nhwc),
            OperandOrder::Hwio => self.weights(source, graph, value),
        }
    }

    /// Returns weights in the axis order of channels-last convolutions. Values computed from weights, such as products
    /// with the factors of a batch norm, are computed in that order, so that no permutation needs memory for its
    /// result.
    fn weights(&mut self, source: &Graph, graph: &mut Graph, value: Value) -> Value {
        if let Some(&known) = self.weights.get(&value) {
            return known;
        }
        let node = &source.nodes()[value.node.index()];
        let pointwise = node.op().filter(|(op, _)| op.fusing() == FusionRole::Pointwise);
        let have_axes = |v: &Value| source.shape(*v).len() == 4 || is_number(source, *v);
        let weights = match pointwise.filter(|_| node.outputs.len() == 1 && node.inputs.iter().all(have_axes)) {
            Some((op, attrs)) => {
                let operands = node.inputs.iter().map(|&v| {
                    if is_number(source, v) {
                        self.get(graph, v, ImageLayout::Nchw)
                    } else {
                        self.weights(source, graph, v)
                    }
                });
                let operands = operands.collect();
                let provenance = source.provenance(value.node);
                graph
                    .with_provenance(provenance, |g| g.call(op, attrs.clone(), operands))
                    .into()
            }
            None => {
                let first = self.get(graph, value, ImageLayout::Nchw);
                graph.to_hwio(first)
            }
        };
        self.weights.insert(value, weights);
        weights
    }

    fn is_last_alone(&self, value: Value) -> bool {
        self.images.get(&value).is_some_and(|known| known.first.is_none())
    }
}

/// The conversion of a graph.
struct Conversion<'a> {
    source: &'a Graph,
    graph: Graph,
    values: Values,
    /// Values that calls and results of the source graph use.
    used: HashSet<Value>,
}

impl<'a> Conversion<'a> {
    fn of(source: &'a Graph) -> Result<ConvertedGraph> {
        let operands = source.nodes().iter().flat_map(|node| node.inputs.iter().copied());
        let mut conversion = Conversion {
            source,
            graph: Graph::new(),
            values: Values::default(),
            used: source.roots().chain(operands).collect(),
        };
        let order = source.topological_order()?;
        for &id in &order {
            conversion.node(id)?;
        }
        let Conversion {
            mut graph, mut values, ..
        } = conversion;
        let mut roots = HashMap::new();
        for root in source.roots() {
            roots.insert(root, values.get(&mut graph, root, ImageLayout::Nchw));
        }
        graph.adopt_roots(source, |root| roots.get(&root).copied().unwrap_or(root));
        // Remove values that were computed from weights in the other order and are not used.
        let (graph, _, _, places) = clean_with_places(&graph)?;
        graph.verify()?;
        let moved = order.into_iter().filter_map(|id| {
            let known = values.images.get(&id.into())?;
            let node = known.last.or(known.first)?.node;
            Some((id, places[node.index()]?))
        });
        let moved = moved.collect();
        Ok(ConvertedGraph { graph, moved })
    }

    /// Converts a node of the source graph: adds it in its channels-last form if its operands are available in that
    /// layout, else unchanged.
    fn node(&mut self, id: NodeId) -> Result<()> {
        let node = &self.source.nodes()[id.index()];
        let results = match self.form(id, node)? {
            Some(results) => results,
            None => {
                let inputs = self.operands(node);
                let new = self.graph.copy_node(self.source, id, inputs);
                ports(new, node).map(|v| (v, ImageLayout::Nchw)).collect()
            }
        };
        let known = results.into_iter().map(|(value, layout)| Layouts::of(value, layout));
        self.values.images.extend(ports(id, node).zip(known));
        Ok(())
    }

    /// Returns the operands of a call in the layout of the source graph.
    fn operands(&mut self, node: &Node) -> Vec<Value> {
        let operands = node.inputs.iter();
        operands
            .map(|&v| self.values.get(&mut self.graph, v, ImageLayout::Nchw))
            .collect()
    }

    /// Adds the channels-last form of a call, and returns its results; `None` if the call has no such form, or does not
    /// need it.
    fn form(&mut self, id: NodeId, node: &Node) -> Result<Option<Vec<(Value, ImageLayout)>>> {
        let Some((op, attrs)) = node.op() else {
            return Ok(None);
        };
        let follows = || node.inputs.iter().any(|&v| self.values.is_last_alone(v));
        let provenance = self.source.provenance(id);
        let rule = match op.get().channels_last() {
            ChannelsLast::Pointwise if follows() && node.outputs.iter().all(|ty| ty.shape.rank() == 4) => {
                let operands = self.operands_of_image(node);
                let attrs = attrs.clone();
                let new = self.graph.with_provenance(provenance, |g| g.call(op, attrs, operands));
                return Ok(Some(ports(new, node).map(|v| (v, ImageLayout::Nhwc)).collect()));
            }
            ChannelsLast::Starts(rule) => rule,
            ChannelsLast::Follows(rule) if follows() => rule,
            ChannelsLast::No | ChannelsLast::Pointwise | ChannelsLast::Follows(_) => return Ok(None),
        };
        let types = node.inputs.iter().filter_map(|&v| self.source.ty(v).cloned());
        let types: Vec<TensorType> = types.collect();
        let used: Vec<bool> = ports(id, node).map(|v| self.used.contains(&v)).collect();
        let Conversion {
            source, graph, values, ..
        } = self;
        let mut operand = |g: &mut Graph, i: usize, order| values.operand(source, g, node.inputs[i], order);
        let results = graph.with_provenance(provenance, |g| {
            rule(&mut ChannelsLastCx::new(g, attrs, &types, &used, &mut operand))
        });
        let failed = |message: String| Error::graph(format!("{} channels last: {message}", self.source.label(id)), "");
        let results = results.map_err(failed)?;
        if let Some(results) = &results
            && !self.are_results_of(node, results, &used)
        {
            return Err(failed("its form has other results".into()));
        }
        Ok(results)
    }

    /// Returns the operands of an elementwise call on images, all in channels-last layout; scalars
    /// do not change.
    fn operands_of_image(&mut self, node: &Node) -> Vec<Value> {
        let Conversion {
            source, graph, values, ..
        } = self;
        let layout = |v: Value| {
            if is_number(source, v) {
                ImageLayout::Nchw
            } else {
                ImageLayout::Nhwc
            }
        };
        let operands = node.inputs.iter();
        operands.map(|&v| values.get(graph, v, layout(v))).collect()
    }

    /// Returns `true` if values have the types of a node's results; unused last results may be
    /// missing.
    fn are_results_of(&self, node: &Node, results: &[(Value, ImageLayout)], used: &[bool]) -> bool {
        let fits = |(&(value, layout), ty): (&(Value, ImageLayout), &TensorType)| {
            let shape = match (layout, &ty.shape[..]) {
                (ImageLayout::Nhwc, &[n, c, h, w]) => vec![n, h, w, c],
                (_, shape) => shape.to_vec(),
            };
            self.graph.shape(value) == shape && self.graph.dtype(value) == ty.dtype
        };
        let missing = used.get(results.len()..);
        missing.is_some_and(|missing| !missing.contains(&true)) && results.iter().zip(&node.outputs).all(fits)
    }
}

/// Returns `true` if a value is a single number.
fn is_number(graph: &Graph, value: Value) -> bool {
    graph.shape(value).iter().all(|&size| size == 1)
}

/// Iterates over the results of a node.
fn ports(id: NodeId, node: &Node) -> impl Iterator<Item = Value> + use<> {
    (0..node.outputs.len() as u32).map(move |port| Value { node: id, port })
}
