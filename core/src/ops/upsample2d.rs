//! Resizing of images, and its transpose. Both interpolations (nearest and bilinear) work on one axis after the other;
//! along an axis, each result is a mix of at most two neighbours.

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Expansion, Gradient, OpRef, Operator, Semantics, expect_float,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct UpsampleNearest2d;
pub(super) struct UpsampleNearest2dGrad;
pub(super) struct UpsampleBilinear2d;
pub(super) struct UpsampleBilinear2dGrad;

/// Maximum length of a resized axis: tables have an entry for each of its elements.
pub(super) const MAX_AXIS: usize = 1 << 24;

/// Interpolation along an axis: each result is `lower (1 - fraction) + upper fraction`.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisTaps {
    /// First neighbour of each result.
    pub lower: Vec<u32>,
    /// Second neighbour of each result, which may be the first one.
    pub upper: Vec<u32>,
    /// Weight of the second neighbour.
    pub fraction: Vec<f32>,
}

impl AxisTaps {
    /// Returns the interpolation that selects the element at `i * input / output`, rounded down.
    fn nearest(input: usize, output: usize) -> Self {
        let lower: Vec<u32> = (0..output).map(|i| (i * input / output) as u32).collect();
        AxisTaps {
            upper: lower.clone(),
            lower,
            fraction: vec![0.0; output],
        }
    }

    /// Returns the interpolation between the two elements around a position: with aligned corners, the position is
    /// `i * (input - 1) / (output - 1)`, otherwise `(i + 1/2) * input / output - 1/2`, but not below 0.
    fn bilinear(input: usize, output: usize, align_corners: bool) -> Self {
        let mut taps = AxisTaps::nearest(0, 0);
        for i in 0..output {
            let position = if !align_corners {
                ((i as f64 + 0.5) * input as f64 / output as f64 - 0.5).max(0.0)
            } else if output > 1 {
                i as f64 * (input - 1) as f64 / (output - 1) as f64
            } else {
                0.0
            };
            let lower = (position as usize).min(input - 1);
            taps.lower.push(lower as u32);
            taps.upper.push((lower + 1).min(input - 1) as u32);
            taps.fraction.push((position - lower as f64) as f32);
        }
        taps
    }

    /// Returns the tables of rows and columns of a resizing from the first sizes to the second.
    ///
    /// # Errors
    /// `bilinear` is set, but the attribute `align_corners` is not a flag.
    pub fn of(attrs: &Attrs, from: [usize; 2], to: [usize; 2], bilinear: bool) -> Result<[Self; 2], String> {
        if !bilinear {
            return Ok([0, 1].map(|a| AxisTaps::nearest(from[a], to[a])));
        }
        let align = attrs.bool("align_corners")?;
        Ok([0, 1].map(|a| AxisTaps::bilinear(from[a], to[a], align)))
    }
}

/// Returns the last two sizes of `x [n, c, h, w]`, and the sizes that an attribute requests.
pub(super) fn image_sizes(call: &Call, attr: &str) -> Result<[[usize; 2]; 2], String> {
    expect_float(call, 0, "the operand")?;
    let x = &call.inputs[0];
    let &[_, _, h, w] = &x.shape[..] else {
        return Err(format!("the operand is {x}; it takes [batch, channels, height, width]"));
    };
    let to: [usize; 2] = call.attrs.sizes(attr)?;
    if h == 0 || w == 0 {
        return Err(format!("an image of {h}x{w} has no elements to choose from"));
    }
    if to.contains(&0) {
        return Err(format!(
            "the image cannot become {}x{}: sizes are at least 1",
            to[0], to[1]
        ));
    }
    if let Some(size) = [h, w, to[0], to[1]].into_iter().find(|&s| s > MAX_AXIS) {
        return Err(format!("an axis of {size} elements is longer than {MAX_AXIS}"));
    }
    Ok([[h, w], to])
}

/// Returns the type of `x` with another height and width.
pub(super) fn resized(x: &TensorType, [h, w]: [usize; 2]) -> Result<Vec<TensorType>, String> {
    let shape = Shape::new(&[x.shape[0], x.shape[1], h, w])?;
    Ok(vec![TensorType::new(x.dtype, shape)])
}

/// Returns the sizes before and after a resizing, from the types of the call or of the transposed
/// one.
fn sizes_of(cx: &Expansion, transposed: bool) -> [[usize; 2]; 2] {
    let operand = cx.graph.shape(cx.inputs[0]);
    let sizes = [
        [operand[2], operand[3]],
        [cx.outputs[0].shape[2], cx.outputs[0].shape[3]],
    ];
    if transposed { [sizes[1], sizes[0]] } else { sizes }
}

