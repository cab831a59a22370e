var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
// Matrix product in f32, by tiles in shared memory: out[batch, M, N] = epilogue(A[batch, M, K] B[batch, K, N]).
//
// A workgroup of BLOCK_THREADS by BLOCK_THREADS threads computes a block of BLOCK by BLOCK results. Each thread has a
// tile of THREAD_TILE by THREAD_TILE of them in registers. The kernel iterates over K in steps: it copies the operands'
// parts of the step to shared memory, loads the parts of the next step into registers, and each thread reads vectors of
// WIDTH lines (rows of A, columns of B) from shared memory. A step has two barriers. If there are few blocks, K is
// split into SPLIT_K parts (split-K), whose sums split_k_join.wgsl adds up.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/conv2d.
// Elements of WIDTH adjacent lines of an operand: f32, vec2<f32> or vec4<f32>.
alias Vector = f32;
// Sizes of the product. K_MAJOR: elements that are adjacent in memory are adjacent along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 200u;
const N: u32 = 120u;
const K: u32 = 96u;
const A_K_MAJOR: bool = true;
const B_K_MAJOR: bool = true;
const BLOCK_THREADS: u32 = 16u;
const STEP: u32 = 16u;
const THREADS: u32 = 256u;
const BLOCK: u32 = 16u;
const WIDTH: u32 = 1u;
const COLUMN_BLOCKS: u32 = 8u;
const ROW_BLOCKS: u32 = 13u;
var<workgroup> shared_a: array<Vector, BLOCK / WIDTH * STEP>;
var<workgroup> shared_b: array<Vector, BLOCK / WIDTH * STEP>;
// WIDTH elements of A that are adjacent in memory, the first one in row `line` at term `k`. Terms from K on are zero,
// even if the memory contains NaN.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    let v1 = min(line + 0u, 199u);
    let v2 = min(k + 0u, 95u);
    let v3 = b1[v1 * 96u + v2];
    return f32(select(0.0, v3, k + 0u < 96u));
}
// The same for B, whose first element is in column `line`.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v4 = min(line + 0u, 119u);
    let v5 = min(k + 0u, 95u);
    let v6 = b2[v4 * 96u + v5];
    return f32(select(0.0, v6, k + 0u < 96u));
}
// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
fn finish_within(part: u32, batch: u32, row: u32, column: u32, sum: f32) {
    if (row < M && column < N) {
        finish(part, element_number(batch, min(row, M - 1u), min(column, N - 1u)), sum);
    }
}
// First line and first term of the vector `number` within an operand's part of a step.
fn line_of(number: u32, along_k: bool) -> u32 {
    return select(number % (BLOCK / WIDTH) * WIDTH, number / (STEP / WIDTH), along_k);
}
fn depth_of(number: u32, along_k: bool) -> u32 {
    return select(number / (BLOCK / WIDTH), number % (STEP / WIDTH) * WIDTH, along_k);
}
// Index in shared memory of a line at a depth (a term of the step). The order of lines differs from depth to depth, so
// that threads that store one line at several depths do not wait for the same bank.
fn location_of(depth: u32, line: u32) -> u32 {
    return depth * (BLOCK / WIDTH) + (line / WIDTH ^ depth % 8u);
}
// Line `number` of a thread within the block; the thread's lines are contiguous in vectors.
fn own_line(thread: u32, number: u32) -> u32 {
    return thread * WIDTH + (number / WIDTH * BLOCK_THREADS * WIDTH + number % WIDTH);
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_column = group_number % COLUMN_BLOCKS * BLOCK;
    let first_row = group_number / COLUMN_BLOCKS % ROW_BLOCKS * BLOCK;
    let batch = group_number / (COLUMN_BLOCKS * ROW_BLOCKS) % BATCH;
    let part = group_number / (COLUMN_BLOCKS * ROW_BLOCKS * BATCH);
    let y = local / BLOCK_THREADS;
    let x = local % BLOCK_THREADS;
    var sum_0_0 = 0.0;
    var begin = 0u;
    var terms = K;
    var a_0 = load_a(batch, first_row + line_of(local + 0u * THREADS, A_K_MAJOR), begin + depth_of(local + 0u * THREADS, A_K_MAJOR));
    var b_0 = load_b(batch, first_column + line_of(local + 0u * THREADS, B_K_MAJOR), begin + depth_of(local + 0u * THREADS, B_K_MAJOR));
    var done = 0u;
    loop {
        {
            let line = line_of(local + 0u * THREADS, A_K_MAJOR);
            let depth = depth_of(local + 0u * THREADS, A_K_MAJOR);
            shared_a[location_of(depth, line)] = a_0;
        }
        {
            let line = line_of(local + 0u * THREADS, B_K_MAJOR);
            let depth = depth_of(local + 0u * THREADS, B_K_MAJOR);
            shared_b[location_of(depth, line)] = b_0;
        }
        workgroupBarrier();
        let next = done + STEP;
        if (next < terms) {
            let next_k = begin + next;
            a_0 = load_a(batch, first_row + line_of(local + 0u * THREADS, A_K_MAJOR), next_k + depth_of(local + 0u * THREADS, A_K_MAJOR));
            b_0 = load_b(batch, first_column + line_of(local + 0u * THREADS, B_K_MAJOR), next_k + depth_of(local + 0u * THREADS, B_K_MAJOR));
        }
        for (var d = 0u; d < STEP; d += 1u) {
            let own_a_0 = shared_a[location_of(d, own_line(y, 0u * WIDTH))];
            let own_b_0 = shared_b[location_of(d, own_line(x, 0u * WIDTH))];
            sum_0_0 = fma(own_a_0, own_b_0, sum_0_0);
        }
        workgroupBarrier();
        done = next;
        if (done >= terms) {
            break;
        }
    }
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 0u), sum_0_0);
}
