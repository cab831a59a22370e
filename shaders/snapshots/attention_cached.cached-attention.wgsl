var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read_write> found_sums: array<vec4<f32>>;
var<storage, read_write> found_numbers: array<f32>;
// Attention of few queries over a cache: a workgroup has a query of one head, and goes over the keys that it sees in tiles of
// KEYS, with the greatest score and the sum of exponentials so far (Milakov and Gimelshein, 2018). Where WORKGROUPS share the
// keys of a query, each has a range of whole tiles and stores what it found; attention_cached_join.wgsl brings that
// together ("Flash-Decoding": Dao, Haziza, Massa and Sizov, 2023).
//
// Of a tile, SHARING threads beside each other read a key, every one of them each SHARING-th vector, and leave the part of the
// score that comes of these in shared memory. A barrier later the parts are added up. The greatest score takes two barriers
// more: FEW threads bring together what all have, then all threads what these have. Behind another one, every
// thread has a vector of the head, and adds up the values of each PARTS-th key. The first keys and values of a tile are
// prefetched before the number of its keys is known: those behind the last one are read, but not used.
//
// Twin in the oracle: core/src/ops/attention/cached.rs.
// Queries of all heads and sequences; rows and heads of a sequence, of queries and of keys.
const QUERIES: u32 = 4u;
const ROWS_Q: u32 = 1u;
const ROWS_K: u32 = 4096u;
const HEADS: u32 = 4u;
const HEAD_DIM: u32 = 64u;
// Keys of a tile, threads that share a key, and workgroups that share the keys of a query.
const KEYS: u32 = 128u;
const SHARING: u32 = 4u;
const WORKGROUPS: u32 = 32u;
// Threads side by side in the sum of values: vectors of a head, up to a power of two.
const ACROSS: u32 = 16u;
const GROUP: u32 = 2u;
const VECTORS: u32 = 16u;
const ROW_VECTORS: u32 = 32u;
// Cached keys that there may be before the queries are one less.
const POSITIONS: u32 = 4096u;
const THREADS: u32 = 256u;
// Threads that bring together what all have, and numbers that each of them reads.
const FEW: u32 = 16u;
const EACH: u32 = 16u;
// Threads that have the same vector of values, and loads of these prefetched at a time.
const PARTS: u32 = 16u;
const VALUES_TOGETHER: u32 = 8u;
const KEYS_TOGETHER: u32 = 2u;
const KEY_STEP: u32 = 64u;
const MIN_F32: f32 = -3.4028234e38;
var<workgroup> partial: array<f32, SHARING * KEYS>;
var<workgroup> folded: array<vec4<f32>, THREADS>;
var<workgroup> few: array<f32, FEW>;
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
fn store_numbers(group_number: u32, local: u32, greatest: f32, total: f32) {
    if (local == 0u) {
        found_numbers[group_number * 2u] = greatest;
        found_numbers[group_number * 2u + 1u] = total;
    }
}
// A vector of a key or a value: that of the last row for those behind it.
fn index_of(sequence: u32, row: u32, shared_head: u32, vector: u32) -> u32 {
    let within = min(row, ROWS_K - 1u);
    var cached = sequence * ROWS_K + within;
    return cached * ROW_VECTORS + shared_head / 4u + vector;
}
// The vector that a thread reads of a key or the query: the last one for those behind it.
fn piece_of_key(slot: u32, piece: u32) -> u32 {
    return min(slot + piece * SHARING, VECTORS - 1u);
}
// A vector of a key with that of the query: nothing behind the last one.
fn add_product(sum: vec4<f32>, query: vec4<f32>, key: vec4<f32>, vector: u32) -> vec4<f32> {
    var added = fma(query, key, sum);
    return added;
}
// Leaves what a thread has of the score of a key.
fn store_score(slot: u32, key: u32, count: u32, product: vec4<f32>) {
    if (key < count) {
        let pair = product.xy + product.zw;
        partial[slot * KEYS + key] = (pair.x + pair.y) * scale();
    }
}
// A value with the weight of its key.
fn add_value(sum: vec4<f32>, value: vec4<f32>, key: u32, count: u32) -> vec4<f32> {
    let weight = vec4<f32>(partial[min(key, KEYS - 1u)]);
    return select(sum, fma(weight, value, sum), key < count);
}
// Sums of the parts of a vector of values, of neighbours first; the last function stands for that of all parts.
fn sum_2(at: u32) -> vec4<f32> { return folded[at] + folded[at + ACROSS]; }
fn sum_4(at: u32) -> vec4<f32> { return sum_2(at) + sum_2(at + 2u * ACROSS); }
fn sum_8(at: u32) -> vec4<f32> { return sum_4(at) + sum_4(at + 4u * ACROSS); }
fn sum_16(at: u32) -> vec4<f32> { return sum_8(at) + sum_8(at + 8u * ACROSS); }
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    var own_query = group_number;
    own_query = group_number % QUERIES;
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
    let share = ((seen_to - seen_from + (WORKGROUPS - 1u)) / WORKGROUPS + (KEYS - 1u)) / KEYS * KEYS;
    start = seen_from + group_number / QUERIES * share;
    end = min(start + share, seen_to);
    if (start >= end) {
        if (local < VECTORS) {
            found_sums[group_number * VECTORS + local] = vec4<f32>();
        }
        store_numbers(group_number, local, MIN_F32, 0.0);
        return;
    }
    let slot = local % SHARING;
    let piece = min(local % ACROSS, VECTORS - 1u);
    let part = local / ACROSS;
    let first_key = local / SHARING;
    var greatest = MIN_F32;
    var total = 0.0;
    var sum = vec4<f32>();
    var tile = start;
    loop {
        let value_0 = load_v(index_of(sequence, tile + part + 0u * PARTS, shared_head, piece));
        let value_1 = load_v(index_of(sequence, tile + part + 1u * PARTS, shared_head, piece));
        let value_2 = load_v(index_of(sequence, tile + part + 2u * PARTS, shared_head, piece));
        let value_3 = load_v(index_of(sequence, tile + part + 3u * PARTS, shared_head, piece));
        let value_4 = load_v(index_of(sequence, tile + part + 4u * PARTS, shared_head, piece));
        let value_5 = load_v(index_of(sequence, tile + part + 5u * PARTS, shared_head, piece));
        let value_6 = load_v(index_of(sequence, tile + part + 6u * PARTS, shared_head, piece));
        let value_7 = load_v(index_of(sequence, tile + part + 7u * PARTS, shared_head, piece));
        let key_0_0 = load_k(index_of(sequence, tile + first_key + 0u * KEY_STEP, shared_head, piece_of_key(slot, 0u)));
        let key_0_1 = load_k(index_of(sequence, tile + first_key + 0u * KEY_STEP, shared_head, piece_of_key(slot, 1u)));
        let key_0_2 = load_k(index_of(sequence, tile + first_key + 0u * KEY_STEP, shared_head, piece_of_key(slot, 2u)));
        let key_0_3 = load_k(index_of(sequence, tile + first_key + 0u * KEY_STEP, shared_head, piece_of_key(slot, 3u)));
        let key_1_0 = load_k(index_of(sequence, tile + first_key + 1u * KEY_STEP, shared_head, piece_of_key(slot, 0u)));
        let key_1_1 = load_k(index_of(sequence, tile + first_key + 1u * KEY_STEP, shared_head, piece_of_key(slot, 1u)));
        let key_1_2 = load_k(index_of(sequence, tile + first_key + 1u * KEY_STEP, shared_head, piece_of_key(slot, 2u)));
        let key_1_3 = load_k(index_of(sequence, tile + first_key + 1u * KEY_STEP, shared_head, piece_of_key(slot, 3u)));
        let count = min(end - tile, KEYS);
        var product_0 = vec4<f32>();
        var product_1 = vec4<f32>();
        let query_0 = load_q(own / 4u + piece_of_key(slot, 0u));
        product_0 = add_product(product_0, query_0, key_0_0, slot + 0u * SHARING);
        product_1 = add_product(product_1, query_0, key_1_0, slot + 0u * SHARING);
        let query_1 = load_q(own / 4u + piece_of_key(slot, 1u));
        product_0 = add_product(product_0, query_1, key_0_1, slot + 1u * SHARING);
        product_1 = add_product(product_1, query_1, key_1_1, slot + 1u * SHARING);
        let query_2 = load_q(own / 4u + piece_of_key(slot, 2u));
        product_0 = add_product(product_0, query_2, key_0_2, slot + 2u * SHARING);
        product_1 = add_product(product_1, query_2, key_1_2, slot + 2u * SHARING);
        let query_3 = load_q(own / 4u + piece_of_key(slot, 3u));
        product_0 = add_product(product_0, query_3, key_0_3, slot + 3u * SHARING);
        product_1 = add_product(product_1, query_3, key_1_3, slot + 3u * SHARING);
        store_score(slot, first_key + 0u * KEY_STEP, count, product_0);
        store_score(slot, first_key + 1u * KEY_STEP, count, product_1);
        for (var j = first_key + KEYS_TOGETHER * KEY_STEP; j < count; j += KEYS_TOGETHER * KEY_STEP) {
            let key_0_0 = load_k(index_of(sequence, tile + j + 0u * KEY_STEP, shared_head, piece_of_key(slot, 0u)));
            let key_0_1 = load_k(index_of(sequence, tile + j + 0u * KEY_STEP, shared_head, piece_of_key(slot, 1u)));
            let key_0_2 = load_k(index_of(sequence, tile + j + 0u * KEY_STEP, shared_head, piece_of_key(slot, 2u)));
            let key_0_3 = load_k(index_of(sequence, tile + j + 0u * KEY_STEP, shared_head, piece_of_key(slot, 3u)));
            let key_1_0 = load_k(index_of(sequence, tile + j + 1u * KEY_STEP, shared_head, piece_of_key(slot, 0u)));
            let key_1_1 = load_k(index_of(sequence, tile + j + 1u * KEY_STEP, shared_head, piece_of_key(slot, 1u)));
            let key_1_2 = load_k(index_of(sequence, tile + j + 1u * KEY_STEP, shared_head, piece_of_key(slot, 2u)));
            let key_1_3 = load_k(index_of(sequence, tile + j + 1u * KEY_STEP, shared_head, piece_of_key(slot, 3u)));
            var product_0 = vec4<f32>();
            var product_1 = vec4<f32>();
            let query_0 = load_q(own / 4u + piece_of_key(slot, 0u));
            product_0 = add_product(product_0, query_0, key_0_0, slot + 0u * SHARING);
            product_1 = add_product(product_1, query_0, key_1_0, slot + 0u * SHARING);
            let query_1 = load_q(own / 4u + piece_of_key(slot, 1u));
            product_0 = add_product(product_0, query_1, key_0_1, slot + 1u * SHARING);
            product_1 = add_product(product_1, query_1, key_1_1, slot + 1u * SHARING);
            let query_2 = load_q(own / 4u + piece_of_key(slot, 2u));
            product_0 = add_product(product_0, query_2, key_0_2, slot + 2u * SHARING);
            product_1 = add_product(product_1, query_2, key_1_2, slot + 2u * SHARING);
            let query_3 = load_q(own / 4u + piece_of_key(slot, 3u));
            product_0 = add_product(product_0, query_3, key_0_3, slot + 3u * SHARING);
            product_1 = add_product(product_1, query_3, key_1_3, slot + 3u * SHARING);
            store_score(slot, j + 0u * KEY_STEP, count, product_0);
            store_score(slot, j + 1u * KEY_STEP, count, product_1);
        }
        workgroupBarrier();
        var most = greatest;
        for (var j = local; j < count; j += THREADS) {
            var score = partial[j];
            for (var other = 1u; other < SHARING; other += 1u) {
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
        sum = add_value(sum, value_0, part + 0u * PARTS, count);
        sum = add_value(sum, value_1, part + 1u * PARTS, count);
        sum = add_value(sum, value_2, part + 2u * PARTS, count);
        sum = add_value(sum, value_3, part + 3u * PARTS, count);
        sum = add_value(sum, value_4, part + 4u * PARTS, count);
        sum = add_value(sum, value_5, part + 5u * PARTS, count);
        sum = add_value(sum, value_6, part + 6u * PARTS, count);
        sum = add_value(sum, value_7, part + 7u * PARTS, count);
        for (var first = part + VALUES_TOGETHER * PARTS; first < count; first += VALUES_TOGETHER * PARTS) {
            let value_0 = load_v(index_of(sequence, tile + first + 0u * PARTS, shared_head, piece));
            let value_1 = load_v(index_of(sequence, tile + first + 1u * PARTS, shared_head, piece));
            let value_2 = load_v(index_of(sequence, tile + first + 2u * PARTS, shared_head, piece));
            let value_3 = load_v(index_of(sequence, tile + first + 3u * PARTS, shared_head, piece));
            let value_4 = load_v(index_of(sequence, tile + first + 4u * PARTS, shared_head, piece));
            let value_5 = load_v(index_of(sequence, tile + first + 5u * PARTS, shared_head, piece));
            let value_6 = load_v(index_of(sequence, tile + first + 6u * PARTS, shared_head, piece));
            let value_7 = load_v(index_of(sequence, tile + first + 7u * PARTS, shared_head, piece));
            sum = add_value(sum, value_0, first + 0u * PARTS, count);
            sum = add_value(sum, value_1, first + 1u * PARTS, count);
            sum = add_value(sum, value_2, first + 2u * PARTS, count);
            sum = add_value(sum, value_3, first + 3u * PARTS, count);
            sum = add_value(sum, value_4, first + 4u * PARTS, count);
            sum = add_value(sum, value_5, first + 5u * PARTS, count);
            sum = add_value(sum, value_6, first + 6u * PARTS, count);
            sum = add_value(sum, value_7, first + 7u * PARTS, count);
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
        sum = sum_16(local);
        found_sums[group_number * VECTORS + local] = sum;
    }
    store_numbers(group_number, local, greatest, total);
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
// An index that is below `rows`. One that is not is reported, and 0 stands in for it. Of several the largest is kept, so
// that the report depends on no order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
// Reductions over all threads of a workgroup. A kernel that calls `join_all` declares in memory of the workgroup `folded`,
// a vec4<f32> for each thread, and `few`, an f32 for each of FEW threads, of which each reads EACH numbers; both are 16.
// Four numbers of threads, from one on, and four of those few that have joined them.
fn folded_at(at: u32) -> vec4<f32> {
    return vec4<f32>(folded[at].x, folded[at + 1u].x, folded[at + 2u].x, folded[at + 3u].x);
}
fn few_at(at: u32) -> vec4<f32> {
    return vec4<f32>(few[at], few[at + 1u], few[at + 2u], few[at + 3u]);
}
// The greatest number of four, or their sum.
fn join_four(x: vec4<f32>, greatest: bool) -> f32 {
    return select((x.x + x.y) + (x.z + x.w), max(max(x.x, x.y), max(x.z, x.w)), greatest);
}
// The greatest number of all threads, or their sum: neighbours are joined, then what comes of them.
fn join_all(value: f32, local: u32, greatest: bool) -> f32 {
    folded[local].x = value;
    workgroupBarrier();
    if (local < FEW) {
        let at = local * EACH;
        few[local] = join_four(vec4<f32>(join_four(folded_at(at), greatest), join_four(folded_at(at + 4u), greatest),
                join_four(folded_at(at + 8u), greatest), join_four(folded_at(at + 12u), greatest)), greatest);
    }
    workgroupBarrier();
    return join_four(vec4<f32>(join_four(few_at(0u), greatest), join_four(few_at(4u), greatest),
            join_four(few_at(8u), greatest), join_four(few_at(12u), greatest)), greatest);
}
