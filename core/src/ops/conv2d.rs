//! Two-dimensional convolution (cross-correlation) and its two derivatives.
//!
//! The three operators are closed under differentiation: each is linear in both of its operands, and the
//! derivative of one is another of them.

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Fusing, GradCx, Gradient, OpRef, Operator, RefCall, Semantics,
    expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Conv2d;
pub(super) struct Conv2dInputGrad;
pub(super) struct Conv2dWeightGrad;

/// Geometry of a convolution; heights come before widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Distance between windows.
    pub stride: [u32; 2],
    /// Zeros added on both sides.
    pub padding: [u32; 2],
    /// Distance between the taps of the kernel.
    pub dilation: [u32; 2],
    /// Number of groups into which both channel axes are divided.
    pub groups: u32,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        Conv2dOptions {
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
        }
    }
}

impl Conv2dOptions {
    pub(super) fn attrs(self) -> Attrs {
        Attrs::new()
            .with("stride", self.stride)
            .with("padding", self.padding)
            .with("dilation", self.dilation)
            .with("groups", self.groups)
    }

    pub(super) fn of(attrs: &Attrs) -> Result<Self, String> {
        let pair = |name| -> Result<[u32; 2], String> {
            let v: [usize; 2] = attrs.sizes(name)?;
            let narrow = |v: usize| u32::try_from(v).map_err(|_| format!("{name} {v} is too large"));
            Ok([narrow(v[0])?, narrow(v[1])?])
        };
        let options = Conv2dOptions {
            stride: pair("stride")?,
            padding: pair("padding")?,
            dilation: pair("dilation")?,
            groups: u32::try_from(attrs.int("groups")?).map_err(|_| "groups must not be negative")?,
        };
        if options.stride.contains(&0) || options.dilation.contains(&0) || options.groups == 0 {
            return Err("stride, dilation and groups must be at least 1".into());
        }
        Ok(options)
    }
}

/// All sizes of a convolution `x [n, c, h, w] * w [o, c / groups, kh, kw] -> y [n, o, oh, ow]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dDims {
    /// Batch.
    pub n: usize,
    /// Input channels.
    pub c: usize,
    /// Output channels.
    pub o: usize,
    /// Groups.
    pub groups: usize,
    /// Input height and width.
    pub input: [usize; 2],
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Output height and width.
    pub output: [usize; 2],
    /// Stride.
    pub stride: [usize; 2],
    /// Padding.
    pub padding: [usize; 2],
    /// Dilation.
    pub dilation: [usize; 2],
}

impl Conv2dDims {
    /// Derives and checks all sizes from the shapes of `x` and `w`.
    pub(super) fn forward(x: &[usize], w: &[usize], options: Conv2dOptions) -> Result<Self, String> {
        let (&[n, c, h, width], &[o, cg, kh, kw]) = (x, w) else {
            return Err(format!(
                "the operands are {x:?} and {w:?}; it takes [batch, channels, height, width] and [out channels, channels / groups, kernel height, kernel width]"
            ));
        };
        let groups = options.groups as usize;
        if c % groups != 0 || o % groups != 0 {
            return Err(format!(
                "{groups} groups do not divide {c} input and {o} output channels"
            ));
        }
        if cg != c / groups {
            return Err(format!(
                "the kernel {w:?} has {cg} input channels; {c} channels in {groups} groups need {}",
                c / groups
            ));
        }
        let wide = |v: [u32; 2]| v.map(|v| v as usize);
        let mut dims = Conv2dDims {
            n,
            c,
            o,
            groups,
            input: [h, width],
            kernel: [kh, kw],
            output: [0, 0],
            stride: wide(options.stride),
            padding: wide(options.padding),
            dilation: wide(options.dilation),
        };
        for axis in 0..2 {
            dims.output[axis] = window_count(
                dims.input[axis],
                dims.kernel[axis],
                dims.stride[axis],
                dims.padding[axis],
                dims.dilation[axis],
            )?;
            dims.stride[axis] = used_stride(dims.stride[axis], dims.output[axis]);
        }
        Ok(dims)
    }

    /// Sizes of a `core.conv2d` call.
    ///
    /// # Errors
    /// When the operands do not fit, in the operator's words; also for the two below.
    pub fn of_conv2d(call: &Call) -> Result<Self, String> {
        Self::forward(
            &call.inputs[0].shape,
            &call.inputs[1].shape,
            Conv2dOptions::of(call.attrs)?,
        )
    }

