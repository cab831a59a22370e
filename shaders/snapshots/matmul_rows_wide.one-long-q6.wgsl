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
const M: u32 = 1u;
const N: u32 = 192u;
const K: u32 = 8192u;
// The schedule.
const COLUMNS: u32 = 1u;
const UNIT: u32 = 2u;
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const HALF: u32 = 0u;
const GROUPS: u32 = 8u;
const TILE: u32 = 8u;
const ACROSS: u32 = 24u;
const WIDTH: u32 = 256u;
const UNITS: u32 = 128u;
const SUMS: u32 = 1u;
alias Unit = vec4<u32>;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v9 = k * 4u;
    return b3[(v9) / 4u];
}
// The unit `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> Unit {
    let v1 = k * 8u;
    let v2 = (line * 8192u + v1) / 8u;
    let v3 = v2;
    let v4 = v3 / 4u;
    let v5 = v3 % 4u;
    let v6 = b1[v4 * 6u + v5];
    let v7 = b1[v4 * 6u + 4u + v5 % 2u];
    let v8 = v7 >> (v5 / 2u * 2u);
    return vec4<u32>(v6, v8, bitcast<u32>(f32(b2[v4 * 2u])), bitcast<u32>(f32(b2[v4 * 2u + 1u])));
}
// A vector of a unit.
fn expand_b(unit: Unit, number: u32) -> vec4<f32> {
    return select(bitcast<f32>(unit.z), bitcast<f32>(unit.w), number % 2u == 1u) * six_bits_to_f32x4(unit.x, unit.y, number % 2u);
}
// The number in its line of a vector of the unit `k`.
fn vector_of(k: u32, number: u32) -> u32 {
    return k / 4u * 8u + k % 4u * 1u + number / 2u + number % 2u * 4u;
}
// A sum and four terms more.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[part * 192u + i] = product;
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
    let b_0_0 = select(Unit(), load_b(batch, column_0, k_0), k + 0u * LANES < end);
    let k_1 = min(k + 1u * LANES, end - 1u);
    let b_1_0 = select(Unit(), load_b(batch, column_0, k_1), k + 1u * LANES < end);
    let k_2 = min(k + 2u * LANES, end - 1u);
    let b_2_0 = select(Unit(), load_b(batch, column_0, k_2), k + 2u * LANES < end);
    let k_3 = min(k + 3u * LANES, end - 1u);
    let b_3_0 = select(Unit(), load_b(batch, column_0, k_3), k + 3u * LANES < end);
    await_earlier_launches();
    let y_0_0_0 = expand_b(b_0_0, 0u);
    let row_0_0_0 = load_a(batch, 0u, vector_of(k_0, 0u));
    let x_0_0_0 = select(vec4<f32>(), row_0_0_0, k + 0u * LANES < end);
    sum_0 = add_terms(sum_0, x_0_0_0, y_0_0_0);
    let y_0_1_0 = expand_b(b_0_0, 1u);
    let row_0_1_0 = load_a(batch, 0u, vector_of(k_0, 1u));
    let x_0_1_0 = select(vec4<f32>(), row_0_1_0, k + 0u * LANES < end);
    sum_0 = add_terms(sum_0, x_0_1_0, y_0_1_0);
    let y_1_0_0 = expand_b(b_1_0, 0u);
    let row_1_0_0 = load_a(batch, 0u, vector_of(k_1, 0u));
    let x_1_0_0 = select(vec4<f32>(), row_1_0_0, k + 1u * LANES < end);
    sum_0 = add_terms(sum_0, x_1_0_0, y_1_0_0);
    let y_1_1_0 = expand_b(b_1_0, 1u);
    let row_1_1_0 = load_a(batch, 0u, vector_of(k_1, 1u));
    let x_1_1_0 = select(vec4<f32>(), row_1_1_0, k + 1u * LANES < end);
    sum_0 = add_terms(sum_0, x_1_1_0, y_1_1_0);
    let y_2_0_0 = expand_b(b_2_0, 0u);
    let row_2_0_0 = load_a(batch, 0u, vector_of(k_2, 0u));
    let x_2_0_0 = select(vec4<f32>(), row_2_0_0, k + 2u * LANES < end);
    sum_0 = add_terms(sum_0, x_2_0_0, y_2_0_0);
    let y_2_1_0 = expand_b(b_2_0, 1u);
    let row_2_1_0 = load_a(batch, 0u, vector_of(k_2, 1u));
    let x_2_1_0 = select(vec4<f32>(), row_2_1_0, k + 2u * LANES < end);
    sum_0 = add_terms(sum_0, x_2_1_0, y_2_1_0);
    let y_3_0_0 = expand_b(b_3_0, 0u);
    let row_3_0_0 = load_a(batch, 0u, vector_of(k_3, 0u));
    let x_3_0_0 = select(vec4<f32>(), row_3_0_0, k + 3u * LANES < end);
    sum_0 = add_terms(sum_0, x_3_0_0, y_3_0_0);
    let y_3_1_0 = expand_b(b_3_0, 1u);
    let row_3_1_0 = load_a(batch, 0u, vector_of(k_3, 1u));
    let x_3_1_0 = select(vec4<f32>(), row_3_1_0, k + 3u * LANES < end);
    sum_0 = add_terms(sum_0, x_3_1_0, y_3_1_0);
    let all_0 = subgroupAdd(sum_0);
    // Lane `t` of a column finishes the sum `t`.
    var own_sum = all_0;
    let own_number = slot % COLUMNS * GROUPS + local / LANES;
    if (slot < SUMS && column_of(tile, own_number) < N) {
        finish(part, element_number(batch, slot / COLUMNS, column_of(tile, own_number)), own_sum);
    }
}
// Four bytes minus an offset.
fn bytes_to_f32x4(bytes: u32, offset: f32) -> vec4<f32> {
    let high = bytes >> 16u;
    let bits = vec4<u32>(bytes & 0xffu, bytes & 0xff00u, high & 0xffu, high & 0xff00u);
    let floats = bitcast<vec4<f32>>(bits | vec4<u32>(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u));
    return floats - vec4<f32>(8388608.0 + offset, 32768.0 + offset, 8388608.0 + offset, 32768.0 + offset);
}
// With two bits above each.
fn six_bits_to_f32x4(word: u32, above: u32, half: u32) -> vec4<f32> {
    let low = (word >> (4u * half)) & 0x0f0f0f0fu;
    return bytes_to_f32x4(low | (((above >> (4u * half)) & 0x03030303u) << 4u), 32.0);
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
