// Attention of few queries over a cache. A workgroup has a query of one head and iterates over its keys in tiles of
// KEYS, with the running maximum score and sum of exponentials (Milakov and Gimelshein, 2018). If WORKGROUPS share the
// keys of a query, each has a range of whole tiles and stores its partial result. attention_cached_join.wgsl combines
// these results ("Flash-Decoding": Dao, Haziza, Massa and Sizov, 2023).
//
// KEY_THREADS adjacent threads share a key of a tile. Each reads every KEY_THREADS-th vector and stores its part of the
// score in shared memory. After a barrier, the parts are added up. The maximum score takes two more barriers:
// FINAL_THREADS threads reduce the values of all threads, then all threads reduce the results. After another barrier,
// each thread has a vector of the head and accumulates the values of every VALUE_GROUPS-th key. The first keys and
// values of a tile are prefetched before the number of keys is loaded. Keys past the last one are read but not used.
//
// Twin in the oracle: core/src/ops/attention/cached.rs.

// Queries of all heads and sequences; rows and heads of a sequence, of queries and of keys.
const QUERIES: u32 = 9u;
const ROWS_Q: u32 = 1u;
const ROWS_K: u32 = 512u;
const HEADS: u32 = 9u;
const KV_HEADS: u32 = 3u;
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
// Keys of a tile, threads that share a key, and workgroups that share the keys of a query.
const KEYS: u32 = 512u;
const KEY_THREADS: u32 = 4u;
const WORKGROUPS: u32 = 1u;
// Threads that accumulate the vectors of a value: the vectors of a head, rounded up to a power of two.
const VECTOR_THREADS: u32 = 16u;

const GROUP: u32 = HEADS / KV_HEADS;
const VECTORS: u32 = HEAD_DIM / 4u;
const ROW_VECTORS: u32 = KV_HEADS * VECTORS;
// Exclusive upper bound of the number of cached keys before the queries.
const POSITIONS: u32 = ROWS_K + 1u - ROWS_Q;
const THREADS: u32 = 256u;
// Threads that reduce the values of all threads, and the number of values that each of them reads.
const FINAL_THREADS: u32 = 16u;
const FINAL_VALUES: u32 = THREADS / FINAL_THREADS;
// Threads that have the same vector of values, and loads of these prefetched at a time.
const VALUE_GROUPS: u32 = THREADS / VECTOR_THREADS;
const VALUES_UNROLL: u32 = 8u;
// Vectors of a key that a thread reads, keys whose vectors it prefetches at a time, and distance of a thread's keys.
const PIECES: u32 = (VECTORS + KEY_THREADS - 1u) / KEY_THREADS;
const KEYS_UNROLL: u32 = max(1u, min(2u, 16u / PIECES));
const KEY_STEP: u32 = THREADS / KEY_THREADS;
const MIN_F32: f32 = -3.4028234e38;
const i: u32 = 0u; // indices of repeats
const p: u32 = 0u;

var<storage, read> q: array<vec4<f32>>;
var<storage, read> k: array<vec4<f32>>;
var<storage, read> v: array<vec4<f32>>;
var<storage, read> positions: array<u32>;
var<storage, read> block_table: array<u32>;
var<storage, read> sinks: array<f32>;
var<storage, read> tiles: array<vec4<u32>>; // the first number is 1 if a tile is of one sequence
var<storage, read_write> out: array<vec4<f32>>;
// Partial results of the workgroups that share the keys of a query: sums of values; maximum score and sum of
// exponentials.
var<storage, read_write> found_sums: array<vec4<f32>>;
var<storage, read_write> found_numbers: array<f32>;

var<workgroup> partial: array<f32, KEY_THREADS * KEYS>;
var<workgroup> folded: array<vec4<f32>, THREADS>;
var<workgroup> few: array<f32, FINAL_THREADS>;

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

fn store_numbers(group_number: u32, local: u32, greatest: f32, total: f32) {
    if (local == 0u) {
        found_numbers[group_number * 2u] = greatest;
        found_numbers[group_number * 2u + 1u] = total;
    }
}

// lib/fault.wgsl
fn checked_index(index: u32, rows: u32) -> u32 { return min(index, rows - 1u); }

// lib/math.wgsl
fn exp_f32(x: f32) -> f32 { return exp(x); }

// Index of a vector of a key or a value; rows are clamped to the last one.
fn index_of(sequence: u32, row: u32, shared_head: u32, vector: u32) -> u32 {
    let within = min(row, ROWS_K - 1u);
    var cached = sequence * ROWS_K + within;
    // @if PAGED
    let block = min(load_block(sequence * TABLE_LEN + within / BLOCK_ROWS), BLOCKS - 1u);
    cached = block * BLOCK_ROWS + within % BLOCK_ROWS;
    // @end
    return cached * ROW_VECTORS + shared_head / 4u + vector;
}

// Index of the vector that a thread reads of a key or the query, clamped to the last one.
fn piece_of_key(slot: u32, piece: u32) -> u32 {
    return min(slot + piece * KEY_THREADS, VECTORS - 1u);
}

