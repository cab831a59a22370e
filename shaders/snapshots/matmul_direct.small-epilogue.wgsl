var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
var<storage, read> b2: array<f32>;
var<storage, read> b3: array<f32>;
const M: u32 = 5u;
const N: u32 = 3u;
const K: u32 = 7u;
const COUNT: u32 = 15u;
const THREADS: u32 = 256u;
fn load_a(batch: u32, line: u32, k: u32) -> f32 {
    let v5 = b2[line * 7u + k];
    return v5;
}
fn load_b(batch: u32, line: u32, k: u32) -> f32 {
    let v6 = b3[k * 3u + line];
    return v6;
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
fn finish(part: u32, i: u32, product: f32) {
    let v1 = (i % 3u);
    let v2 = b0[v1];
    let v3 = product + v2;
    let v4 = relu_f32(v3);
    b1[i] = v4;
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
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
fn relu_f32(x: f32) -> f32 {
    let positive = select(x, 0.0, x < 0.0);
    return select(positive, x, is_nan(x));
}
