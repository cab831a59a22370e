//! Two-dimensional pooling.

use super::conv2d::{used_stride, window_count};
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, RefCall, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct MaxPool2d;
pub(super) struct AvgPool2d;
pub(super) struct AvgPool2dGrad;

/// Geometry of pooling windows; heights come before widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dOptions {
    /// Size of a window.
    pub kernel: [u32; 2],
    /// Distance between windows.
    pub stride: [u32; 2],
    /// Elements added on both sides: never the largest, and zeros for the average, which counts them.
    pub padding: [u32; 2],
}

impl Pool2dOptions {
    /// Square windows side by side, without padding.
    pub fn square(size: u32) -> Self {
        Pool2dOptions {
            kernel: [size; 2],
            stride: [size; 2],
            padding: [0; 2],
        }
    }

    fn attrs(self) -> Attrs {
        Attrs::new()
            .with("kernel", self.kernel)
            .with("stride", self.stride)
            .with("padding", self.padding)
    }
}

/// All sizes of a pooling `x [n, c, h, w] -> y [n, c, oh, ow]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dDims {
    /// Batch times channels.
    pub planes: usize,
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

/// Elements that every window may have; larger ones must not be larger than four images.
const MAX_TAPS: usize = 1 << 24;

impl Pool2dDims {
    /// Sizes for an input of that shape.
    ///
    /// # Errors
    /// When the windows do not fit.
    pub fn of(x: &[usize], attrs: &Attrs) -> Result<Self, String> {
        let &[n, c, h, w] = x else {
            return Err(format!(
                "the operand is {x:?}; it takes [batch, channels, height, width]"
            ));
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
        // Kernels have a table of all taps; padding lets windows outgrow every image.
        let taps = kernel[0].saturating_mul(kernel[1]);
        if taps > MAX_TAPS.max(input[0].saturating_mul(input[1]).saturating_mul(4)) {
            return Err(format!(
                "the window {kernel:?} is far larger than the image of {h}x{w}; use at most {MAX_TAPS} elements"
            ));
        }
        Ok(Pool2dDims {
            planes: n * c,
            input,
            output,
            kernel,
            stride,
            padding,
        })
    }

    /// Calls `visit(x, y)` with the flat offsets of every element of every window.
    fn for_each_pair(&self, mut visit: impl FnMut(usize, usize)) {
        let mut y = 0;
        for plane in 0..self.planes {
            for oy in 0..self.output[0] {
                for ox in 0..self.output[1] {
                    for ky in 0..self.kernel[0] {
                        for kx in 0..self.kernel[1] {
                            let iy = (oy * self.stride[0] + ky).checked_sub(self.padding[0]);
                            let ix = (ox * self.stride[1] + kx).checked_sub(self.padding[1]);
                            if let (Some(iy), Some(ix)) = (iy, ix)
                                && iy < self.input[0]
                                && ix < self.input[1]
                            {
                                visit((plane * self.input[0] + iy) * self.input[1] + ix, y);
                            }
                        }
                    }
                    y += 1;
                }
            }
        }
    }
}

fn dims(call: &RefCall, x: &[usize]) -> Pool2dDims {
    match Pool2dDims::of(x, call.attrs) {
        Ok(d) => d,
        // `infer` accepted the same call before.
        Err(message) => panic!("{message}"),
    }
}

fn y_type(x: &TensorType, attrs: &Attrs) -> Result<TensorType, String> {
    let dims = Pool2dDims::of(&x.shape, attrs)?;
    let shape = Shape::new(&[x.shape[0], x.shape[1], dims.output[0], dims.output[1]])?;
    Ok(TensorType::new(x.dtype, shape))
}

fn cases(sizes: &mut Sizes) -> Vec<([usize; 4], Pool2dOptions)> {
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
    ]
}

