//! Interpolation of images at positions from other operands.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use super::fold::{indices, strides};
use super::matmul::swap_last;
use super::{OnnxOp, limits, op};
use crate::import::{Call, Operand};
use crate::read::dimensions;
use crate::tensor::element_count;

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("AffineGrid", 20, affine_grid).partly("a size that depends on the data of an input"),
    op("GridSample", 16, grid_sample).partly("more than three axes"),
    op("RoiAlign", 10, roi_align).partly("sampling_ratio = 0 of regions that are not known when importing"),
];

/// Rule for values outside of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// A position along an axis that contributes to a result: its index, its weight, and true if it is inside the image.
pub(super) struct SampleTap {
    pub(super) index: Value,
    pub(super) share: Value,
    pub(super) inside: Option<Value>,
}

pub(super) fn number(g: &mut Graph, value: f64) -> NodeId {
    g.scalar_of(DType::F32, value)
}

/// Reflects position `x` at the edges until it is between them.
fn reflected(g: &mut Graph, x: Value, size: usize, aligned: bool) -> Value {
    let (low, width) = if aligned {
        (0.0, size as f64 - 1.0)
    } else {
        (-0.5, size as f64)
    };
    if width <= 0.0 {
        return number(g, 0.0).into();
    }
    let (low, width, period) = (number(g, low), number(g, width), number(g, 2.0 * width));
    let from_low = g.sub(x, low);
    let distance = g.abs(from_low);
    let there = g.modulo(distance, period);
    let back = g.sub(period, there);
    let beyond = g.greater_than(there, width);
    let folded = g.select(beyond, back, there);
    g.add(folded, low).into()
}

/// Returns the tap at an integer position, which may be outside of the image; `share` is its weight.
fn tap(g: &mut Graph, at: Value, share: Value, size: usize, aligned: bool, padding: Padding) -> SampleTap {
    let (first, last) = (number(g, 0.0), number(g, size as f64 - 1.0));
    let inside = (padding == Padding::Zeros).then(|| {
        let (after, before) = (g.greater_equal(at, first), g.less_equal(at, last));
        g.logical_and(after, before).into()
    });
    let at = match padding {
        Padding::Reflection => reflected(g, at, size, aligned),
        _ => at,
    };
    let above = g.maximum(at, first);
    let index = g.minimum(above, last);
    SampleTap {
        index: g.cast(index, DType::U32).into(),
        share,
        inside,
    }
}

/// Returns the four weights of Keys' cubic convolution at distance t after the second of four elements, with a = -3/4.
fn cubic_shares(g: &mut Graph, t: Value) -> Vec<Value> {
    // Factors of the powers of t, from the constant on.
    const FACTORS: [[f64; 4]; 4] = [
        [0.0, -0.75, 1.5, -0.75],
        [1.0, 0.0, -2.25, 1.25],
        [0.0, 0.75, 1.5, -1.25],
        [0.0, 0.0, -0.75, 0.75],
    ];
    let of = |factors: [f64; 4]| -> Value {
        let mut sum = number(g, factors[3]);
        for factor in factors[..3].iter().rev() {
            let product = g.mul(sum, t);
            let factor = number(g, *factor);
            sum = g.add(product, factor);
        }
        sum.into()
    };
    FACTORS.map(of).to_vec()
}

/// Returns the taps along one axis of `size` elements that contribute to positions `x`, by the rules of a mode.
pub(super) fn taps(
    g: &mut Graph,
    x: Value,
    size: usize,
    aligned: bool,
    mode: &str,
    padding: Padding,
) -> Vec<SampleTap> {
    let one: Value = number(g, 1.0).into();
    let mut x = x;
    if mode == "nearest" {
        x = g.round(x).into();
    }
    // Positions between the edges and the centers of the last elements are kept. With `cubic`, each element is clamped to the
    // border separately, as in PyTorch and ONNX Runtime (the reference of the package `onnx` clamps the position).
    match padding {
        Padding::Zeros => {}
        Padding::Border if mode == "cubic" => {}
        Padding::Reflection => x = reflected(g, x, size, aligned),
        Padding::Border => {
            let last = size as f64 - 1.0;
            let margin = if aligned { 0.0 } else { 0.5 };
            let (low, high) = (number(g, -margin), number(g, last + margin));
            let (first, last) = (number(g, 0.0), number(g, last));
            let (before, behind) = (g.less_than(x, low), g.greater_than(x, high));
            let held = g.select(before, first, x);
            x = g.select(behind, last, held).into();
        }
    }
    if mode == "nearest" {
        return vec![tap(g, x, one, size, aligned, padding)];
    }
    let floor: Value = g.floor(x).into();
    let t: Value = g.sub(x, floor).into();
    let (first, shares) = match mode {
        "cubic" => (-1.0, cubic_shares(g, t)),
        _ => (0.0, vec![g.sub(one, t).into(), t]),
    };
    let mut found = Vec::new();
    for (i, share) in shares.into_iter().enumerate() {
        let offset = number(g, first + i as f64);
        let at = g.add(floor, offset);
        found.push(tap(g, at.into(), share, size, aligned, padding));
    }
    found
}

