var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read> b4: array<f32>;
var<storage, read> b5: array<f32>;
var<storage, read_write> b6: array<vec4<f32>>;
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
// Number of keys to which the first query attends without a window.
const SHIFT: u32 = 11u;
// Number of queries of a thread, of threads of a row and of a column, and of keys of a tile.
const THREAD_TILE: u32 = 4u;
const COLUMN_THREADS: u32 = 32u;
const ROW_THREADS: u32 = 4u;
const THREADS: u32 = 128u;
const COLUMNS: u32 = 128u;
// Number of vectors of a row per step of the products. The stride has one more vector, which avoids bank conflicts.
const DEPTH: u32 = 4u;
const STRIDE: u32 = 5u;
const STEPS: u32 = 4u;
const SLABS: u32 = 1u;
// Number of groups of threads that accumulate parts of the same sums, and of rounds that merge these parts pairwise.
const SLAB_GROUPS: u32 = 2u;
const TERMS: u32 = 512u;
// Shared memory contains one after the other: columns and rows; terms of sums, and weights; sums.
const ROWS_AT: u32 = 640u;
const SHARED: u32 = 720u;
var<workgroup> pool: array<vec4<f32>, SHARED>;
// Load a vector of the row that begins at element `start`, the log-sum-exp of a query, and the delta of a query.
fn load_q(start: u32, vector: u32) -> vec4<f32> {
    return b0[start / 4u + vector];
}
fn load_k(start: u32, vector: u32) -> vec4<f32> {
    return b1[start / 4u + vector];
}
fn load_v(start: u32, vector: u32) -> vec4<f32> {
    return b2[start / 4u + vector];
}
fn load_dout(start: u32, vector: u32) -> vec4<f32> {
    return b3[start / 4u + vector];
}
fn load_lse(index: u32) -> f32 {
    return b4[index];
}
fn load_delta(index: u32) -> f32 {
    return b5[index];
}
fn store(start: u32, vector: u32, value: vec4<f32>) {
    if (vector < 16u) {
        b6[start / 4u + vector] = vec4<f32>(value);
    }
}
fn scale() -> f32 {
    return (1.25e-1f);
}
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
    return value;
}
fn fetch_key(second: bool, batch: u32, row: u32, kv_head: u32, vector: u32) -> vec4<f32> {
    let start = ((batch * ROWS_K + min(row, ROWS_K - 1u)) * KV_HEADS + kv_head) * HEAD_DIM;
    let known = min(vector, VECTORS - 1u);
    var value: vec4<f32>;
    if (second) { value = load_v(start, known); } else { value = load_k(start, known); }
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
    var dq_0_0 = vec4<f32>();
    var dq_0_1 = vec4<f32>();
    var dq_0_2 = vec4<f32>();
    var dq_0_3 = vec4<f32>();
    // Ranges of keys that some of the queries attend to, that all of them do, and that each of the thread's queries
    // does.
    var begin = 0u;
    var end = ROWS_K;
    var all_from = 0u;
    var all_to = ROWS_K;
    var seen_from = vec4<u32>();
    var seen_to = vec4<u32>(ROWS_K);
    end = last + SHIFT;
    all_to = first + SHIFT;
    // Rows without a query behave like the last query.
    seen_to = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(ROWS_Q - 1u)) + vec4<u32>(SHIFT);
    let own_lse = vec4<f32>(
        load_lse(query_number(batch, head, row)), load_lse(query_number(batch, head, row + 1u)),
        load_lse(query_number(batch, head, row + 2u)), load_lse(query_number(batch, head, row + 3u)));
    let own_delta = vec4<f32>(
        load_delta(query_number(batch, head, row)), load_delta(query_number(batch, head, row + 1u)),
        load_delta(query_number(batch, head, row + 2u)), load_delta(query_number(batch, head, row + 3u)));
    var column_0 = fetch_key(false, batch, begin + (local + 0u * THREADS) / DEPTH, kv_head, (local + 0u * THREADS) % DEPTH);
    var column_1 = fetch_key(false, batch, begin + (local + 1u * THREADS) / DEPTH, kv_head, (local + 1u * THREADS) % DEPTH);
    var column_2 = fetch_key(false, batch, begin + (local + 2u * THREADS) / DEPTH, kv_head, (local + 2u * THREADS) % DEPTH);
    var column_3 = fetch_key(false, batch, begin + (local + 3u * THREADS) / DEPTH, kv_head, (local + 3u * THREADS) % DEPTH);
    var own = fetch_query(false, batch, first + local / DEPTH, head, local % DEPTH);
    for (var column = begin; column < end; column += COLUMNS) {
        // The scores, then the gradients of the probabilities.
        var s: array<vec4<f32>, 2u * THREAD_TILE>;
        for (var step = 0u; step < STEPS; step += 1u) {
            pool[(local + 0u * THREADS) / DEPTH * STRIDE + (local + 0u * THREADS) % DEPTH] = column_0;
            pool[(local + 1u * THREADS) / DEPTH * STRIDE + (local + 1u * THREADS) % DEPTH] = column_1;
            pool[(local + 2u * THREADS) / DEPTH * STRIDE + (local + 2u * THREADS) % DEPTH] = column_2;
            pool[(local + 3u * THREADS) / DEPTH * STRIDE + (local + 3u * THREADS) % DEPTH] = column_3;
            if (local < ROWS * DEPTH) { pool[ROWS_AT + local / DEPTH * STRIDE + local % DEPTH] = own; }
            workgroupBarrier();
            if (STEPS > 1u && step + 1u < STEPS) {
                let depth = (step + 1u) * DEPTH;
                column_0 = fetch_key(0u == 1u, batch, column + (local + 0u * THREADS) / DEPTH, kv_head,
                    depth + (local + 0u * THREADS) % DEPTH);
                column_1 = fetch_key(0u == 1u, batch, column + (local + 1u * THREADS) / DEPTH, kv_head,
                    depth + (local + 1u * THREADS) % DEPTH);
                column_2 = fetch_key(0u == 1u, batch, column + (local + 2u * THREADS) / DEPTH, kv_head,
                    depth + (local + 2u * THREADS) % DEPTH);
                column_3 = fetch_key(0u == 1u, batch, column + (local + 3u * THREADS) / DEPTH, kv_head,
                    depth + (local + 3u * THREADS) % DEPTH);
                own = fetch_query(0u == 1u, batch, first + local / DEPTH, head, depth + local % DEPTH);
            }
            if (step + 1u == STEPS) {
                column_0 = fetch_key(true, batch, column + (local + 0u * THREADS) / DEPTH, kv_head,
                    (local + 0u * THREADS) % DEPTH);
                column_1 = fetch_key(true, batch, column + (local + 1u * THREADS) / DEPTH, kv_head,
                    (local + 1u * THREADS) % DEPTH);
                column_2 = fetch_key(true, batch, column + (local + 2u * THREADS) / DEPTH, kv_head,
                    (local + 2u * THREADS) % DEPTH);
                column_3 = fetch_key(true, batch, column + (local + 3u * THREADS) / DEPTH, kv_head,
                    (local + 3u * THREADS) % DEPTH);
                own = fetch_query(true, batch, first + local / DEPTH, head, local % DEPTH);
            }
            for (var d = 0u; d < DEPTH; d += 1u) {
                let at = ROWS_AT + down * THREAD_TILE * STRIDE + d;
                let a = pool[at];
                let b = pool[at + STRIDE];
                let c = pool[at + 2u * STRIDE];
                let e = pool[at + 3u * STRIDE];
                let column_0 = pool[(across + 0u * COLUMN_THREADS) * STRIDE + d];
                var sum_0 = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_0.x), s[0u * THREAD_TILE + 0u]);
                sum_0 = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_0.y), sum_0);
                sum_0 = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_0.z), sum_0);
                s[0u * THREAD_TILE + 0u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_0.w), sum_0);
                let column_1 = pool[(across + 1u * COLUMN_THREADS) * STRIDE + d];
                var sum_1 = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_1.x), s[0u * THREAD_TILE + 1u]);
                sum_1 = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_1.y), sum_1);
                sum_1 = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_1.z), sum_1);
                s[0u * THREAD_TILE + 1u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_1.w), sum_1);
                let column_2 = pool[(across + 2u * COLUMN_THREADS) * STRIDE + d];
                var sum_2 = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_2.x), s[0u * THREAD_TILE + 2u]);
                sum_2 = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_2.y), sum_2);
                sum_2 = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_2.z), sum_2);
                s[0u * THREAD_TILE + 2u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_2.w), sum_2);
                let column_3 = pool[(across + 3u * COLUMN_THREADS) * STRIDE + d];
                var sum_3 = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_3.x), s[0u * THREAD_TILE + 3u]);
                sum_3 = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_3.y), sum_3);
                sum_3 = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_3.z), sum_3);
                s[0u * THREAD_TILE + 3u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_3.w), sum_3);
            }
            workgroupBarrier();
        }
        for (var step = 0u; step < STEPS; step += 1u) {
            pool[(local + 0u * THREADS) / DEPTH * STRIDE + (local + 0u * THREADS) % DEPTH] = column_0;
            pool[(local + 1u * THREADS) / DEPTH * STRIDE + (local + 1u * THREADS) % DEPTH] = column_1;
            pool[(local + 2u * THREADS) / DEPTH * STRIDE + (local + 2u * THREADS) % DEPTH] = column_2;
            pool[(local + 3u * THREADS) / DEPTH * STRIDE + (local + 3u * THREADS) % DEPTH] = column_3;
            if (local < ROWS * DEPTH) { pool[ROWS_AT + local / DEPTH * STRIDE + local % DEPTH] = own; }
            workgroupBarrier();
            if (STEPS > 1u && step + 1u < STEPS) {
                let depth = (step + 1u) * DEPTH;
                column_0 = fetch_key(1u == 1u, batch, column + (local + 0u * THREADS) / DEPTH, kv_head,
                    depth + (local + 0u * THREADS) % DEPTH);
                column_1 = fetch_key(1u == 1u, batch, column + (local + 1u * THREADS) / DEPTH, kv_head,
                    depth + (local + 1u * THREADS) % DEPTH);
                column_2 = fetch_key(1u == 1u, batch, column + (local + 2u * THREADS) / DEPTH, kv_head,
                    depth + (local + 2u * THREADS) % DEPTH);
                column_3 = fetch_key(1u == 1u, batch, column + (local + 3u * THREADS) / DEPTH, kv_head,
                    depth + (local + 3u * THREADS) % DEPTH);
                own = fetch_query(1u == 1u, batch, first + local / DEPTH, head, depth + local % DEPTH);
            }
            for (var d = 0u; d < DEPTH; d += 1u) {
                let at = ROWS_AT + down * THREAD_TILE * STRIDE + d;
                let a = pool[at];
                let b = pool[at + STRIDE];
                let c = pool[at + 2u * STRIDE];
                let e = pool[at + 3u * STRIDE];
                let column_0 = pool[(across + 0u * COLUMN_THREADS) * STRIDE + d];
                var sum_0 = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_0.x), s[1u * THREAD_TILE + 0u]);
                sum_0 = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_0.y), sum_0);
                sum_0 = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_0.z), sum_0);
                s[1u * THREAD_TILE + 0u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_0.w), sum_0);
                let column_1 = pool[(across + 1u * COLUMN_THREADS) * STRIDE + d];
                var sum_1 = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_1.x), s[1u * THREAD_TILE + 1u]);
                sum_1 = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_1.y), sum_1);
                sum_1 = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_1.z), sum_1);
                s[1u * THREAD_TILE + 1u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_1.w), sum_1);
                let column_2 = pool[(across + 2u * COLUMN_THREADS) * STRIDE + d];
                var sum_2 = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_2.x), s[1u * THREAD_TILE + 2u]);
                sum_2 = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_2.y), sum_2);
                sum_2 = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_2.z), sum_2);
                s[1u * THREAD_TILE + 2u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_2.w), sum_2);
                let column_3 = pool[(across + 3u * COLUMN_THREADS) * STRIDE + d];
                var sum_3 = fma(vec4<f32>(a.x, b.x, c.x, e.x), vec4<f32>(column_3.x), s[1u * THREAD_TILE + 3u]);
                sum_3 = fma(vec4<f32>(a.y, b.y, c.y, e.y), vec4<f32>(column_3.y), sum_3);
                sum_3 = fma(vec4<f32>(a.z, b.z, c.z, e.z), vec4<f32>(column_3.z), sum_3);
                s[1u * THREAD_TILE + 3u] = fma(vec4<f32>(a.w, b.w, c.w, e.w), vec4<f32>(column_3.w), sum_3);
            }
            workgroupBarrier();
        }
        // The first operands of the sums are prefetched while weights are computed from the products.
        var term_0 = fetch_key(false, batch, column + (local + 0u * THREADS) / SLAB, kv_head, (local + 0u * THREADS) % SLAB);
        var term_1 = fetch_key(false, batch, column + (local + 1u * THREADS) / SLAB, kv_head, (local + 1u * THREADS) % SLAB);
        var term_2 = fetch_key(false, batch, column + (local + 2u * THREADS) / SLAB, kv_head, (local + 2u * THREADS) % SLAB);
        var term_3 = fetch_key(false, batch, column + (local + 3u * THREADS) / SLAB, kv_head, (local + 3u * THREADS) % SLAB);
        s[THREAD_TILE + 0u] = numerators(s[0u] * scale() - own_lse) * (s[THREAD_TILE + 0u] - own_delta) * scale();
        s[THREAD_TILE + 1u] = numerators(s[1u] * scale() - own_lse) * (s[THREAD_TILE + 1u] - own_delta) * scale();
        s[THREAD_TILE + 2u] = numerators(s[2u] * scale() - own_lse) * (s[THREAD_TILE + 2u] - own_delta) * scale();
        s[THREAD_TILE + 3u] = numerators(s[3u] * scale() - own_lse) * (s[THREAD_TILE + 3u] - own_delta) * scale();
        if (column < all_from || column + COLUMNS > all_to) {
            let number_0 = vec4<u32>(column + across + 0u * COLUMN_THREADS);
            s[THREAD_TILE + 0u] = select(vec4<f32>(), s[THREAD_TILE + 0u], (number_0 >= seen_from) & (number_0 < seen_to));
            let number_1 = vec4<u32>(column + across + 1u * COLUMN_THREADS);
            s[THREAD_TILE + 1u] = select(vec4<f32>(), s[THREAD_TILE + 1u], (number_1 >= seen_from) & (number_1 < seen_to));
            let number_2 = vec4<u32>(column + across + 2u * COLUMN_THREADS);
            s[THREAD_TILE + 2u] = select(vec4<f32>(), s[THREAD_TILE + 2u], (number_2 >= seen_from) & (number_2 < seen_to));
            let number_3 = vec4<u32>(column + across + 3u * COLUMN_THREADS);
            s[THREAD_TILE + 3u] = select(vec4<f32>(), s[THREAD_TILE + 3u], (number_3 >= seen_from) & (number_3 < seen_to));
        }
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[THREAD_TILE + 0u];
        workgroupBarrier();
        term_0 = fetch_key(false, batch,
            column + (0u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_key(false, batch,
            column + (0u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_key(false, batch,
            column + (0u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_key(false, batch,
            column + (0u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            dq_0_0 = fma(vec4<f32>(weights[0u]), term, dq_0_0);
            dq_0_1 = fma(vec4<f32>(weights[1u]), term, dq_0_1);
            dq_0_2 = fma(vec4<f32>(weights[2u]), term, dq_0_2);
            dq_0_3 = fma(vec4<f32>(weights[3u]), term, dq_0_3);
        }
        workgroupBarrier();
        if (column + 1u * COLUMN_THREADS >= end) { break; }
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[THREAD_TILE + 1u];
        workgroupBarrier();
        term_0 = fetch_key(false, batch,
            column + (1u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_key(false, batch,
            column + (1u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_key(false, batch,
            column + (1u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_key(false, batch,
            column + (1u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            dq_0_0 = fma(vec4<f32>(weights[0u]), term, dq_0_0);
            dq_0_1 = fma(vec4<f32>(weights[1u]), term, dq_0_1);
            dq_0_2 = fma(vec4<f32>(weights[2u]), term, dq_0_2);
            dq_0_3 = fma(vec4<f32>(weights[3u]), term, dq_0_3);
        }
        workgroupBarrier();
        if (column + 2u * COLUMN_THREADS >= end) { break; }
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[THREAD_TILE + 2u];
        workgroupBarrier();
        term_0 = fetch_key(false, batch,
            column + (2u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_key(false, batch,
            column + (2u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_key(false, batch,
            column + (2u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_key(false, batch,
            column + (2u + (0u + 1u) / SLABS) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            kv_head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            dq_0_0 = fma(vec4<f32>(weights[0u]), term, dq_0_0);
            dq_0_1 = fma(vec4<f32>(weights[1u]), term, dq_0_1);
            dq_0_2 = fma(vec4<f32>(weights[2u]), term, dq_0_2);
            dq_0_3 = fma(vec4<f32>(weights[3u]), term, dq_0_3);
        }
        workgroupBarrier();
        if (column + 3u * COLUMN_THREADS >= end) { break; }
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[THREAD_TILE + 3u];
        workgroupBarrier();
        if (column + COLUMNS < end) {
            let next = column + COLUMNS;
            column_0 = fetch_key(false, batch, next + (local + 0u * THREADS) / DEPTH, kv_head, (local + 0u * THREADS) % DEPTH);
            column_1 = fetch_key(false, batch, next + (local + 1u * THREADS) / DEPTH, kv_head, (local + 1u * THREADS) % DEPTH);
            column_2 = fetch_key(false, batch, next + (local + 2u * THREADS) / DEPTH, kv_head, (local + 2u * THREADS) % DEPTH);
            column_3 = fetch_key(false, batch, next + (local + 3u * THREADS) / DEPTH, kv_head, (local + 3u * THREADS) % DEPTH);
            own = fetch_query(false, batch, first + local / DEPTH, head, local % DEPTH);
        }
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            dq_0_0 = fma(vec4<f32>(weights[0u]), term, dq_0_0);
            dq_0_1 = fma(vec4<f32>(weights[1u]), term, dq_0_1);
            dq_0_2 = fma(vec4<f32>(weights[2u]), term, dq_0_2);
            dq_0_3 = fma(vec4<f32>(weights[3u]), term, dq_0_3);
        }
        workgroupBarrier();
    }
    if (part >= (SLAB_GROUPS >> (0u + 1u)) && part < (SLAB_GROUPS >> 0u)) {
        pool[(down * THREAD_TILE + 0u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = dq_0_0;
        pool[(down * THREAD_TILE + 1u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = dq_0_1;
        pool[(down * THREAD_TILE + 2u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = dq_0_2;
        pool[(down * THREAD_TILE + 3u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = dq_0_3;
    }
    workgroupBarrier();
    if (part < (SLAB_GROUPS >> (0u + 1u))) {
        dq_0_0 += pool[(down * THREAD_TILE + 0u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        dq_0_1 += pool[(down * THREAD_TILE + 1u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        dq_0_2 += pool[(down * THREAD_TILE + 2u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        dq_0_3 += pool[(down * THREAD_TILE + 3u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
    }
    workgroupBarrier();
    if (part == 0u) {
        if (row + 0u < ROWS_Q) {
            store(((batch * ROWS_Q + (row + 0u)) * HEADS + head) * HEAD_DIM, 0u * SLAB + piece, dq_0_0);
        }
        if (row + 1u < ROWS_Q) {
            store(((batch * ROWS_Q + (row + 1u)) * HEADS + head) * HEAD_DIM, 0u * SLAB + piece, dq_0_1);
        }
        if (row + 2u < ROWS_Q) {
            store(((batch * ROWS_Q + (row + 2u)) * HEADS + head) * HEAD_DIM, 0u * SLAB + piece, dq_0_2);
        }
        if (row + 3u < ROWS_Q) {
            store(((batch * ROWS_Q + (row + 3u)) * HEADS + head) * HEAD_DIM, 0u * SLAB + piece, dq_0_3);
        }
    }
}
// e^x of scores relative to the maximum. The error of the built-in function grows with |x|, but e^x shrinks faster, so
// the error is negligible relative to e^0 = 1 of the maximum score. Minus infinity gives 0; NaN stays NaN.
fn numerators(x: vec4<f32>) -> vec4<f32> {
    let nan = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let small = x < vec4<f32>(-87.0);
    return select(select(exp(select(x, vec4<f32>(), small)), vec4<f32>(), small), x, nan);
}
