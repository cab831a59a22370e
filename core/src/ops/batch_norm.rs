//! Batch normalisation over all axes but the channels (axis 1).

use super::channels_last::ChannelsLast;
use super::conv2d::ImageLayout;
use super::layer_norm::expect_eps;
use super::norm_grad::{BatchNormGrad, SavedStatistics, through_statistics};
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, InferenceForm, OpRef, Operator, Semantics, expect_float,
    expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct BatchNorm;
pub(super) struct BatchNormInference;
pub(super) struct BatchNormAffine;

/// Checks `x [n, channels, ...]` and the per-channel operands; returns the type of the per-channel operands.
pub(super) fn channel_type(call: &Call, names: &[&str]) -> Result<TensorType, String> {
    expect_same_dtype(call)?;
    expect_float(call, 0, "the operands")?;
    let x = &call.inputs[0];
    if x.shape.rank() < 2 {
        return Err(format!("{x} needs a batch axis and a channel axis"));
    }
    if x.numel() == 0 {
        return Err(format!("the statistics of no elements are not defined: {x}"));
    }
    let channels = TensorType::new(x.dtype, Shape::new(&[x.shape[1]])?);
    for (name, ty) in names.iter().zip(&call.inputs[1..]) {
        if *ty != channels {
            return Err(format!(
                "the {name} is {ty}; the channels of {x} (axis 1) need {channels}"
            ));
        }
    }
    Ok(channels)
}

/// Returns the shape in which a per-channel vector broadcasts against `x`.
pub(super) fn channel_shape(g: &Graph, x: Value) -> Vec<usize> {
    let shape = g.shape(x);
    let mut dims = vec![1; shape.len()];
    dims[1] = shape[1];
    dims
}

/// Returns all axes but the channels, and the number of elements of a channel.
pub(super) fn reduced(g: &Graph, x: Value) -> (Vec<i32>, usize) {
    let shape = g.shape(x);
    let axes = (0..shape.len() as i32).filter(|&a| a != 1).collect();
    (axes, shape.iter().product::<usize>() / shape[1].max(1))
}

/// A form of a call on a matrix with one row per pixel: returns the results of these operands.
pub(super) type MatrixForm = fn(&mut Graph, &Attrs, &[Value]) -> Result<Vec<Value>, String>;

/// Computes a batch norm on images in channels-last layout as one on a matrix with one row per
/// pixel, whose axis 1 is the channels. Operands and results with the type of operand 0 are images. With a `form`, the
/// call is replaced by it.
pub(super) fn channels_last<'a>(op: OpRef, form: Option<MatrixForm>) -> ChannelsLast<'a> {
    ChannelsLast::follows(move |cx| {
        let x = &cx.inputs()[0];
        let &[n, c, h, w] = &x.shape[..] else {
            return Ok(None);
        };
        let mut operands = Vec::new();
        for i in 0..cx.inputs().len() {
            let operand = match cx.inputs()[i].shape.rank() {
                4 => {
                    let image = cx.nhwc(i);
                    cx.rows(image)
                }
                _ => cx.nchw(i),
            };
            operands.push(operand);
        }
        let attrs = cx.attrs();
        let values = match form {
            Some(form) => form(cx, attrs, &operands)?,
            None => {
                let call = cx.call(op, attrs.clone(), operands);
                (0..op.ports().len() as u32).map(|port| cx.port(call, port)).collect()
            }
        };
        let mut results = Vec::new();
        for result in values {
            results.push(match cx.shape(result).len() {
                2 => (cx.reshape(result, &[n, h, w, c]).into(), ImageLayout::Nhwc),
                _ => (result, ImageLayout::Nchw),
            });
        }
        Ok(Some(results))
    })
}

/// Source of `x - mean` for the normalised values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Centring {
    /// The difference of the variance.
    Shared,
    /// An own sum of `x` and `-mean`, which no pass merges with the difference. A device that computes the sums of
    /// columns in several launches would otherwise store the difference, and read it instead of `x`.
    Repeated,
}

