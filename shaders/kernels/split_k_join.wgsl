// Adds up the parts of sums that are split along K (split-K), in order, and computes the epilogue: one thread per sum.
// With TAIL only the blocks after the last whole wave of a product are split, so sums are numbered within these blocks.
//
// Twin in the oracle: core/src/ops/matmul.rs.

const COUNT: u32 = 1048576u; // number of sums
const SPLIT_K: u32 = 4u;
const THREADS: u32 = 256u;
// Sizes of the product, of its blocks, and of the tail.
const TAIL: bool = false;
const M: u32 = 1024u;
const N: u32 = 1024u;
const ROWS: u32 = 128u;
const COLUMNS: u32 = 128u;
const TAIL_FIRST: u32 = 0u;
const COLUMN_BLOCKS: u32 = (N + COLUMNS - 1u) / COLUMNS;
const ROW_BLOCKS: u32 = (M + ROWS - 1u) / ROWS;
const WHOLE: bool = M % ROWS == 0u && N % COLUMNS == 0u;

var<storage, read> partial: array<f32>;
var<storage, read_write> out: array<f32>;

// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}

fn finish(part: u32, i: u32, product: f32) {
    out[i] = product;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    var sum = 0.0;
    for (var part = 0u; part < SPLIT_K; part += 1u) {
        sum += partial[part * COUNT + i];
    }
    // @if TAIL
    let block = TAIL_FIRST + i / (ROWS * COLUMNS);
    let within = i % (ROWS * COLUMNS);
    let batch = block / (COLUMN_BLOCKS * ROW_BLOCKS);
    let row = block / COLUMN_BLOCKS % ROW_BLOCKS * ROWS + within / COLUMNS;
    let column = block % COLUMN_BLOCKS * COLUMNS + within % COLUMNS;
    if (WHOLE) {
        finish(0u, element_number(batch, row, column), sum);
    } else if (row < M && column < N) {
        finish(0u, element_number(batch, min(row, M - 1u), min(column, N - 1u)), sum);
    }
    // @else
    finish(0u, i, sum);
    // @end
}
