var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec2<u32>>;
var<storage, read> b3: array<vec2<u32>>;
var<storage, read_write> b4: array<vec4<f32>>;
const ROWS_Q: u32 = 1u;
const ROWS_K: u32 = 9u;
const HEADS: u32 = 4u;
const HEAD_DIM: u32 = 4u;
// Keys of a tile, threads that share a key, and workgroups that share the keys of a query.
const KEYS: u32 = 512u;
const KEY_THREADS: u32 = 4u;
// Threads that accumulate the vectors of a value: the vectors of a head, rounded up to a power of two.
const VECTOR_THREADS: u32 = 1u;
const GROUP: u32 = 2u;
const VECTORS: u32 = 1u;
const ROW_VECTORS: u32 = 2u;
// Exclusive upper bound of the number of cached keys before the queries.
const POSITIONS: u32 = 9u;
const THREADS: u32 = 256u;
// Threads that reduce the values of all threads, and the number of values that each of them reads.
const FINAL_THREADS: u32 = 16u;
const FINAL_VALUES: u32 = 16u;
// Threads that have the same vector of values, and loads of these prefetched at a time.
const VALUE_GROUPS: u32 = 256u;
const VALUES_UNROLL: u32 = 8u;
const KEYS_UNROLL: u32 = 2u;
const KEY_STEP: u32 = 64u;
const MIN_F32: f32 = -3.4028234e38;
var<workgroup> partial: array<f32, KEY_THREADS * KEYS>;
var<workgroup> folded: array<vec4<f32>, THREADS>;
var<workgroup> few: array<f32, FINAL_THREADS>;
fn load_q(index: u32) -> vec4<f32> {
    return b1[index];
}
fn load_k(index: u32) -> vec4<f32> {
    return f16_to_f32x4(b2[index]);
}
fn load_v(index: u32) -> vec4<f32> {
    return f16_to_f32x4(b3[index]);
}
// The number of cached keys of a sequence.
fn load_position(sequence: u32) -> u32 {
    return b0[sequence];
}
fn store(start: u32, vector: u32, value: vec4<f32>) {
    if (vector < 1u) {
        b4[start / 4u + vector] = vec4<f32>(value);
    }
}
fn scale() -> f32 {
    return (5e-1f);
}
// Index of a vector of a key or a value; rows are clamped to the last one.
fn index_of(sequence: u32, row: u32, shared_head: u32, vector: u32) -> u32 {
    let within = min(row, ROWS_K - 1u);
    var cached = sequence * ROWS_K + within;
    return cached * ROW_VECTORS + shared_head / 4u + vector;
}
// Index of the vector that a thread reads of a key or the query, clamped to the last one.
fn piece_of_key(slot: u32, piece: u32) -> u32 {
    return min(slot + piece * KEY_THREADS, VECTORS - 1u);
}
// Adds the product of a key's vector and the query's one to a sum, except past the last vector.
fn add_product(sum: vec4<f32>, query: vec4<f32>, key: vec4<f32>, vector: u32) -> vec4<f32> {
    var added = fma(query, key, sum);
    added = select(sum, added, vector < VECTORS);
    return added;
}
// Stores a thread's part of the score of a key.
fn store_score(slot: u32, key: u32, count: u32, product: vec4<f32>) {
    if (key < count) {
        let pair = product.xy + product.zw;
        partial[slot * KEYS + key] = (pair.x + pair.y) * scale();
    }
}
// Adds a value with the weight of its key to a sum.
fn add_value(sum: vec4<f32>, value: vec4<f32>, key: u32, count: u32) -> vec4<f32> {
    let weight = vec4<f32>(partial[min(key, KEYS - 1u)]);
    return select(sum, fma(weight, value, sum), key < count);
}
// Sums of the parts of a vector of values, neighbours first; the last function returns the sum of all parts.
fn sum_2(at: u32) -> vec4<f32> { return folded[at] + folded[at + VECTOR_THREADS]; }
fn sum_4(at: u32) -> vec4<f32> { return sum_2(at) + sum_2(at + 2u * VECTOR_THREADS); }
fn sum_8(at: u32) -> vec4<f32> { return sum_4(at) + sum_4(at + 4u * VECTOR_THREADS); }
fn sum_16(at: u32) -> vec4<f32> { return sum_8(at) + sum_8(at + 8u * VECTOR_THREADS); }
fn sum_32(at: u32) -> vec4<f32> { return sum_16(at) + sum_16(at + 16u * VECTOR_THREADS); }
fn sum_64(at: u32) -> vec4<f32> { return sum_32(at) + sum_32(at + 32u * VECTOR_THREADS); }
fn sum_128(at: u32) -> vec4<f32> { return sum_64(at) + sum_64(at + 64u * VECTOR_THREADS); }
fn sum_256(at: u32) -> vec4<f32> { return sum_128(at) + sum_128(at + 128u * VECTOR_THREADS); }
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    var own_query = group_number;
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
    var seen_from = 0u;
    var start = seen_from;
    var end = seen_to;
    let slot = local % KEY_THREADS;
    let piece = min(local % VECTOR_THREADS, VECTORS - 1u);
    let part = local / VECTOR_THREADS;
    let first_key = local / KEY_THREADS;
    var greatest = MIN_F32;
    var total = 0.0;
    var sum = vec4<f32>();
    var tile = start;
    loop {
        let value_0 = load_v(index_of(sequence, tile + part + 0u * VALUE_GROUPS, shared_head, piece));
        let value_1 = load_v(index_of(sequence, tile + part + 1u * VALUE_GROUPS, shared_head, piece));
        let value_2 = load_v(index_of(sequence, tile + part + 2u * VALUE_GROUPS, shared_head, piece));
        let value_3 = load_v(index_of(sequence, tile + part + 3u * VALUE_GROUPS, shared_head, piece));
        let value_4 = load_v(index_of(sequence, tile + part + 4u * VALUE_GROUPS, shared_head, piece));
        let value_5 = load_v(index_of(sequence, tile + part + 5u * VALUE_GROUPS, shared_head, piece));
        let value_6 = load_v(index_of(sequence, tile + part + 6u * VALUE_GROUPS, shared_head, piece));
        let value_7 = load_v(index_of(sequence, tile + part + 7u * VALUE_GROUPS, shared_head, piece));
        let key_0_0 = load_k(index_of(sequence, tile + first_key + 0u * KEY_STEP, shared_head, piece_of_key(slot, 0u)));
        let key_1_0 = load_k(index_of(sequence, tile + first_key + 1u * KEY_STEP, shared_head, piece_of_key(slot, 0u)));
        let count = min(end - tile, KEYS);
        var product_0 = vec4<f32>();
        var product_1 = vec4<f32>();
        let query_0 = load_q(own / 4u + piece_of_key(slot, 0u));
        product_0 = add_product(product_0, query_0, key_0_0, slot + 0u * KEY_THREADS);
        product_1 = add_product(product_1, query_0, key_1_0, slot + 0u * KEY_THREADS);
        store_score(slot, first_key + 0u * KEY_STEP, count, product_0);
        store_score(slot, first_key + 1u * KEY_STEP, count, product_1);
        for (var j = first_key + KEYS_UNROLL * KEY_STEP; j < count; j += KEYS_UNROLL * KEY_STEP) {
            let key_0_0 = load_k(index_of(sequence, tile + j + 0u * KEY_STEP, shared_head, piece_of_key(slot, 0u)));
            let key_1_0 = load_k(index_of(sequence, tile + j + 1u * KEY_STEP, shared_head, piece_of_key(slot, 0u)));
            var product_0 = vec4<f32>();
            var product_1 = vec4<f32>();
            let query_0 = load_q(own / 4u + piece_of_key(slot, 0u));
            product_0 = add_product(product_0, query_0, key_0_0, slot + 0u * KEY_THREADS);
            product_1 = add_product(product_1, query_0, key_1_0, slot + 0u * KEY_THREADS);
            store_score(slot, j + 0u * KEY_STEP, count, product_0);
            store_score(slot, j + 1u * KEY_STEP, count, product_1);
        }
        workgroupBarrier();
        var most = greatest;
        for (var j = local; j < count; j += THREADS) {
            var score = partial[j];
            for (var other = 1u; other < KEY_THREADS; other += 1u) {
                score += partial[other * KEYS + j];
            }
            partial[j] = score;
            most = max(most, score);
        }
        most = join_all(most, local, true);
        let kept = exp_f32(greatest - most);
        greatest = most;
        total *= kept;
        sum *= kept;
        for (var j = local; j < count; j += THREADS) {
            let weight = exp_f32(partial[j] - most);
            partial[j] = weight;
            total += weight;
        }
        workgroupBarrier();
        sum = add_value(sum, value_0, part + 0u * VALUE_GROUPS, count);
        sum = add_value(sum, value_1, part + 1u * VALUE_GROUPS, count);
        sum = add_value(sum, value_2, part + 2u * VALUE_GROUPS, count);
        sum = add_value(sum, value_3, part + 3u * VALUE_GROUPS, count);
        sum = add_value(sum, value_4, part + 4u * VALUE_GROUPS, count);
        sum = add_value(sum, value_5, part + 5u * VALUE_GROUPS, count);
        sum = add_value(sum, value_6, part + 6u * VALUE_GROUPS, count);
        sum = add_value(sum, value_7, part + 7u * VALUE_GROUPS, count);
        for (var first = part + VALUES_UNROLL * VALUE_GROUPS; first < count; first += VALUES_UNROLL * VALUE_GROUPS) {
            let value_0 = load_v(index_of(sequence, tile + first + 0u * VALUE_GROUPS, shared_head, piece));
            let value_1 = load_v(index_of(sequence, tile + first + 1u * VALUE_GROUPS, shared_head, piece));
            let value_2 = load_v(index_of(sequence, tile + first + 2u * VALUE_GROUPS, shared_head, piece));
            let value_3 = load_v(index_of(sequence, tile + first + 3u * VALUE_GROUPS, shared_head, piece));
            let value_4 = load_v(index_of(sequence, tile + first + 4u * VALUE_GROUPS, shared_head, piece));
            let value_5 = load_v(index_of(sequence, tile + first + 5u * VALUE_GROUPS, shared_head, piece));
            let value_6 = load_v(index_of(sequence, tile + first + 6u * VALUE_GROUPS, shared_head, piece));
            let value_7 = load_v(index_of(sequence, tile + first + 7u * VALUE_GROUPS, shared_head, piece));
            sum = add_value(sum, value_0, first + 0u * VALUE_GROUPS, count);
            sum = add_value(sum, value_1, first + 1u * VALUE_GROUPS, count);
            sum = add_value(sum, value_2, first + 2u * VALUE_GROUPS, count);
            sum = add_value(sum, value_3, first + 3u * VALUE_GROUPS, count);
            sum = add_value(sum, value_4, first + 4u * VALUE_GROUPS, count);
            sum = add_value(sum, value_5, first + 5u * VALUE_GROUPS, count);
            sum = add_value(sum, value_6, first + 6u * VALUE_GROUPS, count);
            sum = add_value(sum, value_7, first + 7u * VALUE_GROUPS, count);
        }
        tile += KEYS;
        if (tile >= end) {
            break;
        }
        workgroupBarrier();
    }
    total = join_all(total, local, false);
    workgroupBarrier();
    folded[local] = sum;
    workgroupBarrier();
    if (local < VECTORS) {
        sum = sum_256(local);
        store(own, local, sum / total);
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
// Four f16 values in two words.
fn f16_to_f32x4(pairs: vec2<u32>) -> vec4<f32> {
    let halves = vec4<u32>(pairs.x & 0xffffu, pairs.x >> 16u, pairs.y & 0xffffu, pairs.y >> 16u);
    let magnitudes = halves & vec4<u32>(0x7fffu);
    let tiny = bitcast<vec4<u32>>(vec4<f32>(magnitudes) * 5.9604644775390625e-8);
    let shifted = magnitudes << vec4<u32>(13u);
    let finite = select(shifted + vec4<u32>(0x38000000u), tiny, magnitudes < vec4<u32>(0x400u));
    let words = select(finite, shifted | vec4<u32>(0x7f800000u), magnitudes >= vec4<u32>(0x7c00u));
    return bitcast<vec4<f32>>(words | ((halves & vec4<u32>(0x8000u)) << vec4<u32>(16u)));
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
// Reductions over all threads of a workgroup. A kernel that calls `join_all` declares in workgroup memory `folded`, a
// vec4<f32> per thread, and `few`, an f32 for each of FINAL_THREADS threads, each of which reads FINAL_VALUES values; both constants are
// 16.
// Values of four adjacent threads, and results of four of the FINAL_THREADS threads, each of which combines values of
// several threads.
fn folded_at(at: u32) -> vec4<f32> {
    return vec4<f32>(folded[at].x, folded[at + 1u].x, folded[at + 2u].x, folded[at + 3u].x);
}
fn few_at(at: u32) -> vec4<f32> {
    return vec4<f32>(few[at], few[at + 1u], few[at + 2u], few[at + 3u]);
}
// Maximum of four numbers, or their sum.
fn join_four(x: vec4<f32>, greatest: bool) -> f32 {
    return select((x.x + x.y) + (x.z + x.w), max(max(x.x, x.y), max(x.z, x.w)), greatest);
}
// Maximum or sum over all threads: adjacent values are combined first, then their results.
fn join_all(value: f32, local: u32, greatest: bool) -> f32 {
    folded[local].x = value;
    workgroupBarrier();
    if (local < FINAL_THREADS) {
        let at = local * FINAL_VALUES;
        few[local] = join_four(vec4<f32>(join_four(folded_at(at), greatest), join_four(folded_at(at + 4u), greatest),
                join_four(folded_at(at + 8u), greatest), join_four(folded_at(at + 12u), greatest)), greatest);
    }
    workgroupBarrier();
    return join_four(vec4<f32>(join_four(few_at(0u), greatest), join_four(few_at(4u), greatest),
            join_four(few_at(8u), greatest), join_four(few_at(12u), greatest)), greatest);
}
