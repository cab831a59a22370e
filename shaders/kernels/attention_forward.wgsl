// Attention without cooperative matrices: softmax over tiles of keys with a running maximum score and sum (Milakov and
// Gimelshein, 2018; Dao et al., 2022).
//
// A workgroup has a tile of ROWS queries of one head and iterates over tiles of COLUMNS keys. A thread has four
// queries. In the scores, it has four keys that are COLUMN_THREADS apart; in the results, one vector of the head.
// Products pass through shared memory in steps. The operands of the next step are prefetched, with a barrier before and
// after each step:
// - scores: DEPTH vectors of the queries and of all keys of the tile per step;
// - softmax: the values of the threads of a row are reduced, with two barriers;
// - results: COLUMN_THREADS values per step, whose weights pass through shared memory, and a slab of SLAB vectors of
//   each. The threads of a row form SLAB_GROUPS groups. Each group accumulates a part of the values; at the end, the
//   parts are added pairwise.
//
// Twin in the oracle: core/src/ops/attention/mod.rs, and cached.rs for calls over a cache, which have a position.

const ROWS_Q: u32 = 128u;
const ROWS_K: u32 = 128u;
const HEADS: u32 = 9u;
const ALL_HEADS: u32 = 9u; // number of heads of all sequences
const KV_HEADS: u32 = 3u;
const HEAD_DIM: u32 = 64u;
// True if attention is causal; window in keys, 0 for none; true if keys are in a cache.
const CAUSAL: bool = true;
const WINDOW: u32 = 0u;
const CACHED: bool = false;
// True if each head has a sink: a further score, which has no value.
const SINKS: bool = false;
// Number of queries of a tile, and of vectors of a slab, which is a power of two up to 16.
const ROWS: u32 = 16u;
const SLAB: u32 = 16u;

const VECTORS: u32 = (HEAD_DIM + 3u) / 4u;
// Number of keys to which the first query attends without a window; if keys are in a cache, the maximum.
const SHIFT: u32 = ROWS_K + 1u - min(ROWS_Q, ROWS_K);
// Number of queries of a thread, of threads of a row and of a column, and of keys of a tile.
const THREAD_TILE: u32 = 4u;
const COLUMN_THREADS: u32 = 32u;
const ROW_THREADS: u32 = ROWS / THREAD_TILE;
const THREADS: u32 = ROW_THREADS * COLUMN_THREADS;
const COLUMNS: u32 = THREAD_TILE * COLUMN_THREADS;
// Number of vectors of a row per step of the scores. The stride has one more vector, which avoids bank conflicts.
const DEPTH: u32 = 4u;
const STRIDE: u32 = DEPTH + 1u;
const STEPS: u32 = (VECTORS + DEPTH - 1u) / DEPTH;
const SLABS: u32 = (VECTORS + SLAB - 1u) / SLAB;
// Number of groups of threads that accumulate parts of the same results, and of rounds that merge these parts pairwise.
const SLAB_GROUPS: u32 = COLUMN_THREADS / SLAB;
const MERGES: u32 = min(1u, SLAB_GROUPS / 2u) + min(1u, SLAB_GROUPS / 4u) + min(1u, SLAB_GROUPS / 8u) + min(1u, SLAB_GROUPS / 16u) + SLAB_GROUPS / 32u;
// Number of vectors that a thread copies for a step of the scores, and of the results.
const PIECES: u32 = COLUMNS * DEPTH / THREADS;
const VALUES: u32 = COLUMN_THREADS * SLAB;
const VALUE_PIECES: u32 = (VALUES + THREADS - 1u) / THREADS;
const SOME: u32 = 8u; // number of threads of a row that combine the values of all threads of the row
// Shared memory contains one after the other: keys and queries; values, weights and maxima or sums of rows; results.
const QUERIES_AT: u32 = COLUMNS * STRIDE;
const REDUCED_AT: u32 = VALUES + COLUMN_THREADS * (ROW_THREADS + 1u);
const SHARED: u32 = max(max((COLUMNS + ROWS) * STRIDE, REDUCED_AT + ROW_THREADS * SOME), ROWS * COLUMN_THREADS / 2u);
const i: u32 = 0u; // indices of repeats
const j: u32 = 0u;
const p: u32 = 0u;
const slab: u32 = 0u;
const chunk: u32 = 0u;

