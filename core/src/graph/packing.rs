//! Packed parameters: one leaf that holds several parameters.

use std::sync::Arc;

use super::{Graph, Node, NodeId, NodeKind, Provenance};
use crate::init::Init;
use crate::shape::{Shape, TensorType};

/// How a parameter holds others: they stand one after the other along an axis, and their only copy is there.
///
/// The leaf has a name of its own, but users speak of the sources alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// Axis along which the sources are joined.
    pub axis: usize,
    /// The sources in their order.
    pub sources: Vec<PackedSource>,
}

/// A parameter that is part of a packed one.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedSource {
    /// Name by which users know it.
    pub name: Arc<str>,
    /// Its size along the axis; on the others it has those of the packed parameter.
    pub size: usize,
    /// How a fresh session may fill it.
    pub init: Init,
}

impl Packing {
    /// Type of a source of this size within storage of type `packed`. `None` unless the axis exists and holds as
    /// much.
    pub(crate) fn source_type(packed: &TensorType, axis: usize, size: usize) -> Option<TensorType> {
        let mut dims = packed.shape.to_vec();
        let whole = dims.get_mut(axis)?;
        if size > *whole {
            return None;
        }
        *whole = size;
        Some(TensorType::new(packed.dtype, Shape::new(&dims).ok()?))
    }

    /// The sources fill a parameter of type `packed`, and no two have one name.
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
    /// Adds a parameter that holds others, under a name made of theirs that no leaf has.
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

    /// Lets a leaf be found by its name, and a packed parameter by those of its sources.
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
    /// What a packed parameter holds; `None` for every other node.
    pub fn packing(&self) -> Option<&Packing> {
        match &self.kind {
            NodeKind::Parameter { packing, .. } => packing.as_deref(),
            _ => None,
        }
    }
}
