// Average pooling of images [planes, H, W, CHANNELS]: one thread per element of the result adds up its window. Elements
// in the padding count as zeros.
//
// Twin in the oracle: core/src/ops/pool2d.rs.

const COUNT: u32 = 1024u; // number of elements of the result
const H: u32 = 64u; const W: u32 = 64u; // sizes of the input
const OUT_H: u32 = 32u; const OUT_W: u32 = 32u;
const KERNEL_H: u32 = 2u; const KERNEL_W: u32 = 2u;
const STRIDE_H: u32 = 2u; const STRIDE_W: u32 = 2u;
const PADDING_H: u32 = 0u; const PADDING_W: u32 = 0u;
const CHANNELS: u32 = 1u; // channels at each position; 1 if each plane is a channel
const THREADS: u32 = 256u;

var<storage, read> x: array<f32>;
var<storage, read_write> out: array<f32>;

fn load(at: u32) -> f32 {
    return x[at];
}

fn store(i: u32, value: f32) {
    out[i] = value;
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
