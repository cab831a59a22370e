// Matrix product on cooperative matrices (tensor cores): out[batch, M, N] = epilogue(A[batch, M, K] B[batch, K, N]).
//
// A workgroup computes a block of ROWS by COLUMNS. Each subgroup has SUB_ROWS by SUB_COLUMNS of it, in registers, as
// tiles of TILE by TILE. The kernel iterates over K in steps: it converts the operands' parts of the step to Element,
// stores them in shared memory in their memory layout while the parts of the next PREFETCH steps are loaded into
// registers, and every subgroup multiplies tiles. A step has two barriers. Blocks with few rows are bound by memory
// latency: K_SUBGROUPS subgroups share the terms of a step.
//
// Split-K: K is split into SPLIT_K parts, whose sums split_k_join.wgsl adds up. TAIL: only the blocks after the last
// whole wave are split (stream-K: Osama, Merrill, Cecka, Garland and Owens, 2023).
//
// B_BLOCKS: B is packed, and a thread copies whole blocks of 32 elements. It holds the next ones in their packed form.
//
// Results are stored as whole tiles (PLAIN), or pass slab by slab through shared memory to the epilogue. Each thread
// computes the epilogue of FINISH_WIDTH elements at a time, so that its loads are in flight together.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/conv2d.

enable f16;
enable wgpu_cooperative_matrix;

alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16, A>;
alias MatrixB = coop_mat16x16<f16, B>;
alias MatrixC = coop_mat16x16<f32, C>;
// Sizes of the product. K_MAJOR: elements that are adjacent in memory are adjacent along K, rather than along M or N.
const BATCH: u32 = 1u; const M: u32 = 1024u; const N: u32 = 1024u; const K: u32 = 1024u;
const A_K_MAJOR: bool = true; const B_K_MAJOR: bool = false; const B_BLOCKS: bool = false;
// The schedule.
const TILE: u32 = 16u; const SUBGROUP: u32 = 32u; // number of threads of a subgroup
const ROWS: u32 = 128u; const COLUMNS: u32 = 128u; const STEP: u32 = 32u;
const SUB_ROWS: u32 = 64u; const SUB_COLUMNS: u32 = 64u; const K_SUBGROUPS: u32 = 1u; const PREFETCH: u32 = 1u;
const SPLIT_K: u32 = 1u; const SPLIT_LENGTH: u32 = K; // number of terms of a part, except for the last one if LAST_IS_SHORT
const LAST_IS_SHORT: bool = false;
const TAIL: bool = false; const TAIL_BLOCKS: u32 = 1u; const TAIL_FIRST: u32 = 0u; // blocks before those that are split
const PLAIN: bool = true; const FINISH_WIDTH: u32 = 1u;
const PADDING: u32 = 2u; // number of vectors that avoid bank conflicts between rows in shared memory

const COLUMN_BLOCKS: u32 = (N + COLUMNS - 1u) / COLUMNS; const ROW_BLOCKS: u32 = (M + ROWS - 1u) / ROWS;
const WHOLE: bool = M % ROWS == 0u && N % COLUMNS == 0u; // no block extends beyond the result
const COLUMN_SUBGROUPS: u32 = COLUMNS / SUB_COLUMNS;
const SUBGROUPS: u32 = ROWS / SUB_ROWS * COLUMN_SUBGROUPS * K_SUBGROUPS; const THREADS: u32 = SUBGROUPS * SUBGROUP;
const TILES_DOWN: u32 = SUB_ROWS / TILE; const TILES_ACROSS: u32 = SUB_COLUMNS / TILE;
// Vectors of a row of each operand in shared memory. The strides below add padding to them.
// @if A_K_MAJOR
const A_WIDTH: u32 = STEP / 4u;
// @else
//# const A_WIDTH: u32 = ROWS / 4u;
// @end
// @if B_K_MAJOR
//# const B_WIDTH: u32 = STEP / 4u;
// @else
const B_WIDTH: u32 = COLUMNS / 4u;
// @end
const A_STRIDE: u32 = A_WIDTH + PADDING; const B_STRIDE: u32 = B_WIDTH + PADDING;
const A_VECTORS: u32 = ROWS * STEP / 4u; const B_VECTORS: u32 = COLUMNS * STEP / 4u;
const A_PIECES: u32 = A_VECTORS / THREADS; // number of vectors that a thread copies
// @if B_BLOCKS
//# const B_PIECES: u32 = B_VECTORS / THREADS / 8u; // blocks
//# const LINE_BLOCKS: u32 = STEP / 32u; // blocks of a column in a step
// @else
const B_PIECES: u32 = B_VECTORS / THREADS;
// @end
// Threads that compute the epilogue of a row of tiles, and size of the slab that passes through shared memory at a
// time.
const ROW_THREADS: u32 = K_SUBGROUPS * SUBGROUP;
const SLAB_COLUMNS: u32 = min(max(ROW_THREADS / TILE, TILE), SUB_COLUMNS);
const SLAB_TILES: u32 = SLAB_COLUMNS / TILE; const SLAB: u32 = TILE * SLAB_COLUMNS;

