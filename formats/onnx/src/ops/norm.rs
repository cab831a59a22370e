//! Normalisations.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::{OnnxOp, limits, ms, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("BatchNormalization", 1, batch_norm).partly("training before version 14, statistics of each position"),
    op("GroupNormalization", 18, group_norm),
    op("InstanceNormalization", 1, instance_norm),
    op("LRN", 1, lrn),
    op("LayerNormalization", 1, layer_norm),
    op("MeanVarianceNormalization", 9, mean_variance_norm),
    op("RMSNormalization", 23, rms_norm),
    op("SimplifiedLayerNormalization", 1, rms_norm),
    ms("SimplifiedLayerNormalization", rms_norm),
    ms("SkipLayerNormalization", skip_layer_norm),
    ms("SkipSimplifiedLayerNormalization", skip_simplified_layer_norm),
];

fn batch_norm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let eps = call.float("epsilon", 1e-5)?;
    if call.opset < 9 && call.int("spatial", 1)? == 0 {
        return Err("statistics of each position are not supported".into());
    }
    if call.opset < 7 && call.int("is_test", 0)? == 0 {
        return Err("statistics of the batch (is_test = 0) are not supported".into());
    }
    let x = call.value(0)?;
    let [weight, bias, mean, var] = [call.value(1)?, call.value(2)?, call.value(3)?, call.value(4)?];
    // Statistics must not be trained: an optimizer would make variances negative.
    for statistic in [mean, var] {
        call.freeze(statistic);
    }
    if call.int("training_mode", 0)? == 0 {
        let [weight, bias, mean, var] = [weight, bias, mean, var].map(|v| call.as_element(v, element));
        let y = call.graph().batch_norm_inference(x, weight, bias, mean, var, eps);
        return call.one(y, element);
    }
    // The statistics of the batch, and the updated running statistics.
    let momentum = call.float("momentum", 0.9)?;
    let graph = call.graph();
    let dims = graph.shape(x).to_vec();
    let axes: Vec<i32> = (0..dims.len() as i32).filter(|&i| i != 1).collect();
    let batch_mean = graph.mean(x, &axes, false);
    let batch_var = graph.variance(x, &axes, 0, false);
    let y = graph.batch_norm_inference(x, weight, bias, batch_mean, batch_var, eps);
    let keep = graph.scalar_of(graph.dtype(mean), momentum.into());
    let take = graph.scalar_of(graph.dtype(mean), 1.0 - f64::from(momentum));
    let mut mixed = Vec::new();
    for (old, new) in [(mean, batch_mean), (var, batch_var)] {
        let old = graph.mul(old, keep);
        let new = graph.mul(new, take);
        mixed.push(graph.add(old, new));
    }
    Ok(vec![
        call.result(y, element),
        call.result(mixed[0], element),
        call.result(mixed[1], element),
    ])
}

fn instance_norm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let eps = call.float("epsilon", 1e-5)?;
    let channels = *call.dims(0)?.get(1).ok_or("operand 0 has no channels")?;
    let [x, weight, bias] = [call.value(0)?, call.value(1)?, call.value(2)?];
    let y = call.graph().group_norm(x, weight, bias, channels as u32, eps);
    call.one(y, element)
}

fn group_norm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let eps = call.float("epsilon", 1e-5)?;
    let groups = call.int("num_groups", 0)?;
    let channels = *call.dims(0)?.get(1).ok_or("operand 0 has no channels")?;
    let groups = u32::try_from(groups)
        .ok()
        .filter(|&g| g > 0 && channels.is_multiple_of(g as usize));
    let groups = groups.ok_or_else(|| format!("num_groups does not divide {channels} channels"))?;
    let [x, mut weight, mut bias] = [call.value(0)?, call.value(1)?, call.value(2)?];
    if call.opset < 21 {
        // One weight and one bias for each group, repeated for the channels of the group.
        let graph = call.graph();
        let each = channels / groups as usize;
        for value in [&mut weight, &mut bias] {
            let column = graph.reshape(*value, &[groups as usize, 1]);
            let spread = graph.expand(column, &[groups as usize, each]);
            *value = graph.reshape(spread, &[channels]).into();
        }
    }
    let y = call.graph().group_norm(x, weight, bias, groups, eps);
    call.one(y, element)
}

