var<storage, read_write> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read_write> b4: array<f32>;
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
const ROWS_Q: u32 = 300u;
const ROWS_K: u32 = 310u;
const HEADS: u32 = 4u;
const ALL_HEADS: u32 = 4u;
const KV_HEADS: u32 = 2u;
const HEAD_DIM: u32 = 64u;
// Number of queries of a tile, and of vectors of a slab, which is a power of two up to 16.
const ROWS: u32 = 16u;
const SLAB: u32 = 16u;
const VECTORS: u32 = 16u;
// Number of keys to which the first query attends without a window; if keys are in a cache, the maximum.
const SHIFT: u32 = 11u;
// Number of queries of a thread, of threads of a row and of a column, and of keys of a tile.
const THREAD_TILE: u32 = 4u;
const COLUMN_THREADS: u32 = 32u;
const ROW_THREADS: u32 = 4u;
const THREADS: u32 = 128u;
const COLUMNS: u32 = 128u;
// Number of vectors of a row per step of the scores. The stride has one more vector, which avoids bank conflicts.
const DEPTH: u32 = 4u;
const STRIDE: u32 = 5u;
const STEPS: u32 = 4u;
const SLABS: u32 = 1u;
// Number of groups of threads that accumulate parts of the same results, and of rounds that merge these parts pairwise.
const SLAB_GROUPS: u32 = 2u;
const VALUES: u32 = 512u;
const SOME: u32 = 8u;
// Shared memory contains one after the other: keys and queries; values, weights and maxima or sums of rows; results.
const QUERIES_AT: u32 = 640u;
const REDUCED_AT: u32 = 672u;
const SHARED: u32 = 720u;
var<workgroup> pool: array<vec4<f32>, SHARED>;
// Last key. Later rows of the cache have arbitrary contents, including NaN.
var<private> last_key: u32;
// Load a vector of the row that begins at element `start`, and the number of cached keys of a sequence.
fn load_q(start: u32, vector: u32) -> vec4<f32> {
    return b1[start / 4u + vector];
}
fn load_k(start: u32, vector: u32) -> vec4<f32> {
    return b2[start / 4u + vector];
}
fn load_v(start: u32, vector: u32) -> vec4<f32> {
    return b3[start / 4u + vector];
}
// Store a vector of a result, and the logarithm of the sum of exponentials of a query.
fn store(start: u32, vector: u32, value: vec4<f32>) {
    if (vector < 16u) {
        b0[start / 4u + vector] = vec4<f32>(value);
    }
}
fn store_lse(index: u32, value: f32) {
    b4[index] = value;
}
fn scale() -> f32 {
    return (1.25e-1f);
}
// Index of the first element of a head in a row of queries and of keys; rows are clamped to the last one.
fn query_start(batch: u32, row: u32, head: u32) -> u32 { return ((batch * ROWS_Q + row) * HEADS + head) * HEAD_DIM; }
fn key_start(batch: u32, row: u32, kv_head: u32) -> u32 {
    return ((batch * ROWS_K + min(row, last_key)) * KV_HEADS + kv_head) * HEAD_DIM;
}
// Returns a loaded vector, or zeros past the end of the head.
fn within(vector: u32, value: vec4<f32>) -> vec4<f32> {
    var known = value;
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
        some = join(some, pool[at + (0u + 1u)], greatest);
        some = join(some, pool[at + (1u + 1u)], greatest);
        some = join(some, pool[at + (2u + 1u)], greatest);
        pool[reduced + local % COLUMN_THREADS] = some;
    }
    workgroupBarrier();
    var all = pool[reduced];
    all = join(all, pool[reduced + (0u + 1u)], greatest);
    all = join(all, pool[reduced + (1u + 1u)], greatest);
    all = join(all, pool[reduced + (2u + 1u)], greatest);
    all = join(all, pool[reduced + (3u + 1u)], greatest);
    all = join(all, pool[reduced + (4u + 1u)], greatest);
    all = join(all, pool[reduced + (5u + 1u)], greatest);
    all = join(all, pool[reduced + (6u + 1u)], greatest);
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
    var shift = SHIFT;
    end = last + shift;
    all_to = first + shift;
    // Rows without a query behave like the last query.
    seen_to = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(ROWS_Q - 1u)) + vec4<u32>(shift);
    let hidden = vec4<f32>(from_bits(0xff800000u));
    var greatest = vec4<f32>(-3.4028234e38);
    var sums = vec4<f32>();
    var out_0_0 = vec4<f32>();
    var out_0_1 = vec4<f32>();
    var out_0_2 = vec4<f32>();
    var out_0_3 = vec4<f32>();
    var key_0 = fetch_k(batch, begin + (local + 0u * THREADS) / DEPTH, kv_head, (local + 0u * THREADS) % DEPTH);
    var key_1 = fetch_k(batch, begin + (local + 1u * THREADS) / DEPTH, kv_head, (local + 1u * THREADS) % DEPTH);
    var key_2 = fetch_k(batch, begin + (local + 2u * THREADS) / DEPTH, kv_head, (local + 2u * THREADS) % DEPTH);
    var key_3 = fetch_k(batch, begin + (local + 3u * THREADS) / DEPTH, kv_head, (local + 3u * THREADS) % DEPTH);
    var query = fetch_q(batch, first + local / DEPTH, head, local % DEPTH);
    for (var column = begin; column < end; column += COLUMNS) {
        var s: array<vec4<f32>, THREAD_TILE>;
        for (var step = 0u; step < STEPS; step += 1u) {
            pool[(local + 0u * THREADS) / DEPTH * STRIDE + (local + 0u * THREADS) % DEPTH] = key_0;
            pool[(local + 1u * THREADS) / DEPTH * STRIDE + (local + 1u * THREADS) % DEPTH] = key_1;
            pool[(local + 2u * THREADS) / DEPTH * STRIDE + (local + 2u * THREADS) % DEPTH] = key_2;
            pool[(local + 3u * THREADS) / DEPTH * STRIDE + (local + 3u * THREADS) % DEPTH] = key_3;
            if (local < ROWS * DEPTH) { pool[QUERIES_AT + local / DEPTH * STRIDE + local % DEPTH] = query; }
            workgroupBarrier();
            if (STEPS > 1u && step + 1u < STEPS) {
                let depth = (step + 1u) * DEPTH;
                key_0 = fetch_k(batch, column + (local + 0u * THREADS) / DEPTH, kv_head, depth + (local + 0u * THREADS) % DEPTH);
                key_1 = fetch_k(batch, column + (local + 1u * THREADS) / DEPTH, kv_head, depth + (local + 1u * THREADS) % DEPTH);
                key_2 = fetch_k(batch, column + (local + 2u * THREADS) / DEPTH, kv_head, depth + (local + 2u * THREADS) % DEPTH);
                key_3 = fetch_k(batch, column + (local + 3u * THREADS) / DEPTH, kv_head, depth + (local + 3u * THREADS) % DEPTH);
                query = fetch_q(batch, first + local / DEPTH, head, depth + local % DEPTH);
            }
            for (var d = 0u; d < DEPTH; d += 1u) {
                let at = QUERIES_AT + down * THREAD_TILE * STRIDE + d;
                let a = pool[at];
                let b = pool[at + STRIDE];
                let c = pool[at + 2u * STRIDE];
                let e = pool[at + 3u * STRIDE];
                let column_0 = pool[(across + 0u * COLUMN_THREADS) * STRIDE + d];
                s[0u] = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_0.x), s[0u]);
                s[0u] = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_0.y), s[0u]);
                s[0u] = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_0.z), s[0u]);
                s[0u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_0.w), s[0u]);
                let column_1 = pool[(across + 1u * COLUMN_THREADS) * STRIDE + d];
                s[1u] = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_1.x), s[1u]);
                s[1u] = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_1.y), s[1u]);
                s[1u] = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_1.z), s[1u]);
                s[1u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_1.w), s[1u]);
                let column_2 = pool[(across + 2u * COLUMN_THREADS) * STRIDE + d];
                s[2u] = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_2.x), s[2u]);
                s[2u] = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_2.y), s[2u]);
                s[2u] = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_2.z), s[2u]);
                s[2u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_2.w), s[2u]);
                let column_3 = pool[(across + 3u * COLUMN_THREADS) * STRIDE + d];
                s[3u] = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_3.x), s[3u]);
                s[3u] = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_3.y), s[3u]);
                s[3u] = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_3.z), s[3u]);
                s[3u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_3.w), s[3u]);
            }
            workgroupBarrier();
        }
        // The first operands of the results are prefetched while weights are computed from the scores.
        var value_0 = fetch_v(batch, column + (local + 0u * THREADS) / SLAB, kv_head, (local + 0u * THREADS) % SLAB);
        var value_1 = fetch_v(batch, column + (local + 1u * THREADS) / SLAB, kv_head, (local + 1u * THREADS) % SLAB);
        var value_2 = fetch_v(batch, column + (local + 2u * THREADS) / SLAB, kv_head, (local + 2u * THREADS) % SLAB);
        var value_3 = fetch_v(batch, column + (local + 3u * THREADS) / SLAB, kv_head, (local + 3u * THREADS) % SLAB);
        s[0u] *= scale();
        s[1u] *= scale();
        s[2u] *= scale();
        s[3u] *= scale();
        if (column < all_from || column + COLUMNS > all_to) {
            let number_0 = vec4<u32>(column + across + 0u * COLUMN_THREADS);
            s[0u] = select(hidden, s[0u], (number_0 >= seen_from) & (number_0 < seen_to));
            let number_1 = vec4<u32>(column + across + 1u * COLUMN_THREADS);
            s[1u] = select(hidden, s[1u], (number_1 >= seen_from) & (number_1 < seen_to));
            let number_2 = vec4<u32>(column + across + 2u * COLUMN_THREADS);
            s[2u] = select(hidden, s[2u], (number_2 >= seen_from) & (number_2 < seen_to));
            let number_3 = vec4<u32>(column + across + 3u * COLUMN_THREADS);
            s[3u] = select(hidden, s[3u], (number_3 >= seen_from) & (number_3 < seen_to));
        }
        let most = max(greatest, join_row(max(max(s[0], s[1]), max(s[2], s[3])), true, local));
        let change = numerators(greatest - most);
        greatest = most;
        s[0u] = numerators(s[0u] - most);
        s[1u] = numerators(s[1u] - most);
        s[2u] = numerators(s[2u] - most);
        s[3u] = numerators(s[3u] - most);
        sums = sums * change + ((s[0] + s[1]) + (s[2] + s[3]));
        out_0_0 *= change[0u];
        out_0_1 *= change[1u];
        out_0_2 *= change[2u];
        out_0_3 *= change[3u];
        if (VALUES % THREADS == 0u || local + 0u * THREADS < VALUES) { pool[local + 0u * THREADS] = value_0; }
        if (VALUES % THREADS == 0u || local + 1u * THREADS < VALUES) { pool[local + 1u * THREADS] = value_1; }
        if (VALUES % THREADS == 0u || local + 2u * THREADS < VALUES) { pool[local + 2u * THREADS] = value_2; }
        if (VALUES % THREADS == 0u || local + 3u * THREADS < VALUES) { pool[local + 3u * THREADS] = value_3; }
        pool[VALUES + across * (ROW_THREADS + 1u) + down] = s[0u];
        workgroupBarrier();
        let ahead_0_0 = column + (0u + (0u + 1u) / SLABS) * COLUMN_THREADS;
        value_0 = fetch_v(batch, ahead_0_0 + (local + 0u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        value_1 = fetch_v(batch, ahead_0_0 + (local + 1u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        value_2 = fetch_v(batch, ahead_0_0 + (local + 2u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        value_3 = fetch_v(batch, ahead_0_0 + (local + 3u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let value = pool[n * SLAB + piece];
            let weights = pool[VALUES + n * (ROW_THREADS + 1u) + down];
            out_0_0 = fma(vec4<f32>(weights[0u]), value, out_0_0);
            out_0_1 = fma(vec4<f32>(weights[1u]), value, out_0_1);
            out_0_2 = fma(vec4<f32>(weights[2u]), value, out_0_2);
            out_0_3 = fma(vec4<f32>(weights[3u]), value, out_0_3);
        }
        workgroupBarrier();
        if (column + 1u * COLUMN_THREADS >= end) { break; }
        if (VALUES % THREADS == 0u || local + 0u * THREADS < VALUES) { pool[local + 0u * THREADS] = value_0; }
        if (VALUES % THREADS == 0u || local + 1u * THREADS < VALUES) { pool[local + 1u * THREADS] = value_1; }
        if (VALUES % THREADS == 0u || local + 2u * THREADS < VALUES) { pool[local + 2u * THREADS] = value_2; }
        if (VALUES % THREADS == 0u || local + 3u * THREADS < VALUES) { pool[local + 3u * THREADS] = value_3; }
        pool[VALUES + across * (ROW_THREADS + 1u) + down] = s[1u];
        workgroupBarrier();
        let ahead_1_0 = column + (1u + (0u + 1u) / SLABS) * COLUMN_THREADS;
        value_0 = fetch_v(batch, ahead_1_0 + (local + 0u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        value_1 = fetch_v(batch, ahead_1_0 + (local + 1u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        value_2 = fetch_v(batch, ahead_1_0 + (local + 2u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        value_3 = fetch_v(batch, ahead_1_0 + (local + 3u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let value = pool[n * SLAB + piece];
            let weights = pool[VALUES + n * (ROW_THREADS + 1u) + down];
            out_0_0 = fma(vec4<f32>(weights[0u]), value, out_0_0);
            out_0_1 = fma(vec4<f32>(weights[1u]), value, out_0_1);
            out_0_2 = fma(vec4<f32>(weights[2u]), value, out_0_2);
            out_0_3 = fma(vec4<f32>(weights[3u]), value, out_0_3);
        }
        workgroupBarrier();
        if (column + 2u * COLUMN_THREADS >= end) { break; }
        if (VALUES % THREADS == 0u || local + 0u * THREADS < VALUES) { pool[local + 0u * THREADS] = value_0; }
        if (VALUES % THREADS == 0u || local + 1u * THREADS < VALUES) { pool[local + 1u * THREADS] = value_1; }
        if (VALUES % THREADS == 0u || local + 2u * THREADS < VALUES) { pool[local + 2u * THREADS] = value_2; }
        if (VALUES % THREADS == 0u || local + 3u * THREADS < VALUES) { pool[local + 3u * THREADS] = value_3; }
        pool[VALUES + across * (ROW_THREADS + 1u) + down] = s[2u];
        workgroupBarrier();
        let ahead_2_0 = column + (2u + (0u + 1u) / SLABS) * COLUMN_THREADS;
        value_0 = fetch_v(batch, ahead_2_0 + (local + 0u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        value_1 = fetch_v(batch, ahead_2_0 + (local + 1u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        value_2 = fetch_v(batch, ahead_2_0 + (local + 2u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        value_3 = fetch_v(batch, ahead_2_0 + (local + 3u * THREADS) / SLAB, kv_head,
            (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let value = pool[n * SLAB + piece];
            let weights = pool[VALUES + n * (ROW_THREADS + 1u) + down];
            out_0_0 = fma(vec4<f32>(weights[0u]), value, out_0_0);
            out_0_1 = fma(vec4<f32>(weights[1u]), value, out_0_1);
            out_0_2 = fma(vec4<f32>(weights[2u]), value, out_0_2);
            out_0_3 = fma(vec4<f32>(weights[3u]), value, out_0_3);
        }
        workgroupBarrier();
        if (column + 3u * COLUMN_THREADS >= end) { break; }
        if (VALUES % THREADS == 0u || local + 0u * THREADS < VALUES) { pool[local + 0u * THREADS] = value_0; }
        if (VALUES % THREADS == 0u || local + 1u * THREADS < VALUES) { pool[local + 1u * THREADS] = value_1; }
        if (VALUES % THREADS == 0u || local + 2u * THREADS < VALUES) { pool[local + 2u * THREADS] = value_2; }
        if (VALUES % THREADS == 0u || local + 3u * THREADS < VALUES) { pool[local + 3u * THREADS] = value_3; }
        pool[VALUES + across * (ROW_THREADS + 1u) + down] = s[3u];
        workgroupBarrier();
        if (column + COLUMNS < end) {
            key_0 = fetch_k(batch, column + COLUMNS + (local + 0u * THREADS) / DEPTH, kv_head, (local + 0u * THREADS) % DEPTH);
            key_1 = fetch_k(batch, column + COLUMNS + (local + 1u * THREADS) / DEPTH, kv_head, (local + 1u * THREADS) % DEPTH);
            key_2 = fetch_k(batch, column + COLUMNS + (local + 2u * THREADS) / DEPTH, kv_head, (local + 2u * THREADS) % DEPTH);
            key_3 = fetch_k(batch, column + COLUMNS + (local + 3u * THREADS) / DEPTH, kv_head, (local + 3u * THREADS) % DEPTH);
            query = fetch_q(batch, first + local / DEPTH, head, local % DEPTH);
        }
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let value = pool[n * SLAB + piece];
            let weights = pool[VALUES + n * (ROW_THREADS + 1u) + down];
            out_0_0 = fma(vec4<f32>(weights[0u]), value, out_0_0);
            out_0_1 = fma(vec4<f32>(weights[1u]), value, out_0_1);
            out_0_2 = fma(vec4<f32>(weights[2u]), value, out_0_2);
            out_0_3 = fma(vec4<f32>(weights[3u]), value, out_0_3);
        }
        workgroupBarrier();
    }
    // If all scores are minus infinity, there are no numerators. Adjacent threads store adjacent elements.
    var sum = join_row(sums, false, local);
    let total = select(sum, vec4<f32>(from_bits(0x7fc00000u)), sum == vec4<f32>());
    workgroupBarrier();
    if (part >= (SLAB_GROUPS >> (0u + 1u)) && part < (SLAB_GROUPS >> 0u)) {
        pool[(down * THREAD_TILE + 0u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = out_0_0;
        pool[(down * THREAD_TILE + 1u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = out_0_1;
        pool[(down * THREAD_TILE + 2u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = out_0_2;
        pool[(down * THREAD_TILE + 3u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = out_0_3;
    }
    workgroupBarrier();
    if (part < (SLAB_GROUPS >> (0u + 1u))) {
        out_0_0 += pool[(down * THREAD_TILE + 0u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        out_0_1 += pool[(down * THREAD_TILE + 1u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        out_0_2 += pool[(down * THREAD_TILE + 2u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        out_0_3 += pool[(down * THREAD_TILE + 3u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
    }
    workgroupBarrier();
    if (part == 0u) {
        if (row + 0u < ROWS_Q) { store(query_start(batch, row + 0u, head), 0u * SLAB + piece, out_0_0 / total[0u]); }
        if (row + 1u < ROWS_Q) { store(query_start(batch, row + 1u, head), 0u * SLAB + piece, out_0_1 / total[1u]); }
        if (row + 2u < ROWS_Q) { store(query_start(batch, row + 2u, head), 0u * SLAB + piece, out_0_2 / total[2u]); }
        if (row + 3u < ROWS_Q) { store(query_start(batch, row + 3u, head), 0u * SLAB + piece, out_0_3 / total[3u]); }
    }
    if (across == 0u) {
        for (var n = 0u; n < THREAD_TILE && row + n < ROWS_Q; n++) {
            store_lse((batch * HEADS + head) * ROWS_Q + row + n, greatest[n] + log_f32(total[n]));
        }
    }
}
// Scalar functions. WGSL leaves NaN, infinities and the accuracy of most built-in functions to the driver; these
// functions define them. A kernel contains only the functions that it uses, with their dependencies.
// Not a constant, so that no compiler evaluates expressions of these bits.
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
fn is_inf(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}
// e^x of scores relative to the maximum. The error of the built-in function grows with |x|, but e^x shrinks faster, so
// the error is negligible relative to e^0 = 1 of the maximum score. Minus infinity gives 0; NaN stays NaN.
fn numerators(x: vec4<f32>) -> vec4<f32> {
    let nan = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let small = x < vec4<f32>(-87.0);
    return select(select(exp(select(x, vec4<f32>(), small)), vec4<f32>(), small), x, nan);
}
// The natural logarithm of 1 + m, where 1 + m is between sqrt(1/2) and sqrt(2): 2 artanh(m / (2 + m)).
fn log_core(m: f32) -> f32 {
    let s = m / (2.0 + m);
    let z = s * s;
    var p = 2.0 / 11.0;
    p = fma(p, z, 2.0 / 9.0);
    p = fma(p, z, 2.0 / 7.0);
    p = fma(p, z, 2.0 / 5.0);
    p = fma(p, z, 2.0 / 3.0);
    return s * fma(p, z, 2.0);
}
// Exponent, and mantissa less 1, of a normal positive number.
fn split_number(x: f32) -> vec2<f32> {
    let bits = bitcast<u32>(x) - 0x3f3504f3u;
    let exponent = bitcast<i32>(bits) >> 23u;
    let mantissa = bitcast<f32>((bits & 0x007fffffu) + 0x3f3504f3u);
    return vec2<f32>(f32(exponent), mantissa - 1.0);
}
// Result of a logarithm for NaN, infinities, zero and negative numbers; else 0.
fn log_special(x: f32) -> f32 {
    if (is_nan(x) || x < 0.0) {
        return from_bits(0x7fc00000u);
    }
    if (x == 0.0) {
        return from_bits(0xff800000u);
    }
    return select(0.0, x, is_inf(x));
}
// Binary exponent, and natural logarithm of the mantissa; subnormal numbers are scaled first.
fn log_parts(x: f32) -> vec2<f32> {
    let small = x < 1.17549435e-38;
    let parts = split_number(select(x, x * 8388608.0, small));
    return vec2<f32>(parts.x - select(0.0, 23.0, small), log_core(parts.y));
}
fn log_f32(x: f32) -> f32 {
    let special = log_special(x);
    if (special != 0.0 || is_nan(special)) {
        return special;
    }
    let parts = log_parts(x);
    return fma(parts.x, 0.693147181, parts.y);
}