// Indices of repeats.
const i: u32 = 0u; const j: u32 = 0u; const p: u32 = 0u; const q: u32 = 0u; const s: u32 = 0u; const d: u32 = 0u; const g: u32 = 0u; const v: u32 = 0u;
var<storage, read> a: array<vec4<f32>>;
var<storage, read> b: array<vec4<f32>>;
// Destination of whole tiles: the result, or partial sums.
var<storage, read_write> tiles: array<f32>;
// Partial sums of the blocks that are split along K.
var<storage, read_write> tail: array<f32>;
var<workgroup> shared_a: array<Vector, A_VECTORS / A_WIDTH * A_STRIDE>;
var<workgroup> shared_b: array<Vector, B_VECTORS / B_WIDTH * B_STRIDE>;
var<workgroup> slab: array<f32, SLAB * SUBGROUPS>;

// Four elements of A that are adjacent in memory, the first one in row `line` at term `k`; terms from K on are zero.
fn load_a(batch: u32, line: u32, k: u32) -> Vector { return Vector(a[((batch * M + line) * K + k) / 4u]); }

// The same for B, whose first element is in column `line`.
fn load_b(batch: u32, line: u32, k: u32) -> Vector { return Vector(b[((batch * K + k) * N + line) / 4u]); }

// A packed block of 32 elements: its words and its scales.
struct PackedBlock { low: vec4<u32>, high: vec4<u32>, scales: vec2<f32> }

// Block `k` of column `line` of B.
fn load_block(batch: u32, line: u32, k: u32) -> PackedBlock { return PackedBlock(vec4<u32>(0u), vec4<u32>(0u), vec2<f32>(1.0)); }

// The vector `number` of a block.
fn expand_block(block: PackedBlock, number: u32) -> Vector { return Vector(block.scales.x * vec4<f32>(block.low)); }

// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }

// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    tiles[part * (BATCH * M * N) + i] = product;
}

// Does the same for several elements; elements outside of the result are not stored.
fn finish_together(
    // @repeat q < FINISH_WIDTH
    i_q: u32, product_q: f32, within_q: bool,
    // @end
) {
    // @repeat q < FINISH_WIDTH
    if (within_q) {
        finish(0u, i_q, product_q);
    }
    // @end
}

