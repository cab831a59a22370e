var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
// Matrix product of few rows, as in the decode phase of a language model: every element of the matrix B is read once,
// so the memory bandwidth limits the speed.
//
// A workgroup has TILE columns. The LANES threads of a column share its sum over K, UNROLL terms at a time, so that all
// their loads are in flight together; adjacent threads read adjacent memory. If elements of rows have to be computed,
// this is done once for all columns (STAGED). If there are few columns, K is split into SPLIT_K parts (split-K).
//
// Twin in the oracle: core/src/ops/matmul.rs.
// Sizes of the product. B_K_MAJOR: elements of B that are adjacent in memory are adjacent along K, rather than along N.
const BATCH: u32 = 1u;
const M: u32 = 1u;
const N: u32 = 960u;
const K: u32 = 576u;
// The schedule.
const LANES: u32 = 32u;
const HALF: u32 = 0u;
const THREADS: u32 = 256u;
const TILE: u32 = 8u;
const COLUMN_BLOCKS: u32 = 120u;
const LENGTH: u32 = 576u;
const UNROLL: u32 = 9u;
var<workgroup> sums: array<f32, THREADS>;
fn load_a(batch: u32, line: u32, k: u32) -> f32 {
    let v1 = b1[k];
    return v1;
}
fn load_b(batch: u32, line: u32, k: u32) -> f32 {
    let v2 = b2[k * 960u + line];
    return v2;
}
// Element of a row, from shared memory if rows are staged.
fn row_element(batch: u32, row: u32, k: u32, part: u32) -> f32 {
    return load_a(batch, row, k);
}
// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = group_number % COLUMN_BLOCKS;
    let batch = group_number / COLUMN_BLOCKS % BATCH;
    let part = group_number / (COLUMN_BLOCKS * BATCH);
    let slot = local / TILE;
    let column = min(column_of(tile, local % TILE), N - 1u);
    let end = min(part * LENGTH + LENGTH, K);
    var sum_0 = 0.0;
    var k = part * LENGTH + slot;
    for (; k + (UNROLL - 1u) * LANES < end; k += UNROLL * LANES) {
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
