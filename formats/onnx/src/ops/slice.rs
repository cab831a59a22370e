//! Slices and padding of tensors.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::fold::{indices, strides};
use super::layout::KNOWN_SHAPE;
use super::{OnnxOp, limits, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::read::dimensions;
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("CenterCropPad", 18, center_crop_pad).partly(KNOWN_SHAPE),
    op("Pad", 2, pad).partly("widths that depend on the data of an input"),
    op("Slice", 1, slice)
        .taking_strings()
        .folding(fold_slice)
        .partly("bounds that depend on the data of an input"),
    op("Split", 2, split).folding(fold_split),
];

fn parts(call: &Call, size: usize) -> Result<Vec<usize>, String> {
    if let Some(sizes) = call.attribute_or_operand("split", 1)? {
        let sizes = dimensions(&sizes)?;
        return if sizes.iter().sum::<usize>() == size {
            Ok(sizes)
        } else {
            Err(format!("parts {sizes:?} do not add up to {size}"))
        };
    }
    let count = usize::try_from(call.int("num_outputs", call.result_count() as i64)?).unwrap_or(0);
    // If the attribute is present, it equals the number of results.
    if count != call.result_count() || count == 0 || count > size.max(1) {
        return Err(format!("{size} elements cannot be split into {count} parts"));
    }
    let each = size.div_ceil(count);
    Ok((0..count).map(|i| each.min(size.saturating_sub(i * each))).collect())
}

fn split(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let axis = call.axis(call.int("axis", 0)?, dims.len())?;
    let sizes = parts(call, dims[axis])?;
    let (x, element) = (call.value(0)?, call.element(0)?);
    let parts = call.graph().split(x, axis as i32, &sizes);
    Ok(parts.into_iter().map(|part| call.result(part, element)).collect())
}

fn fold_split(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let Some(Some(x)) = operands.first() else {
        return Ok(None);
    };
    let axis = call.axis(call.int("axis", 0)?, x.dims().len())?;
    let mut results = Vec::new();
    let mut start = 0;
    for size in parts(call, x.dims()[axis])? {
        let mut dims = x.dims().to_vec();
        dims[axis] = size;
        let mut starts = vec![0; dims.len()];
        starts[axis] = start as i64;
        results.push(slice_tensor(x, &starts, &vec![1; dims.len()], &dims));
        start += size;
    }
    Ok(Some(results))
}

fn slice_tensor(x: &Tensor, starts: &[i64], steps: &[i64], sizes: &[usize]) -> Tensor {
    let from = strides(x.dims());
    let positions = indices(sizes).map(|index| {
        let axes = index.iter().zip(starts).zip(steps).zip(&from);
        axes.map(|(((&i, &start), &step), &stride)| (start + i as i64 * step) as usize * stride)
            .sum()
    });
    x.pick(sizes, positions)
}

struct Bounds {
    starts: Vec<i64>,
    steps: Vec<i64>,
    sizes: Vec<usize>,
}

fn bounds(call: &Call, dims: &[usize]) -> Result<Bounds, String> {
    let list = |name: &str, i: usize| {
        if call.opset < 10 {
            call.ints(name)
        } else {
            call.known_ints(i, name)
        }
    };
    let starts = list("starts", 1)?.ok_or("the starts are missing")?;
    let ends = list("ends", 2)?.ok_or("the ends are missing")?;
    let axes = list("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = if call.opset < 10 {
        None
    } else {
        call.known_ints(4, "steps")?
    };
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err("starts, ends, axes and steps differ in length".into());
    }
    let mut result = Bounds {
        starts: vec![0; dims.len()],
        steps: vec![1; dims.len()],
        sizes: dims.to_vec(),
    };
    for (((&start, &end), &axis), &step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = call.axis(axis, dims.len())?;
        let size = dims[axis] as i64;
        let from_front = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let (start, end) = match step {
            0 => return Err("a step is 0".into()),
            1.. => (from_front(start).clamp(0, size), from_front(end).clamp(0, size)),
            _ => (
                from_front(start).clamp(0, size - 1),
                from_front(end).clamp(-1, size - 1),
            ),
        };
        let count = match step {
            1.. => (end - start).max(0).div_euclid(step) + i64::from((end - start).max(0).rem_euclid(step) != 0),
            _ => {
                let back = step.checked_neg().ok_or("a step is too small")?;
                (start - end).max(0).div_euclid(back) + i64::from((start - end).max(0).rem_euclid(back) != 0)
            }
        };
        result.starts[axis] = start;
        result.steps[axis] = step;
        result.sizes[axis] = count as usize;
    }
    Ok(result)
}

