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
const M: u32 = 24u;
const N: u32 = 6400u;
const K: u32 = 648u;
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
const DOWN: u32 = 1u;
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
let v1 = min(line + 0u, 23u);
let v2 = min(k, 647u);
let v3 = v2 / 9u;
let v4 = v2 % 9u;
let v5 = ((batch * 72u + v3) * 24u + v1) * 9u + v4;
let v6 = b1[v5];
let v7 = min(line + 1u, 23u);
let v8 = min(k, 647u);
let v9 = v8 / 9u;
let v10 = v8 % 9u;
let v11 = ((batch * 72u + v9) * 24u + v7) * 9u + v10;
let v12 = b1[v11];
let v13 = min(line + 2u, 23u);
let v14 = min(k, 647u);
let v15 = v14 / 9u;
let v16 = v14 % 9u;
let v17 = ((batch * 72u + v15) * 24u + v13) * 9u + v16;
let v18 = b1[v17];
let v19 = min(line + 3u, 23u);
let v20 = min(k, 647u);
let v21 = v20 / 9u;
let v22 = v20 % 9u;
let v23 = ((batch * 72u + v21) * 24u + v19) * 9u + v22;
let v24 = b1[v23];
return vec4<f16>(vec4<f32>(select(0.0, v6, k < 648u), select(0.0, v12, k < 648u), select(0.0, v18, k < 648u), select(0.0, v24, k < 648u)));
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
let v25 = line + 0u;
let v26 = min(k, 647u);
let v27 = v26 / 9u;
let v28 = v26 % 9u;
let v29 = v25 / 1600u;
let v30 = v25 % 1600u;
let v31 = v30 / 40u + 1u - v28 / 3u * 1u;
let v32 = v31 / 1u;
let v33 = min(v32, 39u);
let v34 = v30 % 40u + 1u - v28 % 3u * 1u;
let v35 = v34 / 1u;
let v36 = min(v35, 39u);
let v37 = ((v29 * 72u + batch * 72u + v27) * 40u + v33) * 40u + v36;
let v38 = b2[v37];
let v39 = select(0.0, v38, v32 * 1u == v31 && v32 < 40u && v35 * 1u == v34 && v35 < 40u);
let v40 = line + 1u;
let v41 = min(k, 647u);
let v42 = v41 / 9u;
let v43 = v41 % 9u;
let v44 = v40 / 1600u;
let v45 = v40 % 1600u;
let v46 = v45 / 40u + 1u - v43 / 3u * 1u;
let v47 = v46 / 1u;
let v48 = min(v47, 39u);
let v49 = v45 % 40u + 1u - v43 % 3u * 1u;
let v50 = v49 / 1u;
let v51 = min(v50, 39u);
let v52 = ((v44 * 72u + batch * 72u + v42) * 40u + v48) * 40u + v51;
let v53 = b2[v52];
let v54 = select(0.0, v53, v47 * 1u == v46 && v47 < 40u && v50 * 1u == v49 && v50 < 40u);
let v55 = line + 2u;
let v56 = min(k, 647u);
let v57 = v56 / 9u;
let v58 = v56 % 9u;
let v59 = v55 / 1600u;
let v60 = v55 % 1600u;
let v61 = v60 / 40u + 1u - v58 / 3u * 1u;
let v62 = v61 / 1u;
let v63 = min(v62, 39u);
let v64 = v60 % 40u + 1u - v58 % 3u * 1u;
let v65 = v64 / 1u;
let v66 = min(v65, 39u);
let v67 = ((v59 * 72u + batch * 72u + v57) * 40u + v63) * 40u + v66;
let v68 = b2[v67];
let v69 = select(0.0, v68, v62 * 1u == v61 && v62 < 40u && v65 * 1u == v64 && v65 < 40u);
let v70 = line + 3u;
let v71 = min(k, 647u);
let v72 = v71 / 9u;
let v73 = v71 % 9u;
let v74 = v70 / 1600u;
let v75 = v70 % 1600u;
let v76 = v75 / 40u + 1u - v73 / 3u * 1u;
let v77 = v76 / 1u;
let v78 = min(v77, 39u);
let v79 = v75 % 40u + 1u - v73 % 3u * 1u;
let v80 = v79 / 1u;
let v81 = min(v80, 39u);
let v82 = ((v74 * 72u + batch * 72u + v72) * 40u + v78) * 40u + v81;
let v83 = b2[v82];
let v84 = select(0.0, v83, v77 * 1u == v76 && v77 < 40u && v80 * 1u == v79 && v80 < 40u);
return vec4<f16>(vec4<f32>(select(0.0, v39, k < 648u), select(0.0, v54, k < 648u), select(0.0, v69, k < 648u), select(0.0, v84, k < 648u)));
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
return (column / 1600u * 24u + batch * 24u + row) * 1600u + column % 1600u;
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

