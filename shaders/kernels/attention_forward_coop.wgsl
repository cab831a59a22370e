// Attention on cooperative matrices. Operands of both matmuls are rounded to the matrices' input type, and sums are in
// f32. Single threads compute the softmax between them in f32 (Milakov and Gimelshein, 2018; Dao et al., 2022).
//
// A workgroup of four subgroups has two rows of query tiles of one head and iterates over KEY_TILES rows of key tiles
// per step. A subgroup has one row of tiles and half of the columns: of the keys in the scores, of the results in the
// matmuls with values. Matrices cannot be scaled row by row, so scores and results pass through shared memory as f32. A
// thread has the same row of both, and keeps the maximum score of the row, its part of the sum and of the results in
// registers. Keys and values are rounded when they are written to shared memory. The keys and values of the next step
// are prefetched. A step has five barriers. For heads of 64 elements and tiles of 16, a step of 32 keys loads 16 KiB
// for 32 tile multiplications (8 per subgroup) and uses 18 KiB of shared memory. Steps of 64 keys need fewer barriers,
// but fewer workgroups fit on a multiprocessor to hide latency.
//
// Twin in the oracle: core/src/ops/attention/mod.rs, and cached.rs for calls over a cache, which have a position.

enable f16;
enable wgpu_cooperative_matrix;

alias Element = f16; alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16, A>;
alias MatrixB = coop_mat16x16<f16, B>;
alias MatrixC = coop_mat16x16<f32, C>;
// Vectors of operands, as they are in memory if these are the input type.
alias Q = vec4<f32>; alias K = vec4<f32>; alias V = vec4<f32>;

const ROWS_Q: u32 = 128u;
const ROWS_K: u32 = 128u;
const HEADS: u32 = 9u;
const ALL_HEADS: u32 = 9u; // number of heads of all sequences
const KV_HEADS: u32 = 3u;
const HEAD_DIM: u32 = 64u;
// True if attention is causal; its window in keys (0 for none); true if keys are in a cache.
const CAUSAL: bool = true;
const WINDOW: u32 = 0u;
const CACHED: bool = false;
// True if each head has a sink: a further score, which has no value.
const SINKS: bool = false;
// True if the cache is paged: the table of each sequence has TABLE_LEN entries with indices of the BLOCKS blocks.
const PAGED: bool = false;
const TABLE_LEN: u32 = 32u; const BLOCK_ROWS: u32 = 16u; const BLOCKS: u32 = 64u;
// Rows of a tile, threads of a subgroup, and tiles along the keys of a step.
const TILE: u32 = 16u;
const SUBGROUP: u32 = 32u;
const KEY_TILES: u32 = 2u;
// Padding of rows of operands in vectors. It avoids bank conflicts in shared memory.
const PADDING: u32 = 2u;

const LAST_VECTOR: u32 = (HEAD_DIM + 3u) / 4u - 1u;
const WHOLE_TILES: bool = LAST_VECTOR % 4u == 3u;
// Number of keys that the first query attends to, without a window; if keys are in a cache, the maximum.
const SHIFT: u32 = ROWS_K + 1u - min(ROWS_Q, ROWS_K);
// Tiles along the rows of a workgroup, and subgroups along the columns.
const ROW_TILES: u32 = 2u;
const COLUMN_SUBGROUPS: u32 = 2u;
const THREADS: u32 = ROW_TILES * COLUMN_SUBGROUPS * SUBGROUP;
const ROWS: u32 = ROW_TILES * TILE;
const KEYS: u32 = KEY_TILES * TILE;
const ROW_THREADS: u32 = THREADS / ROWS; // number of threads of a row
// Vectors of a head, padded so that subgroups along the columns have equal numbers of tiles, and tiles of a head.
const VECTORS: u32 = (HEAD_DIM + COLUMN_SUBGROUPS * TILE - 1u) / (COLUMN_SUBGROUPS * TILE) * (COLUMN_SUBGROUPS * TILE / 4u);
const DEPTH: u32 = (HEAD_DIM + TILE - 1u) / TILE;
// Tiles of scores and of results that a subgroup has, and vectors of both that a thread has.
const SCORE_TILES: u32 = KEY_TILES / COLUMN_SUBGROUPS;
const RESULT_TILES: u32 = VECTORS * 4u / TILE / COLUMN_SUBGROUPS;
const SCORES: u32 = KEYS / 4u / ROW_THREADS;
const RESULTS: u32 = (VECTORS + ROW_THREADS - 1u) / ROW_THREADS;
// Vectors that a thread copies of keys, and of queries.
const KEY_PIECES: u32 = (KEYS * VECTORS + THREADS - 1u) / THREADS;
const ROW_PIECES: u32 = (ROWS * VECTORS + THREADS - 1u) / THREADS;
// Row strides in vectors: operands, weights and sums. Offset of the values, after keys, queries or weights.
const STRIDE: u32 = VECTORS + PADDING;
const WEIGHTS_STRIDE: u32 = KEYS / 4u + PADDING;
const SUMS_STRIDE: u32 = max(KEYS / 4u, VECTORS) + 1u;
const VALUES_AT: u32 = max(KEYS * STRIDE, ROWS * WEIGHTS_STRIDE);
const d: u32 = 0u; const i: u32 = 0u; const j: u32 = 0u; const p: u32 = 0u; // indices of repeats

