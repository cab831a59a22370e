enable wgpu_cooperative_matrix;
enable f16;
var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16,A>;
alias MatrixB = coop_mat16x16<f16,B>;
alias MatrixC = coop_mat16x16<f32,C>;
// The product. Whether neighbours in memory are neighbours along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 216u;
const N: u32 = 72u;
const K: u32 = 6400u;
// The schedule.
const TILE: u32 = 16u;
const SUBGROUP: u32 = 32u;
const ROWS: u32 = 32u;
const COLUMNS: u32 = 32u;
const STEP: u32 = 64u;
const SUB_ROWS: u32 = 16u;
const SUB_COLUMNS: u32 = 16u;
const DEPTHS: u32 = 2u;
const PREFETCH: u32 = 4u;
const PART_LENGTH: u32 = 640u;
const TOGETHER: u32 = 1u;
const ACROSS: u32 = 3u;
const DOWN: u32 = 7u;
const BESIDE: u32 = 2u;
const SUBGROUPS: u32 = 8u;
const THREADS: u32 = 256u;
// Vectors of a row of each piece in shared memory, and from one row to the next.
const A_WIDTH: u32 = 8u;
const B_WIDTH: u32 = 8u;
const A_STRIDE: u32 = 10u;
const B_STRIDE: u32 = 10u;
const A_VECTORS: u32 = 512u;
const B_VECTORS: u32 = 512u;
// Threads that bring a row of tiles to the epilogue, and what of it goes through shared memory together.
const ROW_THREADS: u32 = 64u;
const SLAB_COLUMNS: u32 = 16u;
const SLAB_TILES: u32 = 1u;
const SLAB: u32 = 256u;
var<workgroup> shared_a: array<Vector, A_VECTORS / A_WIDTH * A_STRIDE>;
var<workgroup> shared_b: array<Vector, B_VECTORS / B_WIDTH * B_STRIDE>;
var<workgroup> slab: array<f32, SLAB * SUBGROUPS>;
// Four elements of A, side by side in memory, from row `line` and term `k` on; zero from K on.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    let v1 = min(line, 212u);
    let v2 = k;
    let kernel_v3 = v1 / INPUTS;
    let image_v3 = v2 / (OUTPUT_H * OUTPUT_W);
    let row_v3 = v2 / OUTPUT_W % OUTPUT_H;
    let column_v3 = v2 % OUTPUT_W;
    let ih_v3 = row_v3 * STRIDE_H + kernel_v3 / KERNEL_W * DILATION_H - PADDING_H;
    let iw_v3 = column_v3 * STRIDE_W + kernel_v3 % KERNEL_W * DILATION_W - PADDING_W;
    let inside_v3 = ih_v3 < INPUT_H && iw_v3 < INPUT_W;
    let place_v3 = (image_v3 * INPUT_H + min(ih_v3, max(INPUT_H, 1u) - 1u)) * INPUT_W + min(iw_v3, max(INPUT_W, 1u) - 1u);
    let v4 = place_v3 * INPUTS + v1 % INPUTS;
    return select(vec4<f16>(), vec4<f16>(b1[(v4) / 4u]), inside_v3);
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v5 = min(line, 68u);
    let v6 = k;
    let v8 = v6 * OUTPUTS + v5;
    return vec4<f16>(b2[(v8) / 4u]);
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[part * 15552u + i] = product;
}
// The element `e` of a slab, a sum over the subgroups that share steps.
fn slab_sum(sub_block: u32, e: u32) -> f32 {
    return (slab[(sub_block * 2u + 0u) * 256u + e] + slab[(sub_block * 2u + 1u) * 256u + e]);
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
    var begin = 0u;
    var terms = K;
    begin = part * PART_LENGTH;
    terms = PART_LENGTH;
    var a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, begin + 0u * STEP + (local + 0u * THREADS) / A_WIDTH);
    var a_1_0 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, begin + 0u * STEP + (local + 1u * THREADS) / A_WIDTH);
    var a_0_1 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, begin + 1u * STEP + (local + 0u * THREADS) / A_WIDTH);
    var a_1_1 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, begin + 1u * STEP + (local + 1u * THREADS) / A_WIDTH);
    var a_0_2 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, begin + 2u * STEP + (local + 0u * THREADS) / A_WIDTH);
    var a_1_2 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, begin + 2u * STEP + (local + 1u * THREADS) / A_WIDTH);
    var a_0_3 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, begin + 3u * STEP + (local + 0u * THREADS) / A_WIDTH);
    var a_1_3 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, begin + 3u * STEP + (local + 1u * THREADS) / A_WIDTH);
    var b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, begin + 0u * STEP + (local + 0u * THREADS) / B_WIDTH);
    var b_1_0 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, begin + 0u * STEP + (local + 1u * THREADS) / B_WIDTH);
    var b_0_1 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, begin + 1u * STEP + (local + 0u * THREADS) / B_WIDTH);
    var b_1_1 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, begin + 1u * STEP + (local + 1u * THREADS) / B_WIDTH);
    var b_0_2 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, begin + 2u * STEP + (local + 0u * THREADS) / B_WIDTH);
    var b_1_2 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, begin + 2u * STEP + (local + 1u * THREADS) / B_WIDTH);
    var b_0_3 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, begin + 3u * STEP + (local + 0u * THREADS) / B_WIDTH);
    var b_1_3 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, begin + 3u * STEP + (local + 1u * THREADS) / B_WIDTH);
    var done = 0u;
    loop {
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_0;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_0;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_0;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_0;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, next_k + (local + 0u * THREADS) / A_WIDTH);
            a_1_0 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, next_k + (local + 1u * THREADS) / A_WIDTH);
            b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
            b_1_0 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, next_k + (local + 1u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
            let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        {
            let depth = 1u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
            let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_1;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_1;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_1;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_1;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_1 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, next_k + (local + 0u * THREADS) / A_WIDTH);
            a_1_1 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, next_k + (local + 1u * THREADS) / A_WIDTH);
            b_0_1 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
            b_1_1 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, next_k + (local + 1u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
            let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        {
            let depth = 1u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
            let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_2;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_2;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_2;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_2;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_2 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, next_k + (local + 0u * THREADS) / A_WIDTH);
            a_1_2 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, next_k + (local + 1u * THREADS) / A_WIDTH);
            b_0_2 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
            b_1_2 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, next_k + (local + 1u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
            let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        {
            let depth = 1u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
            let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_3;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_3;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_3;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_3;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_3 = load_a(batch, first_row + (local + 0u * THREADS) % A_WIDTH * 4u, next_k + (local + 0u * THREADS) / A_WIDTH);
            a_1_3 = load_a(batch, first_row + (local + 1u * THREADS) % A_WIDTH * 4u, next_k + (local + 1u * THREADS) / A_WIDTH);
            b_0_3 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
            b_1_3 = load_b(batch, first_column + (local + 1u * THREADS) % B_WIDTH * 4u, next_k + (local + 1u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
            let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        {
            let depth = 1u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = depth * A_STRIDE + (sub_row + 0u * TILE) / 4u;
            let a_0 = coopLoad<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
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
}
const INPUTS: u32 = 24u;
const OUTPUTS: u32 = 72u;
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
