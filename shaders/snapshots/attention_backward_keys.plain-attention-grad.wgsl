var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read> b4: array<f32>;
var<storage, read> b5: array<f32>;
var<storage, read_write> b6: array<vec4<f32>>;
var<storage, read_write> b7: array<vec4<f32>>;
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
const ROWS_Q: u32 = 300u;
const ROWS_K: u32 = 310u;
const HEADS: u32 = 4u;
const ALL_HEADS: u32 = 4u;
const KV_HEADS: u32 = 2u;
const HEAD_DIM: u32 = 64u;
// Number of keys of a tile, and of vectors of a slab, which is a power of two up to 16.
const ROWS: u32 = 16u;
const SLAB: u32 = 16u;
const VECTORS: u32 = 16u;
// Number of keys before the key at the position of the first query.
const SHIFT: u32 = 10u;
// Number of keys of a thread, of threads of a row and of a column, and of queries of a tile.
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
// Store gradients of a head's keys and values. Heads that share keys write separate contributions, adjacent in memory.
fn store_dk(start: u32, vector: u32, value: vec4<f32>) {
    if (vector < 16u) {
        b6[start / 4u + vector] = value;
    }
}
fn store_dv(start: u32, vector: u32, value: vec4<f32>) {
    if (vector < 16u) {
        b7[start / 4u + vector] = value;
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
// Returns true for each pair of a key and a query before `end` if the query attends to the key.
fn seen(keys: vec4<u32>, queries: vec4<u32>, end: u32) -> vec4<bool> {
    var known = queries < vec4<u32>(end);
    known = known & (keys < queries + vec4<u32>(SHIFT + 1u));
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
    var sum_0_0_0 = vec4<f32>();
    var sum_0_0_1 = vec4<f32>();
    var sum_0_0_2 = vec4<f32>();
    var sum_0_0_3 = vec4<f32>();
    var sum_1_0_0 = vec4<f32>();
    var sum_1_0_1 = vec4<f32>();
    var sum_1_0_2 = vec4<f32>();
    var sum_1_0_3 = vec4<f32>();
    // Ranges of queries that attend to some of the keys, and to all of them.
    var begin = 0u;
    var end = ROWS_Q;
    var all_from = 0u;
    var all_to = ROWS_Q;
    begin = max(first, SHIFT) - SHIFT;
    all_from = max(last, SHIFT) - SHIFT;
    var column_0 = fetch_query(false, batch, begin + (local + 0u * THREADS) / DEPTH, head, (local + 0u * THREADS) % DEPTH);
    var column_1 = fetch_query(false, batch, begin + (local + 1u * THREADS) / DEPTH, head, (local + 1u * THREADS) % DEPTH);
    var column_2 = fetch_query(false, batch, begin + (local + 2u * THREADS) / DEPTH, head, (local + 2u * THREADS) % DEPTH);
    var column_3 = fetch_query(false, batch, begin + (local + 3u * THREADS) / DEPTH, head, (local + 3u * THREADS) % DEPTH);
    var own = fetch_key(false, batch, first + local / DEPTH, kv_head, local % DEPTH);
    for (var column = begin; column < end; column += COLUMNS) {
        let number_0 = column + across + 0u * COLUMN_THREADS;
        let lse_0 = load_lse(query_number(batch, head, number_0));
        let delta_0 = load_delta(query_number(batch, head, number_0));
        let number_1 = column + across + 1u * COLUMN_THREADS;
        let lse_1 = load_lse(query_number(batch, head, number_1));
        let delta_1 = load_delta(query_number(batch, head, number_1));
        let number_2 = column + across + 2u * COLUMN_THREADS;
        let lse_2 = load_lse(query_number(batch, head, number_2));
        let delta_2 = load_delta(query_number(batch, head, number_2));
        let number_3 = column + across + 3u * COLUMN_THREADS;
        let lse_3 = load_lse(query_number(batch, head, number_3));
        let delta_3 = load_delta(query_number(batch, head, number_3));
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
                column_0 = fetch_query(0u == 1u, batch, column + (local + 0u * THREADS) / DEPTH, head,
                    depth + (local + 0u * THREADS) % DEPTH);
                column_1 = fetch_query(0u == 1u, batch, column + (local + 1u * THREADS) / DEPTH, head,
                    depth + (local + 1u * THREADS) % DEPTH);
                column_2 = fetch_query(0u == 1u, batch, column + (local + 2u * THREADS) / DEPTH, head,
                    depth + (local + 2u * THREADS) % DEPTH);
                column_3 = fetch_query(0u == 1u, batch, column + (local + 3u * THREADS) / DEPTH, head,
                    depth + (local + 3u * THREADS) % DEPTH);
                own = fetch_key(0u == 1u, batch, first + local / DEPTH, kv_head, depth + local % DEPTH);
            }
            if (step + 1u == STEPS) {
                column_0 = fetch_query(true, batch, column + (local + 0u * THREADS) / DEPTH, head,
                    (local + 0u * THREADS) % DEPTH);
                column_1 = fetch_query(true, batch, column + (local + 1u * THREADS) / DEPTH, head,
                    (local + 1u * THREADS) % DEPTH);
                column_2 = fetch_query(true, batch, column + (local + 2u * THREADS) / DEPTH, head,
                    (local + 2u * THREADS) % DEPTH);
                column_3 = fetch_query(true, batch, column + (local + 3u * THREADS) / DEPTH, head,
                    (local + 3u * THREADS) % DEPTH);
                own = fetch_key(true, batch, first + local / DEPTH, kv_head, local % DEPTH);
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
                column_0 = fetch_query(1u == 1u, batch, column + (local + 0u * THREADS) / DEPTH, head,
                    depth + (local + 0u * THREADS) % DEPTH);
                column_1 = fetch_query(1u == 1u, batch, column + (local + 1u * THREADS) / DEPTH, head,
                    depth + (local + 1u * THREADS) % DEPTH);
                column_2 = fetch_query(1u == 1u, batch, column + (local + 2u * THREADS) / DEPTH, head,
                    depth + (local + 2u * THREADS) % DEPTH);
                column_3 = fetch_query(1u == 1u, batch, column + (local + 3u * THREADS) / DEPTH, head,
                    depth + (local + 3u * THREADS) % DEPTH);
                own = fetch_key(1u == 1u, batch, first + local / DEPTH, kv_head, depth + local % DEPTH);
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
        var term_0 = fetch_query(false, batch, column + (local + 0u * THREADS) / SLAB, head, (local + 0u * THREADS) % SLAB);
        var term_1 = fetch_query(false, batch, column + (local + 1u * THREADS) / SLAB, head, (local + 1u * THREADS) % SLAB);
        var term_2 = fetch_query(false, batch, column + (local + 2u * THREADS) / SLAB, head, (local + 2u * THREADS) % SLAB);
        var term_3 = fetch_query(false, batch, column + (local + 3u * THREADS) / SLAB, head, (local + 3u * THREADS) % SLAB);
        s[0u] = numerators(s[0u] * scale() - vec4<f32>(lse_0));
        s[THREAD_TILE + 0u] = s[0u] * (s[THREAD_TILE + 0u] - vec4<f32>(delta_0)) * scale();
        s[1u] = numerators(s[1u] * scale() - vec4<f32>(lse_1));
        s[THREAD_TILE + 1u] = s[1u] * (s[THREAD_TILE + 1u] - vec4<f32>(delta_1)) * scale();
        s[2u] = numerators(s[2u] * scale() - vec4<f32>(lse_2));
        s[THREAD_TILE + 2u] = s[2u] * (s[THREAD_TILE + 2u] - vec4<f32>(delta_2)) * scale();
        s[3u] = numerators(s[3u] * scale() - vec4<f32>(lse_3));
        s[THREAD_TILE + 3u] = s[3u] * (s[THREAD_TILE + 3u] - vec4<f32>(delta_3)) * scale();
        if (column < all_from || column + COLUMNS > all_to) {
            let seen_0 = seen(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(number_0), end);
            s[0u] = select(vec4<f32>(), s[0u], seen_0);
            s[THREAD_TILE + 0u] = select(vec4<f32>(), s[THREAD_TILE + 0u], seen_0);
            let seen_1 = seen(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(number_1), end);
            s[1u] = select(vec4<f32>(), s[1u], seen_1);
            s[THREAD_TILE + 1u] = select(vec4<f32>(), s[THREAD_TILE + 1u], seen_1);
            let seen_2 = seen(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(number_2), end);
            s[2u] = select(vec4<f32>(), s[2u], seen_2);
            s[THREAD_TILE + 2u] = select(vec4<f32>(), s[THREAD_TILE + 2u], seen_2);
            let seen_3 = seen(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(number_3), end);
            s[3u] = select(vec4<f32>(), s[3u], seen_3);
            s[THREAD_TILE + 3u] = select(vec4<f32>(), s[THREAD_TILE + 3u], seen_3);
        }
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - 0u) * THREAD_TILE + 0u];
        workgroupBarrier();
        term_0 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (0u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (0u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (0u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (0u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            sum_0_0_0 = fma(vec4<f32>(weights[0u]), term, sum_0_0_0);
            sum_0_0_1 = fma(vec4<f32>(weights[1u]), term, sum_0_0_1);
            sum_0_0_2 = fma(vec4<f32>(weights[2u]), term, sum_0_0_2);
            sum_0_0_3 = fma(vec4<f32>(weights[3u]), term, sum_0_0_3);
        }
        workgroupBarrier();
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - 1u) * THREAD_TILE + 0u];
        workgroupBarrier();
        term_0 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (0u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (0u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (0u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (0u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            sum_1_0_0 = fma(vec4<f32>(weights[0u]), term, sum_1_0_0);
            sum_1_0_1 = fma(vec4<f32>(weights[1u]), term, sum_1_0_1);
            sum_1_0_2 = fma(vec4<f32>(weights[2u]), term, sum_1_0_2);
            sum_1_0_3 = fma(vec4<f32>(weights[3u]), term, sum_1_0_3);
        }
        workgroupBarrier();
        if (column + 1u * COLUMN_THREADS >= end) { break; }
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - 0u) * THREAD_TILE + 1u];
        workgroupBarrier();
        term_0 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (1u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (1u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (1u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (1u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            sum_0_0_0 = fma(vec4<f32>(weights[0u]), term, sum_0_0_0);
            sum_0_0_1 = fma(vec4<f32>(weights[1u]), term, sum_0_0_1);
            sum_0_0_2 = fma(vec4<f32>(weights[2u]), term, sum_0_0_2);
            sum_0_0_3 = fma(vec4<f32>(weights[3u]), term, sum_0_0_3);
        }
        workgroupBarrier();
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - 1u) * THREAD_TILE + 1u];
        workgroupBarrier();
        term_0 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (1u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (1u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (1u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (1u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            sum_1_0_0 = fma(vec4<f32>(weights[0u]), term, sum_1_0_0);
            sum_1_0_1 = fma(vec4<f32>(weights[1u]), term, sum_1_0_1);
            sum_1_0_2 = fma(vec4<f32>(weights[2u]), term, sum_1_0_2);
            sum_1_0_3 = fma(vec4<f32>(weights[3u]), term, sum_1_0_3);
        }
        workgroupBarrier();
        if (column + 2u * COLUMN_THREADS >= end) { break; }
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - 0u) * THREAD_TILE + 2u];
        workgroupBarrier();
        term_0 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (2u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (2u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (2u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (2u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            sum_0_0_0 = fma(vec4<f32>(weights[0u]), term, sum_0_0_0);
            sum_0_0_1 = fma(vec4<f32>(weights[1u]), term, sum_0_0_1);
            sum_0_0_2 = fma(vec4<f32>(weights[2u]), term, sum_0_0_2);
            sum_0_0_3 = fma(vec4<f32>(weights[3u]), term, sum_0_0_3);
        }
        workgroupBarrier();
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - 1u) * THREAD_TILE + 2u];
        workgroupBarrier();
        term_0 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (2u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (2u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (2u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_query((1u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (2u + (1u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            sum_1_0_0 = fma(vec4<f32>(weights[0u]), term, sum_1_0_0);
            sum_1_0_1 = fma(vec4<f32>(weights[1u]), term, sum_1_0_1);
            sum_1_0_2 = fma(vec4<f32>(weights[2u]), term, sum_1_0_2);
            sum_1_0_3 = fma(vec4<f32>(weights[3u]), term, sum_1_0_3);
        }
        workgroupBarrier();
        if (column + 3u * COLUMN_THREADS >= end) { break; }
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - 0u) * THREAD_TILE + 3u];
        workgroupBarrier();
        term_0 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (3u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 0u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 0u * THREADS) % SLAB);
        term_1 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (3u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 1u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 1u * THREADS) % SLAB);
        term_2 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (3u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 2u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 2u * THREADS) % SLAB);
        term_3 = fetch_query((0u + (0u + 1u) / SLABS) % 2u == 1u, batch,
            column + (3u + (0u * SLABS + 0u + 1u) / (2u * SLABS)) * COLUMN_THREADS + (local + 3u * THREADS) / SLAB,
            head, (0u + 1u) % SLABS * SLAB + (local + 3u * THREADS) % SLAB);
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            sum_0_0_0 = fma(vec4<f32>(weights[0u]), term, sum_0_0_0);
            sum_0_0_1 = fma(vec4<f32>(weights[1u]), term, sum_0_0_1);
            sum_0_0_2 = fma(vec4<f32>(weights[2u]), term, sum_0_0_2);
            sum_0_0_3 = fma(vec4<f32>(weights[3u]), term, sum_0_0_3);
        }
        workgroupBarrier();
        if (TERMS % THREADS == 0u || local + 0u * THREADS < TERMS) { pool[local + 0u * THREADS] = term_0; }
        if (TERMS % THREADS == 0u || local + 1u * THREADS < TERMS) { pool[local + 1u * THREADS] = term_1; }
        if (TERMS % THREADS == 0u || local + 2u * THREADS < TERMS) { pool[local + 2u * THREADS] = term_2; }
        if (TERMS % THREADS == 0u || local + 3u * THREADS < TERMS) { pool[local + 3u * THREADS] = term_3; }
        pool[TERMS + across * (ROW_THREADS + 1u) + down] = s[(1u - 1u) * THREAD_TILE + 3u];
        workgroupBarrier();
        if (column + COLUMNS < end) {
            let next = column + COLUMNS;
            column_0 = fetch_query(false, batch, next + (local + 0u * THREADS) / DEPTH, head, (local + 0u * THREADS) % DEPTH);
            column_1 = fetch_query(false, batch, next + (local + 1u * THREADS) / DEPTH, head, (local + 1u * THREADS) % DEPTH);
            column_2 = fetch_query(false, batch, next + (local + 2u * THREADS) / DEPTH, head, (local + 2u * THREADS) % DEPTH);
            column_3 = fetch_query(false, batch, next + (local + 3u * THREADS) / DEPTH, head, (local + 3u * THREADS) % DEPTH);
            own = fetch_key(false, batch, first + local / DEPTH, kv_head, local % DEPTH);
        }
        for (var n = part; n < COLUMN_THREADS; n += SLAB_GROUPS) {
            let term = pool[n * SLAB + piece];
            let weights = pool[TERMS + n * (ROW_THREADS + 1u) + down];
            sum_1_0_0 = fma(vec4<f32>(weights[0u]), term, sum_1_0_0);
            sum_1_0_1 = fma(vec4<f32>(weights[1u]), term, sum_1_0_1);
            sum_1_0_2 = fma(vec4<f32>(weights[2u]), term, sum_1_0_2);
            sum_1_0_3 = fma(vec4<f32>(weights[3u]), term, sum_1_0_3);
        }
        workgroupBarrier();
    }
    if (part >= (SLAB_GROUPS >> (0u + 1u)) && part < (SLAB_GROUPS >> 0u)) {
        pool[(down * THREAD_TILE + 0u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = sum_0_0_0;
        pool[(down * THREAD_TILE + 1u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = sum_0_0_1;
        pool[(down * THREAD_TILE + 2u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = sum_0_0_2;
        pool[(down * THREAD_TILE + 3u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = sum_0_0_3;
    }
    workgroupBarrier();
    if (part < (SLAB_GROUPS >> (0u + 1u))) {
        sum_0_0_0 += pool[(down * THREAD_TILE + 0u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        sum_0_0_1 += pool[(down * THREAD_TILE + 1u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        sum_0_0_2 += pool[(down * THREAD_TILE + 2u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        sum_0_0_3 += pool[(down * THREAD_TILE + 3u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
    }
    workgroupBarrier();
    if (part >= (SLAB_GROUPS >> (0u + 1u)) && part < (SLAB_GROUPS >> 0u)) {
        pool[(down * THREAD_TILE + 0u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = sum_1_0_0;
        pool[(down * THREAD_TILE + 1u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = sum_1_0_1;
        pool[(down * THREAD_TILE + 2u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = sum_1_0_2;
        pool[(down * THREAD_TILE + 3u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))] = sum_1_0_3;
    }
    workgroupBarrier();
    if (part < (SLAB_GROUPS >> (0u + 1u))) {
        sum_1_0_0 += pool[(down * THREAD_TILE + 0u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        sum_1_0_1 += pool[(down * THREAD_TILE + 1u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        sum_1_0_2 += pool[(down * THREAD_TILE + 2u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
        sum_1_0_3 += pool[(down * THREAD_TILE + 3u) * (COLUMN_THREADS >> (0u + 1u)) + across % (COLUMN_THREADS >> (0u + 1u))];
    }
    workgroupBarrier();
    if (part == 0u) {
        if (row + 0u < ROWS_K) {
            let start = ((batch * ROWS_K + (row + 0u)) * HEADS + head) * HEAD_DIM;
            store_dk(start, 0u * SLAB + piece, sum_0_0_0);
        }
        if (row + 1u < ROWS_K) {
            let start = ((batch * ROWS_K + (row + 1u)) * HEADS + head) * HEAD_DIM;
            store_dk(start, 0u * SLAB + piece, sum_0_0_1);
        }
        if (row + 2u < ROWS_K) {
            let start = ((batch * ROWS_K + (row + 2u)) * HEADS + head) * HEAD_DIM;
            store_dk(start, 0u * SLAB + piece, sum_0_0_2);
        }
        if (row + 3u < ROWS_K) {
            let start = ((batch * ROWS_K + (row + 3u)) * HEADS + head) * HEAD_DIM;
            store_dk(start, 0u * SLAB + piece, sum_0_0_3);
        }
        if (row + 0u < ROWS_K) {
            let start = ((batch * ROWS_K + (row + 0u)) * HEADS + head) * HEAD_DIM;
            store_dv(start, 0u * SLAB + piece, sum_1_0_0);
        }
        if (row + 1u < ROWS_K) {
            let start = ((batch * ROWS_K + (row + 1u)) * HEADS + head) * HEAD_DIM;
            store_dv(start, 0u * SLAB + piece, sum_1_0_1);
        }
        if (row + 2u < ROWS_K) {
            let start = ((batch * ROWS_K + (row + 2u)) * HEADS + head) * HEAD_DIM;
            store_dv(start, 0u * SLAB + piece, sum_1_0_2);
        }
        if (row + 3u < ROWS_K) {
            let start = ((batch * ROWS_K + (row + 3u)) * HEADS + head) * HEAD_DIM;
            store_dv(start, 0u * SLAB + piece, sum_1_0_3);
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
