var<storage, read_write> b0: array<vec4<f32>>;
var<storage, read> found_sums: array<vec4<f32>>;
var<storage, read> found_numbers: array<f32>;
// Attention of few queries over a cache, second of two launches. One thread per vector of the result combines the
// partial results of the workgroups that share the keys of its query. The weights are relative to the overall maximum
// score.
//
// Source: "Flash-Decoding", Dao, Haziza, Massa and Sizov, 2023. Twin in the oracle: core/src/ops/attention/cached.rs.
const COUNT: u32 = 64u;
// Number of queries of all heads and sequences; number of queries and of heads of a sequence.
const QUERIES: u32 = 4u;
const ROWS_Q: u32 = 1u;
const HEADS: u32 = 4u;
const HEAD_DIM: u32 = 64u;
// Number of workgroups that share the keys of a query.
const WORKGROUPS: u32 = 32u;
const VECTORS: u32 = 16u;
const THREADS: u32 = 256u;
fn store(start: u32, vector: u32, value: vec4<f32>) {
    if (vector < 16u) {
        b0[start / 4u + vector] = vec4<f32>(value);
    }
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
    store(own, vector, sum / total);
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
// 2^n for whole n from -126 to 127.
fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}
// x 2^n, through two factors, so that n may be beyond the range of one.
fn scale_by_power(x: f32, n: i32) -> f32 {
    let half = n / 2;
    return x * power_of_two(half) * power_of_two(n - half);
}
// e^r for |r| <= ln(2) / 2: the Taylor series.
fn exp_core(r: f32) -> f32 {
    var p = 1.0 / 5040.0;
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    return fma(p, r, 1.0);
}
fn exp_f32(x: f32) -> f32 {
    // Beyond this the result is 0 or infinite; NaN passes both comparisons.
    let limited = select(select(x, 90.0, x > 90.0), -105.0, x < -105.0);
    let n = round(limited * 1.44269504);
    // ln(2) in two parts, the first with trailing zeros.
    let r = fma(n, -1.42860682e-6, fma(n, -0.693145752, limited));
    let whole = i32(select(n, 0.0, is_nan(x)));
    return select(scale_by_power(exp_core(r), whole), x, is_nan(x));
}
