var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
var<storage, read> b3: array<f32>;
var<storage, read_write> b4: array<f32>;
// Attention of few queries over a cache, for heads without vectors of four elements: a workgroup has a query of one
// head, and iterates over its keys in tiles of THREADS, with the running maximum score and sum of exponentials (Milakov
// and Gimelshein, 2018). A thread has one key of a tile and stores its score, then its weight, in shared memory. Every
// thread reads all of them, and accumulates the values for every THREADS-th element of the result. A tile has four
// barriers.
//
// Twin in the oracle: core/src/ops/attention/cached.rs.
// Rows and heads of a sequence, of queries and of keys.
const ROWS_Q: u32 = 1u;
const ROWS_K: u32 = 512u;
const HEADS: u32 = 4u;
const HEAD_DIM: u32 = 6u;
const GROUP: u32 = 2u;
const ROW: u32 = 12u;
// Exclusive upper bound of the number of cached keys before the queries.
const POSITIONS: u32 = 512u;
const THREADS: u32 = 64u;
// Elements of a thread; the last one may be past the end of the head.
const THREAD_ELEMENTS: u32 = 1u;
const MIN_F32: f32 = -3.4028234e38;
var<workgroup> query: array<f32, HEAD_DIM>;
var<workgroup> scores: array<f32, THREADS>;
fn load_q(index: u32) -> f32 {
    return b1[index];
}
fn load_k(index: u32) -> f32 {
    return b2[index];
}
fn load_v(index: u32) -> f32 {
    return b3[index];
}
// The number of cached keys of a sequence.
fn load_position(sequence: u32) -> u32 {
    return b0[sequence];
}
fn store(index: u32, value: f32) {
    b4[index] = value;
}
fn scale() -> f32 {
    return (1.25e-1f);
}
// Row of the cache that contains a row of a sequence.
fn cached_row(sequence: u32, row: u32) -> u32 {
    var cached = sequence * ROWS_K + row;
    return cached;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let head = group_number % HEADS;
    let row = group_number / HEADS % ROWS_Q;
    let sequence = group_number / (HEADS * ROWS_Q);
    let own = ((sequence * ROWS_Q + row) * HEADS + head) * HEAD_DIM;
    let shared_head = head / GROUP * HEAD_DIM;
    let given = load_position(sequence);
    if (local == 0u) {
        let reported = checked_index(given, POSITIONS);
    }
    let end = min(given, POSITIONS - 1u) + row + 1u;
    var start = 0u;
    for (var e = local; e < HEAD_DIM; e += THREADS) {
        query[e] = load_q(own + e);
    }
    var sums: array<f32, THREAD_ELEMENTS>;
    var greatest = MIN_F32;
    var total = 0.0;
    workgroupBarrier();
    for (var tile = start; tile < end; tile += THREADS) {
        let count = min(end - tile, THREADS);
        let key = tile + local;
        var score = MIN_F32;
        if (local < count) {
            var product = 0.0;
            for (var e = 0u; e < HEAD_DIM; e += 1u) {
                product += query[e] * load_k(cached_row(sequence, key) * ROW + shared_head + e);
            }
            score = product * scale();
        }
        scores[local] = score;
        workgroupBarrier();
        var most = greatest;
        for (var j = 0u; j < count; j += 1u) {
            most = max(most, scores[j]);
        }
        workgroupBarrier();
        if (local < count) {
            scores[local] = exp_f32(score - most);
        }
        workgroupBarrier();
        let kept = exp_f32(greatest - most);
        greatest = most;
        total *= kept;
        for (var j = 0u; j < count; j += 1u) {
            total += scores[j];
        }
        for (var part = 0u; part < THREAD_ELEMENTS; part += 1u) {
            let element = part * THREADS + local;
            if (element < HEAD_DIM) {
                var sum = sums[part] * kept;
                for (var j = 0u; j < count; j += 1u) {
                    sum += scores[j] * load_v(cached_row(sequence, tile + j) * ROW + shared_head + element);
                }
                sums[part] = sum;
            }
        }
        workgroupBarrier();
    }
    for (var part = 0u; part < THREAD_ELEMENTS; part += 1u) {
        let element = part * THREADS + local;
        if (element < HEAD_DIM) {
            store(own + element, sums[part] / total);
        }
    }
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
// 2^n for whole n from -126 to 127.
fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}
// x 2^n, through two factors, so that n may be beyond the range of one.
fn scale_by_power(x: f32, n: i32) -> f32 {
    let half = n / 2;
    return x * power_of_two(half) * power_of_two(n - half);
}
// e^r for |r| <= ln(2) / 2: the Taylor series.
fn exp_core(r: f32) -> f32 {
    var p = 1.0 / 5040.0;
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    return fma(p, r, 1.0);
}
fn exp_f32(x: f32) -> f32 {
    // Beyond this the result is 0 or infinite; NaN passes both comparisons.
    let limited = select(select(x, 90.0, x > 90.0), -105.0, x < -105.0);
    let n = round(limited * 1.44269504);
    // ln(2) in two parts, the first with trailing zeros.
    let r = fma(n, -1.42860682e-6, fma(n, -0.693145752, limited));
    let whole = i32(select(n, 0.0, is_nan(x)));
    return select(scale_by_power(exp_core(r), whole), x, is_nan(x));
}
// Returns the index if it is below `rows`. Otherwise reports it and returns 0. The largest invalid index is kept, so
// that the report does not depend on the order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