/// Returns the product of shares or the conjunction of conditions, if present.
pub(super) fn joined(
    g: &mut Graph,
    a: Option<Value>,
    b: Option<Value>,
    f: fn(&mut Graph, Value, Value) -> NodeId,
) -> Option<Value> {
    match (a, b) {
        (Some(a), Some(b)) => Some(f(g, a, b).into()),
        (a, b) => a.or(b),
    }
}

fn grid_sample(call: &mut Call) -> Built {
    let (dims, grid_dims, element) = (call.dims(0)?, call.dims(1)?, call.element(0)?);
    let axes = dims.len().saturating_sub(2);
    let fits = (1..=3).contains(&axes)
        && grid_dims.len() == dims.len()
        && grid_dims[0] == dims[0]
        && grid_dims.last() == Some(&axes)
        && !dims.contains(&0)
        && !grid_dims.contains(&0);
    if !fits {
        return Err(format!("operands {} are not supported", call.types()));
    }
    let mode = match &*call.string("mode", "linear")? {
        "linear" | "bilinear" => "linear",
        "cubic" | "bicubic" => "cubic",
        "nearest" => "nearest",
        other => return Err(format!("mode `{other}` is not known")),
    };
    let padding = match &*call.string("padding_mode", "zeros")? {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        other => return Err(format!("padding_mode `{other}` is not known")),
    };
    let aligned = call.int("align_corners", 0)? != 0;
    let (n, c) = (dims[0], dims[1]);
    let sizes = &dims[2..];
    let area: usize = sizes.iter().product();
    let points: usize = grid_dims[1..=axes].iter().product();
    limits::elements(&[n], "a list of images")?;
    if n.checked_mul(area).is_none_or(|total| total >= u32::MAX as usize) {
        return Err(format!("an image of {dims:?} is too large"));
    }
    let (x, grid) = (call.value(0)?, call.value(1)?);
    let grid = call.as_f32(grid);
    let x = if mode == "nearest" { x } else { call.as_f32(x) };
    let g = call.graph();
    let grid = g.reshape(grid, &[n, points, axes]);
    // Rows of channels, one for each element of an image.
    let table = g.reshape(x, &[n, c, area]);
    let table = g.permute(table, &[0, 2, 1]);
    let table = g.reshape(table, &[n * area, c]);
    let mut of_axes = Vec::new();
    for (i, &size) in sizes.iter().enumerate() {
        // The grid lists the last axis first.
        let at = axes - 1 - i;
        let part = g.slice_axis(grid, 2, at, at + 1);
        let part = g.reshape(part, &[n, points]);
        let one = number(g, 1.0);
        let from_low = g.add(part, one);
        let position: Value = if aligned {
            let factor = number(g, (size as f64 - 1.0) / 2.0);
            g.mul(from_low, factor).into()
        } else {
            let (factor, half) = (number(g, size as f64 / 2.0), number(g, 0.5));
            let scaled = g.mul(from_low, factor);
            g.sub(scaled, half).into()
        };
        of_axes.push(taps(g, position, size, aligned, mode, padding));
    }
    let steps = strides(sizes);
    let starts = (0..n).map(|i| (i * area) as u32).collect();
    let starts: Value = g.constant_u32(starts, &[n, 1]).into();
    let counts: Vec<usize> = of_axes.iter().map(Vec::len).collect();
    let mut sum: Option<Value> = None;
    for choice in indices(&counts) {
        let (mut offset, mut share, mut inside) = (starts, None, None);
        for (i, &k) in choice.iter().enumerate() {
            let tap = &of_axes[i][k];
            let step = g.scalar_of(DType::U32, steps[i] as f64);
            let along = g.mul(tap.index, step);
            offset = g.add(offset, along).into();
            share = joined(g, share, Some(tap.share), |g, a, b| g.mul(a, b));
            inside = joined(g, inside, tap.inside, |g, a, b| g.logical_and(a, b));
        }
        let mut part: Value = g.gather_axis(table, offset, 0).into();
        if let Some(inside) = inside {
            let zero = g.scalar_of(g.dtype(part), 0.0);
            let inside = g.reshape(inside, &[n, points, 1]);
            part = g.select(inside, part, zero).into();
        }
        if let (Some(share), true) = (share, mode != "nearest") {
            let share = g.reshape(share, &[n, points, 1]);
            part = g.mul(part, share).into();
        }
        sum = joined(g, sum, Some(part), |g, a, b| g.add(a, b));
    }
    let y = sum.ok_or("the input has no elements to sample")?;
    let y = g.permute(y, &[0, 2, 1]);
    let y = g.reshape(y, &[&[n, c], &grid_dims[1..=axes]].concat());
    let y = call.as_element(y.into(), element);
    call.one(y, element)
}

