//! Pooling over windows and over whole images.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};
use meganeura_core::ops::Pool2dOptions;

use super::window::Windows;
use super::{OnnxOp, limits, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::read::dimensions;

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("AveragePool", 1, average_pool),
    op("GlobalAveragePool", 1, |c| {
        global(c, |g, x, axes| g.mean(x, axes, true))
    }),
    op("GlobalLpPool", 2, global_lp_pool),
    op("GlobalMaxPool", 1, |c| global(c, |g, x, axes| g.max(x, axes, true))),
    op("LpPool", 2, lp_pool),
    op("MaxPool", 1, max_pool).partly("positions of windows that are padded unevenly, dilated, or not of two axes"),
];

/// Returns the axes after batch and channels.
fn spatial(call: &Call) -> Result<Vec<i32>, String> {
    let rank = call.dims(0)?.len();
    match rank {
        0..=2 => Err(format!("operands {} have no axes to pool", call.types())),
        rank => Ok((2..rank as i32).collect()),
    }
}

fn global(call: &mut Call, f: fn(&mut Graph, Value, &[i32]) -> NodeId) -> Built {
    let axes = spatial(call)?;
    let (x, element) = (call.value(0)?, call.element(0)?);
    let y = f(call.graph(), x, &axes);
    call.one(y, element)
}

fn windows(call: &Call) -> Result<Windows, String> {
    let dims = call.dims(0)?;
    spatial(call)?;
    let kernel = call.ints("kernel_shape")?.ok_or("kernel_shape is missing")?;
    let round_up = call.int("ceil_mode", 0)? != 0;
    Windows::of(call, &dims[2..], &dimensions(&kernel)?, round_up)
}

/// Reduces windows one axis at a time, over the elements at each tap along the axis.
fn by_axes(
    graph: &mut Graph,
    x: Value,
    windows: &Windows,
    f: fn(&mut Graph, Value, Value) -> NodeId,
) -> Result<Value, String> {
    let count: usize = windows.kernel.iter().fold(0, |sum: usize, k| sum.saturating_add(*k));
    limits::parts(count, "taps of windows")?;
    if graph.shape(x).len() != windows.kernel.len() + 2 {
        return Err(format!(
            "windows of {:?} do not fit {:?}",
            windows.kernel,
            graph.shape(x)
        ));
    }
    let mut x = x;
    for i in 0..windows.kernel.len() {
        let dims = graph.shape(x).to_vec();
        // The graph has already reported an operand that does not fit, and has no shape for it.
        if dims.len() != windows.kernel.len() + 2 {
            return Ok(x);
        }
        let mut result: Option<Value> = None;
        for tap in 0..windows.kernel[i] {
            let (mut starts, mut ends, mut steps) = (vec![0; dims.len()], dims.clone(), vec![1; dims.len()]);
            starts[i + 2] = tap * windows.dilations[i];
            steps[i + 2] = windows.strides[i];
            ends[i + 2] = starts[i + 2] + (windows.out[i] - 1) * windows.strides[i] + 1;
            let part: Value = graph.slice_strided(x, &starts, &ends, &steps).into();
            result = Some(match result {
                None => part,
                Some(before) => f(graph, before, part).into(),
            });
        }
        x = result.ok_or("windows without elements")?;
    }
    Ok(x)
}

fn options(windows: &Windows, padding: [usize; 2]) -> Pool2dOptions {
    Pool2dOptions {
        kernel: [windows.kernel[0] as u32, windows.kernel[1] as u32],
        stride: [windows.strides[0] as u32, windows.strides[1] as u32],
        padding: padding.map(|p| p as u32),
    }
}

/// Returns true if the graph's pooling operator supports these windows; their padding may still be unsupported.
fn is_plain(windows: &Windows) -> bool {
    windows.kernel.len() == 2 && windows.dilations == [1, 1]
}

/// Returns the padding, if the graph's pooling operator supports these windows with it.
fn own_padding(windows: &Windows) -> Option<[usize; 2]> {
    let small = windows.low.iter().zip(&windows.kernel).all(|(p, k)| 2 * p <= *k);
    (is_plain(windows) && windows.is_symmetric() && small).then(|| [windows.low[0], windows.low[1]])
}

fn max_pool(call: &mut Call) -> Built {
    let windows = windows(call)?;
    let element = call.element(0)?;
    let x = call.value(0)?;
    if !element.is_float() {
        // Integers of 8 bits are exact in f32.
        let x = call.as_f32(x);
        let y = max_of_windows(call, x, &windows)?;
        let y = call.as_element(y, element);
        return call.one(y, element);
    }
    if call.wants(1) {
        let padding = own_padding(&windows).ok_or("the positions of these windows are not supported")?;
        let columns_first = call.int("storage_order", 0)? != 0;
        let dims = call.dims(0)?;
        let graph = call.graph();
        let y = graph.max_pool2d(x, options(&windows, padding));
        let at = graph.port(y, 1);
        let mut at = graph.cast(at, DType::I32);
        if let (true, [_, _, height, width]) = (columns_first, dims.as_slice()) {
            at = transposed_positions(graph, at, *height, *width);
        }
        return Ok(vec![call.result(y, element), call.result(at, ElementType::I64)]);
    }
    let y = max_of_windows(call, x, &windows)?;
    call.one(y, element)
}

/// Converts positions in row-major images to positions in column-major images.
fn transposed_positions(graph: &mut Graph, at: NodeId, height: usize, width: usize) -> NodeId {
    let number = |g: &mut Graph, v: usize| g.scalar_of(DType::I32, v as f64);
    let (height, width, area) = (
        number(graph, height),
        number(graph, width),
        number(graph, height * width),
    );
    let image = graph.div(at, area);
    let start = graph.mul(image, area);
    let inside = graph.sub(at, start);
    let row = graph.div(inside, width);
    let skipped = graph.mul(row, width);
    let column = graph.sub(inside, skipped);
    let down = graph.mul(column, height);
    let moved = graph.add(down, row);
    graph.add(start, moved)
}