// Adds the product of a key's vector and the query's one to a sum, except past the last vector.
fn add_product(sum: vec4<f32>, query: vec4<f32>, key: vec4<f32>, vector: u32) -> vec4<f32> {
    var added = fma(query, key, sum);
    // @if VECTORS % KEY_THREADS > 0
    added = select(sum, added, vector < VECTORS);
    // @end
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

// lib/workgroup.wgsl
fn join_all(value: f32, local: u32, greatest: bool) -> f32 { return value; }

// Sums of the parts of a vector of values, neighbours first; the last function returns the sum of all parts.
fn sum_2(at: u32) -> vec4<f32> { return folded[at] + folded[at + VECTOR_THREADS]; }
fn sum_4(at: u32) -> vec4<f32> { return sum_2(at) + sum_2(at + 2u * VECTOR_THREADS); }
fn sum_8(at: u32) -> vec4<f32> { return sum_4(at) + sum_4(at + 4u * VECTOR_THREADS); }
fn sum_16(at: u32) -> vec4<f32> { return sum_8(at) + sum_8(at + 8u * VECTOR_THREADS); }
fn sum_32(at: u32) -> vec4<f32> { return sum_16(at) + sum_16(at + 16u * VECTOR_THREADS); }
fn sum_64(at: u32) -> vec4<f32> { return sum_32(at) + sum_32(at + 32u * VECTOR_THREADS); }
fn sum_128(at: u32) -> vec4<f32> { return sum_64(at) + sum_64(at + 64u * VECTOR_THREADS); }
fn sum_256(at: u32) -> vec4<f32> { return sum_128(at) + sum_128(at + 128u * VECTOR_THREADS); }
fn sum_i(at: u32) -> vec4<f32> { return sum_16(at); }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    var own_query = group_number;
    // @if WORKGROUPS > 1
    own_query = group_number % QUERIES;
    // @end
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
    var seen_from = 0u;
    // @if WINDOW > 0
    seen_from = max(seen_to, WINDOW) - WINDOW;
    // @end
    var start = seen_from;
    var end = seen_to;
    // @if WORKGROUPS > 1
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
    // @end
    let slot = local % KEY_THREADS;
    let piece = min(local % VECTOR_THREADS, VECTORS - 1u);
    let part = local / VECTOR_THREADS;
    let first_key = local / KEY_THREADS;
    var greatest = MIN_F32;
    var total = 0.0;
    var sum = vec4<f32>();
    var tile = start;
    loop {
        // @repeat i < VALUES_UNROLL
        let value_i = load_v(index_of(sequence, tile + part + i * VALUE_GROUPS, shared_head, piece));
        // @end
        // @repeat i < KEYS_UNROLL, p < PIECES
        let key_i_p = load_k(index_of(sequence, tile + first_key + i * KEY_STEP, shared_head, piece_of_key(slot, p)));
        // @end
        let count = min(end - tile, KEYS);
        // @repeat i < KEYS_UNROLL
        var product_i = vec4<f32>();
        // @end
        // @repeat p < PIECES
        let query_p = load_q(own / 4u + piece_of_key(slot, p));
        // @repeat i < KEYS_UNROLL
        product_i = add_product(product_i, query_p, key_i_p, slot + p * KEY_THREADS);
        // @end
        // @end
        // @repeat i < KEYS_UNROLL
        store_score(slot, first_key + i * KEY_STEP, count, product_i);
        // @end
        for (var j = first_key + KEYS_UNROLL * KEY_STEP; j < count; j += KEYS_UNROLL * KEY_STEP) {
            // @repeat i < KEYS_UNROLL, p < PIECES
            let key_i_p = load_k(index_of(sequence, tile + j + i * KEY_STEP, shared_head, piece_of_key(slot, p)));
            // @end
            // @repeat i < KEYS_UNROLL
            var product_i = vec4<f32>();
            // @end
            // @repeat p < PIECES
            let query_p = load_q(own / 4u + piece_of_key(slot, p));
            // @repeat i < KEYS_UNROLL
            product_i = add_product(product_i, query_p, key_i_p, slot + p * KEY_THREADS);
            // @end
            // @end
            // @repeat i < KEYS_UNROLL
            store_score(slot, j + i * KEY_STEP, count, product_i);
            // @end
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
        // @repeat i < VALUES_UNROLL
        sum = add_value(sum, value_i, part + i * VALUE_GROUPS, count);
        // @end
        for (var first = part + VALUES_UNROLL * VALUE_GROUPS; first < count; first += VALUES_UNROLL * VALUE_GROUPS) {
            // @repeat i < VALUES_UNROLL
            let value_i = load_v(index_of(sequence, tile + first + i * VALUE_GROUPS, shared_head, piece));
            // @end
            // @repeat i < VALUES_UNROLL
            sum = add_value(sum, value_i, first + i * VALUE_GROUPS, count);
            // @end
        }
        tile += KEYS;
        if (tile >= end) {
            break;
        }
        workgroupBarrier();
    }
    total = join_all(total, local, false);
    // @if SINKS
    total += exp_f32(load_sink(head) - greatest);
    // @end
    workgroupBarrier();
    folded[local] = sum;
    workgroupBarrier();
    if (local < VECTORS) {
        // @repeat i < VALUE_GROUPS + 1
        // @if i == VALUE_GROUPS
        sum = sum_i(local);
        // @end
        // @end
        // @if WORKGROUPS > 1
        found_sums[group_number * VECTORS + local] = sum;
        // @else
        store(own, local, sum / total);
        // @end
    }
    // @if WORKGROUPS > 1
    store_numbers(group_number, local, greatest, total);
    // @end
}
