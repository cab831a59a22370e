var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<vec2<u32>>;
var<storage, read> b2: array<vec2<u32>>;
// Matrix product of few rows whose operands lie along K: a thread loads units of one or more vectors of four terms, and all that
// it needs of the matrix B, if that is not too much, before it waits for anything else.
//
// A workgroup has THREADS / LANES times COLUMNS columns, each thread COLUMNS of them for all M rows, with sums in registers;
// LANES threads share the sums of a column. Where they are a subgroup, it adds them up; elsewhere that goes through shared
// memory, TOGETHER sums of a thread at a time. Rows that have to be computed are computed once (STAGED). Where there are few
// columns, K is cut into PARTS (split-K). Packed weights stay so in registers, and the scale of a unit is multiplied with its sum.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/quantized.rs.
const BATCH: u32 = 1u;
const M: u32 = 1u;
const N: u32 = 960u;
const K: u32 = 576u;
// The schedule.
const COLUMNS: u32 = 1u;
const UNIT: u32 = 1u;
const TOGETHER: u32 = 1u;
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const HALF: u32 = 0u;
const ADDERS: u32 = 8u;
const LAST_ADDERS: u32 = 8u;
const GROUPS: u32 = 8u;
const TILE: u32 = 8u;
const ACROSS: u32 = 120u;
const WIDTH: u32 = 144u;
const UNITS: u32 = 144u;
const SUMS: u32 = 1u;
const LAST: u32 = 1u;
const STRIDE: u32 = 33u;
alias Unit = vec4<f32>;
var<workgroup> sums: array<f32, TOGETHER * GROUPS * STRIDE>;
var<workgroup> few: array<f32, GROUPS * max(TOGETHER * ADDERS, LAST * LAST_ADDERS)>;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v2 = k * 4u;
    return f16_to_f32x4(b2[(v2) / 4u]);
}
// The unit `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> Unit {
    let v1 = k * 4u;
    return f16_to_f32x4(b1[(line * 576u + v1) / 4u]);
}
// A vector of a unit.
fn expand_b(unit: Unit, number: u32) -> vec4<f32> { return unit; }
// The number in its line of a vector of the unit `k`.
fn vector_of(k: u32, number: u32) -> u32 { return k * UNIT + number; }
// A sum and four terms more.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
// The same by the LAST_ADDERS of the last sums.
fn add_last_lanes(at: u32) -> f32 {
    return ((sums[at + 0u] + sums[at + 8u]) + (sums[at + 16u] + sums[at + 24u]));
}
fn add_last_few(own: u32) -> f32 {
    return (((few[own * 8u + 0u] + few[own * 8u + 1u]) + (few[own * 8u + 2u] + few[own * 8u + 3u])) + ((few[own * 8u + 4u] + few[own * 8u + 5u]) + (few[own * 8u + 6u] + few[own * 8u + 7u])));
}
// Backends that begin a launch before the one in front of it has ended wait for it here: what is read before, no launch writes.
fn await_earlier_launches() {}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = group_number % ACROSS;
    let batch = group_number / ACROSS % BATCH;
    let part = group_number / (ACROSS * BATCH);
    let slot = local % LANES;
    let first_vector = part * WIDTH;
    let first_unit = part * UNITS;
    let end = min(first_unit + UNITS, K / (4u * UNIT));
    let column_0 = min(column_of(tile, 0u * GROUPS + local / LANES), N - 1u);
    var sum_0 = 0.0;
    // What comes before needs none of the matrix, which is loaded meanwhile.
    let k = first_unit + slot;
    let k_0 = min(k + 0u * LANES, end - 1u);
    let b_0_0 = load_b(batch, column_0, k_0);
    let k_1 = min(k + 1u * LANES, end - 1u);
    let b_1_0 = load_b(batch, column_0, k_1);
    let k_2 = min(k + 2u * LANES, end - 1u);
    let b_2_0 = load_b(batch, column_0, k_2);
    let k_3 = min(k + 3u * LANES, end - 1u);
    let b_3_0 = load_b(batch, column_0, k_3);
    let k_4 = min(k + 4u * LANES, end - 1u);
    let b_4_0 = select(Unit(), load_b(batch, column_0, k_4), k + 4u * LANES < end);
    await_earlier_launches();
    let y_0_0_0 = expand_b(b_0_0, 0u);
    let row_0_0_0 = load_a(batch, 0u, vector_of(k_0, 0u));
    let x_0_0_0 = row_0_0_0;
    sum_0 = add_terms(sum_0, x_0_0_0, y_0_0_0);
    let y_1_0_0 = expand_b(b_1_0, 0u);
    let row_1_0_0 = load_a(batch, 0u, vector_of(k_1, 0u));
    let x_1_0_0 = row_1_0_0;
    sum_0 = add_terms(sum_0, x_1_0_0, y_1_0_0);
    let y_2_0_0 = expand_b(b_2_0, 0u);
    let row_2_0_0 = load_a(batch, 0u, vector_of(k_2, 0u));
    let x_2_0_0 = row_2_0_0;
    sum_0 = add_terms(sum_0, x_2_0_0, y_2_0_0);
    let y_3_0_0 = expand_b(b_3_0, 0u);
    let row_3_0_0 = load_a(batch, 0u, vector_of(k_3, 0u));
    let x_3_0_0 = row_3_0_0;
    sum_0 = add_terms(sum_0, x_3_0_0, y_3_0_0);
    let y_4_0_0 = expand_b(b_4_0, 0u);
    let row_4_0_0 = load_a(batch, 0u, vector_of(k_4, 0u));
    let x_4_0_0 = select(vec4<f32>(), row_4_0_0, k + 4u * LANES < end);
    sum_0 = add_terms(sum_0, x_4_0_0, y_4_0_0);
    {
        let first = 0u * TOGETHER;
        sums[((0u - 0u * TOGETHER) * GROUPS + local / LANES) * STRIDE + slot] = sum_0;
        workgroupBarrier();
        if (local < LAST * GROUPS * LAST_ADDERS) {
            few[local] = add_last_lanes(local / LAST_ADDERS * STRIDE + local % LAST_ADDERS);
        }
        workgroupBarrier();
        if (local < min(TOGETHER, SUMS - 0u * TOGETHER) * GROUPS) {
            let own = 0u * TOGETHER + local / GROUPS;
            let own_number = own % COLUMNS * GROUPS + local % GROUPS;
            let sum = add_last_few(local);
            if (column_of(tile, own_number) < N) {
                finish(part, element_number(batch, own / COLUMNS, column_of(tile, own_number)), sum);
            }
        }
    }
}
// Four halves in two words.
fn f16_to_f32x4(pairs: vec2<u32>) -> vec4<f32> {
    let halves = vec4<u32>(pairs.x & 0xffffu, pairs.x >> 16u, pairs.y & 0xffffu, pairs.y >> 16u);
    let magnitudes = halves & vec4<u32>(0x7fffu);
    let tiny = bitcast<vec4<u32>>(vec4<f32>(magnitudes) * 5.9604644775390625e-8);
    let shifted = magnitudes << vec4<u32>(13u);
    let finite = select(shifted + vec4<u32>(0x38000000u), tiny, magnitudes < vec4<u32>(0x400u));
    let words = select(finite, shifted | vec4<u32>(0x7f800000u), magnitudes >= vec4<u32>(0x7c00u));
    return bitcast<vec4<f32>>(words | ((halves & vec4<u32>(0x8000u)) << vec4<u32>(16u)));
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
