// Gradients of attention on cooperative matrices, second of two launches: gradients of keys and values. They are the
// sums of ds q and of p dout, where p = e^(scale s - lse), ds = scale p (t - delta), s = k q^T, t = v dout^T (Dao et
// al., 2022). Heads that share keys write separate contributions, which attention_backward_join.wgsl adds up.
//
// A workgroup has two rows of key tiles of one head and iterates over COLUMN_TILES rows of query tiles per step. Half
// of its subgroups compute the product s, the other half t. A subgroup keeps the tiles of its rows in registers.
// Products pass through shared memory as f32 and become weights, which are rounded like operands. Then each half of the
// subgroups accumulates one of the two sums in registers. A step has four barriers. The queries of the next step are
// prefetched.
//
// Range: as in attention_backward_queries_coop.wgsl, which has stored the largest magnitude of each tile of queries.
// There is only one factor, for all queries that attend to a workgroup's keys, because the sums run over queries.
//
// Twin in the oracle: core/src/ops/attention/grad.rs.

enable f16;
enable wgpu_cooperative_matrix;

alias Element = f16; alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16, A>;
alias MatrixB = coop_mat16x16<f16, B>;
alias MatrixC = coop_mat16x16<f32, C>;

const ROWS_Q: u32 = 128u; const ROWS_K: u32 = 128u;
const HEADS: u32 = 9u;
const ALL_HEADS: u32 = 9u; // number of heads of all sequences
const KV_HEADS: u32 = 3u;
const HEAD_DIM: u32 = 64u;
// True if attention is causal; window in keys, 0 for none.
const CAUSAL: bool = true;
const WINDOW: u32 = 0u;
// Number of rows of a tile, and of threads of a subgroup.
const TILE: u32 = 16u; const SUBGROUP: u32 = 32u;
// Number of subgroups along the columns of a product, and of tiles along the columns of a step.
const COLUMN_SUBGROUPS: u32 = 2u;
const COLUMN_TILES: u32 = 2u;
// Padding of rows of operands in vectors. It avoids bank conflicts in shared memory.
const PADDING: u32 = 2u;
// Number of keys before the key at the position of the first query.
const SHIFT: u32 = ROWS_K - min(ROWS_Q, ROWS_K);
// Number of tiles along the rows of a workgroup, and sizes that follow from it.
const ROW_TILES: u32 = 2u;
const THREADS: u32 = ROW_TILES * 2u * COLUMN_SUBGROUPS * SUBGROUP;
const ROWS: u32 = ROW_TILES * TILE;
const COLUMNS: u32 = COLUMN_TILES * TILE;
const ROW_THREADS: u32 = THREADS / ROWS;
const QUERY_TILES: u32 = (ROWS_Q + ROWS - 1u) / ROWS;
const LAST_VECTOR: u32 = (HEAD_DIM + 3u) / 4u - 1u;
// Number of vectors of a head, padded so that the subgroups of a sum have equal numbers of tiles, and of tiles of a
// head.
const VECTORS: u32 = (HEAD_DIM + COLUMN_SUBGROUPS * TILE - 1u) / (COLUMN_SUBGROUPS * TILE) * (COLUMN_SUBGROUPS * TILE / 4u);
const DEPTH: u32 = (HEAD_DIM + TILE - 1u) / TILE;
// Number of tiles of a product and of a sum per subgroup, of vectors of a product per thread, and of vectors of a
// tile's row.
const PRODUCT_TILES: u32 = COLUMN_TILES / COLUMN_SUBGROUPS;
const SUM_TILES: u32 = VECTORS * 4u / TILE / COLUMN_SUBGROUPS;
const THREAD_VECTORS: u32 = COLUMNS / 4u / ROW_THREADS;
const QUARTER: u32 = TILE / 4u;
// Number of vectors that a thread copies of columns, of rows, and of results.
const COLUMN_PIECES: u32 = (COLUMNS * VECTORS + THREADS - 1u) / THREADS;
const ROW_PIECES: u32 = (ROWS * VECTORS + THREADS - 1u) / THREADS;
const RESULT_PIECES: u32 = (ROWS * COLUMN_SUBGROUPS * QUARTER + THREADS - 1u) / THREADS;
// Row strides in vectors: operands, weights and products. Sizes in vectors: an operand, the weights and a product.
const STRIDE: u32 = VECTORS + PADDING;
const WEIGHTS_STRIDE: u32 = COLUMNS / 4u + PADDING;
const SUMS_STRIDE: u32 = max(COLUMNS / 4u, COLUMN_SUBGROUPS * QUARTER) + 1u;
const WEIGHTS: u32 = ROWS * WEIGHTS_STRIDE;
const OPERAND: u32 = max(max(COLUMNS, ROWS) * STRIDE, WEIGHTS);
const PRODUCT: u32 = ROWS * SUMS_STRIDE;
const WEIGHTS_AT: u32 = 2u * OPERAND;
const d: u32 = 0u; const j: u32 = 0u; const p: u32 = 0u; // indices of repeats