fn slice(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let Bounds { starts, steps, sizes } = bounds(call, &dims)?;
    let (mut x, element) = (call.value(0)?, call.element(0)?);
    if sizes.contains(&0) {
        let empty = Tensor::new(element, &sizes, empty_data(element));
        return Ok(vec![call.known_result(0, empty)]);
    }
    let backward: Vec<i32> = (0..dims.len()).filter(|&i| steps[i] < 0).map(|i| i as i32).collect();
    if !backward.is_empty() {
        x = call.graph().flip(x, &backward).into();
    }
    let mut from = Vec::new();
    let mut to = Vec::new();
    let mut by = Vec::new();
    for i in 0..dims.len() {
        let start = if steps[i] < 0 {
            dims[i] as i64 - 1 - starts[i]
        } else {
            starts[i]
        } as usize;
        let step = usize::try_from(steps[i].unsigned_abs()).unwrap_or(usize::MAX);
        from.push(start);
        to.push(start + (sizes[i] - 1) * if sizes[i] > 1 { step } else { 1 } + 1);
        by.push(if sizes[i] > 1 { step } else { 1 });
    }
    let y = if by.iter().all(|&s| s == 1) {
        call.graph().slice(x, &from, &to)
    } else {
        call.graph().slice_strided(x, &from, &to, &by)
    };
    call.one(y, element)
}

pub(super) fn empty_data(element: ElementType) -> crate::tensor::Data {
    use crate::tensor::Data;
    match element {
        ElementType::F64 => Data::F64(Vec::new()),
        e if e.is_float() => Data::F32(Vec::new()),
        _ => Data::Int(Vec::new()),
    }
}

fn fold_slice(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let Some(Some(x)) = operands.first() else {
        return Ok(None);
    };
    let Bounds { starts, steps, sizes } = bounds(call, x.dims())?;
    Ok(Some(vec![slice_tensor(x, &starts, &steps, &sizes)]))
}

fn pad_widths(call: &Call, rank: usize) -> Result<Vec<(i64, i64)>, String> {
    let pads = if call.opset < 11 {
        call.ints("pads")?
    } else {
        call.known_ints(1, "the widths")?
    };
    let pads = pads.ok_or("the widths are missing")?;
    let axes = if call.opset >= 18 {
        call.known_ints(3, "the axes")?
    } else {
        None
    };
    let axes = axes.unwrap_or_else(|| (0..rank as i64).collect());
    if pads.len() != 2 * axes.len() {
        return Err(format!("{} widths for {} axes", pads.len(), axes.len()));
    }
    let mut widths = vec![(0, 0); rank];
    for (i, &axis) in axes.iter().enumerate() {
        widths[call.axis(axis, rank)?] = (pads[i], pads[axes.len() + i]);
    }
    Ok(widths)
}

fn pad(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let widths = pad_widths(call, dims.len())?;
    let mut x = call.value(0)?;
    // Negative widths remove elements.
    if widths.iter().any(|w| w.0 < 0 || w.1 < 0) {
        let cut = |w: i64| w.min(0).unsigned_abs() as usize;
        let starts: Vec<usize> = widths.iter().map(|w| cut(w.0)).collect();
        let ends: Vec<usize> = dims
            .iter()
            .zip(&widths)
            .map(|(&d, w)| d.saturating_sub(cut(w.1)))
            .collect();
        x = call.graph().slice(x, &starts, &ends).into();
    }
    let widths: Vec<(usize, usize)> = widths
        .iter()
        .map(|w| (w.0.max(0) as usize, w.1.max(0) as usize))
        .collect();
    let y = match &*call.string("mode", "constant")? {
        "constant" => constant_pad(call, x, element, &widths)?,
        mode @ ("reflect" | "edge" | "wrap") => {
            let mode = mode.to_owned();
            for (axis, &width) in widths.iter().enumerate().filter(|(_, w)| **w != (0, 0)) {
                x = mirrored_pad(call, x, axis, width, &mode)?;
            }
            x
        }
        other => return Err(format!("mode `{other}` is not supported")),
    };
    call.one(y, element)
}

