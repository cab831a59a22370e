var<storage, read> b1: array<vec4<f32>>;
var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read> b4: array<u32>;
var<storage, read_write> b5: array<f32>;
// Product of each row with the matrix of its expert, for few rows, as in the decode phase of a language model. The
// memory bandwidth for reading the matrices limits the speed, because few rows share a matrix.
//
// A workgroup has THREADS / LANES columns of a row. The LANES threads of a column share its sum over K. Adjacent
// threads read adjacent memory, four terms at a time if these are contiguous (VECTORS).
//
// Twin in the oracle: core/src/ops/expert_matmul.rs.
const EXPERTS: u32 = 6u;
const N: u32 = 20u;
const K: u32 = 36u;
const LANES: u32 = 32u;
const THREADS: u32 = 256u;
const COLUMNS: u32 = 8u;
const COLUMN_BLOCKS: u32 = 3u;
var<workgroup> sums: array<f32, THREADS>;
fn load_index(row: u32) -> u32 {
    return b4[row];
}
// Return four adjacent elements. The index of the first one is a multiple of four.
fn load_a_vector(at: u32) -> vec4<f32> {
    return b3[at / 4u];
}
fn load_b_vector(at: u32) -> vec4<f32> {
    return b1[at / 4u];
}
fn store(i: u32, value: f32) {
    b5[i] = value;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_column = group_number % COLUMN_BLOCKS * COLUMNS;
    let row = group_number / COLUMN_BLOCKS;
    let expert = checked_index(load_index(row), EXPERTS);
    var sum = 0.0;
    let slot = local % LANES;
    let column = min(first_column + local / LANES, N - 1u);
    let line = (expert * N + column) * K;
    var sums_of_four = vec4<f32>();
    for (var k = slot * 4u; k < K; k += LANES * 4u) {
        sums_of_four = fma(load_a_vector(row * K + k), load_b_vector(line + k), sums_of_four);
    }
    let pair = sums_of_four.xy + sums_of_four.zw;
    sum = pair.x + pair.y;
    sums[local] = sum;
    workgroupBarrier();
    if (local < COLUMNS) {
        let own_column = first_column + local;
        if (own_column < N) {
            var total = 0.0;
            for (var lane = 0u; lane < LANES; lane += 1u) {
                total += sums[local * LANES + lane];
            }
            store(row * N + own_column, total);
        }
    }
}
// Returns the index if it is below `rows`. Otherwise reports it and returns 0. The largest invalid index is kept, so
// that the report does not depend on the order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
