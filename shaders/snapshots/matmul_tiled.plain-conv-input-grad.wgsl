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
const M: u32 = 24u;
const N: u32 = 6400u;
const K: u32 = 648u;
const A_ALONG_K: bool = false;
const B_ALONG_K: bool = false;
const SIDE: u32 = 16u;
const STEP: u32 = 16u;
const PART_LENGTH: u32 = 336u;
const THREADS: u32 = 256u;
const BLOCK: u32 = 64u;
const WIDTH: u32 = 4u;
const ACROSS: u32 = 100u;
const DOWN: u32 = 1u;
var<workgroup> shared_a: array<Vector, BLOCK / WIDTH * STEP>;
var<workgroup> shared_b: array<Vector, BLOCK / WIDTH * STEP>;
// WIDTH elements of A, side by side in memory, from row `line` and term `k` on; zero from K on, where nothing may come in, not
// even NaN.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
let v1 = min(line + 0u, 23u);
let v2 = min(k + 0u, 647u);
let v3 = v2 / 9u;
let v4 = v2 % 9u;
let v5 = ((batch * 72u + v3) * 24u + v1) * 9u + v4;
let v6 = b1[v5];
let v7 = min(line + 1u, 23u);
let v8 = min(k + 0u, 647u);
let v9 = v8 / 9u;
let v10 = v8 % 9u;
let v11 = ((batch * 72u + v9) * 24u + v7) * 9u + v10;
let v12 = b1[v11];
let v13 = min(line + 2u, 23u);
let v14 = min(k + 0u, 647u);
let v15 = v14 / 9u;
let v16 = v14 % 9u;
let v17 = ((batch * 72u + v15) * 24u + v13) * 9u + v16;
let v18 = b1[v17];
let v19 = min(line + 3u, 23u);
let v20 = min(k + 0u, 647u);
let v21 = v20 / 9u;
let v22 = v20 % 9u;
let v23 = ((batch * 72u + v21) * 24u + v19) * 9u + v22;
let v24 = b1[v23];
return vec4<f32>(select(0.0, v6, k + 0u < 648u), select(0.0, v12, k + 0u < 648u), select(0.0, v18, k + 0u < 648u), select(0.0, v24, k + 0u < 648u));
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
let v25 = min(line + 0u, 6399u);
let v26 = min(k + 0u, 647u);
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
let v40 = min(line + 1u, 6399u);
let v41 = min(k + 0u, 647u);
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
let v55 = min(line + 2u, 6399u);
let v56 = min(k + 0u, 647u);
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
let v70 = min(line + 3u, 6399u);
let v71 = min(k + 0u, 647u);
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
return vec4<f32>(select(0.0, v39, k + 0u < 648u), select(0.0, v54, k + 0u < 648u), select(0.0, v69, k + 0u < 648u), select(0.0, v84, k + 0u < 648u));
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
return (column / 1600u * 24u + batch * 24u + row) * 1600u + column % 1600u;
}
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
b0[part * 153600u + i] = product;
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
    begin = part * PART_LENGTH;
    terms = PART_LENGTH;
    terms = min(PART_LENGTH, K - part * PART_LENGTH);

    var a_0 = load_a(batch, first_row + line_of(local + 0u * THREADS, A_ALONG_K), begin + depth_of(local + 0u * THREADS, A_ALONG_K));
    var b_0 = load_b(batch, first_column + line_of(local + 0u * THREADS, B_ALONG_K), begin + depth_of(local + 0u * THREADS, B_ALONG_K));
    var done = 0u;
    loop {
        {
            let line = line_of(local + 0u * THREADS, A_ALONG_K);
            let depth = depth_of(local + 0u * THREADS, A_ALONG_K);
            shared_a[place_of(depth, line)] = a_0;
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