fn constant_pad(call: &mut Call, x: Value, element: ElementType, widths: &[(usize, usize)]) -> Result<Value, String> {
    let (low, high): (Vec<usize>, Vec<usize>) = widths.iter().copied().unzip();
    let known = match call.opset < 11 {
        true => Some(call.float("value", 0.0)?.into()),
        false if !call.has_input(2) => Some(0.0),
        false => call.tensor(2).and_then(|t| t.to_f64().first().copied()),
    };
    if let (Some(value), true) = (known, element.is_float() || known == Some(0.0)) {
        return Ok(call.graph().pad(x, &low, &high, value as f32).into());
    }
    // Any other value: pads with zeros, and selects the value where a padded tensor of ones is 0.
    let value = call.value(2)?;
    let dims = call.graph().shape(x).to_vec();
    let graph = call.graph();
    let padded = graph.pad(x, &low, &high, 0.0);
    let one = graph.scalar_of(DType::U32, 1.0);
    let ones = graph.expand(one, &dims);
    let inside = graph.pad(ones, &low, &high, 0.0);
    let value = graph.reshape(value, &[]);
    Ok(graph.select(inside, padded, value).into())
}

fn mirrored_pad(
    call: &mut Call,
    x: Value,
    axis: usize,
    (low, high): (usize, usize),
    mode: &str,
) -> Result<Value, String> {
    let size = call.graph().shape(x).get(axis).copied().unwrap_or(0) as i64;
    if size == 0 {
        return Err("an axis without elements cannot be padded with them".into());
    }
    let total = (size as usize).saturating_add(low).saturating_add(high);
    limits::elements(&[total], "an axis")?;
    let source = |i: usize| -> u32 {
        let at = i as i64 - low as i64;
        let at = match mode {
            "edge" => at.clamp(0, size - 1),
            "wrap" => at.rem_euclid(size),
            _ if size == 1 => 0,
            _ => {
                let period = 2 * (size - 1);
                let at = at.rem_euclid(period);
                if at < size { at } else { period - at }
            }
        };
        at as u32
    };
    let positions: Vec<u32> = (0..total).map(source).collect();
    let graph = call.graph();
    let positions = graph.constant_u32(positions, &[total]);
    Ok(graph.gather_axis(x, positions, axis as i32).into())
}

fn center_crop_pad(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let sizes = call.known_ints(1, "the shape")?.ok_or("the shape is missing")?;
    let axes = call.ints("axes")?.unwrap_or_else(|| (0..dims.len() as i64).collect());
    if axes.len() != sizes.len() {
        return Err(format!("{} sizes for {} axes", sizes.len(), axes.len()));
    }
    let (mut starts, mut ends) = (vec![0; dims.len()], dims.clone());
    let (mut low, mut high) = (vec![0; dims.len()], vec![0; dims.len()]);
    for (&axis, &size) in axes.iter().zip(&sizes) {
        let axis = call.axis(axis, dims.len())?;
        let size = usize::try_from(size).map_err(|_| format!("size {size} is negative"))?;
        if size < dims[axis] {
            starts[axis] = (dims[axis] - size) / 2;
            ends[axis] = starts[axis] + size;
        } else {
            low[axis] = (size - dims[axis]) / 2;
            high[axis] = size - dims[axis] - low[axis];
        }
    }
    let x = call.value(0)?;
    let graph = call.graph();
    let cut = graph.slice(x, &starts, &ends);
    let y = graph.pad(cut, &low, &high, 0.0);
    call.one(y, element)
}