/// Returns the normalized coordinates of an image's elements (-1 to 1 across the image), after an affine map.
fn affine_grid(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let size = call.known_ints(1, "the size")?.ok_or("the size is missing")?;
    let size = dimensions(&size)?;
    let theta = call.dims(0)?;
    let axes = size.len().saturating_sub(2);
    let aligned = call.int("align_corners", 0)? != 0;
    if !(2..=3).contains(&axes) || theta != [size[0], axes, axes + 1] || size.contains(&0) {
        return Err(format!("operands {} do not fit a grid of {size:?}", call.types()));
    }
    let sizes = &size[2..];
    if aligned && sizes.contains(&1) {
        return Err(format!("a grid of {size:?} is not supported with align_corners"));
    }
    let points = element_count(sizes).filter(|&n| n.saturating_mul(axes + 1) <= limits::MAX_ELEMENTS);
    let points = points.ok_or_else(|| format!("a grid of {size:?} is too large"))?;
    let mut rows = Vec::with_capacity(points * (axes + 1));
    for index in indices(sizes) {
        for (&i, &size) in index.iter().zip(sizes).rev() {
            let (i, size) = (i as f64, size as f64);
            rows.push(if aligned {
                2.0 * i / (size - 1.0) - 1.0
            } else {
                (2.0 * i + 1.0) / size - 1.0
            } as f32);
        }
        rows.push(1.0);
    }
    let theta = call.value(0)?;
    let theta = call.as_f32(theta);
    let theta = swap_last(call, theta);
    let graph = call.graph();
    let rows = graph.constant(rows, &[1, points, axes + 1]);
    let y = graph.matmul(rows, theta);
    let y = graph.reshape(y, &[&[size[0]], sizes, &[axes]].concat());
    let y = call.as_element(y.into(), element);
    call.one(y, element)
}

/// Neighbours of positions `[regions, n]` along an axis of regions: lower and upper index, and their weights, which are 0 for
/// positions outside.
struct Neighbours {
    index: [Value; 2],
    share: [Value; 2],
}

fn neighbours(g: &mut Graph, at: Value, size: usize) -> Neighbours {
    let (zero, one, last, end) = (
        number(g, 0.0),
        number(g, 1.0),
        number(g, size as f64 - 1.0),
        number(g, size as f64),
    );
    let before = number(g, -1.0);
    let (after, until) = (g.greater_equal(at, before), g.less_equal(at, end));
    let inside = g.logical_and(after, until);
    let above = g.maximum(at, zero);
    let held = g.minimum(above, last);
    let low = g.floor(held);
    let next = g.add(low, one);
    let high = g.minimum(next, last);
    let t = g.sub(held, low);
    let rest = g.sub(one, t);
    let (rest, t) = (g.select(inside, rest, zero), g.select(inside, t, zero));
    Neighbours {
        index: [low, high].map(|i| g.cast(i, DType::U32).into()),
        share: [rest.into(), t.into()],
    }
}

/// Number of samples of each bin along an axis.
struct Samples {
    /// Maximum number of samples of a bin.
    most: usize,
    /// Number of samples per bin for each region; `None` if all regions have the maximum.
    of_region: Option<Vec<usize>>,
}

impl Samples {
    /// Creates the same number of samples for all bins.
    fn fixed(ratio: usize) -> Self {
        Samples {
            most: ratio,
            of_region: None,
        }
    }

