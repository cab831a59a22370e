//! Two-dimensional convolution (cross-correlation) and its two derivatives, each for images in
//! NCHW, as in builder methods, and in NHWC, which the optimizer chooses for devices on which that
//! is faster.
//!
//! The three operators of a layout are closed under differentiation: each is linear in both of its operands, and the
//! derivative of one is another of them.

mod channels_last;
mod dims;

use super::channels_last::{ChannelsLast, TO_HWIO, TO_NCHW, TO_NHWC, TO_OIHW};
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, GradCx, Gradient, OpRef, Operator, RefCall, Semantics,
    expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};
pub use dims::{Conv2dDims, Conv2dOptions, ImageLayout};
pub(super) use dims::{used_stride, window_count};

pub(super) struct Conv2d(ImageLayout);
pub(super) struct Conv2dInputGrad(ImageLayout);
pub(super) struct Conv2dWeightGrad(ImageLayout);

pub(super) const CONV2D: Conv2d = Conv2d(ImageLayout::Nchw);
pub(super) const CONV2D_INPUT_GRAD: Conv2dInputGrad = Conv2dInputGrad(ImageLayout::Nchw);
pub(super) const CONV2D_WEIGHT_GRAD: Conv2dWeightGrad = Conv2dWeightGrad(ImageLayout::Nchw);
pub(super) const CONV2D_NHWC: Conv2d = Conv2d(ImageLayout::Nhwc);
pub(super) const CONV2D_NHWC_INPUT_GRAD: Conv2dInputGrad = Conv2dInputGrad(ImageLayout::Nhwc);
pub(super) const CONV2D_NHWC_WEIGHT_GRAD: Conv2dWeightGrad = Conv2dWeightGrad(ImageLayout::Nhwc);

fn conv2d(layout: ImageLayout) -> OpRef {
    match layout {
        ImageLayout::Nchw => OpRef::new(&CONV2D),
        ImageLayout::Nhwc => OpRef::new(&CONV2D_NHWC),
    }
}

fn conv2d_input_grad(layout: ImageLayout) -> OpRef {
    match layout {
        ImageLayout::Nchw => OpRef::new(&CONV2D_INPUT_GRAD),
        ImageLayout::Nhwc => OpRef::new(&CONV2D_NHWC_INPUT_GRAD),
    }
}

fn conv2d_weight_grad(layout: ImageLayout) -> OpRef {
    match layout {
        ImageLayout::Nchw => OpRef::new(&CONV2D_WEIGHT_GRAD),
        ImageLayout::Nhwc => OpRef::new(&CONV2D_NHWC_WEIGHT_GRAD),
    }
}

fn checked(dims: Result<Conv2dDims, String>) -> Conv2dDims {
    match dims {
        Ok(d) => d,
        // `infer` accepted the same call before.
        Err(message) => panic!("{message}"),
    }
}

fn reference(
    call: &RefCall,
    dims: impl Fn(&Call) -> Result<Conv2dDims, String>,
    add: impl Fn(&mut [f64], &[f64], &[f64], (usize, usize, usize)),
) -> Vec<Vec<f64>> {
    let inputs: Vec<TensorType> = call.inputs.iter().map(|t| t.ty.clone()).collect();
    let dims = checked(dims(&Call {
        attrs: call.attrs,
        inputs: &inputs,
        outputs: call.outputs,
    }));
    let mut out = vec![0.0; call.outputs[0].numel()];
    let (a, b) = (&call.inputs[0].data, &call.inputs[1].data);
    dims.for_each_product(|x, w, y| add(&mut out, a, b, (x, w, y)));
    vec![out]
}

fn infer(
    call: &Call,
    dims: Result<Conv2dDims, String>,
    shape: fn(&Conv2dDims) -> [usize; 4],
) -> Result<Vec<TensorType>, String> {
    expect_same_dtype(call)?;
    expect_float(call, 0, "the operands")?;
    Ok(vec![TensorType::new(call.inputs[0].dtype, Shape::new(&shape(&dims?))?)])
}

fn cost(call: &Call, dims: Result<Conv2dDims, String>) -> Cost {
    let flops = dims.map_or(0, |d| d.flops());
    Cost {
        flops,
        ..Cost::streaming(call, 0)
    }
}

/// The tensor of a call that contains weights; all other tensors are images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weights {
    Operand,
    Result,
}

