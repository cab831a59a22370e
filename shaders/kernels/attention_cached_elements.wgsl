// Attention of few queries over a cache, for heads without vectors of four elements: a workgroup has a query of one
// head, and iterates over its keys in tiles of THREADS, with the running maximum score and sum of exponentials (Milakov
// and Gimelshein, 2018). A thread has one key of a tile and stores its score, then its weight, in shared memory. Every
// thread reads all of them, and accumulates the values for every THREADS-th element of the result. A tile has four
// barriers.
//
// Twin in the oracle: core/src/ops/attention/cached.rs.

// Rows and heads of a sequence, of queries and of keys.
const ROWS_Q: u32 = 1u;
const ROWS_K: u32 = 512u;
const HEADS: u32 = 9u;
const KV_HEADS: u32 = 3u;
const HEAD_DIM: u32 = 62u;
// Window: maximum number of keys that a query attends to; 0 for no limit.
const WINDOW: u32 = 0u;
// True if the cache is paged: the table of each sequence has TABLE_LEN entries with indices of the BLOCKS blocks.
const PAGED: bool = false;
const TABLE_LEN: u32 = 32u;
const BLOCK_ROWS: u32 = 16u;
const BLOCKS: u32 = 64u;
// True if each head has a sink: a further score, which has no value.
const SINKS: bool = false;
const GROUP: u32 = HEADS / KV_HEADS;
const ROW: u32 = KV_HEADS * HEAD_DIM;
// Exclusive upper bound of the number of cached keys before the queries.
const POSITIONS: u32 = ROWS_K + 1u - ROWS_Q;
const THREADS: u32 = 64u;
// Elements of a thread; the last one may be past the end of the head.
const THREAD_ELEMENTS: u32 = (HEAD_DIM + THREADS - 1u) / THREADS;
const MIN_F32: f32 = -3.4028234e38;

var<storage, read> q: array<f32>;
var<storage, read> k: array<f32>;
var<storage, read> v: array<f32>;
var<storage, read> positions: array<u32>;
var<storage, read> block_table: array<u32>;
var<storage, read> sinks: array<f32>;
var<storage, read_write> out: array<f32>;

var<workgroup> query: array<f32, HEAD_DIM>;
var<workgroup> scores: array<f32, THREADS>;

fn load_q(index: u32) -> f32 {
    return q[index];
}

fn load_k(index: u32) -> f32 {
    return k[index];
}

fn load_v(index: u32) -> f32 {
    return v[index];
}

// The number of cached keys of a sequence.
fn load_position(sequence: u32) -> u32 {
    return positions[sequence];
}

// An entry of the block table.
fn load_block(index: u32) -> u32 {
    return block_table[index];
}

// The sink of a head.
fn load_sink(head: u32) -> f32 {
    return sinks[head];
}

fn store(index: u32, value: f32) {
    out[index] = value;
}

fn scale() -> f32 {
    return 0.127;
}

// lib/fault.wgsl
fn checked_index(index: u32, rows: u32) -> u32 {
    return min(index, rows - 1u);
}

// lib/math.wgsl
fn exp_f32(x: f32) -> f32 {
    return exp(x);
}

// Row of the cache that contains a row of a sequence.
fn cached_row(sequence: u32, row: u32) -> u32 {
    var cached = sequence * ROWS_K + row;
    // @if PAGED
    let block = min(load_block(sequence * TABLE_LEN + row / BLOCK_ROWS), BLOCKS - 1u);
    cached = block * BLOCK_ROWS + row % BLOCK_ROWS;
    // @end
    return cached;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let head = group_number % HEADS;
    let row = group_number / HEADS % ROWS_Q;
    let sequence = group_number / (HEADS * ROWS_Q);
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
    let end = min(given, POSITIONS - 1u) + row + 1u;
    var start = 0u;
    // @if WINDOW > 0
    start = max(end, WINDOW) - WINDOW;
    // @end
    for (var e = local; e < HEAD_DIM; e += THREADS) {
        query[e] = load_q(own + e);
    }
    var sums: array<f32, THREAD_ELEMENTS>;
    var greatest = MIN_F32;
    var total = 0.0;
    workgroupBarrier();
    for (var tile = start; tile < end; tile += THREADS) {
        let count = min(end - tile, THREADS);
        let key = tile + local;
        var score = MIN_F32;
        if (local < count) {
            var product = 0.0;
            for (var e = 0u; e < HEAD_DIM; e += 1u) {
                product += query[e] * load_k(cached_row(sequence, key) * ROW + shared_head + e);
            }
            score = product * scale();
        }
        scores[local] = score;
        workgroupBarrier();
        var most = greatest;
        for (var j = 0u; j < count; j += 1u) {
            most = max(most, scores[j]);
        }
        workgroupBarrier();
        if (local < count) {
            scores[local] = exp_f32(score - most);
        }
        workgroupBarrier();
        let kept = exp_f32(greatest - most);
        greatest = most;
        total *= kept;
        for (var j = 0u; j < count; j += 1u) {
            total += scores[j];
        }
        for (var part = 0u; part < THREAD_ELEMENTS; part += 1u) {
            let element = part * THREADS + local;
            if (element < HEAD_DIM) {
                var sum = sums[part] * kept;
                for (var j = 0u; j < count; j += 1u) {
                    sum += scores[j] * load_v(cached_row(sequence, tile + j) * ROW + shared_head + element);
                }
                sums[part] = sum;
            }
        }
        workgroupBarrier();
    }
    // @if SINKS
    total += exp_f32(load_sink(head) - greatest);
    // @end
    for (var part = 0u; part < THREAD_ELEMENTS; part += 1u) {
        let element = part * THREADS + local;
        if (element < HEAD_DIM) {
            store(own + element, sums[part] / total);
        }
    }
}