    /// Creates one sample for each pixel of a bin, for regions `[regions, 4]` from coordinate `first` to coordinate `first + 2`.
    fn of_pixels(rois: &[f32], first: usize, scale: f32, count: usize, half_pixel: bool) -> Self {
        let shift = if half_pixel { 0.5 } else { 0.0 };
        let samples = rois.chunks_exact(4).map(|roi| {
            let mut width = (roi[first + 2] * scale - shift) - (roi[first] * scale - shift);
            if !half_pixel {
                width = width.max(1.0);
            }
            (width / count as f32).ceil().max(0.0) as usize
        });
        let of_region: Vec<usize> = samples.collect();
        Samples {
            most: of_region.iter().copied().max().unwrap_or(0).max(1),
            of_region: Some(of_region),
        }
    }

    /// Returns the positions of the samples in regions of size 1, `[regions or 1, count * most]`. Positions of missing samples
    /// are 0.
    fn places(&self, g: &mut Graph, count: usize) -> NodeId {
        let own = self.of_region.clone().unwrap_or_else(|| vec![self.most]);
        let mut places = Vec::with_capacity(own.len() * count * self.most);
        for &samples in &own {
            for (bin, i) in (0..count).flat_map(|bin| (0..self.most).map(move |i| (bin, i))) {
                places.push(if i < samples {
                    ((bin * samples) as f64 + i as f64 + 0.5) / (count * samples) as f64
                } else {
                    0.0
                } as f32);
            }
        }
        g.constant(places, &[own.len(), count * self.most])
    }

    /// Returns a mask of the samples of each region, `[regions, most]`, if regions have different numbers of samples.
    fn exists(&self) -> Option<Vec<bool>> {
        let own = self.of_region.as_ref()?;
        let each = |&samples: &usize| (0..self.most).map(move |i| i < samples);
        Some(own.iter().flat_map(each).collect())
    }
}

/// Returns positions in regions along an axis: `count` bins of samples each, in regions from `start` to `end`, `[regions, 1]`.
fn bin_positions(g: &mut Graph, start: Value, end: Value, count: usize, samples: &Samples, half_pixel: bool) -> Value {
    let mut width: Value = g.sub(end, start).into();
    if !half_pixel {
        let one = number(g, 1.0);
        width = g.maximum(width, one).into();
    }
    let places = samples.places(g, count);
    let inside = g.mul(width, places);
    g.add(start, inside).into()
}

