//! Pooling to a given output size, for any image size.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::upsample2d::{image_sizes, resized};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Expansion, Gradient, OpRef, Operator, Pool2dOptions, Semantics,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct AdaptiveAvgPool2d;
pub(super) struct AdaptiveMaxPool2d;

/// Reduction of the elements of a window.
#[derive(Clone, Copy, PartialEq)]
enum Pooling {
    Mean,
    Largest,
}

/// Returns the windows along an axis: window `i` begins at `i * input / output` rounded down and ends before
/// `(i + 1) * input / output` rounded up.
fn windows(input: usize, output: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..output).map(move |i| i * input / output..((i + 1) * input).div_ceil(output))
}

/// Pools both axes, one after the other: windows are rectangles, so the result is the same.
fn pool(cx: &mut Expansion, pooling: Pooling) -> Result<Vec<Value>, String> {
    let shape = cx.graph.shape(cx.inputs[0]).to_vec();
    let (from, to) = ([shape[2], shape[3]], [cx.outputs[0].shape[2], cx.outputs[0].shape[3]]);
    let (g, mut x) = (&mut *cx.graph, cx.inputs[0]);
    // Where the windows do not overlap, plain pooling.
    let plain = [0, 1].map(|a| if from[a] % to[a] == 0 { from[a] / to[a] } else { 1 });
    if plain != [1, 1] {
        let kernel = plain.map(|k| k as u32);
        let options = Pool2dOptions {
            kernel,
            stride: kernel,
            padding: [0, 0],
        };
        x = match pooling {
            Pooling::Mean => g.avg_pool2d(x, options).into(),
            Pooling::Largest => g.max_pool2d(x, options).into(),
        };
    }
    for a in (0..2).filter(|&a| from[a] % to[a] != 0) {
        x = pool_axis(g, x, a + 2, to[a], pooling);
    }
    Ok(vec![x])
}

/// Pools overlapping windows along an axis: gathers their elements on a new axis, and reduces that.
fn pool_axis(g: &mut Graph, x: Value, axis: usize, output: usize, pooling: Pooling) -> Value {
    let windows: Vec<_> = windows(g.shape(x)[axis], output).collect();
    // Sizes differ by at most one; a smaller window contains its last element twice, each weighted
    // by half.
    let size = windows.iter().map(ExactSizeIterator::len).max().unwrap_or(1);
    let mut indices = Vec::with_capacity(output * size);
    let mut shares = Vec::with_capacity(output * size);
    for window in &windows {
        let repeated = size - window.len();
        for k in 0..size {
            indices.push((window.start + k).min(window.end - 1) as u32);
            let once = k + 1 < window.len() || repeated == 0;
            shares.push(if once { 1.0 } else { 1.0 / (repeated + 1) as f32 });
        }
    }
    // Axes after this one; weights broadcast along them.
    let after = vec![1; 3 - axis];
    let dtype = g.dtype(x);
    let column = |g: &mut Graph, values: Vec<f32>, shape: &[usize]| {
        let constant = g.constant(values, &[shape, &after].concat());
        g.cast(constant, dtype)
    };
    let indices = g.constant_u32(indices, &[output, size]);
    let parts = g.gather_axis(x, indices, axis as i32);
    let window_axis = [axis as i32 + 1];
    match pooling {
        Pooling::Largest => g.max(parts, &window_axis, false).into(),
        Pooling::Mean => {
            let shares = column(g, shares, &[output, size]);
            let counts = windows.iter().map(|w| w.len() as f32).collect();
            let counts = column(g, counts, &[output]);
            let parts = g.mul(parts, shares);
            let sum = g.sum(parts, &window_axis, false);
            g.div(sum, counts).into()
        }
    }
}

fn infer(call: &Call) -> Result<Vec<TensorType>, String> {
    let [_, to] = image_sizes(call, "output_size")?;
    resized(&call.inputs[0], to)
}

fn cost(call: &Call) -> Cost {
    let flops = call.inputs[0].numel() as u64;
    Cost {
        flops,
        ..Cost::streaming(call, 1)
    }
}

