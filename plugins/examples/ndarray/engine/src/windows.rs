//! Convolutions and pooling, as loops over window positions.

use ndarray::{Array4, ArrayView4, Ix4};

use crate::kernels::Cx;
use crate::tensor::{Data, elements};

pub fn is_window(kernel: &str) -> bool {
    kernel.starts_with("core.conv2d") || kernel.ends_with("_pool2d") || kernel == "core.avg_pool2d_grad"
}

pub fn run(cx: &Cx) -> Result<Vec<Data>, String> {
    match cx.dispatch.kernel.as_str() {
        "core.max_pool2d" => max_pool(cx),
        "core.avg_pool2d" | "core.avg_pool2d_grad" => avg_pool(cx),
        _ => conv(cx),
    }
}

fn pair(cx: &Cx, name: &str) -> Result<[usize; 2], String> {
    let list = cx.ints(name)?;
    match list[..] {
        [a, b] => Ok([a as usize, b as usize]),
        _ => Err(format!("{name} has not two numbers")),
    }
}

fn array<'a>(cx: &Cx<'a>, i: usize) -> Result<ArrayView4<'a, f32>, String> {
    cx.array(i)?.into_dimensionality::<Ix4>().map_err(|e| e.to_string())
}

/// Size of an image, and the size, parameters and number of its windows.
struct Windows {
    image: [usize; 2],
    count: [usize; 2],
    taps: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

impl Windows {
    /// Calls `visit` for each pair of a window and a tap (an element of the window) that is inside the image: with the
    /// indices of the window, of the tap, and of the element of the image.
    fn each(&self, mut visit: impl FnMut([usize; 2], [usize; 2], [usize; 2])) {
        for window in ndarray::indices(self.count) {
            for tap in ndarray::indices(self.taps) {
                let (window, tap) = ([window.0, window.1], [tap.0, tap.1]);
                let along = |a: usize| {
                    let at = window[a]
                        .checked_mul(self.stride[a])?
                        .checked_add(tap[a] * self.dilation[a])?;
                    at.checked_sub(self.padding[a]).filter(|&at| at < self.image[a])
                };
                if let (Some(y), Some(x)) = (along(0), along(1)) {
                    visit(window, tap, [y, x]);
                }
            }
        }
    }
}

fn sizes(dims: &[usize]) -> Result<[usize; 2], String> {
    match dims {
        [_, _, h, w] => Ok([*h, *w]),
        _ => Err("it takes images of four axes".into()),
    }
}

/// Computes convolutions and their derivatives. All multiply the same pairs of elements, and differ in the tensor that
/// they write.
fn conv(cx: &Cx) -> Result<Vec<Data>, String> {
    let (a, b, out) = (array(cx, 0)?, array(cx, 1)?, &cx.dispatch.outputs[0].dims);
    let kind = cx.dispatch.kernel.as_str();
    let (x, w, y) = match kind {
        "core.conv2d" => (a.shape(), b.shape(), &out[..]),
        "core.conv2d_input_grad" => (&out[..], b.shape(), a.shape()),
        _ => (a.shape(), &out[..], b.shape()),
    };
    let groups = cx.int("groups")?.max(1) as usize;
    let windows = Windows {
        image: sizes(x)?,
        count: sizes(y)?,
        taps: sizes(w)?,
        stride: pair(cx, "stride")?,
        padding: pair(cx, "padding")?,
        dilation: pair(cx, "dilation")?,
    };
    let (batch, channels, filters) = (x[0], w[1], w[0]);
    let shape: [usize; 4] = out[..].try_into().map_err(|_| "it gives images of four axes")?;
    let mut sums = Array4::<f64>::zeros(shape);
    windows.each(|[i, j], [p, q], [r, s]| {
        for n in 0..batch {
            for o in 0..filters {
                for c in 0..channels {
                    let channel = o / (filters / groups) * channels + c;
                    match kind {
                        "core.conv2d" => {
                            sums[[n, o, i, j]] += f64::from(a[[n, channel, r, s]]) * f64::from(b[[o, c, p, q]])
                        }
                        "core.conv2d_input_grad" => {
                            sums[[n, channel, r, s]] += f64::from(a[[n, o, i, j]]) * f64::from(b[[o, c, p, q]]);
                        }
                        _ => sums[[o, c, p, q]] += f64::from(a[[n, channel, r, s]]) * f64::from(b[[n, o, i, j]]),
                    }
                }
            }
        }
    });
    Ok(vec![Data::F32(elements(sums.mapv(|v| v as f32).into_dyn()))])
}

fn pooling(cx: &Cx, image: &[usize], windows: &[usize]) -> Result<Windows, String> {
    Ok(Windows {
        image: sizes(image)?,
        count: sizes(windows)?,
        taps: pair(cx, "kernel")?,
        stride: pair(cx, "stride")?,
        padding: pair(cx, "padding")?,
        dilation: [1, 1],
    })
}

fn max_pool(cx: &Cx) -> Result<Vec<Data>, String> {
    let (x, out) = (array(cx, 0)?, &cx.dispatch.outputs[0].dims);
    let windows = pooling(cx, x.shape(), out)?;
    let (mut values, mut places) = (Vec::new(), Vec::new());
    let count = windows.count[0] * windows.count[1];
    for n in 0..x.shape()[0] {
        for c in 0..x.shape()[1] {
            let mut best: Vec<Option<(f32, u32)>> = vec![None; count];
            windows.each(|[i, j], _, [r, s]| {
                let (v, best) = (x[[n, c, r, s]], &mut best[i * windows.count[1] + j]);
                if best.is_none_or(|(b, _)| v > b || (v.is_nan() && !b.is_nan())) {
                    let plane = n * x.shape()[1] + c;
                    *best = Some((v, ((plane * windows.image[0] + r) * windows.image[1] + s) as u32));
                }
            });
            values.extend(best.iter().map(|b| b.map_or(0.0, |(v, _)| v)));
            places.extend(best.iter().map(|b| b.map_or(0, |(_, i)| i)));
        }
    }
    Ok(vec![Data::F32(values), Data::U32(places)])
}

fn avg_pool(cx: &Cx) -> Result<Vec<Data>, String> {
    let (x, out) = (array(cx, 0)?, &cx.dispatch.outputs[0].dims);
    let is_grad = cx.dispatch.kernel == "core.avg_pool2d_grad";
    let windows = match is_grad {
        true => pooling(cx, out, x.shape())?,
        false => pooling(cx, x.shape(), out)?,
    };
    let size = (windows.taps[0] * windows.taps[1]) as f64;
    let shape: [usize; 4] = out[..].try_into().map_err(|_| "it gives images of four axes")?;
    let mut sums = Array4::<f64>::zeros(shape);
    windows.each(|[i, j], _, [r, s]| {
        for n in 0..shape[0] {
            for c in 0..shape[1] {
                let (to, from) = if is_grad { ([r, s], [i, j]) } else { ([i, j], [r, s]) };
                sums[[n, c, to[0], to[1]]] += f64::from(x[[n, c, from[0], from[1]]]);
            }
        }
    });
    Ok(vec![Data::F32(elements(sums.mapv(|v| (v / size) as f32).into_dyn()))])
}
