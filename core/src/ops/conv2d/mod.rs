//! Two-dimensional convolution (cross-correlation) and its two derivatives.
//!
//! The three operators are closed under differentiation: each is linear in both of its operands, and the
//! derivative of one is another of them.

mod dims;

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Fusing, GradCx, Gradient, OpRef, Operator, RefCall, Semantics,
    expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};
pub use dims::{Conv2dDims, Conv2dOptions};
pub(super) use dims::{used_stride, window_count};

pub(super) struct Conv2d;
pub(super) struct Conv2dInputGrad;
pub(super) struct Conv2dWeightGrad;

fn checked(dims: Result<Conv2dDims, String>) -> Conv2dDims {
    match dims {
        Ok(d) => d,
        // `infer` accepted the same call before.
        Err(message) => panic!("{message}"),
    }
}

fn reference(
    call: &RefCall,
    dims: fn(&Call) -> Result<Conv2dDims, String>,
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

/// Shapes and options of the sample cases.
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
    ]
}

fn option_values(cx: &GradCx) -> Result<Conv2dOptions, String> {
    Conv2dOptions::of(cx.attrs())
}

impl Operator for Conv2d {
    fn name(&self) -> &'static str {
        "core.conv2d"
    }

    fn signature(&self) -> String {
        "g.conv2d(x, weight, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, height, width], w [out channels, channels / groups, kernel height, kernel width] -> [batch, out channels, out height, out width], out = (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1 rounded down",
            formula: "y[n, o, i, j] = sum over c, p, q of x[n, c, i stride - padding + p dilation, j stride - padding + q dilation] w[o, c, p, q]; zero outside, per group",
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
        infer(call, Conv2dDims::of_conv2d(call), Conv2dDims::y_shape)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let options = option_values(cx)?;
            let (x, w, dy) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let (xs, ws) = (cx.shape(x).to_vec(), cx.shape(w).to_vec());
            let dx = cx
                .needs(0)
                .then(|| cx.conv2d_input_grad(dy, w, [xs[2], xs[3]], options).into());
            let dw = cx
                .needs(1)
                .then(|| cx.conv2d_weight_grad(x, dy, [ws[2], ws[3]], options).into());
            Ok(vec![dx, dw])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            reference(call, Conv2dDims::of_conv2d, |out, a, b, (x, w, y)| {
                out[y] += a[x] * b[w]
            })
        })
    }

    fn fusing(&self) -> Fusing {
        Fusing::Contraction
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call, Conv2dDims::of_conv2d(call))
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases(sizes)
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
        "core.conv2d_input_grad"
    }

    fn signature(&self) -> String {
        "g.conv2d_input_grad(dy, weight, input_size, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "dy [batch, out channels, out height, out width], w as in conv2d -> [batch, channels, input_size]",
            formula: "dx of conv2d: each product x w -> y of the convolution adds dy w to dx",
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
        infer(call, Conv2dDims::of_input_grad(call), Conv2dDims::x_shape)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let options = option_values(cx)?;
            let (dy, w, g) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let ws = cx.shape(w).to_vec();
            let ddy = cx.needs(0).then(|| cx.conv2d(g, w, options).into());
            let dw = cx
                .needs(1)
                .then(|| cx.conv2d_weight_grad(g, dy, [ws[2], ws[3]], options).into());
            Ok(vec![ddy, dw])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            reference(call, Conv2dDims::of_input_grad, |out, a, b, (x, w, y)| {
                out[x] += a[y] * b[w]
            })
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call, Conv2dDims::of_input_grad(call))
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases(sizes)
            .into_iter()
            .map(|(x, w, options)| {
                let dims = checked(Conv2dDims::forward(&x, &w, options));
                let attrs = options.attrs().with("input_size", dims.input);
                let inputs = vec![SampleInput::f32(&dims.y_shape()), SampleInput::f32(&w)];
                Sample::new(format!("{x:?} {w:?} {}", options.attrs()), inputs, attrs)
            })
            .collect()
    }
}

impl Operator for Conv2dWeightGrad {
    fn name(&self) -> &'static str {
        "core.conv2d_weight_grad"
    }

    fn signature(&self) -> String {
        "g.conv2d_weight_grad(x, dy, kernel_size, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x, dy as in conv2d -> [out channels, channels / groups, kernel_size]",
            formula: "dw of conv2d: each product x w -> y of the convolution adds x dy to dw",
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
        infer(call, Conv2dDims::of_weight_grad(call), Conv2dDims::w_shape)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let options = option_values(cx)?;
            let (x, dy, g) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let xs = cx.shape(x).to_vec();
            let dx = cx
                .needs(0)
                .then(|| cx.conv2d_input_grad(dy, g, [xs[2], xs[3]], options).into());
            let ddy = cx.needs(1).then(|| cx.conv2d(x, g, options).into());
            Ok(vec![dx, ddy])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            reference(call, Conv2dDims::of_weight_grad, |out, a, b, (x, w, y)| {
                out[w] += a[x] * b[y]
            })
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call, Conv2dDims::of_weight_grad(call))
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases(sizes)
            .into_iter()
            .map(|(x, w, options)| {
                let dims = checked(Conv2dDims::forward(&x, &w, options));
                let attrs = options.attrs().with("kernel_size", dims.kernel);
                let inputs = vec![SampleInput::f32(&x), SampleInput::f32(&dims.y_shape())];
                Sample::new(format!("{x:?} {w:?} {}", options.attrs()), inputs, attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Convolution of `x [n, c, h, w]` with `weight [o, c / groups, kh, kw]`, giving `[n, o, oh, ow]` with
    /// `oh = (h + 2 padding - dilation (kh - 1) - 1) / stride + 1`.
    #[track_caller]
    pub fn conv2d(&mut self, x: impl Into<Value>, weight: impl Into<Value>, options: Conv2dOptions) -> NodeId {
        self.call(OpRef::new(&Conv2d), options.attrs(), vec![x.into(), weight.into()])
    }

    /// Gradient of [`Graph::conv2d`] with respect to `x`, whose height and width are `input_size`: also
    /// the transposed convolution.
    #[track_caller]
    pub fn conv2d_input_grad(
        &mut self,
        dy: impl Into<Value>,
        weight: impl Into<Value>,
        input_size: [usize; 2],
        options: Conv2dOptions,
    ) -> NodeId {
        let attrs = options.attrs().with("input_size", input_size);
        self.call(OpRef::new(&Conv2dInputGrad), attrs, vec![dy.into(), weight.into()])
    }

    /// Gradient of [`Graph::conv2d`] with respect to the kernel, whose height and width are
    /// `kernel_size`.
    #[track_caller]
    pub fn conv2d_weight_grad(
        &mut self,
        x: impl Into<Value>,
        dy: impl Into<Value>,
        kernel_size: [usize; 2],
        options: Conv2dOptions,
    ) -> NodeId {
        let attrs = options.attrs().with("kernel_size", kernel_size);
        self.call(OpRef::new(&Conv2dWeightGrad), attrs, vec![x.into(), dy.into()])
    }
}
