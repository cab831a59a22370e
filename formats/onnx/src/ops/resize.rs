//! Resizing of images. All coordinates are computed at import, so every mode is a weighted sum of gathers.

use meganeura_core::graph::{Graph, Value};

use super::{OnnxOp, limits, op};
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Resize", 10, resize).partly("sizes that depend on the data of an input, antialiasing of more than 64 elements"),
    op("Upsample", 7, resize).partly("scales that depend on the data of an input"),
];

/// Maximum number of terms of the weighted sum of an element.
const MAX_TERMS: usize = 64;

/// Size change of one axis.
#[derive(Clone, Debug)]
struct Axis {
    from: usize,
    to: usize,
    scale: f64,
    /// First and last coordinate of a region, as fractions of the axis, for `tf_crop_and_resize`.
    region: (f64, f64),
}

/// Resize mode of a node.
struct Mode {
    kind: String,
    coordinates: String,
    nearest: String,
    cubic_a: f64,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f64,
}

fn mode(call: &Call) -> Result<Mode, String> {
    // Before version 11 there was only one mode: scaled coordinates, rounded down.
    let old = call.opset < 11;
    let or = |name: &str, default: &'static str| call.string(name, default).map(|s| s.into_owned());
    let kind = match or("mode", "nearest")?.as_str() {
        "nearest" => "nearest",
        "linear" | "bilinear" | "trilinear" => "linear",
        "cubic" | "bicubic" => "cubic",
        other => return Err(format!("mode `{other}` is not known")),
    };
    Ok(Mode {
        kind: kind.into(),
        coordinates: if old {
            "asymmetric".into()
        } else {
            or("coordinate_transformation_mode", "half_pixel")?
        },
        nearest: if old {
            "floor".into()
        } else {
            or("nearest_mode", "round_prefer_floor")?
        },
        cubic_a: call.float("cubic_coeff_a", -0.75)?.into(),
        exclude_outside: call.int("exclude_outside", 0)? != 0,
        antialias: call.int("antialias", 0)? != 0,
        extrapolation: call.float("extrapolation_value", 0.0)?.into(),
    })
}

/// Returns all axes; axes that the node does not list are unchanged.
fn axes(call: &Call) -> Result<Vec<Axis>, String> {
    let dims = call.dims(0)?;
    let mut axes: Vec<Axis> = dims
        .iter()
        .map(|&size| Axis {
            from: size,
            to: size,
            scale: 1.0,
            region: (0.0, 1.0),
        })
        .collect();
    let named: Vec<usize> = match call.ints("axes")? {
        Some(list) => list
            .iter()
            .map(|&a| call.axis(a, dims.len()))
            .collect::<Result<_, _>>()?,
        None => (0..dims.len()).collect(),
    };
    let old = call.opset < 11;
    let scales_at = if old { 1 } else { 2 };
    let from_attribute = call
        .attributes()
        .floats("scales")?
        .map(|s| s.iter().map(|&v| v.into()).collect::<Vec<f64>>());
    let scales = match from_attribute {
        Some(scales) => Some(scales),
        None => call.known_floats(scales_at, "the scales")?.filter(|s| !s.is_empty()),
    };
    let sizes = if old {
        None
    } else {
        call.known_ints(3, "the sizes")?.filter(|s| !s.is_empty())
    };
    if !old && call.string("coordinate_transformation_mode", "")? == "tf_crop_and_resize" {
        let region = call.known_floats(1, "the region")?.ok_or("the region is missing")?;
        if region.len() != 2 * named.len() {
            return Err(format!("a region of {} numbers for {} axes", region.len(), named.len()));
        }
        for (i, &axis) in named.iter().enumerate() {
            axes[axis].region = (region[i], region[named.len() + i]);
        }
    }
    let checked = |size: f64| -> Result<usize, String> {
        if size.is_finite() && (1.0..(1u64 << 31) as f64).contains(&size) {
            Ok(size as usize)
        } else {
            Err(format!("an axis cannot have {size} elements"))
        }
    };
    match (scales, sizes) {
        (_, Some(sizes)) => {
            if sizes.len() != named.len() {
                return Err(format!("{} sizes for {} axes", sizes.len(), named.len()));
            }
            let policy = call.string("keep_aspect_ratio_policy", "stretch")?.into_owned();
            let ratios = named
                .iter()
                .zip(&sizes)
                .map(|(&axis, &size)| size as f64 / dims[axis] as f64);
            let common = match policy.as_str() {
                "stretch" => None,
                "not_larger" => ratios.reduce(f64::min),
                "not_smaller" => ratios.reduce(f64::max),
                other => return Err(format!("keep_aspect_ratio_policy = `{other}` is not known")),
            };
            for (&axis, &size) in named.iter().zip(&sizes) {
                let (to, scale) = match common {
                    None => (checked(size as f64)?, size as f64 / dims[axis] as f64),
                    Some(scale) => (checked((scale * dims[axis] as f64 + 0.5).floor())?, scale),
                };
                (axes[axis].to, axes[axis].scale) = (to, scale);
            }
        }
        (Some(scales), None) => {
            if scales.len() != named.len() {
                return Err(format!("{} scales for {} axes", scales.len(), named.len()));
            }
            for (&axis, &scale) in named.iter().zip(&scales) {
                let (first, last) = axes[axis].region;
                // The scale is the file's 32-bit number.
                let to = (dims[axis] as f64 * (last - first) * scale).floor();
                (axes[axis].to, axes[axis].scale) = (checked(to)?, scale);
            }
        }
        (None, None) => return Err("both scales and sizes are missing".into()),
    }
    Ok(axes)
}