/// Returns the axis, the number of rows that are normalised separately, and their length.
fn rows(call: &Call, axis: i64) -> Result<(usize, usize, usize), String> {
    let dims = call.dims(0)?;
    let axis = call.axis(axis, dims.len())?;
    Ok((axis, dims[..axis].iter().product(), dims[axis..].iter().product()))
}

/// Flattens a weight or bias with an element for each element of a row of shape `row`; `None` if it differs between rows.
fn flat(call: &mut Call, value: Value, row: &[usize]) -> Option<Value> {
    let graph = call.graph();
    let dims = graph.shape(value).to_vec();
    let width = row.iter().product();
    if dims == [width] || dims == row {
        return Some(graph.reshape(value, &[width]).into());
    }
    // Leading axes of size 1 are dropped.
    let extra = dims.len().saturating_sub(row.len());
    let own = &dims[extra..];
    let skipped = row.len() - own.len();
    let fits = dims[..extra].iter().all(|&size| size == 1)
        && own
            .iter()
            .zip(&row[skipped..])
            .all(|(&size, &to)| size == to || size == 1);
    if !fits {
        return None;
    }
    let own = graph.reshape(value, own);
    let spread = graph.expand(own, row);
    Some(graph.reshape(spread, &[width]).into())
}

/// Returns `y` times a weight, plus a bias, both broadcast to its shape.
fn scaled(call: &mut Call, y: Value, weight: Value, bias: Option<Value>) -> Result<Value, String> {
    let graph = call.graph();
    let dims = graph.shape(y).to_vec();
    let mut scaled: Value = graph.mul(y, weight).into();
    if let Some(bias) = bias {
        scaled = graph.add(scaled, bias).into();
    }
    let found = graph.shape(scaled).to_vec();
    if found != dims {
        return Err(format!(
            "the weight or bias does not broadcast to {dims:?}: the result has the shape {found:?}"
        ));
    }
    Ok(scaled)
}

fn layer_norm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let eps = call.float("epsilon", 1e-5)?;
    let (axis, count, width) = rows(call, call.int("axis", -1)?)?;
    let dims = call.dims(0)?;
    let x = call.value(0)?;
    let x = call.graph().reshape(x, &[count, width]);
    let (weight, bias) = (call.value(1)?, call.optional(2)?);
    let zero = call.scalar(element, 0.0);
    let zeros: Value = call.graph().expand(zero, &[width]).into();
    let flat_bias = match bias {
        Some(bias) => flat(call, bias, &dims[axis..]),
        None => Some(zeros),
    };
    let of_rows = flat(call, weight, &dims[axis..]).zip(flat_bias);
    let (row_weight, row_bias) = match of_rows {
        Some(both) => both,
        None => {
            let one = call.scalar(element, 1.0);
            (call.graph().expand(one, &[width]).into(), zeros)
        }
    };
    let graph = call.graph();
    let y = graph.layer_norm(x, row_weight, row_bias, eps);
    let (mean, rstd) = (graph.port(y, 1), graph.port(y, 2));
    let mut y: Value = graph.reshape(y, &dims).into();
    if of_rows.is_none() {
        y = scaled(call, y, weight, bias)?;
    }
    let mut results = vec![call.result(y, element)];
    let kept: Vec<usize> = dims
        .iter()
        .enumerate()
        .map(|(i, &d)| if i < axis { d } else { 1 })
        .collect();
    for statistic in [mean, rstd] {
        let graph = call.graph();
        let statistic = graph.reshape(statistic, &kept);
        let statistic = call.as_f32(statistic.into());
        results.push(call.result(statistic, ElementType::F32));
    }
    Ok(results)
}

fn rms_norm(call: &mut Call) -> Built {
    let (axis, count, width) = rows(call, call.int("axis", -1)?)?;
    let eps = call.float("epsilon", 1e-5)?;
    let element = call.element(0)?;
    let dims = call.dims(0)?;
    let x = call.value(0)?;
    let weight = call.value(1)?;
    let of_rows = flat(call, weight, &dims[axis..]);
    let row_weight = match of_rows {
        Some(weight) => weight,
        None => {
            let one = call.scalar(element, 1.0);
            call.graph().expand(one, &[width]).into()
        }
    };
    let graph = call.graph();
    let x = graph.reshape(x, &[count, width]);
    let y = graph.rms_norm(x, row_weight, eps);
    let mut y: Value = graph.reshape(y, &dims).into();
    if of_rows.is_none() {
        y = scaled(call, y, weight, None)?;
    }
    call.one(y, element)
}

