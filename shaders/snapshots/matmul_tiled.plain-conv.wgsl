var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<f32>;
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
let v1 = min(line + 0u, 71u);
let v2 = min(k + 0u, 215u);
let v3 = v2 / 9u;
let v4 = v2 % 9u;
let v5 = ((batch * 72u + v1) * 24u + v3) * 9u + v4;
let v6 = b1[v5];
let v7 = min(line + 0u, 71u);
let v8 = min(k + 1u, 215u);
let v9 = v8 / 9u;
let v10 = v8 % 9u;
let v11 = ((batch * 72u + v7) * 24u + v9) * 9u + v10;
let v12 = b1[v11];
let v13 = min(line + 0u, 71u);
let v14 = min(k + 2u, 215u);
let v15 = v14 / 9u;
let v16 = v14 % 9u;
let v17 = ((batch * 72u + v13) * 24u + v15) * 9u + v16;
let v18 = b1[v17];
let v19 = min(line + 0u, 71u);
let v20 = min(k + 3u, 215u);
let v21 = v20 / 9u;
let v22 = v20 % 9u;
let v23 = ((batch * 72u + v19) * 24u + v21) * 9u + v22;
let v24 = b1[v23];
return vec4<f32>(select(0.0, v6, k + 0u < 216u), select(0.0, v12, k + 1u < 216u), select(0.0, v18, k + 2u < 216u), select(0.0, v24, k + 3u < 216u));
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
let v25 = min(line + 0u, 6399u);
let v26 = min(k + 0u, 215u);
let v27 = v26 / 9u;
let v28 = v26 % 9u;
let v29 = v25 / 1600u;
let v30 = v25 % 1600u;
let v31 = v30 / 40u * 1u + v28 / 3u * 1u - 1u;
let v32 = v30 % 40u * 1u + v28 % 3u * 1u - 1u;
let v33 = ((v29 * 24u + batch * 24u + v27) * 40u + min(v31, 39u)) * 40u + min(v32, 39u);
let v34 = b2[v33];
let v35 = select(0.0, v34, v31 < 40u && v32 < 40u);
let v36 = min(line + 1u, 6399u);
let v37 = min(k + 0u, 215u);
let v38 = v37 / 9u;
let v39 = v37 % 9u;
let v40 = v36 / 1600u;
let v41 = v36 % 1600u;
let v42 = v41 / 40u * 1u + v39 / 3u * 1u - 1u;
let v43 = v41 % 40u * 1u + v39 % 3u * 1u - 1u;
let v44 = ((v40 * 24u + batch * 24u + v38) * 40u + min(v42, 39u)) * 40u + min(v43, 39u);
let v45 = b2[v44];
let v46 = select(0.0, v45, v42 < 40u && v43 < 40u);
let v47 = min(line + 2u, 6399u);
let v48 = min(k + 0u, 215u);
let v49 = v48 / 9u;
let v50 = v48 % 9u;
let v51 = v47 / 1600u;
let v52 = v47 % 1600u;
let v53 = v52 / 40u * 1u + v50 / 3u * 1u - 1u;
let v54 = v52 % 40u * 1u + v50 % 3u * 1u - 1u;
let v55 = ((v51 * 24u + batch * 24u + v49) * 40u + min(v53, 39u)) * 40u + min(v54, 39u);
let v56 = b2[v55];
let v57 = select(0.0, v56, v53 < 40u && v54 < 40u);
let v58 = min(line + 3u, 6399u);
let v59 = min(k + 0u, 215u);
let v60 = v59 / 9u;
let v61 = v59 % 9u;
let v62 = v58 / 1600u;
let v63 = v58 % 1600u;
let v64 = v63 / 40u * 1u + v61 / 3u * 1u - 1u;
let v65 = v63 % 40u * 1u + v61 % 3u * 1u - 1u;
let v66 = ((v62 * 24u + batch * 24u + v60) * 40u + min(v64, 39u)) * 40u + min(v65, 39u);
let v67 = b2[v66];
let v68 = select(0.0, v67, v64 < 40u && v65 < 40u);
return vec4<f32>(select(0.0, v35, k + 0u < 216u), select(0.0, v46, k + 0u < 216u), select(0.0, v57, k + 0u < 216u), select(0.0, v68, k + 0u < 216u));
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
return (column / 1600u * 72u + batch * 72u + row) * 1600u + column % 1600u;
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
fn place_of(depth: u32, line: u32) -> u32 {
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
            shared_a[place_of(depth + 0u, line)][line % WIDTH] = a_0[0u];
            shared_a[place_of(depth + 1u, line)][line % WIDTH] = a_0[1u];
            shared_a[place_of(depth + 2u, line)][line % WIDTH] = a_0[2u];
            shared_a[place_of(depth + 3u, line)][line % WIDTH] = a_0[3u];
        }
        {
            let line = line_of(local + 0u * THREADS, B_ALONG_K);
            let depth = depth_of(local + 0u * THREADS, B_ALONG_K);
            shared_b[place_of(depth, line)] = b_0;
        }
        workgroupBarrier();
        let next = done + STEP;
        if (next < terms) {
            let next_k = begin + next;
            a_0 = load_a(batch, first_row + line_of(local + 0u * THREADS, A_ALONG_K), next_k + depth_of(local + 0u * THREADS, A_ALONG_K));
            b_0 = load_b(batch, first_column + line_of(local + 0u * THREADS, B_ALONG_K), next_k + depth_of(local + 0u * THREADS, B_ALONG_K));
        }
        for (var d = 0u; d < STEP; d += 1u) {
            let own_a_0 = shared_a[place_of(d, own_line(y, 0u * WIDTH))];
            let own_b_0 = shared_b[place_of(d, own_line(x, 0u * WIDTH))];
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
