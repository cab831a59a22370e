var<storage, read> b0: array<vec4<f32>>;
var<storage, read_write> b1: array<vec4<f32>>;
// Maximum pooling of images [IMAGES, H, W, CHANNELS]: one thread computes four channels of a position. NaN comes before
// all numbers.
//
// Twin in the oracle: core/src/ops/pool2d.rs.
const COUNT: u32 = 60u;
const H: u32 = 9u;
const W: u32 = 6u;
const OUT_H: u32 = 5u;
const OUT_W: u32 = 3u;
const KERNEL_H: u32 = 3u;
const KERNEL_W: u32 = 3u;
const STRIDE_H: u32 = 2u;
const STRIDE_W: u32 = 2u;
const PADDING_H: u32 = 1u;
const PADDING_W: u32 = 1u;
const CHANNELS: u32 = 2u;
const THREADS: u32 = 256u;
fn load(at: u32) -> vec4<f32> {
    return b0[at];
}
fn store(i: u32, most: vec4<f32>) {
    b1[i] = vec4<f32>(most);
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
    var is_first = true;
    var most = vec4<f32>();
    for (var p = 0u; p < KERNEL_H; p += 1u) {
        for (var q = 0u; q < KERNEL_W; q += 1u) {
            // Negative indices wrap around to large ones.
            let row = y * STRIDE_H + p - PADDING_H;
            let column = x_out * STRIDE_W + q - PADDING_W;
            if (row < H && column < W) {
                let value = load(((plane * H + row) * W + column) * CHANNELS + channel);
                // No number is larger than NaN.
                let nan = vec4<bool>(is_nan(value.x), is_nan(value.y), is_nan(value.z), is_nan(value.w));
                most = select(most, value, vec4<bool>(is_first) | nan | (value > most));
                is_first = false;
            }
        }
    }
    store(i, most);
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