/// Returns `x - mean`, where `centred` is the difference that was computed before.
pub(super) fn centred_by(g: &mut Graph, centring: Centring, x: Value, mean: Value, centred: NodeId) -> NodeId {
    match centring {
        Centring::Shared => centred,
        Centring::Repeated => {
            let negative = g.neg(mean);
            g.add(x, negative)
        }
    }
}

/// Builds a batch norm from reductions and elementwise calls.
fn decomposed(g: &mut Graph, attrs: &Attrs, inputs: &[Value], centring: Centring) -> Result<Vec<Value>, String> {
    let (eps, momentum) = (attrs.float("eps")?, attrs.float("momentum")?);
    let x = inputs[0];
    let dtype = g.dtype(x);
    let (axes, count) = reduced(g, x);
    let channels = g.shape(inputs[1]).to_vec();
    let mean = g.mean(x, &axes, true);
    let centred = g.sub(x, mean);
    let square = g.square(centred);
    let var = g.mean(square, &axes, true);
    let eps = g.scalar_of(dtype, eps);
    let shifted = g.add(var, eps);
    let rstd = g.rsqrt(shifted);
    let centred = centred_by(g, centring, x, mean.into(), centred);
    let xhat = g.mul(centred, rstd);
    let shape = channel_shape(g, x);
    let weight = g.reshape(inputs[1], &shape);
    let bias = g.reshape(inputs[2], &shape);
    let scaled = g.mul(xhat, weight);
    let y = g.add(scaled, bias);
    let [mean, var, rstd] = [mean, var, rstd].map(|v| g.reshape(v, &channels));
    // The unbiased variance of one element is undefined. The biased variance, 0, is used instead.
    let unbias = g.scalar_of(dtype, count as f64 / (count.max(2) - 1) as f64);
    let unbiased = g.mul(var, unbias);
    let keep = g.scalar_of(dtype, 1.0 - momentum);
    let take = g.scalar_of(dtype, momentum);
    let mut blend = |running: Value, batch: NodeId| {
        let kept = g.mul(running, keep);
        let taken = g.mul(batch, take);
        g.add(kept, taken)
    };
    let new_mean = blend(inputs[3], mean);
    let new_var = blend(inputs[4], unbiased);
    Ok([y, new_mean, new_var, mean, rstd].map(Value::from).to_vec())
}

