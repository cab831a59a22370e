enable wgpu_cooperative_matrix;
enable f16;
var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat8x8<f16,A>;
alias MatrixB = coop_mat8x8<f16,B>;
alias MatrixC = coop_mat8x8<f32,C>;
// The product. Whether neighbours in memory are neighbours along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 768u;
const N: u32 = 512u;
const K: u32 = 96u;
// The schedule.
const TILE: u32 = 8u;
const SUBGROUP: u32 = 32u;
const ROWS: u32 = 32u;
const COLUMNS: u32 = 32u;
const STEP: u32 = 16u;
const SUB_ROWS: u32 = 16u;
const SUB_COLUMNS: u32 = 16u;
const DEPTHS: u32 = 1u;
const PREFETCH: u32 = 1u;
const TOGETHER: u32 = 2u;
const ACROSS: u32 = 16u;
const DOWN: u32 = 24u;
const BESIDE: u32 = 2u;
const SUBGROUPS: u32 = 4u;
const THREADS: u32 = 128u;
// Vectors of a row of each piece in shared memory, and from one row to the next.
const A_WIDTH: u32 = 4u;
const B_WIDTH: u32 = 8u;
const A_STRIDE: u32 = 6u;
const B_STRIDE: u32 = 10u;
const A_VECTORS: u32 = 128u;
const B_VECTORS: u32 = 128u;
// Threads that bring a row of tiles to the epilogue, and what of it goes through shared memory together.
const ROW_THREADS: u32 = 32u;
const SLAB_COLUMNS: u32 = 8u;
const SLAB_TILES: u32 = 1u;
const SLAB: u32 = 64u;
var<workgroup> shared_a: array<Vector, A_VECTORS / A_WIDTH * A_STRIDE>;
var<workgroup> shared_b: array<Vector, B_VECTORS / B_WIDTH * B_STRIDE>;
var<workgroup> slab: array<f32, SLAB * SUBGROUPS>;
// Four elements of A, side by side in memory, from row `line` and term `k` on; zero from K on.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    let v13 = line;
    let v14 = k;
    return vec4<f16>(b2[(v13 * 96u + v14) / 4u]);
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v15 = line;
    let v16 = k;
    return vec4<f16>(b3[(v16 * 512u + v15) / 4u]);
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
// The same of several elements; those that are not within the result are not stored.
fn finish_together(
    i_0: u32, product_0: f32, within_0: bool,
    i_1: u32, product_1: f32, within_1: bool,
) {
    let v5 = (i_0 % 512u);
    let v6 = b0[v5];
    let v7 = product_0 + v6;
    let v8 = relu_f32(v7);
    let v9 = (i_1 % 512u);
    let v10 = b0[v9];
    let v11 = product_1 + v10;
    let v12 = relu_f32(v11);
    if (within_0) {
        b1[i_0] = v8;
    }
    if (within_1) {
        b1[i_1] = v12;
    }
}
// The element `e` of a slab, a sum over the subgroups that share steps.
fn slab_sum(sub_block: u32, e: u32) -> f32 {
    return slab[(sub_block * 1u + 0u) * 64u + e];
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let block = group_number;
    let part = group_number / (ACROSS * DOWN * BATCH);
    let first_column = block % ACROSS * COLUMNS;
    let first_row = block / ACROSS % DOWN * ROWS;
    let batch = block / (ACROSS * DOWN) % BATCH;
    let subgroup = local / SUBGROUP;
    let sub_block = subgroup / DEPTHS;
    let sub_row = sub_block / BESIDE * SUB_ROWS;
    let sub_column = sub_block % BESIDE * SUB_COLUMNS;
    var sum_0_0 = MatrixC();
    var sum_0_1 = MatrixC();
    var sum_1_0 = MatrixC();
    var sum_1_1 = MatrixC();
    var begin = 0u;
    var terms = K;
    var a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 0u * THREADS) % A_WIDTH * 4u);
    var b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, begin + 0u * STEP + (local + 0u * THREADS) / B_WIDTH);
    var done = 0u;
    loop {
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_0;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_0;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, next_k + (local + 0u * THREADS) % A_WIDTH * 4u);
            b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            let at_b_1 = depth * B_STRIDE + (sub_column + 1u * TILE) / 4u;
            let b_1 = coopLoadT<MatrixB>(&shared_b[at_b_1], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_0_1 = coopMultiplyAdd(a_0, b_1, sum_0_1);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
            sum_1_1 = coopMultiplyAdd(a_1, b_1, sum_1_1);
        }
        {
            let depth = 1u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            let at_b_1 = depth * B_STRIDE + (sub_column + 1u * TILE) / 4u;
            let b_1 = coopLoadT<MatrixB>(&shared_b[at_b_1], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_0_1 = coopMultiplyAdd(a_0, b_1, sum_0_1);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
            sum_1_1 = coopMultiplyAdd(a_1, b_1, sum_1_1);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
    }
    let slab_0_0 = subgroup * SLAB + 0u % SLAB_TILES * TILE;
    coopStoreT(sum_0_0, &slab[slab_0_0], SLAB_COLUMNS);
    workgroupBarrier();
    for (var first = local % ROW_THREADS; first < SLAB; first += ROW_THREADS * TOGETHER) {
        let e_0 = first + 0u * ROW_THREADS;
        let row_0 = first_row + sub_row + 0u * TILE + e_0 / SLAB_COLUMNS;
        let column_0 = first_column + sub_column + 0u * SLAB_COLUMNS + e_0 % SLAB_COLUMNS;
        let sum_0 = slab_sum(sub_block, e_0);
        let e_1 = first + 1u * ROW_THREADS;
        let row_1 = first_row + sub_row + 0u * TILE + e_1 / SLAB_COLUMNS;
        let column_1 = first_column + sub_column + 0u * SLAB_COLUMNS + e_1 % SLAB_COLUMNS;
        let sum_1 = slab_sum(sub_block, e_1);
        finish_together(
            element_number(batch, row_0, column_0), sum_0, true,
            element_number(batch, row_1, column_1), sum_1, true,
        );
    }
    workgroupBarrier();
    let slab_0_1 = subgroup * SLAB + 1u % SLAB_TILES * TILE;
    coopStoreT(sum_0_1, &slab[slab_0_1], SLAB_COLUMNS);
    workgroupBarrier();
    for (var first = local % ROW_THREADS; first < SLAB; first += ROW_THREADS * TOGETHER) {
        let e_0 = first + 0u * ROW_THREADS;
        let row_0 = first_row + sub_row + 0u * TILE + e_0 / SLAB_COLUMNS;
        let column_0 = first_column + sub_column + 1u * SLAB_COLUMNS + e_0 % SLAB_COLUMNS;
        let sum_0 = slab_sum(sub_block, e_0);
        let e_1 = first + 1u * ROW_THREADS;
        let row_1 = first_row + sub_row + 0u * TILE + e_1 / SLAB_COLUMNS;
        let column_1 = first_column + sub_column + 1u * SLAB_COLUMNS + e_1 % SLAB_COLUMNS;
        let sum_1 = slab_sum(sub_block, e_1);
        finish_together(
            element_number(batch, row_0, column_0), sum_0, true,
            element_number(batch, row_1, column_1), sum_1, true,
        );
    }
    workgroupBarrier();
    let slab_1_0 = subgroup * SLAB + 0u % SLAB_TILES * TILE;
    coopStoreT(sum_1_0, &slab[slab_1_0], SLAB_COLUMNS);
    workgroupBarrier();
    for (var first = local % ROW_THREADS; first < SLAB; first += ROW_THREADS * TOGETHER) {
        let e_0 = first + 0u * ROW_THREADS;
        let row_0 = first_row + sub_row + 1u * TILE + e_0 / SLAB_COLUMNS;
        let column_0 = first_column + sub_column + 0u * SLAB_COLUMNS + e_0 % SLAB_COLUMNS;
        let sum_0 = slab_sum(sub_block, e_0);
        let e_1 = first + 1u * ROW_THREADS;
        let row_1 = first_row + sub_row + 1u * TILE + e_1 / SLAB_COLUMNS;
        let column_1 = first_column + sub_column + 0u * SLAB_COLUMNS + e_1 % SLAB_COLUMNS;
        let sum_1 = slab_sum(sub_block, e_1);
        finish_together(
            element_number(batch, row_0, column_0), sum_0, true,
            element_number(batch, row_1, column_1), sum_1, true,
        );
    }
    workgroupBarrier();
    let slab_1_1 = subgroup * SLAB + 1u % SLAB_TILES * TILE;
    coopStoreT(sum_1_1, &slab[slab_1_1], SLAB_COLUMNS);
    workgroupBarrier();
    for (var first = local % ROW_THREADS; first < SLAB; first += ROW_THREADS * TOGETHER) {
        let e_0 = first + 0u * ROW_THREADS;
        let row_0 = first_row + sub_row + 1u * TILE + e_0 / SLAB_COLUMNS;
        let column_0 = first_column + sub_column + 1u * SLAB_COLUMNS + e_0 % SLAB_COLUMNS;
        let sum_0 = slab_sum(sub_block, e_0);
        let e_1 = first + 1u * ROW_THREADS;
        let row_1 = first_row + sub_row + 1u * TILE + e_1 / SLAB_COLUMNS;
        let column_1 = first_column + sub_column + 1u * SLAB_COLUMNS + e_1 % SLAB_COLUMNS;
        let sum_1 = slab_sum(sub_block, e_1);
        finish_together(
            element_number(batch, row_0, column_0), sum_0, true,
            element_number(batch, row_1, column_1), sum_1, true,
        );
    }
    workgroupBarrier();
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
fn relu_f32(x: f32) -> f32 {
    let positive = select(x, 0.0, x < 0.0);
    return select(positive, x, is_nan(x));
}
