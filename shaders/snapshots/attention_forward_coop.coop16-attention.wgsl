enable wgpu_cooperative_matrix;
enable f16;
var<storage, read_write> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read_write> b4: array<f32>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16,A>;
alias MatrixB = coop_mat16x16<f16,B>;
alias MatrixC = coop_mat16x16<f32,C>;
// Vectors of operands, as they are in memory if these are the input type.
alias Q = vec4<f32>;
alias K = vec4<f32>;
alias V = vec4<f32>;
const ROWS_Q: u32 = 300u;
const ROWS_K: u32 = 310u;
const HEADS: u32 = 4u;
const ALL_HEADS: u32 = 4u;
const KV_HEADS: u32 = 2u;
const HEAD_DIM: u32 = 64u;
// Rows of a tile, threads of a subgroup, and rows of tiles of keys of a step.
const TILE: u32 = 16u;
const SUBGROUP: u32 = 32u;
const LAST_VECTOR: u32 = 15u;
// Keys that the first query sees, at most where they are in a cache.
const SHIFT: u32 = 11u;
const BESIDE: u32 = 2u;
const THREADS: u32 = 128u;
const ROWS: u32 = 32u;
const KEYS: u32 = 32u;
const ACROSS: u32 = 4u;
// Vectors of a head, up to a multiple of the tiles of the subgroups beside each other, and tiles of it.
const VECTORS: u32 = 16u;
// Vectors between rows of operands, of weights and of sums; those of keys, queries or weights before the values begin.
const STRIDE: u32 = 18u;
const WEIGHTS_STRIDE: u32 = 10u;
const SUMS_STRIDE: u32 = 17u;
const VALUES_AT: u32 = 576u;
var<workgroup> pool: array<Vector, 2u * VALUES_AT>;
var<workgroup> sums: array<vec4<f32>, ROWS * SUMS_STRIDE>;
var<workgroup> partial: array<f32, ROWS * ACROSS>;
// The last key; in a cache rows behind it may hold anything, NaN too.
var<private> last_key: u32;
// A vector of the row that begins at an element; the number of cached keys of a sequence.
fn load_q(start: u32, vector: u32) -> Q {
    return b1[start / 4u + vector];
}
fn load_k(start: u32, vector: u32) -> K {
    return b2[start / 4u + vector];
}
fn load_v(start: u32, vector: u32) -> V {
    return b3[start / 4u + vector];
}
// A vector of a result, and the logarithm of the sum of exponentials of a query.
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
// The first element of a head in a row of queries, and of keys: in the last row for those behind it.
fn query_start(batch: u32, row: u32, head: u32) -> u32 { return ((batch * ROWS_Q + row) * HEADS + head) * HEAD_DIM; }
fn key_start(batch: u32, row: u32, kv_head: u32) -> u32 {
    return ((batch * ROWS_K + min(row, last_key)) * KV_HEADS + kv_head) * HEAD_DIM;
}
// A vector to make scores from: zeros beyond the head, as far as tiles are multiplied.
fn fetch_q(batch: u32, row: u32, head: u32, vector: u32) -> Q {
    var value = load_q(query_start(batch, min(row, ROWS_Q - 1u), head), min(vector, LAST_VECTOR));
    return value;
}
fn fetch_k(batch: u32, row: u32, kv_head: u32, vector: u32) -> K {
    var value = load_k(key_start(batch, row, kv_head), min(vector, LAST_VECTOR));
    return value;
}
fn fetch_v(batch: u32, row: u32, kv_head: u32, vector: u32) -> V {
    var value = load_v(key_start(batch, row, kv_head), min(vector, LAST_VECTOR));
    return value;
}
// The row of a vector that a thread copies.
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
    let sub_row = local / SUBGROUP / BESIDE * TILE;
    let sub_column = local / SUBGROUP % BESIDE;
    let own_row = local % ROWS;
    let part = local / ROWS;
    last_key = ROWS_K - 1u;
    // Keys that some of the queries see, those that all of them see, and those that the thread's query does.
    var begin = 0u;
    var end = ROWS_K;
    var all_from = 0u;
    var all_to = ROWS_K;
    var seen_from = 0u;
    var seen_to = ROWS_K;
    var shift = SHIFT;
    end = last + shift;
    all_to = first + shift;
    seen_to = min(first + own_row, last) + shift;
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
        let at_k_0_0 = (sub_column * (KEYS / BESIDE) + 0u * TILE) * STRIDE + 0u * TILE / 4u;
        let k_0_0 = coopLoad<MatrixB>(&pool[at_k_0_0], STRIDE);
        score_0 = coopMultiplyAdd(q_0, k_0_0, score_0);
        let at_k_1_0 = (sub_column * (KEYS / BESIDE) + 0u * TILE) * STRIDE + 1u * TILE / 4u;
        let k_1_0 = coopLoad<MatrixB>(&pool[at_k_1_0], STRIDE);
        score_0 = coopMultiplyAdd(q_1, k_1_0, score_0);
        let at_k_2_0 = (sub_column * (KEYS / BESIDE) + 0u * TILE) * STRIDE + 2u * TILE / 4u;
        let k_2_0 = coopLoad<MatrixB>(&pool[at_k_2_0], STRIDE);
        score_0 = coopMultiplyAdd(q_2, k_2_0, score_0);
        let at_k_3_0 = (sub_column * (KEYS / BESIDE) + 0u * TILE) * STRIDE + 3u * TILE / 4u;
        let k_3_0 = coopLoad<MatrixB>(&pool[at_k_3_0], STRIDE);
        score_0 = coopMultiplyAdd(q_3, k_3_0, score_0);
        let to_score_0 = sub_row * SUMS_STRIDE + sub_column * (KEYS / BESIDE / 4u) + 0u * TILE / 4u;
        coopStoreT(score_0, &sums[to_score_0], SUMS_STRIDE);
        workgroupBarrier();
        var s_0 = sums[own_row * SUMS_STRIDE + 0u * ACROSS + part] * scale();
        var s_1 = sums[own_row * SUMS_STRIDE + 1u * ACROSS + part] * scale();
        if (key < all_from || key + KEYS > all_to) {
            let number_0 = vec4<u32>(key + (0u * ACROSS + part) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
            let seen_0 = (number_0 >= vec4<u32>(seen_from)) & (number_0 < vec4<u32>(seen_to));
            s_0 = select(vec4<f32>(hidden), s_0, seen_0);
            let number_1 = vec4<u32>(key + (1u * ACROSS + part) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
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
        pool[own_row * WEIGHTS_STRIDE + 0u * ACROSS + part] = Vector(s_0);
        s_1 = numerators(s_1 - vec4<f32>(most));
        total += (s_1.x + s_1.y) + (s_1.z + s_1.w);
        pool[own_row * WEIGHTS_STRIDE + 1u * ACROSS + part] = Vector(s_1);
        workgroupBarrier();
        var product_0 = MatrixC();
        var product_1 = MatrixC();
        let at_weight_0 = sub_row * WEIGHTS_STRIDE + 0u * TILE / 4u;
        let weight_0 = coopLoadT<MatrixA>(&pool[at_weight_0], WEIGHTS_STRIDE);
        let at_v_0_0 = VALUES_AT + 0u * TILE * STRIDE + sub_column * (VECTORS / BESIDE) + 0u * TILE / 4u;
        let v_0_0 = coopLoadT<MatrixB>(&pool[at_v_0_0], STRIDE);
        product_0 = coopMultiplyAdd(weight_0, v_0_0, product_0);
        let at_v_0_1 = VALUES_AT + 0u * TILE * STRIDE + sub_column * (VECTORS / BESIDE) + 1u * TILE / 4u;
        let v_0_1 = coopLoadT<MatrixB>(&pool[at_v_0_1], STRIDE);
        product_1 = coopMultiplyAdd(weight_0, v_0_1, product_1);
        let at_weight_1 = sub_row * WEIGHTS_STRIDE + 1u * TILE / 4u;
        let weight_1 = coopLoadT<MatrixA>(&pool[at_weight_1], WEIGHTS_STRIDE);
        let at_v_1_0 = VALUES_AT + 1u * TILE * STRIDE + sub_column * (VECTORS / BESIDE) + 0u * TILE / 4u;
        let v_1_0 = coopLoadT<MatrixB>(&pool[at_v_1_0], STRIDE);
        product_0 = coopMultiplyAdd(weight_1, v_1_0, product_0);
        let at_v_1_1 = VALUES_AT + 1u * TILE * STRIDE + sub_column * (VECTORS / BESIDE) + 1u * TILE / 4u;
        let v_1_1 = coopLoadT<MatrixB>(&pool[at_v_1_1], STRIDE);
        product_1 = coopMultiplyAdd(weight_1, v_1_1, product_1);
        let to_product_0 = sub_row * SUMS_STRIDE + sub_column * (VECTORS / BESIDE) + 0u * TILE / 4u;
        coopStoreT(product_0, &sums[to_product_0], SUMS_STRIDE);
        let to_product_1 = sub_row * SUMS_STRIDE + sub_column * (VECTORS / BESIDE) + 1u * TILE / 4u;
        coopStoreT(product_1, &sums[to_product_1], SUMS_STRIDE);
        workgroupBarrier();
        out_0 = out_0 * change + sums[own_row * SUMS_STRIDE + min(0u * ACROSS + part, VECTORS - 1u)];
        out_1 = out_1 * change + sums[own_row * SUMS_STRIDE + min(1u * ACROSS + part, VECTORS - 1u)];
        out_2 = out_2 * change + sums[own_row * SUMS_STRIDE + min(2u * ACROSS + part, VECTORS - 1u)];
        out_3 = out_3 * change + sums[own_row * SUMS_STRIDE + min(3u * ACROSS + part, VECTORS - 1u)];
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
    // Scores that are all minus infinity have no numerators. Threads beside each other store what lies side by side.
    sum = select(sum, from_bits(0x7fc00000u), sum == 0.0);
    if ((0u + 1u) * ACROSS <= VECTORS || 0u * ACROSS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + 0u * ACROSS + part] = out_0 / sum;
    }
    if ((1u + 1u) * ACROSS <= VECTORS || 1u * ACROSS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + 1u * ACROSS + part] = out_1 / sum;
    }
    if ((2u + 1u) * ACROSS <= VECTORS || 2u * ACROSS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + 2u * ACROSS + part] = out_2 / sum;
    }
    if ((3u + 1u) * ACROSS <= VECTORS || 3u * ACROSS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + 3u * ACROSS + part] = out_3 / sum;
    }
    if (part == 0u && first + own_row < ROWS_Q) {
        store_lse((batch * HEADS + head) * ROWS_Q + first + own_row, greatest + log_f32(sum));
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
// say what happens. A kernel gets the functions that it uses, and those that they use.
// Not a constant, so that no compiler evaluates what comes out of these bits.
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
// e^x of scores relative to the greatest one. The built-in function's error grows with |x|, but e^x shrinks faster: beside
// the 1 of the greatest score nothing of it is seen. Minus infinity gives 0, NaN stays.
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
// What a logarithm is where it is no number; else 0.
fn log_special(x: f32) -> f32 {
    if (is_nan(x) || x < 0.0) {
        return from_bits(0x7fc00000u);
    }
    if (x == 0.0) {
        return from_bits(0xff800000u);
    }
    return select(0.0, x, is_inf(x));
}
// A whole number of binary orders, and the natural logarithm of the rest; subnormal numbers are scaled first.
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
