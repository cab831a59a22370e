var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<f32>;
// Matrix product in f32, by tiles in shared memory: out[batch, M, N] = epilogue(A[batch, M, K] B[batch, K, N]).
//
// A workgroup of SIDE by SIDE threads computes a block of SIDE * EACH rows and columns, every thread EACH by EACH elements of it
// in registers. It goes over K in steps: a piece of both operands is copied to shared memory, from where each thread reads
// vectors of WIDTH lines, the next piece being loaded into registers meanwhile. Two barriers a step. Where there are few blocks,
// K is cut into PARTS (split-K), whose sums split_k_join.wgsl adds up.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/conv2d.
// Neighbouring lines of an operand: f32, vec2<f32> or vec4<f32>.
alias Vector = vec4<f32>;
// The product. Whether neighbours in memory are neighbours along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 72u;
const N: u32 = 6400u;
const K: u32 = 216u;
const A_ALONG_K: bool = true;
const B_ALONG_K: bool = false;
const SIDE: u32 = 16u;
const STEP: u32 = 16u;
const THREADS: u32 = 256u;
const BLOCK: u32 = 64u;
const WIDTH: u32 = 4u;
const ACROSS: u32 = 100u;
const DOWN: u32 = 2u;
var<workgroup> shared_a: array<Vector, BLOCK / WIDTH * STEP>;
var<workgroup> shared_b: array<Vector, BLOCK / WIDTH * STEP>;
// WIDTH elements of A, side by side in memory, from row `line` and term `k` on; zero from K on, where nothing may come in, not
// even NaN.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    let v1 = min(line, 71u);
    let v2 = min(k, 212u);
    let v4 = (batch * GROUP_OUTPUTS + v1) * (GROUP_INPUTS * KERNEL) + v2;
    return select(vec4<f32>(), b1[(v4) / 4u], k < 216u);
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v5 = min(k, 215u);
    let image_v6 = line / OUTPUT;
    let row_v6 = line % OUTPUT / OUTPUT_W;
    let column_v6 = line % OUTPUT_W;
    let v7 = min(image_v6, 3u);
    let kernel_v8 = v5 % KERNEL;
    let ih_v8 = row_v6 * STRIDE_H + kernel_v8 / KERNEL_W * DILATION_H - PADDING_H;
    let iw_v8 = column_v6 * STRIDE_W + kernel_v8 % KERNEL_W * DILATION_W - PADDING_W;
    let inside_v8 = ih_v8 < INPUT_H && iw_v8 < INPUT_W;
    let channel_v8 = v7 * INPUTS + batch * GROUP_INPUTS + v5 / KERNEL;
    let v9 = (channel_v8 * INPUT_H + min(ih_v8, max(INPUT_H, 1u) - 1u)) * INPUT_W + min(iw_v8, max(INPUT_W, 1u) - 1u);
    let v10 = b2[v9];
    let v11 = select(0.0, v10, inside_v8);
    let wraps_v12 = OUTPUT_W % 4u != 0u && column_v6 + 1u == OUTPUT_W;
    let leaves_v12 = wraps_v12 && row_v6 + 1u == OUTPUT_H;
    let next_column_v12 = select(column_v6 + 1u, 0u, wraps_v12);
    let next_row_v12 = select(select(row_v6, row_v6 + 1u, wraps_v12), 0u, leaves_v12);
    let next_image_v12 = min(select(v7, v7 + 1u, leaves_v12), max(IMAGES, 1u) - 1u);
    let kernel_v13 = v5 % KERNEL;
    let ih_v13 = next_row_v12 * STRIDE_H + kernel_v13 / KERNEL_W * DILATION_H - PADDING_H;
    let iw_v13 = next_column_v12 * STRIDE_W + kernel_v13 % KERNEL_W * DILATION_W - PADDING_W;
    let inside_v13 = ih_v13 < INPUT_H && iw_v13 < INPUT_W;
    let channel_v13 = next_image_v12 * INPUTS + batch * GROUP_INPUTS + v5 / KERNEL;
    let v14 = (channel_v13 * INPUT_H + min(ih_v13, max(INPUT_H, 1u) - 1u)) * INPUT_W + min(iw_v13, max(INPUT_W, 1u) - 1u);
    let v15 = b2[v14];
    let v16 = select(0.0, v15, inside_v13);
    let wraps_v17 = OUTPUT_W % 4u != 0u && next_column_v12 + 1u == OUTPUT_W;
    let leaves_v17 = wraps_v17 && next_row_v12 + 1u == OUTPUT_H;
    let next_column_v17 = select(next_column_v12 + 1u, 0u, wraps_v17);
    let next_row_v17 = select(select(next_row_v12, next_row_v12 + 1u, wraps_v17), 0u, leaves_v17);
    let next_image_v17 = min(select(next_image_v12, next_image_v12 + 1u, leaves_v17), max(IMAGES, 1u) - 1u);
    let kernel_v18 = v5 % KERNEL;
    let ih_v18 = next_row_v17 * STRIDE_H + kernel_v18 / KERNEL_W * DILATION_H - PADDING_H;
    let iw_v18 = next_column_v17 * STRIDE_W + kernel_v18 % KERNEL_W * DILATION_W - PADDING_W;
    let inside_v18 = ih_v18 < INPUT_H && iw_v18 < INPUT_W;
    let channel_v18 = next_image_v17 * INPUTS + batch * GROUP_INPUTS + v5 / KERNEL;
    let v19 = (channel_v18 * INPUT_H + min(ih_v18, max(INPUT_H, 1u) - 1u)) * INPUT_W + min(iw_v18, max(INPUT_W, 1u) - 1u);
    let v20 = b2[v19];
    let v21 = select(0.0, v20, inside_v18);
    let wraps_v22 = OUTPUT_W % 4u != 0u && next_column_v17 + 1u == OUTPUT_W;
    let leaves_v22 = wraps_v22 && next_row_v17 + 1u == OUTPUT_H;
    let next_column_v22 = select(next_column_v17 + 1u, 0u, wraps_v22);
    let next_row_v22 = select(select(next_row_v17, next_row_v17 + 1u, wraps_v22), 0u, leaves_v22);
    let next_image_v22 = min(select(next_image_v17, next_image_v17 + 1u, leaves_v22), max(IMAGES, 1u) - 1u);
    let kernel_v23 = v5 % KERNEL;
    let ih_v23 = next_row_v22 * STRIDE_H + kernel_v23 / KERNEL_W * DILATION_H - PADDING_H;
    let iw_v23 = next_column_v22 * STRIDE_W + kernel_v23 % KERNEL_W * DILATION_W - PADDING_W;
    let inside_v23 = ih_v23 < INPUT_H && iw_v23 < INPUT_W;
    let channel_v23 = next_image_v22 * INPUTS + batch * GROUP_INPUTS + v5 / KERNEL;
    let v24 = (channel_v23 * INPUT_H + min(ih_v23, max(INPUT_H, 1u) - 1u)) * INPUT_W + min(iw_v23, max(INPUT_W, 1u) - 1u);
    let v25 = b2[v24];
    let v26 = select(0.0, v25, inside_v23);
    return vec4<f32>(select(0.0, v11, k + 0u < 216u), select(0.0, v16, k + 0u < 216u), select(0.0, v21, k + 0u < 216u), select(0.0, v26, k + 0u < 216u));
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (column / OUTPUT * OUTPUTS + batch * GROUP_OUTPUTS + row) * OUTPUT + column % OUTPUT;
}
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
fn finish_within(part: u32, batch: u32, row: u32, column: u32, sum: f32) {
    if (row < M && column < N) {
        finish(part, element_number(batch, min(row, M - 1u), min(column, N - 1u)), sum);
    }
}
// The first line, and the first term, of a thread's vector `number` within a piece.
fn line_of(number: u32, along_k: bool) -> u32 {
    return select(number % (BLOCK / WIDTH) * WIDTH, number / (STEP / WIDTH), along_k);
}
fn depth_of(number: u32, along_k: bool) -> u32 {
    return select(number / (BLOCK / WIDTH), number % (STEP / WIDTH) * WIDTH, along_k);
}
// Where shared memory has a line at a depth. Vectors are shuffled from depth to depth, so that threads that store one line at
// several depths do not wait for the same bank.
fn location_of(depth: u32, line: u32) -> u32 {
    return depth * (BLOCK / WIDTH) + (line / WIDTH ^ depth % 8u);
}
// Line `number` of a thread within the block: its lines lie together in vectors.
fn own_line(thread: u32, number: u32) -> u32 {
    return thread * WIDTH + (number / WIDTH * SIDE * WIDTH + number % WIDTH);
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_column = group_number % ACROSS * BLOCK;
    let first_row = group_number / ACROSS % DOWN * BLOCK;
    let batch = group_number / (ACROSS * DOWN) % BATCH;
    let part = group_number / (ACROSS * DOWN * BATCH);
    let y = local / SIDE;
    let x = local % SIDE;
    var sum_0_0 = 0.0;
    var sum_0_1 = 0.0;
    var sum_0_2 = 0.0;
    var sum_0_3 = 0.0;
    var sum_1_0 = 0.0;
    var sum_1_1 = 0.0;
    var sum_1_2 = 0.0;
    var sum_1_3 = 0.0;
    var sum_2_0 = 0.0;
    var sum_2_1 = 0.0;
    var sum_2_2 = 0.0;
    var sum_2_3 = 0.0;
    var sum_3_0 = 0.0;
    var sum_3_1 = 0.0;
    var sum_3_2 = 0.0;
    var sum_3_3 = 0.0;
    var begin = 0u;
    var terms = K;
    var a_0 = load_a(batch, first_row + line_of(local + 0u * THREADS, A_ALONG_K), begin + depth_of(local + 0u * THREADS, A_ALONG_K));
    var b_0 = load_b(batch, first_column + line_of(local + 0u * THREADS, B_ALONG_K), begin + depth_of(local + 0u * THREADS, B_ALONG_K));
    var done = 0u;
    loop {
        {
            let line = line_of(local + 0u * THREADS, A_ALONG_K);
            let depth = depth_of(local + 0u * THREADS, A_ALONG_K);
            shared_a[location_of(depth + 0u, line)][line % WIDTH] = a_0[0u];
            shared_a[location_of(depth + 1u, line)][line % WIDTH] = a_0[1u];
            shared_a[location_of(depth + 2u, line)][line % WIDTH] = a_0[2u];
            shared_a[location_of(depth + 3u, line)][line % WIDTH] = a_0[3u];
        }
        {
            let line = line_of(local + 0u * THREADS, B_ALONG_K);
            let depth = depth_of(local + 0u * THREADS, B_ALONG_K);
            shared_b[location_of(depth, line)] = b_0;
        }
        workgroupBarrier();
        let next = done + STEP;
        if (next < terms) {
            let next_k = begin + next;
            a_0 = load_a(batch, first_row + line_of(local + 0u * THREADS, A_ALONG_K), next_k + depth_of(local + 0u * THREADS, A_ALONG_K));
            b_0 = load_b(batch, first_column + line_of(local + 0u * THREADS, B_ALONG_K), next_k + depth_of(local + 0u * THREADS, B_ALONG_K));
        }
        for (var d = 0u; d < STEP; d += 1u) {
            let own_a_0 = shared_a[location_of(d, own_line(y, 0u * WIDTH))];
            let own_b_0 = shared_b[location_of(d, own_line(x, 0u * WIDTH))];
            sum_0_0 = fma(own_a_0[0u % WIDTH], own_b_0[0u % WIDTH], sum_0_0);
            sum_0_1 = fma(own_a_0[0u % WIDTH], own_b_0[1u % WIDTH], sum_0_1);
            sum_0_2 = fma(own_a_0[0u % WIDTH], own_b_0[2u % WIDTH], sum_0_2);
            sum_0_3 = fma(own_a_0[0u % WIDTH], own_b_0[3u % WIDTH], sum_0_3);
            sum_1_0 = fma(own_a_0[1u % WIDTH], own_b_0[0u % WIDTH], sum_1_0);
            sum_1_1 = fma(own_a_0[1u % WIDTH], own_b_0[1u % WIDTH], sum_1_1);
            sum_1_2 = fma(own_a_0[1u % WIDTH], own_b_0[2u % WIDTH], sum_1_2);
            sum_1_3 = fma(own_a_0[1u % WIDTH], own_b_0[3u % WIDTH], sum_1_3);
            sum_2_0 = fma(own_a_0[2u % WIDTH], own_b_0[0u % WIDTH], sum_2_0);
            sum_2_1 = fma(own_a_0[2u % WIDTH], own_b_0[1u % WIDTH], sum_2_1);
            sum_2_2 = fma(own_a_0[2u % WIDTH], own_b_0[2u % WIDTH], sum_2_2);
            sum_2_3 = fma(own_a_0[2u % WIDTH], own_b_0[3u % WIDTH], sum_2_3);
            sum_3_0 = fma(own_a_0[3u % WIDTH], own_b_0[0u % WIDTH], sum_3_0);
            sum_3_1 = fma(own_a_0[3u % WIDTH], own_b_0[1u % WIDTH], sum_3_1);
            sum_3_2 = fma(own_a_0[3u % WIDTH], own_b_0[2u % WIDTH], sum_3_2);
            sum_3_3 = fma(own_a_0[3u % WIDTH], own_b_0[3u % WIDTH], sum_3_3);
        }
        workgroupBarrier();
        done = next;
        if (done >= terms) {
            break;
        }
    }
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 0u), sum_0_0);
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 1u), sum_0_1);
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 2u), sum_0_2);
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 3u), sum_0_3);
    finish_within(part, batch, first_row + own_line(y, 1u), first_column + own_line(x, 0u), sum_1_0);
    finish_within(part, batch, first_row + own_line(y, 1u), first_column + own_line(x, 1u), sum_1_1);
    finish_within(part, batch, first_row + own_line(y, 1u), first_column + own_line(x, 2u), sum_1_2);
    finish_within(part, batch, first_row + own_line(y, 1u), first_column + own_line(x, 3u), sum_1_3);
    finish_within(part, batch, first_row + own_line(y, 2u), first_column + own_line(x, 0u), sum_2_0);
    finish_within(part, batch, first_row + own_line(y, 2u), first_column + own_line(x, 1u), sum_2_1);
    finish_within(part, batch, first_row + own_line(y, 2u), first_column + own_line(x, 2u), sum_2_2);
    finish_within(part, batch, first_row + own_line(y, 2u), first_column + own_line(x, 3u), sum_2_3);
    finish_within(part, batch, first_row + own_line(y, 3u), first_column + own_line(x, 0u), sum_3_0);
    finish_within(part, batch, first_row + own_line(y, 3u), first_column + own_line(x, 1u), sum_3_1);
    finish_within(part, batch, first_row + own_line(y, 3u), first_column + own_line(x, 2u), sum_3_2);
    finish_within(part, batch, first_row + own_line(y, 3u), first_column + own_line(x, 3u), sum_3_3);
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
const OUTPUT: u32 = 1600u;
const KERNEL: u32 = 9u;
