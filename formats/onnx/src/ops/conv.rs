//! Convolutions over one, two and three axes.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::{Conv1dOptions, Conv2dOptions, ConvTranspose2dOptions};

use super::int8::{self, Quantized};
use super::window::{Windows, declared_pads};
use super::{OnnxOp, limits, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Conv", 1, conv).partly("more than three axes"),
    op("ConvInteger", 10, conv_integer).partly("more than three axes"),
    op("ConvTranspose", 1, conv_transpose).partly("more than three axes"),
];

/// Adds a bias `[c]` to the channels of `[n, c, ...]`.
pub(super) fn add_channels(call: &mut Call, y: Value, bias: Value) -> Value {
    let graph = call.graph();
    let rank = graph.shape(y).len();
    let channels = graph.shape(bias).iter().product();
    let mut dims = vec![1; rank.saturating_sub(1)];
    if let Some(first) = dims.first_mut() {
        *first = channels;
    }
    let bias = graph.reshape(bias, &dims);
    graph.add(y, bias).into()
}

pub(super) fn groups(call: &Call) -> Result<u32, String> {
    let groups = call.int("group", 1)?;
    u32::try_from(groups)
        .ok()
        .filter(|&g| g > 0)
        .ok_or_else(|| format!("group = {groups} is not positive"))
}

fn conv(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let mut y = match int8::convolution(call)? {
        Some(y) => y,
        None => {
            let (x, w) = (call.value(0)?, call.value(1)?);
            convolve(call, x, w)?
        }
    };
    if let Some(bias) = call.optional(2)? {
        y = add_channels(call, y, bias);
    }
    call.one(y, element)
}

/// Builds the convolution of these values with a node's attributes.
pub(super) fn convolve(call: &mut Call, x: Value, w: Value) -> Result<Value, String> {
    let groups = groups(call)?;
    let graph = call.graph();
    let (x_dims, w_dims) = (graph.shape(x).to_vec(), graph.shape(w).to_vec());
    let axes = x_dims.len().saturating_sub(2);
    if !(1..=3).contains(&axes) || w_dims.len() != x_dims.len() {
        return Err(format!("operands {} are not supported", call.types()));
    }
    let windows = Windows::of(call, &x_dims[2..], &w_dims[2..], false)?;
    let (x, padding) = padded(call, x, &windows, axes < 3);
    let graph = call.graph();
    let word = |list: &[usize], i: usize| list[i] as u32;
    let options = |i: usize| conv2d_options(&windows, &padding, i, groups);
    Ok(match axes {
        1 => {
            let options = Conv1dOptions {
                stride: word(&windows.strides, 0),
                padding: word(&padding, 0),
                dilation: word(&windows.dilations, 0),
                groups,
            };
            graph.conv1d(x, w, options).into()
        }
        2 => graph.conv2d(x, w, options(0)).into(),
        _ => {
            // The first axis is a sum over the taps of the kernel; each tap is a convolution with all slices as a batch.
            let (n, c) = (x_dims[0], x_dims[1]);
            let depth = windows.out[0];
            let taps = limits::parts(windows.kernel[0], "taps of a kernel")?;
            let [height, width] = [2, 3].map(|i| graph.shape(x).get(i + 1).copied().unwrap_or(0));
            let mut sum: Option<Value> = None;
            for tap in 0..taps {
                let start = tap * windows.dilations[0];
                let end = start + (depth - 1) * windows.strides[0] + 1;
                let slices = graph.slice_strided(
                    x,
                    &[0, 0, start, 0, 0],
                    &[n, c, end, height, width],
                    &[1, 1, windows.strides[0], 1, 1],
                );
                let slices = graph.permute(slices, &[0, 2, 1, 3, 4]);
                let slices = graph.reshape(slices, &[n * depth, c, height, width]);
                let kernel = graph.slice_axis(w, 2, tap, tap + 1);
                let kernel = graph.reshape(kernel, &[w_dims[0], w_dims[1], w_dims[3], w_dims[4]]);
                let part = graph.conv2d(slices, kernel, options(1));
                sum = Some(match sum {
                    None => part.into(),
                    Some(sum) => graph.add(sum, part).into(),
                });
            }
            let y = sum.ok_or("a kernel without taps")?;
            let y = graph.reshape(y, &[n, depth, w_dims[0], windows.out[1], windows.out[2]]);
            graph.permute(y, &[0, 2, 1, 3, 4]).into()
        }
    })
}

/// Returns the images, padded if the convolution cannot pad them, and the padding that is left to it. It pads both sides of
/// an axis equally, if `can_pad`.
pub(super) fn padded(call: &mut Call, x: Value, windows: &Windows, can_pad: bool) -> (Value, Vec<usize>) {
    if windows.is_symmetric() && can_pad {
        return (x, windows.low.clone());
    }
    let (low, high) = windows.pad_widths();
    (call.graph().pad(x, &low, &high, 0.0).into(), vec![0; windows.low.len()])
}

