// Gradients of attention without cooperative matrices, first of two launches: gradients of queries. Scores are
// recomputed from the saved log-sum-exps (Dao et al., 2022). Let s be the products of queries and keys, t the products
// of output gradients and values (the gradients of the probabilities), p = e^(scale s - lse), and ds = scale p (t -
// delta). The result is the sum of ds k.
//
// Tiles and steps match attention_forward.wgsl: a workgroup has a tile of ROWS queries of one head and iterates over
// tiles of COLUMNS keys. A thread has four queries and, in the products, four keys. In the sums of ds k it has one
// vector of each slab of the head, for a part of the keys. A step has two barriers. The operands of the next step are
// prefetched.
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
// Number of queries of a tile, and of vectors of a slab, which is a power of two up to 16.
const ROWS: u32 = 16u;
const SLAB: u32 = 16u;

const VECTORS: u32 = (HEAD_DIM + 3u) / 4u;
// Number of keys to which the first query attends without a window.
const SHIFT: u32 = ROWS_K + 1u - min(ROWS_Q, ROWS_K);
// Number of queries of a thread, of threads of a row and of a column, and of keys of a tile.
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
var<storage, read_write> dq: array<vec4<f32>>;
var<workgroup> pool: array<vec4<f32>, SHARED>;

// Load a vector of the row that begins at element `start`, the log-sum-exp of a query, and the delta of a query.
fn load_q(start: u32, vector: u32) -> vec4<f32> { return q[start / 4u + vector]; }
fn load_k(start: u32, vector: u32) -> vec4<f32> { return k[start / 4u + vector]; }
fn load_v(start: u32, vector: u32) -> vec4<f32> { return v[start / 4u + vector]; }
fn load_dout(start: u32, vector: u32) -> vec4<f32> { return dout[start / 4u + vector]; }
fn load_lse(index: u32) -> f32 { return lse[index]; }
fn load_delta(index: u32) -> f32 { return delta[index]; }
fn store(start: u32, vector: u32, value: vec4<f32>) { dq[start / 4u + vector] = value; }
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

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = (ROWS_Q - 1u) / ROWS - group_number / ALL_HEADS; // the last ones take longest, with a mask
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
    // @repeat slab < SLABS, i < THREAD_TILE
    var dq_slab_i = vec4<f32>();
    // @end
    // Ranges of keys that some of the queries attend to, that all of them do, and that each of the thread's queries
    // does.
    var begin = 0u;
    var end = ROWS_K;
    var all_from = 0u;
    var all_to = ROWS_K;
    var seen_from = vec4<u32>();
    var seen_to = vec4<u32>(ROWS_K);
    // @if CAUSAL
    end = last + SHIFT;
    all_to = first + SHIFT;
    // Rows without a query behave like the last query.
    seen_to = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(ROWS_Q - 1u)) + vec4<u32>(SHIFT);
    // @if WINDOW > 0
    begin = max(first + SHIFT, WINDOW) - WINDOW;
    all_from = max(last + SHIFT, WINDOW) - WINDOW;
    seen_from = max(seen_to, vec4<u32>(WINDOW)) - vec4<u32>(WINDOW);
    // @end
    // @end
    let own_lse = vec4<f32>(
        load_lse(query_number(batch, head, row)), load_lse(query_number(batch, head, row + 1u)),
        load_lse(query_number(batch, head, row + 2u)), load_lse(query_number(batch, head, row + 3u)));
    let own_delta = vec4<f32>(
        load_delta(query_number(batch, head, row)), load_delta(query_number(batch, head, row + 1u)),
        load_delta(query_number(batch, head, row + 2u)), load_delta(query_number(batch, head, row + 3u)));
    // @repeat p < PIECES
    var column_p = fetch_key(false, batch, begin + (local + p * THREADS) / DEPTH, kv_head, (local + p * THREADS) % DEPTH);
    // @end
    var own = fetch_query(false, batch, first + local / DEPTH, head, local % DEPTH);
    for (var column = begin; column < end; column += COLUMNS) {
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
                column_p = fetch_key(which == 1u, batch, column + (local + p * THREADS) / DEPTH, kv_head,
                    depth + (local + p * THREADS) % DEPTH);
                // @end
                own = fetch_query(which == 1u, batch, first + local / DEPTH, head, depth + local % DEPTH);
            }
            // @if which == 0
            if (step + 1u == STEPS) {
                // @repeat p < PIECES
                column_p = fetch_key(true, batch, column + (local + p * THREADS) / DEPTH, kv_head,
                    (local + p * THREADS) % DEPTH);
                // @end
                own = fetch_query(true, batch, first + local / DEPTH, head, local % DEPTH);
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
        var term_p = fetch_key(false, batch, column + (local + p * THREADS) / SLAB, kv_head, (local + p * THREADS) % SLAB);
        // @end
        // @repeat j < THREAD_TILE
        s[THREAD_TILE + j] = numerators(s[j] * scale() - own_lse) * (s[THREAD_TILE + j] - own_delta) * scale();
        // @end
        if (column < all_from || column + COLUMNS > all_to) {
            // @repeat j < THREAD_TILE
            let number_j = vec4<u32>(column + across + j * COLUMN_THREADS);
            s[THREAD_TILE + j] = select(vec4<f32>(), s[THREAD_TILE + j], (number_j >= seen_from) & (number_j < seen_to));
            // @end
        }
        // @repeat chunk < THREAD_TILE
        // @if chunk > 0
        if (column + chunk * COLUMN_THREADS >= end) { break; }
        // @end
        // @repeat slab < SLABS
        // @repeat p < TERM_PIECES
        if (TERMS % THREADS == 0u || local + p * THREADS < TERMS) { pool[local + p * THREADS] = term_p; }
        // @end
        // @if slab == 0
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[THREAD_TILE + chunk];
        // @end
        workgroupBarrier();
        // @if slab + 1 < SLABS || chunk + 1 < THREAD_TILE
        // @repeat p < TERM_PIECES
        term_p = fetch_key(false, batch,
            column + (chunk + (slab + 1u) / SLABS) * COLUMN_THREADS + (local + p * THREADS) / SLAB,
            kv_head, (slab + 1u) % SLABS * SLAB + (local + p * THREADS) % SLAB);
        // @end
        // @else
        if (column + COLUMNS < end) {
            let next = column + COLUMNS;
            // @repeat p < PIECES
            column_p = fetch_key(false, batch, next + (local + p * THREADS) / DEPTH, kv_head, (local + p * THREADS) % DEPTH);
            // @end
            own = fetch_query(false, batch, first + local / DEPTH, head, local % DEPTH);
        }
        // @end
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            // @repeat i < THREAD_TILE
            dq_slab_i = fma(vec4<f32>(weights[i]), term, dq_slab_i);
            // @end
        }
        workgroupBarrier();
        // @end
        // @end
    }
    // @repeat j < MERGES, slab < SLABS
    if (part >= (SLAB_GROUPS >> (j + 1u)) && part < (SLAB_GROUPS >> j)) {
        // @repeat i < THREAD_TILE
        pool[(down * THREAD_TILE + i) * (COLUMN_THREADS >> (j + 1u)) + across % (COLUMN_THREADS >> (j + 1u))] = dq_slab_i;
        // @end
    }
    workgroupBarrier();
    if (part < (SLAB_GROUPS >> (j + 1u))) {
        // @repeat i < THREAD_TILE
        dq_slab_i += pool[(down * THREAD_TILE + i) * (COLUMN_THREADS >> (j + 1u)) + across % (COLUMN_THREADS >> (j + 1u))];
        // @end
    }
    workgroupBarrier();
    // @end
    if (part == 0u) {
        // @repeat slab < SLABS, i < THREAD_TILE
        if (row + i < ROWS_Q) {
            store(((batch * ROWS_Q + (row + i)) * HEADS + head) * HEAD_DIM, slab * SLAB + piece, dq_slab_i);
        }
        // @end
    }
}
