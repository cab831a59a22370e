enable wgpu_cooperative_matrix;
enable f16;
var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16,A>;
alias MatrixB = coop_mat16x16<f16,B>;
alias MatrixC = coop_mat16x16<f32,C>;
// The product. Whether neighbours in memory are neighbours along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 768u;
const N: u32 = 512u;
const K: u32 = 96u;
// The schedule.
const TILE: u32 = 16u;
const SUBGROUP: u32 = 32u;
const ROWS: u32 = 64u;
const COLUMNS: u32 = 64u;
const STEP: u32 = 64u;
const SUB_ROWS: u32 = 32u;
const SUB_COLUMNS: u32 = 16u;
const DEPTHS: u32 = 1u;
const PREFETCH: u32 = 2u;
const TOGETHER: u32 = 8u;
const ACROSS: u32 = 8u;
const DOWN: u32 = 12u;
const BESIDE: u32 = 4u;
const SUBGROUPS: u32 = 8u;
const THREADS: u32 = 256u;
// Vectors of a row of each piece in shared memory, and from one row to the next.
const A_WIDTH: u32 = 16u;
const B_WIDTH: u32 = 16u;
const A_STRIDE: u32 = 18u;
const B_STRIDE: u32 = 18u;
const A_VECTORS: u32 = 1024u;
const B_VECTORS: u32 = 1024u;
// Threads that bring a row of tiles to the epilogue, and what of it goes through shared memory together.
const ROW_THREADS: u32 = 32u;
const SLAB_COLUMNS: u32 = 16u;
const SLAB_TILES: u32 = 1u;
const SLAB: u32 = 256u;
var<workgroup> shared_a: array<Vector, A_VECTORS / A_WIDTH * A_STRIDE>;
var<workgroup> shared_b: array<Vector, B_VECTORS / B_WIDTH * B_STRIDE>;
var<workgroup> slab: array<f32, SLAB * SUBGROUPS>;
// Four elements of A, side by side in memory, from row `line` and term `k` on; zero from K on.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    let v28 = line;
    let v29 = min(k, 92u);
    return select(vec4<f16>(), vec4<f16>(b2[(v28 * 96u + v29) / 4u]), k < 96u);
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v30 = line;
    let v31 = min(k, 95u);
    return select(vec4<f16>(), vec4<f16>(b3[(v31 * 512u + v30) / 4u]), k < 96u);
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
// The same of several elements; those that are not within the result are not stored.
fn finish_together(
    i_0: u32, product_0: f32, within_0: bool,
    i_1: u32, product_1: f32, within_1: bool,
    i_2: u32, product_2: f32, within_2: bool,
    i_3: u32, product_3: f32, within_3: bool,
    i_4: u32, product_4: f32, within_4: bool,
    i_5: u32, product_5: f32, within_5: bool,
    i_6: u32, product_6: f32, within_6: bool,
    i_7: u32, product_7: f32, within_7: bool,
) {
    let v4 = (i_0 % 512u);
    let v5 = b0[v4];
    let v6 = product_0 + v5;
    let v7 = (i_1 % 512u);
    let v8 = b0[v7];
    let v9 = product_1 + v8;
    let v10 = (i_2 % 512u);
    let v11 = b0[v10];
    let v12 = product_2 + v11;
    let v13 = (i_3 % 512u);
    let v14 = b0[v13];
    let v15 = product_3 + v14;
    let v16 = (i_4 % 512u);
    let v17 = b0[v16];
    let v18 = product_4 + v17;
    let v19 = (i_5 % 512u);
    let v20 = b0[v19];
    let v21 = product_5 + v20;
    let v22 = (i_6 % 512u);
    let v23 = b0[v22];
    let v24 = product_6 + v23;
    let v25 = (i_7 % 512u);
    let v26 = b0[v25];
    let v27 = product_7 + v26;
    if (within_0) {
        b1[i_0] = v6;
    }
    if (within_1) {
        b1[i_1] = v9;
    }
    if (within_2) {
        b1[i_2] = v12;
    }
    if (within_3) {
        b1[i_3] = v15;
    }
    if (within_4) {
        b1[i_4] = v18;
    }
    if (within_5) {
        b1[i_5] = v21;
    }
    if (within_6) {
        b1[i_6] = v24;
    }
    if (within_7) {
        b1[i_7] = v27;
    }
}
// The element `e` of a slab, a sum over the subgroups that share steps.
fn slab_sum(sub_block: u32, e: u32) -> f32 {
    return slab[(sub_block * 1u + 0u) * 256u + e];
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
    var sum_1_0 = MatrixC();
    var begin = 0u;
    var terms = K;
    var a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 0u * THREADS) % A_WIDTH * 4u);
    var a_1_0 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 1u * THREADS) % A_WIDTH * 4u);
    var a_2_0 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 2u * THREADS) % A_WIDTH * 4u);
    var a_3_0 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 3u * THREADS) % A_WIDTH * 4u);
    var a_0_1 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, begin + 1u * STEP + (local + 0u * THREADS) % A_WIDTH * 4u);
    var a_1_1 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, begin + 1u * STEP + (local + 1u * THREADS) % A_WIDTH * 4u);
    var a_2_1 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, begin + 1u * STEP + (local + 2u * THREADS) % A_WIDTH * 4u);
    var a_3_1 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, begin + 1u * STEP + (local + 3u * THREADS) % A_WIDTH * 4u);
    var b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, begin + 0u * STEP + (local + 0u * THREADS) / B_WIDTH);
    var b_1_0 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, begin + 0u * STEP + (local + 1u * THREADS) / B_WIDTH);
    var b_2_0 = load_b(batch, first_column + (local + 2u * THREADS) % B_WIDTH * 4u, begin + 0u * STEP + (local + 2u * THREADS) / B_WIDTH);
    var b_3_0 = load_b(batch, first_column + (local + 3u * THREADS) % B_WIDTH * 4u, begin + 0u * STEP + (local + 3u * THREADS) / B_WIDTH);
    var b_0_1 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, begin + 1u * STEP + (local + 0u * THREADS) / B_WIDTH);
    var b_1_1 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, begin + 1u * STEP + (local + 1u * THREADS) / B_WIDTH);
    var b_2_1 = load_b(batch, first_column + (local + 2u * THREADS) % B_WIDTH * 4u, begin + 1u * STEP + (local + 2u * THREADS) / B_WIDTH);
    var b_3_1 = load_b(batch, first_column + (local + 3u * THREADS) % B_WIDTH * 4u, begin + 1u * STEP + (local + 3u * THREADS) / B_WIDTH);
    var done = 0u;
    loop {
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_0;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_0;
        shared_a[(local + 2u * THREADS) / A_WIDTH * A_STRIDE + (local + 2u * THREADS) % A_WIDTH] = a_2_0;
        shared_a[(local + 3u * THREADS) / A_WIDTH * A_STRIDE + (local + 3u * THREADS) % A_WIDTH] = a_3_0;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_0;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_0;
        shared_b[(local + 2u * THREADS) / B_WIDTH * B_STRIDE + (local + 2u * THREADS) % B_WIDTH] = b_2_0;
        shared_b[(local + 3u * THREADS) / B_WIDTH * B_STRIDE + (local + 3u * THREADS) % B_WIDTH] = b_3_0;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, next_k + (local + 0u * THREADS) % A_WIDTH * 4u);
            a_1_0 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, next_k + (local + 1u * THREADS) % A_WIDTH * 4u);
            a_2_0 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, next_k + (local + 2u * THREADS) % A_WIDTH * 4u);
            a_3_0 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, next_k + (local + 3u * THREADS) % A_WIDTH * 4u);
            b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
            b_1_0 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, next_k + (local + 1u * THREADS) / B_WIDTH);
            b_2_0 = load_b(batch, first_column + (local + 2u * THREADS) % B_WIDTH * 4u, next_k + (local + 2u * THREADS) / B_WIDTH);
            b_3_0 = load_b(batch, first_column + (local + 3u * THREADS) % B_WIDTH * 4u, next_k + (local + 3u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 1u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 2u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 3u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_1;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_1;
        shared_a[(local + 2u * THREADS) / A_WIDTH * A_STRIDE + (local + 2u * THREADS) % A_WIDTH] = a_2_1;
        shared_a[(local + 3u * THREADS) / A_WIDTH * A_STRIDE + (local + 3u * THREADS) % A_WIDTH] = a_3_1;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_1;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_1;
        shared_b[(local + 2u * THREADS) / B_WIDTH * B_STRIDE + (local + 2u * THREADS) % B_WIDTH] = b_2_1;
        shared_b[(local + 3u * THREADS) / B_WIDTH * B_STRIDE + (local + 3u * THREADS) % B_WIDTH] = b_3_1;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_1 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, next_k + (local + 0u * THREADS) % A_WIDTH * 4u);
            a_1_1 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, next_k + (local + 1u * THREADS) % A_WIDTH * 4u);
            a_2_1 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, next_k + (local + 2u * THREADS) % A_WIDTH * 4u);
            a_3_1 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, next_k + (local + 3u * THREADS) % A_WIDTH * 4u);
            b_0_1 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
            b_1_1 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, next_k + (local + 1u * THREADS) / B_WIDTH);
            b_2_1 = load_b(batch, first_column + (local + 2u * THREADS) % B_WIDTH * 4u, next_k + (local + 2u * THREADS) / B_WIDTH);
            b_3_1 = load_b(batch, first_column + (local + 3u * THREADS) % B_WIDTH * 4u, next_k + (local + 3u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 1u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 2u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 3u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
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
        let e_2 = first + 2u * ROW_THREADS;
        let row_2 = first_row + sub_row + 0u * TILE + e_2 / SLAB_COLUMNS;
        let column_2 = first_column + sub_column + 0u * SLAB_COLUMNS + e_2 % SLAB_COLUMNS;
        let sum_2 = slab_sum(sub_block, e_2);
        let e_3 = first + 3u * ROW_THREADS;
        let row_3 = first_row + sub_row + 0u * TILE + e_3 / SLAB_COLUMNS;
        let column_3 = first_column + sub_column + 0u * SLAB_COLUMNS + e_3 % SLAB_COLUMNS;
        let sum_3 = slab_sum(sub_block, e_3);
        let e_4 = first + 4u * ROW_THREADS;
        let row_4 = first_row + sub_row + 0u * TILE + e_4 / SLAB_COLUMNS;
        let column_4 = first_column + sub_column + 0u * SLAB_COLUMNS + e_4 % SLAB_COLUMNS;
        let sum_4 = slab_sum(sub_block, e_4);
        let e_5 = first + 5u * ROW_THREADS;
        let row_5 = first_row + sub_row + 0u * TILE + e_5 / SLAB_COLUMNS;
        let column_5 = first_column + sub_column + 0u * SLAB_COLUMNS + e_5 % SLAB_COLUMNS;
        let sum_5 = slab_sum(sub_block, e_5);
        let e_6 = first + 6u * ROW_THREADS;
        let row_6 = first_row + sub_row + 0u * TILE + e_6 / SLAB_COLUMNS;
        let column_6 = first_column + sub_column + 0u * SLAB_COLUMNS + e_6 % SLAB_COLUMNS;
        let sum_6 = slab_sum(sub_block, e_6);
        let e_7 = first + 7u * ROW_THREADS;
        let row_7 = first_row + sub_row + 0u * TILE + e_7 / SLAB_COLUMNS;
        let column_7 = first_column + sub_column + 0u * SLAB_COLUMNS + e_7 % SLAB_COLUMNS;
        let sum_7 = slab_sum(sub_block, e_7);
        finish_together(
            element_number(batch, row_0, column_0), sum_0, true,
            element_number(batch, row_1, column_1), sum_1, true,
            element_number(batch, row_2, column_2), sum_2, true,
            element_number(batch, row_3, column_3), sum_3, true,
            element_number(batch, row_4, column_4), sum_4, true,
            element_number(batch, row_5, column_5), sum_5, true,
            element_number(batch, row_6, column_6), sum_6, true,
            element_number(batch, row_7, column_7), sum_7, true,
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
        let e_2 = first + 2u * ROW_THREADS;
        let row_2 = first_row + sub_row + 1u * TILE + e_2 / SLAB_COLUMNS;
        let column_2 = first_column + sub_column + 0u * SLAB_COLUMNS + e_2 % SLAB_COLUMNS;
        let sum_2 = slab_sum(sub_block, e_2);
        let e_3 = first + 3u * ROW_THREADS;
        let row_3 = first_row + sub_row + 1u * TILE + e_3 / SLAB_COLUMNS;
        let column_3 = first_column + sub_column + 0u * SLAB_COLUMNS + e_3 % SLAB_COLUMNS;
        let sum_3 = slab_sum(sub_block, e_3);
        let e_4 = first + 4u * ROW_THREADS;
        let row_4 = first_row + sub_row + 1u * TILE + e_4 / SLAB_COLUMNS;
        let column_4 = first_column + sub_column + 0u * SLAB_COLUMNS + e_4 % SLAB_COLUMNS;
        let sum_4 = slab_sum(sub_block, e_4);
        let e_5 = first + 5u * ROW_THREADS;
        let row_5 = first_row + sub_row + 1u * TILE + e_5 / SLAB_COLUMNS;
        let column_5 = first_column + sub_column + 0u * SLAB_COLUMNS + e_5 % SLAB_COLUMNS;
        let sum_5 = slab_sum(sub_block, e_5);
        let e_6 = first + 6u * ROW_THREADS;
        let row_6 = first_row + sub_row + 1u * TILE + e_6 / SLAB_COLUMNS;
        let column_6 = first_column + sub_column + 0u * SLAB_COLUMNS + e_6 % SLAB_COLUMNS;
        let sum_6 = slab_sum(sub_block, e_6);
        let e_7 = first + 7u * ROW_THREADS;
        let row_7 = first_row + sub_row + 1u * TILE + e_7 / SLAB_COLUMNS;
        let column_7 = first_column + sub_column + 0u * SLAB_COLUMNS + e_7 % SLAB_COLUMNS;
        let sum_7 = slab_sum(sub_block, e_7);
        finish_together(
            element_number(batch, row_0, column_0), sum_0, true,
            element_number(batch, row_1, column_1), sum_1, true,
            element_number(batch, row_2, column_2), sum_2, true,
            element_number(batch, row_3, column_3), sum_3, true,
            element_number(batch, row_4, column_4), sum_4, true,
            element_number(batch, row_5, column_5), sum_5, true,
            element_number(batch, row_6, column_6), sum_6, true,
            element_number(batch, row_7, column_7), sum_7, true,
        );
    }
    workgroupBarrier();
}