/// Returns `x + skip + bias`; the bias is optional.
fn skip_sum(call: &mut Call, bias: usize) -> Result<Value, String> {
    let (x, skip) = (call.value(0)?, call.value(1)?);
    let mut sum: Value = call.graph().add(x, skip).into();
    if let Some(bias) = call.optional(bias)? {
        sum = call.graph().add(sum, bias).into();
    }
    Ok(sum)
}

/// Returns the results of a normalisation with a residual connection: output, two statistics that are not computed, and the sum.
fn with_sum(call: &mut Call, y: Value, sum: Value, element: ElementType) -> Built {
    if call.wants(1) || call.wants(2) {
        return Err("its statistics are not supported".into());
    }
    let y = call.result(y, element);
    Ok(vec![y.clone(), y.clone(), y, call.result(sum, element)])
}

fn skip_layer_norm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let eps = call.float("epsilon", 1e-12)?;
    let sum = skip_sum(call, 4)?;
    let weight = call.value(2)?;
    let bias = match call.optional(3)? {
        Some(bias) => bias,
        None => {
            let zero = call.scalar(element, 0.0);
            let width = call.dims(2)?;
            call.graph().expand(zero, &width).into()
        }
    };
    let y = call.graph().layer_norm(sum, weight, bias, eps);
    with_sum(call, y.into(), sum, element)
}

fn skip_simplified_layer_norm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let eps = call.float("epsilon", 1e-12)?;
    let sum = skip_sum(call, 3)?;
    let weight = call.value(2)?;
    let y = call.graph().rms_norm(sum, weight, eps);
    with_sum(call, y.into(), sum, element)
}

/// Builds `x / (bias + alpha / size sum of x^2 over the neighbouring channels)^beta`.
fn lrn(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let dims = call.dims(0)?;
    let size = usize::try_from(call.int("size", 0)?)
        .ok()
        .filter(|&s| s > 0)
        .ok_or("size is not positive")?;
    limits::parts(size, "channels")?;
    let channels = *dims.get(1).ok_or("operand 0 has no channels")?;
    let (alpha, beta, bias) = (
        call.float("alpha", 1e-4)?,
        call.float("beta", 0.75)?,
        call.float("bias", 1.0)?,
    );
    let factor = call.scalar(element, f64::from(alpha) / size as f64);
    let (bias, power) = (call.scalar(element, bias.into()), call.scalar(element, (-beta).into()));
    let x = call.value(0)?;
    let graph = call.graph();
    let squares = graph.square(x);
    let (mut low, mut high) = (vec![0; dims.len()], vec![0; dims.len()]);
    low[1] = (size - 1) / 2;
    high[1] = size - 1 - low[1];
    let padded = graph.pad(squares, &low, &high, 0.0);
    let mut sum: Option<Value> = None;
    for i in 0..size {
        let part = graph.slice_axis(padded, 1, i, i + channels);
        sum = Some(match sum {
            None => part.into(),
            Some(sum) => graph.add(sum, part).into(),
        });
    }
    let sum = sum.ok_or("size is not positive")?;
    let scaled = graph.mul(sum, factor);
    let base = graph.add(scaled, bias);
    let divisor = graph.pow(base, power);
    let y = graph.mul(x, divisor);
    call.one(y, element)
}

fn mean_variance_norm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let dims = call.dims(0)?;
    let axes = call.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes: Vec<i32> = axes
        .iter()
        .map(|&a| Ok(call.axis(a, dims.len())? as i32))
        .collect::<Result<_, String>>()?;
    let x = call.value(0)?;
    let x = call.as_f32(x);
    let graph = call.graph();
    let mean = graph.mean(x, &axes, true);
    let centred = graph.sub(x, mean);
    let variance = graph.variance(x, &axes, 0, true);
    let deviation = graph.sqrt(variance);
    let eps = graph.scalar_of(DType::F32, 1e-9);
    let divisor = graph.add(deviation, eps);
    let y = graph.div(centred, divisor);
    let y = call.as_element(y.into(), element);
    call.one(y, element)
}
