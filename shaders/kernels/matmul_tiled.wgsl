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
alias Vector = vec4<f32>;

// Sizes of the product. K_MAJOR: elements that are adjacent in memory are adjacent along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 256u;
const N: u32 = 256u;
const K: u32 = 256u;
const A_K_MAJOR: bool = false;
const B_K_MAJOR: bool = false;
// The schedule.
const THREAD_TILE: u32 = 4u; // number of rows, and of columns, of a thread
const BLOCK_THREADS: u32 = 16u; // number of threads along a side of the block
const STEP: u32 = 16u;
const SPLIT_K: u32 = 1u;
const SPLIT_LENGTH: u32 = K; // number of terms of a part, except for the last one if LAST_IS_SHORT
const LAST_IS_SHORT: bool = false;

const THREADS: u32 = BLOCK_THREADS * BLOCK_THREADS;
const BLOCK: u32 = BLOCK_THREADS * THREAD_TILE;
const WIDTH: u32 = min(THREAD_TILE, 4u);
const VECTORS: u32 = THREAD_TILE / WIDTH; // number of vectors of a thread, and of those that it copies for each operand
const COLUMN_BLOCKS: u32 = (N + BLOCK - 1u) / BLOCK;
const ROW_BLOCKS: u32 = (M + BLOCK - 1u) / BLOCK;
const WHOLE: bool = M % BLOCK == 0u && N % BLOCK == 0u; // no block extends beyond the result

// Indices of repeats.
const i: u32 = 0u; const j: u32 = 0u; const u: u32 = 0u; const v: u32 = 0u; const q: u32 = 0u;

var<storage, read> a: array<vec4<f32>>;
var<storage, read> b: array<vec4<f32>>;
var<storage, read_write> out: array<f32>;

var<workgroup> shared_a: array<Vector, BLOCK / WIDTH * STEP>;
var<workgroup> shared_b: array<Vector, BLOCK / WIDTH * STEP>;

// WIDTH elements of A that are adjacent in memory, the first one in row `line` at term `k`. Terms from K on are zero,
// even if the memory contains NaN.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    return a[((batch * K + k) * M + line) / 4u];
}

// The same for B, whose first element is in column `line`.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    return b[((batch * K + k) * N + line) / 4u];
}

// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}

// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    out[part * (BATCH * M * N) + i] = product;
}

fn finish_within(part: u32, batch: u32, row: u32, column: u32, sum: f32) {
    // @if WHOLE
    finish(part, element_number(batch, row, column), sum);
    // @else
    //# if (row < M && column < N) {
    //#     finish(part, element_number(batch, min(row, M - 1u), min(column, N - 1u)), sum);
    //# }
    // @end
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
    // @repeat i < THREAD_TILE, j < THREAD_TILE
    var sum_i_j = 0.0;
    // @end
    var begin = 0u;
    var terms = K;
    // @if SPLIT_K > 1
    begin = part * SPLIT_LENGTH;
    terms = SPLIT_LENGTH;
    // @if LAST_IS_SHORT
    terms = min(SPLIT_LENGTH, K - part * SPLIT_LENGTH);
    // @end
    // @end

    // @repeat u < VECTORS
    var a_u = load_a(batch, first_row + line_of(local + u * THREADS, A_K_MAJOR), begin + depth_of(local + u * THREADS, A_K_MAJOR));
    // @end
    // @repeat u < VECTORS
    var b_u = load_b(batch, first_column + line_of(local + u * THREADS, B_K_MAJOR), begin + depth_of(local + u * THREADS, B_K_MAJOR));
    // @end
    var done = 0u;
    loop {
        // @repeat u < VECTORS
        {
            let line = line_of(local + u * THREADS, A_K_MAJOR);
            let depth = depth_of(local + u * THREADS, A_K_MAJOR);
            // @if A_K_MAJOR && WIDTH > 1
            // @repeat q < WIDTH
            shared_a[location_of(depth + q, line)][line % WIDTH] = a_u[q];
            // @end
            // @else
            shared_a[location_of(depth, line)] = a_u;
            // @end
        }
        // @end
        // @repeat u < VECTORS
        {
            let line = line_of(local + u * THREADS, B_K_MAJOR);
            let depth = depth_of(local + u * THREADS, B_K_MAJOR);
            // @if B_K_MAJOR && WIDTH > 1
            // @repeat q < WIDTH
            shared_b[location_of(depth + q, line)][line % WIDTH] = b_u[q];
            // @end
            // @else
            shared_b[location_of(depth, line)] = b_u;
            // @end
        }
        // @end
        workgroupBarrier();
        let next = done + STEP;
        if (next < terms) {
            let next_k = begin + next;
            // @repeat u < VECTORS
            a_u = load_a(batch, first_row + line_of(local + u * THREADS, A_K_MAJOR), next_k + depth_of(local + u * THREADS, A_K_MAJOR));
            // @end
            // @repeat u < VECTORS
            b_u = load_b(batch, first_column + line_of(local + u * THREADS, B_K_MAJOR), next_k + depth_of(local + u * THREADS, B_K_MAJOR));
            // @end
        }
        for (var d = 0u; d < STEP; d += 1u) {
            // @repeat u < VECTORS
            let own_a_u = shared_a[location_of(d, own_line(y, u * WIDTH))];
            // @end
            // @repeat v < VECTORS
            let own_b_v = shared_b[location_of(d, own_line(x, v * WIDTH))];
            // @end
            // @repeat u < VECTORS, i in u * WIDTH..(u + 1) * WIDTH, v < VECTORS, j in v * WIDTH..(v + 1) * WIDTH
            // @if WIDTH > 1
            sum_i_j = fma(own_a_u[i % WIDTH], own_b_v[j % WIDTH], sum_i_j);
            // @else
            //# sum_i_j = fma(own_a_u, own_b_v, sum_i_j);
            // @end
            // @end
        }
        workgroupBarrier();
        done = next;
        if (done >= terms) {
            break;
        }
    }
    // @repeat i < THREAD_TILE, j < THREAD_TILE
    finish_within(part, batch, first_row + own_line(y, i), first_column + own_line(x, j), sum_i_j);
    // @end
}
