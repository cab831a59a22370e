//! Convolutions of images that are stored channels last.
//!
//! Where a kernel has one element and does not skip any, the convolution is a product of matrices with a row for each place.
//! Others are the operators for this layout. Kernels read four neighbouring channels together, so numbers of channels that are
//! not multiples of four, as of the first convolution of a network, are rounded up with zeros.

use super::super::channels_last::{ChannelsLastCx, ChannelsLastResults};
use super::{
    CONV2D_NHWC, CONV2D_NHWC_INPUT_GRAD, CONV2D_NHWC_WEIGHT_GRAD, Call, Conv2dDims, Conv2dOptions, ImageLayout,
};
use crate::graph::Value;
use crate::ops::OpRef;

/// Channels that kernels read together.
const VECTOR: usize = 4;

/// Sizes and options of a call, where it has a form for images with channels last.
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

/// Whether each channel has a kernel of its own.
fn is_depthwise(dims: &Conv2dDims) -> bool {
    dims.groups > 1 && dims.groups == dims.c && dims.c == dims.o
}

/// Whether each place of the result is a product of the channels of the same place.
fn is_pointwise(dims: &Conv2dDims) -> bool {
    dims.groups == 1 && dims.kernel == [1, 1] && dims.padding == [0, 0] && dims.input == dims.output
}

/// Zeros behind the channels along an axis, up to a multiple of [`VECTOR`].
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
    let y = match is_pointwise(&dims) {
        true => {
            let (x, w) = (cx.rows(x), cx.rows(w));
            let y = cx.matmul(x, w);
            let [h, w] = dims.output;
            cx.reshape(y, &[dims.n, h, w, dims.o])
        }
        false => {
            let (x, w) = match dims.groups {
                1 => (padded(cx, x, 3), padded(cx, w, 2)),
                _ => (x, w),
            };
            cx.call(OpRef::new(&CONV2D_NHWC), options.attrs(), vec![x, w])
        }
    };
    Ok(Some(vec![(y.into(), ImageLayout::Nhwc)]))
}

pub(super) fn input_grad(cx: &mut ChannelsLastCx) -> ChannelsLastResults {
    let Some((dims, options)) = dims_of(cx, ImageLayout::conv2d_input_grad)? else {
        return Ok(None);
    };
    let (dy, w) = (cx.nhwc(0), cx.hwio(1));
    let [h, width] = dims.input;
    let dx: Value = match is_pointwise(&dims) {
        true => {
            let (dy, w) = (cx.rows(dy), cx.rows(w));
            let dx = cx.matmul_bt(dy, w);
            cx.reshape(dx, &[dims.n, h, width, dims.c]).into()
        }
        false => {
            let attrs = options.attrs().with("input_size", dims.input);
            cx.call(OpRef::new(&CONV2D_NHWC_INPUT_GRAD), attrs, vec![dy, w]).into()
        }
    };
    Ok(Some(vec![(dx, ImageLayout::Nhwc)]))
}

pub(super) fn weight_grad(cx: &mut ChannelsLastCx) -> ChannelsLastResults {
    let Some((dims, options)) = dims_of(cx, ImageLayout::conv2d_weight_grad)? else {
        return Ok(None);
    };
    let (x, dy) = (cx.nhwc(0), cx.nhwc(1));
    // Optimizers update weights as they are.
    let dw = match is_pointwise(&dims) {
        true => {
            let (x, dy) = (cx.rows(x), cx.rows(dy));
            let dw = cx.matmul_at(x, dy);
            let dw = cx.reshape(dw, &[1, 1, dims.c, dims.o]);
            cx.to_oihw(dw)
        }
        false => {
            let x = if dims.groups == 1 { padded(cx, x, 3) } else { x };
            let attrs = options.attrs().with("kernel_size", dims.kernel);
            let dw = cx.call(OpRef::new(&CONV2D_NHWC_WEIGHT_GRAD), attrs, vec![x, dy]);
            let dw = cx.narrow(dw, 2, 0, dims.c / dims.groups);
            cx.to_oihw(dw)
        }
    };
    Ok(Some(vec![(dw, ImageLayout::Nchw)]))
}
