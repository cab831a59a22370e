//! Group normalisation: normalises groups of channels of each image.

use super::batch_norm::channel_shape;
use super::layer_norm::expect_eps;
use super::norm_grad::{GroupNormGrad, SavedStatistics, through_statistics};
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct GroupNorm;

/// Sizes of a group normalisation of `x [batch, channels, ...]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDims {
    /// Number of images.
    pub batch: usize,
    /// Number of channels of an image, a multiple of the number of groups.
    pub channels: usize,
    /// Number of groups of an image, at least one.
    pub groups: usize,
    /// Number of elements of a channel of an image.
    pub plane: usize,
}

impl GroupDims {
    /// Returns the sizes of a `core.group_norm` call or of its derivative.
    ///
    /// # Errors
    /// Groups that do not divide the channels, or have no elements.
    pub fn of(call: &Call) -> Result<Self, String> {
        let x = &call.inputs[0];
        let groups = call.attrs.int("groups")?;
        let groups = usize::try_from(groups).map_err(|_| format!("the number of groups is negative: {groups}"))?;
        Self::new(&x.shape, groups)
    }

    pub(super) fn new(x: &[usize], groups: usize) -> Result<Self, String> {
        let &[batch, channels, ref plane @ ..] = x else {
            return Err(format!("{x:?} needs a batch axis and a channel axis"));
        };
        if groups == 0 {
            return Err("there must be at least one group of channels".into());
        }
        if channels % groups != 0 {
            return Err(format!("{groups} groups do not divide {channels} channels"));
        }
        let plane = plane.iter().product();
        if channels * plane == 0 {
            return Err(format!("the statistics of no elements are not defined: {x:?}"));
        }
        Ok(GroupDims {
            batch,
            channels,
            groups,
            plane,
        })
    }

    /// Returns the number of elements of a group, which are contiguous.
    pub fn elements(&self) -> usize {
        self.channels / self.groups * self.plane
    }

    /// Returns the shape that puts a group's elements on one axis.
    pub(super) fn rows(&self) -> [usize; 3] {
        [self.batch, self.groups, self.elements()]
    }

    /// Checks that the operands have one entry for each channel.
    pub(super) fn expect_channels(&self, x: &TensorType, operands: &[(&str, &TensorType)]) -> Result<(), String> {
        let c = TensorType::new(x.dtype, Shape::new(&[self.channels])?);
        match operands.iter().find(|(_, ty)| **ty != c) {
            Some((what, ty)) => Err(format!("the {what} is {ty}; the channels of {x} (axis 1) need {c}")),
            None => Ok(()),
        }
    }
}

/// Returns the shape of the saved statistics.
pub(super) fn statistics_shape(dims: GroupDims) -> Result<Shape, String> {
    Shape::new(&[dims.batch, dims.groups])
}

/// Returns shapes and groups of sample cases.
pub(super) fn cases(sizes: &mut Sizes) -> Vec<(Vec<usize>, usize)> {
    let groups = sizes.dim(5);
    let varied = vec![sizes.dim(4), groups * sizes.dim(5), sizes.dim(9), sizes.dim(9)];
    vec![
        (vec![3, 4], 2),
        (vec![2, 6, 7], 3),
        (vec![2, 4, 3, 5], 1),
        (vec![1, 5, 4, 9], 5),
        (vec![2, 6, 2, 2, 2], 2),
        (vec![2, 128], 2),
        (varied, groups),
    ]
}

