//! Derivatives of the normalisations, as separate operators: a kernel needs two or three passes over memory, a
//! composition of elementwise operators and sums about ten.
//!
//! The saved statistics are ordinary operands here. The formulas for `dx` already include the
//! dependence of the statistics on the normalised tensor; second derivatives flow through the
//! statistics' ports ([`through_statistics`]).

use super::batch_norm::{self, Centring, MatrixForm, centred_by, channel_shape, channel_type, reduced};
use super::channels_last::ChannelsLast;
use super::group_norm::{GroupDims, statistics_shape};
use super::layer_norm::{expect_rows, row_type};
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct LayerNormGrad;
pub(super) struct RmsNormGrad;
pub(super) struct GroupNormGrad;
pub(super) struct BatchNormGrad;

/// Checks that the gradient of the result, the last operand, has the type of `x`.
fn expect_dy(call: &Call) -> Result<(), String> {
    match (call.inputs.first(), call.inputs.last()) {
        (Some(x), Some(dy)) if x != dy => Err(format!("the gradient is {dy}, but the normalised tensor is {x}")),
        _ => Ok(()),
    }
}

fn cost(call: &Call) -> Cost {
    let flops = 12 * call.inputs[0].numel() as u64;
    Cost {
        flops,
        ..Cost::streaming(call, 0)
    }
}

/// Statistics that a forward call saved, and their gradients, all broadcastable against `x`.
pub(super) struct SavedStatistics {
    pub(super) mean: Option<Value>,
    pub(super) rstd: Value,
    pub(super) dmean: Option<Value>,
    pub(super) drstd: Option<Value>,
    /// Number of elements that one statistic is computed from.
    pub(super) count: usize,
}

/// Adds to `dx` the contribution of the statistics' own gradients: a mean changes by `1 / count` with each of its
/// elements, and rstd by `-rstd^2 xhat / count` (also if no mean is subtracted).
pub(super) fn through_statistics(g: &mut Graph, x: Value, dx: Value, saved: &SavedStatistics) -> Value {
    let dtype = g.dtype(x);
    let mut total = dx;
    if let Some(dmean) = saved.dmean {
        let factor = g.scalar_of(dtype, 1.0 / saved.count as f64);
        let share = g.mul(dmean, factor);
        total = g.add(total, share).into();
    }
    if let Some(drstd) = saved.drstd {
        let factor = g.scalar_of(dtype, -1.0 / saved.count as f64);
        let xhat = normalised(g, x, saved.mean, saved.rstd);
        let square = g.square(saved.rstd);
        let share = g.mul(drstd, square);
        let share = g.mul(share, factor);
        let share = g.mul(share, xhat);
        total = g.add(total, share).into();
    }
    total
}

/// Returns `(x - mean) * rstd`, or `x * rstd` without a mean.
fn normalised(g: &mut Graph, x: Value, mean: Option<Value>, rstd: Value) -> NodeId {
    let centred = mean.map_or(x, |mean| g.sub(x, mean).into());
    g.mul(centred, rstd)
}

/// Returns `rstd (d - mean(d) - xhat mean(d xhat))` along the last axis; without `mean(d)` if the normalisation does
/// not subtract a mean.
fn along_rows(g: &mut Graph, d: Value, xhat: Value, rstd: Value, centred: bool) -> NodeId {
    let product = g.mul(d, xhat);
    let mean_product = g.mean(product, &[-1], true);
    let along = g.mul(xhat, mean_product);
    let mut inner = d;
    if centred {
        let mean = g.mean(d, &[-1], true);
        inner = g.sub(d, mean).into();
    }
    let inner = g.sub(inner, along);
    g.mul(inner, rstd)
}