var<storage, read> q: array<vec4<f32>>;
var<storage, read> k: array<vec4<f32>>;
var<storage, read> v: array<vec4<f32>>;
var<storage, read> positions: array<u32>;
var<storage, read> sinks: array<f32>;
var<storage, read_write> out: array<vec4<f32>>;
var<storage, read_write> lse: array<f32>;
var<workgroup> pool: array<vec4<f32>, SHARED>;
// Last key. Later rows of the cache have arbitrary contents, including NaN.
var<private> last_key: u32;

// Load a vector of the row that begins at element `start`, and the number of cached keys of a sequence.
fn load_q(start: u32, vector: u32) -> vec4<f32> { return q[start / 4u + vector]; }
fn load_k(start: u32, vector: u32) -> vec4<f32> { return k[start / 4u + vector]; }
fn load_v(start: u32, vector: u32) -> vec4<f32> { return v[start / 4u + vector]; }
fn load_position(batch: u32) -> u32 { return positions[batch]; }
// The sink of a head.
fn load_sink(head: u32) -> f32 { return sinks[head]; }
// Store a vector of a result, and the logarithm of the sum of exponentials of a query.
fn store(start: u32, vector: u32, value: vec4<f32>) { out[start / 4u + vector] = value; }
fn store_lse(index: u32, value: f32) { lse[index] = value; }
fn scale() -> f32 { return 0.125; }
// lib/fault.wgsl, lib/math.wgsl
fn checked_index(index: u32, rows: u32) -> u32 { return min(index, rows - 1u); }
fn from_bits(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn numerators(x: vec4<f32>) -> vec4<f32> { return exp(x); }
fn log_f32(x: f32) -> f32 { return log(x); }
// Index of the first element of a head in a row of queries and of keys; rows are clamped to the last one.
fn query_start(batch: u32, row: u32, head: u32) -> u32 { return ((batch * ROWS_Q + row) * HEADS + head) * HEAD_DIM; }
fn key_start(batch: u32, row: u32, kv_head: u32) -> u32 {
    return ((batch * ROWS_K + min(row, last_key)) * KV_HEADS + kv_head) * HEAD_DIM;
}
// Returns a loaded vector, or zeros past the end of the head.
fn within(vector: u32, value: vec4<f32>) -> vec4<f32> {
    var known = value;
    // @if VECTORS % DEPTH > 0
    known = select(vec4<f32>(), value, vector <= VECTORS - 1u);
    // @end
    return known;
}
fn fetch_q(batch: u32, row: u32, head: u32, vector: u32) -> vec4<f32> {
    return within(vector, load_q(query_start(batch, min(row, ROWS_Q - 1u), head), min(vector, VECTORS - 1u)));
}
fn fetch_k(batch: u32, row: u32, kv_head: u32, vector: u32) -> vec4<f32> {
    return within(vector, load_k(key_start(batch, row, kv_head), min(vector, VECTORS - 1u)));
}
fn fetch_v(batch: u32, row: u32, kv_head: u32, vector: u32) -> vec4<f32> {
    return within(vector, load_v(key_start(batch, row, kv_head), min(vector, VECTORS - 1u)));
}

fn join(a: vec4<f32>, b: vec4<f32>, greatest: bool) -> vec4<f32> { return select(a + b, max(a, b), greatest); }
// Returns the maximum, or the sum, of the values of the threads of a row.
fn join_row(value: vec4<f32>, greatest: bool, local: u32) -> vec4<f32> {
    pool[local] = value;
    workgroupBarrier();
    let reduced = REDUCED_AT + local / COLUMN_THREADS * SOME;
    if (local % COLUMN_THREADS < SOME) {
        let at = local / COLUMN_THREADS * COLUMN_THREADS + local % COLUMN_THREADS * (COLUMN_THREADS / SOME);
        var some = pool[at];
        // @repeat i < COLUMN_THREADS / SOME - 1
        some = join(some, pool[at + (i + 1u)], greatest);
        // @end
        pool[reduced + local % COLUMN_THREADS] = some;
    }
    workgroupBarrier();
    var all = pool[reduced];
    // @repeat i < SOME - 1
    all = join(all, pool[reduced + (i + 1u)], greatest);
    // @end
    return all;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    // With a causal mask the last queries take longest: they come first.
    let tile = (ROWS_Q - 1u) / ROWS - group_number / ALL_HEADS;
    let batch = group_number % ALL_HEADS / HEADS;
    let head = group_number % HEADS;
    let kv_head = head / (HEADS / KV_HEADS);
    let first = tile * ROWS;
    let last = min(first + ROWS, ROWS_Q) - 1u;
    let down = local / COLUMN_THREADS;
    let across = local % COLUMN_THREADS;
    let part = across / SLAB;
    let piece = across % SLAB;
    let row = first + down * THREAD_TILE;
    last_key = ROWS_K - 1u;
    // Ranges of keys that some of the queries attend to, that all of them do, and that each of the thread's queries
    // does.
    var begin = 0u;
    var end = ROWS_K;
    var all_from = 0u;
    var all_to = ROWS_K;
    var seen_from = vec4<u32>();
    var seen_to = vec4<u32>(ROWS_K);
    // @if CAUSAL
    var shift = SHIFT;
    // @if CACHED
    let given = load_position(batch);
    if (local == 0u) { let reported = checked_index(given, SHIFT); }
    shift = min(given, SHIFT - 1u) + 1u;
    last_key = shift + ROWS_Q - 2u;
    // @end
    end = last + shift;
    all_to = first + shift;
    // Rows without a query behave like the last query.
    seen_to = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(ROWS_Q - 1u)) + vec4<u32>(shift);
    // @if WINDOW > 0
    begin = max(first + shift, WINDOW) - WINDOW;
    all_from = max(last + shift, WINDOW) - WINDOW;
    seen_from = max(seen_to, vec4<u32>(WINDOW)) - vec4<u32>(WINDOW);
    // @end
    // @end
    let hidden = vec4<f32>(from_bits(0xff800000u));
    var greatest = vec4<f32>(-3.4028234e38);
    var sums = vec4<f32>();
    // @repeat slab < SLABS, i < THREAD_TILE
    var out_slab_i = vec4<f32>();
    // @end
    // @repeat p < PIECES
    var key_p = fetch_k(batch, begin + (local + p * THREADS) / DEPTH, kv_head, (local + p * THREADS) % DEPTH);
    // @end
    var query = fetch_q(batch, first + local / DEPTH, head, local % DEPTH);
    for (var column = begin; column < end; column += COLUMNS) {
        var s: array<vec4<f32>, THREAD_TILE>;
        for (var step = 0u; step < STEPS; step += 1u) {
            // @repeat p < PIECES
            pool[(local + p * THREADS) / DEPTH * STRIDE + (local + p * THREADS) % DEPTH] = key_p;
            // @end
            if (local < ROWS * DEPTH) { pool[QUERIES_AT + local / DEPTH * STRIDE + local % DEPTH] = query; }
            workgroupBarrier();
            if (STEPS > 1u && step + 1u < STEPS) {
                let depth = (step + 1u) * DEPTH;
                // @repeat p < PIECES
                key_p = fetch_k(batch, column + (local + p * THREADS) / DEPTH, kv_head, depth + (local + p * THREADS) % DEPTH);
                // @end
                query = fetch_q(batch, first + local / DEPTH, head, depth + local % DEPTH);
            }
            for (var d = 0u; d < DEPTH; d += 1u) {
                let at = QUERIES_AT + down * THREAD_TILE * STRIDE + d;
                let a = pool[at];
                let b = pool[at + STRIDE];
                let c = pool[at + 2u * STRIDE];
                let e = pool[at + 3u * STRIDE];
                // @repeat j < THREAD_TILE
                let column_j = pool[(across + j * COLUMN_THREADS) * STRIDE + d];
                s[j] = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_j.x), s[j]);
                s[j] = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_j.y), s[j]);
                s[j] = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_j.z), s[j]);
                s[j] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_j.w), s[j]);
                // @end
            }
            workgroupBarrier();
        }
        // The first operands of the results are prefetched while weights are computed from the scores.
        // @repeat p < VALUE_PIECES
        var value_p = fetch_v(batch, column + (local + p * THREADS) / SLAB, kv_head, (local + p * THREADS) % SLAB);
        // @end
        // @repeat j < THREAD_TILE
        s[j] *= scale();
        // @end
        if (column < all_from || column + COLUMNS > all_to) {
            // @repeat j < THREAD_TILE
            let number_j = vec4<u32>(column + across + j * COLUMN_THREADS);
            s[j] = select(hidden, s[j], (number_j >= seen_from) & (number_j < seen_to));
            // @end
        }
        let most = max(greatest, join_row(max(max(s[0], s[1]), max(s[2], s[3])), true, local));
        let change = numerators(greatest - most);
        greatest = most;
        // @repeat j < THREAD_TILE
        s[j] = numerators(s[j] - most);
        // @end
        sums = sums * change + ((s[0] + s[1]) + (s[2] + s[3]));
        // @repeat slab < SLABS, i < THREAD_TILE
        out_slab_i *= change[i];
        // @end
        // @repeat chunk < THREAD_TILE
        // @if chunk > 0
        if (column + chunk * COLUMN_THREADS >= end) { break; }
        // @end
        // @repeat slab < SLABS
        // @repeat p < VALUE_PIECES
        if (VALUES % THREADS == 0u || local + p * THREADS < VALUES) { pool[local + p * THREADS] = value_p; }
        // @end
        // @if slab == 0
        pool[VALUES + across * (ROW_THREADS + 1u) + down] = s[chunk];
        // @end
        workgroupBarrier();
        // @if slab + 1 < SLABS || chunk + 1 < THREAD_TILE
        let ahead_chunk_slab = column + (chunk + (slab + 1u) / SLABS) * COLUMN_THREADS;
        // @repeat p < VALUE_PIECES
        value_p = fetch_v(batch, ahead_chunk_slab + (local + p * THREADS) / SLAB, kv_head,
            (slab + 1u) % SLABS * SLAB + (local + p * THREADS) % SLAB);
        // @end
        // @else
        if (column + COLUMNS < end) {
            // @repeat p < PIECES
            key_p = fetch_k(batch, column + COLUMNS + (local + p * THREADS) / DEPTH, kv_head, (local + p * THREADS) % DEPTH);
            // @end
            query = fetch_q(batch, first + local / DEPTH, head, local % DEPTH);
        }
        // @end
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let value = pool[n * SLAB + piece];
            let weights = pool[VALUES + n * (ROW_THREADS + 1u) + down];
            // @repeat i < THREAD_TILE
            out_slab_i = fma(vec4<f32>(weights[i]), value, out_slab_i);
            // @end
        }
        workgroupBarrier();
        // @end
        // @end
    }
    // If all scores are minus infinity, there are no numerators. Adjacent threads store adjacent elements.
    var sum = join_row(sums, false, local);
    // @if SINKS
    sum += numerators(vec4<f32>(load_sink(head)) - greatest);
    // @end
    let total = select(sum, vec4<f32>(from_bits(0x7fc00000u)), sum == vec4<f32>());
    workgroupBarrier();
    // @repeat j < MERGES, slab < SLABS
    if (part >= (SLAB_GROUPS >> (j + 1u)) && part < (SLAB_GROUPS >> j)) {
        // @repeat i < THREAD_TILE
        pool[(down * THREAD_TILE + i) * (COLUMN_THREADS >> (j + 1u)) + across % (COLUMN_THREADS >> (j + 1u))] = out_slab_i;
        // @end
    }
    workgroupBarrier();
    if (part < (SLAB_GROUPS >> (j + 1u))) {
        // @repeat i < THREAD_TILE
        out_slab_i += pool[(down * THREAD_TILE + i) * (COLUMN_THREADS >> (j + 1u)) + across % (COLUMN_THREADS >> (j + 1u))];
        // @end
    }
    workgroupBarrier();
    // @end
    if (part == 0u) {
        // @repeat slab < SLABS, i < THREAD_TILE
        if (row + i < ROWS_Q) { store(query_start(batch, row + i, head), slab * SLAB + piece, out_slab_i / total[i]); }
        // @end
    }
    // @if !CACHED
    if (across == 0u) {
        for (var n = 0u; n < THREAD_TILE && row + n < ROWS_Q; n++) {
            store_lse((batch * HEADS + head) * ROWS_Q + row + n, greatest[n] + log_f32(total[n]));
        }
    }
    // @end
}
