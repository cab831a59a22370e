//! Convolutions of images in channels-last layout.
//!
//! With a kernel of one element and stride 1, the convolution is a matmul with one row per pixel.
//! All others use the operators for this layout. Kernels read four neighbouring channels together,
//! so numbers of channels that are not multiples of four, such as those of the first convolution of
//! a network, are padded with zeros.

use super::super::channels_last::{ChannelsLastCx, ChannelsLastResults};
use super::{
    CONV2D_NHWC, CONV2D_NHWC_INPUT_GRAD, CONV2D_NHWC_WEIGHT_GRAD, Call, Conv2dDims, Conv2dOptions, ImageLayout,
};
use crate::graph::Value;
use crate::ops::OpRef;

/// Number of neighbouring channels that kernels read together.
const VECTOR: usize = 4;

/// Returns sizes and options of a call; `None` if it has no channels-last form.
fn dims_of(
    cx: &ChannelsLastCx,
    dims: fn(ImageLayout, &Call) -> Result<Conv2dDims, String>,
) -> Result<Option<(Conv2dDims, Conv2dOptions)>, String> {
    let call = Call {
        attrs: cx.attrs(),
        inputs: cx.inputs(),
        outputs: &[],
    };
    let dims = dims(ImageLayout::Nchw, &call)?;
    let has_form = dims.groups == 1 || is_depthwise(&dims);
    Ok(has_form.then_some((dims, Conv2dOptions::of(cx.attrs())?)))
}

/// Returns `true` for a depthwise convolution.
fn is_depthwise(dims: &Conv2dDims) -> bool {
    dims.groups > 1 && dims.groups == dims.c && dims.c == dims.o
}

/// Returns `true` if each output pixel depends only on the input pixel at the same position.
fn is_pointwise(dims: &Conv2dDims) -> bool {
    dims.groups == 1 && dims.kernel == [1, 1] && dims.padding == [0, 0] && dims.input == dims.output
}

/// Pads an axis of channels with zeros up to a multiple of [`VECTOR`].
fn padded(cx: &mut ChannelsLastCx, x: Value, axis: usize) -> Value {
    let channels = cx.shape(x)[axis];
    let mut missing = [0; 4];
    missing[axis] = channels.next_multiple_of(VECTOR) - channels;
    match missing[axis] {
        0 => x,
        _ => cx.pad(x, &[0; 4], &missing, 0.0).into(),
    }
}

pub(super) fn output(cx: &mut ChannelsLastCx) -> ChannelsLastResults {
    let Some((dims, options)) = dims_of(cx, ImageLayout::conv2d)? else {
        return Ok(None);
    };
    let (x, w) = (cx.nhwc(0), cx.hwio(1));
    let y = if is_pointwise(&dims) {
        let (x, w) = (cx.rows(x), cx.rows(w));
        let y = cx.matmul(x, w);
        let [h, w] = dims.output;
        cx.reshape(y, &[dims.n, h, w, dims.o])
    } else {
        let (x, w) = match dims.groups {
            1 => (padded(cx, x, 3), padded(cx, w, 2)),
            _ => (x, w),
        };
        cx.call(OpRef::new(&CONV2D_NHWC), options.attrs(), vec![x, w])
    };
    Ok(Some(vec![(y.into(), ImageLayout::Nhwc)]))
}

pub(super) fn input_grad(cx: &mut ChannelsLastCx) -> ChannelsLastResults {
    let Some((dims, options)) = dims_of(cx, ImageLayout::conv2d_input_grad)? else {
        return Ok(None);
    };
    let (dy, w) = (cx.nhwc(0), cx.hwio(1));
    let [h, width] = dims.input;
    let dx: Value = if is_pointwise(&dims) {
        let (dy, w) = (cx.rows(dy), cx.rows(w));
        let dx = cx.matmul_bt(dy, w);
        cx.reshape(dx, &[dims.n, h, width, dims.c]).into()
    } else {
        let attrs = options.attrs().with("input_size", dims.input);
        cx.call(OpRef::new(&CONV2D_NHWC_INPUT_GRAD), attrs, vec![dy, w]).into()
    };
    Ok(Some(vec![(dx, ImageLayout::Nhwc)]))
}

pub(super) fn weight_grad(cx: &mut ChannelsLastCx) -> ChannelsLastResults {
    let Some((dims, options)) = dims_of(cx, ImageLayout::conv2d_weight_grad)? else {
        return Ok(None);
    };
    let (x, dy) = (cx.nhwc(0), cx.nhwc(1));
    // Optimizers update weights in their original layout.
    let dw = if is_pointwise(&dims) {
        let (x, dy) = (cx.rows(x), cx.rows(dy));
        let dw = cx.matmul_at(x, dy);
        let dw = cx.reshape(dw, &[1, 1, dims.c, dims.o]);
        cx.to_oihw(dw)
    } else {
        let x = if dims.groups == 1 { padded(cx, x, 3) } else { x };
        let attrs = options.attrs().with("kernel_size", dims.kernel);
        let dw = cx.call(OpRef::new(&CONV2D_NHWC_WEIGHT_GRAD), attrs, vec![x, dy]);
        let dw = cx.narrow(dw, 2, 0, dims.c / dims.groups);
        cx.to_oihw(dw)
    };
    Ok(Some(vec![(dw, ImageLayout::Nchw)]))
}
