// Indices of the elements of convolutions as matrix products (implicit im2col: Chetlur et al., 2014):
//   y[n, o, oh, ow] = sum over c, kh, kw of x[n, c, ih, iw] w[o, c, kh, kw],
//   ih = oh * STRIDE_H + kh * DILATION_H - PADDING_H, and iw in the same way,
// and of the gradients of x and of w. Channels are those of a group; `batch` is the index of the group. A *tap* is an
// index of channel, kh and kw; a *position* is an index of image, row and column.
//
// The statements of these functions become part of `load_a`, `load_b` and `element_number` of a matmul kernel: there they cost
// nothing, whereas functions called by them made convolutions a seventh slower with NVIDIA's driver.
//
// Twin in the oracle: core/src/ops/conv2d.

// Channels of all groups and of one, of the input and of the output.
const IMAGES: u32 = 1u;
const INPUTS: u32 = 64u;
const OUTPUTS: u32 = 64u;
const GROUP_INPUTS: u32 = 64u;
const GROUP_OUTPUTS: u32 = 64u;
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
const INPUT: u32 = INPUT_H * INPUT_W;
const OUTPUT: u32 = OUTPUT_H * OUTPUT_W;
const KERNEL: u32 = KERNEL_H * KERNEL_W;

// The weight of an output channel and a tap of the input.
fn weight(batch: u32, channel: u32, tap: u32) -> u32 {
    return (batch * GROUP_OUTPUTS + channel) * (GROUP_INPUTS * KERNEL) + tap;
}

// The weight of an input channel and a tap of the output.
fn weight_of_input(batch: u32, channel: u32, tap: u32) -> u32 {
    return ((batch * GROUP_OUTPUTS + tap / KERNEL) * GROUP_INPUTS + channel) * KERNEL + tap % KERNEL;
}

// A channel of the output at a position.
fn output(batch: u32, channel: u32, position: u32) -> u32 {
    return (position / OUTPUT * OUTPUTS + batch * GROUP_OUTPUTS + channel) * OUTPUT + position % OUTPUT;
}

// A channel of the input at a position.
fn input(batch: u32, channel: u32, position: u32) -> u32 {
    return (position / INPUT * INPUTS + batch * GROUP_INPUTS + channel) * INPUT + position % INPUT;
}

// Image, row and column of a position of the input or output, whose planes have `plane` elements and `width` columns.
fn place(position: u32, plane: u32, width: u32) -> u32 {
    let image = position / plane;
    let row = position % plane / width;
    let column = position % width;
    return position;
}

// Image, row and column of the next position, clamped to the last image. Positions that are computed together begin at
// a multiple of four, so only the last of them can be at the end of a row whose width is a multiple of four.
fn next_place(image: u32, row: u32, column: u32, height: u32, width: u32) -> u32 {
    let wraps = width % 4u != 0u && column + 1u == width;
    let leaves = wraps && row + 1u == height;
    let next_column = select(column + 1u, 0u, wraps);
    let next_row = select(select(row, row + 1u, wraps), 0u, leaves);
    let next_image = min(select(image, image + 1u, leaves), max(IMAGES, 1u) - 1u);
    return next_image;
}

// Index of the input element that a tap reads for a position of the output; in the padding, an arbitrary valid index,
// and `inside` is false.
fn input_of_tap(batch: u32, tap: u32, image: u32, row: u32, column: u32) -> u32 {
    let kernel = tap % KERNEL;
    // Negative indices wrap around to large ones.
    let ih = row * STRIDE_H + kernel / KERNEL_W * DILATION_H - PADDING_H;
    let iw = column * STRIDE_W + kernel % KERNEL_W * DILATION_W - PADDING_W;
    let inside = ih < INPUT_H && iw < INPUT_W;
    let channel = image * INPUTS + batch * GROUP_INPUTS + tap / KERNEL;
    return (channel * INPUT_H + min(ih, max(INPUT_H, 1u) - 1u)) * INPUT_W + min(iw, max(INPUT_W, 1u) - 1u);
}

// Index of the output element that reads a position of the input through a tap; if there is none, an arbitrary valid
// index, and `inside` is false.
fn output_of_tap(batch: u32, tap: u32, image: u32, row: u32, column: u32) -> u32 {
    let kernel = tap % KERNEL;
    let distance_h = row + PADDING_H - kernel / KERNEL_W * DILATION_H;
    let distance_w = column + PADDING_W - kernel % KERNEL_W * DILATION_W;
    let oh = distance_h / STRIDE_H;
    let ow = distance_w / STRIDE_W;
    let inside = oh * STRIDE_H == distance_h && oh < OUTPUT_H && ow * STRIDE_W == distance_w && ow < OUTPUT_W;
    let channel = image * OUTPUTS + batch * GROUP_OUTPUTS + tap / KERNEL;
    return (channel * OUTPUT_H + min(oh, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow, max(OUTPUT_W, 1u) - 1u);
}
