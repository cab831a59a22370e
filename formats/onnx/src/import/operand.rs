//! Values during an import.

use std::sync::Arc;

use meganeura_core::graph::Value;

use crate::element::ElementType;
use crate::tensor::Tensor;

/// A value: a result in the graph, or a tensor that is known now.
#[derive(Clone, Debug)]
pub struct Operand {
    pub(crate) element: ElementType,
    pub(crate) dims: Vec<usize>,
    pub(crate) source: Source,
    /// Elements of a result in the graph that is computed from constants and parameters only.
    computed: Option<Arc<Tensor>>,
}

/// Where a value's elements are.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In the graph.
    Node(Value),
    /// Here; it becomes a leaf of the graph where a node needs it.
    Known(Arc<Known>),
    /// A sequence of values, whose length is known.
    List(Arc<Vec<Operand>>),
}

/// A tensor that is known when importing.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) tensor: Arc<Tensor>,
    /// Its name, unique in the model.
    pub(crate) name: String,
    /// Whether the graph has it as a parameter, rather than a constant.
    pub(crate) parameter: bool,
}

/// Parameters with at most that many elements take part in folding; larger ones stay what they are, so that they can be
/// trained.
const MAX_FOLDED_PARAMETER: usize = 16;

/// Tensors with more elements are not folded: their results would be kept beside them.
pub(super) const MAX_FOLDED: usize = 1 << 16;

impl Operand {
    pub(crate) fn node(value: Value, element: ElementType, dims: &[usize]) -> Self {
        Operand {
            element,
            dims: dims.to_vec(),
            source: Source::Node(value),
            computed: None,
        }
    }

    pub(crate) fn known(tensor: Tensor, name: String, parameter: bool) -> Self {
        Operand {
            element: tensor.element(),
            dims: tensor.dims().to_vec(),
            source: Source::Known(Arc::new(Known {
                tensor: Arc::new(tensor),
                name,
                parameter,
            })),
            computed: None,
        }
    }

    /// A sequence of values of an element type.
    pub(crate) fn list(element: ElementType, values: Vec<Operand>) -> Self {
        Operand {
            element,
            dims: Vec::new(),
            source: Source::List(Arc::new(values)),
            computed: None,
        }
    }

    /// The values of a sequence.
    pub(crate) fn values(&self) -> Option<&[Operand]> {
        match &self.source {
            Source::List(values) => Some(values),
            _ => None,
        }
    }

    /// The tensor, if it is known now.
    pub(crate) fn tensor(&self) -> Option<&Tensor> {
        match &self.source {
            Source::Known(known) => Some(&known.tensor),
            Source::Node(_) | Source::List(_) => None,
        }
    }

    /// The elements, if they follow from constants and parameters: shapes may depend on them.
    pub(crate) fn determined(&self) -> Option<&Tensor> {
        self.tensor().or(self.computed.as_deref())
    }

    /// Returns the operand with the elements of a result in the graph, if their type and shape agree.
    pub(crate) fn with_elements(mut self, tensor: Tensor) -> Self {
        let is_node = matches!(self.source, Source::Node(_));
        if is_node && tensor.element() == self.element && tensor.dims() == self.dims {
            self.computed = Some(Arc::new(tensor));
        }
        self
    }

    /// The tensor, if it takes part in folding.
    pub(crate) fn foldable(&self) -> Option<&Tensor> {
        match &self.source {
            Source::Known(known) => {
                let most = if known.parameter {
                    MAX_FOLDED_PARAMETER
                } else {
                    MAX_FOLDED
                };
                Some(&*known.tensor).filter(|t| t.len() <= most)
            }
            Source::Node(_) | Source::List(_) => None,
        }
    }

    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}