/// Returns the column vector of weights along an axis, in the dtype of `like`.
fn weights(g: &mut Graph, values: Vec<f32>, axis: usize, like: Value) -> NodeId {
    let len = values.len();
    let shape = if axis == 2 { vec![len, 1] } else { vec![len] };
    let constant = g.constant(values, &shape);
    let dtype = g.dtype(like);
    g.cast(constant, dtype)
}

/// Resizes an image, one axis at a time.
fn resize(cx: &mut Expansion, bilinear: bool) -> Result<Vec<Value>, String> {
    let [from, to] = sizes_of(cx, false);
    let taps = AxisTaps::of(cx.attrs, from, to, bilinear)?;
    let (g, mut x) = (&mut *cx.graph, cx.inputs[0]);
    for (a, taps) in taps.into_iter().enumerate().filter(|&(a, _)| from[a] != to[a]) {
        let axis = a as i32 + 2;
        let lower = g.constant_u32(taps.lower, &[to[a]]);
        let first = g.gather_axis(x, lower, axis);
        if !bilinear {
            x = first.into();
            continue;
        }
        let upper = g.constant_u32(taps.upper, &[to[a]]);
        let second = g.gather_axis(x, upper, axis);
        let rest = taps.fraction.iter().map(|f| 1.0 - f).collect();
        let rest = weights(g, rest, a + 2, x);
        let fraction = weights(g, taps.fraction, a + 2, x);
        let first = g.mul(first, rest);
        let second = g.mul(second, fraction);
        x = g.add(first, second).into();
    }
    Ok(vec![x])
}

/// Computes the transpose of resizing, one axis at a time.
fn transpose(cx: &mut Expansion, bilinear: bool) -> Result<Vec<Value>, String> {
    let [from, to] = sizes_of(cx, true);
    let taps = AxisTaps::of(cx.attrs, from, to, bilinear)?;
    let (g, mut dy) = (&mut *cx.graph, cx.inputs[0]);
    for (a, taps) in taps.into_iter().enumerate().filter(|&(a, _)| from[a] != to[a]) {
        let axis = a as i32 + 2;
        let lower = g.constant_u32(taps.lower, &[to[a]]);
        if !bilinear {
            dy = g.scatter_add_axis(dy, lower, axis, from[a]).into();
            continue;
        }
        let upper = g.constant_u32(taps.upper, &[to[a]]);
        let rest = taps.fraction.iter().map(|f| 1.0 - f).collect();
        let rest = weights(g, rest, a + 2, dy);
        let fraction = weights(g, taps.fraction, a + 2, dy);
        let first = g.mul(dy, rest);
        let first = g.scatter_add_axis(first, lower, axis, from[a]);
        let second = g.mul(dy, fraction);
        let second = g.scatter_add_axis(second, upper, axis, from[a]);
        dy = g.add(first, second).into();
    }
    Ok(vec![dy])
}

/// Returns sizes of sample images before and after.
fn cases(sizes: &mut Sizes) -> Vec<([usize; 4], [usize; 2])> {
    let varied = [sizes.dim(3), sizes.dim(3), sizes.dim(13), sizes.dim(13)];
    vec![
        ([1, 1, 1, 1], [3, 2]),
        ([2, 3, 4, 5], [8, 10]),
        ([1, 2, 5, 4], [5, 11]),
        ([1, 2, 7, 6], [3, 1]),
        ([3, 1, 3, 67], [4, 129]),
        (varied, [sizes.dim(31), sizes.dim(31)]),
    ]
}

/// Returns samples of one of the operators; `aligned` are the values of `align_corners` to try.
fn samples(sizes: &mut Sizes, transposed: bool, aligned: &[Option<bool>]) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (x, to) in cases(sizes) {
        for &align in aligned {
            let y = [x[0], x[1], to[0], to[1]];
            let (operand, attrs) = if transposed {
                (y, Attrs::new().with("input_size", [x[2], x[3]]))
            } else {
                (x, Attrs::new().with("output_size", to))
            };
            let attrs = align.map_or(attrs.clone(), |align| attrs.with("align_corners", align));
            let label = format!("{operand:?} {attrs}");
            samples.push(Sample::new(label, vec![SampleInput::f32(&operand)], attrs));
        }
    }
    samples
}

/// Returns the gradient rule of one of the two operators: it calls the other one. `attr` is the attribute with the
/// image size before the call.
fn other<'a>(op: OpRef, attr: &'static str, bilinear: bool) -> Gradient<'a> {
    Gradient::rule(move |cx| {
        let shape = cx.shape(cx.operand(0)).to_vec();
        let mut attrs = Attrs::new().with(attr, [shape[2], shape[3]]);
        if bilinear {
            attrs = attrs.with("align_corners", cx.attrs().bool("align_corners")?);
        }
        let dy = cx.grad(0);
        Ok(vec![Some(cx.call(op, attrs, vec![dy]).into())])
    })
}