var<storage, read> q: array<vec4<f32>>;
var<storage, read> k: array<vec4<f32>>;
var<storage, read> v: array<vec4<f32>>;
var<storage, read> dout: array<vec4<f32>>;
var<storage, read> lse: array<f32>;
var<storage, read> delta: array<f32>;
// Largest magnitude in dout and delta of each tile of queries, as bits.
var<storage, read> left: array<u32>;
var<storage, read_write> dk: array<vec4<f32>>;
var<storage, read_write> dv: array<vec4<f32>>;
var<workgroup> pool: array<Vector, 2u * OPERAND + 2u * WEIGHTS>;
var<workgroup> sums: array<vec4<f32>, 2u * PRODUCT>;
// Log-sum-exps and deltas of the queries of a step; largest magnitude of all queries that attend to the keys.
var<workgroup> marks: array<vec4<f32>, 2u * COLUMNS / 4u>;
var<workgroup> largest: atomic<u32>;

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

// Returns the bits of the largest magnitude of four numbers: bits of non-negative numbers have the order of the
// numbers. For a number from 2^n to 2^(n + 1), the factor is 2^-n if it and its inverse are normal. For infinity and
// NaN, it is 1.
fn size_of(x: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}
fn factor_of(size: u32) -> f32 {
    let exponent = size >> 23u;
    return bitcast<f32>(select(clamp(254u - exponent, 1u, 253u), 127u, exponent == 255u) << 23u);
}
fn inverse_of(factor: f32) -> f32 { return bitcast<f32>((254u << 23u) - bitcast<u32>(factor)); }

// Index of a query among the queries of all heads, clamped to the last one, and index of the first element of its row.
fn query_number(batch: u32, head: u32, query: u32) -> u32 { return (batch * HEADS + head) * ROWS_Q + min(query, ROWS_Q - 1u); }
fn query_start(batch: u32, row: u32, head: u32) -> u32 {
    return ((batch * ROWS_Q + min(row, ROWS_Q - 1u)) * HEADS + head) * HEAD_DIM;
}
fn key_start(batch: u32, row: u32, kv_head: u32) -> u32 {
    return ((batch * ROWS_K + min(row, ROWS_K - 1u)) * KV_HEADS + kv_head) * HEAD_DIM;
}

// Returns a loaded vector. Vectors past the end of the head are zeros, unless no tile contains them.
fn within(vector: u32, value: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), value, LAST_VECTOR % 4u == 3u || vector <= LAST_VECTOR);
}
fn fetch_q(batch: u32, row: u32, head: u32, vector: u32) -> vec4<f32> {
    return within(vector, load_q(query_start(batch, row, head), min(vector, LAST_VECTOR)));
}
fn fetch_dout(batch: u32, row: u32, head: u32, vector: u32) -> vec4<f32> {
    return within(vector, load_dout(query_start(batch, row, head), min(vector, LAST_VECTOR)));
}
fn fetch_k(batch: u32, row: u32, kv_head: u32, vector: u32) -> vec4<f32> {
    return within(vector, load_k(key_start(batch, row, kv_head), min(vector, LAST_VECTOR)));
}
fn fetch_v(batch: u32, row: u32, kv_head: u32, vector: u32) -> vec4<f32> {
    return within(vector, load_v(key_start(batch, row, kv_head), min(vector, LAST_VECTOR)));
}

