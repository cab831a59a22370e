// Gradients of attention without cooperative matrices, second of two launches: gradients of keys and values. Scores are
// recomputed from the saved log-sum-exps (Dao et al., 2022). Let s be the products of keys and queries, t the products
// of values and output gradients, p = e^(scale s - lse), and ds = scale p (t - delta). The results are the sums of ds q
// and of p dout. There are no atomic additions: heads that share keys write separate contributions, which
// attention_backward_join.wgsl adds up.
//
// Tiles and steps match attention_forward.wgsl: a workgroup has a tile of ROWS keys of one head and iterates over tiles
// of COLUMNS queries. A thread has four keys and, in the products, four queries. In both sums it has one vector of each
// slab of the head, for a part of the queries. A step has two barriers. The operands of the next step are prefetched.
//
// Twin in the oracle: core/src/ops/attention/grad.rs.

const ROWS_Q: u32 = 128u;
const ROWS_K: u32 = 128u;
const HEADS: u32 = 9u;
const ALL_HEADS: u32 = 9u; // number of heads of all sequences
const KV_HEADS: u32 = 3u;
const HEAD_DIM: u32 = 64u;
// True if attention is causal; window in keys, 0 for none.
const CAUSAL: bool = true;
const WINDOW: u32 = 0u;
// Number of keys of a tile, and of vectors of a slab, which is a power of two up to 16.
const ROWS: u32 = 16u;
const SLAB: u32 = 16u;

const VECTORS: u32 = (HEAD_DIM + 3u) / 4u;
// Number of keys before the key at the position of the first query.
const SHIFT: u32 = ROWS_K - min(ROWS_Q, ROWS_K);
// Number of keys of a thread, of threads of a row and of a column, and of queries of a tile.
const THREAD_TILE: u32 = 4u;
const COLUMN_THREADS: u32 = 32u;
const ROW_THREADS: u32 = ROWS / THREAD_TILE;
const THREADS: u32 = ROW_THREADS * COLUMN_THREADS;
const COLUMNS: u32 = THREAD_TILE * COLUMN_THREADS;
// Number of vectors of a row per step of the products. The stride has one more vector, which avoids bank conflicts.
const DEPTH: u32 = 4u;
const STRIDE: u32 = DEPTH + 1u;
const STEPS: u32 = (VECTORS + DEPTH - 1u) / DEPTH;
const SLABS: u32 = (VECTORS + SLAB - 1u) / SLAB;
// Number of groups of threads that accumulate parts of the same sums, and of rounds that merge these parts pairwise.
const SLAB_GROUPS: u32 = COLUMN_THREADS / SLAB;
const MERGES: u32 = min(1u, SLAB_GROUPS / 2u) + min(1u, SLAB_GROUPS / 4u) + min(1u, SLAB_GROUPS / 8u) + min(1u, SLAB_GROUPS / 16u) + SLAB_GROUPS / 32u;
// Number of vectors that a thread copies for a step of the products, and of the sums.
const PIECES: u32 = COLUMNS * DEPTH / THREADS;
const TERMS: u32 = COLUMN_THREADS * SLAB;
const TERM_PIECES: u32 = (TERMS + THREADS - 1u) / THREADS;
// Shared memory contains one after the other: columns and rows; terms of sums, and weights; sums.
const ROWS_AT: u32 = COLUMNS * STRIDE;
const SHARED: u32 = max(max((COLUMNS + ROWS) * STRIDE, TERMS + COLUMN_THREADS * (ROW_THREADS + 1u) + ROW_THREADS * 8u), ROWS * COLUMN_THREADS / 2u);
const i: u32 = 0u; // indices of repeats
const j: u32 = 0u;
const p: u32 = 0u;
const slab: u32 = 0u;
const chunk: u32 = 0u;
const which: u32 = 0u;

var<storage, read> q: array<vec4<f32>>;
var<storage, read> k: array<vec4<f32>>;
var<storage, read> v: array<vec4<f32>>;
var<storage, read> dout: array<vec4<f32>>;
var<storage, read> lse: array<f32>;
var<storage, read> delta: array<f32>;
var<storage, read_write> dk: array<vec4<f32>>;
var<storage, read_write> dv: array<vec4<f32>>;
var<workgroup> pool: array<vec4<f32>, SHARED>;

// Load a vector of the row that begins at element `start`, the log-sum-exp of a query, and the delta of a query.
fn load_q(start: u32, vector: u32) -> vec4<f32> { return q[start / 4u + vector]; }
fn load_k(start: u32, vector: u32) -> vec4<f32> { return k[start / 4u + vector]; }
fn load_v(start: u32, vector: u32) -> vec4<f32> { return v[start / 4u + vector]; }
fn load_dout(start: u32, vector: u32) -> vec4<f32> { return dout[start / 4u + vector]; }
fn load_lse(index: u32) -> f32 { return lse[index]; }
fn load_delta(index: u32) -> f32 { return delta[index]; }
// Store gradients of a head's keys and values. Heads that share keys write separate contributions, adjacent in memory.
fn store_dk(start: u32, vector: u32, value: vec4<f32>) { dk[start / 4u + vector] = value; }
fn store_dv(start: u32, vector: u32, value: vec4<f32>) { dv[start / 4u + vector] = value; }
fn scale() -> f32 { return 0.125; }
// lib/math.wgsl
fn numerators(x: vec4<f32>) -> vec4<f32> { return exp(x); }

