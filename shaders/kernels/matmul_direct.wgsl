// Small matrix product: a thread for each element of the result, without shared memory.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/conv2d.

const BATCH: u32 = 1u;
const M: u32 = 16u;
const N: u32 = 16u;
const K: u32 = 16u;
const COUNT: u32 = BATCH * M * N;
const THREADS: u32 = 256u;

var<storage, read> a: array<f32>;
var<storage, read> b: array<f32>;
var<storage, read_write> out: array<f32>;

fn load_a(batch: u32, line: u32, k: u32) -> f32 {
    return a[(batch * M + line) * K + k];
}

fn load_b(batch: u32, line: u32, k: u32) -> f32 {
    return b[(batch * K + k) * N + line];
}

// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}

fn finish(part: u32, i: u32, product: f32) {
    out[i] = product;
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
