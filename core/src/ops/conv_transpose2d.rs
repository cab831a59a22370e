//! Transposed convolution: an operator that computes the derivative of a convolution with respect to its input.

use super::conv2d::{Conv2dDims, Conv2dOptions, ImageLayout};
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct ConvTranspose2d;

/// Geometry of a transposed convolution; heights come before widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose2dOptions {
    /// Distance in the output between the windows of neighbouring input elements.
    pub stride: [u32; 2],
    /// Number of rows and columns removed from each side of the result.
    pub padding: [u32; 2],
    /// Number of rows and columns added at the end of the result, fewer than the stride.
    pub output_padding: [u32; 2],
    /// Distance between the taps of the kernel.
    pub dilation: [u32; 2],
    /// Number of groups into which both channel axes are divided.
    pub groups: u32,
}

impl Default for ConvTranspose2dOptions {
    fn default() -> Self {
        ConvTranspose2dOptions {
            stride: [1, 1],
            padding: [0, 0],
            output_padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
        }
    }
}

impl ConvTranspose2dOptions {
    fn attrs(self) -> Attrs {
        self.convolution().attrs().with("output_padding", self.output_padding)
    }

    /// Returns the options of the convolution whose transpose this is.
    fn convolution(self) -> Conv2dOptions {
        Conv2dOptions {
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            groups: self.groups,
        }
    }
}

/// Returns the size of the result along an axis: the input size of the convolution.
fn output_size(call: &Call, options: Conv2dOptions, axis: usize) -> Result<usize, String> {
    let (input, kernel) = (call.inputs[0].shape[2 + axis], call.inputs[1].shape[2 + axis]);
    let extra: [usize; 2] = call.attrs.sizes("output_padding")?;
    let [stride, padding, dilation] = [options.stride, options.padding, options.dilation].map(|v| v[axis] as usize);
    let extra = extra[axis];
    if extra >= stride {
        return Err(format!(
            "the output padding {extra} is not smaller than the stride {stride}"
        ));
    }
    if input == 0 || kernel == 0 {
        return Err(format!(
            "neither {} nor the kernel {} may have an empty axis after the channels",
            call.inputs[0], call.inputs[1]
        ));
    }
    let last = (input - 1).checked_mul(stride);
    let reach = (kernel - 1).checked_mul(dilation);
    let full = last
        .zip(reach)
        .and_then(|(l, r)| l.checked_add(r)?.checked_add(1 + extra));
    let full = full.ok_or("the output size overflows")?;
    match full.checked_sub(2 * padding) {
        Some(size) if size > 0 => Ok(size),
        _ => Err(format!(
            "the padding {padding} on both sides removes all {full} elements of the output"
        )),
    }
}

/// Returns the sizes of the convolution whose transpose this is.
fn dims(call: &Call) -> Result<Conv2dDims, String> {
    let (x, w) = (&call.inputs[0], &call.inputs[1]);
    let (&[n, c, h, width], &[wc, og, _, _]) = (&x.shape[..], &w.shape[..]) else {
        return Err(format!(
            "the operands are {x} and {w}; it takes [batch, channels, height, width] and [channels, out channels / groups, kernel height, kernel width]"
        ));
    };
    let options = Conv2dOptions::of(call.attrs)?;
    let groups = options.groups as usize;
    if c % groups != 0 {
        return Err(format!("{groups} groups do not divide {c} input channels"));
    }
    if wc != c {
        return Err(format!(
            "the kernel {w} has {wc} input channels (axis 0), but {x} has {c}"
        ));
    }
    let size = [output_size(call, options, 0)?, output_size(call, options, 1)?];
    let o = og.checked_mul(groups).ok_or("the output channels overflow")?;
    let dims = Conv2dDims::forward(ImageLayout::Nchw, &[n, o, size[0], size[1]], &w.shape, options)?;
    debug_assert_eq!(dims.y_shape(), [n, c, h, width]);
    Ok(dims)
}

impl Operator for ConvTranspose2d {
    fn name(&self) -> &'static str {
        "core.conv_transpose2d"
    }

    fn signature(&self) -> String {
        "g.conv_transpose2d(x, weight, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, height, width], w [channels, out channels / groups, kernel height, kernel width] -> [batch, out channels, out height, out width], out = (size - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1",
            formula: "each x[n, c, i, j] adds x[n, c, i, j] w[c, o, p, q] to y[n, o, i stride - padding + p dilation, j stride - padding + q dilation], per group; what falls outside is dropped",
            source: "PyTorch `conv_transpose2d`; the transpose of conv2d (Zeiler et al., 2010)",
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
            ("output_padding", AttrKind::Ints),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        let shape = Shape::new(&dims(call)?.x_shape())?;
        Ok(vec![TensorType::new(call.inputs[0].dtype, shape)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let options = Conv2dOptions::of(cx.attrs)?;
            let shape = &cx.outputs[0].shape;
            let size = [shape[2], shape[3]];
            let y = cx.graph.conv2d_input_grad(cx.inputs[0], cx.inputs[1], size, options);
            Ok(vec![y.into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = dims(call).map_or(0, |d| d.flops());
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let base = ConvTranspose2dOptions::default();
        let (c, o) = (sizes.dim(7), sizes.dim(7));
        let (h, w) = (sizes.dim(9), sizes.dim(9));
        let strided = ConvTranspose2dOptions {
            stride: [2, 3],
            padding: [1, 0],
            output_padding: [1, 2],
            ..base
        };
        let grouped = ConvTranspose2dOptions {
            stride: [2, 1],
            padding: [2, 1],
            dilation: [2, 3],
            groups: 2,
            ..base
        };
        [
            ([1, 1, 1, 1], [1, 1, 1, 1], base),
            ([2, 3, 4, 5], [3, 2, 3, 3], strided),
            ([1, 4, 5, 4], [4, 3, 3, 2], grouped),
            ([2, c, h, w], [c, o, 3, 4], strided),
        ]
        .into_iter()
        .map(|(x, w, options)| {
            let inputs = vec![SampleInput::f32(&x), SampleInput::f32(&w)];
            Sample::new(format!("{x:?} {w:?} {}", options.attrs()), inputs, options.attrs())
        })
        .collect()
    }
}

impl Graph {
    /// Computes the transposed convolution of `x [n, c, h, w]` with
    /// `weight [c, o / groups, kh, kw]`, giving `[n, o, oh, ow]` with `oh = (h - 1) stride - 2
    /// padding + dilation (kh - 1) + output_padding + 1`. The output padding is smaller than the
    /// stride.
    #[track_caller]
    pub fn conv_transpose2d(
        &mut self,
        x: impl Into<Value>,
        weight: impl Into<Value>,
        options: ConvTranspose2dOptions,
    ) -> NodeId {
        let inputs = vec![x.into(), weight.into()];
        self.call(OpRef::new(&ConvTranspose2d), options.attrs(), inputs)
    }
}
