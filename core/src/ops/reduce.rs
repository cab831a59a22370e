//! Reductions over any axes: sum, max, mean.

use super::channels_last::{ChannelsLast, axis_channels_last};
use super::conv2d::ImageLayout;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, GradCx, Gradient, OpRef, Operator, RefCall, Semantics,
    expect_float,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::reference::{broadcast_offset, for_each_index, wrap};
use crate::shape::{Shape, TensorType};

pub(super) struct Sum;
pub(super) struct Max;
pub(super) struct Mean;

/// Returns the operand's shape with the reduced axes set to 1.
pub(super) fn kept_shape(shape: &Shape, attrs: &Attrs) -> Result<Vec<usize>, String> {
    let mut dims = shape.to_vec();
    for axis in shape.axes(attrs.ints("axes")?)? {
        dims[axis] = 1;
    }
    Ok(dims)
}

/// Returns the types of the result of a reduction.
pub(super) fn infer(call: &Call) -> Result<Vec<TensorType>, String> {
    let x = &call.inputs[0];
    let axes = x.shape.axes(call.attrs.ints("axes")?)?;
    let keep = call.attrs.bool("keep_dims")?;
    let dims: Vec<usize> = x
        .shape
        .iter()
        .enumerate()
        .filter(|(i, _)| keep || !axes.contains(i))
        .map(|(i, &d)| if axes.contains(&i) { 1 } else { d })
        .collect();
    Ok(vec![TensorType::new(x.dtype, Shape::new(&dims)?)])
}

/// Returns the channels-last form of a reduction: it reduces the same axes, which have other indices in this layout. A
/// result without the reduced axes does not change if the remaining axes keep their order.
pub(super) fn channels_last<'a>(op: OpRef) -> ChannelsLast<'a> {
    ChannelsLast::follows(move |cx| {
        let x = &cx.inputs()[0];
        let axes = x.shape.axes(cx.attrs().ints("axes")?)?;
        let keeps = cx.attrs().bool("keep_dims")?;
        // Channels come after height and width in this layout, so the remaining axes must not be
        // reordered.
        let mixes = !(axes.contains(&1) || axes.contains(&2) && axes.contains(&3));
        if x.shape.rank() != 4 || (!keeps && mixes) {
            return Ok(None);
        }
        let axes = axes.into_iter().map(|axis| axis_channels_last(axis as i64));
        let axes: Vec<i64> = axes.collect::<Result<_, _>>()?;
        let operand = cx.nhwc(0);
        let attrs = Attrs::new().with("axes", axes).with("keep_dims", keeps);
        let layout = if keeps { ImageLayout::Nhwc } else { ImageLayout::Nchw };
        Ok(Some(vec![(cx.call(op, attrs, vec![operand]).into(), layout)]))
    })
}

/// Folds the operand over the axes of the call, in row-major order.
pub(super) fn fold(call: &RefCall, start: f64, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let x = call.inputs[0];
    let mut kept = x.shape().to_vec();
    let axes = call.ints("axes");
    for axis in 0..kept.len() {
        let negative = axis as i64 - kept.len() as i64;
        if axes.is_empty() || axes.contains(&(axis as i64)) || axes.contains(&negative) {
            kept[axis] = 1;
        }
    }
    let mut out = vec![start; kept.iter().product()];
    let mut i = 0;
    for_each_index(x.shape(), |index| {
        let slot = &mut out[broadcast_offset(&kept, index)];
        *slot = f(*slot, x.data[i]);
        i += 1;
    });
    out
}

