enable f16;
enable wgpu_cooperative_matrix;
var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16,A>;
alias MatrixB = coop_mat16x16<f16,B>;
alias MatrixC = coop_mat16x16<f32,C>;
// The product. Whether neighbours in memory are neighbours along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 72u;
const N: u32 = 6400u;
const K: u32 = 216u;
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
const TOGETHER: u32 = 1u;
const ACROSS: u32 = 100u;
const DOWN: u32 = 2u;
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
let v1 = min(line, 71u);
let v2 = min(k + 0u, 215u);
let v3 = v2 / 9u;
let v4 = v2 % 9u;
let v5 = ((batch * 72u + v1) * 24u + v3) * 9u + v4;
let v6 = b1[v5];
let v7 = min(line, 71u);
let v8 = min(k + 1u, 215u);
let v9 = v8 / 9u;
let v10 = v8 % 9u;
let v11 = ((batch * 72u + v7) * 24u + v9) * 9u + v10;
let v12 = b1[v11];
let v13 = min(line, 71u);
let v14 = min(k + 2u, 215u);
let v15 = v14 / 9u;
let v16 = v14 % 9u;
let v17 = ((batch * 72u + v13) * 24u + v15) * 9u + v16;
let v18 = b1[v17];
let v19 = min(line, 71u);
let v20 = min(k + 3u, 215u);
let v21 = v20 / 9u;
let v22 = v20 % 9u;
let v23 = ((batch * 72u + v19) * 24u + v21) * 9u + v22;
let v24 = b1[v23];
return vec4<f16>(vec4<f32>(select(0.0, v6, k + 0u < 216u), select(0.0, v12, k + 1u < 216u), select(0.0, v18, k + 2u < 216u), select(0.0, v24, k + 3u < 216u)));
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
let v25 = line + 0u;
let v26 = min(k, 215u);
let v27 = v26 / 9u;
let v28 = v26 % 9u;
let v29 = v25 / 1600u;
let v30 = v25 % 1600u;
let v31 = v30 / 40u * 1u + v28 / 3u * 1u - 1u;
let v32 = v30 % 40u * 1u + v28 % 3u * 1u - 1u;
let v33 = ((v29 * 24u + batch * 24u + v27) * 40u + min(v31, 39u)) * 40u + min(v32, 39u);
let v34 = b2[v33];
let v35 = select(0.0, v34, v31 < 40u && v32 < 40u);
let v36 = line + 1u;
let v37 = min(k, 215u);
let v38 = v37 / 9u;
let v39 = v37 % 9u;
let v40 = v36 / 1600u;
let v41 = v36 % 1600u;
let v42 = v41 / 40u * 1u + v39 / 3u * 1u - 1u;
let v43 = v41 % 40u * 1u + v39 % 3u * 1u - 1u;
let v44 = ((v40 * 24u + batch * 24u + v38) * 40u + min(v42, 39u)) * 40u + min(v43, 39u);
let v45 = b2[v44];
let v46 = select(0.0, v45, v42 < 40u && v43 < 40u);
let v47 = line + 2u;
let v48 = min(k, 215u);
let v49 = v48 / 9u;
let v50 = v48 % 9u;
let v51 = v47 / 1600u;
let v52 = v47 % 1600u;
let v53 = v52 / 40u * 1u + v50 / 3u * 1u - 1u;
let v54 = v52 % 40u * 1u + v50 % 3u * 1u - 1u;
let v55 = ((v51 * 24u + batch * 24u + v49) * 40u + min(v53, 39u)) * 40u + min(v54, 39u);
let v56 = b2[v55];
let v57 = select(0.0, v56, v53 < 40u && v54 < 40u);
let v58 = line + 3u;
let v59 = min(k, 215u);
let v60 = v59 / 9u;
let v61 = v59 % 9u;
let v62 = v58 / 1600u;
let v63 = v58 % 1600u;
let v64 = v63 / 40u * 1u + v61 / 3u * 1u - 1u;
let v65 = v63 % 40u * 1u + v61 % 3u * 1u - 1u;
let v66 = ((v62 * 24u + batch * 24u + v60) * 40u + min(v64, 39u)) * 40u + min(v65, 39u);
let v67 = b2[v66];
let v68 = select(0.0, v67, v64 < 40u && v65 < 40u);
return vec4<f16>(vec4<f32>(select(0.0, v35, k < 216u), select(0.0, v46, k < 216u), select(0.0, v57, k < 216u), select(0.0, v68, k < 216u)));
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
return (column / 1600u * 72u + batch * 72u + row) * 1600u + column % 1600u;
}
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
b0[i] = product;
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
if (row_0 < M && column_0 < N) {
    finish(part, element_number(batch, min(row_0, M - 1u), min(column_0, N - 1u)), sum_0);
}
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
if (row_0 < M && column_0 < N) {
    finish(part, element_number(batch, min(row_0, M - 1u), min(column_0, N - 1u)), sum_0);
}
    }
    workgroupBarrier();
}