impl Operator for LayerNormGrad {
    fn name(&self) -> &'static str {
        "core.layer_norm_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., d], weight [d], mean, rstd [..., 1], dy [..., d] -> dx [..., d], dweight, dbias [d]",
            formula: "with xhat = (x - mean) rstd and d = dy weight: dx = rstd (d - mean(d) - xhat mean(d xhat)) over the last axis, dweight = sum of dy xhat and dbias = sum of dy over all others",
            source: "derivative of layer_norm (Ba, Kiros and Hinton, 2016)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dx", "dweight", "dbias"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        expect_dy(call)?;
        let (x, weight) = (&call.inputs[0], &call.inputs[1]);
        expect_rows(x, &[("weight", weight)])?;
        let rows = row_type(x)?;
        expect_statistics(call, &[("mean", 2), ("rstd", 3)], &rows)?;
        Ok(vec![x.clone(), weight.clone(), weight.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let [x, weight, mean, rstd, dy] = five(cx.inputs)?;
            let g = &mut *cx.graph;
            let xhat = normalised(g, x, Some(mean), rstd).into();
            let weighted = g.mul(dy, xhat);
            let d = g.mul(dy, weight).into();
            let dx = along_rows(g, d, xhat, rstd, true);
            let dweight = g.unbroadcast(weighted.into(), weight);
            let dbias = g.unbroadcast(dy, weight);
            Ok(vec![dx.into(), dweight, dbias])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        row_samples(sizes, true)
    }
}

impl Operator for RmsNormGrad {
    fn name(&self) -> &'static str {
        "core.rms_norm_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., d], weight [d], rstd [..., 1], dy [..., d] -> dx [..., d], dweight [d]",
            formula: "with xhat = x rstd and d = dy weight: dx = rstd (d - xhat mean(d xhat)) over the last axis, dweight = sum of dy xhat over all others",
            source: "derivative of rms_norm (Zhang and Sennrich, 2019)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(4)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dx", "dweight"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        expect_dy(call)?;
        let (x, weight) = (&call.inputs[0], &call.inputs[1]);
        expect_rows(x, &[("weight", weight)])?;
        let rows = row_type(x)?;
        expect_statistics(call, &[("rstd", 2)], &rows)?;
        Ok(vec![x.clone(), weight.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[x, weight, rstd, dy] = cx.inputs else {
                return Err("takes four operands".into());
            };
            let g = &mut *cx.graph;
            let xhat = normalised(g, x, None, rstd).into();
            let weighted = g.mul(dy, xhat);
            let d = g.mul(dy, weight).into();
            let dx = along_rows(g, d, xhat, rstd, false);
            let dweight = g.unbroadcast(weighted.into(), weight);
            Ok(vec![dx.into(), dweight])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        row_samples(sizes, false)
    }
}

impl Operator for GroupNormGrad {
    fn name(&self) -> &'static str {
        "core.group_norm_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, c, ...], weight [c], mean, rstd [batch, groups], dy as x -> dx as x, dweight, dbias [c]",
            formula: "with xhat = (x - mean) rstd and d = dy weight: dx = rstd (d - mean(d) - xhat mean(d xhat)) over each group of channels, dweight = sum of dy xhat and dbias = sum of dy over all axes but the channels",
            source: "derivative of group_norm (Wu and He, 2018)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("groups", AttrKind::Int)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dx", "dweight", "dbias"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        expect_dy(call)?;
        let (x, weight) = (&call.inputs[0], &call.inputs[1]);
        let dims = GroupDims::of(call)?;
        dims.expect_channels(x, &[("weight", weight)])?;
        let statistics = TensorType::new(x.dtype, statistics_shape(dims)?);
        expect_statistics(call, &[("mean", 2), ("rstd", 3)], &statistics)?;
        Ok(vec![x.clone(), weight.clone(), weight.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let [x, weight, mean, rstd, dy] = five(cx.inputs)?;
            let groups = cx.attrs.size("groups")?;
            let g = &mut *cx.graph;
            let shape = g.shape(x).to_vec();
            let rows = GroupDims::new(&shape, groups)?.rows();
            let mut kept = rows;
            kept[2] = 1;
            let [mean, rstd] = [mean, rstd].map(|v| Value::from(g.reshape(v, &kept)));
            let x_rows = g.reshape(x, &rows).into();
            let xhat = normalised(g, x_rows, Some(mean), rstd);
            let channels = channel_shape(g, x);
            let weight = g.reshape(weight, &channels);
            let d = g.mul(dy, weight);
            let d = g.reshape(d, &rows).into();
            let dx = along_rows(g, d, xhat.into(), rstd, true);
            let dx = g.reshape(dx, &shape);
            let xhat = g.reshape(xhat, &shape);
            let weighted = g.mul(dy, xhat);
            let (axes, _) = reduced(g, x);
            let dweight = g.sum(weighted, &axes, false);
            let dbias = g.sum(dy, &axes, false);
            Ok([dx, dweight, dbias].map(Value::from).to_vec())
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let cases = super::group_norm::cases(sizes);
        let sample = |(shape, groups): &(Vec<usize>, usize)| {
            let [c, statistics] = [vec![shape[1]], vec![shape[0], *groups]];
            let inputs = vec![
                SampleInput::f32(shape),
                SampleInput::f32(&c),
                SampleInput::f32(&statistics),
                SampleInput::range(&statistics, 0.2, 2.0),
                SampleInput::f32(shape),
            ];
            let label = format!("{shape:?} in {groups}");
            Sample::new(label, inputs, Attrs::new().with("groups", *groups))
        };
        cases.iter().map(sample).collect()
    }
}

/// Builds the gradient of a batch norm from reductions and elementwise calls.
fn batch_norm_grad(g: &mut Graph, inputs: &[Value], centring: Centring) -> Result<Vec<Value>, String> {
    let [x, weight, mean, rstd, dy] = five(inputs)?;
    let dtype = g.dtype(x);
    let shape = channel_shape(g, x);
    let (axes, count) = reduced(g, x);
    let [mean, rstd] = [mean, rstd].map(|v| Value::from(g.reshape(v, &shape)));
    let centred = g.sub(x, mean);
    let xhat = g.mul(centred, rstd);
    let weighted = g.mul(dy, xhat);
    let dweight = g.sum(weighted, &axes, false);
    let dbias = g.sum(dy, &axes, false);
    // weight rstd (dy - mean(dy) - xhat mean(dy xhat))
    let factor = g.scalar_of(dtype, 1.0 / count as f64);
    let mean_dy = g.mul(dbias, factor);
    let mean_dy = g.reshape(mean_dy, &shape);
    let mean_w = g.mul(dweight, factor);
    let mean_w = g.reshape(mean_w, &shape);
    let centred = centred_by(g, centring, x, mean, centred);
    let xhat = g.mul(centred, rstd);
    let along = g.mul(xhat, mean_w);
    let inner = g.sub(dy, mean_dy);
    let inner = g.sub(inner, along);
    let weight = g.reshape(weight, &shape);
    let scale = g.mul(weight, rstd);
    let dx = g.mul(inner, scale);
    Ok([dx, dweight, dbias].map(Value::from).to_vec())
}

impl Operator for BatchNormGrad {
    fn name(&self) -> &'static str {
        "core.batch_norm_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, c, ...], weight, mean, rstd [c], dy as x -> dx as x, dweight, dbias [c]",
            formula: "with xhat = (x - mean) rstd: dweight = sum of dy xhat and dbias = sum of dy per channel, dx = weight rstd (dy - dbias / n - xhat dweight / n) with n elements a channel",
            source: "derivative of batch_norm (Ioffe and Szegedy, 2015)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dx", "dweight", "dbias"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_dy(call)?;
        let c = channel_type(call, &["weight", "mean", "rstd"])?;
        Ok(vec![call.inputs[0].clone(), c.clone(), c])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| batch_norm_grad(cx.graph, cx.inputs, Centring::Shared))
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        let form: MatrixForm = |g, _, inputs| batch_norm_grad(g, inputs, Centring::Repeated);
        batch_norm::channels_last(OpRef::new(&BatchNormGrad), Some(form))
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [
            vec![5, 3],
            vec![2, 4, 3, 5],
            vec![3, 1, 7],
            vec![70, 33],
            vec![2 + sizes.dim(6), sizes.dim(20), 9 + sizes.dim(9), 3],
        ]
        .iter()
        .map(|s| {
            let c = [s[1]];
            let inputs = vec![
                SampleInput::f32(s),
                SampleInput::f32(&c),
                SampleInput::f32(&c),
                SampleInput::range(&c, 0.2, 2.0),
                SampleInput::f32(s),
            ];
            Sample::new(format!("{s:?}"), inputs, Attrs::new())
        })
        .collect()
    }
}

/// Checks that these operands have the type `wanted`.
fn expect_statistics(call: &Call, operands: &[(&str, usize)], wanted: &TensorType) -> Result<(), String> {
    for &(name, i) in operands {
        if call.inputs[i] != *wanted {
            return Err(format!(
                "the {name} is {}; {} needs {wanted}",
                call.inputs[i], call.inputs[0]
            ));
        }
    }
    Ok(())
}

fn five(inputs: &[Value]) -> Result<[Value; 5], String> {
    inputs.try_into().map_err(|_| "takes five operands".into())
}

/// Returns sample cases of the normalisations of rows, with a saved mean or without.
pub(super) fn row_samples(sizes: &mut Sizes, with_mean: bool) -> Vec<Sample> {
    [
        vec![3],
        vec![1, 7],
        vec![4, 33],
        vec![2, 3, 768],
        vec![40, 5],
        sizes.shape(3, 40),
    ]
    .iter()
    .map(|s| {
        let mut row = s.clone();
        row[s.len() - 1] = 1;
        let mut inputs = vec![SampleInput::f32(s), SampleInput::f32(&s[s.len() - 1..])];
        if with_mean {
            inputs.push(SampleInput::f32(&row));
        }
        inputs.extend([SampleInput::range(&row, 0.2, 2.0), SampleInput::f32(s)]);
        Sample::new(format!("{s:?}"), inputs, Attrs::new())
    })
    .collect()
}