/// Returns sample cases for any reduction.
pub(super) fn samples(sizes: &mut Sizes, fill: Option<Fill>) -> Vec<Sample> {
    let s = sizes.shape(3, 40);
    let cases: Vec<(Vec<usize>, Vec<i64>, bool)> = vec![
        (vec![], vec![], false),
        (vec![1], vec![0], true),
        (vec![17], vec![0], false),
        (vec![4, 5], vec![1], false),
        (vec![4, 5], vec![0], true),
        (vec![2, 3, 4, 5], vec![1, 3], false),
        (vec![2, 3, 4, 5], vec![0, 2], true),
        (s.clone(), vec![-1], true),
        (s.clone(), vec![0, 1], false),
        (s, vec![], false),
        (vec![1009], vec![0], false),
        (vec![3, 2050], vec![1], false),
        (vec![2050, 3], vec![0], false),
    ];
    cases
        .into_iter()
        .map(|(shape, axes, keep)| {
            let label = format!("{shape:?} over {axes:?}");
            let attrs = Attrs::new().with("axes", axes).with("keep_dims", keep);
            let mut input = SampleInput::f32(&shape);
            input.fill = fill.unwrap_or(input.fill);
            Sample::new(label, vec![input], attrs)
        })
        .collect()
}

/// Reshapes a reduced value to the operand's rank, so that it broadcasts against the operand.
pub(super) fn keep_dims(cx: &mut GradCx, reduced: Value) -> Result<Value, String> {
    let shape = Shape::new(cx.shape(cx.operand(0)))?;
    let kept = kept_shape(&shape, cx.attrs())?;
    Ok(cx.reshape(reduced, &kept).into())
}

/// Returns the gradient rule for a smallest or largest element: equal elements share the gradient evenly.
pub(super) fn extremum_gradient() -> Gradient<'static> {
    Gradient::rule(|cx| {
        let (x, y, dy) = (cx.operand(0), cx.result(0), cx.grad(0));
        let dtype = cx.dtype(x);
        let y = keep_dims(cx, y)?;
        let dy = keep_dims(cx, dy)?;
        let axes: Vec<i32> = cx.attrs().ints("axes")?.iter().map(|&a| a as i32).collect();
        let is_extreme = cx.equal(x, y);
        let ones = cx.cast(is_extreme, dtype);
        let count = cx.sum(ones, &axes, true);
        let share = cx.div(dy, count);
        Ok(vec![Some(cx.mul(ones, share).into())])
    })
}

impl Operator for Sum {
    fn name(&self) -> &'static str {
        "core.sum"
    }

    fn signature(&self) -> String {
        "g.sum(x, axes, keep_dims)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> x without the reduced axes, or with size 1 there (keep_dims); axes: distinct axes of x, negative ones count from the last, none means all",
            formula: "sum of x over the axes (all if none are named); integers wrap",
            source: "NumPy `sum`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axes", AttrKind::Ints), ("keep_dims", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let dy = cx.grad(0);
            let kept = keep_dims(cx, dy)?;
            let shape = cx.shape(cx.operand(0)).to_vec();
            Ok(vec![Some(cx.expand(kept, &shape).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let dtype = call.outputs[0].dtype;
            let mut out = fold(call, 0.0, |a, b| a + b);
            if dtype.is_integer() {
                out.iter_mut().for_each(|v| *v = wrap(dtype, *v as i128));
            }
            vec![out]
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Reduction
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        channels_last(OpRef::new(&Sum))
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut all = samples(sizes, None);
        for dtype in [DType::U32, DType::I32] {
            let input = SampleInput::filled(dtype, &[5, 7], Fill::Below(100));
            let attrs = Attrs::new().with("axes", vec![1]).with("keep_dims", false);
            all.push(Sample::new(dtype.name(), vec![input], attrs));
        }
        all
    }
}

impl Operator for Max {
    fn name(&self) -> &'static str {
        "core.max_reduce"
    }

    fn signature(&self) -> String {
        "g.max(x, axes, keep_dims)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> x without the reduced axes, or with size 1 there (keep_dims); axes: distinct axes of x, negative ones count from the last, none means all",
            formula: "largest element over the axes (all if none are named), NaN if there is one; equal largest elements share the gradient evenly",
            source: "NumPy `max`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axes", AttrKind::Ints), ("keep_dims", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let types = infer(call)?;
        if call.inputs[0].numel() == 0 && types[0].numel() > 0 {
            return Err(format!("the largest of no elements is not defined: {}", call.inputs[0]));
        }
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        extremum_gradient()
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let largest = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
            vec![fold(call, f64::NEG_INFINITY, largest)]
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Reduction
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        channels_last(OpRef::new(&Max))
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes, Some(Fill::Distinct))
    }
}