/// Returns the definition of an operator for a layout: the reference loop, and for NHWC also a decomposition into the
/// NCHW operator between permutations.
fn semantics<'a>(
    layout: ImageLayout,
    other: OpRef,
    weights: Weights,
    dims: fn(ImageLayout, &Call) -> Result<Conv2dDims, String>,
    add: impl Fn(&mut [f64], &[f64], &[f64], (usize, usize, usize)) + 'a,
) -> Semantics<'a> {
    let loops = move |call: &RefCall| reference(call, |call| dims(layout, call), &add);
    match layout {
        ImageLayout::Nchw => Semantics::primitive(loops),
        ImageLayout::Nhwc => Semantics::both(loops, move |cx| {
            let &[a, b] = cx.inputs else {
                return Err("takes two operands".into());
            };
            let (second, back) = match weights {
                Weights::Operand => (TO_OIHW, TO_NHWC),
                Weights::Result => (TO_NCHW, TO_HWIO),
            };
            let operands = [(a, TO_NCHW), (b, second)].map(|(v, axes)| cx.graph.permute(v, &axes).into());
            let result = cx.graph.call(other, cx.attrs.clone(), operands.to_vec());
            Ok(vec![cx.graph.permute(result, &back).into()])
        }),
    }
}

/// Returns sample cases in a layout: images, weights and options.
fn cases_in(layout: ImageLayout, sizes: &mut Sizes) -> Vec<([usize; 4], [usize; 4], Conv2dOptions)> {
    let cases = cases(sizes).into_iter();
    cases
        .map(|(x, w, options)| (layout.of_nchw(x), layout.of_oihw(w), options))
        .collect()
}

/// Returns shapes and options of the sample cases, images with channels first.
fn cases(sizes: &mut Sizes) -> Vec<([usize; 4], [usize; 4], Conv2dOptions)> {
    let base = Conv2dOptions::default();
    let (c, o) = (sizes.dim(9), sizes.dim(9));
    let (h, w) = (4 + sizes.dim(13), 4 + sizes.dim(13));
    vec![
        ([1, 1, 1, 1], [1, 1, 1, 1], base),
        (
            [2, 3, 5, 6],
            [4, 3, 3, 3],
            Conv2dOptions {
                padding: [1, 1],
                ..base
            },
        ),
        (
            [1, 2, 7, 8],
            [3, 2, 3, 2],
            Conv2dOptions {
                stride: [2, 3],
                padding: [1, 0],
                ..base
            },
        ),
        (
            [1, 4, 9, 9],
            [6, 2, 3, 3],
            Conv2dOptions {
                dilation: [2, 3],
                padding: [2, 3],
                groups: 2,
                ..base
            },
        ),
        (
            [2, 5, 6, 6],
            [5, 1, 3, 3],
            Conv2dOptions {
                padding: [1, 1],
                groups: 5,
                ..base
            },
        ),
        ([2, 6, 4, 4], [3, 6, 1, 1], base),
        (
            [2, c, h, w],
            [o, c, 3, 4],
            Conv2dOptions {
                stride: [1, 2],
                padding: [2, 1],
                ..base
            },
        ),
        // Enough channels for the vectors and tiles of kernels.
        (
            [1, 32, 9, 10],
            [48, 32, 3, 3],
            Conv2dOptions {
                padding: [1, 1],
                ..base
            },
        ),
    ]
}

/// Returns the sizes of a value along two neighbouring axes.
fn sizes_from(cx: &GradCx, value: Value, axis: usize) -> [usize; 2] {
    let shape = cx.shape(value);
    [shape[axis], shape[axis + 1]]
}

/// Returns the gradient with respect to the images, with the sizes of `x`, from `[dy, w]`.
fn input_grad(cx: &mut GradCx, layout: ImageLayout, of: [Value; 2], x: Value, options: Conv2dOptions) -> Value {
    let axis = match layout {
        ImageLayout::Nchw => 2,
        ImageLayout::Nhwc => 1,
    };
    let attrs = options.attrs().with("input_size", sizes_from(cx, x, axis));
    cx.call(conv2d_input_grad(layout), attrs, of.to_vec()).into()
}

/// Returns the gradient with respect to the weights, with the sizes of `w`, from `[x, dy]`.
fn weight_grad(cx: &mut GradCx, layout: ImageLayout, of: [Value; 2], w: Value, options: Conv2dOptions) -> Value {
    let axis = match layout {
        ImageLayout::Nchw => 2,
        ImageLayout::Nhwc => 0,
    };
    let attrs = options.attrs().with("kernel_size", sizes_from(cx, w, axis));
    cx.call(conv2d_weight_grad(layout), attrs, of.to_vec()).into()
}

fn option_values(cx: &GradCx) -> Result<Conv2dOptions, String> {
    Conv2dOptions::of(cx.attrs())
}

