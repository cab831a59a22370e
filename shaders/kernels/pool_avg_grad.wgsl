// Gradient of average pooling of images [planes, H, W, CHANNELS]: one thread per element of the image adds up the
// gradients of the windows that contain it, by iterating over the taps of a window.
//
// Twin in the oracle: core/src/ops/pool2d.rs.

const COUNT: u32 = 4096u; // number of elements of the image
const H: u32 = 64u; const W: u32 = 64u; // sizes of the image
const OUT_H: u32 = 32u; const OUT_W: u32 = 32u; // sizes of the pooled image
const KERNEL_H: u32 = 2u; const KERNEL_W: u32 = 2u;
const STRIDE_H: u32 = 2u; const STRIDE_W: u32 = 2u;
const PADDING_H: u32 = 0u; const PADDING_W: u32 = 0u;
const CHANNELS: u32 = 1u; // channels at each position; 1 if each plane is a channel
const THREADS: u32 = 256u;

var<storage, read> dy: array<f32>;
var<storage, read_write> dx: array<f32>;

fn load(at: u32) -> f32 {
    return dy[at];
}

fn store(i: u32, value: f32) {
    dx[i] = value;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let place = i / CHANNELS;
    let channel = i % CHANNELS;
    let plane = place / (H * W);
    let y = place / W % H;
    let x = place % W;
    var sum = 0.0;
    for (var p = 0u; p < KERNEL_H; p += 1u) {
        for (var q = 0u; q < KERNEL_W; q += 1u) {
            // Negative indices wrap around to large ones.
            let down = y + PADDING_H - p;
            let across = x + PADDING_W - q;
            let row = down / STRIDE_H;
            let column = across / STRIDE_W;
            if (row * STRIDE_H == down && column * STRIDE_W == across && row < OUT_H && column < OUT_W) {
                sum += load(((plane * OUT_H + row) * OUT_W + column) * CHANNELS + channel);
            }
        }
    }
    store(i, sum / f32(KERNEL_H * KERNEL_W));
}
