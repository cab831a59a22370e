//! Two-dimensional pooling, for images in NCHW and, where the optimizer chooses it, in NHWC.

use super::channels_last::{ChannelsLast, TO_NCHW, TO_NHWC};
use super::conv2d::{ImageLayout, used_stride, window_count};
use super::max_pool2d_nhwc::MaxPool2dNhwc;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, RefCall, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct MaxPool2d;
pub(super) struct AvgPool2d(ImageLayout);
pub(super) struct AvgPool2dGrad(ImageLayout);

pub(super) const AVG_POOL2D: AvgPool2d = AvgPool2d(ImageLayout::Nchw);
pub(super) const AVG_POOL2D_GRAD: AvgPool2dGrad = AvgPool2dGrad(ImageLayout::Nchw);
pub(super) const AVG_POOL2D_NHWC: AvgPool2d = AvgPool2d(ImageLayout::Nhwc);
pub(super) const AVG_POOL2D_NHWC_GRAD: AvgPool2dGrad = AvgPool2dGrad(ImageLayout::Nhwc);

fn avg_pool2d(layout: ImageLayout) -> OpRef {
    match layout {
        ImageLayout::Nchw => OpRef::new(&AVG_POOL2D),
        ImageLayout::Nhwc => OpRef::new(&AVG_POOL2D_NHWC),
    }
}

fn avg_pool2d_grad(layout: ImageLayout) -> OpRef {
    match layout {
        ImageLayout::Nchw => OpRef::new(&AVG_POOL2D_GRAD),
        ImageLayout::Nhwc => OpRef::new(&AVG_POOL2D_NHWC_GRAD),
    }
}

/// Returns the definition of an operator for a layout: the reference loop, and for NHWC also a decomposition into the
/// NCHW operator between permutations.
fn semantics<'a>(
    layout: ImageLayout,
    other: OpRef,
    reference: impl Fn(&RefCall) -> Vec<Vec<f64>> + 'a,
) -> Semantics<'a> {
    match layout {
        ImageLayout::Nchw => Semantics::primitive(reference),
        ImageLayout::Nhwc => Semantics::both(reference, move |cx| {
            let x = cx.graph.permute(cx.inputs[0], &TO_NCHW);
            let y = cx.graph.call(other, cx.attrs.clone(), vec![x.into()]);
            Ok(vec![cx.graph.permute(y, &TO_NHWC).into()])
        }),
    }
}

/// Geometry of pooling windows; heights come before widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dOptions {
    /// Size of a window.
    pub kernel: [u32; 2],
    /// Distance between windows.
    pub stride: [u32; 2],
    /// Number of elements added on each side: ignored by the maximum, and counted as zeros by the average.
    pub padding: [u32; 2],
}

impl Pool2dOptions {
    /// Creates options for square windows that neither overlap nor leave gaps, without padding.
    pub fn square(size: u32) -> Self {
        Pool2dOptions {
            kernel: [size; 2],
            stride: [size; 2],
            padding: [0; 2],
        }
    }

    pub(super) fn attrs(self) -> Attrs {
        Attrs::new()
            .with("kernel", self.kernel)
            .with("stride", self.stride)
            .with("padding", self.padding)
    }
}

/// All sizes of a pooling `x [n, c, h, w] -> y [n, c, oh, ow]`, or `x [n, h, w, c] -> y [n, oh, ow, c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dDims {
    /// Number of planes: batch times channels; with channels last, the batch.
    pub planes: usize,
    /// Number of channels of each pixel, if they come last; otherwise 1.
    pub channels: usize,
    /// Input height and width.
    pub input: [usize; 2],
    /// Output height and width.
    pub output: [usize; 2],
    /// Window height and width.
    pub kernel: [usize; 2],
    /// Stride.
    pub stride: [usize; 2],
    /// Padding.
    pub padding: [usize; 2],
}

