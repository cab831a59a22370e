var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
// Average pooling of images [planes, H, W, CHANNELS]: one thread per element of the result adds up its window. Elements
// in the padding count as zeros.
//
// Twin in the oracle: core/src/ops/pool2d.rs.
const COUNT: u32 = 1u;
const H: u32 = 2u;
const W: u32 = 2u;
const OUT_H: u32 = 1u;
const OUT_W: u32 = 1u;
const KERNEL_H: u32 = 2u;
const KERNEL_W: u32 = 2u;
const STRIDE_H: u32 = 1u;
const STRIDE_W: u32 = 1u;
const PADDING_H: u32 = 0u;
const PADDING_W: u32 = 0u;
const CHANNELS: u32 = 1u;
const THREADS: u32 = 256u;
fn load(at: u32) -> f32 {
    return b0[at];
}
fn store(i: u32, value: f32) {
    b1[i] = value;
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
    let plane = place / (OUT_H * OUT_W);
    let y = place / OUT_W % OUT_H;
    let x_out = place % OUT_W;
    var sum = 0.0;
    for (var p = 0u; p < KERNEL_H; p += 1u) {
        for (var q = 0u; q < KERNEL_W; q += 1u) {
            // Negative indices wrap around to large ones.
            let row = y * STRIDE_H + p - PADDING_H;
            let column = x_out * STRIDE_W + q - PADDING_W;
            if (row < H && column < W) {
                sum += load(((plane * H + row) * W + column) * CHANNELS + channel);
            }
        }
    }
    store(i, sum / f32(KERNEL_H * KERNEL_W));
}