impl Operator for Mean {
    fn name(&self) -> &'static str {
        "core.mean"
    }

    fn signature(&self) -> String {
        "g.mean(x, axes, keep_dims)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> x without the reduced axes, or with size 1 there (keep_dims); axes: distinct axes of x, negative ones count from the last, none means all",
            formula: "sum of x over the axes, divided by the number of elements summed",
            source: "NumPy `mean`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axes", AttrKind::Ints), ("keep_dims", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        let types = infer(call)?;
        if call.inputs[0].numel() == 0 && types[0].numel() > 0 {
            return Err(format!("the mean of no elements is not defined: {}", call.inputs[0]));
        }
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (x, y) = (cx.operand(0), cx.result(0));
            let shape = cx.shape(x).to_vec();
            let dtype = cx.dtype(x);
            let results: usize = cx.shape(y).iter().product();
            let count: usize = shape.iter().product::<usize>() / results.max(1);
            let factor = cx.scalar_of(dtype, 1.0 / count as f64);
            let dy = cx.grad(0);
            let scaled = cx.mul(dy, factor).into();
            let kept = keep_dims(cx, scaled)?;
            Ok(vec![Some(cx.expand(kept, &shape).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let x = cx.inputs[0];
            let axes: Vec<i32> = cx.attrs.ints("axes")?.iter().map(|&a| a as i32).collect();
            let keep = cx.attrs.bool("keep_dims")?;
            let count = cx.graph.shape(x).iter().product::<usize>() / cx.outputs[0].numel().max(1);
            let dtype = cx.outputs[0].dtype;
            let sum = cx.graph.sum(x, &axes, keep);
            let factor = cx.graph.scalar_of(dtype, 1.0 / count as f64);
            Ok(vec![cx.graph.mul(sum, factor).into()])
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Reduction
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        channels_last(OpRef::new(&Mean))
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes, None)
    }
}

impl Graph {
    #[track_caller]
    pub(super) fn reduce(&mut self, op: &'static dyn Operator, x: Value, axes: &[i32], keep_dims: bool) -> NodeId {
        let attrs = Attrs::new().with("axes", axes).with("keep_dims", keep_dims);
        self.call(OpRef::new(op), attrs, vec![x])
    }

    /// Computes the sum over `axes` (negative ones count from the last; none means all).
    /// `keep_dims` leaves the reduced axes with size 1.
    #[track_caller]
    pub fn sum(&mut self, x: impl Into<Value>, axes: &[i32], keep_dims: bool) -> NodeId {
        self.reduce(&Sum, x.into(), axes, keep_dims)
    }

    /// Computes the largest element over `axes`; see [`Graph::sum`] for the arguments, and
    /// [`Graph::maximum`] for the larger of two tensors.
    #[track_caller]
    pub fn max(&mut self, x: impl Into<Value>, axes: &[i32], keep_dims: bool) -> NodeId {
        self.reduce(&Max, x.into(), axes, keep_dims)
    }

    /// Computes the mean over `axes`; see [`Graph::sum`] for the arguments.
    #[track_caller]
    pub fn mean(&mut self, x: impl Into<Value>, axes: &[i32], keep_dims: bool) -> NodeId {
        self.reduce(&Mean, x.into(), axes, keep_dims)
    }

    /// Computes the sum of all elements, of shape `[]`.
    #[track_caller]
    pub fn sum_all(&mut self, x: impl Into<Value>) -> NodeId {
        self.reduce(&Sum, x.into(), &[], false)
    }

    /// Computes the mean of all elements, of shape `[]`.
    #[track_caller]
    pub fn mean_all(&mut self, x: impl Into<Value>) -> NodeId {
        self.reduce(&Mean, x.into(), &[], false)
    }
}
