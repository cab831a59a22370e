var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
// Combines the parts of rows that reduce.wgsl has split, and computes the program that depends on them: one thread per
// row.
//
// The reduction and its program are inserted; without insertion the kernel adds up the parts of each row.
//
// Twin in the oracle: core/src/ops/reduce.rs.
const ROWS: u32 = 1u;
const PARTS: u32 = 256u;
const THREADS: u32 = 256u;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row = group_number * THREADS + local;
    if (row >= ROWS) {
        return;
    }
    var v1 = (0e0f);
    for (var part = 0u; part < PARTS; part += 1u) {
        v1 = v1 + b0[row * PARTS + part];
    }
    b1[row] = v1;
}