fn max_of_windows(call: &mut Call, x: Value, windows: &Windows) -> Result<Value, String> {
    let graph = call.graph();
    if let Some(padding) = own_padding(windows) {
        return Ok(graph.max_pool2d(x, options(windows, padding)).into());
    }
    let (low, high) = windows.pad_widths();
    let padded = graph.pad(x, &low, &high, f32::NEG_INFINITY);
    if is_plain(windows) {
        return Ok(graph.max_pool2d(padded, options(windows, [0, 0])).into());
    }
    by_axes(graph, padded.into(), windows, |g, a, b| g.maximum(a, b))
}

/// Returns sums over windows, with zeros outside of the image.
fn sum_of_windows(call: &mut Call, x: Value, windows: &Windows) -> Result<Value, String> {
    let graph = call.graph();
    let area: usize = windows.kernel.iter().product();
    let (low, high) = windows.pad_widths();
    if is_plain(windows) {
        let padding = own_padding(windows);
        let padded = match padding {
            Some(_) => x,
            None => graph.pad(x, &low, &high, 0.0).into(),
        };
        let mean = graph.avg_pool2d(padded, options(windows, padding.unwrap_or([0, 0])));
        let factor = graph.scalar_of(graph.dtype(x), area as f64);
        return Ok(graph.mul(mean, factor).into());
    }
    let padded = graph.pad(x, &low, &high, 0.0);
    by_axes(graph, padded.into(), windows, |g, a, b| g.add(a, b))
}

/// Returns the number of elements of each window along axis `i`, with or without elements of the padding.
fn counts(windows: &Windows, size: usize, i: usize, padding: bool) -> Vec<f64> {
    let (first, end) = if padding {
        (0, windows.low[i] + size + windows.declared_high[i])
    } else {
        (windows.low[i], windows.low[i] + size)
    };
    let of_window = |o: usize| {
        let taps = (0..windows.kernel[i]).map(|k| o * windows.strides[i] + k * windows.dilations[i]);
        taps.filter(|at| (first..end).contains(at)).count() as f64
    };
    (0..windows.out[i]).map(of_window).collect()
}

fn average_pool(call: &mut Call) -> Built {
    let windows = windows(call)?;
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let padding = call.int("count_include_pad", 0)? != 0;
    let x = call.value(0)?;
    let area: usize = windows.kernel.iter().product();
    // Each element of an axis checks all taps.
    for (&out, &kernel) in windows.out.iter().zip(&windows.kernel) {
        limits::elements(&[out, kernel], "a window along an axis")?;
    }
    let per_axis: Vec<Vec<f64>> = (0..windows.out.len())
        .map(|i| counts(&windows, dims[i + 2], i, padding))
        .collect();
    let all_full = per_axis
        .iter()
        .zip(&windows.kernel)
        .all(|(c, &k)| c.iter().all(|&c| c == k as f64));
    if let (true, Some(padding)) = (all_full, own_padding(&windows)) {
        let y = call.graph().avg_pool2d(x, options(&windows, padding));
        return call.one(y, element);
    }
    let sum = sum_of_windows(call, x, &windows)?;
    if all_full {
        let factor = call.scalar(element, 1.0 / area as f64);
        let y = call.graph().mul(sum, factor);
        return call.one(y, element);
    }
    limits::elements(&windows.out, "an image")?;
    let count = super::fold::indices(&windows.out).map(|at| {
        let product: f64 = at.iter().zip(&per_axis).map(|(&i, axis)| axis[i]).product();
        product.max(1.0) as f32
    });
    let count: Vec<f32> = count.collect();
    let graph = call.graph();
    let count = graph.constant(count, &windows.out);
    let count = graph.cast(count, element.dtype());
    let y = graph.div(sum, count);
    call.one(y, element)
}

/// Returns the attribute `p`, the exponent of a norm.
fn order(call: &Call) -> Result<i64, String> {
    match call.int("p", 2)? {
        p @ 1.. => Ok(p),
        p => Err(format!("p = {p} is not positive")),
    }
}

/// Returns `|x|^p`.
fn to_power(call: &mut Call, x: Value, element: ElementType, p: i64) -> Value {
    let graph = call.graph();
    match p {
        1 => graph.abs(x).into(),
        2 => graph.square(x).into(),
        p => {
            let size = graph.abs(x);
            let p = call.scalar(element, p as f64);
            call.graph().pow(size, p).into()
        }
    }
}

/// Returns `x^(1/p)`.
fn to_root(call: &mut Call, x: Value, element: ElementType, p: i64) -> Value {
    match p {
        1 => x,
        2 => call.graph().sqrt(x).into(),
        p => {
            let p = call.scalar(element, 1.0 / p as f64);
            call.graph().pow(x, p).into()
        }
    }
}

fn lp_pool(call: &mut Call) -> Built {
    let windows = windows(call)?;
    let element = call.element(0)?;
    let p = order(call)?;
    let x = call.value(0)?;
    let powers = to_power(call, x, element, p);
    let sum = sum_of_windows(call, powers, &windows)?;
    let y = to_root(call, sum, element, p);
    call.one(y, element)
}

fn global_lp_pool(call: &mut Call) -> Built {
    let axes = spatial(call)?;
    let element = call.element(0)?;
    let p = order(call)?;
    let x = call.value(0)?;
    let powers = to_power(call, x, element, p);
    let sum = call.graph().sum(powers, &axes, true);
    let y = to_root(call, sum.into(), element, p);
    call.one(y, element)
}
