enable f16;
var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<f16>;
var<storage, read> b3: array<vec4<f32>>;
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
const M: u32 = 3u;
const N: u32 = 960u;
const K: u32 = 576u;
// The schedule.
const COLUMNS: u32 = 1u;
const UNIT: u32 = 1u;
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const HALF: u32 = 0u;
const GROUPS: u32 = 8u;
const TILE: u32 = 8u;
const ACROSS: u32 = 120u;
const WIDTH: u32 = 144u;
const UNITS: u32 = 144u;
const SUMS: u32 = 3u;
alias Unit = u32;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v5 = k * 4u;
    return b3[(line * 576u + v5) / 4u];
}
// The unit `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> Unit {
    let v1 = k * 4u;
    let v2 = (line * 576u + v1) / 4u;
    return b1[v2];
}
// Its scale.
fn load_scale(batch: u32, line: u32, k: u32) -> f32 {
    let v3 = k * 4u;
    let v4 = (line * 576u + v3) / 32u;
    return f32(b2[v4]);
}
// A vector of a unit.
fn expand_b(unit: Unit, number: u32) -> vec4<f32> {
    return q8_0_to_f32x4(unit);
}
// The number in its line of a vector of the unit `k`.
fn vector_of(k: u32, number: u32) -> u32 {
    return k * 1u + number;
}
// A sum and four terms more.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
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
    var sum_1 = 0.0;
    var sum_2 = 0.0;
    // What comes before needs none of the matrix, which is loaded meanwhile.
    let k = first_unit + slot;
    let k_0 = min(k + 0u * LANES, end - 1u);
    let b_0_0 = load_b(batch, column_0, k_0);
    let scale_0_0 = load_scale(batch, column_0, k_0);
    let k_1 = min(k + 1u * LANES, end - 1u);
    let b_1_0 = load_b(batch, column_0, k_1);
    let scale_1_0 = load_scale(batch, column_0, k_1);
    let k_2 = min(k + 2u * LANES, end - 1u);
    let b_2_0 = load_b(batch, column_0, k_2);
    let scale_2_0 = load_scale(batch, column_0, k_2);
    let k_3 = min(k + 3u * LANES, end - 1u);
    let b_3_0 = load_b(batch, column_0, k_3);
    let scale_3_0 = load_scale(batch, column_0, k_3);
    let k_4 = min(k + 4u * LANES, end - 1u);
    let b_4_0 = load_b(batch, column_0, k_4);
    let scale_4_0 = load_scale(batch, column_0, k_4);
    await_earlier_launches();
    var unit_0_0 = 0.0;
    var unit_0_1 = 0.0;
    var unit_0_2 = 0.0;
    let y_0_0_0 = expand_b(b_0_0, 0u);
    let row_0_0_0 = load_a(batch, 0u, vector_of(k_0, 0u));
    let x_0_0_0 = row_0_0_0;
    unit_0_0 = add_terms(unit_0_0, x_0_0_0, y_0_0_0);
    let row_0_0_1 = load_a(batch, 1u, vector_of(k_0, 0u));
    let x_0_0_1 = row_0_0_1;
    unit_0_1 = add_terms(unit_0_1, x_0_0_1, y_0_0_0);
    let row_0_0_2 = load_a(batch, 2u, vector_of(k_0, 0u));
    let x_0_0_2 = row_0_0_2;
    unit_0_2 = add_terms(unit_0_2, x_0_0_2, y_0_0_0);
    sum_0 = fma(unit_0_0, scale_0_0, sum_0);
    sum_1 = fma(unit_0_1, scale_0_0, sum_1);
    sum_2 = fma(unit_0_2, scale_0_0, sum_2);
    var unit_1_0 = 0.0;
    var unit_1_1 = 0.0;
    var unit_1_2 = 0.0;
    let y_1_0_0 = expand_b(b_1_0, 0u);
    let row_1_0_0 = load_a(batch, 0u, vector_of(k_1, 0u));
    let x_1_0_0 = row_1_0_0;
    unit_1_0 = add_terms(unit_1_0, x_1_0_0, y_1_0_0);
    let row_1_0_1 = load_a(batch, 1u, vector_of(k_1, 0u));
    let x_1_0_1 = row_1_0_1;
    unit_1_1 = add_terms(unit_1_1, x_1_0_1, y_1_0_0);
    let row_1_0_2 = load_a(batch, 2u, vector_of(k_1, 0u));
    let x_1_0_2 = row_1_0_2;
    unit_1_2 = add_terms(unit_1_2, x_1_0_2, y_1_0_0);
    sum_0 = fma(unit_1_0, scale_1_0, sum_0);
    sum_1 = fma(unit_1_1, scale_1_0, sum_1);
    sum_2 = fma(unit_1_2, scale_1_0, sum_2);
    var unit_2_0 = 0.0;
    var unit_2_1 = 0.0;
    var unit_2_2 = 0.0;
    let y_2_0_0 = expand_b(b_2_0, 0u);
    let row_2_0_0 = load_a(batch, 0u, vector_of(k_2, 0u));
    let x_2_0_0 = row_2_0_0;
    unit_2_0 = add_terms(unit_2_0, x_2_0_0, y_2_0_0);
    let row_2_0_1 = load_a(batch, 1u, vector_of(k_2, 0u));
    let x_2_0_1 = row_2_0_1;
    unit_2_1 = add_terms(unit_2_1, x_2_0_1, y_2_0_0);
    let row_2_0_2 = load_a(batch, 2u, vector_of(k_2, 0u));
    let x_2_0_2 = row_2_0_2;
    unit_2_2 = add_terms(unit_2_2, x_2_0_2, y_2_0_0);
    sum_0 = fma(unit_2_0, scale_2_0, sum_0);
    sum_1 = fma(unit_2_1, scale_2_0, sum_1);
    sum_2 = fma(unit_2_2, scale_2_0, sum_2);
    var unit_3_0 = 0.0;
    var unit_3_1 = 0.0;
    var unit_3_2 = 0.0;
    let y_3_0_0 = expand_b(b_3_0, 0u);
    let row_3_0_0 = load_a(batch, 0u, vector_of(k_3, 0u));
    let x_3_0_0 = row_3_0_0;
    unit_3_0 = add_terms(unit_3_0, x_3_0_0, y_3_0_0);
    let row_3_0_1 = load_a(batch, 1u, vector_of(k_3, 0u));
    let x_3_0_1 = row_3_0_1;
    unit_3_1 = add_terms(unit_3_1, x_3_0_1, y_3_0_0);
    let row_3_0_2 = load_a(batch, 2u, vector_of(k_3, 0u));
    let x_3_0_2 = row_3_0_2;
    unit_3_2 = add_terms(unit_3_2, x_3_0_2, y_3_0_0);
    sum_0 = fma(unit_3_0, scale_3_0, sum_0);
    sum_1 = fma(unit_3_1, scale_3_0, sum_1);
    sum_2 = fma(unit_3_2, scale_3_0, sum_2);
    var unit_4_0 = 0.0;
    var unit_4_1 = 0.0;
    var unit_4_2 = 0.0;
    let y_4_0_0 = expand_b(b_4_0, 0u);
    let row_4_0_0 = load_a(batch, 0u, vector_of(k_4, 0u));
    let x_4_0_0 = row_4_0_0;
    unit_4_0 = add_terms(unit_4_0, x_4_0_0, y_4_0_0);
    let row_4_0_1 = load_a(batch, 1u, vector_of(k_4, 0u));
    let x_4_0_1 = row_4_0_1;
    unit_4_1 = add_terms(unit_4_1, x_4_0_1, y_4_0_0);
    let row_4_0_2 = load_a(batch, 2u, vector_of(k_4, 0u));
    let x_4_0_2 = row_4_0_2;
    unit_4_2 = add_terms(unit_4_2, x_4_0_2, y_4_0_0);
    sum_0 += select(0.0, unit_4_0 * scale_4_0, k + 4u * LANES < end);
    sum_1 += select(0.0, unit_4_1 * scale_4_0, k + 4u * LANES < end);
    sum_2 += select(0.0, unit_4_2 * scale_4_0, k + 4u * LANES < end);
    let all_0 = subgroupAdd(sum_0);
    let all_1 = subgroupAdd(sum_1);
    let all_2 = subgroupAdd(sum_2);
    // Lane `t` of a column finishes the sum `t`.
    var own_sum = all_0;
    own_sum = select(own_sum, all_1, slot == 1u);
    own_sum = select(own_sum, all_2, slot == 2u);
    let own_number = slot % COLUMNS * GROUPS + local / LANES;
    if (slot < SUMS && column_of(tile, own_number) < N) {
        finish(part, element_number(batch, slot / COLUMNS, column_of(tile, own_number)), own_sum);
    }
}
// Integers in the mantissas of floats: 2^23 + i has the bits of i where it is below 2^8, and 2^15 + i / 2^8 those 8 bits higher.
// An integer is found by an "and", an "or" and a subtraction, which on many devices takes less time than a conversion.
// Four integers of Q8_0 in a word, in two's complement.
fn q8_0_to_f32x4(word: u32) -> vec4<f32> {
    let low = word ^ 0x80808080u;
    let high = low >> 16u;
    let bits = vec4<u32>(low & 0xffu, low & 0xff00u, high & 0xffu, high & 0xff00u);
    let floats = bitcast<vec4<f32>>(bits | vec4<u32>(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u));
    return floats - vec4<f32>(8388736.0, 32896.0, 8388736.0, 32896.0);
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