// Index of a query among the queries of all heads, clamped to the last one.
fn query_number(batch: u32, head: u32, query: u32) -> u32 {
    return (batch * HEADS + head) * ROWS_Q + min(query, ROWS_Q - 1u);
}

// Return a vector of the first operand (q or k), or of the second one (dout or v). Rows are clamped to the last one.
// Vectors past the end of the head are zeros.
fn fetch_query(second: bool, batch: u32, row: u32, head: u32, vector: u32) -> vec4<f32> {
    let start = ((batch * ROWS_Q + min(row, ROWS_Q - 1u)) * HEADS + head) * HEAD_DIM;
    let known = min(vector, VECTORS - 1u);
    var value: vec4<f32>;
    if (second) { value = load_dout(start, known); } else { value = load_q(start, known); }
    // @if VECTORS % DEPTH > 0
    value = select(vec4<f32>(), value, vector <= VECTORS - 1u);
    // @end
    return value;
}

fn fetch_key(second: bool, batch: u32, row: u32, kv_head: u32, vector: u32) -> vec4<f32> {
    let start = ((batch * ROWS_K + min(row, ROWS_K - 1u)) * KV_HEADS + kv_head) * HEAD_DIM;
    let known = min(vector, VECTORS - 1u);
    var value: vec4<f32>;
    if (second) { value = load_v(start, known); } else { value = load_k(start, known); }
    // @if VECTORS % DEPTH > 0
    value = select(vec4<f32>(), value, vector <= VECTORS - 1u);
    // @end
    return value;
}

