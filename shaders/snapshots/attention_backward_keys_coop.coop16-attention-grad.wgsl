enable wgpu_cooperative_matrix;
enable f16;
var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read> b4: array<f32>;
var<storage, read> b5: array<f32>;
var<storage, read_write> b6: array<vec4<f32>>;
var<storage, read_write> b7: array<vec4<f32>>;
var<storage, read> left: array<u32>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16,A>;
alias MatrixB = coop_mat16x16<f16,B>;
alias MatrixC = coop_mat16x16<f32,C>;
const ROWS_Q: u32 = 300u;
const ROWS_K: u32 = 310u;
const HEADS: u32 = 4u;
const ALL_HEADS: u32 = 4u;
const KV_HEADS: u32 = 2u;
const HEAD_DIM: u32 = 64u;
// Number of rows of a tile, and of threads of a subgroup.
const TILE: u32 = 16u;
const SUBGROUP: u32 = 32u;
// Number of subgroups along the columns of a product, and of tiles along the columns of a step.
const COLUMN_SUBGROUPS: u32 = 2u;
// Number of keys before the key at the position of the first query.
const SHIFT: u32 = 10u;
const THREADS: u32 = 256u;
const ROWS: u32 = 32u;
const COLUMNS: u32 = 32u;
const ROW_THREADS: u32 = 8u;
const QUERY_TILES: u32 = 10u;
const LAST_VECTOR: u32 = 15u;
// Number of vectors of a head, padded so that the subgroups of a sum have equal numbers of tiles, and of tiles of a
// head.
const VECTORS: u32 = 16u;
// Number of tiles of a product and of a sum per subgroup, of vectors of a product per thread, and of vectors of a
// tile's row.
const PRODUCT_TILES: u32 = 1u;
const SUM_TILES: u32 = 2u;
const QUARTER: u32 = 4u;
// Row strides in vectors: operands, weights and products. Sizes in vectors: an operand, the weights and a product.
const STRIDE: u32 = 18u;
const WEIGHTS_STRIDE: u32 = 10u;
const SUMS_STRIDE: u32 = 9u;
const WEIGHTS: u32 = 320u;
const OPERAND: u32 = 576u;
const PRODUCT: u32 = 288u;
const WEIGHTS_AT: u32 = 1152u;
var<workgroup> pool: array<Vector, 2u * OPERAND + 2u * WEIGHTS>;
var<workgroup> sums: array<vec4<f32>, 2u * PRODUCT>;
// Log-sum-exps and deltas of the queries of a step; largest magnitude of all queries that attend to the keys.
var<workgroup> marks: array<vec4<f32>, 2u * COLUMNS / 4u>;
var<workgroup> largest: atomic<u32>;
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
    begin = max(first, SHIFT) - SHIFT;
    all_from = max(last, SHIFT) - SHIFT;
    let column_row_0 = row_of(local + 0u * THREADS, COLUMNS, VECTORS);
    let column_vector_0 = (local + 0u * THREADS) % VECTORS;
    var query_0 = fetch_q(batch, begin + column_row_0, head, column_vector_0);
    var dout_0 = fetch_dout(batch, begin + column_row_0, head, column_vector_0);
    let column_row_1 = row_of(local + 1u * THREADS, COLUMNS, VECTORS);
    let column_vector_1 = (local + 1u * THREADS) % VECTORS;
    var query_1 = fetch_q(batch, begin + column_row_1, head, column_vector_1);
    var dout_1 = fetch_dout(batch, begin + column_row_1, head, column_vector_1);
    var own_lse = load_lse(query_number(batch, head, begin + local % COLUMNS));
    var own_delta = load_delta(query_number(batch, head, begin + local % COLUMNS));
    // A subgroup keeps the tiles of its keys, or of its values.
    let row_0 = row_of(local + 0u * THREADS, ROWS, VECTORS);
    let row_vector_0 = (local + 0u * THREADS) % VECTORS;
    let key_0 = fetch_k(batch, first + row_0, kv_head, row_vector_0);
    let value_0 = fetch_v(batch, first + row_0, kv_head, row_vector_0);
    let row_1 = row_of(local + 1u * THREADS, ROWS, VECTORS);
    let row_vector_1 = (local + 1u * THREADS) % VECTORS;
    let key_1 = fetch_k(batch, first + row_1, kv_head, row_vector_1);
    let value_1 = fetch_v(batch, first + row_1, kv_head, row_vector_1);
    if (local == 0u) { atomicStore(&largest, 0u); }
    pool[row_0 * STRIDE + row_vector_0] = Vector(key_0);
    pool[OPERAND + row_0 * STRIDE + row_vector_0] = Vector(value_0);
    pool[row_1 * STRIDE + row_vector_1] = Vector(key_1);
    pool[OPERAND + row_1 * STRIDE + row_vector_1] = Vector(value_1);
    workgroupBarrier();
    let at_kept_0 = which * OPERAND + sub_row * STRIDE + 0u * QUARTER;
    let kept_0 = coopLoadT<MatrixA>(&pool[at_kept_0], STRIDE);
    let at_kept_1 = which * OPERAND + sub_row * STRIDE + 1u * QUARTER;
    let kept_1 = coopLoadT<MatrixA>(&pool[at_kept_1], STRIDE);
    let at_kept_2 = which * OPERAND + sub_row * STRIDE + 2u * QUARTER;
    let kept_2 = coopLoadT<MatrixA>(&pool[at_kept_2], STRIDE);
    let at_kept_3 = which * OPERAND + sub_row * STRIDE + 3u * QUARTER;
    let kept_3 = coopLoadT<MatrixA>(&pool[at_kept_3], STRIDE);
    workgroupBarrier();
    for (var i = begin / ROWS + local; i * ROWS < end; i += THREADS) {
        atomicMax(&largest, left[(batch * HEADS + head) * QUERY_TILES + i]);
    }
    workgroupBarrier();
    let factor = factor_of(atomicLoad(&largest));
    var sum_0 = MatrixC();
    var sum_1 = MatrixC();
    for (var column = begin; column < end; column += COLUMNS) {
        pool[column_row_0 * STRIDE + column_vector_0] = Vector(query_0);
        pool[OPERAND + column_row_0 * STRIDE + column_vector_0] = Vector(dout_0 * factor);
        pool[column_row_1 * STRIDE + column_vector_1] = Vector(query_1);
        pool[OPERAND + column_row_1 * STRIDE + column_vector_1] = Vector(dout_1 * factor);
        if (local < COLUMNS) {
            marks[local / 4u][local % 4u] = own_lse;
            marks[COLUMNS / 4u + local / 4u][local % 4u] = own_delta * factor;
        }
        workgroupBarrier();
        if (column + COLUMNS < end) {
            query_0 = fetch_q(batch, column + COLUMNS + column_row_0, head, column_vector_0);
            dout_0 = fetch_dout(batch, column + COLUMNS + column_row_0, head, column_vector_0);
            query_1 = fetch_q(batch, column + COLUMNS + column_row_1, head, column_vector_1);
            dout_1 = fetch_dout(batch, column + COLUMNS + column_row_1, head, column_vector_1);
            own_lse = load_lse(query_number(batch, head, column + COLUMNS + local % COLUMNS));
            own_delta = load_delta(query_number(batch, head, column + COLUMNS + local % COLUMNS));
        }
        var product_0 = MatrixC();
        let at_column_0_0 = which * OPERAND + (sub_column * (PRODUCT_TILES * TILE) + 0u * TILE) * STRIDE + 0u * QUARTER;
        let column_0_0 = coopLoad<MatrixB>(&pool[at_column_0_0], STRIDE);
        product_0 = coopMultiplyAdd(kept_0, column_0_0, product_0);
        let at_column_1_0 = which * OPERAND + (sub_column * (PRODUCT_TILES * TILE) + 0u * TILE) * STRIDE + 1u * QUARTER;
        let column_1_0 = coopLoad<MatrixB>(&pool[at_column_1_0], STRIDE);
        product_0 = coopMultiplyAdd(kept_1, column_1_0, product_0);
        let at_column_2_0 = which * OPERAND + (sub_column * (PRODUCT_TILES * TILE) + 0u * TILE) * STRIDE + 2u * QUARTER;
        let column_2_0 = coopLoad<MatrixB>(&pool[at_column_2_0], STRIDE);
        product_0 = coopMultiplyAdd(kept_2, column_2_0, product_0);
        let at_column_3_0 = which * OPERAND + (sub_column * (PRODUCT_TILES * TILE) + 0u * TILE) * STRIDE + 3u * QUARTER;
        let column_3_0 = coopLoad<MatrixB>(&pool[at_column_3_0], STRIDE);
        product_0 = coopMultiplyAdd(kept_3, column_3_0, product_0);
        let to_product_0 = which * PRODUCT + sub_row * SUMS_STRIDE + sub_column * (PRODUCT_TILES * QUARTER) + 0u * QUARTER;
        coopStoreT(product_0, &sums[to_product_0], SUMS_STRIDE);
        workgroupBarrier();
        let vector_0 = 0u * ROW_THREADS + part;
        let s_0 = sums[own_row * SUMS_STRIDE + vector_0];
        let t_0 = sums[PRODUCT + own_row * SUMS_STRIDE + vector_0];
        var p_0 = numerators(s_0 * scale() - marks[vector_0]);
        var ds_0 = p_0 * (t_0 - marks[COLUMNS / 4u + vector_0]) * scale();
        if (column < all_from || column + COLUMNS > all_to) {
            let number_0 = vec4<u32>(column + vector_0 * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
            let seen_0 = seen(vec4<u32>(first + own_row), number_0, end);
            p_0 = select(vec4<f32>(), p_0, seen_0);
            ds_0 = select(vec4<f32>(), ds_0, seen_0);
        }
        pool[WEIGHTS_AT + own_row * WEIGHTS_STRIDE + vector_0] = Vector(ds_0);
        pool[WEIGHTS_AT + WEIGHTS + own_row * WEIGHTS_STRIDE + vector_0] = Vector(p_0);
        workgroupBarrier();
        let at_weight_0 = WEIGHTS_AT + 0u * QUARTER + which * WEIGHTS + sub_row * WEIGHTS_STRIDE;
        let weight_0 = coopLoadT<MatrixA>(&pool[at_weight_0], WEIGHTS_STRIDE);
        let at_term_0_0 = which * OPERAND + 0u * TILE * STRIDE + 0u * QUARTER + sub_column * SUM_TILES * QUARTER;
        let term_0_0 = coopLoadT<MatrixB>(&pool[at_term_0_0], STRIDE);
        sum_0 = coopMultiplyAdd(weight_0, term_0_0, sum_0);
        let at_term_0_1 = which * OPERAND + 0u * TILE * STRIDE + 1u * QUARTER + sub_column * SUM_TILES * QUARTER;
        let term_0_1 = coopLoadT<MatrixB>(&pool[at_term_0_1], STRIDE);
        sum_1 = coopMultiplyAdd(weight_0, term_0_1, sum_1);
        let at_weight_1 = WEIGHTS_AT + 1u * QUARTER + which * WEIGHTS + sub_row * WEIGHTS_STRIDE;
        let weight_1 = coopLoadT<MatrixA>(&pool[at_weight_1], WEIGHTS_STRIDE);
        let at_term_1_0 = which * OPERAND + 1u * TILE * STRIDE + 0u * QUARTER + sub_column * SUM_TILES * QUARTER;
        let term_1_0 = coopLoadT<MatrixB>(&pool[at_term_1_0], STRIDE);
        sum_0 = coopMultiplyAdd(weight_1, term_1_0, sum_0);
        let at_term_1_1 = which * OPERAND + 1u * TILE * STRIDE + 1u * QUARTER + sub_column * SUM_TILES * QUARTER;
        let term_1_1 = coopLoadT<MatrixB>(&pool[at_term_1_1], STRIDE);
        sum_1 = coopMultiplyAdd(weight_1, term_1_1, sum_1);
        workgroupBarrier();
    }
    // A tile of each subgroup at a time goes to shared memory, and is stored.
    let to_sum_0 = which * PRODUCT + sub_row * SUMS_STRIDE + sub_column * QUARTER;
    coopStoreT(sum_0, &sums[to_sum_0], SUMS_STRIDE);
    workgroupBarrier();
    {
        let own = row_of(local + 0u * THREADS, ROWS, COLUMN_SUBGROUPS * QUARTER);
        let across = (local + 0u * THREADS) % (COLUMN_SUBGROUPS * QUARTER);
        let vector = (across / QUARTER * SUM_TILES + 0u) * QUARTER + across % QUARTER;
        let at = own * SUMS_STRIDE + across;
        if (first + own < ROWS_K) {
            let start = ((batch * ROWS_K + (first + own)) * HEADS + head) * HEAD_DIM;
            store_dk(start, vector, sums[at] * inverse_of(factor));
            store_dv(start, vector, sums[PRODUCT + at] * inverse_of(factor));
        }
    }
    workgroupBarrier();
    let to_sum_1 = which * PRODUCT + sub_row * SUMS_STRIDE + sub_column * QUARTER;
    coopStoreT(sum_1, &sums[to_sum_1], SUMS_STRIDE);
    workgroupBarrier();
    {
        let own = row_of(local + 0u * THREADS, ROWS, COLUMN_SUBGROUPS * QUARTER);
        let across = (local + 0u * THREADS) % (COLUMN_SUBGROUPS * QUARTER);
        let vector = (across / QUARTER * SUM_TILES + 1u) * QUARTER + across % QUARTER;
        let at = own * SUMS_STRIDE + across;
        if (first + own < ROWS_K) {
            let start = ((batch * ROWS_K + (first + own)) * HEADS + head) * HEAD_DIM;
            store_dk(start, vector, sums[at] * inverse_of(factor));
            store_dv(start, vector, sums[PRODUCT + at] * inverse_of(factor));
        }
    }
    workgroupBarrier();
}
// e^x of scores relative to the maximum. The error of the built-in function grows with |x|, but e^x shrinks faster, so
// the error is negligible relative to e^0 = 1 of the maximum score. Minus infinity gives 0; NaN stays NaN.
fn numerators(x: vec4<f32>) -> vec4<f32> {
    let nan = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let small = x < vec4<f32>(-87.0);
    return select(select(exp(select(x, vec4<f32>(), small)), vec4<f32>(), small), x, nan);
}