var<storage, read> q: array<vec4<f32>>;
var<storage, read> k: array<vec4<f32>>;
var<storage, read> v: array<vec4<f32>>;
var<storage, read> positions: array<u32>;
var<storage, read> block_table: array<u32>;
var<storage, read> sinks: array<f32>;
// For each tile: 1 if its queries belong to one sequence, the smallest and the largest position, and the query with the
// largest one.
var<storage, read> tiles: array<vec4<u32>>;
var<storage, read_write> out: array<vec4<f32>>;
var<storage, read_write> lse: array<f32>;
var<workgroup> pool: array<Vector, 2u * VALUES_AT>;
var<workgroup> sums: array<vec4<f32>, ROWS * SUMS_STRIDE>;
var<workgroup> partial: array<f32, ROWS * ROW_THREADS>;
// Last key. Cache rows after it may contain anything, including NaN.
var<private> last_key: u32;
var<private> table_row: u32; // the query whose row of the block table all queries of the tile share

// Load a vector of the row that begins at element `start`; the number of cached keys of a sequence.
fn load_q(start: u32, vector: u32) -> Q { return q[start / 4u + vector]; }
fn load_k(start: u32, vector: u32) -> K { return k[start / 4u + vector]; }
fn load_v(start: u32, vector: u32) -> V { return v[start / 4u + vector]; }
fn load_position(batch: u32) -> u32 { return positions[batch]; }
fn load_block(index: u32) -> u32 { return block_table[index]; }
fn load_sink(head: u32) -> f32 { return sinks[head]; }
// Store a vector of a result; the logarithm of the sum of exponentials of a query.
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
    let within = min(row, last_key);
    var cached = batch * ROWS_K + within;
    // @if PAGED
    let block = min(load_block(table_row * TABLE_LEN + within / BLOCK_ROWS), BLOCKS - 1u);
    cached = block * BLOCK_ROWS + within % BLOCK_ROWS;
    // @end
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
    // @if PAGED
    let facts = tiles[tile];
    if (facts.x == 0u) { return; }
    last_key = facts.z;
    table_row = facts.w;
    end = facts.z + 1u;
    all_to = facts.y + 1u;
    seen_to = min(load_position(min(first + own_row, last)), ROWS_K - 1u) + 1u;
    // @else
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
    seen_to = min(first + own_row, last) + shift;
    // @end
    // @end
    // @if WINDOW > 0
    begin = max(all_to, WINDOW) - WINDOW;
    all_from = max(end, WINDOW) - WINDOW;
    seen_from = max(seen_to, WINDOW) - WINDOW;
    // @end
    let hidden = from_bits(0xff800000u);
    var greatest = -3.4028234e38;
    var total = 0.0;
    // @repeat i < RESULTS
    var out_i = vec4<f32>();
    // @end
    // A subgroup keeps the tiles of its queries.
    // @repeat p < ROW_PIECES
    let at_p = local + p * THREADS;
    pool[row_of(at_p) * STRIDE + at_p % VECTORS] = Vector(fetch_q(batch, first + row_of(at_p), head, at_p % VECTORS));
    // @end
    workgroupBarrier();
    // @repeat d < DEPTH
    let at_q_d = sub_row * STRIDE + d * TILE / 4u;
    let q_d = coopLoadT<MatrixA>(&pool[at_q_d], STRIDE);
    // @end
    workgroupBarrier();
    // @repeat p < KEY_PIECES
    let key_at_p = local + p * THREADS;
    var key_p = fetch_k(batch, begin + key_of(key_at_p), kv_head, key_at_p % VECTORS);
    var value_p = fetch_v(batch, begin + key_of(key_at_p), kv_head, key_at_p % VECTORS);
    // @end
    var key = begin;
    loop {
        // @repeat p < KEY_PIECES
        pool[key_of(key_at_p) * STRIDE + key_at_p % VECTORS] = Vector(key_p);
        pool[VALUES_AT + key_of(key_at_p) * STRIDE + key_at_p % VECTORS] = Vector(value_p);
        // @end
        workgroupBarrier();
        if (key + KEYS < end) {
            // @repeat p < KEY_PIECES
            key_p = fetch_k(batch, key + KEYS + key_of(key_at_p), kv_head, key_at_p % VECTORS);
            value_p = fetch_v(batch, key + KEYS + key_of(key_at_p), kv_head, key_at_p % VECTORS);
            // @end
        }
        // @repeat j < SCORE_TILES
        var score_j = MatrixC();
        // @end
        // @repeat d < DEPTH, j < SCORE_TILES
        let at_k_d_j = (sub_column * (KEYS / COLUMN_SUBGROUPS) + j * TILE) * STRIDE + d * TILE / 4u;
        let k_d_j = coopLoad<MatrixB>(&pool[at_k_d_j], STRIDE);
        score_j = coopMultiplyAdd(q_d, k_d_j, score_j);
        // @end
        // @repeat j < SCORE_TILES
        let to_score_j = sub_row * SUMS_STRIDE + sub_column * (KEYS / COLUMN_SUBGROUPS / 4u) + j * TILE / 4u;
        coopStoreT(score_j, &sums[to_score_j], SUMS_STRIDE);
        // @end
        workgroupBarrier();
        // @repeat j < SCORES
        var s_j = sums[own_row * SUMS_STRIDE + j * ROW_THREADS + part] * scale();
        // @end
        if (key < all_from || key + KEYS > all_to) {
            // @repeat j < SCORES
            let number_j = vec4<u32>(key + (j * ROW_THREADS + part) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
            let seen_j = (number_j >= vec4<u32>(seen_from)) & (number_j < vec4<u32>(seen_to));
            s_j = select(vec4<f32>(hidden), s_j, seen_j);
            // @end
        }
        var all = vec4<f32>();
        // @repeat j < SCORES
        all = select(max(all, s_j), s_j, j == 0u);
        // @end
        partial[part * ROWS + own_row] = max(max(all.x, all.y), max(all.z, all.w));
        workgroupBarrier();
        var most = greatest;
        // @repeat i < ROW_THREADS
        most = max(most, partial[i * ROWS + own_row]);
        // @end
        let change = numerators(vec4<f32>(greatest - most)).x;
        greatest = most;
        total *= change;
        // @repeat j < SCORES
        s_j = numerators(s_j - vec4<f32>(most));
        total += (s_j.x + s_j.y) + (s_j.z + s_j.w);
        pool[own_row * WEIGHTS_STRIDE + j * ROW_THREADS + part] = Vector(s_j);
        // @end
        workgroupBarrier();
        // @repeat j < RESULT_TILES
        var product_j = MatrixC();
        // @end
        // @repeat d < KEY_TILES
        let at_weight_d = sub_row * WEIGHTS_STRIDE + d * TILE / 4u;
        let weight_d = coopLoadT<MatrixA>(&pool[at_weight_d], WEIGHTS_STRIDE);
        // @repeat j < RESULT_TILES
        let at_v_d_j = VALUES_AT + d * TILE * STRIDE + sub_column * (VECTORS / COLUMN_SUBGROUPS) + j * TILE / 4u;
        let v_d_j = coopLoadT<MatrixB>(&pool[at_v_d_j], STRIDE);
        product_j = coopMultiplyAdd(weight_d, v_d_j, product_j);
        // @end
        // @end
        // @repeat j < RESULT_TILES
        let to_product_j = sub_row * SUMS_STRIDE + sub_column * (VECTORS / COLUMN_SUBGROUPS) + j * TILE / 4u;
        coopStoreT(product_j, &sums[to_product_j], SUMS_STRIDE);
        // @end
        workgroupBarrier();
        // @repeat i < RESULTS
        out_i = out_i * change + sums[own_row * SUMS_STRIDE + min(i * ROW_THREADS + part, VECTORS - 1u)];
        // @end
        key += KEYS;
        if (key >= end) { break; }
    }
    partial[part * ROWS + own_row] = total;
    workgroupBarrier();
    var sum = 0.0;
    // @repeat i < ROW_THREADS
    sum += partial[i * ROWS + own_row];
    // @end
    // @if SINKS
    sum += numerators(vec4<f32>(load_sink(head) - greatest)).x;
    // @end
    // If all scores are minus infinity, there are no numerators. Adjacent threads store adjacent elements.
    sum = select(sum, from_bits(0x7fc00000u), sum == 0.0);
    // @repeat i < RESULTS
    if ((i + 1u) * ROW_THREADS <= VECTORS || i * ROW_THREADS + part < VECTORS) {
        sums[own_row * SUMS_STRIDE + i * ROW_THREADS + part] = out_i / sum;
    }
    // @end
    // @if !CACHED
    if (part == 0u && first + own_row < ROWS_Q) {
        store_lse((batch * HEADS + head) * ROWS_Q + first + own_row, greatest + log_f32(sum));
    }
    // @end
    workgroupBarrier();
    // @repeat p < ROW_PIECES
    if (first + row_of(at_p) < ROWS_Q) {
        store(query_start(batch, first + row_of(at_p), head), at_p % VECTORS, sums[row_of(at_p) * SUMS_STRIDE + at_p % VECTORS]);
    }
    // @end
}