impl Operator for UpsampleNearest2d {
    fn name(&self) -> &'static str {
        "core.upsample_nearest2d"
    }

    fn signature(&self) -> String {
        "g.upsample_nearest2d(x, output_size)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, height, width] -> [batch, channels, output_size], smaller or larger",
            formula: "y[n, c, i, j] = x[n, c, i height / out height, j width / out width], both rounded down",
            source: "PyTorch `interpolate`, mode `nearest`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("output_size", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [_, to] = image_sizes(call, "output_size")?;
        resized(&call.inputs[0], to)
    }

    fn gradient(&self) -> Gradient<'_> {
        other(OpRef::new(&UpsampleNearest2dGrad), "input_size", false)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| resize(cx, false))
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes, false, &[None])
    }
}

impl Operator for UpsampleNearest2dGrad {
    fn name(&self) -> &'static str {
        "core.upsample_nearest2d_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "dy [batch, channels, out height, out width] -> [batch, channels, input_size]",
            formula: "dx of upsample_nearest2d: each element is the sum of dy over its copies",
            source: "transpose of upsample_nearest2d",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("input_size", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [_, to] = image_sizes(call, "input_size")?;
        resized(&call.inputs[0], to)
    }

    fn gradient(&self) -> Gradient<'_> {
        other(OpRef::new(&UpsampleNearest2d), "output_size", false)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| transpose(cx, false))
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes, true, &[None])
    }
}

impl Operator for UpsampleBilinear2d {
    fn name(&self) -> &'static str {
        "core.upsample_bilinear2d"
    }

    fn signature(&self) -> String {
        "g.upsample_bilinear2d(x, output_size, align_corners)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, height, width] -> [batch, channels, output_size], smaller or larger",
            formula: "linear interpolation between the two neighbours along each axis, at i (size - 1) / (out - 1) with aligned corners, else at (i + 1/2) size / out - 1/2, not below 0",
            source: "PyTorch `interpolate`, mode `bilinear`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("output_size", AttrKind::Ints), ("align_corners", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [_, to] = image_sizes(call, "output_size")?;
        call.attrs.bool("align_corners")?;
        resized(&call.inputs[0], to)
    }

    fn gradient(&self) -> Gradient<'_> {
        other(OpRef::new(&UpsampleBilinear2dGrad), "input_size", true)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| resize(cx, true))
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 6)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes, false, &[Some(false), Some(true)])
    }
}

impl Operator for UpsampleBilinear2dGrad {
    fn name(&self) -> &'static str {
        "core.upsample_bilinear2d_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "dy [batch, channels, out height, out width] -> [batch, channels, input_size]",
            formula: "dx of upsample_bilinear2d: each result gives dy to its neighbours, by their shares",
            source: "transpose of upsample_bilinear2d",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("input_size", AttrKind::Ints), ("align_corners", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [_, to] = image_sizes(call, "input_size")?;
        call.attrs.bool("align_corners")?;
        resized(&call.inputs[0], to)
    }

    fn gradient(&self) -> Gradient<'_> {
        other(OpRef::new(&UpsampleBilinear2d), "output_size", true)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| transpose(cx, true))
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 6 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes, true, &[Some(false), Some(true)])
    }
}

impl Graph {
    /// Resizes `x [n, c, h, w]` to `[n, c, oh, ow]`: each result is the element at `(i * h / oh, j * w / ow)`, rounded
    /// down in exact arithmetic.
    #[track_caller]
    pub fn upsample_nearest2d(&mut self, x: impl Into<Value>, output_size: [usize; 2]) -> NodeId {
        let attrs = Attrs::new().with("output_size", output_size);
        self.call(OpRef::new(&UpsampleNearest2d), attrs, vec![x.into()])
    }

    /// Resizes `x [n, c, h, w]` to `[n, c, oh, ow]` by linear interpolation along both axes. With
    /// `align_corners` the first and last elements keep their positions; otherwise pixels are
    /// squares with centres at half-integers, and the border is repeated.
    #[track_caller]
    pub fn upsample_bilinear2d(&mut self, x: impl Into<Value>, output_size: [usize; 2], align_corners: bool) -> NodeId {
        let attrs = Attrs::new()
            .with("output_size", output_size)
            .with("align_corners", align_corners);
        self.call(OpRef::new(&UpsampleBilinear2d), attrs, vec![x.into()])
    }
}
