//! Operators that assemble images from windows, or from the maxima of windows.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::fold::{indices, strides};
use super::window::declared_pads;
use super::{OnnxOp, Overflow, limits, op};
use crate::import::{Call, Operand};
use crate::read::dimensions;
use crate::tensor::element_count;

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Col2Im", 18, col2im)
        .partly("shapes that depend on the data of an input")
        .checked(Overflow::Sums(&[0])),
    op("MaxUnpool", 9, max_unpool).partly("a shape that depends on the data of an input"),
];

/// Returns the sizes of an attribute, one for each axis and positive.
fn sizes(call: &Call, name: &str, axes: usize) -> Result<Vec<usize>, String> {
    let list = call.ints(name)?.unwrap_or_else(|| vec![1; axes]);
    let found: Option<Vec<usize>> = list
        .iter()
        .map(|&v| usize::try_from(v).ok().filter(|&v| v > 0 && v < 1 << 31))
        .collect();
    found
        .filter(|s| s.len() == axes)
        .ok_or_else(|| format!("{name} = {list:?} are not {axes} positive sizes"))
}

/// Sums blocks `[batch, channels * block, number of blocks]` at their positions in an image.
fn col2im(call: &mut Call) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    let shape = |i: usize, what: &str| -> Result<Vec<usize>, String> {
        let list = call.known_ints(i, what)?.ok_or_else(|| format!("{what} is missing"))?;
        dimensions(&list)
    };
    let (image, block) = (shape(1, "the shape of the image")?, shape(2, "the shape of a block")?);
    let axes = image.len();
    let (strides_of, dilations) = (sizes(call, "strides", axes)?, sizes(call, "dilations", axes)?);
    let (low, high) = declared_pads(call, axes)?;
    let [batch, rows, count] = dims.as_slice() else {
        return Err(format!("expected [batch, rows, blocks], found {dims:?}"));
    };
    let taps = element_count(&block).unwrap_or(0);
    let area = element_count(&image).unwrap_or(0);
    let columns = taps.checked_mul(*count).filter(|&n| n > 0 && n <= limits::MAX_ELEMENTS);
    let fits = block.len() == axes && (1..=limits::MAX_ELEMENTS).contains(&area) && *batch > 0;
    let (Some(columns), true) = (columns.filter(|_| rows.is_multiple_of(taps)), fits) else {
        let types = call.types();
        return Err(format!("operands {types} do not fit blocks of {block:?} of {image:?}"));
    };
    // Number of blocks along each axis.
    let mut places = Vec::new();
    for i in 0..axes {
        let reach = (block[i] - 1).saturating_mul(dilations[i]).saturating_add(1);
        let free = (image[i] + low[i] + high[i]).checked_sub(reach);
        places.push(free.ok_or_else(|| format!("blocks of {block:?} do not fit {image:?}"))? / strides_of[i] + 1);
    }
    if element_count(&places) != Some(*count) {
        return Err(format!("found {count} blocks, expected one for each of {places:?}"));
    }
    let steps = strides(&image);
    let mut at = Vec::with_capacity(columns);
    for tap in indices(&block) {
        for place in indices(&places) {
            let mut offset = Some(0);
            for i in 0..axes {
                let position = place[i] * strides_of[i] + tap[i] * dilations[i];
                let inside = position.checked_sub(low[i]).filter(|&p| p < image[i]);
                offset = offset.zip(inside).map(|(sum, p)| sum + p * steps[i]);
            }
            // Taps in the padding write to a dummy element after the image, at index `area`.
            at.push(offset.unwrap_or(area) as u32);
        }
    }
    let channels = rows / taps;
    let x = call.value(0)?;
    let graph = call.graph();
    let x = graph.reshape(x, &[batch * channels, columns]);
    let x = graph.permute(x, &[1, 0]);
    let at = graph.constant_u32(at, &[columns]);
    let sums = graph.scatter_add(x, at, area + 1);
    let sums = graph.slice_axis(sums, 0, 0, area);
    let y = graph.permute(sums, &[1, 0]);
    let y = graph.reshape(y, &[&[*batch, channels], image.as_slice()].concat());
    call.one(y, element)
}

/// Writes elements to the positions that `MaxPool` returned, with zeros between them.
fn max_unpool(call: &mut Call) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    let axes = dims.len().saturating_sub(2);
    let kernel = call.ints("kernel_shape")?.ok_or("kernel_shape is missing")?;
    let kernel = dimensions(&kernel)?;
    let steps = sizes(call, "strides", axes)?;
    let wanted = match call.known_ints(2, "the shape")? {
        Some(list) => Some(dimensions(&list)?),
        None => None,
    };
    // An explicit shape replaces the padding.
    let (low, high) = match wanted {
        None => declared_pads(call, axes)?,
        Some(_) => (vec![0; axes], vec![0; axes]),
    };
    if axes == 0 || kernel.len() != axes || call.dims(1)? != dims || dims.contains(&0) {
        return Err(format!("operands {} do not fit", call.types()));
    }
    let mut shape = dims[..2].to_vec();
    for i in 0..axes {
        let size = (dims[i + 2] - 1)
            .checked_mul(steps[i])
            .and_then(|size| size.checked_add(kernel[i]));
        let size = size.and_then(|size| size.checked_sub(low[i].saturating_add(high[i])));
        shape.push(size.ok_or_else(|| format!("windows of {kernel:?} do not fit {dims:?}"))?);
    }
    let wanted = wanted.unwrap_or_else(|| shape.clone());
    let total = element_count(&shape).filter(|&n| n <= limits::MAX_ELEMENTS);
    let larger = wanted.len() == shape.len() && wanted.iter().zip(&shape).all(|(w, s)| w >= s);
    let fits = larger && element_count(&wanted).is_some_and(|n| n <= limits::MAX_ELEMENTS);
    let (Some(total), true) = (total, fits) else {
        return Err(format!("{shape:?} cannot become {wanted:?}"));
    };
    let (x, at) = (call.value(0)?, call.value(1)?);
    let zero = call.scalar(element, 0.0);
    let graph = call.graph();
    let count: usize = dims.iter().product();
    let at = graph.cast(at, DType::U32);
    let (at, x) = (graph.reshape(at, &[count]), graph.reshape(x, &[count]));
    let zeros = graph.expand(zero, &[total]);
    let y = graph.scatter(zeros, at, x, 0);
    let mut y: Value = graph.reshape(y, &shape).into();
    if wanted != shape {
        // Positions refer to the smaller image; padding is added after it.
        let more: Vec<usize> = wanted.iter().zip(&shape).map(|(w, s)| w - s).collect();
        y = graph.pad(y, &vec![0; shape.len()], &more, 0.0).into();
    }
    call.one(y, element)
}
