// Gradients of attention, last launch if heads share keys: one thread per element of the gradients of keys and values
// adds up the contributions of the GROUP heads that share it. These are adjacent in memory and are added in order.
//
// Twin in the oracle: core/src/ops/attention/grad.rs.

const COUNT: u32 = 24576u; // number of elements of a gradient
const HEAD_DIM: u32 = 64u;
const GROUP: u32 = 3u;
const THREADS: u32 = 256u;

var<storage, read> given_dk: array<f32>;
var<storage, read> given_dv: array<f32>;
var<storage, read_write> dk: array<f32>;
var<storage, read_write> dv: array<f32>;

fn store_dk(i: u32, value: f32) {
    dk[i] = value;
}

fn store_dv(i: u32, value: f32) {
    dv[i] = value;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let start = i / HEAD_DIM * (GROUP * HEAD_DIM) + i % HEAD_DIM;
    var sum_dk = 0.0;
    for (var head = 0u; head < GROUP; head += 1u) {
        sum_dk += given_dk[start + head * HEAD_DIM];
    }
    store_dk(i, sum_dk);
    var sum_dv = 0.0;
    for (var head = 0u; head < GROUP; head += 1u) {
        sum_dv += given_dv[start + head * HEAD_DIM];
    }
    store_dv(i, sum_dv);
}
