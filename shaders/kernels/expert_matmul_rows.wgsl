// Product of each row with the matrix of its expert, for few rows, as in the decode phase of a language model. The
// memory bandwidth for reading the matrices limits the speed, because few rows share a matrix.
//
// A workgroup has THREADS / LANES columns of a row. The LANES threads of a column share its sum over K. Adjacent
// threads read adjacent memory, four terms at a time if these are contiguous (VECTORS).
//
// Twin in the oracle: core/src/ops/expert_matmul.rs.

const EXPERTS: u32 = 8u;
const N: u32 = 64u;
const K: u32 = 64u;
// B_K_MAJOR: elements of a matrix that are adjacent in memory are adjacent along K, rather than along N.
const B_K_MAJOR: bool = true;
const VECTORS: bool = true;
const LANES: u32 = 32u;
const THREADS: u32 = 256u;

const COLUMNS: u32 = THREADS / LANES;
const COLUMN_BLOCKS: u32 = (N + COLUMNS - 1u) / COLUMNS;

var<storage, read> a: array<f32>;
var<storage, read> b: array<f32>;
var<storage, read> indices: array<u32>;
var<storage, read_write> out: array<f32>;

var<workgroup> sums: array<f32, THREADS>;

fn load_index(row: u32) -> u32 {
    return indices[row];
}

fn load_a(at: u32) -> f32 {
    return a[at];
}

fn load_b(at: u32) -> f32 {
    return b[at];
}

// Return four adjacent elements. The index of the first one is a multiple of four.
fn load_a_vector(at: u32) -> vec4<f32> {
    return vec4<f32>(a[at], a[at + 1u], a[at + 2u], a[at + 3u]);
}

fn load_b_vector(at: u32) -> vec4<f32> {
    return vec4<f32>(b[at], b[at + 1u], b[at + 2u], b[at + 3u]);
}

fn store(i: u32, value: f32) {
    out[i] = value;
}

// lib/fault.wgsl
fn checked_index(index: u32, rows: u32) -> u32 {
    return min(index, rows - 1u);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_column = group_number % COLUMN_BLOCKS * COLUMNS;
    let row = group_number / COLUMN_BLOCKS;
    let expert = checked_index(load_index(row), EXPERTS);
    var sum = 0.0;
    // @if B_K_MAJOR
    let slot = local % LANES;
    let column = min(first_column + local / LANES, N - 1u);
    let line = (expert * N + column) * K;
    // @if VECTORS
    var sums_of_four = vec4<f32>();
    for (var k = slot * 4u; k < K; k += LANES * 4u) {
        sums_of_four = fma(load_a_vector(row * K + k), load_b_vector(line + k), sums_of_four);
    }
    let pair = sums_of_four.xy + sums_of_four.zw;
    sum = pair.x + pair.y;
    // @else
    //# for (var k = slot; k < K; k += LANES) {
    //#     sum = fma(load_a(row * K + k), load_b(line + k), sum);
    //# }
    // @end
    // @else
    //# let slot = local / COLUMNS;
    //# let column = min(first_column + local % COLUMNS, N - 1u);
    //# for (var k = slot; k < K; k += LANES) {
    //#     sum = fma(load_a(row * K + k), load_b((expert * K + k) * N + column), sum);
    //# }
    // @end
    sums[local] = sum;
    workgroupBarrier();
    if (local < COLUMNS) {
        let own_column = first_column + local;
        if (own_column < N) {
            var total = 0.0;
            for (var lane = 0u; lane < LANES; lane += 1u) {
                // @if B_K_MAJOR
                total += sums[local * LANES + lane];
                // @else
                //# total += sums[lane * COLUMNS + local];
                // @end
            }
            store(row * N + own_column, total);
        }
    }
}
