// Combines the parts of rows that reduce.wgsl has split, and computes the program that depends on them: one thread per
// row.
//
// The reduction and its program are inserted; without insertion the kernel adds up the parts of each row.
//
// Twin in the oracle: core/src/ops/reduce.rs.

const ROWS: u32 = 64u;
const PARTS: u32 = 16u;
const THREADS: u32 = 256u;

var<storage, read> partial: array<f32>;
var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row = group_number * THREADS + local;
    if (row >= ROWS) {
        return;
    }
    // @replace start
    var sum = 0.0;
    // @end
    for (var part = 0u; part < PARTS; part += 1u) {
        // @replace join
        sum += partial[row * PARTS + part];
        // @end
    }
    // @replace store
    out[row] = sum;
    // @end
}
