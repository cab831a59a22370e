var<storage, read_write> b0: array<f32>;
var<storage, read> partial: array<f32>;
// Adds up the parts of sums that are split along K (split-K), in order, and computes the epilogue: one thread per sum.
// With TAIL only the blocks after the last whole wave of a product are split, so sums are numbered within these blocks.
//
// Twin in the oracle: core/src/ops/matmul.rs.
const COUNT: u32 = 192u;
const SPLIT_K: u32 = 8u;
const THREADS: u32 = 256u;
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
    var sum = 0.0;
    for (var part = 0u; part < SPLIT_K; part += 1u) {
        sum += partial[part * COUNT + i];
    }
    finish(0u, i, sum);
}