impl Operator for BatchNorm {
    fn name(&self) -> &'static str {
        "core.batch_norm"
    }

    fn signature(&self) -> String {
        "g.batch_norm(x, weight, bias, running_mean, running_var, momentum, eps)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, c, ...], weight, bias, running mean and variance [c] -> out as x, the others [c]",
            formula: "(x - mean) * rstd * weight + bias per channel (axis 1), with mean and biased variance of the batch; running statistics become (1 - momentum) * running + momentum * batch (unbiased variance); ports 1 to 4 are the new running mean and variance, the batch mean and rstd",
            source: "Ioffe and Szegedy, 2015; running statistics as in PyTorch",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float), ("momentum", AttrKind::Float)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", "running_mean", "running_var", "mean", "rstd"]
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(3, 1), (4, 2)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let c = channel_type(call, &["weight", "bias", "running mean", "running variance"])?;
        expect_eps(call)?;
        let momentum = call.attrs.float("momentum")?;
        if !(0.0..=1.0).contains(&momentum) {
            return Err(format!("the momentum {momentum} is not between 0 and 1"));
        }
        Ok(vec![call.inputs[0].clone(), c.clone(), c.clone(), c.clone(), c])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            if cx.try_grad(1).is_some() || cx.try_grad(2).is_some() {
                return Err("the loss depends on running statistics; use the batch's own, ports 3 and 4".into());
            }
            let (x, weight, dy) = (cx.operand(0), cx.operand(1), cx.grad(0));
            let (mean, rstd) = (cx.result(3), cx.result(4));
            let (axes, count) = reduced(cx, x);
            let mut grads = vec![None; 5];
            if !cx.needs(0) && !cx.needs(1) {
                grads[2] = Some(cx.sum(dy, &axes, false).into());
                return Ok(grads);
            }
            let operands = vec![x, weight, mean, rstd, dy];
            let call = cx.call(OpRef::new(&BatchNormGrad), Attrs::new(), operands);
            let dx = cx.port(call, 0);
            let shape = channel_shape(cx, x);
            let (dmean, drstd) = (cx.try_grad(3), cx.try_grad(4));
            let mut along = |v: Value| Value::from(cx.reshape(v, &shape));
            let saved = SavedStatistics {
                mean: Some(along(mean)),
                rstd: along(rstd),
                dmean: dmean.map(&mut along),
                drstd: drstd.map(&mut along),
                count,
            };
            grads[0] = Some(through_statistics(cx, x, dx, &saved));
            grads[1] = Some(cx.port(call, 1));
            grads[2] = Some(cx.port(call, 2));
            Ok(grads)
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| decomposed(cx.graph, cx.attrs, cx.inputs, Centring::Shared))
    }

    fn inference(&self) -> InferenceForm<'_> {
        InferenceForm::Rewrite(Box::new(|cx| {
            let attrs = Attrs::new().with("eps", cx.attrs.float("eps")?);
            let y = cx
                .graph
                .call(OpRef::new(&BatchNormInference), attrs, cx.inputs.to_vec());
            // The running statistics do not change.
            Ok(vec![y.into(), cx.inputs[3], cx.inputs[4], cx.inputs[3], cx.inputs[4]])
        }))
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        channels_last(
            OpRef::new(&BatchNorm),
            Some(|g, attrs, inputs| decomposed(g, attrs, inputs, Centring::Repeated)),
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 8 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let attrs = || Attrs::new().with("eps", 1e-3).with("momentum", 0.1);
        [
            vec![5, 3],
            vec![2, 4, 3, 5],
            vec![3, 1, 7],
            vec![2 + sizes.dim(6), sizes.dim(20), sizes.dim(9), 3],
        ]
        .iter()
        .map(|s| {
            let c = [s[1]];
            let inputs = vec![
                SampleInput::f32(s),
                SampleInput::f32(&c),
                SampleInput::f32(&c),
                SampleInput::f32(&c).state(),
                SampleInput::range(&c, 0.2, 2.0).state(),
            ];
            Sample::new(format!("{s:?}"), inputs, attrs())
        })
        .collect()
    }
}

impl Operator for BatchNormInference {
    fn name(&self) -> &'static str {
        "core.batch_norm_inference"
    }

    fn signature(&self) -> String {
        "g.batch_norm_inference(x, weight, bias, mean, var, eps)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, c, ...], weight, bias, mean, variance [c] -> as x",
            formula: "(x - mean) / sqrt(var + eps) * weight + bias per channel (axis 1), with given statistics",
            source: "Ioffe and Szegedy, 2015, algorithm 2",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        channel_type(call, &["weight", "bias", "mean", "variance"])?;
        expect_eps(call)?;
        Ok(vec![call.inputs[0].clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let eps = cx.attrs.float("eps")?;
            let (g, x) = (&mut *cx.graph, cx.inputs[0]);
            let shape = channel_shape(g, x);
            let [scale, shift] = affine(g, &cx.inputs[1..], eps);
            let scale = g.reshape(scale, &shape);
            let shift = g.reshape(shift, &shape);
            let scaled = g.mul(x, scale);
            Ok(vec![g.add(scaled, shift).into()])
        })
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        channels_last(OpRef::new(&BatchNormInference), None)
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 2)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [vec![5, 3], vec![2, 4, 3, 5], vec![3, sizes.dim(20), sizes.dim(20)]]
            .iter()
            .map(|s| {
                let c = [s[1]];
                let inputs = vec![
                    SampleInput::f32(s),
                    SampleInput::f32(&c),
                    SampleInput::f32(&c),
                    SampleInput::f32(&c),
                    SampleInput::range(&c, 0.2, 2.0),
                ];
                Sample::new(format!("{s:?}"), inputs, Attrs::new().with("eps", 1e-3))
            })
            .collect()
    }
}

