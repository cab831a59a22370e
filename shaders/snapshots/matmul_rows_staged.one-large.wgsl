var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
// Matrix product of few rows with a large matrix that is contiguous along K, as in the decode phase of a model with
// billions of parameters.
//
// A workgroup stores the rows in shared memory (CHUNK units at a time), and then computes one TILE of columns after the
// other. Each column has LANES threads. A thread has COUNT units of COLUMNS columns in flight while rows are stored,
// and while earlier units are added. A unit is UNIT vectors of four terms: a block of packed weights, or one vector of
// a plain matrix. An element of a row is read from shared memory once for COLUMNS columns. If there are few columns, K
// is split into SPLIT_K parts (split-K).
//
// A packed integer q is converted to the float BIAS + q by setting bits of its mantissa: this takes a shift, an "and"
// and an "or". The bias is subtracted once for each block: sum(q x) = sum((BIAS + q) x) - BIAS sum(x), and sum(x) is
// computed once for all columns (SUMMED). The vector with this sum also keeps adjacent lanes in different banks of
// shared memory.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/quantized.rs.
const BATCH: u32 = 1u;
const M: u32 = 1u;
const N: u32 = 28672u;
const K: u32 = 4096u;
// The schedule.
const COLUMNS: u32 = 4u;
const CHUNK: u32 = 1024u;
const UNIT: u32 = 1u;
const STRIDE: u32 = 1u;
const COUNT: u32 = 2u;
const HALF: u32 = 0u;
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const GROUPS: u32 = 8u;
const TILE: u32 = 32u;
const COLUMN_BLOCKS: u32 = 896u;
const UNITS: u32 = 1024u;
const ALL_UNITS: u32 = 1024u;
const SUMS: u32 = 4u;
const ROW: u32 = 1024u;
const CHUNK_VECTORS: u32 = 1024u;
var<workgroup> staged: array<vec4<f32>, M * ROW>;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v2 = k * 4u;
    return b2[(v2) / 4u];
}
// The vector `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v1 = k * 4u;
    return b1[(line * 4096u + v1) / 4u];
}
// Adds four products to a sum.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }
// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
// Backends that start a launch before the previous one has finished wait for it here: no launch writes the data that is
// read before this point.
fn await_earlier_launches() {}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_tile = group_number % COLUMN_BLOCKS;
    let batch = group_number / COLUMN_BLOCKS % BATCH;
    let part = group_number / (COLUMN_BLOCKS * BATCH);
    let slot = local % LANES;
    let first_unit = part * UNITS;
    let end = min(first_unit + UNITS, ALL_UNITS);
    {
        let tile = first_tile + 0u * COLUMN_BLOCKS;
        let column_0 = min(column_of(tile, 0u * GROUPS + local / LANES), N - 1u);
        let column_1 = min(column_of(tile, 1u * GROUPS + local / LANES), N - 1u);
        let column_2 = min(column_of(tile, 2u * GROUPS + local / LANES), N - 1u);
        let column_3 = min(column_of(tile, 3u * GROUPS + local / LANES), N - 1u);
        var sum_0 = 0.0;
        var sum_1 = 0.0;
        var sum_2 = 0.0;
        var sum_3 = 0.0;
        let chunk = first_unit;
        {
            let chunk_end = min(chunk + CHUNK, end);
            // The code before this point does not use the matrix, which is loaded meanwhile.
            let first_0 = min(chunk + slot + 0u * LANES, chunk_end - 1u);
            var b_0_0 = load_b(batch, column_0, first_0);
            var b_0_1 = load_b(batch, column_1, first_0);
            var b_0_2 = load_b(batch, column_2, first_0);
            var b_0_3 = load_b(batch, column_3, first_0);
            let first_1 = min(chunk + slot + 1u * LANES, chunk_end - 1u);
            var b_1_0 = load_b(batch, column_0, first_1);
            var b_1_1 = load_b(batch, column_1, first_1);
            var b_1_2 = load_b(batch, column_2, first_1);
            var b_1_3 = load_b(batch, column_3, first_1);
            await_earlier_launches();
            for (var i = local; i < M * CHUNK_VECTORS; i += THREADS) {
                let row = i / CHUNK_VECTORS;
                let vector = i % CHUNK_VECTORS;
                let found = min(chunk * UNIT + vector, K / 4u - 1u);
                let x = load_a(batch, row, found);
                staged[row * ROW + vector / UNIT * STRIDE + vector % UNIT] = x;
            }
            workgroupBarrier();
            for (var k = chunk + slot; k < chunk_end; k += COUNT * LANES) {
                let k_0 = min(k + 0u * LANES, chunk_end - 1u);
                // The units of the next round are loaded while the units of this round are added.
                let next_0 = min(k + (COUNT + 0u) * LANES, chunk_end - 1u);
                let own_b_0_0 = b_0_0;
                b_0_0 = load_b(batch, column_0, next_0);
                let own_b_0_1 = b_0_1;
                b_0_1 = load_b(batch, column_1, next_0);
                let own_b_0_2 = b_0_2;
                b_0_2 = load_b(batch, column_2, next_0);
                let own_b_0_3 = b_0_3;
                b_0_3 = load_b(batch, column_3, next_0);
                let k_1 = min(k + 1u * LANES, chunk_end - 1u);
                // The units of the next round are loaded while the units of this round are added.
                let next_1 = min(k + (COUNT + 1u) * LANES, chunk_end - 1u);
                let own_b_1_0 = b_1_0;
                b_1_0 = load_b(batch, column_0, next_1);
                let own_b_1_1 = b_1_1;
                b_1_1 = load_b(batch, column_1, next_1);
                let own_b_1_2 = b_1_2;
                b_1_2 = load_b(batch, column_2, next_1);
                let own_b_1_3 = b_1_3;
                b_1_3 = load_b(batch, column_3, next_1);
                let at_0 = (k_0 - chunk) * STRIDE;
                let is_inside_0 = k + 0u * LANES < chunk_end;
                let x_0_0 = select(vec4<f32>(), staged[0u * ROW + at_0], is_inside_0);
                let y_0_0 = select(vec4<f32>(), own_b_0_0, is_inside_0);
                sum_0 = add_terms(sum_0, x_0_0, y_0_0);
                let y_0_1 = select(vec4<f32>(), own_b_0_1, is_inside_0);
                sum_1 = add_terms(sum_1, x_0_0, y_0_1);
                let y_0_2 = select(vec4<f32>(), own_b_0_2, is_inside_0);
                sum_2 = add_terms(sum_2, x_0_0, y_0_2);
                let y_0_3 = select(vec4<f32>(), own_b_0_3, is_inside_0);
                sum_3 = add_terms(sum_3, x_0_0, y_0_3);
                let at_1 = (k_1 - chunk) * STRIDE;
                let is_inside_1 = k + 1u * LANES < chunk_end;
                let x_1_0 = select(vec4<f32>(), staged[0u * ROW + at_1], is_inside_1);
                let y_1_0 = select(vec4<f32>(), own_b_1_0, is_inside_1);
                sum_0 = add_terms(sum_0, x_1_0, y_1_0);
                let y_1_1 = select(vec4<f32>(), own_b_1_1, is_inside_1);
                sum_1 = add_terms(sum_1, x_1_0, y_1_1);
                let y_1_2 = select(vec4<f32>(), own_b_1_2, is_inside_1);
                sum_2 = add_terms(sum_2, x_1_0, y_1_2);
                let y_1_3 = select(vec4<f32>(), own_b_1_3, is_inside_1);
                sum_3 = add_terms(sum_3, x_1_0, y_1_3);
            }
        }
        let all_0 = subgroupAdd(sum_0);
        let all_1 = subgroupAdd(sum_1);
        let all_2 = subgroupAdd(sum_2);
        let all_3 = subgroupAdd(sum_3);
        // Lane `t` of a column finishes the sum `t`.
        var own_sum = all_0;
        own_sum = select(own_sum, all_1, slot == 1u);
        own_sum = select(own_sum, all_2, slot == 2u);
        own_sum = select(own_sum, all_3, slot == 3u);
        let own_number = slot % COLUMNS * GROUPS + local / LANES;
        if (slot < SUMS && column_of(tile, own_number) < N) {
            finish(part, element_number(batch, slot / COLUMNS, column_of(tile, own_number)), own_sum);
        }
    }
}
// Columns of a workgroup, for matmuls of few rows whose epilogues read several sums of the workgroup. A kernel that
// calls these functions declares N; TILE, the number of columns of a workgroup; HALF, the distance in columns of the
// two elements of a rotated pair, or 0; and in workgroup memory `products`, all sums of the workgroup, row by row.
// Column of the result, by its number in the workgroup. If pairs are rotated, the first columns of all pairs come
// before the second ones.
fn column_of(tile: u32, number: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    let pair = tile * PAIRS + number % PAIRS;
    let rotated = pair / SOME_HALF * (2u * HALF) + number / PAIRS * HALF + pair % SOME_HALF;
    return select(tile * TILE + number, rotated, HALF > 0u);
}