/// Maximum number of elements of a window; larger windows are accepted up to four times the image size.
const MAX_TAPS: usize = 1 << 24;

impl Pool2dDims {
    /// Returns the sizes for an input `[batch, channels, height, width]`.
    ///
    /// # Errors
    /// Windows that do not fit.
    pub fn of(x: &[usize], attrs: &Attrs) -> Result<Self, String> {
        Self::of_layout(ImageLayout::Nchw, x, attrs)
    }

    /// Returns the sizes for an input of this shape and layout.
    ///
    /// # Errors
    /// Windows that do not fit.
    pub fn of_layout(layout: ImageLayout, x: &[usize], attrs: &Attrs) -> Result<Self, String> {
        let (planes, channels, [h, w]) = match (layout, x) {
            (ImageLayout::Nchw, &[n, c, h, w]) => (n * c, 1, [h, w]),
            (ImageLayout::Nhwc, &[n, h, w, c]) => (n, c, [h, w]),
            (layout, _) => {
                let axes = match layout {
                    ImageLayout::Nchw => "[batch, channels, height, width]",
                    ImageLayout::Nhwc => "[batch, height, width, channels]",
                };
                return Err(format!("the operand is {x:?}; it takes {axes}"));
            }
        };
        let (kernel, padding) = (attrs.sizes("kernel")?, attrs.sizes("padding")?);
        let mut stride: [usize; 2] = attrs.sizes("stride")?;
        if stride.contains(&0) {
            return Err("the stride must be at least 1".into());
        }
        if (0..2).any(|a| padding[a] > kernel[a] / 2) {
            return Err(format!(
                "the padding {padding:?} is more than half of the window {kernel:?}, so some windows would see padding only"
            ));
        }
        let input = [h, w];
        if input.contains(&0) {
            return Err(format!("an image of {h}x{w} has no elements to pool"));
        }
        let mut output = [0; 2];
        for a in 0..2 {
            output[a] = window_count(input[a], kernel[a], stride[a], padding[a], 1)?;
            stride[a] = used_stride(stride[a], output[a]);
        }
        // Kernels have a table of all taps, and padding lets windows exceed the image.
        let taps = kernel[0].saturating_mul(kernel[1]);
        if taps > MAX_TAPS.max(input[0].saturating_mul(input[1]).saturating_mul(4)) {
            return Err(format!(
                "the window {kernel:?} is far larger than the image of {h}x{w}; use at most {MAX_TAPS} elements"
            ));
        }
        Ok(Pool2dDims {
            planes,
            channels,
            input,
            output,
            kernel,
            stride,
            padding,
        })
    }

    /// Calls `visit(x, y)` with the flat offsets of every element of every window.
    pub(super) fn for_each_pair(&self, mut visit: impl FnMut(usize, usize)) {
        let [h, w] = self.input;
        for y in 0..self.planes * self.output[0] * self.output[1] * self.channels {
            let (place, channel) = (y / self.channels, y % self.channels);
            let (plane, oy) = (
                place / self.output[1] / self.output[0],
                place / self.output[1] % self.output[0],
            );
            let ox = place % self.output[1];
            for ky in 0..self.kernel[0] {
                for kx in 0..self.kernel[1] {
                    let iy = (oy * self.stride[0] + ky).checked_sub(self.padding[0]);
                    let ix = (ox * self.stride[1] + kx).checked_sub(self.padding[1]);
                    if let (Some(iy), Some(ix)) = (iy, ix)
                        && iy < h
                        && ix < w
                    {
                        visit(((plane * h + iy) * w + ix) * self.channels + channel, y);
                    }
                }
            }
        }
    }
}

/// Returns a channels-last form that calls the operator for that layout, with the same attributes.
fn same_form<'a>(layout: ImageLayout, op: OpRef) -> ChannelsLast<'a> {
    match layout {
        ImageLayout::Nhwc => ChannelsLast::No,
        ImageLayout::Nchw => ChannelsLast::follows(move |cx| {
            let (x, attrs) = (cx.nhwc(0), cx.attrs().clone());
            Ok(Some(vec![(cx.call(op, attrs, vec![x]).into(), ImageLayout::Nhwc)]))
        }),
    }
}

