// Elementwise programs: every thread computes one element of each result, or several elements at a distance of COUNT,
// or the two f16 elements of a word. All operands are read before the first result is written, so that loads are in
// flight together.
//
// The computation is inserted; without insertion the kernel copies.
//
// Twin in the oracle: core/src/ops/elementwise, core/src/ops/fused.rs.

const COUNT: u32 = 4096u;
const THREADS: u32 = 256u;

var<storage, read> x: array<f32>;
var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    // @replace elements
    out[i] = x[i];
    // @end
}
