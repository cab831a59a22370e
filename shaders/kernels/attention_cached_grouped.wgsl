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
const QUERIES: u32 = 32u;
const ROWS_Q: u32 = 1u;
const ROWS_K: u32 = 2048u;
const HEADS: u32 = 32u;
const KV_HEADS: u32 = 8u;
const HEAD_DIM: u32 = 64u;
// Window: maximum number of keys that a query attends to; 0 for no limit.
const WINDOW: u32 = 0u;
// True if the cache is paged: the table of each sequence has TABLE_LEN entries with indices of the BLOCKS blocks.
const PAGED: bool = false;
const TABLE_LEN: u32 = 32u;
const BLOCK_ROWS: u32 = 16u;
const BLOCKS: u32 = 64u;
// True if attention_forward_coop.wgsl computes the tiles of TILE_ROWS queries whose queries belong to one sequence.
const TILED: bool = false;
const TILE_ROWS: u32 = 32u;
// True if each head has a sink: a further score, which has no value.
const SINKS: bool = false;
// Query heads of a workgroup, a divisor of the query heads of a key-value head, and workgroups that share the keys.
const TOGETHER: u32 = 4u;
const WORKGROUPS: u32 = 2u;
// Threads that accumulate the vectors of a value: the vectors of a head, rounded up to a power of two.
const VECTOR_THREADS: u32 = 16u;

const UNITS: u32 = QUERIES / TOGETHER;
const GROUP: u32 = HEADS / KV_HEADS;
const VECTORS: u32 = HEAD_DIM / 4u;
const ROW_VECTORS: u32 = KV_HEADS * VECTORS;
// Exclusive upper bound of the number of cached keys before the queries.
const POSITIONS: u32 = ROWS_K + 1u - ROWS_Q;
const THREADS: u32 = 256u;
// Threads of a query, keys of a tile, and the number of threads of a query that reduce the values of all of them.
const LANES: u32 = THREADS / TOGETHER;
const KEYS: u32 = LANES;
const FINAL_LANES: u32 = 8u;
const FINAL_VALUES: u32 = LANES / FINAL_LANES;
// Threads that share a key, vectors of a key that a thread reads, distance of a thread's keys, and keys it reads at a time.
const KEY_THREADS: u32 = 8u;
const PIECES: u32 = (VECTORS + KEY_THREADS - 1u) / KEY_THREADS;
const KEY_STEP: u32 = THREADS / KEY_THREADS;
const KEYS_UNROLL: u32 = max(1u, min(KEYS / KEY_STEP, 8u / PIECES));
// Threads that have the same vector of values, and values of a thread that are prefetched.
const VALUE_GROUPS: u32 = THREADS / VECTOR_THREADS;
const VALUES_UNROLL: u32 = max(1u, min(KEYS / VALUE_GROUPS, 8u));
const MIN_F32: f32 = -3.4028234e38;
const i: u32 = 0u; // indices of repeats
const p: u32 = 0u;
const g: u32 = 0u;

var<storage, read> q: array<vec4<f32>>;
var<storage, read> k: array<vec4<f32>>;
var<storage, read> v: array<vec4<f32>>;
var<storage, read> positions: array<u32>;
var<storage, read> block_table: array<u32>;
var<storage, read> sinks: array<f32>;
var<storage, read> tiles: array<vec4<u32>>; // the first number is 1 if a tile is of one sequence
var<storage, read_write> out: array<vec4<f32>>;
// Partial results of the workgroups that share keys: sums of values; maximum score and sum of exponentials.
var<storage, read_write> found_sums: array<vec4<f32>>;
var<storage, read_write> found_numbers: array<f32>;

var<workgroup> queries: array<vec4<f32>, TOGETHER * VECTORS>;
var<workgroup> partial: array<f32, KEY_THREADS * THREADS>; // parts of scores; in the end, parts of sums
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> reduced: array<f32, THREADS>;
var<workgroup> few: array<f32, TOGETHER * FINAL_LANES>;
// For each query: the factor of earlier sums, and the final sum of exponentials.
var<workgroup> kept_of: array<f32, TOGETHER>;
var<workgroup> total_of: array<f32, TOGETHER>;

fn load_q(index: u32) -> vec4<f32> { return q[index]; }
fn load_k(index: u32) -> vec4<f32> { return k[index]; }
fn load_v(index: u32) -> vec4<f32> { return v[index]; }

// The number of cached keys of a sequence.
fn load_position(sequence: u32) -> u32 { return positions[sequence]; }

// An entry of the block table.
fn load_block(index: u32) -> u32 { return block_table[index]; }

// The sink of a head.
fn load_sink(head: u32) -> f32 { return sinks[head]; }

fn store(start: u32, vector: u32, value: vec4<f32>) { out[start / 4u + vector] = value; }

fn scale() -> f32 { return 0.125; }

// lib/fault.wgsl
fn checked_index(index: u32, rows: u32) -> u32 { return min(index, rows - 1u); }

// lib/math.wgsl
fn exp_f32(x: f32) -> f32 { return exp(x); }

fn store_numbers(query: u32, greatest: f32, total: f32) {
    found_numbers[query * 2u] = greatest;
    found_numbers[query * 2u + 1u] = total;
}

