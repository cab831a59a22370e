//! Packed parameters: one leaf that contains several parameters.

use std::sync::Arc;

use super::{Graph, Node, NodeId, NodeKind, Provenance};
use crate::init::Init;
use crate::shape::{Shape, TensorType};

/// Layout of a packed parameter: its sources are concatenated along an axis and stored only there.
///
/// The leaf has its own name, but users only use the names of the sources.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// Axis along which the sources are concatenated.
    pub axis: usize,
    /// The sources in their order.
    pub sources: Vec<PackedSource>,
}

/// A parameter that is part of a packed one.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedSource {
    /// Name of the parameter in the user's graph.
    pub name: Arc<str>,
    /// Size along the axis; the other axes are those of the packed parameter.
    pub size: usize,
    /// Initializer for fresh sessions.
    pub init: Init,
}

impl Packing {
    /// Returns the type of a source of this size within a parameter of type `packed`; `None` unless
    /// the axis exists and is large enough.
    pub(crate) fn source_type(packed: &TensorType, axis: usize, size: usize) -> Option<TensorType> {
        let mut dims = packed.shape.to_vec();
        let whole = dims.get_mut(axis)?;
        if size > *whole {
            return None;
        }
        *whole = size;
        Some(TensorType::new(packed.dtype, Shape::new(&dims).ok()?))
    }

    /// Checks that the sources fill a parameter of type `packed`, and that their names differ.
    pub(super) fn check(&self, packed: &TensorType) -> Result<(), String> {
        let Some(&whole) = packed.shape.get(self.axis) else {
            return Err(format!("it is packed along axis {} of {packed}", self.axis));
        };
        let sizes = self.sources.iter().map(|s| s.size);
        let total = sizes.into_iter().try_fold(0usize, usize::checked_add);
        if total != Some(whole) {
            let axis = self.axis;
            return Err(format!("its parts do not fill the {whole} entries of axis {axis}"));
        }
        let names = || self.sources.iter().map(|s| &s.name);
        match names()
            .enumerate()
            .find(|(i, name)| names().skip(i + 1).any(|n| n == *name))
        {
            None => Ok(()),
            Some((_, name)) => Err(format!("two of its parts are named '{name}'")),
        }
    }
}

impl Graph {
    /// Adds a parameter that contains other parameters, under an unused name made of their names.
    pub fn packed_parameter(
        &mut self,
        ty: TensorType,
        trainable: bool,
        packing: Packing,
        is_taken: impl Fn(&str) -> bool,
        provenance: Provenance,
    ) -> NodeId {
        let names: Vec<&str> = packing.sources.iter().map(|s| &*s.name).collect();
        let mut name = names.join("+");
        while is_taken(&name) || self.leaf_names.contains_key(&*name) {
            name.push('\'');
        }
        let id = self.push_raw(Node {
            kind: NodeKind::Parameter {
                trainable,
                init: Init::Zeros,
                packing: Some(Arc::new(packing)),
            },
            inputs: Vec::new(),
            outputs: vec![ty],
            name: Some(name.into()),
            location: provenance.location,
        });
        self.register_leaf(id);
        id
    }

    /// Registers a leaf by its name, and a packed parameter by the names of its sources.
    pub(super) fn register_leaf(&mut self, id: NodeId) {
        let node = &self.nodes[id.index()];
        let own = node.name.clone().filter(|_| !node.is_op());
        let sources = node.packing().into_iter().flat_map(|p| p.sources.iter());
        for name in own.into_iter().chain(sources.map(|s| s.name.clone())) {
            self.leaf_names.insert(name, id);
        }
    }
}

impl Node {
    /// Returns the layout of a packed parameter; `None` for every other node.
    pub fn packing(&self) -> Option<&Packing> {
        match &self.kind {
            NodeKind::Parameter { packing, .. } => packing.as_deref(),
            _ => None,
        }
    }
}
