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
const QUERIES: u32 = 9u;
const ROWS_Q: u32 = 1u;
const ROWS_K: u32 = 512u;
const HEADS: u32 = 9u;
const KV_HEADS: u32 = 3u;
const HEAD_DIM: u32 = 64u;
// Most keys that a query sees, or 0.
const WINDOW: u32 = 0u;
// Whether the cache is in blocks, of which the table of each sequence names TABLE_LEN of the BLOCKS that there are.
const PAGED: bool = false;
const TABLE_LEN: u32 = 32u;
const BLOCK_ROWS: u32 = 16u;
const BLOCKS: u32 = 64u;
// Keys of a tile, threads that share a key, and workgroups that share the keys of a query.
const KEYS: u32 = 512u;
const SHARING: u32 = 4u;
const WORKGROUPS: u32 = 1u;
// Threads side by side in the sum of values: vectors of a head, up to a power of two.
const ACROSS: u32 = 16u;

const GROUP: u32 = HEADS / KV_HEADS;
const VECTORS: u32 = HEAD_DIM / 4u;
const ROW_VECTORS: u32 = KV_HEADS * VECTORS;
// Cached keys that there may be before the queries are one less.
const POSITIONS: u32 = ROWS_K + 1u - ROWS_Q;
const THREADS: u32 = 256u;
// Threads that bring together what all have, and numbers that each of them reads.
const FEW: u32 = 16u;
const EACH: u32 = THREADS / FEW;
// Threads that have the same vector of values, and loads of these prefetched at a time.
const PARTS: u32 = THREADS / ACROSS;
const VALUES_TOGETHER: u32 = 8u;
// Vectors of a key that a thread reads, keys whose vectors it prefetches at a time, and keys from one to the next.
const PIECES: u32 = (VECTORS + SHARING - 1u) / SHARING;
const KEYS_TOGETHER: u32 = max(1u, min(2u, 16u / PIECES));
const KEY_STEP: u32 = THREADS / SHARING;
const MIN_F32: f32 = -3.4028234e38;
const i: u32 = 0u; // indices of repeats
const p: u32 = 0u;

var<storage, read> q: array<vec4<f32>>;
var<storage, read> k: array<vec4<f32>>;
var<storage, read> v: array<vec4<f32>>;
var<storage, read> positions: array<u32>;
var<storage, read> block_table: array<u32>;
var<storage, read_write> out: array<vec4<f32>>;
// What workgroups found that share keys: sums of values; the greatest score, and the sum of exponentials.
var<storage, read_write> found_sums: array<vec4<f32>>;
var<storage, read_write> found_numbers: array<f32>;

var<workgroup> partial: array<f32, SHARING * KEYS>;
var<workgroup> folded: array<vec4<f32>, THREADS>;
var<workgroup> few: array<f32, FEW>;

fn load_q(index: u32) -> vec4<f32> { return q[index]; }
fn load_k(index: u32) -> vec4<f32> { return k[index]; }
fn load_v(index: u32) -> vec4<f32> { return v[index]; }

// The number of cached keys of a sequence.
fn load_position(sequence: u32) -> u32 { return positions[sequence]; }

// An entry of the block table.
fn load_block(index: u32) -> u32 { return block_table[index]; }

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

// A vector of a key or a value: that of the last row for those behind it.
fn index_of(sequence: u32, row: u32, shared_head: u32, vector: u32) -> u32 {
    let within = min(row, ROWS_K - 1u);
    var cached = sequence * ROWS_K + within;
    // @if PAGED
    let block = min(load_block(sequence * TABLE_LEN + within / BLOCK_ROWS), BLOCKS - 1u);
    cached = block * BLOCK_ROWS + within % BLOCK_ROWS;
    // @end
    return cached * ROW_VECTORS + shared_head / 4u + vector;
}

// The vector that a thread reads of a key or the query: the last one for those behind it.
fn piece_of_key(slot: u32, piece: u32) -> u32 {
    return min(slot + piece * SHARING, VECTORS - 1u);
}

