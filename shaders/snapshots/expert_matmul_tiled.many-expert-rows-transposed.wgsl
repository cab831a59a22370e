var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read_write> b2: array<f32>;
var<storage, read> starts: array<u32>;
var<storage, read> order: array<u32>;
// Product of rows with the matrix of their expert, by tiles in shared memory. Rows in the order of experts
// (expert_sort.wgsl) are split into tiles of one expert each. The number of tiles is unknown before the launch, so
// there are more workgroups than tiles.
//
// A workgroup computes TILE_ROWS rows of 64 columns, each thread two rows of four columns.
//
// Twin in the oracle: core/src/ops/expert_matmul.rs.
const EXPERTS: u32 = 6u;
const N: u32 = 20u;
const K: u32 = 36u;
const THREADS: u32 = 256u;
const TILE_ROWS: u32 = 32u;
const TILE_COLUMNS: u32 = 64u;
const STEP: u32 = 16u;
const COLUMN_BLOCKS: u32 = 1u;
var<workgroup> shared_a: array<f32, TILE_ROWS * STEP>;
var<workgroup> shared_b: array<f32, TILE_COLUMNS * STEP>;
fn load_a(at: u32) -> f32 {
    return b1[at];
}
fn load_b(at: u32) -> f32 {
    return b0[at];
}
fn store(i: u32, value: f32) {
    b2[i] = value;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_column = group_number % COLUMN_BLOCKS * TILE_COLUMNS;
    // The expert of this tile, and the indices of its rows.
    var tile = group_number / COLUMN_BLOCKS;
    var expert = 0u;
    var place = 0u;
    var end = 0u;
    for (var e = 0u; e < EXPERTS; e += 1u) {
        let start = starts[e];
        let behind = starts[e + 1u];
        let tiles = (behind - start + TILE_ROWS - 1u) / TILE_ROWS;
        if (tile < tiles && end == 0u) {
            expert = e;
            place = start + tile * TILE_ROWS;
            end = behind;
        }
        tile -= min(tile, tiles);
    }
    let count = select(0u, min(end - place, TILE_ROWS), end > 0u);
    let own_row = local / 16u * 2u;
    let own_column = local % 16u * 4u;
    var sum_0 = vec4<f32>();
    var sum_1 = vec4<f32>();
    let length = select(0u, K, count > 0u);
    for (var first = 0u; first < length; first += STEP) {
        {
            let at = local + 0u * THREADS;
            let row = at / STEP;
            let k = first + at % STEP;
            var value = 0.0;
            if (row < count && k < K) {
                value = load_a(order[place + row] * K + k);
            }
            shared_a[at % STEP * TILE_ROWS + row] = value;
        }
        {
            let at = local + 1u * THREADS;
            let row = at / STEP;
            let k = first + at % STEP;
            var value = 0.0;
            if (row < count && k < K) {
                value = load_a(order[place + row] * K + k);
            }
            shared_a[at % STEP * TILE_ROWS + row] = value;
        }
        for (var at = local; at < TILE_COLUMNS * STEP; at += THREADS) {
            let line = at % TILE_COLUMNS;
            let part = at / TILE_COLUMNS;
            let source = (expert * K + first + part) * N + first_column + line;
            var value = 0.0;
            if (first_column + line < N && first + part < K) {
                value = load_b(source);
            }
            shared_b[part * TILE_COLUMNS + line] = value;
        }
        workgroupBarrier();
        for (var k = 0u; k < STEP; k += 1u) {
            let at = k * TILE_COLUMNS + own_column;
            let columns = vec4<f32>(shared_b[at], shared_b[at + 1u], shared_b[at + 2u], shared_b[at + 3u]);
            sum_0 = fma(vec4<f32>(shared_a[k * TILE_ROWS + own_row]), columns, sum_0);
            sum_1 = fma(vec4<f32>(shared_a[k * TILE_ROWS + own_row + 1u]), columns, sum_1);
        }
        workgroupBarrier();
    }
    if (first_column + own_column + 0u < N) {
        let to = first_column + own_column + 0u;
        if (own_row < count) {
            store(order[place + own_row] * N + to, sum_0[0u]);
        }
        if (own_row + 1u < count) {
            store(order[place + own_row + 1u] * N + to, sum_1[0u]);
        }
    }
    if (first_column + own_column + 1u < N) {
        let to = first_column + own_column + 1u;
        if (own_row < count) {
            store(order[place + own_row] * N + to, sum_0[1u]);
        }
        if (own_row + 1u < count) {
            store(order[place + own_row + 1u] * N + to, sum_1[1u]);
        }
    }
    if (first_column + own_column + 2u < N) {
        let to = first_column + own_column + 2u;
        if (own_row < count) {
            store(order[place + own_row] * N + to, sum_0[2u]);
        }
        if (own_row + 1u < count) {
            store(order[place + own_row + 1u] * N + to, sum_1[2u]);
        }
    }
    if (first_column + own_column + 3u < N) {
        let to = first_column + own_column + 3u;
        if (own_row < count) {
            store(order[place + own_row] * N + to, sum_0[3u]);
        }
        if (own_row + 1u < count) {
            store(order[place + own_row + 1u] * N + to, sum_1[3u]);
        }
    }
}
