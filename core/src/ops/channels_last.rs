//! How calls on images are computed channels last.
//!
//! Images of a graph are `[batch, channels, height, width]` (NCHW). Where a device is faster with `[batch, height, width,
//! channels]` (NHWC), as tensor cores and vector units are, since the sum of a convolution goes over channels, the optimizer
//! computes convolutions and what is between them so. An operator says here what it becomes then.

use std::ops::{Deref, DerefMut};

use super::conv2d::ImageLayout;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

/// The axes of an image with channels first, in the order in which it has them channels last.
pub(super) const TO_NHWC: [i32; 4] = [0, 2, 3, 1];
/// The axes of an image with channels last, in the order in which it has them channels first.
pub(super) const TO_NCHW: [i32; 4] = [0, 3, 1, 2];

/// The axes of weights `[out channels, channels, height, width]`, in the order that they have for images channels last.
pub(super) const TO_HWIO: [i32; 4] = [2, 3, 1, 0];
/// The axes of weights `[height, width, channels, out channels]`, in the order that they have for images with channels first.
pub(super) const TO_OIHW: [i32; 4] = [3, 2, 0, 1];

/// Where an axis of an image with channels first is channels last.
const AXES: [i64; 4] = [0, 3, 1, 2];

/// A value for each result, with its layout (results that are no images are [`ImageLayout::Nchw`]), but for last ones that
/// nothing uses; or `None` where the call is computed with channels first.
pub type ChannelsLastResults = Result<Option<Vec<(Value, ImageLayout)>>, String>;

type Rule<'a> = Box<dyn Fn(&mut ChannelsLastCx) -> ChannelsLastResults + 'a>;

/// How a call is computed if images are stored channels last.
pub enum ChannelsLast<'a> {
    /// From images with channels first.
    No,
    /// Element by element, by the same call.
    Pointwise,
    /// By this rule, where an operand is there channels last alone.
    Follows(Rule<'a>),
    /// By this rule, wherever its operands come from: it is faster so.
    Starts(Rule<'a>),
}

impl<'a> ChannelsLast<'a> {
    /// A [`ChannelsLast::Follows`].
    pub fn follows(rule: impl Fn(&mut ChannelsLastCx) -> ChannelsLastResults + 'a) -> Self {
        ChannelsLast::Follows(Box::new(rule))
    }

    /// A [`ChannelsLast::Starts`].
    pub fn starts(rule: impl Fn(&mut ChannelsLastCx) -> ChannelsLastResults + 'a) -> Self {
        ChannelsLast::Starts(Box::new(rule))
    }
}

/// An operand of a call in the order that a rule wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandOrder {
    /// As the call has it.
    Same,
    /// An image with channels last.
    Nhwc,
    /// Weights of a convolution, `[height, width, channels, out channels]`.
    Hwio,
}

/// Gives an operand of the call in an order.
type Operands<'a> = dyn FnMut(&mut Graph, usize, OperandOrder) -> Value + 'a;

/// What a rule works with: the graph to build on (through deref), and the call.
pub struct ChannelsLastCx<'a> {
    graph: &'a mut Graph,
    attrs: &'a Attrs,
    inputs: &'a [TensorType],
    used: &'a [bool],
    operands: &'a mut Operands<'a>,
}

impl<'a> ChannelsLastCx<'a> {
    /// A call on operands of these types, of whose results some are used.
    pub fn new(
        graph: &'a mut Graph,
        attrs: &'a Attrs,
        inputs: &'a [TensorType],
        used: &'a [bool],
        operands: &'a mut Operands<'a>,
    ) -> Self {
        ChannelsLastCx {
            graph,
            attrs,
            inputs,
            used,
            operands,
        }
    }

    /// Attributes of the call.
    pub fn attrs(&self) -> &'a Attrs {
        self.attrs
    }

    /// Types of the operands, with channels first.
    pub fn inputs(&self) -> &'a [TensorType] {
        self.inputs
    }

    /// Whether anything uses a result of the call.
    pub fn is_used(&self, port: usize) -> bool {
        self.used.get(port).is_some_and(|&used| used)
    }

    /// Operand `i` channels last. One with fewer axes than an image gets axes of one element first, as in broadcasting.
    pub fn nhwc(&mut self, i: usize) -> Value {
        (self.operands)(self.graph, i, OperandOrder::Nhwc)
    }

    /// Operand `i`, weights `[out channels, channels, height, width]`, as `[height, width, channels, out channels]`.
    pub fn hwio(&mut self, i: usize) -> Value {
        (self.operands)(self.graph, i, OperandOrder::Hwio)
    }

    /// Operand `i` as the call has it.
    pub fn nchw(&mut self, i: usize) -> Value {
        (self.operands)(self.graph, i, OperandOrder::Same)
    }

    /// A value as a matrix with a row for each place of an image, or whatever there is before its last axis.
    pub fn rows(&mut self, x: Value) -> Value {
        let shape = self.shape(x).to_vec();
        let (last, others) = shape
            .split_last()
            .map_or((1, &[][..]), |(&last, others)| (last, others));
        let rows = others.iter().product();
        self.reshape(x, &[rows, last]).into()
    }

    /// All operands as the call has them, but for the first, which is given.
    pub fn with_first(&mut self, first: Value) -> Vec<Value> {
        let others = (1..self.inputs.len()).map(|i| (self.operands)(self.graph, i, OperandOrder::Same));
        let others: Vec<Value> = others.collect();
        [vec![first], others].concat()
    }
}