pub(super) fn dims(layout: ImageLayout, call: &RefCall, x: &[usize]) -> Pool2dDims {
    match Pool2dDims::of_layout(layout, x, call.attrs) {
        Ok(d) => d,
        // `infer` accepted the same call before.
        Err(message) => panic!("{message}"),
    }
}

pub(super) fn y_type(layout: ImageLayout, x: &TensorType, attrs: &Attrs) -> Result<TensorType, String> {
    let dims = Pool2dDims::of_layout(layout, &x.shape, attrs)?;
    let [h, w] = dims.output;
    let shape = match layout {
        ImageLayout::Nchw => [x.shape[0], x.shape[1], h, w],
        ImageLayout::Nhwc => [x.shape[0], h, w, x.shape[3]],
    };
    let shape = Shape::new(&shape)?;
    Ok(TensorType::new(x.dtype, shape))
}

pub(super) fn cases(sizes: &mut Sizes) -> Vec<([usize; 4], Pool2dOptions)> {
    let (h, w) = (3 + sizes.dim(17), 3 + sizes.dim(17));
    vec![
        ([1, 1, 2, 2], Pool2dOptions::square(2)),
        ([2, 3, 6, 8], Pool2dOptions::square(2)),
        (
            [1, 2, 7, 7],
            Pool2dOptions {
                kernel: [3, 3],
                stride: [2, 2],
                padding: [1, 1],
            },
        ),
        (
            [2, 2, 5, 6],
            Pool2dOptions {
                kernel: [3, 2],
                stride: [1, 2],
                padding: [0, 1],
            },
        ),
        (
            [2, 3, h, w],
            Pool2dOptions {
                kernel: [3, 3],
                stride: [1, 1],
                padding: [1, 1],
            },
        ),
        // Channels for the vectors of kernels.
        (
            [2, 8, 9, 6],
            Pool2dOptions {
                kernel: [3, 3],
                stride: [2, 2],
                padding: [1, 1],
            },
        ),
    ]
}

/// Returns the declarations of the attributes that describe windows.
pub(super) fn window_attributes() -> AttrDecls {
    ["kernel", "stride", "padding"]
        .map(|name| (name, AttrKind::Ints))
        .to_vec()
}

pub(super) fn cost(call: &Call) -> Cost {
    let window: usize = call.attrs.sizes::<2>("kernel").map_or(1, |k| k[0].saturating_mul(k[1]));
    Cost::streaming(call, window as u64)
}