/// Returns the source coordinate of element `i` of the result.
fn coordinate(mode: &Mode, axis: &Axis, i: usize) -> Result<f64, String> {
    let (x, from, to) = (i as f64, axis.from as f64, axis.to as f64);
    Ok(match mode.coordinates.as_str() {
        "half_pixel" => (x + 0.5) / axis.scale - 0.5,
        "half_pixel_symmetric" => {
            let adjustment = to / (axis.scale * from);
            let center = from / 2.0;
            center * (1.0 - adjustment) + (x + 0.5) / axis.scale - 0.5
        }
        "pytorch_half_pixel" if axis.to > 1 => (x + 0.5) / axis.scale - 0.5,
        "pytorch_half_pixel" => 0.0,
        "align_corners" if axis.to > 1 => x * (from - 1.0) / (axis.scale * from - 1.0).max(1e-12),
        "align_corners" => 0.0,
        "asymmetric" => x / axis.scale,
        "tf_half_pixel_for_nn" => (x + 0.5) / axis.scale,
        "tf_crop_and_resize" => {
            let (first, last) = axis.region;
            if axis.to > 1 {
                first * (from - 1.0) + x * (last - first) * (from - 1.0) / (to - 1.0)
            } else {
                0.5 * (first + last) * (from - 1.0)
            }
        }
        other => return Err(format!("coordinate_transformation_mode `{other}` is not known")),
    })
}

/// Indices and weights of the elements whose weighted sum is one element of the result; `None` for the extrapolation
/// value.
type Terms = Option<Vec<(usize, f64)>>;

fn nearest(mode: &Mode, at: f64, size: usize) -> Result<usize, String> {
    let at = match mode.nearest.as_str() {
        "round_prefer_floor" => (at - 0.5).ceil(),
        "round_prefer_ceil" => (at + 0.5).floor(),
        "floor" => at.floor(),
        "ceil" => at.ceil(),
        other => return Err(format!("nearest_mode `{other}` is not known")),
    };
    Ok(at.clamp(0.0, size as f64 - 1.0) as usize)
}

/// Returns weights by distance: a triangle for linear, Keys' function for cubic interpolation.
fn weight(mode: &Mode, distance: f64) -> f64 {
    let t = distance.abs();
    if mode.kind == "linear" {
        return (1.0 - t).max(0.0);
    }
    let a = mode.cubic_a;
    match t {
        t if t <= 1.0 => ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0,
        t if t < 2.0 => ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a,
        _ => 0.0,
    }
}

fn terms(mode: &Mode, axis: &Axis, i: usize) -> Result<Terms, String> {
    let at = coordinate(mode, axis, i)?;
    let last = axis.from as f64 - 1.0;
    if mode.coordinates == "tf_crop_and_resize" && !(0.0..=last).contains(&at) {
        return Ok(None);
    }
    if mode.kind == "nearest" {
        return Ok(Some(vec![(nearest(mode, at, axis.from)?, 1.0)]));
    }
    // Downscaling with antialiasing: the function is stretched to the area of an element of the result.
    let stretch = if mode.antialias && axis.scale < 1.0 {
        axis.scale
    } else {
        1.0
    };
    let radius = if mode.kind == "linear" { 1.0 } else { 2.0 } / stretch;
    let (first, end) = ((at - radius).floor() as i64 + 1, (at + radius).ceil() as i64);
    let (first, end) = (first - 1, end + 1);
    let mut found: Vec<(usize, f64)> = Vec::new();
    let mut total = 0.0;
    for k in first..=end {
        let value = weight(mode, (k as f64 - at) * stretch);
        if value == 0.0 {
            continue;
        }
        let inside = (0..axis.from as i64).contains(&k);
        if mode.exclude_outside && !inside {
            continue;
        }
        total += value;
        let k = k.clamp(0, axis.from as i64 - 1) as usize;
        match found.iter_mut().find(|(at, _)| *at == k) {
            Some((_, sum)) => *sum += value,
            None => found.push((k, value)),
        }
        if found.len() > MAX_TERMS {
            return Err(format!("more than {MAX_TERMS} elements make one of the result"));
        }
    }
    if total != 0.0 {
        found.iter_mut().for_each(|(_, w)| *w /= total);
    }
    Ok(Some(found))
}

