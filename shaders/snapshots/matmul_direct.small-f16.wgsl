var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<u32>;
const M: u32 = 5u;
const N: u32 = 3u;
const K: u32 = 7u;
const COUNT: u32 = 15u;
const THREADS: u32 = 256u;
fn load_a(batch: u32, line: u32, k: u32) -> f32 {
    let v1 = f16_to_f32((b1[(line * 7u + k) >> 1u] >> (((line * 7u + k) & 1u) * 16u)) & 0xffffu);
    return v1;
}
fn load_b(batch: u32, line: u32, k: u32) -> f32 {
    let v2 = f16_to_f32((b2[(k * 3u + line) >> 1u] >> (((k * 3u + line) & 1u) * 16u)) & 0xffffu);
    return v2;
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let batch = i / (M * N);
    let row = i / N % M;
    let column = i % N;
    var sum = 0.0;
    for (var k = 0u; k < K; k += 1u) {
        sum = fma(load_a(batch, row, k), load_b(batch, column, k), sum);
    }
    finish(0u, element_number(batch, row, column), sum);
}
// Scalar functions. WGSL leaves NaN, infinities and the accuracy of most built-in functions to the driver; these
// say what happens. A kernel gets the functions that it uses, and those that they use.
// Not a constant, so that no compiler evaluates what comes out of these bits.
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}
// Half precision in 16 bits, without the device's own conversions: these may flush small numbers.
fn f16_to_f32(half: u32) -> f32 {
    // Without branches, behind which loads would wait for each other.
    let magnitude = half & 0x7fffu;
    let tiny = bitcast<u32>(f32(magnitude) * 5.9604644775390625e-8);
    let finite = select((magnitude << 13u) + 0x38000000u, tiny, magnitude < 0x400u);
    let word = select(finite, (magnitude << 13u) | 0x7f800000u, magnitude >= 0x7c00u);
    return from_bits(word | ((half & 0x8000u) << 16u));
}
