//! Deformable convolutions, whose kernels read at offsets from an operand.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::conv::add_channels;
use super::fold::{indices, strides};
use super::sample::{Padding, joined, number, taps};
use super::window::Windows;
use super::{OnnxOp, limits, op};
use crate::import::{Call, Operand};
use crate::tensor::element_count;

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[op("DeformConv", 19, deform_conv).partly("more than three axes")];

fn groups(call: &Call, name: &str, channels: usize) -> Result<usize, String> {
    let groups = usize::try_from(call.int(name, 1)?).unwrap_or(0);
    if groups > 0 && channels.is_multiple_of(groups) {
        Ok(groups)
    } else {
        Err(format!("{name} = {groups} does not divide {channels} channels"))
    }
}

/// Returns the positions of the kernel's elements without offsets, `[axes][taps * points]`.
fn positions(windows: &Windows) -> Result<Vec<Vec<f32>>, String> {
    let total = [windows.kernel.as_slice(), &windows.out].concat();
    limits::elements(&total, "a list of windows")?;
    let mut found = vec![Vec::new(); windows.kernel.len()];
    for tap in indices(&windows.kernel) {
        for point in indices(&windows.out) {
            for (i, list) in found.iter_mut().enumerate() {
                let at = point[i] * windows.strides[i] + tap[i] * windows.dilations[i];
                list.push(at as f32 - windows.low[i] as f32);
            }
        }
    }
    Ok(found)
}

fn deform_conv(call: &mut Call) -> Built {
    let (dims, w_dims, element) = (call.dims(0)?, call.dims(1)?, call.element(0)?);
    let axes = dims.len().saturating_sub(2);
    if !(1..=3).contains(&axes) || w_dims.len() != dims.len() || dims.contains(&0) || w_dims.contains(&0) {
        return Err(format!("operands {} are not supported", call.types()));
    }
    let sizes = &dims[2..];
    let windows = Windows::of(call, sizes, &w_dims[2..], false)?;
    let (n, c, out) = (dims[0], dims[1], w_dims[0]);
    let (group, own) = (groups(call, "group", c)?, groups(call, "offset_group", c)?);
    let base = positions(&windows)?;
    let (area, count, points) = (
        sizes.iter().product::<usize>(),
        windows.kernel.iter().product::<usize>(),
        windows.out.iter().product::<usize>(),
    );
    let fits = call.dims(2)? == [&[n, own * count * axes], windows.out.as_slice()].concat()
        && (!call.has_input(4) || call.dims(4)? == [&[n, own * count], windows.out.as_slice()].concat())
        && w_dims[1] * group == c
        && out.is_multiple_of(group)
        && element_count(&[n, own, area]).is_some_and(|n| n < u32::MAX as usize);
    if !fits {
        return Err(format!("operands {} do not fit", call.types()));
    }
    let (x, w, offset) = (call.value(0)?, call.value(1)?, call.value(2)?);
    let (x, w, offset) = (call.as_f32(x), call.as_f32(w), call.as_f32(offset));
    let mask = call.optional(4)?;
    let mask = mask.map(|mask| call.as_f32(mask));
    let g = call.graph();
    // Rows of the channels that share their offsets.
    let table = g.reshape(x, &[n, own, c / own, area]);
    let table = g.permute(table, &[0, 1, 3, 2]);
    let table = g.reshape(table, &[n * own * area, c / own]);
    let offset = g.reshape(offset, &[n, own, count, axes, points]);
    let mut of_axes = Vec::new();
    for (i, list) in base.into_iter().enumerate() {
        let part = g.slice_axis(offset, 3, i, i + 1);
        let part = g.reshape(part, &[n, own, count, points]);
        let base = g.constant(list, &[1, 1, count, points]);
        let at = g.add(base, part);
        of_axes.push(taps(g, at.into(), sizes[i], true, "linear", Padding::Zeros));
    }
    let steps = strides(sizes);
    let starts = (0..n * own).map(|i| (i * area) as u32).collect();
    let starts: Value = g.constant_u32(starts, &[n, own, 1, 1]).into();
    let mut sum: Option<Value> = None;
    for choice in indices(&vec![2; axes]) {
        let (mut at, mut share, mut inside) = (starts, None, None);
        for (i, &k) in choice.iter().enumerate() {
            let tap = &of_axes[i][k];
            let step = g.scalar_of(DType::U32, steps[i] as f64);
            let along = g.mul(tap.index, step);
            at = g.add(at, along).into();
            share = joined(g, share, Some(tap.share), |g, a, b| g.mul(a, b));
            inside = joined(g, inside, tap.inside, |g, a, b| g.logical_and(a, b));
        }
        let (Some(share), Some(inside)) = (share, inside) else {
            return Err("the input has no elements to sample".into());
        };
        let zero = number(g, 0.0);
        let share = g.select(inside, share, zero);
        let share = g.reshape(share, &[n, own, count, points, 1]);
        let found = g.gather_axis(table, at, 0);
        let part: Value = g.mul(found, share).into();
        sum = joined(g, sum, Some(part), |g, a, b| g.add(a, b));
    }
    let mut columns = sum.ok_or("the input has no elements to sample")?;
    if let Some(mask) = mask {
        let mask = g.reshape(mask, &[n, own, count, points, 1]);
        columns = g.mul(columns, mask).into();
    }
    let columns = g.permute(columns, &[0, 1, 4, 2, 3]);
    let columns = g.reshape(columns, &[n, group, c / group * count, points]);
    let w = g.reshape(w, &[1, group, out / group, c / group * count]);
    let y = g.matmul(w, columns);
    let y = g.reshape(y, &[&[n, out], windows.out.as_slice()].concat());
    let mut y = call.as_element(y.into(), element);
    if let Some(bias) = call.optional(3)? {
        y = add_channels(call, y, bias);
    }
    call.one(y, element)
}