/// Resizes one axis. Each output element is a weighted sum of inputs (`lists`). A single gather reads the k-th terms of
/// all sums, and a product applies their weights.
fn along(graph: &mut Graph, x: Value, axis: usize, lists: &[Terms], extrapolation: f64) -> Value {
    let dtype = graph.dtype(x);
    let rank = graph.shape(x).len();
    // The graph has already reported an operand that does not fit, and has no shape for it.
    if axis >= rank {
        return x;
    }
    let longest = lists.iter().flatten().map(Vec::len).max().unwrap_or(0);
    let mut shape = vec![1; rank];
    shape[axis] = lists.len();
    let column = |graph: &mut Graph, list: Vec<f32>| -> Value {
        let list = graph.constant(list, &shape);
        graph.cast(list, dtype).into()
    };
    let mut sum: Option<Value> = None;
    for term in 0..longest {
        let of = |terms: &Terms| terms.as_ref().and_then(|t| t.get(term)).copied().unwrap_or((0, 0.0));
        let at: Vec<u32> = lists.iter().map(|t| of(t).0 as u32).collect();
        let weights: Vec<f32> = lists.iter().map(|t| of(t).1 as f32).collect();
        let at = graph.constant_u32(at, &[lists.len()]);
        let mut part: Value = graph.gather_axis(x, at, axis as i32).into();
        if weights.iter().any(|&w| w != 1.0) {
            let weights = column(graph, weights);
            part = graph.mul(part, weights).into();
        }
        sum = Some(match sum {
            None => part,
            Some(sum) => graph.add(sum, part).into(),
        });
    }
    let mut y = sum.unwrap_or(x);
    if lists.iter().any(Option::is_none) {
        let outside: Vec<u32> = lists.iter().map(|t| u32::from(t.is_none())).collect();
        let outside = graph.constant_u32(outside, &[lists.len()]);
        let outside = graph.reshape(outside, &shape);
        let value = graph.scalar_of(dtype, extrapolation);
        y = graph.select(outside, value, y).into();
    }
    y
}

/// Builds the graph's operator for resizing images, if it computes the same result.
fn own_kernel(graph: &mut Graph, x: Value, axes: &[Axis], mode: &Mode) -> Option<Value> {
    let [n, c, h, w] = axes else { return None };
    let unchanged = |a: &Axis| a.from == a.to;
    let whole = |a: &Axis| a.to.is_multiple_of(a.from) && a.scale == (a.to / a.from) as f64;
    let exact = |a: &Axis| (a.scale * a.from as f64 - a.to as f64).abs() < 1e-9;
    if !unchanged(n) || !unchanged(c) || mode.antialias {
        return None;
    }
    let size = [h.to, w.to];
    match (mode.kind.as_str(), mode.coordinates.as_str(), mode.nearest.as_str()) {
        ("nearest", "asymmetric", "floor") if whole(h) && whole(w) => Some(graph.upsample_nearest2d(x, size).into()),
        ("nearest", "half_pixel" | "pytorch_half_pixel", "round_prefer_floor" | "round_prefer_ceil")
            if whole(h) && whole(w) =>
        {
            Some(graph.upsample_nearest2d(x, size).into())
        }
        ("linear", "half_pixel" | "pytorch_half_pixel", _) if exact(h) && exact(w) && h.to > 1 && w.to > 1 => {
            Some(graph.upsample_bilinear2d(x, size, false).into())
        }
        ("linear", "align_corners", _) if exact(h) && exact(w) && h.to > 1 && w.to > 1 => {
            Some(graph.upsample_bilinear2d(x, size, true).into())
        }
        _ => None,
    }
}

fn resize(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let mode = mode(call)?;
    let axes = axes(call)?;
    let x = call.value(0)?;
    let mut y = if element.is_float() { x } else { call.as_f32(x) };
    let graph = call.graph();
    if let Some(y) = own_kernel(graph, y, &axes, &mode) {
        let y = call.as_element(y, element);
        return call.one(y, element);
    }
    for (i, axis) in axes.iter().enumerate() {
        if axis.from == axis.to && axis.scale == 1.0 && axis.region == (0.0, 1.0) {
            continue;
        }
        if axis.from == 0 {
            return Err("an axis without elements cannot be resized".into());
        }
        limits::elements(&[axis.to], "an axis")?;
        let lists: Vec<Terms> = (0..axis.to).map(|k| terms(&mode, axis, k)).collect::<Result<_, _>>()?;
        y = along(call.graph(), y, i, &lists, mode.extrapolation);
    }
    if !element.is_float() {
        y = call.graph().round(y).into();
        y = call.as_element(y, element);
    }
    call.one(y, element)
}