impl Operator for MaxPool2d {
    fn name(&self) -> &'static str {
        "core.max_pool2d"
    }

    fn signature(&self) -> String {
        "g.max_pool2d(x, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, height, width] -> [batch, channels, out height, out width], out = (size + 2 padding - kernel) / stride + 1 rounded down; padding at most half of the kernel",
            formula: "largest element of each window, the first at a tie; port 1 is its u32 offset in x",
            source: "max pooling; the gradient goes to the chosen element alone",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        window_attributes()
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", "indices"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        let x = &call.inputs[0];
        if u32::try_from(x.numel()).is_err() {
            return Err(format!("{x} has more elements than u32 offsets can address"));
        }
        let y = y_type(ImageLayout::Nchw, x, call.attrs)?;
        let indices = TensorType::new(DType::U32, y.shape.clone());
        Ok(vec![y, indices])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let x = cx.operand(0);
            let shape = cx.shape(x).to_vec();
            let (indices, dy) = (cx.result(1), cx.grad(0));
            let flat = cx.scatter_add(dy, indices, shape.iter().product());
            Ok(vec![Some(cx.reshape(flat, &shape).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let x = call.inputs[0];
            let dims = dims(ImageLayout::Nchw, call, x.shape());
            let mut best: Vec<Option<usize>> = vec![None; call.outputs[0].numel()];
            dims.for_each_pair(|i, y| {
                let better =
                    best[y].is_none_or(|b| x.data[i] > x.data[b] || (x.data[i].is_nan() && !x.data[b].is_nan()));
                if better {
                    best[y] = Some(i);
                }
            });
            let index: Vec<usize> = best.into_iter().map(Option::unwrap_or_default).collect();
            vec![
                index.iter().map(|&i| x.data[i]).collect(),
                index.iter().map(|&i| i as f64).collect(),
            ]
        })
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        ChannelsLast::follows(|cx| {
            // Gradients read the offsets.
            if cx.is_used(1) {
                return Ok(None);
            }
            let (x, attrs) = (cx.nhwc(0), cx.attrs().clone());
            let y = cx.call(OpRef::new(&MaxPool2dNhwc), attrs, vec![x]);
            Ok(Some(vec![(y.into(), ImageLayout::Nhwc)]))
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples: Vec<Sample> = cases(sizes)
            .into_iter()
            .map(|(x, options)| {
                let input = SampleInput::filled(DType::F32, &x, Fill::Distinct);
                Sample::new(format!("{x:?} {}", options.attrs()), vec![input], options.attrs())
            })
            .collect();
        let negative = SampleInput::range(&[1, 1, 4, 4], -5.0, -1.0);
        let padded = Pool2dOptions {
            kernel: [3, 3],
            stride: [1, 1],
            padding: [1, 1],
        };
        samples.push(Sample::new("negative, padded", vec![negative], padded.attrs()));
        samples
    }
}

impl Operator for AvgPool2d {
    fn name(&self) -> &'static str {
        match self.0 {
            ImageLayout::Nchw => "core.avg_pool2d",
            ImageLayout::Nhwc => "core.avg_pool2d_nhwc",
        }
    }

    fn signature(&self) -> String {
        match self.0 {
            ImageLayout::Nchw => "g.avg_pool2d(x, options)".into(),
            ImageLayout::Nhwc => String::new(),
        }
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: match self.0 {
                ImageLayout::Nchw => {
                    "x [batch, channels, height, width] -> [batch, channels, out height, out width], out = (size + 2 padding - kernel) / stride + 1 rounded down; padding at most half of the kernel"
                }
                ImageLayout::Nhwc => {
                    "x [batch, height, width, channels] -> [batch, out height, out width, channels]; sizes as with channels first"
                }
            },
            formula: "sum of each window divided by its size, padding counted as zeros",
            source: "average pooling (PyTorch's count_include_pad)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        window_attributes()
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        Ok(vec![y_type(self.0, &call.inputs[0], call.attrs)?])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let [_, _, h, w] = self.0.to_nchw(four(cx.shape(cx.operand(0)))?);
            let attrs = cx.attrs().clone().with("input_size", [h, w]);
            let dy = cx.grad(0);
            Ok(vec![Some(cx.call(avg_pool2d_grad(self.0), attrs, vec![dy]).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        semantics(self.0, OpRef::new(&AVG_POOL2D), |call| {
            let x = call.inputs[0];
            let dims = dims(self.0, call, x.shape());
            let size = (dims.kernel[0] * dims.kernel[1]) as f64;
            let mut out = vec![0.0; call.outputs[0].numel()];
            dims.for_each_pair(|i, y| out[y] += x.data[i] / size);
            vec![out]
        })
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        same_form(self.0, OpRef::new(&AVG_POOL2D_NHWC))
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases(sizes)
            .into_iter()
            .map(|(x, options)| {
                let x = self.0.of_nchw(x);
                Sample::new(
                    format!("{x:?} {}", options.attrs()),
                    vec![SampleInput::f32(&x)],
                    options.attrs(),
                )
            })
            .collect()
    }
}

/// Returns the shape of the pooled operand, whose gradient is computed.
fn grad_x_shape(layout: ImageLayout, call: &Call) -> Result<[usize; 4], String> {
    let [n, c, _, _] = layout.to_nchw(four(&call.inputs[0].shape)?);
    let [h, w] = call.attrs.sizes("input_size")?;
    Ok(layout.of_nchw([n, c, h, w]))
}

/// Returns the four sizes of an image's shape.
fn four(shape: &[usize]) -> Result<[usize; 4], String> {
    shape
        .try_into()
        .map_err(|_| format!("the operand is {shape:?}; it takes the four axes of an image"))
}

impl Operator for AvgPool2dGrad {
    fn name(&self) -> &'static str {
        match self.0 {
            ImageLayout::Nchw => "core.avg_pool2d_grad",
            ImageLayout::Nhwc => "core.avg_pool2d_nhwc_grad",
        }
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: match self.0 {
                ImageLayout::Nchw => "dy [batch, channels, out height, out width] -> [batch, channels, input_size]",
                ImageLayout::Nhwc => "dy [batch, out height, out width, channels] -> [batch, input_size, channels]",
            },
            formula: "dx of avg_pool2d: each window adds dy / size to its elements",
            source: "transpose of average pooling",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        let mut attributes = window_attributes();
        attributes.push(("input_size", AttrKind::Ints));
        attributes
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        let dtype = call.inputs[0].dtype;
        let x = TensorType::new(dtype, Shape::new(&grad_x_shape(self.0, call)?)?);
        let y = y_type(self.0, &x, call.attrs)?;
        if y != call.inputs[0] {
            return Err(format!(
                "the gradient is {}, but the pooling yields {y}",
                call.inputs[0]
            ));
        }
        Ok(vec![x])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let g = cx.grad(0);
            let attrs = ["kernel", "stride", "padding"]
                .into_iter()
                .try_fold(Attrs::new(), |a, n| {
                    Ok::<_, String>(a.with(n, cx.attrs().ints(n)?.to_vec()))
                })?;
            Ok(vec![Some(cx.call(avg_pool2d(self.0), attrs, vec![g]).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        semantics(self.0, OpRef::new(&AVG_POOL2D_GRAD), |call| {
            let dims = dims(self.0, call, &call.outputs[0].shape);
            let size = (dims.kernel[0] * dims.kernel[1]) as f64;
            let mut out = vec![0.0; call.outputs[0].numel()];
            dims.for_each_pair(|i, y| out[i] += call.inputs[0].data[y] / size);
            vec![out]
        })
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        same_form(self.0, OpRef::new(&AVG_POOL2D_NHWC_GRAD))
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases(sizes)
            .into_iter()
            .filter_map(|(x, options)| {
                let dims = Pool2dDims::of(&x, &options.attrs()).ok()?;
                let dy = self.0.of_nchw([x[0], x[1], dims.output[0], dims.output[1]]);
                let attrs = options.attrs().with("input_size", [x[2], x[3]]);
                Some(Sample::new(
                    format!("{x:?} {}", options.attrs()),
                    vec![SampleInput::f32(&dy)],
                    attrs,
                ))
            })
            .collect()
    }
}

impl Graph {
    /// Computes the largest element of each window of `x [n, c, h, w]`. Port 1 contains the offsets of the chosen
    /// elements (`u32`).
    #[track_caller]
    pub fn max_pool2d(&mut self, x: impl Into<Value>, options: Pool2dOptions) -> NodeId {
        self.call(OpRef::new(&MaxPool2d), options.attrs(), vec![x.into()])
    }

    /// Computes the mean of each window of `x [n, c, h, w]`; padding counts as zeros.
    #[track_caller]
    pub fn avg_pool2d(&mut self, x: impl Into<Value>, options: Pool2dOptions) -> NodeId {
        self.call(OpRef::new(&AVG_POOL2D), options.attrs(), vec![x.into()])
    }
}