// Returns the row of a vector that a thread copies, clamped to the last row.
fn row_of(at: u32, rows: u32, vectors: u32) -> u32 {
    return select(min(at / vectors, rows - 1u), at / vectors, rows * vectors % THREADS == 0u);
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
    let subgroup = local / SUBGROUP;
    let sub_row = subgroup / (2u * COLUMN_SUBGROUPS) * TILE;
    let which = subgroup / COLUMN_SUBGROUPS % 2u;
    let sub_column = subgroup % COLUMN_SUBGROUPS;
    let own_row = local % ROWS;
    let part = local / ROWS;
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
    // @repeat p < COLUMN_PIECES
    let column_row_p = row_of(local + p * THREADS, COLUMNS, VECTORS);
    let column_vector_p = (local + p * THREADS) % VECTORS;
    var query_p = fetch_q(batch, begin + column_row_p, head, column_vector_p);
    var dout_p = fetch_dout(batch, begin + column_row_p, head, column_vector_p);
    // @end
    var own_lse = load_lse(query_number(batch, head, begin + local % COLUMNS));
    var own_delta = load_delta(query_number(batch, head, begin + local % COLUMNS));
    // A subgroup keeps the tiles of its keys, or of its values.
    // @repeat p < ROW_PIECES
    let row_p = row_of(local + p * THREADS, ROWS, VECTORS);
    let row_vector_p = (local + p * THREADS) % VECTORS;
    let key_p = fetch_k(batch, first + row_p, kv_head, row_vector_p);
    let value_p = fetch_v(batch, first + row_p, kv_head, row_vector_p);
    // @end
    if (local == 0u) { atomicStore(&largest, 0u); }
    // @repeat p < ROW_PIECES
    pool[row_p * STRIDE + row_vector_p] = Vector(key_p);
    pool[OPERAND + row_p * STRIDE + row_vector_p] = Vector(value_p);
    // @end
    workgroupBarrier();
    // @repeat d < DEPTH
    let at_kept_d = which * OPERAND + sub_row * STRIDE + d * QUARTER;
    let kept_d = coopLoadT<MatrixA>(&pool[at_kept_d], STRIDE);
    // @end
    workgroupBarrier();
    for (var i = begin / ROWS + local; i * ROWS < end; i += THREADS) {
        atomicMax(&largest, left[(batch * HEADS + head) * QUERY_TILES + i]);
    }
    workgroupBarrier();
    let factor = factor_of(atomicLoad(&largest));
    // @repeat j < SUM_TILES
    var sum_j = MatrixC();
    // @end
    for (var column = begin; column < end; column += COLUMNS) {
        // @repeat p < COLUMN_PIECES
        pool[column_row_p * STRIDE + column_vector_p] = Vector(query_p);
        pool[OPERAND + column_row_p * STRIDE + column_vector_p] = Vector(dout_p * factor);
        // @end
        if (local < COLUMNS) {
            marks[local / 4u][local % 4u] = own_lse;
            marks[COLUMNS / 4u + local / 4u][local % 4u] = own_delta * factor;
        }
        workgroupBarrier();
        if (column + COLUMNS < end) {
            // @repeat p < COLUMN_PIECES
            query_p = fetch_q(batch, column + COLUMNS + column_row_p, head, column_vector_p);
            dout_p = fetch_dout(batch, column + COLUMNS + column_row_p, head, column_vector_p);
            // @end
            own_lse = load_lse(query_number(batch, head, column + COLUMNS + local % COLUMNS));
            own_delta = load_delta(query_number(batch, head, column + COLUMNS + local % COLUMNS));
        }
        // @repeat j < PRODUCT_TILES
        var product_j = MatrixC();
        // @end
        // @repeat d < DEPTH, j < PRODUCT_TILES
        let at_column_d_j = which * OPERAND + (sub_column * (PRODUCT_TILES * TILE) + j * TILE) * STRIDE + d * QUARTER;
        let column_d_j = coopLoad<MatrixB>(&pool[at_column_d_j], STRIDE);
        product_j = coopMultiplyAdd(kept_d, column_d_j, product_j);
        // @end
        // @repeat j < PRODUCT_TILES
        let to_product_j = which * PRODUCT + sub_row * SUMS_STRIDE + sub_column * (PRODUCT_TILES * QUARTER) + j * QUARTER;
        coopStoreT(product_j, &sums[to_product_j], SUMS_STRIDE);
        // @end
        workgroupBarrier();
        // @repeat j < THREAD_VECTORS
        let vector_j = j * ROW_THREADS + part;
        let s_j = sums[own_row * SUMS_STRIDE + vector_j];
        let t_j = sums[PRODUCT + own_row * SUMS_STRIDE + vector_j];
        var p_j = numerators(s_j * scale() - marks[vector_j]);
        var ds_j = p_j * (t_j - marks[COLUMNS / 4u + vector_j]) * scale();
        // @end
        if (column < all_from || column + COLUMNS > all_to) {
            // @repeat j < THREAD_VECTORS
            let number_j = vec4<u32>(column + vector_j * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
            let seen_j = seen(vec4<u32>(first + own_row), number_j, end);
            p_j = select(vec4<f32>(), p_j, seen_j);
            ds_j = select(vec4<f32>(), ds_j, seen_j);
            // @end
        }
        // @repeat j < THREAD_VECTORS
        pool[WEIGHTS_AT + own_row * WEIGHTS_STRIDE + vector_j] = Vector(ds_j);
        pool[WEIGHTS_AT + WEIGHTS + own_row * WEIGHTS_STRIDE + vector_j] = Vector(p_j);
        // @end
        workgroupBarrier();
        // @repeat d < COLUMN_TILES
        let at_weight_d = WEIGHTS_AT + d * QUARTER + which * WEIGHTS + sub_row * WEIGHTS_STRIDE;
        let weight_d = coopLoadT<MatrixA>(&pool[at_weight_d], WEIGHTS_STRIDE);
        // @repeat j < SUM_TILES
        let at_term_d_j = which * OPERAND + d * TILE * STRIDE + j * QUARTER + sub_column * SUM_TILES * QUARTER;
        let term_d_j = coopLoadT<MatrixB>(&pool[at_term_d_j], STRIDE);
        sum_j = coopMultiplyAdd(weight_d, term_d_j, sum_j);
        // @end
        // @end
        workgroupBarrier();
    }
    // A tile of each subgroup at a time goes to shared memory, and is stored.
    // @repeat j < SUM_TILES
    let to_sum_j = which * PRODUCT + sub_row * SUMS_STRIDE + sub_column * QUARTER;
    coopStoreT(sum_j, &sums[to_sum_j], SUMS_STRIDE);
    workgroupBarrier();
    // @repeat p < RESULT_PIECES
    {
        let own = row_of(local + p * THREADS, ROWS, COLUMN_SUBGROUPS * QUARTER);
        let across = (local + p * THREADS) % (COLUMN_SUBGROUPS * QUARTER);
        let vector = (across / QUARTER * SUM_TILES + j) * QUARTER + across % QUARTER;
        let at = own * SUMS_STRIDE + across;
        if (first + own < ROWS_K) {
            let start = ((batch * ROWS_K + (first + own)) * HEADS + head) * HEAD_DIM;
            store_dk(start, vector, sums[at] * inverse_of(factor));
            store_dv(start, vector, sums[PRODUCT + at] * inverse_of(factor));
        }
    }
    // @end
    workgroupBarrier();
    // @end
}
