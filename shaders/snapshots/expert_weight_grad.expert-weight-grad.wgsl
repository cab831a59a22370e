var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read_write> b2: array<f32>;
var<storage, read> starts: array<u32>;
var<storage, read> order: array<u32>;
// Gradients of the experts' matrices: out[expert, N, K] is the sum, over the rows of each expert, of the outer products
// of two rows. It is computed by tiles in shared memory. Rows are in the order of experts (expert_sort.wgsl). A
// workgroup computes 32 rows of 64 columns of a matrix, each thread two rows of four columns.
//
// Twin in the oracle: core/src/ops/expert_matmul.rs.
const N: u32 = 20u;
const K: u32 = 36u;
const THREADS: u32 = 256u;
const TILE_ROWS: u32 = 32u;
const TILE_COLUMNS: u32 = 64u;
const STEP: u32 = 16u;
const COLUMN_BLOCKS: u32 = 1u;
const ROW_BLOCKS: u32 = 1u;
var<workgroup> shared_a: array<f32, TILE_ROWS * STEP>;
var<workgroup> shared_b: array<f32, TILE_COLUMNS * STEP>;
fn load_a(at: u32) -> f32 {
    return b0[at];
}
fn load_b(at: u32) -> f32 {
    return b1[at];
}
fn store(i: u32, value: f32) {
    b2[i] = value;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_column = group_number % COLUMN_BLOCKS * TILE_COLUMNS;
    let first_row = group_number / COLUMN_BLOCKS % ROW_BLOCKS * TILE_ROWS;
    let expert = group_number / (COLUMN_BLOCKS * ROW_BLOCKS);
    let end = starts[expert + 1u];
    let own_row = local / 16u * 2u;
    let own_column = local % 16u * 4u;
    var sum_0 = vec4<f32>();
    var sum_1 = vec4<f32>();
    for (var first = starts[expert]; first < end; first += STEP) {
        for (var at = local; at < TILE_ROWS * STEP; at += THREADS) {
            let line = first_row + at % TILE_ROWS;
            let place = first + at / TILE_ROWS;
            var value = 0.0;
            if (place < end && line < N) {
                value = load_a(order[place] * N + line);
            }
            shared_a[at] = value;
        }
        for (var at = local; at < TILE_COLUMNS * STEP; at += THREADS) {
            let line = first_column + at % TILE_COLUMNS;
            let place = first + at / TILE_COLUMNS;
            var value = 0.0;
            if (place < end && line < K) {
                value = load_b(order[place] * K + line);
            }
            shared_b[at] = value;
        }
        workgroupBarrier();
        for (var step = 0u; step < STEP; step += 1u) {
            let at = step * TILE_COLUMNS + own_column;
            let columns = vec4<f32>(shared_b[at], shared_b[at + 1u], shared_b[at + 2u], shared_b[at + 3u]);
            sum_0 = fma(vec4<f32>(shared_a[step * TILE_ROWS + own_row]), columns, sum_0);
            sum_1 = fma(vec4<f32>(shared_a[step * TILE_ROWS + own_row + 1u]), columns, sum_1);
        }
        workgroupBarrier();
    }
    let line = first_row + own_row;
    let to = (expert * N + line) * K + first_column + own_column;
    if (first_column + own_column + 0u < K) {
        if (line < N) {
            store(to + 0u, sum_0[0u]);
        }
        if (line + 1u < N) {
            store(to + 0u + K, sum_1[0u]);
        }
    }
    if (first_column + own_column + 1u < K) {
        if (line < N) {
            store(to + 1u, sum_0[1u]);
        }
        if (line + 1u < N) {
            store(to + 1u + K, sum_1[1u]);
        }
    }
    if (first_column + own_column + 2u < K) {
        if (line < N) {
            store(to + 2u, sum_0[2u]);
        }
        if (line + 1u < N) {
            store(to + 2u + K, sum_1[2u]);
        }
    }
    if (first_column + own_column + 3u < K) {
        if (line < N) {
            store(to + 3u, sum_0[3u]);
        }
        if (line + 1u < N) {
            store(to + 3u + K, sum_1[3u]);
        }
    }
}
