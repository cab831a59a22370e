enable wgpu_cooperative_matrix;
enable f16;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<u32>;
var<storage, read_write> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read> b4: array<vec4<f32>>;
var<storage, read> b5: array<vec4<f32>>;
var<storage, read> tiles: array<vec4<u32>>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16,A>;
alias MatrixB = coop_mat16x16<f16,B>;
alias MatrixC = coop_mat16x16<f32,C>;
// Vectors of operands, as they are in memory if these are the input type.
alias Q = vec4<f32>;
alias K = vec4<f32>;
alias V = vec4<f32>;
const ROWS_Q: u32 = 512u;
const ROWS_K: u32 = 512u;
const HEADS: u32 = 4u;
const ALL_HEADS: u32 = 4u;
const KV_HEADS: u32 = 2u;
const HEAD_DIM: u32 = 64u;
const TABLE_LEN: u32 = 32u;
const BLOCK_ROWS: u32 = 16u;
const BLOCKS: u32 = 64u;
// Rows of a tile, threads of a subgroup, and tiles along the keys of a step.
const TILE: u32 = 16u;
const SUBGROUP: u32 = 32u;
const LAST_VECTOR: u32 = 15u;
const WHOLE_TILES: bool = true;
const COLUMN_SUBGROUPS: u32 = 2u;
const THREADS: u32 = 128u;
const ROWS: u32 = 32u;
const KEYS: u32 = 32u;
const ROW_THREADS: u32 = 4u;
// Vectors of a head, padded so that subgroups along the columns have equal numbers of tiles, and tiles of a head.
const VECTORS: u32 = 16u;
// Row strides in vectors: operands, weights and sums. Offset of the values, after keys, queries or weights.
const STRIDE: u32 = 18u;
const WEIGHTS_STRIDE: u32 = 10u;
const SUMS_STRIDE: u32 = 17u;
const VALUES_AT: u32 = 576u;
var<workgroup> pool: array<Vector, 2u * VALUES_AT>;
var<workgroup> sums: array<vec4<f32>, ROWS * SUMS_STRIDE>;
var<workgroup> partial: array<f32, ROWS * ROW_THREADS>;
// Last key. Cache rows after it may contain anything, including NaN.
var<private> last_key: u32;
var<private> table_row: u32;
// the query whose row of the block table all queries of the tile share
// Load a vector of the row that begins at element `start`; the number of cached keys of a sequence.
fn load_q(start: u32, vector: u32) -> Q {
    return b3[start / 4u + vector];
}
fn load_k(start: u32, vector: u32) -> K {
    return b4[start / 4u + vector];
}
fn load_v(start: u32, vector: u32) -> V {
    return b5[start / 4u + vector];
}
fn load_position(batch: u32) -> u32 {
    return b1[batch];
}
fn load_block(index: u32) -> u32 {
    return b0[index];
}
// Store a vector of a result; the logarithm of the sum of exponentials of a query.
fn store(start: u32, vector: u32, value: vec4<f32>) {
    if (vector < 16u) {
        b2[start / 4u + vector] = vec4<f32>(value);
    }
}
fn scale() -> f32 {
    return (1.25e-1f);
}
// Index of the first element of a head in a row of queries and of keys; rows are clamped to the last one.
fn query_start(batch: u32, row: u32, head: u32) -> u32 { return ((batch * ROWS_Q + row) * HEADS + head) * HEAD_DIM; }
fn key_start(batch: u32, row: u32, kv_head: u32) -> u32 {
    let within = min(row, last_key);
    var cached = batch * ROWS_K + within;
    let block = min(load_block(table_row * TABLE_LEN + within / BLOCK_ROWS), BLOCKS - 1u);
    cached = block * BLOCK_ROWS + within % BLOCK_ROWS;
    return (cached * KV_HEADS + kv_head) * HEAD_DIM;
}
// A loaded vector; vectors past the end of the head are zeros, unless no tile contains them.
fn fetch_q(batch: u32, row: u32, head: u32, vector: u32) -> Q {
    let value = load_q(query_start(batch, min(row, ROWS_Q - 1u), head), min(vector, LAST_VECTOR));
    return select(Q(), value, WHOLE_TILES || vector <= LAST_VECTOR);
}
fn fetch_k(batch: u32, row: u32, kv_head: u32, vector: u32) -> K {
    let value = load_k(key_start(batch, row, kv_head), min(vector, LAST_VECTOR));
    return select(K(), value, WHOLE_TILES || vector <= LAST_VECTOR);
}
fn fetch_v(batch: u32, row: u32, kv_head: u32, vector: u32) -> V {
    let value = load_v(key_start(batch, row, kv_head), min(vector, LAST_VECTOR));
    return select(V(), value, WHOLE_TILES || vector <= LAST_VECTOR);
}
// Row of a vector that a thread copies, clamped to the last row.
fn key_of(at: u32) -> u32 { return select(min(at / VECTORS, KEYS - 1u), at / VECTORS, KEYS * VECTORS % THREADS == 0u); }
fn row_of(at: u32) -> u32 { return select(min(at / VECTORS, ROWS - 1u), at / VECTORS, ROWS * VECTORS % THREADS == 0u); }
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = (ROWS_Q - 1u) / ROWS - group_number / ALL_HEADS; // the last ones take longest, with a mask
    let batch = group_number % ALL_HEADS / HEADS;
    let head = group_number % HEADS;
    let kv_head = head / (HEADS / KV_HEADS);
    let first = tile * ROWS;
    let last = min(first + ROWS, ROWS_Q) - 1u;
    let sub_row = local / SUBGROUP / COLUMN_SUBGROUPS * TILE;
    let sub_column = local / SUBGROUP % COLUMN_SUBGROUPS;
    let own_row = local % ROWS;
    let part = local / ROWS;
    last_key = ROWS_K - 1u;
    // Ranges of keys that some of the queries attend to, that all of them do, and that the thread's query does.
    var begin = 0u;
    var end = ROWS_K;
    var all_from = 0u;
    var all_to = ROWS_K;
    var seen_from = 0u;
    var seen_to = ROWS_K;
    let facts = tiles[tile];
    if (facts.x == 0u) { return; }
    last_key = facts.z;
    table_row = facts.w;
    end = facts.z + 1u;
    all_to = facts.y + 1u;
    seen_to = min(load_position(min(first + own_row, last)), ROWS_K - 1u) + 1u;
    let hidden = from_bits(0xff800000u);
    var greatest = -3.4028234e38;
    var total = 0.0;
    var out_0 = vec4<f32>();
    var out_1 = vec4<f32>();
    var out_2 = vec4<f32>();
    var out_3 = vec4<f32>();
    // A subgroup keeps the tiles of its queries.
    let at_0 = local + 0u * THREADS;
    pool[row_of(at_0) * STRIDE + at_0 % VECTORS] = Vector(fetch_q(batch, first + row_of(at_0), head, at_0 % VECTORS));
    let at_1 = local + 1u * THREADS;
    pool[row_of(at_1) * STRIDE + at_1 % VECTORS] = Vector(fetch_q(batch, first + row_of(at_1), head, at_1 % VECTORS));
    let at_2 = local + 2u * THREADS;
    pool[row_of(at_2) * STRIDE + at_2 % VECTORS] = Vector(fetch_q(batch, first + row_of(at_2), head, at_2 % VECTORS));
    let at_3 = local + 3u * THREADS;
    pool[row_of(at_3) * STRIDE + at_3 % VECTORS] = Vector(fetch_q(batch, first + row_of(at_3), head, at_3 % VECTORS));
    workgroupBarrier();
    let at_q_0 = sub_row * STRIDE + 0u * TILE / 4u;
    let q_0 = coopLoadT<MatrixA>(&pool[at_q_0], STRIDE);
    let at_q_1 = sub_row * STRIDE + 1u * TILE / 4u;
    let q_1 = coopLoadT<MatrixA>(&pool[at_q_1], STRIDE);
    let at_q_2 = sub_row * STRIDE + 2u * TILE / 4u;
    let q_2 = coopLoadT<MatrixA>(&pool[at_q_2], STRIDE);
    let at_q_3 = sub_row * STRIDE + 3u * TILE / 4u;
    let q_3 = coopLoadT<MatrixA>(&pool[at_q_3], STRIDE);
    workgroupBarrier();
    let key_at_0 = local + 0u * THREADS;
    var key_0 = fetch_k(batch, begin + key_of(key_at_0), kv_head, key_at_0 % VECTORS);
    var value_0 = fetch_v(batch, begin + key_of(key_at_0), kv_head, key_at_0 % VECTORS);
    let key_at_1 = local + 1u * THREADS;
    var key_1 = fetch_k(batch, begin + key_of(key_at_1), kv_head, key_at_1 % VECTORS);
    var value_1 = fetch_v(batch, begin + key_of(key_at_1), kv_head, key_at_1 % VECTORS);
    let key_at_2 = local + 2u * THREADS;
    var key_2 = fetch_k(batch, begin + key_of(key_at_2), kv_head, key_at_2 % VECTORS);
    var value_2 = fetch_v(batch, begin + key_of(key_at_2), kv_head, key_at_2 % VECTORS);
    let key_at_3 = local + 3u * THREADS;
    var key_3 = fetch_k(batch, begin + key_of(key_at_3), kv_head, key_at_3 % VECTORS);
    var value_3 = fetch_v(batch, begin + key_of(key_at_3), kv_head, key_at_3 % VECTORS);
    var key = begin;
    loop {
        pool[key_of(key_at_0) * STRIDE + key_at_0 % VECTORS] = Vector(key_0);
        pool[VALUES_AT + key_of(key_at_0) * STRIDE + key_at_0 % VECTORS] = Vector(value_0);
        pool[key_of(key_at_1) * STRIDE + key_at_1 % VECTORS] = Vector(key_1);
        pool[VALUES_AT + key_of(key_at_1) * STRIDE + key_at_1 % VECTORS] = Vector(value_1);
        pool[key_of(key_at_2) * STRIDE + key_at_2 % VECTORS] = Vector(key_2);
        pool[VALUES_AT + key_of(key_at_2) * STRIDE + key_at_2 % VECTORS] = Vector(value_2);
        pool[key_of(key_at_3) * STRIDE + key_at_3 % VECTORS] = Vector(key_3);
        pool[VALUES_AT + key_of(key_at_3) * STRIDE + key_at_3 % VECTORS] = Vector(value_3);
        workgroupBarrier();
        if (key + KEYS < end) {
            key_0 = fetch_k(batch, key + KEYS + key_of(key_at_0), kv_head, key_at_0 % VECTORS);
            value_0 = fetch_v(batch, key + KEYS + key_of(key_at_0), kv_head, key_at_0 % VECTORS);
            key_1 = fetch_k(batch, key + KEYS + key_of(key_at_1), kv_head, key_at_1 % VECTORS);
            value_1 = fetch_v(batch, key + KEYS + key_of(key_at_1), kv_head, key_at_1 % VECTORS);
            key_2 = fetch_k(batch, key + KEYS + key_of(key_at_2), kv_head, key_at_2 % VECTORS);
            value_2 = fetch_v(batch, key + KEYS + key_of(key_at_2), kv_head, key_at_2 % VECTORS);
            key_3 = fetch_k(batch, key + KEYS + key_of(key_at_3), kv_head, key_at_3 % VECTORS);
            value_3 = fetch_v(batch, key + KEYS + key_of(key_at_3), kv_head, key_at_3 % VECTORS);
        }
        var score_0 = MatrixC();
        let at_k_0_0 = (sub_column * (KEYS / COLUMN_SUBGROUPS) + 0u * TILE) * STRIDE + 0u * TILE / 4u;
        let k_0_0 = coopLoad<MatrixB>(&pool[at_k_0_0], STRIDE);
        score_0 = coopMultiplyAdd(q_0, k_0_0, score_0);
        let at_k_1_0 = (sub_column * (KEYS / COLUMN_SUBGROUPS) + 0u * TILE) * STRIDE + 1u * TILE / 4u;
        let k_1_0 = coopLoad<MatrixB>(&pool[at_k_1_0], STRIDE);
        score_0 = coopMultiplyAdd(q_1, k_1_0, score_0);
        let at_k_2_0 = (sub_column * (KEYS / COLUMN_SUBGROUPS) + 0u * TILE) * STRIDE + 2u * TILE / 4u;
        let k_2_0 = coopLoad<MatrixB>(&pool[at_k_2_0], STRIDE);
        score_0 = coopMultiplyAdd(q_2, k_2_0, score_0);
        let at_k_3_0 = (sub_column * (KEYS / COLUMN_SUBGROUPS) + 0u * TILE) * STRIDE + 3u * TILE / 4u;
        let k_3_0 = coopLoad<MatrixB>(&pool[at_k_3_0], STRIDE);
        score_0 = coopMultiplyAdd(q_3, k_3_0, score_0);
        let to_score_0 = sub_row * SUMS_STRIDE + sub_column * (KEYS / COLUMN_SUBGROUPS / 4u) + 0u * TILE / 4u;
        coopStoreT(score_0, &sums[to_score_0], SUMS_STRIDE);
        workgroupBarrier();
        var s_0 = sums[own_row * SUMS_STRIDE + 0u * ROW_THREADS + part] * scale();
        var s_1 = sums[own_row * SUMS_STRIDE + 1u * ROW_THREADS + part] * scale();
        if (key < all_from || key + KEYS > all_to) {
            let number_0 = vec4<u32>(key + (0u * ROW_THREADS + part) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
            let seen_0 = (number_0 >= vec4<u32>(seen_from)) & (number_0 < vec4<u32>(seen_to));
            s_0 = select(vec4<f32>(hidden), s_0, seen_0);
            let number_1 = vec4<u32>(key + (1u * ROW_THREADS + part) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
            let seen_1 = (number_1 >= vec4<u32>(seen_from)) & (number_1 < vec4<u32>(seen_to));
            s_1 = select(vec4<f32>(hidden), s_1, seen_1);
        }
        var all = vec4<f32>();
        all = select(max(all, s_0), s_0, 0u == 0u);
        all = select(max(all, s_1), s_1, 1u == 0u);
        partial[part * ROWS + own_row] = max(max(all.x, all.y), max(all.z, all.w));
        workgroupBarrier();
        var most = greatest;
        most = max(most, partial[0u * ROWS + own_row]);
        most = max(most, partial[1u * ROWS + own_row]);
        most = max(most, partial[2u * ROWS + own_row]);
        most = max(most, partial[3u * ROWS + own_row]);
        let change = numerators(vec4<f32>(greatest - most)).x;
        greatest = most;
        total *= change;
        s_0 = numerators(s_0 - vec4<f32>(most));
        total += (s_0.x + s_0.y) + (s_0.z + s_0.w);
        pool[own_row * WEIGHTS_STRIDE + 0u * ROW_THREADS + part] = Vector(s_0);
        s_1 = numerators(s_1 - vec4<f32>(most));
        total += (s_1.x + s_1.y) + (s_1.z + s_1.w);
        pool[own_row * WEIGHTS_STRIDE + 1u * ROW_THREADS + part] = Vector(s_1);
        workgroupBarrier();
        var product_0 = MatrixC();
        var product_1 = MatrixC();
        let at_weight_0 = sub_row * WEIGHTS_STRIDE + 0u * TILE / 4u;
        let weight_0 = coopLoadT<MatrixA>(&pool[at_weight_0], WEIGHTS_STRIDE);
        let at_v_0_0 = VALUES_AT + 0u * TILE * STRIDE + sub_column * (VECTORS / COLUMN_SUBGROUPS) + 0u * TILE / 4u;
        let v_0_0 = coopLoadT<MatrixB>(&pool[at_v_0_0], STRIDE);
        product_0 = coopMultiplyAdd(weight_0, v_0_0, product_0);
        let at_v_0_1 = VALUES_AT + 0u * TILE * STRIDE + sub_column * (VECTORS / COLUMN_SUBGROUPS) + 1u * TILE / 4u;
        let v_0_1 = coopLoadT<MatrixB>(&pool[at_v_0_1], STRIDE);
        product_1 = coopMultiplyAdd(weight_0, v_0_1, product_1);
        let at_weight_1 = sub_row * WEIGHTS_STRIDE + 1u * TILE / 4u;
        let weight_1 = coopLoadT<MatrixA>(&pool[at_weight_1], WEIGHTS_STRIDE);
        let at_v_1_0 = VALUES_AT + 1u * TILE * STRIDE + sub_column * (VECTORS / COLUMN_SUBGROUPS) + 0u * TILE / 4u;
        let v_1_0 = coopLoadT<MatrixB>(&pool[at_v_1_0], STRIDE);
        product_0 = coopMultiplyAdd(weight_1, v_1_0, product_0);
        let at_v_1_1 = VALUES_AT + 1u * TILE * STRIDE + sub_column * (VECTORS / COLUMN_SUBGROUPS) + 1u * TILE / 4u;
        let v_1_1 = coopLoadT<MatrixB>(&pool[at_v_1_1], STRIDE);
        product_1 = coopMultiplyAdd(weight_1, v_1_1, product_1);
        let to_product_0 = sub_row * SUMS_STRIDE + sub_column * (VECTORS / COLUMN_SUBGROUPS) + 0u * TILE / 4u;
        coopStoreT(product_0, &sums[to_product_0], SUMS_STRIDE);
        let to_product_1 = sub_row * SUMS_STRIDE + sub_column * (VECTORS / COLUMN_SUBGROUPS) + 1u * TILE / 4u;
        coopStoreT(product_1, &sums[to_product_1], SUMS_STRIDE);
        workgroupBarrier();
        out_0 = out_0 * change + sums[own_row * SUMS_STRIDE + min(0u * ROW_THREADS + part, VECTORS - 1u)];
        out_1 = out_1 * change + sums[own_row * SUMS_STRIDE + min(1u * ROW_THREADS + part, VECTORS - 1u)];
        out_2 = out_2 * change + sums[own_row * SUMS_STRIDE + min(2u * ROW_THREADS + part, VECTORS - 1u)];
        out_3 = out_3 * change + sums[own_row * SUMS_STRIDE + min(3u * ROW_THREADS + part, VECTORS - 1u)];
        key += KEYS;
        if (key >= end) { break; }
    }
    partial[part * ROWS + own_row] = total;
    workgroupBarrier();
    var sum = 0.0;
    sum += partial[0u * ROWS + own_row];
    sum += partial[1u * ROWS + own_row];
    sum += partial[2u * ROWS + own_row];
    sum += partial[3u * ROWS + own_row];
    // If all scores are minus infinity, there are no numerators. Adjacent threads store adjacent elements.
    sum = select(sum, from_bits(0x7fc00000u), sum == 0.0);
    if ((0u + 1u) * ROW_THREADS <= VECTORS || 0u * ROW_THREADS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + 0u * ROW_THREADS + part] = out_0 / sum;
    }
    if ((1u + 1u) * ROW_THREADS <= VECTORS || 1u * ROW_THREADS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + 1u * ROW_THREADS + part] = out_1 / sum;
    }
    if ((2u + 1u) * ROW_THREADS <= VECTORS || 2u * ROW_THREADS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + 2u * ROW_THREADS + part] = out_2 / sum;
    }
    if ((3u + 1u) * ROW_THREADS <= VECTORS || 3u * ROW_THREADS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + 3u * ROW_THREADS + part] = out_3 / sum;
    }
    workgroupBarrier();
    if (first + row_of(at_0) < ROWS_Q) {
        store(query_start(batch, first + row_of(at_0), head), at_0 % VECTORS, sums[row_of(at_0) * SUMS_STRIDE + at_0 % VECTORS]);
    }
    if (first + row_of(at_1) < ROWS_Q) {
        store(query_start(batch, first + row_of(at_1), head), at_1 % VECTORS, sums[row_of(at_1) * SUMS_STRIDE + at_1 % VECTORS]);
    }
    if (first + row_of(at_2) < ROWS_Q) {
        store(query_start(batch, first + row_of(at_2), head), at_2 % VECTORS, sums[row_of(at_2) * SUMS_STRIDE + at_2 % VECTORS]);
    }
    if (first + row_of(at_3) < ROWS_Q) {
        store(query_start(batch, first + row_of(at_3), head), at_3 % VECTORS, sums[row_of(at_3) * SUMS_STRIDE + at_3 % VECTORS]);
    }
}
// Scalar functions. WGSL leaves NaN, infinities and the accuracy of most built-in functions to the driver; these
// functions define them. A kernel contains only the functions that it uses, with their dependencies.
// Not a constant, so that no compiler evaluates expressions of these bits.
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}
// e^x of scores relative to the maximum. The error of the built-in function grows with |x|, but e^x shrinks faster, so
// the error is negligible relative to e^0 = 1 of the maximum score. Minus infinity gives 0; NaN stays NaN.
fn numerators(x: vec4<f32>) -> vec4<f32> {
    let nan = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let small = x < vec4<f32>(-87.0);
    return select(select(exp(select(x, vec4<f32>(), small)), vec4<f32>(), small), x, nan);
}
