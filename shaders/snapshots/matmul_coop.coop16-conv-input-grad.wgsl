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
    let v1 = min(line + 0u, 23u);
    let v2 = min(k, 647u);
    let v4 = ((batch * GROUP_OUTPUTS + v2 / KERNEL) * GROUP_INPUTS + v1) * KERNEL + v2 % KERNEL;
    let v5 = b1[v4];
    let v6 = min(line + 1u, 23u);
    let v7 = min(k, 647u);
    let v9 = ((batch * GROUP_OUTPUTS + v7 / KERNEL) * GROUP_INPUTS + v6) * KERNEL + v7 % KERNEL;
    let v10 = b1[v9];
    let v11 = min(line + 2u, 23u);
    let v12 = min(k, 647u);
    let v14 = ((batch * GROUP_OUTPUTS + v12 / KERNEL) * GROUP_INPUTS + v11) * KERNEL + v12 % KERNEL;
    let v15 = b1[v14];
    let v16 = min(line + 3u, 23u);
    let v17 = min(k, 647u);
    let v19 = ((batch * GROUP_OUTPUTS + v17 / KERNEL) * GROUP_INPUTS + v16) * KERNEL + v17 % KERNEL;
    let v20 = b1[v19];
    return vec4<f16>(vec4<f32>(select(0.0, v5, k < 648u), select(0.0, v10, k < 648u), select(0.0, v15, k < 648u), select(0.0, v20, k < 648u)));
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v21 = min(k, 647u);
    let image_v22 = line / INPUT;
    let row_v22 = line % INPUT / INPUT_W;
    let column_v22 = line % INPUT_W;
    let v23 = min(image_v22, 3u);
    let kernel_v24 = v21 % KERNEL;
    let distance_h_v24 = row_v22 + PADDING_H - kernel_v24 / KERNEL_W * DILATION_H;
    let distance_w_v24 = column_v22 + PADDING_W - kernel_v24 % KERNEL_W * DILATION_W;
    let oh_v24 = distance_h_v24 / STRIDE_H;
    let ow_v24 = distance_w_v24 / STRIDE_W;
    let inside_v24 = oh_v24 * STRIDE_H == distance_h_v24 && oh_v24 < OUTPUT_H && ow_v24 * STRIDE_W == distance_w_v24 && ow_v24 < OUTPUT_W;
    let channel_v24 = v23 * OUTPUTS + batch * GROUP_OUTPUTS + v21 / KERNEL;
    let v25 = (channel_v24 * OUTPUT_H + min(oh_v24, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow_v24, max(OUTPUT_W, 1u) - 1u);
    let v26 = b2[v25];
    let v27 = select(0.0, v26, inside_v24);
    let wraps_v28 = INPUT_W % 4u != 0u && column_v22 + 1u == INPUT_W;
    let leaves_v28 = wraps_v28 && row_v22 + 1u == INPUT_H;
    let next_column_v28 = select(column_v22 + 1u, 0u, wraps_v28);
    let next_row_v28 = select(select(row_v22, row_v22 + 1u, wraps_v28), 0u, leaves_v28);
    let next_image_v28 = min(select(v23, v23 + 1u, leaves_v28), max(IMAGES, 1u) - 1u);
    let kernel_v29 = v21 % KERNEL;
    let distance_h_v29 = next_row_v28 + PADDING_H - kernel_v29 / KERNEL_W * DILATION_H;
    let distance_w_v29 = next_column_v28 + PADDING_W - kernel_v29 % KERNEL_W * DILATION_W;
    let oh_v29 = distance_h_v29 / STRIDE_H;
    let ow_v29 = distance_w_v29 / STRIDE_W;
    let inside_v29 = oh_v29 * STRIDE_H == distance_h_v29 && oh_v29 < OUTPUT_H && ow_v29 * STRIDE_W == distance_w_v29 && ow_v29 < OUTPUT_W;
    let channel_v29 = next_image_v28 * OUTPUTS + batch * GROUP_OUTPUTS + v21 / KERNEL;
    let v30 = (channel_v29 * OUTPUT_H + min(oh_v29, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow_v29, max(OUTPUT_W, 1u) - 1u);
    let v31 = b2[v30];
    let v32 = select(0.0, v31, inside_v29);
    let wraps_v33 = INPUT_W % 4u != 0u && next_column_v28 + 1u == INPUT_W;
    let leaves_v33 = wraps_v33 && next_row_v28 + 1u == INPUT_H;
    let next_column_v33 = select(next_column_v28 + 1u, 0u, wraps_v33);
    let next_row_v33 = select(select(next_row_v28, next_row_v28 + 1u, wraps_v33), 0u, leaves_v33);
    let next_image_v33 = min(select(next_image_v28, next_image_v28 + 1u, leaves_v33), max(IMAGES, 1u) - 1u);
    let kernel_v34 = v21 % KERNEL;
    let distance_h_v34 = next_row_v33 + PADDING_H - kernel_v34 / KERNEL_W * DILATION_H;
    let distance_w_v34 = next_column_v33 + PADDING_W - kernel_v34 % KERNEL_W * DILATION_W;
    let oh_v34 = distance_h_v34 / STRIDE_H;
    let ow_v34 = distance_w_v34 / STRIDE_W;
    let inside_v34 = oh_v34 * STRIDE_H == distance_h_v34 && oh_v34 < OUTPUT_H && ow_v34 * STRIDE_W == distance_w_v34 && ow_v34 < OUTPUT_W;
    let channel_v34 = next_image_v33 * OUTPUTS + batch * GROUP_OUTPUTS + v21 / KERNEL;
    let v35 = (channel_v34 * OUTPUT_H + min(oh_v34, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow_v34, max(OUTPUT_W, 1u) - 1u);
    let v36 = b2[v35];
    let v37 = select(0.0, v36, inside_v34);
    let wraps_v38 = INPUT_W % 4u != 0u && next_column_v33 + 1u == INPUT_W;
    let leaves_v38 = wraps_v38 && next_row_v33 + 1u == INPUT_H;
    let next_column_v38 = select(next_column_v33 + 1u, 0u, wraps_v38);
    let next_row_v38 = select(select(next_row_v33, next_row_v33 + 1u, wraps_v38), 0u, leaves_v38);
    let next_image_v38 = min(select(next_image_v33, next_image_v33 + 1u, leaves_v38), max(IMAGES, 1u) - 1u);
    let kernel_v39 = v21 % KERNEL;
    let distance_h_v39 = next_row_v38 + PADDING_H - kernel_v39 / KERNEL_W * DILATION_H;
    let distance_w_v39 = next_column_v38 + PADDING_W - kernel_v39 % KERNEL_W * DILATION_W;
    let oh_v39 = distance_h_v39 / STRIDE_H;
    let ow_v39 = distance_w_v39 / STRIDE_W;
    let inside_v39 = oh_v39 * STRIDE_H == distance_h_v39 && oh_v39 < OUTPUT_H && ow_v39 * STRIDE_W == distance_w_v39 && ow_v39 < OUTPUT_W;
    let channel_v39 = next_image_v38 * OUTPUTS + batch * GROUP_OUTPUTS + v21 / KERNEL;
    let v40 = (channel_v39 * OUTPUT_H + min(oh_v39, max(OUTPUT_H, 1u) - 1u)) * OUTPUT_W + min(ow_v39, max(OUTPUT_W, 1u) - 1u);
    let v41 = b2[v40];
    let v42 = select(0.0, v41, inside_v39);
    return vec4<f16>(vec4<f32>(select(0.0, v27, k < 648u), select(0.0, v32, k < 648u), select(0.0, v37, k < 648u), select(0.0, v42, k < 648u)));
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
