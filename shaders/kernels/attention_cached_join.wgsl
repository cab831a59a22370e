// Attention of few queries over a cache, second of two launches. One thread per vector of the result combines the
// partial results of the workgroups that share the keys of its query. The weights are relative to the overall maximum
// score.
//
// Source: "Flash-Decoding", Dao, Haziza, Massa and Sizov, 2023. Twin in the oracle: core/src/ops/attention/cached.rs.

const COUNT: u32 = 144u; // number of vectors of the result
// Number of queries of all heads and sequences; number of queries and of heads of a sequence.
const QUERIES: u32 = 9u;
const ROWS_Q: u32 = 1u;
const HEADS: u32 = 9u;
const HEAD_DIM: u32 = 64u;
// True if each head has a sink: a further score, which has no value.
const SINKS: bool = false;
// Number of workgroups that share the keys of a query.
const WORKGROUPS: u32 = 2u;
const VECTORS: u32 = HEAD_DIM / 4u;
const THREADS: u32 = 256u;

// Partial results of workgroups: sums of values; maximum score and sum of exponentials.
var<storage, read> found_sums: array<vec4<f32>>;
var<storage, read> found_numbers: array<f32>;
var<storage, read> sinks: array<f32>;
var<storage, read_write> out: array<vec4<f32>>;

// The sink of a head.
fn load_sink(head: u32) -> f32 {
    return sinks[head];
}

fn store(start: u32, vector: u32, value: vec4<f32>) {
    out[start / 4u + vector] = value;
}

// lib/math.wgsl
fn exp_f32(x: f32) -> f32 {
    return exp(x);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let own_query = i / VECTORS;
    let vector = i % VECTORS;
    let head = own_query % HEADS;
    let row = own_query / HEADS % ROWS_Q;
    let sequence = own_query / (HEADS * ROWS_Q);
    let own = ((sequence * ROWS_Q + row) * HEADS + head) * HEAD_DIM;
    var most = found_numbers[own_query * 2u];
    for (var w = 0u; w < WORKGROUPS; w += 1u) {
        let found = w * QUERIES + own_query;
        most = max(most, found_numbers[found * 2u]);
    }
    var total = 0.0;
    var sum = vec4<f32>();
    for (var w = 0u; w < WORKGROUPS; w += 1u) {
        let found = w * QUERIES + own_query;
        let weight = exp_f32(found_numbers[found * 2u] - most);
        total += weight * found_numbers[found * 2u + 1u];
        sum += weight * found_sums[found * VECTORS + vector];
    }
    // @if SINKS
    total += exp_f32(load_sink(head) - most);
    // @end
    store(own, vector, sum / total);
}
