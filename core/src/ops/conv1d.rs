//! One-dimensional convolution: a two-dimensional one of height 1.

use super::conv2d::{Conv2dDims, Conv2dOptions, ImageLayout};
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Conv1d;

/// Geometry of a one-dimensional convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv1dOptions {
    /// Distance between windows.
    pub stride: u32,
    /// Number of zeros added at each end of the sequence.
    pub padding: u32,
    /// Distance between the taps of the kernel.
    pub dilation: u32,
    /// Number of groups into which both channel axes are divided.
    pub groups: u32,
}

impl Default for Conv1dOptions {
    fn default() -> Self {
        Conv1dOptions {
            stride: 1,
            padding: 0,
            dilation: 1,
            groups: 1,
        }
    }
}

impl Conv1dOptions {
    fn attrs(self) -> Attrs {
        Attrs::new()
            .with("stride", self.stride)
            .with("padding", self.padding)
            .with("dilation", self.dilation)
            .with("groups", self.groups)
    }
}

/// Returns the options of the equivalent two-dimensional convolution, with a height of 1.
fn flat(attrs: &Attrs) -> Result<Conv2dOptions, String> {
    let number = |name| -> Result<u32, String> {
        let v = attrs.int(name)?;
        u32::try_from(v).map_err(|_| format!("{name} {v} is not a size"))
    };
    let options = Conv2dOptions {
        stride: [1, number("stride")?],
        padding: [0, number("padding")?],
        dilation: [1, number("dilation")?],
        groups: number("groups")?,
    };
    if options.stride[1] == 0 || options.dilation[1] == 0 || options.groups == 0 {
        return Err("stride, dilation and groups must be at least 1".into());
    }
    Ok(options)
}

fn dims(call: &Call) -> Result<Conv2dDims, String> {
    let (x, w) = (&call.inputs[0], &call.inputs[1]);
    let (&[n, c, l], &[o, cg, k]) = (&x.shape[..], &w.shape[..]) else {
        return Err(format!(
            "the operands are {x} and {w}; it takes [batch, channels, length] and [out channels, channels / groups, kernel length]"
        ));
    };
    let options = flat(call.attrs)?;
    let groups = options.groups as usize;
    if c % groups != 0 || o % groups != 0 {
        return Err(format!(
            "{groups} groups do not divide {c} input and {o} output channels"
        ));
    }
    if cg != c / groups {
        return Err(format!(
            "the kernel {w} has {cg} input channels; {c} channels in {groups} groups need {}",
            c / groups
        ));
    }
    Conv2dDims::forward(ImageLayout::Nchw, &[n, c, 1, l], &[o, cg, 1, k], options)
}

impl Operator for Conv1d {
    fn name(&self) -> &'static str {
        "core.conv1d"
    }

    fn signature(&self) -> String {
        "g.conv1d(x, weight, options)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, channels, length], w [out channels, channels / groups, kernel length] -> [batch, out channels, out length], out = (length + 2 padding - dilation (kernel - 1) - 1) / stride + 1 rounded down",
            formula: "y[n, o, i] = sum over c, p of x[n, c, i stride - padding + p dilation] w[o, c, p]; zero outside, per group",
            source: "cross-correlation, as deep learning calls convolution (Waibel et al., 1989)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("stride", AttrKind::Int),
            ("padding", AttrKind::Int),
            ("dilation", AttrKind::Int),
            ("groups", AttrKind::Int),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        let [n, o, _, l] = dims(call)?.y_shape();
        Ok(vec![TensorType::new(call.inputs[0].dtype, Shape::new(&[n, o, l])?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let options = flat(cx.attrs)?;
            let g = &mut *cx.graph;
            let [x, w] = [0, 1].map(|i| {
                let mut shape = g.shape(cx.inputs[i]).to_vec();
                shape.insert(2, 1);
                g.reshape(cx.inputs[i], &shape)
            });
            let y = g.conv2d(x, w, options);
            Ok(vec![g.reshape(y, &cx.outputs[0].shape).into()])
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
        let options = |stride, padding, dilation, groups| Conv1dOptions {
            stride,
            padding,
            dilation,
            groups,
        };
        let (c, o, l) = (sizes.dim(9), sizes.dim(9), 4 + sizes.dim(31));
        [
            ([1, 1, 1], [1, 1, 1], options(1, 0, 1, 1)),
            ([2, 3, 17], [4, 3, 5], options(2, 2, 1, 1)),
            ([1, 6, 13], [4, 3, 3], options(1, 3, 2, 2)),
            ([3, 5, 8], [5, 1, 3], options(1, 1, 1, 5)),
            ([2, c, l], [o, c, 4], options(1, 2, 1, 1)),
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
    /// Computes the convolution of `x [n, c, l]` with `weight [o, c / groups, k]`, giving
    /// `[n, o, out]` with `out = (l + 2 padding - dilation (k - 1) - 1) / stride + 1`.
    #[track_caller]
    pub fn conv1d(&mut self, x: impl Into<Value>, weight: impl Into<Value>, options: Conv1dOptions) -> NodeId {
        self.call(OpRef::new(&Conv1d), options.attrs(), vec![x.into(), weight.into()])
    }
}