var a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, begin + 0u * STEP + (local + 0u * THREADS) / A_WIDTH);
var a_1_0 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, begin + 0u * STEP + (local + 1u * THREADS) / A_WIDTH);
var a_2_0 = load_a(batch, first_row + (local + 2u * THREADS) % A_WIDTH * 4u, begin + 0u * STEP + (local + 2u * THREADS) / A_WIDTH);
var a_3_0 = load_a(batch, first_row + (local + 3u * THREADS) % A_WIDTH * 4u, begin + 0u * STEP + (local + 3u * THREADS) / A_WIDTH);
var a_0_1 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, begin + 1u * STEP + (local + 0u * THREADS) / A_WIDTH);
var a_1_1 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, begin + 1u * STEP + (local + 1u * THREADS) / A_WIDTH);
var a_2_1 = load_a(batch, first_row + (local + 2u * THREADS) % A_WIDTH * 4u, begin + 1u * STEP + (local + 2u * THREADS) / A_WIDTH);
var a_3_1 = load_a(batch, first_row + (local + 3u * THREADS) % A_WIDTH * 4u, begin + 1u * STEP + (local + 3u * THREADS) / A_WIDTH);
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
a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, next_k + (local + 0u * THREADS) / A_WIDTH);
a_1_0 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, next_k + (local + 1u * THREADS) / A_WIDTH);
a_2_0 = load_a(batch, first_row + (local + 2u * THREADS) % A_WIDTH * 4u, next_k + (local + 2u * THREADS) / A_WIDTH);
a_3_0 = load_a(batch, first_row + (local + 3u * THREADS) % A_WIDTH * 4u, next_k + (local + 3u * THREADS) / A_WIDTH);
            b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
            b_1_0 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, next_k + (local + 1u * THREADS) / B_WIDTH);
            b_2_0 = load_b(batch, first_column + (local + 2u * THREADS) % B_WIDTH * 4u, next_k + (local + 2u * THREADS) / B_WIDTH);
            b_3_0 = load_b(batch, first_column + (local + 3u * THREADS) % B_WIDTH * 4u, next_k + (local + 3u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * TILE;
let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
let at_a_1 = depth * A_STRIDE + (sub_row + 1u * TILE) / 4u;
let a_1 = coopLoad<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 1u * TILE;
let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
let at_a_1 = depth * A_STRIDE + (sub_row + 1u * TILE) / 4u;
let a_1 = coopLoad<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 2u * TILE;
let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
let at_a_1 = depth * A_STRIDE + (sub_row + 1u * TILE) / 4u;
let a_1 = coopLoad<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 3u * TILE;
let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
let at_a_1 = depth * A_STRIDE + (sub_row + 1u * TILE) / 4u;
let a_1 = coopLoad<MatrixA>(&shared_a[at_a_1], A_STRIDE);
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
a_0_1 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, next_k + (local + 0u * THREADS) / A_WIDTH);
a_1_1 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, next_k + (local + 1u * THREADS) / A_WIDTH);
a_2_1 = load_a(batch, first_row + (local + 2u * THREADS) % A_WIDTH * 4u, next_k + (local + 2u * THREADS) / A_WIDTH);
a_3_1 = load_a(batch, first_row + (local + 3u * THREADS) % A_WIDTH * 4u, next_k + (local + 3u * THREADS) / A_WIDTH);
            b_0_1 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
            b_1_1 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, next_k + (local + 1u * THREADS) / B_WIDTH);
            b_2_1 = load_b(batch, first_column + (local + 2u * THREADS) % B_WIDTH * 4u, next_k + (local + 2u * THREADS) / B_WIDTH);
            b_3_1 = load_b(batch, first_column + (local + 3u * THREADS) % B_WIDTH * 4u, next_k + (local + 3u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * TILE;
let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
let at_a_1 = depth * A_STRIDE + (sub_row + 1u * TILE) / 4u;
let a_1 = coopLoad<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 1u * TILE;
let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
let at_a_1 = depth * A_STRIDE + (sub_row + 1u * TILE) / 4u;
let a_1 = coopLoad<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 2u * TILE;
let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
let at_a_1 = depth * A_STRIDE + (sub_row + 1u * TILE) / 4u;
let a_1 = coopLoad<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
        }
        {
            let depth = 3u * TILE;
let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
let at_a_1 = depth * A_STRIDE + (sub_row + 1u * TILE) / 4u;
let a_1 = coopLoad<MatrixA>(&shared_a[at_a_1], A_STRIDE);
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
