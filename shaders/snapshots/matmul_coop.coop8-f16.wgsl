enable wgpu_cooperative_matrix;
enable f16;
var<storage, read> b1: array<vec4<f16>>;
var<storage, read> b2: array<vec4<f16>>;
var<storage, read_write> tiles: array<f32>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat8x8<f16,A>;
alias MatrixB = coop_mat8x8<f16,B>;
alias MatrixC = coop_mat8x8<f32,C>;
// Sizes of the product. K_MAJOR: elements that are adjacent in memory are adjacent along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 768u;
const N: u32 = 512u;
const K: u32 = 96u;
// The schedule.
const TILE: u32 = 8u;
const SUBGROUP: u32 = 32u;
const ROWS: u32 = 32u;
const COLUMNS: u32 = 32u;
const STEP: u32 = 16u;
const SUB_ROWS: u32 = 16u;
const SUB_COLUMNS: u32 = 16u;
const K_SUBGROUPS: u32 = 1u;
const PREFETCH: u32 = 1u;
const COLUMN_BLOCKS: u32 = 16u;
const ROW_BLOCKS: u32 = 24u;
const COLUMN_SUBGROUPS: u32 = 2u;
const THREADS: u32 = 128u;
// Vectors of a row of each operand in shared memory. The strides below add padding to them.
const A_WIDTH: u32 = 4u;
const B_WIDTH: u32 = 8u;
const A_STRIDE: u32 = 6u;
const B_STRIDE: u32 = 10u;
const A_VECTORS: u32 = 128u;
const B_VECTORS: u32 = 128u;
var<workgroup> shared_a: array<Vector, A_VECTORS / A_WIDTH * A_STRIDE>;
var<workgroup> shared_b: array<Vector, B_VECTORS / B_WIDTH * B_STRIDE>;
// Four elements of A that are adjacent in memory, the first one in row `line` at term `k`; terms from K on are zero.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    let v1 = line;
    let v2 = k;
    return b1[(v1 * 96u + v2) / 4u];
}
// The same for B, whose first element is in column `line`.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v3 = line;
    let v4 = k;
    return b2[(v4 * 512u + v3) / 4u];
}
// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let block = group_number;
    let part = group_number / (COLUMN_BLOCKS * ROW_BLOCKS * BATCH);
    let first_column = block % COLUMN_BLOCKS * COLUMNS;
    let first_row = block / COLUMN_BLOCKS % ROW_BLOCKS * ROWS;
    let batch = block / (COLUMN_BLOCKS * ROW_BLOCKS) % BATCH;
    let subgroup = local / SUBGROUP;
    let sub_block = subgroup / K_SUBGROUPS;
    let sub_row = sub_block / COLUMN_SUBGROUPS * SUB_ROWS;
    let sub_column = sub_block % COLUMN_SUBGROUPS * SUB_COLUMNS;
    var sum_0_0 = MatrixC();
    var sum_0_1 = MatrixC();
    var sum_1_0 = MatrixC();
    var sum_1_1 = MatrixC();
    var begin = 0u;
    var terms = K;
    var a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 0u * THREADS) % A_WIDTH * 4u);
    var b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, begin + 0u * STEP + (local + 0u * THREADS) / B_WIDTH);
    var done = 0u;
    loop {
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_0;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_0;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, next_k + (local + 0u * THREADS) % A_WIDTH * 4u);
            b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) % B_WIDTH * 4u, next_k + (local + 0u * THREADS) / B_WIDTH);
        }
        {
            let depth = 0u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            let at_b_1 = depth * B_STRIDE + (sub_column + 1u * TILE) / 4u;
            let b_1 = coopLoadT<MatrixB>(&shared_b[at_b_1], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_0_1 = coopMultiplyAdd(a_0, b_1, sum_0_1);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
            sum_1_1 = coopMultiplyAdd(a_1, b_1, sum_1_1);
        }
        {
            let depth = 1u * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_a_1 = (sub_row + 1u * TILE) * A_STRIDE + depth / 4u;
            let a_1 = coopLoadT<MatrixA>(&shared_a[at_a_1], A_STRIDE);
            let at_b_0 = depth * B_STRIDE + (sub_column + 0u * TILE) / 4u;
            let b_0 = coopLoadT<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            let at_b_1 = depth * B_STRIDE + (sub_column + 1u * TILE) / 4u;
            let b_1 = coopLoadT<MatrixB>(&shared_b[at_b_1], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
            sum_0_1 = coopMultiplyAdd(a_0, b_1, sum_0_1);
            sum_1_0 = coopMultiplyAdd(a_1, b_0, sum_1_0);
            sum_1_1 = coopMultiplyAdd(a_1, b_1, sum_1_1);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
    }
    {
        let row = first_row + sub_row + 0u * TILE;
        let column = first_column + sub_column + 0u * TILE;
        if (row < M && column < N) {
            var at = element_number(batch, row, column);
            let to = at;
            coopStoreT(sum_0_0, &tiles[to], N);
        }
    }
    {
        let row = first_row + sub_row + 0u * TILE;
        let column = first_column + sub_column + 1u * TILE;
        if (row < M && column < N) {
            var at = element_number(batch, row, column);
            let to = at;
            coopStoreT(sum_0_1, &tiles[to], N);
        }
    }
    {
        let row = first_row + sub_row + 1u * TILE;
        let column = first_column + sub_column + 0u * TILE;
        if (row < M && column < N) {
            var at = element_number(batch, row, column);
            let to = at;
            coopStoreT(sum_1_0, &tiles[to], N);
        }
    }
    {
        let row = first_row + sub_row + 1u * TILE;
        let column = first_column + sub_column + 1u * TILE;
        if (row < M && column < N) {
            var at = element_number(batch, row, column);
            let to = at;
            coopStoreT(sum_1_1, &tiles[to], N);
        }
    }
}