/// Returns the options of a convolution over the axes `i` and `i + 1`.
pub(super) fn conv2d_options(windows: &Windows, padding: &[usize], i: usize, groups: u32) -> Conv2dOptions {
    let pair = |list: &[usize]| [list[i] as u32, list[i + 1] as u32];
    Conv2dOptions {
        stride: pair(&windows.strides),
        padding: pair(padding),
        dilation: pair(&windows.dilations),
        groups,
    }
}

fn conv_integer(call: &mut Call) -> Built {
    let y = integer_convolution(call, [0, 2], [1, 3])?;
    let y = call.graph().cast(y, DType::I32);
    call.one(y, ElementType::I32)
}

/// Returns the convolution of two integer operands minus their zero points, in `f32`.
pub(super) fn integer_convolution(call: &mut Call, x: Quantized, w: Quantized) -> Result<Value, String> {
    if let Some(y) = int8::integer_convolution(call, x, w)? {
        return Ok(y);
    }
    let (x, w) = (centred(call, x[0], x[1])?, centred(call, w[0], w[1])?);
    convolve(call, x, w)
}

/// Returns an integer operand minus its zero point, in `f32`.
pub(super) fn centred(call: &mut Call, i: usize, zero: usize) -> Result<Value, String> {
    let x = call.value(i)?;
    let x = call.as_f32(x);
    let Some(zero) = call.optional(zero)? else { return Ok(x) };
    let zero = call.as_f32(zero);
    let graph = call.graph();
    let dims = graph.shape(zero).to_vec();
    let rank = graph.shape(x).len();
    let zero = match dims.as_slice() {
        // One zero point for each output channel of the weights.
        [n] if *n > 1 => {
            let mut shape = vec![1; rank];
            shape[0] = *n;
            graph.reshape(zero, &shape).into()
        }
        _ => zero,
    };
    Ok(graph.sub(x, zero).into())
}

