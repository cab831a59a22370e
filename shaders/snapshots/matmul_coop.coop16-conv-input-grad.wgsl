enable wgpu_cooperative_matrix;
enable f16;
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
    let v1 = min(k, 647u);
    let v2 = min(line + 0u, 23u);
    let v3 = min(k, 647u);
    let v5 = ((batch * GROUP_OUTPUTS + v3 / KERNEL) * GROUP_INPUTS + v2) * KERNEL + v3 % KERNEL;
    let v6 = b1[v5];
    let v7 = min(line + 1u, 23u);
    let v8 = min(k, 647u);
    let v10 = ((batch * GROUP_OUTPUTS + v8 / KERNEL) * GROUP_INPUTS + v7) * KERNEL + v8 % KERNEL;
    let v11 = b1[v10];
    let v12 = min(line + 2u, 23u);
    let v13 = min(k, 647u);
    let v15 = ((batch * GROUP_OUTPUTS + v13 / KERNEL) * GROUP_INPUTS + v12) * KERNEL + v13 % KERNEL;
    let v16 = b1[v15];
    let v17 = min(line + 3u, 23u);
    let v18 = min(k, 647u);
    let v20 = ((batch * GROUP_OUTPUTS + v18 / KERNEL) * GROUP_INPUTS + v17) * KERNEL + v18 % KERNEL;
    let v21 = b1[v20];
    return vec4<f16>(vec4<f32>(select(0.0, v6, k < 648u), select(0.0, v11, k < 648u), select(0.0, v16, k < 648u), select(0.0, v21, k < 648u)));
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v22 = min(k, 647u);
    let image_v23 = line / INPUT;
    let row_v23 = line % INPUT / INPUT_W;
    let column_v23 = line % INPUT_W;
    let v24 = min(image_v23, 3u);
    let kernel_v25 = v22 % KERNEL;
    let distance_h_v25 = row_v23 + PADDING_H - kernel_v25 / KERNEL_W * DILATION_H;
    let distance_w_v25 = column_v23 + PADDING_W - kernel_v25 % KERNEL_W * DILATION_W;
    let oh_v25 = distance_h_v25 / STRIDE_H;
    let ow_v25 = distance_w_v25 / STRIDE_W;
    let inside_v25 = oh_v25 * STRIDE_H == distance_h_v25 && oh_v25 < OUTPUT_H && ow_v25 * STRIDE_W == distance_w_v25 && ow_v25 < OUTPUT_W;
    let channel_v25 = v24 * OUTPUTS + batch * GROUP_OUTPUTS + v22 / KERNEL;
    let v26 = (channel_v25 * OUTPUT_H + min(oh_v25, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow_v25, max(OUTPUT_W, 1u) - 1u);
    let v27 = b2[v26];
    let v28 = select(0.0, v27, inside_v25);
    let wraps_v29 = INPUT_W % 4u != 0u && column_v23 + 1u == INPUT_W;
    let leaves_v29 = wraps_v29 && row_v23 + 1u == INPUT_H;
    let next_column_v29 = select(column_v23 + 1u, 0u, wraps_v29);
    let next_row_v29 = select(select(row_v23, row_v23 + 1u, wraps_v29), 0u, leaves_v29);
    let next_image_v29 = min(select(v24, v24 + 1u, leaves_v29), max(IMAGES, 1u) - 1u);
    let kernel_v30 = v22 % KERNEL;
    let distance_h_v30 = next_row_v29 + PADDING_H - kernel_v30 / KERNEL_W * DILATION_H;
    let distance_w_v30 = next_column_v29 + PADDING_W - kernel_v30 % KERNEL_W * DILATION_W;
    let oh_v30 = distance_h_v30 / STRIDE_H;
    let ow_v30 = distance_w_v30 / STRIDE_W;
    let inside_v30 = oh_v30 * STRIDE_H == distance_h_v30 && oh_v30 < OUTPUT_H && ow_v30 * STRIDE_W == distance_w_v30 && ow_v30 < OUTPUT_W;
    let channel_v30 = next_image_v29 * OUTPUTS + batch * GROUP_OUTPUTS + v22 / KERNEL;
    let v31 = (channel_v30 * OUTPUT_H + min(oh_v30, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow_v30, max(OUTPUT_W, 1u) - 1u);
    let v32 = b2[v31];
    let v33 = select(0.0, v32, inside_v30);
    let wraps_v34 = INPUT_W % 4u != 0u && next_column_v29 + 1u == INPUT_W;
    let leaves_v34 = wraps_v34 && next_row_v29 + 1u == INPUT_H;
    let next_column_v34 = select(next_column_v29 + 1u, 0u, wraps_v34);
    let next_row_v34 = select(select(next_row_v29, next_row_v29 + 1u, wraps_v34), 0u, leaves_v34);
    let next_image_v34 = min(select(next_image_v29, next_image_v29 + 1u, leaves_v34), max(IMAGES, 1u) - 1u);
    let kernel_v35 = v22 % KERNEL;
    let distance_h_v35 = next_row_v34 + PADDING_H - kernel_v35 / KERNEL_W * DILATION_H;
    let distance_w_v35 = next_column_v34 + PADDING_W - kernel_v35 % KERNEL_W * DILATION_W;
    let oh_v35 = distance_h_v35 / STRIDE_H;
    let ow_v35 = distance_w_v35 / STRIDE_W;
    let inside_v35 = oh_v35 * STRIDE_H == distance_h_v35 && oh_v35 < OUTPUT_H && ow_v35 * STRIDE_W == distance_w_v35 && ow_v35 < OUTPUT_W;
    let channel_v35 = next_image_v34 * OUTPUTS + batch * GROUP_OUTPUTS + v22 / KERNEL;
    let v36 = (channel_v35 * OUTPUT_H + min(oh_v35, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow_v35, max(OUTPUT_W, 1u) - 1u);
    let v37 = b2[v36];
    let v38 = select(0.0, v37, inside_v35);
    let wraps_v39 = INPUT_W % 4u != 0u && next_column_v34 + 1u == INPUT_W;
    let leaves_v39 = wraps_v39 && next_row_v34 + 1u == INPUT_H;
    let next_column_v39 = select(next_column_v34 + 1u, 0u, wraps_v39);
    let next_row_v39 = select(select(next_row_v34, next_row_v34 + 1u, wraps_v39), 0u, leaves_v39);
    let next_image_v39 = min(select(next_image_v34, next_image_v34 + 1u, leaves_v39), max(IMAGES, 1u) - 1u);
    let kernel_v40 = v22 % KERNEL;
    let distance_h_v40 = next_row_v39 + PADDING_H - kernel_v40 / KERNEL_W * DILATION_H;
    let distance_w_v40 = next_column_v39 + PADDING_W - kernel_v40 % KERNEL_W * DILATION_W;
    let oh_v40 = distance_h_v40 / STRIDE_H;
    let ow_v40 = distance_w_v40 / STRIDE_W;
    let inside_v40 = oh_v40 * STRIDE_H == distance_h_v40 && oh_v40 < OUTPUT_H && ow_v40 * STRIDE_W == distance_w_v40 && ow_v40 < OUTPUT_W;
    let channel_v40 = next_image_v39 * OUTPUTS + batch * GROUP_OUTPUTS + v22 / KERNEL;
    let v41 = (channel_v40 * OUTPUT_H + min(oh_v40, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow_v40, max(OUTPUT_W, 1u) - 1u);
    let v42 = b2[v41];
    let v43 = select(0.0, v42, inside_v40);
    return vec4<f16>(vec4<f32>(select(0.0, v28, k < 648u), select(0.0, v33, k < 648u), select(0.0, v38, k < 648u), select(0.0, v43, k < 648u)));
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (column / INPUT * INPUTS + batch * GROUP_INPUTS + row) * INPUT + column % INPUT;
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
const IMAGES: u32 = 4u;
const INPUTS: u32 = 24u;
const OUTPUTS: u32 = 72u;
const GROUP_INPUTS: u32 = 24u;
const GROUP_OUTPUTS: u32 = 72u;
const INPUT_H: u32 = 40u;
const INPUT_W: u32 = 40u;
const OUTPUT_H: u32 = 40u;
const OUTPUT_W: u32 = 40u;
const KERNEL_W: u32 = 3u;
const STRIDE_H: u32 = 1u;
const STRIDE_W: u32 = 1u;
const DILATION_H: u32 = 1u;
const DILATION_W: u32 = 1u;
const PADDING_H: u32 = 1u;
const PADDING_W: u32 = 1u;
const INPUT: u32 = 1600u;
const KERNEL: u32 = 9u;
