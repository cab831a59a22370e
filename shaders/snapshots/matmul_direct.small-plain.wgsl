var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
const M: u32 = 5u;
const N: u32 = 3u;
const K: u32 = 7u;
const COUNT: u32 = 15u;
const THREADS: u32 = 256u;
fn load_a(batch: u32, line: u32, k: u32) -> f32 {
    let v1 = b1[line * 7u + k];
    return v1;
}
fn load_b(batch: u32, line: u32, k: u32) -> f32 {
    let v2 = b2[k * 3u + line];
    return v2;
}
// Index of an element of the result.
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