impl Operator for Conv2d {
    fn name(&self) -> &'static str {
        match self.0 {
            ImageLayout::Nchw => "core.conv2d",
            ImageLayout::Nhwc => "core.conv2d_nhwc",
        }
    }

    fn signature(&self) -> String {
        match self.0 {
            ImageLayout::Nchw => "g.conv2d(x, weight, options)".into(),
            ImageLayout::Nhwc => String::new(),
        }
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: match self.0 {
                ImageLayout::Nchw => {
                    "x [batch, channels, height, width], w [out channels, channels / groups, kernel height, kernel width] -> [batch, out channels, out height, out width], out = (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1 rounded down"
                }
                ImageLayout::Nhwc => {
                    "x [batch, height, width, channels], w [kernel height, kernel width, channels / groups, out channels] -> [batch, out height, out width, out channels]; sizes as in conv2d"
                }
            },
            formula: match self.0 {
                ImageLayout::Nchw => {
                    "y[n, o, i, j] = sum over c, p, q of x[n, c, i stride - padding + p dilation, j stride - padding + q dilation] w[o, c, p, q]; zero outside, per group"
                }
                ImageLayout::Nhwc => {
                    "y[n, i, j, o] = sum over p, q, c of x[n, i stride - padding + p dilation, j stride - padding + q dilation, c] w[p, q, c, o]; zero outside, per group"
                }
            },
            source: "cross-correlation, as deep learning calls convolution (LeCun et al., 1989)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("stride", AttrKind::Ints),
            ("padding", AttrKind::Ints),
            ("dilation", AttrKind::Ints),
            ("groups", AttrKind::Int),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call, self.0.conv2d(call), Conv2dDims::y_shape)
    }

    fn gradient(&self) -> Gradient<'_> {
        let layout = self.0;
        Gradient::rule(move |cx| {
            let options = option_values(cx)?;
            let (x, w, dy) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let dx = cx.needs(0).then(|| input_grad(cx, layout, [dy, w], x, options));
            let dw = cx.needs(1).then(|| weight_grad(cx, layout, [x, dy], w, options));
            Ok(vec![dx, dw])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        semantics(
            self.0,
            OpRef::new(&CONV2D),
            Weights::Operand,
            ImageLayout::conv2d,
            |out, a, b, (x, w, y)| out[y] += a[x] * b[w],
        )
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Contraction
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        match self.0 {
            ImageLayout::Nchw => ChannelsLast::starts(channels_last::output),
            ImageLayout::Nhwc => ChannelsLast::No,
        }
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call, self.0.conv2d(call))
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases_in(self.0, sizes)
            .into_iter()
            .map(|(x, w, options)| {
                let inputs = vec![SampleInput::f32(&x), SampleInput::f32(&w)];
                Sample::new(format!("{x:?} {w:?} {}", options.attrs()), inputs, options.attrs())
            })
            .collect()
    }
}

impl Operator for Conv2dInputGrad {
    fn name(&self) -> &'static str {
        match self.0 {
            ImageLayout::Nchw => "core.conv2d_input_grad",
            ImageLayout::Nhwc => "core.conv2d_nhwc_input_grad",
        }
    }

    fn signature(&self) -> String {
        match self.0 {
            ImageLayout::Nchw => "g.conv2d_input_grad(dy, weight, input_size, options)".into(),
            ImageLayout::Nhwc => String::new(),
        }
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: match self.0 {
                ImageLayout::Nchw => {
                    "dy [batch, out channels, out height, out width], w as in conv2d -> [batch, channels, input_size]"
                }
                ImageLayout::Nhwc => {
                    "dy [batch, out height, out width, out channels], w as in conv2d_nhwc -> [batch, input_size, channels]"
                }
            },
            formula: "dx of the convolution: each product x w -> y adds dy w to dx",
            source: "transpose of conv2d in its first operand",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("stride", AttrKind::Ints),
            ("padding", AttrKind::Ints),
            ("dilation", AttrKind::Ints),
            ("groups", AttrKind::Int),
            ("input_size", AttrKind::Ints),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call, self.0.conv2d_input_grad(call), Conv2dDims::x_shape)
    }

    fn gradient(&self) -> Gradient<'_> {
        let layout = self.0;
        Gradient::rule(move |cx| {
            let options = option_values(cx)?;
            let (dy, w, g) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let ddy = cx
                .needs(0)
                .then(|| cx.call(conv2d(layout), options.attrs(), vec![g, w]).into());
            let dw = cx.needs(1).then(|| weight_grad(cx, layout, [g, dy], w, options));
            Ok(vec![ddy, dw])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        semantics(
            self.0,
            OpRef::new(&CONV2D_INPUT_GRAD),
            Weights::Operand,
            ImageLayout::conv2d_input_grad,
            |out, a, b, (x, w, y)| out[x] += a[y] * b[w],
        )
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        match self.0 {
            ImageLayout::Nchw => ChannelsLast::starts(channels_last::input_grad),
            ImageLayout::Nhwc => ChannelsLast::No,
        }
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call, self.0.conv2d_input_grad(call))
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases_in(self.0, sizes)
            .into_iter()
            .map(|(x, w, options)| {
                let dims = checked(Conv2dDims::forward(self.0, &x, &w, options));
                let attrs = options.attrs().with("input_size", dims.input);
                let inputs = vec![SampleInput::f32(&dims.y_shape()), SampleInput::f32(&w)];
                Sample::new(format!("{x:?} {w:?} {}", options.attrs()), inputs, attrs)
            })
            .collect()
    }
}