/// Returns the scale and shift that are equivalent to normalisation with given statistics, from
/// weight, bias, mean and variance.
fn affine(g: &mut Graph, operands: &[Value], eps: f64) -> [NodeId; 2] {
    let [weight, bias, mean, var] = [0, 1, 2, 3].map(|i| operands[i]);
    let eps = g.scalar_of(g.dtype(var), eps);
    let shifted = g.add(var, eps);
    let rstd = g.rsqrt(shifted);
    let scale = g.mul(weight, rstd);
    let moved = g.mul(mean, scale);
    [scale, g.sub(bias, moved)]
}

impl Operator for BatchNormAffine {
    fn name(&self) -> &'static str {
        "core.batch_norm_affine"
    }

    fn signature(&self) -> String {
        "g.batch_norm_affine(weight, bias, mean, var, eps)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "weight, bias, mean, variance [c] -> scale [c], shift [c]",
            formula: "scale = weight / sqrt(var + eps), shift = bias - mean * scale: batch normalisation with given statistics is x * scale + shift per channel",
            source: "Ioffe and Szegedy, 2015, algorithm 2; for folding into the weights of what comes before",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(4)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["scale", "shift"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        expect_eps(call)?;
        let c = &call.inputs[0];
        if c.shape.rank() != 1 || call.inputs.iter().any(|ty| ty != c) {
            return Err(format!(
                "weight, bias, mean and variance are vectors of one length, not {:?}",
                call.inputs
            ));
        }
        Ok(vec![c.clone(), c.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let eps = cx.attrs.float("eps")?;
            Ok(affine(cx.graph, cx.inputs, eps).map(Value::from).to_vec())
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 5)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [1, 7, sizes.dim(200)]
            .iter()
            .map(|&c| {
                let c = [c];
                let inputs = vec![
                    SampleInput::f32(&c),
                    SampleInput::f32(&c),
                    SampleInput::f32(&c),
                    SampleInput::range(&c, 0.2, 2.0),
                ];
                Sample::new(format!("{c:?}"), inputs, Attrs::new().with("eps", 1e-3))
            })
            .collect()
    }
}

impl Graph {
    /// Computes batch normalisation of `x [n, channels, ...]` in training form: uses the statistics
    /// of the batch and moves `running_mean` and `running_var` (states) by `momentum` towards them.
    /// In inference sessions the same node uses the running statistics instead and writes nothing.
    /// `weight`, `bias` and the statistics are `[channels]`.
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "the operands of the published formula")]
    pub fn batch_norm(
        &mut self,
        x: impl Into<Value>,
        weight: impl Into<Value>,
        bias: impl Into<Value>,
        running_mean: impl Into<Value>,
        running_var: impl Into<Value>,
        momentum: f32,
        eps: f32,
    ) -> NodeId {
        let attrs = Attrs::new().with("eps", eps).with("momentum", momentum);
        let inputs = vec![
            x.into(),
            weight.into(),
            bias.into(),
            running_mean.into(),
            running_var.into(),
        ];
        self.call(OpRef::new(&BatchNorm), attrs, inputs)
    }

    /// Computes batch normalisation of `x [n, channels, ...]` with given statistics; all other
    /// operands are `[channels]`.
    #[track_caller]
    pub fn batch_norm_inference(
        &mut self,
        x: impl Into<Value>,
        weight: impl Into<Value>,
        bias: impl Into<Value>,
        mean: impl Into<Value>,
        var: impl Into<Value>,
        eps: f32,
    ) -> NodeId {
        let inputs = vec![x.into(), weight.into(), bias.into(), mean.into(), var.into()];
        self.call(OpRef::new(&BatchNormInference), Attrs::new().with("eps", eps), inputs)
    }

    /// Computes scale (port 0) and shift (port 1), both `[channels]`, that are equivalent to
    /// [`Graph::batch_norm_inference`]: `x * scale + shift` for each channel. All operands are
    /// `[channels]`.
    #[track_caller]
    pub fn batch_norm_affine(
        &mut self,
        weight: impl Into<Value>,
        bias: impl Into<Value>,
        mean: impl Into<Value>,
        var: impl Into<Value>,
        eps: f32,
    ) -> NodeId {
        let inputs = vec![weight.into(), bias.into(), mean.into(), var.into()];
        self.call(OpRef::new(&BatchNormAffine), Attrs::new().with("eps", eps), inputs)
    }
}
