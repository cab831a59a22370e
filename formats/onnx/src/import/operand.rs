//! Values during an import.

use std::sync::Arc;

use meganeura_core::graph::Value;

use crate::element::ElementType;
use crate::tensor::Tensor;

/// A value: a result in the graph, or a tensor that is known at import.
#[derive(Clone, Debug)]
pub struct Operand {
    pub(crate) element: ElementType,
    pub(crate) dims: Vec<usize>,
    pub(crate) source: Source,
    /// Elements of a result in the graph, if it depends only on constants and parameters.
    computed: Option<Arc<Tensor>>,
    /// Range of the integers, if it is smaller than the range of the type.
    pub(super) range: Option<(i64, i64)>,
    /// Strings that the elements are indices of, for [`ElementType::Text`].
    strings: Option<Arc<Vec<String>>>,
}

/// Source of a value's elements.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The value is computed in the graph.
    Node(Value),
    /// The elements are available at import. They become a leaf (constant or parameter) of the graph when a node needs
    /// them.
    Known(Arc<KnownTensor>),
    /// A sequence of values with a known length.
    List(Arc<Vec<Operand>>),
}

/// A tensor that is known at import.
#[derive(Debug)]
pub(crate) struct KnownTensor {
    pub(crate) tensor: Arc<Tensor>,
    /// Name of the tensor, unique in the model.
    pub(crate) name: String,
    /// True if it becomes a parameter of the graph rather than a constant.
    pub(crate) parameter: bool,
}

/// Maximum number of elements of parameters that are folded; larger ones are kept, so that they can be trained.
const MAX_FOLDED_PARAMETER: usize = 16;

/// Maximum number of elements of folded tensors, because their results need memory in addition to the operands.
pub(super) const MAX_FOLDED: usize = 1 << 16;

impl Operand {
    pub(crate) fn node(value: Value, element: ElementType, dims: &[usize]) -> Self {
        Operand {
            element,
            dims: dims.to_vec(),
            source: Source::Node(value),
            computed: None,
            range: None,
            strings: None,
        }
    }

    pub(crate) fn known(tensor: Tensor, name: String, parameter: bool) -> Self {
        Operand {
            element: tensor.element(),
            dims: tensor.dims().to_vec(),
            source: Source::Known(Arc::new(KnownTensor {
                tensor: Arc::new(tensor),
                name,
                parameter,
            })),
            computed: None,
            range: None,
            strings: None,
        }
    }

    /// Creates a sequence of values of an element type.
    pub(crate) fn list(element: ElementType, values: Vec<Operand>) -> Self {
        Operand {
            element,
            dims: Vec::new(),
            source: Source::List(Arc::new(values)),
            computed: None,
            range: None,
            strings: None,
        }
    }

    /// Returns the operand with the strings that its elements are indices of.
    pub(crate) fn with_strings(mut self, strings: Arc<Vec<String>>) -> Self {
        self.strings = Some(strings);
        self
    }

    /// Returns the strings that the elements are indices of.
    pub(crate) fn strings(&self) -> Option<&Arc<Vec<String>>> {
        self.strings.as_ref()
    }

    /// Returns the values of a sequence.
    pub(crate) fn values(&self) -> Option<&[Operand]> {
        match &self.source {
            Source::List(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the tensor, if it is known at import.
    pub(crate) fn tensor(&self) -> Option<&Tensor> {
        match &self.source {
            Source::Known(known) => Some(&known.tensor),
            Source::Node(_) | Source::List(_) => None,
        }
    }

    /// Returns the elements, if they depend only on constants and parameters: shapes may depend on them.
    pub(crate) fn determined(&self) -> Option<&Tensor> {
        self.tensor().or(self.computed.as_deref())
    }

    /// Returns the operand with the elements `tensor`, if it is a result in the graph of the same type and shape.
    pub(crate) fn with_elements(mut self, tensor: Tensor) -> Self {
        let is_node = matches!(self.source, Source::Node(_));
        if is_node && tensor.element() == self.element && tensor.dims() == self.dims {
            self.computed = Some(Arc::new(tensor));
        }
        self
    }

    /// Returns the tensor, if it may be folded.
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

    /// Returns the minimum and maximum of integer elements, clamped to the 32-bit type that the graph stores them in; `None` for other
    /// elements.
    pub(crate) fn range(&self) -> Option<(i64, i64)> {
        let held = self.element.graph_range()?;
        let known = self.determined().filter(|t| t.len() <= MAX_FOLDED);
        if let Some(data) = known.and_then(Tensor::ints)
            && let (Some(low), Some(high)) = (data.iter().min(), data.iter().max())
        {
            return Some((*low, *high));
        }
        self.range.or(Some(held))
    }

    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}