impl Operator for Conv2dWeightGrad {
    fn name(&self) -> &'static str {
        match self.0 {
            ImageLayout::Nchw => "core.conv2d_weight_grad",
            ImageLayout::Nhwc => "core.conv2d_nhwc_weight_grad",
        }
    }

    fn signature(&self) -> String {
        match self.0 {
            ImageLayout::Nchw => "g.conv2d_weight_grad(x, dy, kernel_size, options)".into(),
            ImageLayout::Nhwc => String::new(),
        }
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: match self.0 {
                ImageLayout::Nchw => "x, dy as in conv2d -> [out channels, channels / groups, kernel_size]",
                ImageLayout::Nhwc => "x, dy as in conv2d_nhwc -> [kernel_size, channels / groups, out channels]",
            },
            formula: "dw of the convolution: each product x w -> y adds x dy to dw",
            source: "transpose of conv2d in its second operand",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("stride", AttrKind::Ints),
            ("padding", AttrKind::Ints),
            ("dilation", AttrKind::Ints),
            ("groups", AttrKind::Int),
            ("kernel_size", AttrKind::Ints),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call, self.0.conv2d_weight_grad(call), Conv2dDims::w_shape)
    }

    fn gradient(&self) -> Gradient<'_> {
        let layout = self.0;
        Gradient::rule(move |cx| {
            let options = option_values(cx)?;
            let (x, dy, g) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let dx = cx.needs(0).then(|| input_grad(cx, layout, [dy, g], x, options));
            let ddy = cx
                .needs(1)
                .then(|| cx.call(conv2d(layout), options.attrs(), vec![x, g]).into());
            Ok(vec![dx, ddy])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        semantics(
            self.0,
            OpRef::new(&CONV2D_WEIGHT_GRAD),
            Weights::Result,
            ImageLayout::conv2d_weight_grad,
            |out, a, b, (x, w, y)| out[w] += a[x] * b[y],
        )
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        match self.0 {
            ImageLayout::Nchw => ChannelsLast::starts(channels_last::weight_grad),
            ImageLayout::Nhwc => ChannelsLast::No,
        }
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call, self.0.conv2d_weight_grad(call))
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases_in(self.0, sizes)
            .into_iter()
            .map(|(x, w, options)| {
                let dims = checked(Conv2dDims::forward(self.0, &x, &w, options));
                let attrs = options.attrs().with("kernel_size", dims.kernel);
                let inputs = vec![SampleInput::f32(&x), SampleInput::f32(&dims.y_shape())];
                Sample::new(format!("{x:?} {w:?} {}", options.attrs()), inputs, attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Computes the convolution of `x [n, c, h, w]` with `weight [o, c / groups, kh, kw]`, giving
    /// `[n, o, oh, ow]` with `oh = (h + 2 padding - dilation (kh - 1) - 1) / stride + 1`.
    #[track_caller]
    pub fn conv2d(&mut self, x: impl Into<Value>, weight: impl Into<Value>, options: Conv2dOptions) -> NodeId {
        self.call(OpRef::new(&CONV2D), options.attrs(), vec![x.into(), weight.into()])
    }

    /// Computes the gradient of [`Graph::conv2d`] with respect to `x`, whose height and width are
    /// `input_size`: also the transposed convolution.
    #[track_caller]
    pub fn conv2d_input_grad(
        &mut self,
        dy: impl Into<Value>,
        weight: impl Into<Value>,
        input_size: [usize; 2],
        options: Conv2dOptions,
    ) -> NodeId {
        let attrs = options.attrs().with("input_size", input_size);
        self.call(OpRef::new(&CONV2D_INPUT_GRAD), attrs, vec![dy.into(), weight.into()])
    }

    /// Computes the gradient of [`Graph::conv2d`] with respect to the kernel, whose height and
    /// width are `kernel_size`.
    #[track_caller]
    pub fn conv2d_weight_grad(
        &mut self,
        x: impl Into<Value>,
        dy: impl Into<Value>,
        kernel_size: [usize; 2],
        options: Conv2dOptions,
    ) -> NodeId {
        let attrs = options.attrs().with("kernel_size", kernel_size);
        self.call(OpRef::new(&CONV2D_WEIGHT_GRAD), attrs, vec![x.into(), dy.into()])
    }
}