/// Builds averages, or maxima, of values at a grid of positions in each bin of each region.
fn roi_align(call: &mut Call) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    let regions = *call.dims(1)?.first().unwrap_or(&0);
    let size = |name: &str| call.int(name, 1).map(|v| usize::try_from(v).unwrap_or(0));
    let (height, width) = (size("output_height")?, size("output_width")?);
    let ratio = usize::try_from(call.int("sampling_ratio", 0)?).unwrap_or(0);
    let fits = dims.len() == 4
        && !dims.contains(&0)
        && call.dims(1)? == [regions, 4]
        && call.dims(2)? == [regions]
        && element_count(&[dims[0], dims[2], dims[3]]).is_some_and(|n| n < u32::MAX as usize);
    if !fits {
        return Err(format!("operands {} are not supported", call.types()));
    }
    let largest = match &*call.string("mode", "avg")? {
        "avg" => false,
        "max" => true,
        other => return Err(format!("mode `{other}` is neither avg nor max")),
    };
    // Before version 16 there was no shift.
    let usual = if call.opset < 16 {
        "output_half_pixel"
    } else {
        "half_pixel"
    };
    let half_pixel = match &*call.string("coordinate_transformation_mode", usual)? {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => return Err(format!("coordinate_transformation_mode `{other}` is not known")),
    };
    let scale = call.float("spatial_scale", 1.0)?;
    let (down, across) = match ratio {
        0 => {
            let rois = call
                .known_floats(1, "the number of samples in regions")?
                .unwrap_or_default();
            let rois: Vec<f32> = rois.into_iter().map(|v| v as f32).collect();
            (
                Samples::of_pixels(&rois, 1, scale, height, half_pixel),
                Samples::of_pixels(&rois, 0, scale, width, half_pixel),
            )
        }
        ratio => (Samples::fixed(ratio), Samples::fixed(ratio)),
    };
    let total = [regions, height, down.most, width, across.most];
    if !element_count(&total).is_some_and(|n| (1..=limits::MAX_ELEMENTS).contains(&n)) {
        return Err(format!(
            "expected at most {} samples, found {total:?}",
            limits::MAX_ELEMENTS
        ));
    }
    let (x, rois, batch) = (call.value(0)?, call.value(1)?, call.value(2)?);
    let (x, rois) = (call.as_f32(x), call.as_f32(rois));
    let g = call.graph();
    let (scale, shift) = (number(g, scale.into()), number(g, if half_pixel { 0.5 } else { 0.0 }));
    let scaled = g.mul(rois, scale);
    let edges = g.sub(scaled, shift);
    let edge = |g: &mut Graph, i: usize| -> Value { g.slice_axis(edges, 1, i, i + 1).into() };
    let (left, top, right, bottom) = (edge(g, 0), edge(g, 1), edge(g, 2), edge(g, 3));
    let rows = bin_positions(g, top, bottom, height, &down, half_pixel);
    let columns = bin_positions(g, left, right, width, &across, half_pixel);
    let (rows, columns) = (neighbours(g, rows, dims[2]), neighbours(g, columns, dims[3]));
    let table = g.permute(x, &[0, 2, 3, 1]);
    let area = dims[2] * dims[3];
    let table = g.reshape(table, &[dims[0] * area, dims[1]]);
    let batch = g.cast(batch, DType::U32);
    let image = g.scalar_of(DType::U32, area as f64);
    let starts = g.mul(batch, image);
    let starts = g.reshape(starts, &[regions, 1, 1]);
    let line = g.scalar_of(DType::U32, dims[3] as f64);
    let mut value: Option<Value> = None;
    for corner in indices(&[2, 2]) {
        let (row, column) = (corner[0], corner[1]);
        let row_start = g.mul(rows.index[row], line);
        let row_start = g.reshape(row_start, &[regions, height * down.most, 1]);
        let offset = g.reshape(columns.index[column], &[regions, 1, width * across.most]);
        let begin = g.add(starts, row_start);
        let at = g.add(begin, offset);
        let row_share = g.reshape(rows.share[row], &[regions, height * down.most, 1, 1]);
        let column_share = g.reshape(columns.share[column], &[regions, 1, width * across.most, 1]);
        let share = g.mul(row_share, column_share);
        let found = g.gather_axis(table, at, 0);
        let part: Value = g.mul(found, share).into();
        // The maximum is taken over the four weighted neighbours, as in the operator's reference.
        let f: fn(&mut Graph, Value, Value) -> NodeId = if largest {
            |g, a, b| g.maximum(a, b)
        } else {
            |g, a, b| g.add(a, b)
        };
        value = joined(g, value, Some(part), f);
    }
    let value = value.ok_or("the input has no elements to sample")?;
    let mut value: Value = g
        .reshape(value, &[regions, height, down.most, width, across.most, dims[1]])
        .into();
    let own = down.exists().zip(across.exists());
    let y = match (own, largest) {
        (None, true) => g.max(value, &[2, 4], false),
        (None, false) => g.mean(value, &[2, 4], false),
        (Some((rows, columns)), _) => {
            let shares = |exists: Vec<bool>, samples: &Samples, g: &mut Graph, shape: &[usize]| {
                let shares = exists.chunks(samples.most).flat_map(|of_region| {
                    let count = of_region.iter().filter(|e| **e).count().max(1) as f32;
                    of_region.iter().map(move |&e| if e { 1.0 / count } else { 0.0 })
                });
                g.constant(shares.collect(), shape)
            };
            let rows = shares(rows, &down, g, &[regions, 1, down.most, 1, 1, 1]);
            let columns = shares(columns, &across, g, &[regions, 1, 1, 1, across.most, 1]);
            let share = g.mul(rows, columns);
            if largest {
                let (zero, lowest) = (number(g, 0.0), number(g, f64::from(f32::MIN)));
                let exists = g.greater_than(share, zero);
                let held = g.select(exists, value, lowest);
                let y = g.max(held, &[2, 4], false);
                // Regions without pixels have no samples.
                let any = g.max(share, &[2, 4], false);
                let any = g.greater_than(any, zero);
                g.select(any, y, zero)
            } else {
                value = g.mul(value, share).into();
                g.sum(value, &[2, 4], false)
            }
        }
    };
    let y = g.permute(y, &[0, 3, 1, 2]);
    let y = call.as_element(y.into(), element);
    call.one(y, element)
}
