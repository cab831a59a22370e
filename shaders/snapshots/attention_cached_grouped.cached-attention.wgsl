var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read_write> found_sums: array<vec4<f32>>;
var<storage, read_write> found_numbers: array<f32>;
// Attention of few queries over a long cache. A workgroup has TOGETHER query heads that share a key-value head, so that it
// reads each key and value once for all of them. It iterates over the keys in tiles, with the running maximum score and
// sum of exponentials (Milakov and Gimelshein, 2018). If WORKGROUPS share the keys, each has a range of whole tiles and
// stores its partial results, which attention_cached_join.wgsl combines ("Flash-Decoding": Dao, Haziza, Massa and Sizov,
// 2023).
//
// LANES threads belong to a query, and a tile has LANES keys. First, KEY_THREADS adjacent threads share a key. Each reads
// every KEY_THREADS-th vector, and stores its part of the scores of all queries in shared memory. Then each thread of a
// query has one key: it adds up the parts, and computes the weight with the maximum of all keys. Finally, each thread has a vector of
// the head and accumulates the values of every VALUE_GROUPS-th key for all queries. The first values of a tile are
// prefetched. Keys past the last one are read but not used.
//
// Twin in the oracle: core/src/ops/attention/cached.rs.
// Queries of all heads and sequences; rows and heads of a sequence, of queries and of keys.
const QUERIES: u32 = 4u;
const ROWS_Q: u32 = 1u;
const ROWS_K: u32 = 4096u;
const HEADS: u32 = 4u;
const HEAD_DIM: u32 = 64u;
// Query heads of a workgroup, a divisor of the query heads of a key-value head, and workgroups that share the keys.
const TOGETHER: u32 = 2u;
const WORKGROUPS: u32 = 32u;
// Threads that accumulate the vectors of a value: the vectors of a head, rounded up to a power of two.
const VECTOR_THREADS: u32 = 16u;
const UNITS: u32 = 2u;
const GROUP: u32 = 2u;
const VECTORS: u32 = 16u;
const ROW_VECTORS: u32 = 32u;
// Exclusive upper bound of the number of cached keys before the queries.
const POSITIONS: u32 = 4096u;
const THREADS: u32 = 256u;
// Threads of a query, keys of a tile, and the number of threads of a query that reduce the values of all of them.
const LANES: u32 = 128u;
const KEYS: u32 = 128u;
const FINAL_LANES: u32 = 8u;
const FINAL_VALUES: u32 = 16u;
// Threads that share a key, vectors of a key that a thread reads, distance of a thread's keys, and keys it reads at a time.
const KEY_THREADS: u32 = 8u;
const KEY_STEP: u32 = 32u;
const KEYS_UNROLL: u32 = 4u;
// Threads that have the same vector of values, and values of a thread that are prefetched.
const VALUE_GROUPS: u32 = 16u;
const VALUES_UNROLL: u32 = 8u;
const MIN_F32: f32 = -3.4028234e38;
var<workgroup> queries: array<vec4<f32>, TOGETHER * VECTORS>;
var<workgroup> partial: array<f32, KEY_THREADS * THREADS>;
// parts of scores; in the end, parts of sums
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> reduced: array<f32, THREADS>;
var<workgroup> few: array<f32, TOGETHER * FINAL_LANES>;
// For each query: the factor of earlier sums, and the final sum of exponentials.
var<workgroup> kept_of: array<f32, TOGETHER>;
var<workgroup> total_of: array<f32, TOGETHER>;
fn load_q(index: u32) -> vec4<f32> {
    return b1[index];
}
fn load_k(index: u32) -> vec4<f32> {
    return b2[index];
}
fn load_v(index: u32) -> vec4<f32> {
    return b3[index];
}
// The number of cached keys of a sequence.
fn load_position(sequence: u32) -> u32 {
    return b0[sequence];
}
fn scale() -> f32 {
    return (1.25e-1f);
}
fn store_numbers(query: u32, greatest: f32, total: f32) {
    found_numbers[query * 2u] = greatest;
    found_numbers[query * 2u + 1u] = total;
}
// Index of the first vector of a key or a value; rows are clamped to the last one.
fn start_of(sequence: u32, row: u32, shared_head: u32) -> u32 {
    let within = min(row, ROWS_K - 1u);
    var cached = sequence * ROWS_K + within;
    return cached * ROW_VECTORS + shared_head / 4u;
}
// Index of the vector that a thread reads of a key or a query, clamped to the last one.
fn piece_of_key(slot: u32, piece: u32) -> u32 { return min(slot + piece * KEY_THREADS, VECTORS - 1u); }
// Adds the product of a key's vector and the query's one to a sum, except past the last vector.
fn add_product(sum: f32, query: vec4<f32>, key: vec4<f32>, vector: u32) -> f32 {
    var added = sum + dot(query, key);
    return added;
}
// Adds a value with the weight of its key for a query to a sum.
fn add_value(sum: vec4<f32>, value: vec4<f32>, query: u32, key: u32, count: u32) -> vec4<f32> {
    let weight = vec4<f32>(weights[query * KEYS + min(key, KEYS - 1u)]);
    return select(sum, fma(weight, value, sum), key < count);
}
// Combines two values: their maximum or their sum.
fn joined_pair(a: f32, b: f32, greatest: bool) -> f32 { return select(a + b, max(a, b), greatest); }
// The maximum or the sum of the values of all threads of a query.
fn join_lanes(value: f32, local: u32, greatest: bool) -> f32 {
    reduced[local] = value;
    workgroupBarrier();
    let query = local / LANES;
    let lane = local % LANES;
    if (lane < FINAL_LANES) {
        var own = value;
        for (var other = 1u; other < FINAL_VALUES; other += 1u) {
            own = joined_pair(own, reduced[local + other * FINAL_LANES], greatest);
        }
        few[query * FINAL_LANES + lane] = own;
    }
    workgroupBarrier();
    var joined = few[query * FINAL_LANES];
    for (var other = 1u; other < FINAL_LANES; other += 1u) {
        joined = joined_pair(joined, few[query * FINAL_LANES + other], greatest);
    }
    return joined;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let own_query = group_number % UNITS * TOGETHER;
    let head = own_query % HEADS;
    let row = own_query / HEADS % ROWS_Q;
    let sequence = own_query / (HEADS * ROWS_Q);
    let own = ((sequence * ROWS_Q + row) * HEADS + head) * HEAD_DIM;
    let shared_head = head / GROUP * HEAD_DIM;
    let given = load_position(sequence);
    if (local == 0u) {
        let reported = checked_index(given, POSITIONS);
    }
    let seen_to = min(given, POSITIONS - 1u) + row + 1u;
    var start = 0u;
    var end = seen_to;
    let lane = local % LANES;
    let lane_query = local / LANES;
    let found = group_number / UNITS * QUERIES + own_query;
    let share = ((seen_to - start + (WORKGROUPS - 1u)) / WORKGROUPS + (KEYS - 1u)) / KEYS * KEYS;
    start += group_number / UNITS * share;
    end = min(start + share, seen_to);
    if (start >= end) {
        for (var at = local; at < TOGETHER * VECTORS; at += THREADS) {
            found_sums[found * VECTORS + at] = vec4<f32>();
        }
        if (lane == 0u) {
            store_numbers(found + lane_query, MIN_F32, 0.0);
        }
        return;
    }
    for (var at = local; at < TOGETHER * VECTORS; at += THREADS) {
        queries[at] = load_q(own / 4u + at);
    }
    workgroupBarrier();
    let slot = local % KEY_THREADS;
    let piece = min(local % VECTOR_THREADS, VECTORS - 1u);
    let part = local / VECTOR_THREADS;
    var greatest = MIN_F32;
    var total = 0.0;
    var sum_0 = vec4<f32>();
    var sum_1 = vec4<f32>();
    for (var tile = start; tile < end; tile += KEYS) {
        let value_0 = load_v(start_of(sequence, tile + part + 0u * VALUE_GROUPS, shared_head) + piece);
        let value_1 = load_v(start_of(sequence, tile + part + 1u * VALUE_GROUPS, shared_head) + piece);
        let value_2 = load_v(start_of(sequence, tile + part + 2u * VALUE_GROUPS, shared_head) + piece);
        let value_3 = load_v(start_of(sequence, tile + part + 3u * VALUE_GROUPS, shared_head) + piece);
        let value_4 = load_v(start_of(sequence, tile + part + 4u * VALUE_GROUPS, shared_head) + piece);
        let value_5 = load_v(start_of(sequence, tile + part + 5u * VALUE_GROUPS, shared_head) + piece);
        let value_6 = load_v(start_of(sequence, tile + part + 6u * VALUE_GROUPS, shared_head) + piece);
        let value_7 = load_v(start_of(sequence, tile + part + 7u * VALUE_GROUPS, shared_head) + piece);
        let count = min(end - tile, KEYS);
        for (var j = local / KEY_THREADS; j < count; j += KEYS_UNROLL * KEY_STEP) {
            let start_0 = start_of(sequence, tile + j + 0u * KEY_STEP, shared_head);
            let start_1 = start_of(sequence, tile + j + 1u * KEY_STEP, shared_head);
            let start_2 = start_of(sequence, tile + j + 2u * KEY_STEP, shared_head);
            let start_3 = start_of(sequence, tile + j + 3u * KEY_STEP, shared_head);
            let key_0_0 = load_k(start_0 + piece_of_key(slot, 0u));
            let key_0_1 = load_k(start_0 + piece_of_key(slot, 1u));
            let key_1_0 = load_k(start_1 + piece_of_key(slot, 0u));
            let key_1_1 = load_k(start_1 + piece_of_key(slot, 1u));
            let key_2_0 = load_k(start_2 + piece_of_key(slot, 0u));
            let key_2_1 = load_k(start_2 + piece_of_key(slot, 1u));
            let key_3_0 = load_k(start_3 + piece_of_key(slot, 0u));
            let key_3_1 = load_k(start_3 + piece_of_key(slot, 1u));
            var product_0_0 = 0.0;
            var product_1_0 = 0.0;
            var product_2_0 = 0.0;
            var product_3_0 = 0.0;
            let query_0_0 = queries[0u * VECTORS + piece_of_key(slot, 0u)];
            product_0_0 = add_product(product_0_0, query_0_0, key_0_0, slot + 0u * KEY_THREADS);
            product_1_0 = add_product(product_1_0, query_0_0, key_1_0, slot + 0u * KEY_THREADS);
            product_2_0 = add_product(product_2_0, query_0_0, key_2_0, slot + 0u * KEY_THREADS);
            product_3_0 = add_product(product_3_0, query_0_0, key_3_0, slot + 0u * KEY_THREADS);
            let query_1_0 = queries[0u * VECTORS + piece_of_key(slot, 1u)];
            product_0_0 = add_product(product_0_0, query_1_0, key_0_1, slot + 1u * KEY_THREADS);
            product_1_0 = add_product(product_1_0, query_1_0, key_1_1, slot + 1u * KEY_THREADS);
            product_2_0 = add_product(product_2_0, query_1_0, key_2_1, slot + 1u * KEY_THREADS);
            product_3_0 = add_product(product_3_0, query_1_0, key_3_1, slot + 1u * KEY_THREADS);
            partial[(0u * KEY_THREADS + slot) * KEYS + j + 0u * KEY_STEP] = product_0_0;
            partial[(0u * KEY_THREADS + slot) * KEYS + j + 1u * KEY_STEP] = product_1_0;
            partial[(0u * KEY_THREADS + slot) * KEYS + j + 2u * KEY_STEP] = product_2_0;
            partial[(0u * KEY_THREADS + slot) * KEYS + j + 3u * KEY_STEP] = product_3_0;
            var product_0_1 = 0.0;
            var product_1_1 = 0.0;
            var product_2_1 = 0.0;
            var product_3_1 = 0.0;
            let query_0_1 = queries[1u * VECTORS + piece_of_key(slot, 0u)];
            product_0_1 = add_product(product_0_1, query_0_1, key_0_0, slot + 0u * KEY_THREADS);
            product_1_1 = add_product(product_1_1, query_0_1, key_1_0, slot + 0u * KEY_THREADS);
            product_2_1 = add_product(product_2_1, query_0_1, key_2_0, slot + 0u * KEY_THREADS);
            product_3_1 = add_product(product_3_1, query_0_1, key_3_0, slot + 0u * KEY_THREADS);
            let query_1_1 = queries[1u * VECTORS + piece_of_key(slot, 1u)];
            product_0_1 = add_product(product_0_1, query_1_1, key_0_1, slot + 1u * KEY_THREADS);
            product_1_1 = add_product(product_1_1, query_1_1, key_1_1, slot + 1u * KEY_THREADS);
            product_2_1 = add_product(product_2_1, query_1_1, key_2_1, slot + 1u * KEY_THREADS);
            product_3_1 = add_product(product_3_1, query_1_1, key_3_1, slot + 1u * KEY_THREADS);
            partial[(1u * KEY_THREADS + slot) * KEYS + j + 0u * KEY_STEP] = product_0_1;
            partial[(1u * KEY_THREADS + slot) * KEYS + j + 1u * KEY_STEP] = product_1_1;
            partial[(1u * KEY_THREADS + slot) * KEYS + j + 2u * KEY_STEP] = product_2_1;
            partial[(1u * KEY_THREADS + slot) * KEYS + j + 3u * KEY_STEP] = product_3_1;
        }
        workgroupBarrier();
        var score = 0.0;
        for (var other = 0u; other < KEY_THREADS; other += 1u) {
            score += partial[(lane_query * KEY_THREADS + other) * KEYS + lane];
        }
        score = select(MIN_F32, score * scale(), lane < count);
        let most = max(greatest, join_lanes(score, local, true));
        let weight = select(0.0, exp_f32(score - most), lane < count);
        let kept = exp_f32(greatest - most);
        weights[local] = weight;
        total = fma(total, kept, weight);
        greatest = most;
        if (lane == 0u) {
            kept_of[lane_query] = kept;
        }
        workgroupBarrier();
        sum_0 *= kept_of[0u];
        sum_0 = add_value(sum_0, value_0, 0u, part + 0u * VALUE_GROUPS, count);
        sum_0 = add_value(sum_0, value_1, 0u, part + 1u * VALUE_GROUPS, count);
        sum_0 = add_value(sum_0, value_2, 0u, part + 2u * VALUE_GROUPS, count);
        sum_0 = add_value(sum_0, value_3, 0u, part + 3u * VALUE_GROUPS, count);
        sum_0 = add_value(sum_0, value_4, 0u, part + 4u * VALUE_GROUPS, count);
        sum_0 = add_value(sum_0, value_5, 0u, part + 5u * VALUE_GROUPS, count);
        sum_0 = add_value(sum_0, value_6, 0u, part + 6u * VALUE_GROUPS, count);
        sum_0 = add_value(sum_0, value_7, 0u, part + 7u * VALUE_GROUPS, count);
        sum_1 *= kept_of[1u];
        sum_1 = add_value(sum_1, value_0, 1u, part + 0u * VALUE_GROUPS, count);
        sum_1 = add_value(sum_1, value_1, 1u, part + 1u * VALUE_GROUPS, count);
        sum_1 = add_value(sum_1, value_2, 1u, part + 2u * VALUE_GROUPS, count);
        sum_1 = add_value(sum_1, value_3, 1u, part + 3u * VALUE_GROUPS, count);
        sum_1 = add_value(sum_1, value_4, 1u, part + 4u * VALUE_GROUPS, count);
        sum_1 = add_value(sum_1, value_5, 1u, part + 5u * VALUE_GROUPS, count);
        sum_1 = add_value(sum_1, value_6, 1u, part + 6u * VALUE_GROUPS, count);
        sum_1 = add_value(sum_1, value_7, 1u, part + 7u * VALUE_GROUPS, count);
        for (var key = part + VALUES_UNROLL * VALUE_GROUPS; key < count; key += VALUE_GROUPS) {
            let value = load_v(start_of(sequence, tile + key, shared_head) + piece);
            sum_0 = add_value(sum_0, value, 0u, key, count);
            sum_1 = add_value(sum_1, value, 1u, key, count);
        }
    }
    total = join_lanes(total, local, false);
    if (lane == 0u) {
        total_of[lane_query] = total;
        store_numbers(found + lane_query, greatest, total);
    }
    workgroupBarrier();
    for (var c = 0u; c < 4u; c += 1u) {
        partial[local * 4u + c] = sum_0[c];
    }
    workgroupBarrier();
    if (local < VECTORS) {
        var whole_0 = sum_0;
        for (var other = 1u; other < VALUE_GROUPS; other += 1u) {
            let at = (other * VECTOR_THREADS + local) * 4u;
            whole_0 += vec4<f32>(partial[at], partial[at + 1u], partial[at + 2u], partial[at + 3u]);
        }
        found_sums[(found + 0u) * VECTORS + local] = whole_0;
    }
    workgroupBarrier();
    for (var c = 0u; c < 4u; c += 1u) {
        partial[local * 4u + c] = sum_1[c];
    }
    workgroupBarrier();
    if (local < VECTORS) {
        var whole_1 = sum_1;
        for (var other = 1u; other < VALUE_GROUPS; other += 1u) {
            let at = (other * VECTOR_THREADS + local) * 4u;
            whole_1 += vec4<f32>(partial[at], partial[at + 1u], partial[at + 2u], partial[at + 3u]);
        }
        found_sums[(found + 1u) * VECTORS + local] = whole_1;
    }
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
// Returns the index if it is below `rows`. Otherwise reports it and returns 0. The largest invalid index is kept, so
// that the report does not depend on the order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
