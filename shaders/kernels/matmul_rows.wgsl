// Matrix product of few rows, as in the decode phase of a language model: every element of the matrix B is read once,
// so the memory bandwidth limits the speed.
//
// A workgroup has TILE columns. The LANES threads of a column share its sum over K, UNROLL terms at a time, so that all
// their loads are in flight together; adjacent threads read adjacent memory. If elements of rows have to be computed,
// this is done once for all columns (STAGED). If there are few columns, K is split into SPLIT_K parts (split-K).
//
// Twin in the oracle: core/src/ops/matmul.rs.

// Sizes of the product. B_K_MAJOR: elements of B that are adjacent in memory are adjacent along K, rather than along N.
const BATCH: u32 = 1u;
const M: u32 = 1u;
const N: u32 = 576u;
const K: u32 = 576u;
const B_K_MAJOR: bool = true;
// The schedule.
const LANES: u32 = 32u;
const SPLIT_K: u32 = 1u;
const STAGED: bool = false;
const MAX_UNROLL: u32 = 16u; // number of terms of all rows, unless one row already has MIN_UNROLL terms
const MIN_UNROLL: u32 = 4u;
const SHARED_SUMS: bool = false; // true if the epilogue reads several sums of the workgroup, which are in `products`
const HALF: u32 = 0u; // distance in columns between the two of a rotated pair, or 0; both are in one workgroup
const THREADS: u32 = 256u;

const TILE: u32 = THREADS / LANES; // number of columns of a workgroup
const COLUMN_BLOCKS: u32 = (N + TILE - 1u) / TILE;
const LENGTH: u32 = (K + SPLIT_K - 1u) / SPLIT_K; // number of terms of a part
// Terms are split into the minimum number of rounds, with about the same length.
const TERMS: u32 = max(LENGTH / LANES, 1u);
const MAX: u32 = max(MAX_UNROLL / M, MIN_UNROLL);
const UNROLL: u32 = TERMS / ((TERMS + MAX - 1u) / MAX);

// Indices of repeats.
const r: u32 = 0u; const q: u32 = 0u;

var<storage, read> a: array<f32>;
var<storage, read> b: array<f32>;
var<storage, read_write> out: array<f32>;

var<workgroup> staged: array<f32, M * LENGTH>;
var<workgroup> sums: array<f32, THREADS>;
var<workgroup> products: array<f32, M * TILE>;

fn load_a(batch: u32, line: u32, k: u32) -> f32 {
    return a[(batch * M + line) * K + k];
}

fn load_b(batch: u32, line: u32, k: u32) -> f32 {
    return b[(batch * N + line) * K + k];
}

// Element of a row, from shared memory if rows are staged.
fn row_element(batch: u32, row: u32, k: u32, part: u32) -> f32 {
    // @if STAGED
    //# return staged[row * LENGTH + k - part * LENGTH];
    // @else
    return load_a(batch, row, k);
    // @end
}

// lib/tile.wgsl
fn column_of(tile: u32, number: u32) -> u32 { return tile * TILE + number; }

// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}

// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    out[part * (BATCH * M * N) + i] = product;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    // @insert before
    let tile = group_number % COLUMN_BLOCKS;
    let batch = group_number / COLUMN_BLOCKS % BATCH;
    let part = group_number / (COLUMN_BLOCKS * BATCH);
    // @if B_K_MAJOR
    let slot = local % LANES;
    let column = min(column_of(tile, local / LANES), N - 1u);
    // @else
    //# let slot = local / TILE;
    //# let column = min(column_of(tile, local % TILE), N - 1u);
    // @end
    let end = min(part * LENGTH + LENGTH, K);
    // @if STAGED
    for (var at = local; at < M * LENGTH; at += THREADS) {
        staged[at] = load_a(batch, at / LENGTH, min(part * LENGTH + at % LENGTH, K - 1u));
    }
    workgroupBarrier();
    // @end
    // @repeat r < M
    var sum_r = 0.0;
    // @end
    var k = part * LENGTH + slot;
    for (; k + (UNROLL - 1u) * LANES < end; k += UNROLL * LANES) {
        // @repeat q < UNROLL
        let b_q = load_b(batch, column, k + q * LANES);
        // @repeat r < M
        let a_q_r = row_element(batch, r, k + q * LANES, part);
        // @end
        // @end
        // @repeat q < UNROLL, r < M
        sum_r = fma(a_q_r, b_q, sum_r);
        // @end
    }
    for (; k < end; k += LANES) {
        let element = load_b(batch, column, k);
        // @repeat r < M
        sum_r = fma(row_element(batch, r, k, part), element, sum_r);
        // @end
    }
    // @repeat r < M
    // @if r > 0
    workgroupBarrier();
    // @end
    sums[local] = sum_r;
    workgroupBarrier();
    if (local < TILE) {
        var sum = 0.0;
        for (var lane = 0u; lane < LANES; lane += 1u) {
            // @if B_K_MAJOR
            sum += sums[local * LANES + lane];
            // @else
            //# sum += sums[lane * TILE + local];
            // @end
        }
        // @if SHARED_SUMS
        //# products[r * TILE + local] = sum;
        // @else
        if (column_of(tile, local) < N) {
            finish(part, element_number(batch, r, column_of(tile, local)), sum);
        }
        // @end
    }
    // @end
    // @if SHARED_SUMS
    //# workgroupBarrier();
    //# for (var at = local; at < M * TILE; at += THREADS) {
    //#     let own_column = column_of(tile, at % TILE);
    //#     if (own_column < N) {
    //#         finish(0u, element_number(0u, at / TILE, own_column), products[at]);
    //#     }
    //# }
    // @end
}