impl Operator for GroupNorm {
    fn name(&self) -> &'static str {
        "core.group_norm"
    }

    fn signature(&self) -> String {
        "g.group_norm(x, weight, bias, groups, eps)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, c, ...], weight, bias [c]; groups divide c -> out as x, mean, rstd [batch, groups]",
            formula: "(x - mean) * rstd * weight + bias, the statistics over each group of neighbouring channels of an image, rstd = 1 / sqrt(var + eps) with the biased variance; weight and bias per channel (axis 1); ports 1 and 2 are mean and rstd",
            source: "Wu and He, 2018; with a group for each channel it is instance normalisation (Ulyanov, Vedaldi and Lempitsky, 2016)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float), ("groups", AttrKind::Int)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", "mean", "rstd"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        let x = &call.inputs[0];
        let dims = GroupDims::of(call)?;
        dims.expect_channels(x, &[("weight", &call.inputs[1]), ("bias", &call.inputs[2])])?;
        expect_eps(call)?;
        let statistics = TensorType::new(x.dtype, statistics_shape(dims)?);
        Ok(vec![x.clone(), statistics.clone(), statistics])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (x, dy) = (cx.operand(0), cx.grad(0));
            let (mean, rstd) = (cx.result(1), cx.result(2));
            let groups = cx.attrs().size("groups")?;
            let operands = vec![x, cx.operand(1), mean, rstd, dy];
            let attrs = Attrs::new().with("groups", groups);
            let call = cx.call(OpRef::new(&GroupNormGrad), attrs, operands);
            let [mut dx, dweight, dbias] = [0, 1, 2].map(|port| cx.port(call, port));
            let (dmean, drstd) = (cx.try_grad(1), cx.try_grad(2));
            if dmean.is_some() || drstd.is_some() {
                let shape = cx.shape(x).to_vec();
                let rows = GroupDims::new(&shape, groups)?.rows();
                let mut along = |v: Value| Value::from(cx.reshape(v, &[rows[0], rows[1], 1]));
                let saved = SavedStatistics {
                    mean: Some(along(mean)),
                    rstd: along(rstd),
                    dmean: dmean.map(&mut along),
                    drstd: drstd.map(&mut along),
                    count: rows[2],
                };
                let [x, dx_rows] = [x, dx].map(|v| Value::from(cx.reshape(v, &rows)));
                let total = through_statistics(cx, x, dx_rows, &saved);
                dx = cx.reshape(total, &shape).into();
            }
            Ok(vec![Some(dx), Some(dweight), Some(dbias)])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (eps, groups) = (cx.attrs.float("eps")?, cx.attrs.size("groups")?);
            let (g, x) = (&mut *cx.graph, cx.inputs[0]);
            let shape = g.shape(x).to_vec();
            let rows = GroupDims::new(&shape, groups)?.rows();
            let grouped = g.reshape(x, &rows);
            let mean = g.mean(grouped, &[-1], true);
            let centred = g.sub(grouped, mean);
            let square = g.square(centred);
            let var = g.mean(square, &[-1], true);
            let eps = g.scalar_of(cx.outputs[0].dtype, eps);
            let var = g.add(var, eps);
            let rstd = g.rsqrt(var);
            let xhat = g.mul(centred, rstd);
            let xhat = g.reshape(xhat, &shape);
            let channels = channel_shape(g, x);
            let [weight, bias] = [1, 2].map(|i| g.reshape(cx.inputs[i], &channels));
            let scaled = g.mul(xhat, weight);
            let y = g.add(scaled, bias);
            let [mean, rstd] = [mean, rstd].map(|v| g.reshape(v, &rows[..2]));
            Ok([y, mean, rstd].map(Value::from).to_vec())
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 8 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let sample = |(shape, groups): &(Vec<usize>, usize)| {
            let c = [shape[1]];
            let len: usize = shape[1..].iter().product::<usize>() / groups;
            // The gradient of one or two elements is dominated by eps.
            let eps = if len < 3 { 0.5 } else { 1e-3 };
            let attrs = Attrs::new().with("eps", eps).with("groups", *groups);
            let inputs = vec![SampleInput::f32(shape), SampleInput::f32(&c), SampleInput::f32(&c)];
            Sample::new(format!("{shape:?} in {groups}"), inputs, attrs)
        };
        cases(sizes).iter().map(sample).collect()
    }
}

impl Graph {
    /// Normalises each of the `groups` groups of neighbouring channels of each image of
    /// `x [batch, c, ...]` to mean 0 and variance 1, then scales by `weight [c]` and shifts by `bias [c]`.
    /// `groups` divides `c`. Ports 1 and 2 are the mean and `1 / sqrt(var + eps)`, `[batch, groups]`.
    #[track_caller]
    pub fn group_norm(
        &mut self,
        x: impl Into<Value>,
        weight: impl Into<Value>,
        bias: impl Into<Value>,
        groups: u32,
        eps: f32,
    ) -> NodeId {
        let inputs = vec![x.into(), weight.into(), bias.into()];
        let attrs = Attrs::new().with("eps", eps).with("groups", groups);
        self.call(OpRef::new(&GroupNorm), attrs, inputs)
    }

    /// Computes instance normalisation: [`Graph::group_norm`] of `x [batch, c, ...]` with a group
    /// for each channel, so that each channel of each image has statistics of its own (ports 1 and
    /// 2, `[batch, c]`).
    #[track_caller]
    pub fn instance_norm(
        &mut self,
        x: impl Into<Value>,
        weight: impl Into<Value>,
        bias: impl Into<Value>,
        eps: f32,
    ) -> NodeId {
        let x = x.into();
        let channels = self.ty(x).and_then(|t| t.shape.get(1).copied()).unwrap_or(1);
        match u32::try_from(channels) {
            Ok(groups) => self.group_norm(x, weight, bias, groups.max(1), eps),
            Err(_) => self.report(
                "instance_norm",
                format!("{channels} channels are too many"),
                "use fewer",
            ),
        }
    }
}