    /// Sizes of a `core.conv2d_input_grad` call (`dy`, `w`).
    ///
    /// # Errors
    /// See [`Conv2dDims::of_conv2d`].
    pub fn of_input_grad(call: &Call) -> Result<Self, String> {
        let (dy, w) = (&call.inputs[0].shape, &call.inputs[1].shape);
        let [h, width] = call.attrs.sizes("input_size")?;
        let options = Conv2dOptions::of(call.attrs)?;
        let (Some(&n), Some(&cg)) = (dy.first(), w.get(1)) else {
            return Err(format!("the operands are {dy} and {w}; it takes four axes each"));
        };
        let c = cg.checked_mul(options.groups as usize).ok_or_else(|| {
            format!(
                "{} groups of the kernel {w} have more channels than can be counted",
                options.groups
            )
        })?;
        let dims = Self::forward(&[n, c, h, width], w, options)?;
        dims.check_output(dy)
    }

    /// Sizes of a `core.conv2d_weight_grad` call (`x`, `dy`).
    ///
    /// # Errors
    /// See [`Conv2dDims::of_conv2d`].
    pub fn of_weight_grad(call: &Call) -> Result<Self, String> {
        let (x, dy) = (&call.inputs[0].shape, &call.inputs[1].shape);
        let [kh, kw] = call.attrs.sizes("kernel_size")?;
        let options = Conv2dOptions::of(call.attrs)?;
        let (Some(&c), Some(&o)) = (x.get(1), dy.get(1)) else {
            return Err(format!("the operands are {x} and {dy}; it takes four axes each"));
        };
        let dims = Self::forward(x, &[o, c / (options.groups as usize), kh, kw], options)?;
        dims.check_output(dy)
    }

    fn check_output(self, dy: &Shape) -> Result<Self, String> {
        let expected = self.y_shape();
        if dy[..] != expected {
            return Err(format!("the gradient is {dy}, but the convolution yields {expected:?}"));
        }
        Ok(self)
    }

    /// Shape of `x`.
    pub fn x_shape(&self) -> [usize; 4] {
        [self.n, self.c, self.input[0], self.input[1]]
    }

    /// Shape of `w`.
    pub fn w_shape(&self) -> [usize; 4] {
        [self.o, self.c / self.groups, self.kernel[0], self.kernel[1]]
    }

    /// Shape of `y`.
    pub fn y_shape(&self) -> [usize; 4] {
        [self.n, self.o, self.output[0], self.output[1]]
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> u64 {
        let taps = self.c / self.groups * self.kernel[0] * self.kernel[1];
        2 * self.y_shape().iter().product::<usize>() as u64 * taps as u64
    }

    /// Calls `visit(x, w, y)` with the flat offsets of every product of the convolution.
    fn for_each_product(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let (cg, og) = (self.c / self.groups, self.o / self.groups);
        let [ih, iw] = self.input;
        let [kh, kw] = self.kernel;
        let mut y = 0;
        for n in 0..self.n {
            for o in 0..self.o {
                for oy in 0..self.output[0] {
                    for ox in 0..self.output[1] {
                        for c in 0..cg {
                            for ky in 0..kh {
                                for kx in 0..kw {
                                    let iy = oy * self.stride[0] + ky * self.dilation[0];
                                    let ix = ox * self.stride[1] + kx * self.dilation[1];
                                    let (Some(iy), Some(ix)) =
                                        (iy.checked_sub(self.padding[0]), ix.checked_sub(self.padding[1]))
                                    else {
                                        continue;
                                    };
                                    if iy < ih && ix < iw {
                                        let channel = o / og * cg + c;
                                        let x = ((n * self.c + channel) * ih + iy) * iw + ix;
                                        let w = ((o * cg + c) * kh + ky) * kw + kx;
                                        visit(x, w, y);
                                    }
                                }
                            }
                        }
                        y += 1;
                    }
                }
            }
        }
    }
}

/// Number of windows along one axis.
pub(super) fn window_count(
    input: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
) -> Result<usize, String> {
    if kernel == 0 {
        return Err("the kernel has no elements".into());
    }
    let reach = (kernel - 1).checked_mul(dilation).and_then(|r| r.checked_add(1));
    let padded = padding.checked_mul(2).and_then(|p| p.checked_add(input));
    match (padded, reach) {
        (Some(padded), Some(reach)) if reach <= padded => Ok((padded - reach) / stride + 1),
        (Some(padded), Some(reach)) => Err(format!(
            "the kernel reaches over {reach} elements (size {kernel}, dilation {dilation}), but the padded input has {padded}"
        )),
        _ => Err("the window sizes overflow".into()),
    }
}

/// The stride between so many windows: where there is only one, any stride will do, and kernels would reserve
/// memory for a large one.
pub(super) fn used_stride(stride: usize, windows: usize) -> usize {
    if windows > 1 { stride } else { 1 }
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