// A vector of a key with that of the query: nothing behind the last one.
fn add_product(sum: vec4<f32>, query: vec4<f32>, key: vec4<f32>, vector: u32) -> vec4<f32> {
    var added = fma(query, key, sum);
    // @if VECTORS % SHARING > 0
    added = select(sum, added, vector < VECTORS);
    // @end
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

// lib/workgroup.wgsl
fn join_all(value: f32, local: u32, greatest: bool) -> f32 { return value; }

// Sums of the parts of a vector of values, of neighbours first; the last function stands for that of all parts.
fn sum_2(at: u32) -> vec4<f32> { return folded[at] + folded[at + ACROSS]; }
fn sum_4(at: u32) -> vec4<f32> { return sum_2(at) + sum_2(at + 2u * ACROSS); }
fn sum_8(at: u32) -> vec4<f32> { return sum_4(at) + sum_4(at + 4u * ACROSS); }
fn sum_16(at: u32) -> vec4<f32> { return sum_8(at) + sum_8(at + 8u * ACROSS); }
fn sum_32(at: u32) -> vec4<f32> { return sum_16(at) + sum_16(at + 16u * ACROSS); }
fn sum_64(at: u32) -> vec4<f32> { return sum_32(at) + sum_32(at + 32u * ACROSS); }
fn sum_128(at: u32) -> vec4<f32> { return sum_64(at) + sum_64(at + 64u * ACROSS); }
fn sum_256(at: u32) -> vec4<f32> { return sum_128(at) + sum_128(at + 128u * ACROSS); }
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
    let slot = local % SHARING;
    let piece = min(local % ACROSS, VECTORS - 1u);
    let part = local / ACROSS;
    let first_key = local / SHARING;
    var greatest = MIN_F32;
    var total = 0.0;
    var sum = vec4<f32>();
    var tile = start;
    loop {
        // @repeat i < VALUES_TOGETHER
        let value_i = load_v(index_of(sequence, tile + part + i * PARTS, shared_head, piece));
        // @end
        // @repeat i < KEYS_TOGETHER, p < PIECES
        let key_i_p = load_k(index_of(sequence, tile + first_key + i * KEY_STEP, shared_head, piece_of_key(slot, p)));
        // @end
        let count = min(end - tile, KEYS);
        // @repeat i < KEYS_TOGETHER
        var product_i = vec4<f32>();
        // @end
        // @repeat p < PIECES
        let query_p = load_q(own / 4u + piece_of_key(slot, p));
        // @repeat i < KEYS_TOGETHER
        product_i = add_product(product_i, query_p, key_i_p, slot + p * SHARING);
        // @end
        // @end
        // @repeat i < KEYS_TOGETHER
        store_score(slot, first_key + i * KEY_STEP, count, product_i);
        // @end
        for (var j = first_key + KEYS_TOGETHER * KEY_STEP; j < count; j += KEYS_TOGETHER * KEY_STEP) {
            // @repeat i < KEYS_TOGETHER, p < PIECES
            let key_i_p = load_k(index_of(sequence, tile + j + i * KEY_STEP, shared_head, piece_of_key(slot, p)));
            // @end
            // @repeat i < KEYS_TOGETHER
            var product_i = vec4<f32>();
            // @end
            // @repeat p < PIECES
            let query_p = load_q(own / 4u + piece_of_key(slot, p));
            // @repeat i < KEYS_TOGETHER
            product_i = add_product(product_i, query_p, key_i_p, slot + p * SHARING);
            // @end
            // @end
            // @repeat i < KEYS_TOGETHER
            store_score(slot, j + i * KEY_STEP, count, product_i);
            // @end
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
        // @repeat i < VALUES_TOGETHER
        sum = add_value(sum, value_i, part + i * PARTS, count);
        // @end
        for (var first = part + VALUES_TOGETHER * PARTS; first < count; first += VALUES_TOGETHER * PARTS) {
            // @repeat i < VALUES_TOGETHER
            let value_i = load_v(index_of(sequence, tile + first + i * PARTS, shared_head, piece));
            // @end
            // @repeat i < VALUES_TOGETHER
            sum = add_value(sum, value_i, first + i * PARTS, count);
            // @end
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
        // @repeat i < PARTS + 1
        // @if i == PARTS
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