// Element `e` of a slab: the sum over the subgroups that share the terms of a step.
fn slab_sum(sub_block: u32, e: u32) -> f32 {
    return slab[sub_block * K_SUBGROUPS * SLAB + e];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    // @if TAIL
    let is_part = group_number >= TAIL_FIRST;
    let behind = group_number - TAIL_FIRST;
    let block = select(group_number, TAIL_FIRST + behind % TAIL_BLOCKS, is_part);
    let part = select(0u, behind / TAIL_BLOCKS, is_part);
    // @else
    //# let block = group_number;
    //# let part = group_number / (COLUMN_BLOCKS * ROW_BLOCKS * BATCH);
    // @end
    let first_column = block % COLUMN_BLOCKS * COLUMNS;
    let first_row = block / COLUMN_BLOCKS % ROW_BLOCKS * ROWS;
    let batch = block / (COLUMN_BLOCKS * ROW_BLOCKS) % BATCH;
    let subgroup = local / SUBGROUP;
    let sub_block = subgroup / K_SUBGROUPS;
    let sub_row = sub_block / COLUMN_SUBGROUPS * SUB_ROWS;
    let sub_column = sub_block % COLUMN_SUBGROUPS * SUB_COLUMNS;
    // @repeat i < TILES_DOWN, j < TILES_ACROSS
    var sum_i_j = MatrixC();
    // @end
    var begin = 0u;
    var terms = K;
    // @if SPLIT_K > 1
    begin = part * SPLIT_LENGTH;
    terms = SPLIT_LENGTH;
    // @if LAST_IS_SHORT
    terms = min(SPLIT_LENGTH, K - part * SPLIT_LENGTH);
    // @end
    // @if TAIL
    terms = select(K, terms, is_part);
    // @end
    // @end

    // @repeat s < PREFETCH, p < A_PIECES
    // @if A_K_MAJOR
    var a_p_s = load_a(batch, first_row + (local + p * THREADS) / A_WIDTH, begin + s * STEP + (local + p * THREADS) % A_WIDTH * 4u);
    // @else
    //# var a_p_s = load_a(batch, first_row + (local + p * THREADS) % A_WIDTH * 4u, begin + s * STEP + (local + p * THREADS) / A_WIDTH);
    // @end
    // @end
    // @repeat s < PREFETCH, p < B_PIECES
    // @if B_BLOCKS
    //# var block_p_s = load_block(batch, first_column + (local + p * THREADS) / LINE_BLOCKS, begin / 32u + s * LINE_BLOCKS + (local + p * THREADS) % LINE_BLOCKS);
    // @else
    // @if B_K_MAJOR
    //# var b_p_s = load_b(batch, first_column + (local + p * THREADS) / B_WIDTH, begin + s * STEP + (local + p * THREADS) % B_WIDTH * 4u);
    // @else
    var b_p_s = load_b(batch, first_column + (local + p * THREADS) % B_WIDTH * 4u, begin + s * STEP + (local + p * THREADS) / B_WIDTH);
    // @end
    // @end
    // @end
    var done = 0u;
    loop {
        // @repeat s < PREFETCH
        // @repeat p < A_PIECES
        shared_a[(local + p * THREADS) / A_WIDTH * A_STRIDE + (local + p * THREADS) % A_WIDTH] = a_p_s;
        // @end
        // @repeat p < B_PIECES
        // @if B_BLOCKS
        // @repeat v < 8
        //# shared_b[(local + p * THREADS) / LINE_BLOCKS * B_STRIDE + (local + p * THREADS) % LINE_BLOCKS * 8u + v] = expand_block(block_p_s, v);
        // @end
        // @else
        shared_b[(local + p * THREADS) / B_WIDTH * B_STRIDE + (local + p * THREADS) % B_WIDTH] = b_p_s;
        // @end
        // @end
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            // @repeat p < A_PIECES
            // @if A_K_MAJOR
            a_p_s = load_a(batch, first_row + (local + p * THREADS) / A_WIDTH, next_k + (local + p * THREADS) % A_WIDTH * 4u);
            // @else
            //# a_p_s = load_a(batch, first_row + (local + p * THREADS) % A_WIDTH * 4u, next_k + (local + p * THREADS) / A_WIDTH);
            // @end
            // @end
            // @repeat p < B_PIECES
            // @if B_BLOCKS
            //# block_p_s = load_block(batch, first_column + (local + p * THREADS) / LINE_BLOCKS, next_k / 32u + (local + p * THREADS) % LINE_BLOCKS);
            // @else
            // @if B_K_MAJOR
            //# b_p_s = load_b(batch, first_column + (local + p * THREADS) / B_WIDTH, next_k + (local + p * THREADS) % B_WIDTH * 4u);
            // @else
            b_p_s = load_b(batch, first_column + (local + p * THREADS) % B_WIDTH * 4u, next_k + (local + p * THREADS) / B_WIDTH);
            // @end
            // @end
            // @end
        }
        // @repeat d < STEP / (TILE * K_SUBGROUPS)
        {
            // @if K_SUBGROUPS == 1
            let depth = d * TILE;
            // @else
            //# let depth = d * (TILE * K_SUBGROUPS) + subgroup % K_SUBGROUPS * TILE;
            // @end
            // @repeat i < TILES_DOWN
            // @if A_K_MAJOR
            let at_a_i = (sub_row + i * TILE) * A_STRIDE + depth / 4u;
            let a_i = coopLoadT<MatrixA>(&shared_a[at_a_i], A_STRIDE);
            // @else
            //# let at_a_i = depth * A_STRIDE + (sub_row + i * TILE) / 4u;
            //# let a_i = coopLoad<MatrixA>(&shared_a[at_a_i], A_STRIDE);
            // @end
            // @end
            // @repeat j < TILES_ACROSS
            // @if B_K_MAJOR
            //# let at_b_j = (sub_column + j * TILE) * B_STRIDE + depth / 4u;
            //# let b_j = coopLoad<MatrixB>(&shared_b[at_b_j], B_STRIDE);
            // @else
            let at_b_j = depth * B_STRIDE + (sub_column + j * TILE) / 4u;
            let b_j = coopLoadT<MatrixB>(&shared_b[at_b_j], B_STRIDE);
            // @end
            // @end
            // @repeat i < TILES_DOWN, j < TILES_ACROSS
            sum_i_j = coopMultiplyAdd(a_i, b_j, sum_i_j);
            // @end
        }
        // @end
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
        // @end
    }

    // @if TAIL
    if (is_part) {
        let first_of_part = (part * TAIL_BLOCKS + behind % TAIL_BLOCKS) * (ROWS * COLUMNS);
        // @repeat i < TILES_DOWN, j < TILES_ACROSS
        {
            let at = first_of_part + (sub_row + i * TILE) * COLUMNS + sub_column + j * TILE;
            coopStoreT(sum_i_j, &tail[at], COLUMNS);
        }
        // @end
        return;
    }
    // @end
    // @if PLAIN
    // @repeat i < TILES_DOWN, j < TILES_ACROSS
    {
        let row = first_row + sub_row + i * TILE;
        let column = first_column + sub_column + j * TILE;
        if (row < M && column < N) {
            var at = element_number(batch, row, column);
            // @if SPLIT_K > 1 && !TAIL
            at += part * (BATCH * M * N);
            // @end
            let to = at;
            coopStoreT(sum_i_j, &tiles[to], N);
        }
    }
    // @end
    // @else
    // @repeat i < TILES_DOWN, g < TILES_ACROSS / SLAB_TILES
    // @repeat j in g * SLAB_TILES..(g + 1) * SLAB_TILES
    let slab_i_j = subgroup * SLAB + j % SLAB_TILES * TILE;
    coopStoreT(sum_i_j, &slab[slab_i_j], SLAB_COLUMNS);
    // @end
    workgroupBarrier();
    for (var first = local % ROW_THREADS; first < SLAB; first += ROW_THREADS * FINISH_WIDTH) {
        // @repeat q < FINISH_WIDTH
        let e_q = first + q * ROW_THREADS;
        let row_q = first_row + sub_row + i * TILE + e_q / SLAB_COLUMNS;
        let column_q = first_column + sub_column + g * SLAB_COLUMNS + e_q % SLAB_COLUMNS;
        let sum_q = slab_sum(sub_block, e_q);
        // @end
        // @if FINISH_WIDTH > 1
        finish_together(
            // @repeat q < FINISH_WIDTH
            // @if WHOLE
            element_number(batch, row_q, column_q), sum_q, true,
            // @else
            //# element_number(batch, min(row_q, M - 1u), min(column_q, N - 1u)), sum_q, row_q < M && column_q < N,
            // @end
            // @end
        );
        // @else
        // @repeat q < FINISH_WIDTH
        // @if WHOLE
        finish(part, element_number(batch, row_q, column_q), sum_q);
        // @else
        //# if (row_q < M && column_q < N) {
        //#     finish(part, element_number(batch, min(row_q, M - 1u), min(column_q, N - 1u)), sum_q);
        //# }
        // @end
        // @end
        // @end
    }
    workgroupBarrier();
    // @end
    // @end
}