fn cost(call: &Call) -> Cost {
    let window: usize = call.attrs.sizes::<2>("kernel").map_or(1, |k| k[0] * k[1]);
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
        vec![
            ("kernel", AttrKind::Ints),
            ("stride", AttrKind::Ints),
            ("padding", AttrKind::Ints),
        ]
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
        let y = y_type(x, call.attrs)?;
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
            let dims = dims(call, x.shape());
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
        "core.avg_pool2d"
    }

    fn signature(&self) -> String {
        "g.avg_pool2d(x, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, height, width] -> [batch, channels, out height, out width], out = (size + 2 padding - kernel) / stride + 1 rounded down; padding at most half of the kernel",
            formula: "sum of each window divided by its size, padding counted as zeros",
            source: "average pooling (PyTorch's count_include_pad)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("kernel", AttrKind::Ints),
            ("stride", AttrKind::Ints),
            ("padding", AttrKind::Ints),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        Ok(vec![y_type(&call.inputs[0], call.attrs)?])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let shape = cx.shape(cx.operand(0)).to_vec();
            let attrs = cx.attrs().clone().with("input_size", [shape[2], shape[3]]);
            let dy = cx.grad(0);
            Ok(vec![Some(cx.call(OpRef::new(&AvgPool2dGrad), attrs, vec![dy]).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let x = call.inputs[0];
            let dims = dims(call, x.shape());
            let size = (dims.kernel[0] * dims.kernel[1]) as f64;
            let mut out = vec![0.0; call.outputs[0].numel()];
            dims.for_each_pair(|i, y| out[y] += x.data[i] / size);
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases(sizes)
            .into_iter()
            .map(|(x, options)| {
                Sample::new(
                    format!("{x:?} {}", options.attrs()),
                    vec![SampleInput::f32(&x)],
                    options.attrs(),
                )
            })
            .collect()
    }
}

/// Shape of the pooled tensor's operand.
fn grad_x_shape(call: &Call) -> Result<[usize; 4], String> {
    let dy = &call.inputs[0];
    let [h, w] = call.attrs.sizes("input_size")?;
    match dy.shape[..] {
        [n, c, _, _] => Ok([n, c, h, w]),
        _ => Err(format!("the gradient is {dy}; it takes four axes")),
    }
}

impl Operator for AvgPool2dGrad {
    fn name(&self) -> &'static str {
        "core.avg_pool2d_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "dy [batch, channels, out height, out width] -> [batch, channels, input_size]",
            formula: "dx of avg_pool2d: each window adds dy / size to its elements",
            source: "transpose of average pooling",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("kernel", AttrKind::Ints),
            ("stride", AttrKind::Ints),
            ("padding", AttrKind::Ints),
            ("input_size", AttrKind::Ints),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        let dtype = call.inputs[0].dtype;
        let x = TensorType::new(dtype, Shape::new(&grad_x_shape(call)?)?);
        let y = y_type(&x, call.attrs)?;
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
            Ok(vec![Some(cx.call(OpRef::new(&AvgPool2d), attrs, vec![g]).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let dims = dims(call, &call.outputs[0].shape);
            let size = (dims.kernel[0] * dims.kernel[1]) as f64;
            let mut out = vec![0.0; call.outputs[0].numel()];
            dims.for_each_pair(|i, y| out[i] += call.inputs[0].data[y] / size);
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        cases(sizes)
            .into_iter()
            .filter_map(|(x, options)| {
                let dims = Pool2dDims::of(&x, &options.attrs()).ok()?;
                let dy = [x[0], x[1], dims.output[0], dims.output[1]];
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
    /// Largest element of each window of `x [n, c, h, w]`; port 1 holds the chosen offsets (`u32`).
    #[track_caller]
    pub fn max_pool2d(&mut self, x: impl Into<Value>, options: Pool2dOptions) -> NodeId {
        self.call(OpRef::new(&MaxPool2d), options.attrs(), vec![x.into()])
    }

    /// Mean of each window of `x [n, c, h, w]`, padding counted as zeros.
    #[track_caller]
    pub fn avg_pool2d(&mut self, x: impl Into<Value>, options: Pool2dOptions) -> NodeId {
        self.call(OpRef::new(&AvgPool2d), options.attrs(), vec![x.into()])
    }
}
