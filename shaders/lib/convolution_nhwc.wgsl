// Indices of the elements of convolutions with channels last, as matrix products (implicit im2col: Chetlur et al.,
// 2014):
//   y[n, oh, ow, o] = sum over kh, kw, c of x[n, ih, iw, c] w[kh, kw, c, o],
//   ih = oh * STRIDE_H + kh * DILATION_H - PADDING_H, and iw in the same way,
// and of the gradients of x and of w. A *tap* is an index of kh, kw and a channel; a *position* is an index of image,
// row and column. Adjacent channels are adjacent in memory; the functions return the index of the first of several
// channels.
//
// The statements of these functions become part of `load_a` and `load_b` of a matmul kernel.
//
// Twin in the oracle: core/src/ops/conv2d.

const IMAGES: u32 = 1u;
const INPUTS: u32 = 64u; // number of channels
const OUTPUTS: u32 = 64u;
const INPUT_H: u32 = 56u;
const INPUT_W: u32 = 56u;
const OUTPUT_H: u32 = 56u;
const OUTPUT_W: u32 = 56u;
const KERNEL_H: u32 = 3u;
const KERNEL_W: u32 = 3u;
const STRIDE_H: u32 = 1u;
const STRIDE_W: u32 = 1u;
const DILATION_H: u32 = 1u;
const DILATION_W: u32 = 1u;
const PADDING_H: u32 = 1u;
const PADDING_W: u32 = 1u;

// The weight of an output channel and a tap of the input.
fn weight(channel: u32, tap: u32) -> u32 {
    return tap * OUTPUTS + channel;
}

// The weight of an input channel and a tap of the output.
fn weight_of_input(channel: u32, tap: u32) -> u32 {
    return (tap / OUTPUTS * INPUTS + channel) * OUTPUTS + tap % OUTPUTS;
}

// A channel of the output at a position.
fn output(channel: u32, position: u32) -> u32 {
    return position * OUTPUTS + channel;
}

// Index of the input element that a tap reads for a position of the output; in the padding, an arbitrary valid index,
// and `inside` is false.
fn input_of_tap(tap: u32, position: u32) -> u32 {
    let kernel = tap / INPUTS;
    let image = position / (OUTPUT_H * OUTPUT_W);
    let row = position / OUTPUT_W % OUTPUT_H;
    let column = position % OUTPUT_W;
    // Negative indices wrap around to large ones.
    let ih = row * STRIDE_H + kernel / KERNEL_W * DILATION_H - PADDING_H;
    let iw = column * STRIDE_W + kernel % KERNEL_W * DILATION_W - PADDING_W;
    let inside = ih < INPUT_H && iw < INPUT_W;
    let place = (image * INPUT_H + min(ih, max(INPUT_H, 1u) - 1u)) * INPUT_W + min(iw, max(INPUT_W, 1u) - 1u);
    return place * INPUTS + tap % INPUTS;
}

// Index of the output element that reads a position of the input through a tap; if there is none, an arbitrary valid
// index, and `inside` is false.
fn output_of_tap(tap: u32, position: u32) -> u32 {
    let kernel = tap / OUTPUTS;
    let image = position / (INPUT_H * INPUT_W);
    let row = position / INPUT_W % INPUT_H;
    let column = position % INPUT_W;
    let distance_h = row + PADDING_H - kernel / KERNEL_W * DILATION_H;
    let distance_w = column + PADDING_W - kernel % KERNEL_W * DILATION_W;
    let oh = distance_h / STRIDE_H;
    let ow = distance_w / STRIDE_W;
    let inside = oh * STRIDE_H == distance_h && oh < OUTPUT_H && ow * STRIDE_W == distance_w && ow < OUTPUT_W;
    let place = (image * OUTPUT_H + min(oh, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow, max(OUTPUT_W, 1u) - 1u);
    return place * OUTPUTS + tap % OUTPUTS;
}
