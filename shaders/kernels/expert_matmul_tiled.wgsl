// Product of rows with the matrix of their expert, by tiles in shared memory. Rows in the order of experts
// (expert_sort.wgsl) are split into tiles of one expert each. The number of tiles is unknown before the launch, so
// there are more workgroups than tiles.
//
// A workgroup computes TILE_ROWS rows of 64 columns, each thread two rows of four columns.
//
// Twin in the oracle: core/src/ops/expert_matmul.rs.

const EXPERTS: u32 = 8u;
const N: u32 = 64u;
const K: u32 = 64u;
// B_K_MAJOR: elements of a matrix that are adjacent in memory are adjacent along K, rather than along N.
const B_K_MAJOR: bool = true;
const VECTORS: bool = true;
const THREADS: u32 = 256u;

const TILE_ROWS: u32 = 32u;
const TILE_COLUMNS: u32 = 64u;
const STEP: u32 = 16u;
const COLUMN_BLOCKS: u32 = (N + TILE_COLUMNS - 1u) / TILE_COLUMNS;

// Indices of repeats.
const q: u32 = 0u;

var<storage, read> a: array<f32>;
var<storage, read> b: array<f32>;
var<storage, read> starts: array<u32>;
var<storage, read> order: array<u32>;
var<storage, read_write> out: array<f32>;

var<workgroup> shared_a: array<f32, TILE_ROWS * STEP>;
var<workgroup> shared_b: array<f32, TILE_COLUMNS * STEP>;

fn load_a(at: u32) -> f32 {
    return a[at];
}

fn load_b(at: u32) -> f32 {
    return b[at];
}

// Four adjacent elements; the index of the first one is a multiple of four.
fn load_b_vector(at: u32) -> vec4<f32> {
    return vec4<f32>(b[at], b[at + 1u], b[at + 2u], b[at + 3u]);
}

fn store(i: u32, value: f32) {
    out[i] = value;
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
        // @repeat q < TILE_ROWS * STEP / THREADS
        {
            let at = local + q * THREADS;
            let row = at / STEP;
            let k = first + at % STEP;
            var value = 0.0;
            if (row < count && k < K) {
                value = load_a(order[place + row] * K + k);
            }
            shared_a[at % STEP * TILE_ROWS + row] = value;
        }
        // @end
        // @if VECTORS
        {
            let column = first_column + local / 4u;
            let part = local % 4u * 4u;
            var values = vec4<f32>();
            if (column < N && first + part < K) {
                values = load_b_vector((expert * N + column) * K + first + part);
            }
            shared_b[part * TILE_COLUMNS + local / 4u] = values.x;
            shared_b[(part + 1u) * TILE_COLUMNS + local / 4u] = values.y;
            shared_b[(part + 2u) * TILE_COLUMNS + local / 4u] = values.z;
            shared_b[(part + 3u) * TILE_COLUMNS + local / 4u] = values.w;
        }
        // @else
        //# for (var at = local; at < TILE_COLUMNS * STEP; at += THREADS) {
        // @if B_K_MAJOR
        //#     let line = at / STEP;
        //#     let part = at % STEP;
        //#     let source = (expert * N + first_column + line) * K + first + part;
        // @else
        //#     let line = at % TILE_COLUMNS;
        //#     let part = at / TILE_COLUMNS;
        //#     let source = (expert * K + first + part) * N + first_column + line;
        // @end
        //#     var value = 0.0;
        //#     if (first_column + line < N && first + part < K) {
        //#         value = load_b(source);
        //#     }
        //#     shared_b[part * TILE_COLUMNS + line] = value;
        //# }
        // @end
        workgroupBarrier();
        for (var k = 0u; k < STEP; k += 1u) {
            let at = k * TILE_COLUMNS + own_column;
            let columns = vec4<f32>(shared_b[at], shared_b[at + 1u], shared_b[at + 2u], shared_b[at + 3u]);
            sum_0 = fma(vec4<f32>(shared_a[k * TILE_ROWS + own_row]), columns, sum_0);
            sum_1 = fma(vec4<f32>(shared_a[k * TILE_ROWS + own_row + 1u]), columns, sum_1);
        }
        workgroupBarrier();
    }
    // @repeat q < 4
    if (first_column + own_column + q < N) {
        let to = first_column + own_column + q;
        if (own_row < count) {
            store(order[place + own_row] * N + to, sum_0[q]);
        }
        if (own_row + 1u < count) {
            store(order[place + own_row + 1u] * N + to, sum_1[q]);
        }
    }
    // @end
}