// Returns true for each pair of a key and a query before `end` if the query attends to the key.
fn seen(keys: vec4<u32>, queries: vec4<u32>, end: u32) -> vec4<bool> {
    var known = queries < vec4<u32>(end);
    // @if CAUSAL
    known = known & (keys < queries + vec4<u32>(SHIFT + 1u));
    // @if WINDOW > 0
    known = known & (keys + vec4<u32>(WINDOW) >= queries + vec4<u32>(SHIFT + 1u));
    // @end
    // @end
    return known;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = group_number / ALL_HEADS;
    let batch = group_number % ALL_HEADS / HEADS;
    let head = group_number % HEADS;
    let kv_head = head / (HEADS / KV_HEADS);
    let first = tile * ROWS;
    let last = min(first + ROWS, ROWS_K) - 1u;
    let down = local / COLUMN_THREADS;
    let across = local % COLUMN_THREADS;
    let part = across / SLAB;
    let piece = across % SLAB;
    let row = first + down * THREAD_TILE;
    // @repeat which < 2, slab < SLABS, i < THREAD_TILE
    var sum_which_slab_i = vec4<f32>();
    // @end
    // Ranges of queries that attend to some of the keys, and to all of them.
    var begin = 0u;
    var end = ROWS_Q;
    var all_from = 0u;
    var all_to = ROWS_Q;
    // @if CAUSAL
    begin = max(first, SHIFT) - SHIFT;
    all_from = max(last, SHIFT) - SHIFT;
    // @if WINDOW > 0
    end = min(max(last + WINDOW, SHIFT) - SHIFT, ROWS_Q);
    all_to = min(max(first + WINDOW, SHIFT) - SHIFT, ROWS_Q);
    // @end
    // @end
    // @repeat p < PIECES
    var column_p = fetch_query(false, batch, begin + (local + p * THREADS) / DEPTH, head, (local + p * THREADS) % DEPTH);
    // @end
    var own = fetch_key(false, batch, first + local / DEPTH, kv_head, local % DEPTH);
    for (var column = begin; column < end; column += COLUMNS) {
        // @repeat j < THREAD_TILE
        let number_j = column + across + j * COLUMN_THREADS;
        let lse_j = load_lse(query_number(batch, head, number_j));
        let delta_j = load_delta(query_number(batch, head, number_j));
        // @end
        // The scores, then the gradients of the probabilities.
        var s: array<vec4<f32>, 2u * THREAD_TILE>;
        // @repeat which < 2
        for (var step = 0u; step < STEPS; step += 1u) {
            // @repeat p < PIECES
            pool[(local + p * THREADS) / DEPTH * STRIDE + (local + p * THREADS) % DEPTH] = column_p;
            // @end
            if (local < ROWS * DEPTH) { pool[ROWS_AT + local / DEPTH * STRIDE + local % DEPTH] = own; }
            workgroupBarrier();
            if (STEPS > 1u && step + 1u < STEPS) {
                let depth = (step + 1u) * DEPTH;
                // @repeat p < PIECES
                column_p = fetch_query(which == 1u, batch, column + (local + p * THREADS) / DEPTH, head,
                    depth + (local + p * THREADS) % DEPTH);
                // @end
                own = fetch_key(which == 1u, batch, first + local / DEPTH, kv_head, depth + local % DEPTH);
            }
            // @if which == 0
            if (step + 1u == STEPS) {
                // @repeat p < PIECES
                column_p = fetch_query(true, batch, column + (local + p * THREADS) / DEPTH, head,
                    (local + p * THREADS) % DEPTH);
                // @end
                own = fetch_key(true, batch, first + local / DEPTH, kv_head, local % DEPTH);
            }
            // @end
            for (var d = 0u; d < DEPTH; d += 1u) {
                let at = ROWS_AT + down * THREAD_TILE * STRIDE + d;
                let a = pool[at];
                let b = pool[at + STRIDE];
                let c = pool[at + 2u * STRIDE];
                let e = pool[at + 3u * STRIDE];
                // @repeat j < THREAD_TILE
                let column_j = pool[(across + j * COLUMN_THREADS) * STRIDE + d];
                var sum_j = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_j.x), s[which * THREAD_TILE + j]);
                sum_j = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_j.y), sum_j);
                sum_j = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_j.z), sum_j);
                s[which * THREAD_TILE + j] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_j.w), sum_j);
                // @end
            }
            workgroupBarrier();
        }
        // @end
        // The first operands of the sums are prefetched while weights are computed from the products.
        // @repeat p < TERM_PIECES
        var term_p = fetch_query(false, batch, column + (local + p * THREADS) / SLAB, head, (local + p * THREADS) % SLAB);
        // @end
        // @repeat j < THREAD_TILE
        s[j] = numerators(s[j] * scale() - vec4<f32>(lse_j));
        s[THREAD_TILE + j] = s[j] * (s[THREAD_TILE + j] - vec4<f32>(delta_j)) * scale();
        // @end
        if (column < all_from || column + COLUMNS > all_to) {
            // @repeat j < THREAD_TILE
            let seen_j = seen(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(number_j), end);
            s[j] = select(vec4<f32>(), s[j], seen_j);
            s[THREAD_TILE + j] = select(vec4<f32>(), s[THREAD_TILE + j], seen_j);
            // @end
        }
        // @repeat chunk < THREAD_TILE
        // @if chunk > 0
        if (column + chunk * COLUMN_THREADS >= end) { break; }
        // @end
        // @repeat which < 2, slab < SLABS
        // @repeat p < TERM_PIECES
        if (TERMS % THREADS == 0u || local + p * THREADS < TERMS) { pool[local + p * THREADS] = term_p; }
        // @end
        // @if slab == 0
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - which) * THREAD_TILE + chunk];
        // @end
        workgroupBarrier();
        // @if which == 0 || slab + 1 < SLABS || chunk + 1 < THREAD_TILE
        // @repeat p < TERM_PIECES
        term_p = fetch_query((which + (slab + 1u) / SLABS) % 2u == 1u, batch,
            column + (chunk + (which * SLABS + slab + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + p * THREADS) / SLAB,
            head, (slab + 1u) % SLABS * SLAB + (local + p * THREADS) % SLAB);
        // @end
        // @else
        if (column + COLUMNS < end) {
            let next = column + COLUMNS;
            // @repeat p < PIECES
            column_p = fetch_query(false, batch, next + (local + p * THREADS) / DEPTH, head, (local + p * THREADS) % DEPTH);
            // @end
            own = fetch_key(false, batch, first + local / DEPTH, kv_head, local % DEPTH);
        }
        // @end
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            // @repeat i < THREAD_TILE
            sum_which_slab_i = fma(vec4<f32>(weights[i]), term, sum_which_slab_i);
            // @end
        }
        workgroupBarrier();
        // @end
        // @end
    }
    // @repeat j < MERGES, which < 2, slab < SLABS
    if (part >= (SLAB_GROUPS >> (j + 1u)) && part < (SLAB_GROUPS >> j)) {
        // @repeat i < THREAD_TILE
        pool[(down * THREAD_TILE + i) * (COLUMN_THREADS >> (j + 1u)) + across % (COLUMN_THREADS >> (j + 1u))] = sum_which_slab_i;
        // @end
    }
    workgroupBarrier();
    if (part < (SLAB_GROUPS >> (j + 1u))) {
        // @repeat i < THREAD_TILE
        sum_which_slab_i += pool[(down * THREAD_TILE + i) * (COLUMN_THREADS >> (j + 1u)) + across % (COLUMN_THREADS >> (j + 1u))];
        // @end
    }
    workgroupBarrier();
    // @end
    if (part == 0u) {
        // @repeat which < 2, slab < SLABS, i < THREAD_TILE
        if (row + i < ROWS_K) {
            let start = ((batch * ROWS_K + (row + i)) * HEADS + head) * HEAD_DIM;
            // @if which == 0
            store_dk(start, slab * SLAB + piece, sum_which_slab_i);
            // @else
            store_dv(start, slab * SLAB + piece, sum_which_slab_i);
            // @end
        }
        // @end
    }
}
