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
const N: u32 = 4096u;
const K: u32 = 4096u;
// The schedule.
const COLUMNS: u32 = 2u; // number of columns of a thread
const TILES: u32 = 1u; // number of tiles that a workgroup computes one after the other
const SPLIT_K: u32 = 1u;
const LENGTH: u32 = 4096u; // number of terms of a part, a multiple of those of a unit
const CHUNK: u32 = 128u; // number of units of a row in shared memory
const UNIT: u32 = 1u;
const STRIDE: u32 = 1u; // vectors from one unit to the next in shared memory; the sums of a block's terms follow the block
const COUNT: u32 = 4u; // number of units of a column that a thread loads together
const PACKED: bool = false;
const HIGH: bool = false; // true if a block has more than four words
const SUMMED: bool = false; // true if the sums of the rows' terms are needed
const COMPUTED: bool = false; // true if elements of rows are computed one by one
const SUBGROUPS: bool = false; // true if the LANES threads of a column are a subgroup
const SHARED_SUMS: bool = false; // true if the epilogue reads several sums of the workgroup, which are in `products`
const HALF: u32 = 0u; // distance in columns between the two of a rotated pair, or 0; both are in one workgroup
const THREADS: u32 = 256u;
const LANES: u32 = 32u;

const GROUPS: u32 = THREADS / LANES;
const TILE: u32 = COLUMNS * GROUPS; // number of columns of a tile
const ALL_TILES: u32 = (N + TILE - 1u) / TILE;
const COLUMN_BLOCKS: u32 = (ALL_TILES + TILES - 1u) / TILES; // number of workgroups of a row of the result
const UNITS: u32 = LENGTH / (4u * UNIT); // number of units of a part
const ALL_UNITS: u32 = K / (4u * UNIT);
const CHUNKS: u32 = (UNITS + CHUNK - 1u) / CHUNK;
const SUMS: u32 = M * COLUMNS;
const ROW: u32 = CHUNK * STRIDE;
const CHUNK_VECTORS: u32 = CHUNK * UNIT;

// Indices of repeats.
const n: u32 = 0u; const c: u32 = 0u; const r: u32 = 0u; const t: u32 = 0u; const v: u32 = 0u; const u: u32 = 0u;

var<storage, read> a: array<vec4<f32>>;
var<storage, read> b: array<vec4<f32>>;
var<storage, read_write> out: array<f32>;

var<workgroup> staged: array<vec4<f32>, M * ROW>;
var<workgroup> sums: array<f32, THREADS>;
var<workgroup> products: array<f32, M * TILE>;

// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> { return a[((batch * M + line) * K + k * 4u) / 4u]; }

// Element `k` of a row, if elements have to be computed (COMPUTED).
fn compute_a(batch: u32, line: u32, k: u32) -> f32 { return load_a(batch, line, k / 4u)[k % 4u]; }

// The vector `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> vec4<f32> { return b[((batch * N + line) * K + k * 4u) / 4u]; }

// The first four words of the block `k` of a column, the words after them, and its scales.
fn load_low(batch: u32, line: u32, k: u32) -> vec4<u32> { return bitcast<vec4<u32>>(load_b(batch, line, k)); }
fn load_high(batch: u32, line: u32, k: u32) -> vec4<u32> { return bitcast<vec4<u32>>(load_b(batch, line, k)); }
fn load_scales(batch: u32, line: u32, k: u32) -> vec2<f32> { return vec2<f32>(1.0); }

// A vector of a block, with the bias.
fn expand(low: vec4<u32>, high: vec4<u32>, number: u32) -> vec4<f32> { return bitcast<vec4<f32>>(low); }

// The sum of a block: its scales, the sums of both halves with the bias, and the sums of the row's terms of both halves.
fn scaled(scales: vec2<f32>, halves: vec2<f32>, terms: vec2<f32>) -> f32 { return scales.x * (halves.x + halves.y); }

// Adds four products to a sum.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }

// lib/tile.wgsl
fn column_of(tile: u32, number: u32) -> u32 { return tile * TILE + number; }

// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }

// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    out[part * (BATCH * M * N) + i] = product;
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
    // @if CHUNKS > 1
    //# await_earlier_launches();
    // @insert before
    // @end
    // @repeat n < TILES
    {
        let tile = first_tile + n * COLUMN_BLOCKS;
        // @repeat c < COLUMNS
        let column_c = min(column_of(tile, c * GROUPS + local / LANES), N - 1u);
        // @end
        // @repeat t < SUMS
        var sum_t = 0.0;
        // @end
        // @if CHUNKS > 1
        //# for (var chunk = first_unit; chunk < end; chunk += CHUNK) {
        // @else
        let chunk = first_unit;
        {
        // @end
            let chunk_end = min(chunk + CHUNK, end);
            // The code before this point does not use the matrix, which is loaded meanwhile.
            // @repeat u < COUNT
            let first_u = min(chunk + slot + u * LANES, chunk_end - 1u);
            // @repeat c < COLUMNS
            // @if PACKED
            //# var low_u_c = load_low(batch, column_c, first_u);
            // @if HIGH
            //# var high_u_c = load_high(batch, column_c, first_u);
            // @end
            //# var scales_u_c = load_scales(batch, column_c, first_u);
            // @else
            var b_u_c = load_b(batch, column_c, first_u);
            // @end
            // @end
            // @end
            // @if CHUNKS == 1 && n == 0
            await_earlier_launches();
            // @insert before
            // @end
            // @if CHUNKS > 1
            //# workgroupBarrier();
            // @end
            // @if CHUNKS > 1 || n == 0
            for (var i = local; i < M * CHUNK_VECTORS; i += THREADS) {
                let row = i / CHUNK_VECTORS;
                let vector = i % CHUNK_VECTORS;
                let found = min(chunk * UNIT + vector, K / 4u - 1u);
                // @if COMPUTED
                //# let x = vec4<f32>(compute_a(batch, row, found * 4u), compute_a(batch, row, found * 4u + 1u),
                //#     compute_a(batch, row, found * 4u + 2u), compute_a(batch, row, found * 4u + 3u));
                // @else
                let x = load_a(batch, row, found);
                // @end
                staged[row * ROW + vector / UNIT * STRIDE + vector % UNIT] = x;
            }
            workgroupBarrier();
            // @if SUMMED
            //# for (var i = local; i < M * CHUNK; i += THREADS) {
            //#     let at = i / CHUNK * ROW + i % CHUNK * STRIDE;
            //#     let low = staged[at] + staged[at + 1u] + (staged[at + 2u] + staged[at + 3u]);
            //#     let high = staged[at + 4u] + staged[at + 5u] + (staged[at + 6u] + staged[at + 7u]);
            //#     staged[at + UNIT] = vec4<f32>(low.x + low.y + (low.z + low.w), high.x + high.y + (high.z + high.w), 0.0, 0.0);
            //# }
            //# workgroupBarrier();
            // @end
            // @end
            for (var k = chunk + slot; k < chunk_end; k += COUNT * LANES) {
                // @repeat u < COUNT
                let k_u = min(k + u * LANES, chunk_end - 1u);
                // The units of the next round are loaded while the units of this round are added.
                let next_u = min(k + (COUNT + u) * LANES, chunk_end - 1u);
                // @repeat c < COLUMNS
                // @if PACKED
                //# let own_low_u_c = low_u_c;
                // @if HIGH
                //# let own_high_u_c = high_u_c;
                // @end
                //# let own_scales_u_c = scales_u_c;
                // @if COUNT * LANES < CHUNK
                //# low_u_c = load_low(batch, column_c, next_u);
                // @if HIGH
                //# high_u_c = load_high(batch, column_c, next_u);
                // @end
                //# scales_u_c = load_scales(batch, column_c, next_u);
                // @end
                // @else
                let own_b_u_c = b_u_c;
                // @if COUNT * LANES < CHUNK
                b_u_c = load_b(batch, column_c, next_u);
                // @end
                // @end
                // @end
                // @end
                // @repeat u < COUNT
                let at_u = (k_u - chunk) * STRIDE;
                let is_inside_u = k + u * LANES < chunk_end;
                // @repeat r < M
                // @if PACKED
                //# var terms_u_r = vec2<f32>();
                // @if SUMMED
                //# terms_u_r = staged[r * ROW + at_u + UNIT].xy;
                // @end
                // @repeat v < UNIT
                //# let x_u_r_v = staged[r * ROW + at_u + v];
                // @end
                // @repeat c < COLUMNS, t in r * COLUMNS + c..r * COLUMNS + c + 1
                //# var lower_u_t = 0.0;
                //# var upper_u_t = 0.0;
                // @repeat v < UNIT / 2
                // @if HIGH
                //# lower_u_t = add_terms(lower_u_t, x_u_r_v, expand(own_low_u_c, own_high_u_c, v));
                // @else
                //# lower_u_t = add_terms(lower_u_t, x_u_r_v, expand(own_low_u_c, own_low_u_c, v));
                // @end
                // @end
                // @repeat v in UNIT / 2..UNIT
                // @if HIGH
                //# upper_u_t = add_terms(upper_u_t, x_u_r_v, expand(own_low_u_c, own_high_u_c, v));
                // @else
                //# upper_u_t = add_terms(upper_u_t, x_u_r_v, expand(own_low_u_c, own_low_u_c, v));
                // @end
                // @end
                //# sum_t += select(0.0, scaled(own_scales_u_c, vec2<f32>(lower_u_t, upper_u_t), terms_u_r), is_inside_u);
                // @end
                // @else
                let x_u_r = select(vec4<f32>(), staged[r * ROW + at_u], is_inside_u);
                // @repeat c < COLUMNS, t in r * COLUMNS + c..r * COLUMNS + c + 1
                let y_u_t = select(vec4<f32>(), own_b_u_c, is_inside_u);
                sum_t = add_terms(sum_t, x_u_r, y_u_t);
                // @end
                // @end
                // @end
                // @end
            }
        }
        // @if SUBGROUPS
        // @repeat t < SUMS
        //# let all_t = subgroupAdd(sum_t);
        // @end
        // Lane `t` of a column finishes the sum `t`.
        //# var own_sum = all_0;
        // @repeat t in 1..SUMS
        //# own_sum = select(own_sum, all_t, slot == t);
        // @end
        // @else
        var own_sum = 0.0;
        // @repeat t < SUMS
        sums[local] = sum_t;
        workgroupBarrier();
        if (slot == t) {
            for (var lane = 0u; lane < LANES; lane += 1u) {
                own_sum += sums[local - slot + lane];
            }
        }
        workgroupBarrier();
        // @end
        // @end
        let own_number = slot % COLUMNS * GROUPS + local / LANES;
        // @if SHARED_SUMS
        //# if (slot < SUMS) {
        //#     products[slot / COLUMNS * TILE + own_number] = own_sum;
        //# }
        //# workgroupBarrier();
        //# for (var at = local; at < M * TILE; at += THREADS) {
        //#     let own_column = column_of(tile, at % TILE);
        //#     if (own_column < N) {
        //#         finish(0u, element_number(0u, at / TILE, own_column), products[at]);
        //#     }
        //# }
        //# workgroupBarrier();
        // @else
        if (slot < SUMS && column_of(tile, own_number) < N) {
            finish(part, element_number(batch, slot / COLUMNS, column_of(tile, own_number)), own_sum);
        }
        // @end
    }
    // @end
}