// Index of the first vector of a key or a value; rows are clamped to the last one.
fn start_of(sequence: u32, row: u32, shared_head: u32) -> u32 {
    let within = min(row, ROWS_K - 1u);
    var cached = sequence * ROWS_K + within;
    // @if PAGED
    let block = min(load_block(sequence * TABLE_LEN + within / BLOCK_ROWS), BLOCKS - 1u);
    cached = block * BLOCK_ROWS + within % BLOCK_ROWS;
    // @end
    return cached * ROW_VECTORS + shared_head / 4u;
}

// Index of the vector that a thread reads of a key or a query, clamped to the last one.
fn piece_of_key(slot: u32, piece: u32) -> u32 { return min(slot + piece * KEY_THREADS, VECTORS - 1u); }

// Adds the product of a key's vector and the query's one to a sum, except past the last vector.
fn add_product(sum: f32, query: vec4<f32>, key: vec4<f32>, vector: u32) -> f32 {
    var added = sum + dot(query, key);
    // @if VECTORS % KEY_THREADS > 0
    added = select(sum, added, vector < VECTORS);
    // @end
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
    // @if TILED
    if (tiles[sequence / TILE_ROWS].x == 1u) { return; }
    // @end
    let given = load_position(sequence);
    // @if PAGED
    for (var b = local; b < TABLE_LEN; b += THREADS) {
        let reported = checked_index(load_block(sequence * TABLE_LEN + b), BLOCKS);
    }
    // @else
    if (local == 0u) {
        let reported = checked_index(given, POSITIONS);
    }
    // @end
    let seen_to = min(given, POSITIONS - 1u) + row + 1u;
    var start = 0u;
    // @if WINDOW > 0
    start = max(seen_to, WINDOW) - WINDOW;
    // @end
    var end = seen_to;
    let lane = local % LANES;
    let lane_query = local / LANES;
    let found = group_number / UNITS * QUERIES + own_query;
    // @if WORKGROUPS > 1
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
    // @end
    for (var at = local; at < TOGETHER * VECTORS; at += THREADS) {
        queries[at] = load_q(own / 4u + at);
    }
    workgroupBarrier();
    let slot = local % KEY_THREADS;
    let piece = min(local % VECTOR_THREADS, VECTORS - 1u);
    let part = local / VECTOR_THREADS;
    var greatest = MIN_F32;
    var total = 0.0;
    // @repeat g < TOGETHER
    var sum_g = vec4<f32>();
    // @end
    for (var tile = start; tile < end; tile += KEYS) {
        // @repeat i < VALUES_UNROLL
        let value_i = load_v(start_of(sequence, tile + part + i * VALUE_GROUPS, shared_head) + piece);
        // @end
        let count = min(end - tile, KEYS);
        for (var j = local / KEY_THREADS; j < count; j += KEYS_UNROLL * KEY_STEP) {
            // @repeat i < KEYS_UNROLL
            let start_i = start_of(sequence, tile + j + i * KEY_STEP, shared_head);
            // @end
            // @repeat i < KEYS_UNROLL, p < PIECES
            let key_i_p = load_k(start_i + piece_of_key(slot, p));
            // @end
            // @repeat g < TOGETHER
            // @repeat i < KEYS_UNROLL
            var product_i_g = 0.0;
            // @end
            // @repeat p < PIECES
            let query_p_g = queries[g * VECTORS + piece_of_key(slot, p)];
            // @repeat i < KEYS_UNROLL
            product_i_g = add_product(product_i_g, query_p_g, key_i_p, slot + p * KEY_THREADS);
            // @end
            // @end
            // @repeat i < KEYS_UNROLL
            partial[(g * KEY_THREADS + slot) * KEYS + j + i * KEY_STEP] = product_i_g;
            // @end
            // @end
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
        // @repeat g < TOGETHER
        sum_g *= kept_of[g];
        // @repeat i < VALUES_UNROLL
        sum_g = add_value(sum_g, value_i, g, part + i * VALUE_GROUPS, count);
        // @end
        // @end
        for (var key = part + VALUES_UNROLL * VALUE_GROUPS; key < count; key += VALUE_GROUPS) {
            let value = load_v(start_of(sequence, tile + key, shared_head) + piece);
            // @repeat g < TOGETHER
            sum_g = add_value(sum_g, value, g, key, count);
            // @end
        }
    }
    total = join_lanes(total, local, false);
    if (lane == 0u) {
        // @if SINKS
        total += exp_f32(load_sink(head + lane_query) - greatest);
        // @end
        total_of[lane_query] = total;
        // @if WORKGROUPS > 1
        store_numbers(found + lane_query, greatest, total);
        // @end
    }
    // @repeat g < TOGETHER
    workgroupBarrier();
    for (var c = 0u; c < 4u; c += 1u) {
        partial[local * 4u + c] = sum_g[c];
    }
    workgroupBarrier();
    if (local < VECTORS) {
        var whole_g = sum_g;
        for (var other = 1u; other < VALUE_GROUPS; other += 1u) {
            let at = (other * VECTOR_THREADS + local) * 4u;
            whole_g += vec4<f32>(partial[at], partial[at + 1u], partial[at + 2u], partial[at + 3u]);
        }
        // @if WORKGROUPS > 1
        found_sums[(found + g) * VECTORS + local] = whole_g;
        // @else
        store(own + g * HEAD_DIM, local, whole_g / total_of[g]);
        // @end
    }
    // @end
}