fn samples(sizes: &mut Sizes, fill: Fill) -> Vec<Sample> {
    let varied = [2, sizes.dim(3), sizes.dim(17), sizes.dim(17)];
    [
        ([1, 1, 1, 1], [1, 1]),
        ([2, 3, 6, 8], [3, 2]),
        ([1, 2, 7, 7], [3, 7]),
        ([2, 2, 5, 6], [3, 2]),
        ([1, 3, 6, 10], [2, 4]),
        ([1, 2, 3, 2], [5, 3]),
        (varied, [sizes.dim(9), sizes.dim(9)]),
    ]
    .into_iter()
    .map(|(x, to): ([usize; 4], [usize; 2])| {
        let attrs = Attrs::new().with("output_size", to);
        let input = SampleInput::filled(DType::F32, &x, fill);
        Sample::new(format!("{x:?} to {to:?}"), vec![input], attrs)
    })
    .collect()
}

impl Operator for AdaptiveAvgPool2d {
    fn name(&self) -> &'static str {
        "core.adaptive_avg_pool2d"
    }

    fn signature(&self) -> String {
        "g.adaptive_avg_pool2d(x, output_size)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, height, width] -> [batch, channels, output_size]",
            formula: "mean of each window; along an axis the i-th begins at i size / out rounded down and ends before (i + 1) size / out rounded up",
            source: "PyTorch `adaptive_avg_pool2d`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("output_size", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| pool(cx, Pooling::Mean))
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes, Fill::Range(-2.0, 2.0))
    }
}

impl Operator for AdaptiveMaxPool2d {
    fn name(&self) -> &'static str {
        "core.adaptive_max_pool2d"
    }

    fn signature(&self) -> String {
        "g.adaptive_max_pool2d(x, output_size)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, height, width] -> [batch, channels, output_size]",
            formula: "largest element of each window; along an axis the i-th begins at i size / out rounded down and ends before (i + 1) size / out rounded up",
            source: "PyTorch `adaptive_max_pool2d`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("output_size", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let types = infer(call)?;
        let x = &call.inputs[0];
        if u32::try_from(x.numel()).is_err() {
            return Err(format!("{x} has more elements than u32 offsets can address"));
        }
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| pool(cx, Pooling::Largest))
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes, Fill::Distinct)
    }
}

impl Graph {
    /// Computes the mean over all axes after the channels: `x [n, c, ...]`, with at least one axis to pool, gives
    /// `[n, c]`. That is the input shape of a linear layer; `reshape` restores axes of size 1.
    #[track_caller]
    pub fn global_avg_pool(&mut self, x: impl Into<Value>) -> NodeId {
        let x = x.into();
        if let Some(ty) = self.ty(x)
            && (ty.shape.rank() < 3 || ty.shape[2..].contains(&0))
        {
            let message = format!("{ty} has nothing to pool; it takes [batch, channels, ...] with elements after");
            return self.report("global_avg_pool", message, "give it the feature maps themselves");
        }
        let axes: Vec<i32> = (2..self.shape(x).len() as i32).collect();
        self.mean(x, &axes, false)
    }

    /// Computes the mean of windows that cover `x [n, c, h, w]`. Their positions give the result `[n, c, oh, ow]`:
    /// along an axis, window `i` reaches from `i * h / oh` rounded down to `(i + 1) * h / oh` rounded up.
    #[track_caller]
    pub fn adaptive_avg_pool2d(&mut self, x: impl Into<Value>, output_size: [usize; 2]) -> NodeId {
        let attrs = Attrs::new().with("output_size", output_size);
        self.call(OpRef::new(&AdaptiveAvgPool2d), attrs, vec![x.into()])
    }

    /// Computes the largest elements of the windows of [`Graph::adaptive_avg_pool2d`].
    #[track_caller]
    pub fn adaptive_max_pool2d(&mut self, x: impl Into<Value>, output_size: [usize; 2]) -> NodeId {
        let attrs = Attrs::new().with("output_size", output_size);
        self.call(OpRef::new(&AdaptiveMaxPool2d), attrs, vec![x.into()])
    }
}