/// Returns the numbers of elements that a transposed convolution removes on both sides of each axis, and that it adds
/// at the end.
fn removed(
    call: &Call,
    sizes: &[usize],
    kernel: &[usize],
    strides: &[usize],
    dilations: &[usize],
) -> Result<Vec<(i64, i64)>, String> {
    let count = sizes.len();
    let extra = call.ints("output_padding")?.unwrap_or_else(|| vec![0; count]);
    let full = |i: usize| ((sizes[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1) as i64;
    if extra.len() != count || extra.iter().any(|&e| !(0..1 << 31).contains(&e)) {
        return Err(format!("output_padding = {extra:?} does not fit"));
    }
    let mode = call.string("auto_pad", "NOTSET")?.into_owned();
    let wanted = match call.ints("output_shape")? {
        Some(shape) => {
            let skipped = shape.len().checked_sub(count).ok_or("output_shape is too short")?;
            Some(shape[skipped..].to_vec())
        }
        None if mode.starts_with("SAME") => Some((0..count).map(|i| (sizes[i] * strides[i]) as i64).collect()),
        None => None,
    };
    let Some(wanted) = wanted else {
        let (low, high) = match mode.as_str() {
            "VALID" => (vec![0; count], vec![0; count]),
            _ => declared_pads(call, count)?,
        };
        return Ok((0..count).map(|i| (low[i] as i64, high[i] as i64 - extra[i])).collect());
    };
    let mut widths = Vec::new();
    for i in 0..count {
        let total = full(i).saturating_add(extra[i]).saturating_sub(wanted[i]);
        let low = if mode == "SAME_UPPER" {
            total.div_euclid(2)
        } else {
            total - total.div_euclid(2)
        };
        let low = if total < 0 { 0 } else { low };
        widths.push((low, total - low - extra[i]));
    }
    Ok(widths)
}

/// Builds a transposed convolution over three axes. For each tap of the first axis, it transposes the slices as a batch, shifts
/// the result along the axis, and adds it.
fn deep_transpose(
    graph: &mut Graph,
    x: Value,
    w: Value,
    options: ConvTranspose2dOptions,
    stride: usize,
    dilation: usize,
) -> Result<Value, String> {
    let (x_dims, w_dims) = (graph.shape(x).to_vec(), graph.shape(w).to_vec());
    let (n, depth, taps) = (x_dims[0], x_dims[2], w_dims[2]);
    let slices = graph.permute(x, &[0, 2, 1, 3, 4]);
    let slices = graph.reshape(slices, &[n * depth, x_dims[1], x_dims[3], x_dims[4]]);
    limits::parts(taps, "taps of a kernel")?;
    let last = (taps - 1).saturating_mul(dilation);
    let mut sum: Option<Value> = None;
    for tap in 0..taps {
        let kernel = graph.slice_axis(w, 2, tap, tap + 1);
        let kernel = graph.reshape(kernel, &[w_dims[0], w_dims[1], w_dims[3], w_dims[4]]);
        let part = graph.conv_transpose2d(slices, kernel, options);
        let dims = graph.shape(part).to_vec();
        // The graph has already reported an operand that does not fit, and has no shape for it.
        let [_, channels, height, width] = dims.as_slice() else {
            return Ok(part.into());
        };
        // Zeros between the slices, and around them according to the offset of the tap.
        let part = graph.reshape(part, &[n, depth, 1, channels * height * width]);
        let spread = graph.pad(part, &[0; 4], &[0, 0, stride - 1, 0], 0.0);
        let spread = graph.reshape(spread, &[n, depth * stride, *channels, *height, *width]);
        let spread = graph.slice_axis(spread, 1, 0, (depth - 1) * stride + 1);
        let (low, high) = (tap * dilation, last - tap * dilation);
        let placed = graph.pad(spread, &[0, low, 0, 0, 0], &[0, high, 0, 0, 0], 0.0);
        sum = Some(match sum {
            None => placed.into(),
            Some(sum) => graph.add(sum, placed).into(),
        });
    }
    let y = sum.ok_or("a kernel without taps")?;
    Ok(graph.permute(y, &[0, 2, 1, 3, 4]).into())
}

fn conv_transpose(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let groups = groups(call)?;
    let (x_dims, w_dims) = (call.dims(0)?, call.dims(1)?);
    let axes = x_dims.len().saturating_sub(2);
    if !(1..=3).contains(&axes) || w_dims.len() != x_dims.len() || x_dims.contains(&0) || w_dims.contains(&0) {
        return Err(format!("operands {} are not supported", call.types()));
    }
    let list = |name: &str| -> Result<Vec<usize>, String> {
        let list = call.ints(name)?.unwrap_or_else(|| vec![1; axes]);
        let sizes: Option<Vec<usize>> = list
            .iter()
            .map(|&v| usize::try_from(v).ok().filter(|&v| v > 0 && v < 1 << 16))
            .collect();
        sizes
            .filter(|s| s.len() == axes)
            .ok_or_else(|| format!("{name} = {list:?} does not fit"))
    };
    let (strides, dilations) = (list("strides")?, list("dilations")?);
    let widths = removed(call, &x_dims[2..], &w_dims[2..], &strides, &dilations)?;
    let (mut x, mut w) = (call.value(0)?, call.value(1)?);
    let graph = call.graph();
    if axes == 1 {
        x = graph.reshape(x, &[x_dims[0], x_dims[1], 1, x_dims[2]]).into();
        w = graph.reshape(w, &[w_dims[0], w_dims[1], 1, w_dims[2]]).into();
    }
    let pair = |list: &[usize]| match list {
        [a, b] | [_, a, b] => [*a as u32, *b as u32],
        [a] => [1, *a as u32],
        _ => [1, 1],
    };
    // Symmetric padding belongs to the operator; other padding is removed or added separately.
    let direct = axes < 3 && widths.iter().all(|&(low, high)| low == high && low >= 0);
    let padding: Vec<usize> = if direct {
        widths.iter().map(|&(low, _)| low as usize).collect()
    } else {
        vec![0; axes]
    };
    let padding = match padding.as_slice() {
        [a, b] => [*a as u32, *b as u32],
        [a] => [0, *a as u32],
        _ => [0, 0],
    };
    let options = ConvTranspose2dOptions {
        stride: pair(&strides),
        padding,
        output_padding: [0, 0],
        dilation: pair(&dilations),
        groups,
    };
    let mut y: Value = match axes {
        3 => deep_transpose(graph, x, w, options, strides[0], dilations[0])?,
        _ => graph.conv_transpose2d(x, w, options).into(),
    };
    let mut dims = graph.shape(y).to_vec();
    if axes == 1 && dims.len() == 4 {
        dims.remove(2);
        y = graph.reshape(y, &dims).into();
    }
    if !direct && dims.len() == axes + 2 {
        let (mut starts, mut ends) = (vec![0; axes + 2], dims.clone());
        let (mut low, mut high) = (vec![0; axes + 2], vec![0; axes + 2]);
        for (i, &(before, behind)) in widths.iter().enumerate() {
            let size = dims[i + 2] as i64;
            if before.max(0) + behind.max(0) >= size {
                return Err(format!("axis {i} of the result is empty"));
            }
            starts[i + 2] = before.max(0) as usize;
            ends[i + 2] = (size - behind.max(0)) as usize;
            low[i + 2] = (-before).max(0) as usize;
            high[i + 2] = (-behind).max(0) as usize;
        }
        let cut = graph.slice(y, &starts, &ends);
        y = graph.pad(cut, &low, &high, 0.0).into();
    }
    if let Some(bias) = call.optional(2)? {
        y = add_channels(call, y, bias);
    }
    call.one(y, element)
}
