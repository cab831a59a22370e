var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
// Matrix product of few rows whose operands are contiguous along K: a thread loads units of one or more vectors of four
// terms. If its part of the matrix B is small enough, a thread loads all of it before it waits for other data.
//
// A workgroup has TILE columns. LANES threads share the sums of a column, and each thread has COLUMNS columns for all M
// rows, with sums in registers. If the LANES threads are a subgroup, it adds up their sums; otherwise the sums pass
// through shared memory, STORED_SUMS sums of a thread at a time. If elements of rows have to be computed, this is done
// once (STAGED). If there are few columns, K is split into SPLIT_K parts (split-K). Packed weights stay packed in
// registers, and the sum of a unit is multiplied with its scale.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/quantized.rs.
const BATCH: u32 = 1u;
const M: u32 = 1u;
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
const COLUMN_BLOCKS: u32 = 120u;
const WIDTH: u32 = 144u;
const UNITS: u32 = 144u;
const SUMS: u32 = 1u;
alias Unit = vec4<f32>;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v2 = k * 4u;
    return b2[(v2) / 4u];
}
// Unit `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> Unit {
    let v1 = k * 4u;
    return b1[(line * 576u + v1) / 4u];
}
// Vector `number` of a unit, expanded to floats.
fn expand_b(unit: Unit, number: u32) -> vec4<f32> { return unit; }
// Index in its row or column of the vector `number` of unit `k`.
fn vector_of(k: u32, number: u32) -> u32 { return k * UNIT + number; }
// Adds four products to a sum.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }
// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
// Backends that start a launch before the previous one has finished wait for it here: no launch writes the data that is
// read before this point.
fn await_earlier_launches() {}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = group_number % COLUMN_BLOCKS;
    let batch = group_number / COLUMN_BLOCKS % BATCH;
    let part = group_number / (COLUMN_BLOCKS * BATCH);
    let slot = local % LANES;
    let first_vector = part * WIDTH;
    let first_unit = part * UNITS;
    let end = min(first_unit + UNITS, K / (4u * UNIT));
    let column_0 = min(column_of(tile, 0u * GROUPS + local / LANES), N - 1u);
    var sum_0 = 0.0;
    // The code before this point does not use the matrix, which is loaded meanwhile.
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
    let all_0 = subgroupAdd(sum_0);
    // Lane `t` of a column finishes the sum `t`.
    var own_sum = all_0;
    let own_number = slot % COLUMNS * GROUPS + local / LANES;
    if (slot < SUMS && column_of(tile, own_number) < N) {
        finish(part, element_number(batch, slot / COLUMNS, column_of(tile, own_number)), own_sum);
    }
}
// Columns of a workgroup, for matmuls of few rows whose epilogues read several sums of the workgroup. A kernel that
// calls these functions declares N; TILE, the number of columns of a workgroup; HALF, the distance in columns of the
// two elements of a rotated pair, or 0; and in workgroup memory `products`, all sums of the workgroup, row by row.
// Column of the result, by its number in the workgroup. If pairs are rotated, the first columns of all pairs come
// before the second ones.
fn column_of(tile: u32, number: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    let pair = tile * PAIRS + number % PAIRS;
    let rotated = pair / SOME_HALF * (2u * HALF) + number / PAIRS * HALF + pair % SOME_HALF;
    return select(tile * TILE + number, rotated, HALF > 0u);
}
