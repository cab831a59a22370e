var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
// Matrix product of few rows with a large matrix whose columns lie along K, as for a token of a model of billions of parameters.
//
// A workgroup stores the rows in shared memory (CHUNK units at a time), and then computes one TILE of columns after the other.
// Each column has LANES threads. A thread has COUNT units of COLUMNS columns in flight
// while rows are stored, and while earlier units are added. A unit is UNIT vectors
// of four terms: a block of packed weights, or one vector of a plain matrix. An element of a row is read from shared memory once for
// COLUMNS columns. Where there are few columns, K is cut into PARTS (split-K).
//
// Packed integers q become floats by bits of a mantissa: BIAS + q takes a shift, an "and" and an "or". The bias is subtracted once
// for each block: sum(q x) = sum((BIAS + q) x) - BIAS sum(x), and sum(x) is computed once for all columns (SUMMED). The vector with
// that sum keeps neighbouring lanes in different banks.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/quantized.rs.
const BATCH: u32 = 1u;
const M: u32 = 4u;
const N: u32 = 4096u;
const K: u32 = 14336u;
// The schedule.
const COLUMNS: u32 = 2u;
const CHUNK: u32 = 608u;
const UNIT: u32 = 1u;
const STRIDE: u32 = 1u;
const COUNT: u32 = 4u;
const HALF: u32 = 0u;
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const GROUPS: u32 = 8u;
const TILE: u32 = 16u;
const ACROSS: u32 = 256u;
const UNITS: u32 = 3584u;
const ALL_UNITS: u32 = 3584u;
const SUMS: u32 = 8u;
const ROW: u32 = 608u;
const CHUNK_VECTORS: u32 = 608u;
var<workgroup> staged: array<vec4<f32>, M * ROW>;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v2 = k * 4u;
    return b2[(line * 14336u + v2) / 4u];
}
// The vector `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v1 = k * 4u;
    return b1[(line * 14336u + v1) / 4u];
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
    let first_tile = group_number % ACROSS;
    let batch = group_number / ACROSS % BATCH;
    let part = group_number / (ACROSS * BATCH);
    let slot = local % LANES;
    let first_unit = part * UNITS;
    let end = min(first_unit + UNITS, ALL_UNITS);
    await_earlier_launches();
    {
        let tile = first_tile + 0u * ACROSS;
        let column_0 = min(column_of(tile, 0u * GROUPS + local / LANES), N - 1u);
        let column_1 = min(column_of(tile, 1u * GROUPS + local / LANES), N - 1u);
        var sum_0 = 0.0;
        var sum_1 = 0.0;
        var sum_2 = 0.0;
        var sum_3 = 0.0;
        var sum_4 = 0.0;
        var sum_5 = 0.0;
        var sum_6 = 0.0;
        var sum_7 = 0.0;
        for (var chunk = first_unit; chunk < end; chunk += CHUNK) {
            let chunk_end = min(chunk + CHUNK, end);
            // What comes before needs none of the matrix, which is loaded meanwhile.
            let first_0 = min(chunk + slot + 0u * LANES, chunk_end - 1u);
            var b_0_0 = load_b(batch, column_0, first_0);
            var b_0_1 = load_b(batch, column_1, first_0);
            let first_1 = min(chunk + slot + 1u * LANES, chunk_end - 1u);
            var b_1_0 = load_b(batch, column_0, first_1);
            var b_1_1 = load_b(batch, column_1, first_1);
            let first_2 = min(chunk + slot + 2u * LANES, chunk_end - 1u);
            var b_2_0 = load_b(batch, column_0, first_2);
            var b_2_1 = load_b(batch, column_1, first_2);
            let first_3 = min(chunk + slot + 3u * LANES, chunk_end - 1u);
            var b_3_0 = load_b(batch, column_0, first_3);
            var b_3_1 = load_b(batch, column_1, first_3);
            workgroupBarrier();
            for (var i = local; i < M * CHUNK_VECTORS; i += THREADS) {
                let row = i / CHUNK_VECTORS;
                let vector = i % CHUNK_VECTORS;
                let found = min(chunk * UNIT + vector, K / 4u - 1u);
                let x = load_a(batch, row, found);
                staged[row * ROW + vector / UNIT * STRIDE + vector % UNIT] = x;
            }
            workgroupBarrier();
            for (var k = chunk + slot; k < chunk_end; k += COUNT * LANES) {
                let k_0 = min(k + 0u * LANES, chunk_end - 1u);
                // The units of the next round are loaded while those of this one are added.
                let next_0 = min(k + (COUNT + 0u) * LANES, chunk_end - 1u);
                let own_b_0_0 = b_0_0;
                b_0_0 = load_b(batch, column_0, next_0);
                let own_b_0_1 = b_0_1;
                b_0_1 = load_b(batch, column_1, next_0);
                let k_1 = min(k + 1u * LANES, chunk_end - 1u);
                // The units of the next round are loaded while those of this one are added.
                let next_1 = min(k + (COUNT + 1u) * LANES, chunk_end - 1u);
                let own_b_1_0 = b_1_0;
                b_1_0 = load_b(batch, column_0, next_1);
                let own_b_1_1 = b_1_1;
                b_1_1 = load_b(batch, column_1, next_1);
                let k_2 = min(k + 2u * LANES, chunk_end - 1u);
                // The units of the next round are loaded while those of this one are added.
                let next_2 = min(k + (COUNT + 2u) * LANES, chunk_end - 1u);
                let own_b_2_0 = b_2_0;
                b_2_0 = load_b(batch, column_0, next_2);
                let own_b_2_1 = b_2_1;
                b_2_1 = load_b(batch, column_1, next_2);
                let k_3 = min(k + 3u * LANES, chunk_end - 1u);
                // The units of the next round are loaded while those of this one are added.
                let next_3 = min(k + (COUNT + 3u) * LANES, chunk_end - 1u);
                let own_b_3_0 = b_3_0;
                b_3_0 = load_b(batch, column_0, next_3);
                let own_b_3_1 = b_3_1;
                b_3_1 = load_b(batch, column_1, next_3);
                let at_0 = (k_0 - chunk) * STRIDE;
                let is_inside_0 = k + 0u * LANES < chunk_end;
                let x_0_0 = select(vec4<f32>(), staged[0u * ROW + at_0], is_inside_0);
                let y_0_0 = select(vec4<f32>(), own_b_0_0, is_inside_0);
                sum_0 = add_terms(sum_0, x_0_0, y_0_0);
                let y_0_1 = select(vec4<f32>(), own_b_0_1, is_inside_0);
                sum_1 = add_terms(sum_1, x_0_0, y_0_1);
                let x_0_1 = select(vec4<f32>(), staged[1u * ROW + at_0], is_inside_0);
                let y_0_2 = select(vec4<f32>(), own_b_0_0, is_inside_0);
                sum_2 = add_terms(sum_2, x_0_1, y_0_2);
                let y_0_3 = select(vec4<f32>(), own_b_0_1, is_inside_0);
                sum_3 = add_terms(sum_3, x_0_1, y_0_3);
                let x_0_2 = select(vec4<f32>(), staged[2u * ROW + at_0], is_inside_0);
                let y_0_4 = select(vec4<f32>(), own_b_0_0, is_inside_0);
                sum_4 = add_terms(sum_4, x_0_2, y_0_4);
                let y_0_5 = select(vec4<f32>(), own_b_0_1, is_inside_0);
                sum_5 = add_terms(sum_5, x_0_2, y_0_5);
                let x_0_3 = select(vec4<f32>(), staged[3u * ROW + at_0], is_inside_0);
                let y_0_6 = select(vec4<f32>(), own_b_0_0, is_inside_0);
                sum_6 = add_terms(sum_6, x_0_3, y_0_6);
                let y_0_7 = select(vec4<f32>(), own_b_0_1, is_inside_0);
                sum_7 = add_terms(sum_7, x_0_3, y_0_7);
                let at_1 = (k_1 - chunk) * STRIDE;
                let is_inside_1 = k + 1u * LANES < chunk_end;
                let x_1_0 = select(vec4<f32>(), staged[0u * ROW + at_1], is_inside_1);
                let y_1_0 = select(vec4<f32>(), own_b_1_0, is_inside_1);
                sum_0 = add_terms(sum_0, x_1_0, y_1_0);
                let y_1_1 = select(vec4<f32>(), own_b_1_1, is_inside_1);
                sum_1 = add_terms(sum_1, x_1_0, y_1_1);
                let x_1_1 = select(vec4<f32>(), staged[1u * ROW + at_1], is_inside_1);
                let y_1_2 = select(vec4<f32>(), own_b_1_0, is_inside_1);
                sum_2 = add_terms(sum_2, x_1_1, y_1_2);
                let y_1_3 = select(vec4<f32>(), own_b_1_1, is_inside_1);
                sum_3 = add_terms(sum_3, x_1_1, y_1_3);
                let x_1_2 = select(vec4<f32>(), staged[2u * ROW + at_1], is_inside_1);
                let y_1_4 = select(vec4<f32>(), own_b_1_0, is_inside_1);
                sum_4 = add_terms(sum_4, x_1_2, y_1_4);
                let y_1_5 = select(vec4<f32>(), own_b_1_1, is_inside_1);
                sum_5 = add_terms(sum_5, x_1_2, y_1_5);
                let x_1_3 = select(vec4<f32>(), staged[3u * ROW + at_1], is_inside_1);
                let y_1_6 = select(vec4<f32>(), own_b_1_0, is_inside_1);
                sum_6 = add_terms(sum_6, x_1_3, y_1_6);
                let y_1_7 = select(vec4<f32>(), own_b_1_1, is_inside_1);
                sum_7 = add_terms(sum_7, x_1_3, y_1_7);
                let at_2 = (k_2 - chunk) * STRIDE;
                let is_inside_2 = k + 2u * LANES < chunk_end;
                let x_2_0 = select(vec4<f32>(), staged[0u * ROW + at_2], is_inside_2);
                let y_2_0 = select(vec4<f32>(), own_b_2_0, is_inside_2);
                sum_0 = add_terms(sum_0, x_2_0, y_2_0);
                let y_2_1 = select(vec4<f32>(), own_b_2_1, is_inside_2);
                sum_1 = add_terms(sum_1, x_2_0, y_2_1);
                let x_2_1 = select(vec4<f32>(), staged[1u * ROW + at_2], is_inside_2);
                let y_2_2 = select(vec4<f32>(), own_b_2_0, is_inside_2);
                sum_2 = add_terms(sum_2, x_2_1, y_2_2);
                let y_2_3 = select(vec4<f32>(), own_b_2_1, is_inside_2);
                sum_3 = add_terms(sum_3, x_2_1, y_2_3);
                let x_2_2 = select(vec4<f32>(), staged[2u * ROW + at_2], is_inside_2);
                let y_2_4 = select(vec4<f32>(), own_b_2_0, is_inside_2);
                sum_4 = add_terms(sum_4, x_2_2, y_2_4);
                let y_2_5 = select(vec4<f32>(), own_b_2_1, is_inside_2);
                sum_5 = add_terms(sum_5, x_2_2, y_2_5);
                let x_2_3 = select(vec4<f32>(), staged[3u * ROW + at_2], is_inside_2);
                let y_2_6 = select(vec4<f32>(), own_b_2_0, is_inside_2);
                sum_6 = add_terms(sum_6, x_2_3, y_2_6);
                let y_2_7 = select(vec4<f32>(), own_b_2_1, is_inside_2);
                sum_7 = add_terms(sum_7, x_2_3, y_2_7);
                let at_3 = (k_3 - chunk) * STRIDE;
                let is_inside_3 = k + 3u * LANES < chunk_end;
                let x_3_0 = select(vec4<f32>(), staged[0u * ROW + at_3], is_inside_3);
                let y_3_0 = select(vec4<f32>(), own_b_3_0, is_inside_3);
                sum_0 = add_terms(sum_0, x_3_0, y_3_0);
                let y_3_1 = select(vec4<f32>(), own_b_3_1, is_inside_3);
                sum_1 = add_terms(sum_1, x_3_0, y_3_1);
                let x_3_1 = select(vec4<f32>(), staged[1u * ROW + at_3], is_inside_3);
                let y_3_2 = select(vec4<f32>(), own_b_3_0, is_inside_3);
                sum_2 = add_terms(sum_2, x_3_1, y_3_2);
                let y_3_3 = select(vec4<f32>(), own_b_3_1, is_inside_3);
                sum_3 = add_terms(sum_3, x_3_1, y_3_3);
                let x_3_2 = select(vec4<f32>(), staged[2u * ROW + at_3], is_inside_3);
                let y_3_4 = select(vec4<f32>(), own_b_3_0, is_inside_3);
                sum_4 = add_terms(sum_4, x_3_2, y_3_4);
                let y_3_5 = select(vec4<f32>(), own_b_3_1, is_inside_3);
                sum_5 = add_terms(sum_5, x_3_2, y_3_5);
                let x_3_3 = select(vec4<f32>(), staged[3u * ROW + at_3], is_inside_3);
                let y_3_6 = select(vec4<f32>(), own_b_3_0, is_inside_3);
                sum_6 = add_terms(sum_6, x_3_3, y_3_6);
                let y_3_7 = select(vec4<f32>(), own_b_3_1, is_inside_3);
                sum_7 = add_terms(sum_7, x_3_3, y_3_7);
            }
        }
        let all_0 = subgroupAdd(sum_0);
        let all_1 = subgroupAdd(sum_1);
        let all_2 = subgroupAdd(sum_2);
        let all_3 = subgroupAdd(sum_3);
        let all_4 = subgroupAdd(sum_4);
        let all_5 = subgroupAdd(sum_5);
        let all_6 = subgroupAdd(sum_6);
        let all_7 = subgroupAdd(sum_7);
        // Lane `t` of a column finishes the sum `t`.
        var own_sum = all_0;
        own_sum = select(own_sum, all_1, slot == 1u);
        own_sum = select(own_sum, all_2, slot == 2u);
        own_sum = select(own_sum, all_3, slot == 3u);
        own_sum = select(own_sum, all_4, slot == 4u);
        own_sum = select(own_sum, all_5, slot == 5u);
        own_sum = select(own_sum, all_6, slot == 6u);
        own_sum = select(own_sum, all_7, slot == 7u);
        let own_number = slot % COLUMNS * GROUPS + local / LANES;
        if (slot < SUMS && column_of(tile, own_number) < N) {
            finish(part, element_number(batch, slot / COLUMNS, column_of(tile, own_number)), own_sum);
        }
    }
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