impl Deref for ChannelsLastCx<'_> {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        self.graph
    }
}

impl DerefMut for ChannelsLastCx<'_> {
    fn deref_mut(&mut self) -> &mut Graph {
        self.graph
    }
}

/// The number channels last of an axis of an image with channels first, which may count from the last one.
///
/// # Errors
/// There is no such axis.
pub(super) fn axis_channels_last(axis: i64) -> Result<i64, String> {
    let index = usize::try_from(if axis < 0 { axis + 4 } else { axis });
    index
        .ok()
        .and_then(|index| AXES.get(index).copied())
        .ok_or_else(|| format!("an image has no axis {axis}"))
}

impl Graph {
    /// An image `[batch, channels, height, width]` as `[batch, height, width, channels]`; a value with fewer axes gets axes
    /// of one element first, as in broadcasting. Where only axes of one element move, nothing is copied.
    #[track_caller]
    pub fn to_channels_last(&mut self, x: impl Into<Value>) -> Value {
        let x = x.into();
        let shape = self.shape(x).to_vec();
        let missing = 4usize.saturating_sub(shape.len());
        let dims = [vec![1; missing], shape].concat();
        let x = match missing {
            0 => x,
            _ => self.reshape(x, &dims).into(),
        };
        self.reordered(x, TO_NHWC)
    }

    /// An image `[batch, height, width, channels]` as `[batch, channels, height, width]`; the inverse of
    /// [`Graph::to_channels_last`].
    #[track_caller]
    pub fn to_channels_first(&mut self, x: impl Into<Value>) -> Value {
        self.reordered(x.into(), TO_NCHW)
    }

    /// Weights `[out channels, channels, height, width]` as `[height, width, channels, out channels]`.
    #[track_caller]
    pub fn to_hwio(&mut self, weights: impl Into<Value>) -> Value {
        self.reordered(weights.into(), TO_HWIO)
    }

    /// The inverse of [`Graph::to_hwio`].
    #[track_caller]
    pub fn to_oihw(&mut self, weights: impl Into<Value>) -> Value {
        self.reordered(weights.into(), TO_OIHW)
    }

    #[track_caller]
    fn reordered(&mut self, x: Value, axes: [i32; 4]) -> Value {
        let shape = self.shape(x).to_vec();
        let is_long = |axis: &&i32| shape.get(**axis as usize).is_some_and(|&size| size != 1);
        if shape.len() == 4 && axes.iter().filter(is_long).is_sorted() {
            let dims = axes.map(|axis| shape[axis as usize]);
            return self.reshape(x, &dims).into();
        }
        self.permute(x, &axes).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_one_element_move_without_a_copy() {
        let mut g = Graph::new();
        let image = g.input("image", &[2, 3, 4, 5]);
        let (bias, pooled) = (g.input("bias", &[3, 1, 1]), g.input("pooled", &[2, 3, 1, 1]));
        let [image, bias, pooled] = [image, bias, pooled].map(|x| g.to_channels_last(x));
        assert_eq!(g.shape(image), [2, 4, 5, 3]);
        assert_eq!(g.shape(bias), [1, 1, 1, 3]);
        assert_eq!(g.shape(pooled), [2, 1, 1, 3]);
        let back = g.to_channels_first(image);
        assert_eq!(g.shape(back), [2, 3, 4, 5]);
        let permutations = g
            .nodes()
            .iter()
            .filter_map(|n| n.op())
            .filter(|(op, _)| op.name() == "core.permute");
        assert_eq!(permutations.count(), 2, "those of the image");
        g.set_outputs(vec![back, bias, pooled]);
        g.verify().expect("a graph");
    }

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!(
            [0, 1, 2, 3].map(|a| axis_channels_last(a).ok()),
            [Some(0), Some(3), Some(1), Some(2)]
        );
        assert_eq!(
            [-4, -3, -2, -1].map(|a| axis_channels_last(a).ok()),
            [Some(0), Some(3), Some(1), Some(2)]
        );
        assert!(axis_channels_last(4).is_err() && axis_channels_last(-5).is_err());
    }
}
