//! Rules for computing calls on images in channels-last layout.
//!
//! Images of a graph are `[batch, channels, height, width]` (NCHW). Many devices (tensor cores,
//! vector units) are faster with `[batch, height, width, channels]` (NHWC), because a convolution
//! sums over channels. On such devices, the optimizer computes convolutions and the calls between
//! them in NHWC. This module lets an operator define its NHWC form.

use std::ops::{Deref, DerefMut};

use super::conv2d::ImageLayout;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

/// Permutation of an image from NCHW to NHWC.
pub(super) const TO_NHWC: [i32; 4] = [0, 2, 3, 1];
/// Permutation of an image from NHWC to NCHW.
pub(super) const TO_NCHW: [i32; 4] = [0, 3, 1, 2];

/// Permutation of weights from `[out channels, channels, height, width]` to
/// `[height, width, channels, out channels]`.
pub(super) const TO_HWIO: [i32; 4] = [2, 3, 1, 0];
/// The inverse permutation of weights.
pub(super) const TO_OIHW: [i32; 4] = [3, 2, 0, 1];

/// Index in NHWC of each axis of NCHW.
const AXES: [i64; 4] = [0, 3, 1, 2];

/// A value for each result, with its layout (results that are not images have
/// [`ImageLayout::Nchw`]); unused last results may be omitted. `None` if the call is computed in
/// NCHW.
pub type ChannelsLastResults = Result<Option<Vec<(Value, ImageLayout)>>, String>;

type Rule<'a> = Box<dyn Fn(&mut ChannelsLastCx) -> ChannelsLastResults + 'a>;

/// The form that a call takes on images in channels-last layout.
pub enum ChannelsLast<'a> {
    /// The call has no such form: it is computed in NCHW only.
    No,
    /// The call is elementwise, so the same call works in any layout.
    Pointwise,
    /// The rule gives the form; it is used if an operand is available only in channels-last layout.
    Follows(Rule<'a>),
    /// The rule gives the form; it is used in any case, because it is faster.
    Starts(Rule<'a>),
}

impl<'a> ChannelsLast<'a> {
    /// Returns a [`ChannelsLast::Follows`].
    pub fn follows(rule: impl Fn(&mut ChannelsLastCx) -> ChannelsLastResults + 'a) -> Self {
        ChannelsLast::Follows(Box::new(rule))
    }

    /// Returns a [`ChannelsLast::Starts`].
    pub fn starts(rule: impl Fn(&mut ChannelsLastCx) -> ChannelsLastResults + 'a) -> Self {
        ChannelsLast::Starts(Box::new(rule))
    }
}

/// Layout of an operand that a rule requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandOrder {
    /// The layout that the operand has in the call.
    Same,
    /// An image with channels last.
    Nhwc,
    /// Weights of a convolution, `[height, width, channels, out channels]`.
    Hwio,
}

/// Function that returns an operand of the call in a given layout.
type Operands<'a> = dyn FnMut(&mut Graph, usize, OperandOrder) -> Value + 'a;

/// Context of a rule: the graph to build on (through deref), and the call.
pub struct ChannelsLastCx<'a> {
    graph: &'a mut Graph,
    attrs: &'a Attrs,
    inputs: &'a [TensorType],
    used: &'a [bool],
    operands: &'a mut Operands<'a>,
}

impl<'a> ChannelsLastCx<'a> {
    /// Creates the context of a call with operands of these types; `used` marks the results that
    /// are used.
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

    /// Returns the attributes of the call.
    pub fn attrs(&self) -> &'a Attrs {
        self.attrs
    }

    /// Returns the types of the operands, with channels first.
    pub fn inputs(&self) -> &'a [TensorType] {
        self.inputs
    }

    /// Returns `true` if a result of the call is used.
    pub fn is_used(&self, port: usize) -> bool {
        self.used.get(port).is_some_and(|&used| used)
    }

    /// Returns operand `i` in NHWC. An operand with fewer axes than an image first gets leading
    /// axes of size 1, as in broadcasting.
    pub fn nhwc(&mut self, i: usize) -> Value {
        (self.operands)(self.graph, i, OperandOrder::Nhwc)
    }

    /// Permutes operand `i`, weights `[out channels, channels, height, width]`, as
    /// `[height, width, channels, out channels]`.
    pub fn hwio(&mut self, i: usize) -> Value {
        (self.operands)(self.graph, i, OperandOrder::Hwio)
    }

    /// Returns operand `i` in the layout that it has in the call.
    pub fn nchw(&mut self, i: usize) -> Value {
        (self.operands)(self.graph, i, OperandOrder::Same)
    }

    /// Reshapes a value to a matrix: all axes before the last become rows (one per pixel of an
    /// image).
    pub fn rows(&mut self, x: Value) -> Value {
        let shape = self.shape(x).to_vec();
        let (last, others) = shape
            .split_last()
            .map_or((1, &[][..]), |(&last, others)| (last, others));
        let rows = others.iter().product();
        self.reshape(x, &[rows, last]).into()
    }

    /// Returns all operands in the layout that they have in the call, except that the first is replaced by `first`.
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

/// Converts the index of an axis of NCHW, which may be negative, to that of NHWC.
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
    /// Permutes an image `[batch, channels, height, width]` as `[batch, height, width, channels]`; a value with fewer
    /// axes gets axes of one element first, as in broadcasting. If only axes of one element move, no data is copied.
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

    /// Permutes an image `[batch, height, width, channels]` as `[batch, channels, height, width]`;
    /// the inverse of [`Graph::to_channels_last`].
    #[track_caller]
    pub fn to_channels_first(&mut self, x: impl Into<Value>) -> Value {
        self.reordered(x.into(), TO_NCHW)
    }

    /// Permutes weights `[out channels, channels, height, width]` as
    /// `[height, width, channels, out channels]`.
    #[track_caller]
    pub fn to_hwio(&mut self, weights: impl Into<Value>) -> Value {
        self.reordered(weights.into(), TO_HWIO)
    }

    /// Reverses [`Graph::to_hwio`].
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
