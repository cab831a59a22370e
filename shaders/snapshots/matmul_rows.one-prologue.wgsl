var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
// Matrix product of few rows, as of a language model that makes one token after the other: every element of the matrix B is
// read once, so that reading it is all that takes time.
//
// A workgroup has TILE columns. The LANES threads of a column share its sum over K, TOGETHER terms at a time, so that
// all loads for them are in flight together; neighbouring threads read neighbours in memory. Rows that have to be computed are
// computed once for all columns (STAGED). Where there are few columns, K is cut into PARTS (split-K).
//
// Twin in the oracle: core/src/ops/matmul.rs.
// The product. Whether neighbours in B's memory are neighbours along K, rather than along N.
const BATCH: u32 = 1u;
const M: u32 = 1u;
const N: u32 = 960u;
const K: u32 = 576u;
// The schedule.
const LANES: u32 = 32u;
const STAGED: bool = true;
const HALF: u32 = 0u;
const THREADS: u32 = 256u;
const TILE: u32 = 8u;
const ACROSS: u32 = 120u;
const LENGTH: u32 = 576u;
const TOGETHER: u32 = 9u;
var<workgroup> staged: array<f32, M * LENGTH>;
var<workgroup> sums: array<f32, THREADS>;
fn load_a(batch: u32, line: u32, k: u32) -> f32 {
    let v1 = b1[k];
    let v2 = silu_f32(v1);
    return v2;
}
fn load_b(batch: u32, line: u32, k: u32) -> f32 {
    let v3 = b2[k * 960u + line];
    return v3;
}
// An element of a row, from shared memory where rows are staged.
fn row_element(batch: u32, row: u32, k: u32, part: u32) -> f32 {
    if (STAGED) {
        return staged[row * LENGTH + k - part * LENGTH];
    }
    return load_a(batch, row, k);
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = group_number % ACROSS;
    let batch = group_number / ACROSS % BATCH;
    let part = group_number / (ACROSS * BATCH);
    let slot = local / TILE;
    let column = min(column_of(tile, local % TILE), N - 1u);
    let end = min(part * LENGTH + LENGTH, K);
    for (var at = local; at < M * LENGTH; at += THREADS) {
        staged[at] = load_a(batch, at / LENGTH, min(part * LENGTH + at % LENGTH, K - 1u));
    }
    workgroupBarrier();
    var sum_0 = 0.0;
    var k = part * LENGTH + slot;
    for (; k + (TOGETHER - 1u) * LANES < end; k += TOGETHER * LANES) {
        let b_0 = load_b(batch, column, k + 0u * LANES);
        let a_0_0 = row_element(batch, 0u, k + 0u * LANES, part);
        let b_1 = load_b(batch, column, k + 1u * LANES);
        let a_1_0 = row_element(batch, 0u, k + 1u * LANES, part);
        let b_2 = load_b(batch, column, k + 2u * LANES);
        let a_2_0 = row_element(batch, 0u, k + 2u * LANES, part);
        let b_3 = load_b(batch, column, k + 3u * LANES);
        let a_3_0 = row_element(batch, 0u, k + 3u * LANES, part);
        let b_4 = load_b(batch, column, k + 4u * LANES);
        let a_4_0 = row_element(batch, 0u, k + 4u * LANES, part);
        let b_5 = load_b(batch, column, k + 5u * LANES);
        let a_5_0 = row_element(batch, 0u, k + 5u * LANES, part);
        let b_6 = load_b(batch, column, k + 6u * LANES);
        let a_6_0 = row_element(batch, 0u, k + 6u * LANES, part);
        let b_7 = load_b(batch, column, k + 7u * LANES);
        let a_7_0 = row_element(batch, 0u, k + 7u * LANES, part);
        let b_8 = load_b(batch, column, k + 8u * LANES);
        let a_8_0 = row_element(batch, 0u, k + 8u * LANES, part);
        sum_0 = fma(a_0_0, b_0, sum_0);
        sum_0 = fma(a_1_0, b_1, sum_0);
        sum_0 = fma(a_2_0, b_2, sum_0);
        sum_0 = fma(a_3_0, b_3, sum_0);
        sum_0 = fma(a_4_0, b_4, sum_0);
        sum_0 = fma(a_5_0, b_5, sum_0);
        sum_0 = fma(a_6_0, b_6, sum_0);
        sum_0 = fma(a_7_0, b_7, sum_0);
        sum_0 = fma(a_8_0, b_8, sum_0);
    }
    for (; k < end; k += LANES) {
        let element = load_b(batch, column, k);
        sum_0 = fma(row_element(batch, 0u, k, part), element, sum_0);
    }
    sums[local] = sum_0;
    workgroupBarrier();
    if (local < TILE) {
        var sum = 0.0;
        for (var lane = 0u; lane < LANES; lane += 1u) {
            sum += sums[lane * TILE + local];
        }
        if (column_of(tile, local) < N) {
            finish(part, element_number(batch, 0u, column_of(tile, local)), sum);
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
fn silu_f32(x: f32) -> f32 {
    return x / (1.0 + exp_f32(-x));
}
// The columns of a workgroup, for matmuls of few rows whose epilogues may read other sums than the one at hand. A kernel that calls
// these declares N, TILE, the columns of a workgroup, HALF, the columns between the two of a pair that is rotated, or 0, and
// `products` in memory of the workgroup: all its sums, row by row.
// A column by its number in the workgroup. Of columns that are rotated, the first ones of pairs come before the second ones.
fn column_of(tile: u32, number: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    let pair = tile * PAIRS + number % PAIRS;
    let rotated = pair / SOME_HALF * (2u * HALF) + number / PAIRS * HALF + pair % SOME_HALF;
    return select(tile * TILE + number, rotated, HALF > 0u);
}
