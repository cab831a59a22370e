// Matrix product of few rows whose operands are contiguous along K: a thread loads units of one or more vectors of four
// terms. If its part of the matrix B is small enough, a thread loads all of it before it waits for other data.
//
// A workgroup has TILE columns. LANES threads share the sums of a column, and each thread has COLUMNS columns for all M
// rows, with sums in registers. If the LANES threads are a subgroup, it adds up their sums; otherwise the sums pass
// through shared memory, STORED_SUMS sums of a thread at a time. If elements of rows have to be computed, this is done
// once (STAGED). If there are few columns, K is split into SPLIT_K parts (split-K). Packed weights stay packed in
// registers, and the sum of a unit is multiplied with its scale.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/quantized.rs.

const BATCH: u32 = 1u;
const M: u32 = 1u;
const N: u32 = 576u;
const K: u32 = 576u;
// The schedule.
const COLUMNS: u32 = 1u; // number of columns of a thread
const SPLIT_K: u32 = 1u;
const LENGTH: u32 = 576u; // number of terms of a part, a multiple of those of a unit
const UNIT: u32 = 1u; // number of vectors of a unit, the part of a column that a thread loads at once
const SCALED: bool = false; // true if each unit has a scale
const SUBGROUPS: bool = false; // true if the LANES threads of a column are a subgroup
const STAGED: bool = false;
const ROUNDS: u32 = 1u; // number of rounds in which a thread loads its units, of about the same length
const STORED_SUMS: u32 = 1u; // number of sums of a thread that are in shared memory together
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const SHARED_SUMS: bool = false; // true if the epilogue reads several sums of the workgroup, which are in `products`
const HALF: u32 = 0u; // distance in columns between the two of a rotated pair, or 0; both are in one workgroup
const SOME_ROWS: u32 = 4u; // number of rows from which on a branch skips vectors past the end; later loads wait for a branch
const REDUCE_THREADS: u32 = 8u; // number of threads that add up the sums of a column
const LAST_REDUCE_THREADS: u32 = 8u; // number of these threads for the last LAST_SUMS sums

const GROUPS: u32 = THREADS / LANES;
const TILE: u32 = COLUMNS * GROUPS; // number of columns of a workgroup
const COLUMN_BLOCKS: u32 = (N + TILE - 1u) / TILE;
const WIDTH: u32 = LENGTH / 4u; // number of vectors of a part
const UNITS: u32 = WIDTH / UNIT; // number of units of a part
const OWN_UNITS: u32 = (UNITS + LANES - 1u) / LANES; // number of units of a thread in a line
const COUNT: u32 = (OWN_UNITS + ROUNDS - 1u) / ROUNDS; // number of units of a thread in a round
const SUMS: u32 = M * COLUMNS;
const LAST_SUMS: u32 = SUMS - (SUMS - 1u) / STORED_SUMS * STORED_SUMS;
const STRIDE: u32 = LANES + 1u; // avoids bank conflicts between columns in shared memory
const STAGED_VECTORS: u32 = M * WIDTH;
// Units past the end become zeros if there are few rows (SELECTS); with more rows, a branch skips them.
const SELECTS: bool = M < SOME_ROWS;
const CHUNKS: u32 = (STAGED_VECTORS + THREADS - 1u) / THREADS;

// Indices of repeats.
const n: u32 = 0u; const c: u32 = 0u; const r: u32 = 0u; const t: u32 = 0u; const s: u32 = 0u; const u: u32 = 0u; const v: u32 = 0u;

alias Unit = vec4<f32>;

var<storage, read> a: array<vec4<f32>>;
var<storage, read> b: array<vec4<f32>>;
var<storage, read_write> out: array<f32>;

var<workgroup> staged: array<vec4<f32>, STAGED_VECTORS>;
var<workgroup> sums: array<f32, STORED_SUMS * GROUPS * STRIDE>;
var<workgroup> products: array<f32, M * TILE>;
var<workgroup> few: array<f32, GROUPS * max(STORED_SUMS * REDUCE_THREADS, LAST_SUMS * LAST_REDUCE_THREADS)>;

// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> { return a[((batch * M + line) * K + k * 4u) / 4u]; }

// Unit `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> Unit { return b[((batch * N + line) * K + k * UNIT * 4u) / 4u]; }

// Scale of unit `k` of a column.
fn load_scale(batch: u32, line: u32, k: u32) -> f32 { return 1.0; }

// Vector `number` of a unit, expanded to floats.
fn expand_b(unit: Unit, number: u32) -> vec4<f32> { return unit; }

// Index in its row or column of the vector `number` of unit `k`.
fn vector_of(k: u32, number: u32) -> u32 { return k * UNIT + number; }

// Adds four products to a sum.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }

// Element `k` of a row, if elements have to be computed (STAGED).
fn compute_a(batch: u32, line: u32, k: u32) -> f32 {
    return load_a(batch, line, k / 4u)[k % 4u];
}

// lib/tile.wgsl
fn column_of(tile: u32, number: u32) -> u32 { return tile * TILE + number; }

// Index of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }

// Stores a sum after the epilogue, or a part of a sum.
fn finish(part: u32, i: u32, product: f32) {
    out[part * (BATCH * M * N) + i] = product;
}

// Adds up the sums of every REDUCE_THREADS-th lane of a column, from index `at` on, pairwise.
fn add_lanes(at: u32) -> f32 { return sums[at] + sums[at + REDUCE_THREADS]; }

// Adds up the results of the REDUCE_THREADS threads of a column, pairwise.
fn add_few(own: u32) -> f32 { return few[own * REDUCE_THREADS] + few[own * REDUCE_THREADS + 1u]; }

// Do the same for the last LAST_SUMS sums, with LAST_REDUCE_THREADS threads.
fn add_last_lanes(at: u32) -> f32 { return sums[at] + sums[at + LAST_REDUCE_THREADS]; }

fn add_last_few(own: u32) -> f32 { return few[own * LAST_REDUCE_THREADS] + few[own * LAST_REDUCE_THREADS + 1u]; }

// Backends that start a launch before the previous one has finished wait for it here: no launch writes the data that is
// read before this point.
fn await_earlier_launches() {}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = group_number % COLUMN_BLOCKS;
    let batch = group_number / COLUMN_BLOCKS % BATCH;
    let part = group_number / (COLUMN_BLOCKS * BATCH);
    let slot = local % LANES;
    let first_vector = part * WIDTH;
    let first_unit = part * UNITS;
    let end = min(first_unit + UNITS, K / (4u * UNIT));
    // @repeat c < COLUMNS
    let column_c = min(column_of(tile, c * GROUPS + local / LANES), N - 1u);
    // @end
    // @repeat t < SUMS
    var sum_t = 0.0;
    // @end
    // @if ROUNDS == 1
    // The code before this point does not use the matrix, which is loaded meanwhile.
    let k = first_unit + slot;
    // @repeat n < COUNT
    let k_n = min(k + n * LANES, end - 1u);
    // @repeat c < COLUMNS
    // @if SELECTS && !SCALED && !(SPLIT_K == 1 && ROUNDS == 1 && (n + 1) * LANES * 4 * UNIT <= LENGTH)
    let b_n_c = select(Unit(), load_b(batch, column_c, k_n), k + n * LANES < end);
    // @else
    //# let b_n_c = load_b(batch, column_c, k_n);
    // @end
    // @if SCALED
    //# let scale_n_c = load_scale(batch, column_c, k_n);
    // @end
    // @end
    // @end
    // @end
    await_earlier_launches();
    // @insert before
    // @if STAGED
    // @repeat s < (CHUNKS + 1) / 2
    // @repeat u in s * 2..min(s * 2 + 2, CHUNKS)
    // Threads beyond the end all store the last vector once more.
    let at_u = min(local + u * THREADS, STAGED_VECTORS - 1u);
    let row_u = at_u / WIDTH;
    let first_u = (first_vector + at_u % WIDTH) * 4u;
    let x_u = compute_a(batch, row_u, min(first_u, K - 1u));
    let y_u = compute_a(batch, row_u, min(first_u + 1u, K - 1u));
    let z_u = compute_a(batch, row_u, min(first_u + 2u, K - 1u));
    let w_u = compute_a(batch, row_u, min(first_u + 3u, K - 1u));
    // @end
    // @repeat u in s * 2..min(s * 2 + 2, CHUNKS)
    staged[at_u] = vec4<f32>(x_u, y_u, z_u, w_u);
    // @end
    // @end
    workgroupBarrier();
    // @end
    // @if ROUNDS > 1
    //# for (var k = first_unit + slot; k < end; k += COUNT * LANES) {
    // @repeat n < COUNT
    //# let k_n = min(k + n * LANES, end - 1u);
    // @repeat c < COLUMNS
    // @if SELECTS && !SCALED
    //# let b_n_c = select(Unit(), load_b(batch, column_c, k_n), k + n * LANES < end);
    // @else
    //# let b_n_c = load_b(batch, column_c, k_n);
    // @end
    // @if SCALED
    //# let scale_n_c = load_scale(batch, column_c, k_n);
    // @end
    // @end
    // @end
    // @end
    // @repeat n < COUNT
    // @if M >= SOME_ROWS
    //# if (k + n * LANES < end) {
    // @end
    // @if SCALED
    // @repeat t < SUMS
    //# var unit_n_t = 0.0;
    // @end
    // @end
    // @repeat v < UNIT
    // @repeat c < COLUMNS
    let y_n_v_c = expand_b(b_n_c, v);
    // @end
    // @repeat r < M
    // @if STAGED
    //# let row_n_v_r = staged[r * WIDTH + vector_of(k_n, v) - first_vector];
    // @else
    let row_n_v_r = load_a(batch, r, vector_of(k_n, v));
    // @end
    // @if SELECTS && !SCALED && !(SPLIT_K == 1 && ROUNDS == 1 && (n + 1) * LANES * 4 * UNIT <= LENGTH)
    let x_n_v_r = select(vec4<f32>(), row_n_v_r, k + n * LANES < end);
    // @else
    //# let x_n_v_r = row_n_v_r;
    // @end
    // @repeat c < COLUMNS, t in r * COLUMNS + c..r * COLUMNS + c + 1
    // @if SCALED
    //# unit_n_t = add_terms(unit_n_t, x_n_v_r, y_n_v_c);
    // @else
    sum_t = add_terms(sum_t, x_n_v_r, y_n_v_c);
    // @end
    // @end
    // @end
    // @end
    // @if SCALED
    // @repeat r < M, c < COLUMNS, t in r * COLUMNS + c..r * COLUMNS + c + 1
    // @if SELECTS && !(SPLIT_K == 1 && ROUNDS == 1 && (n + 1) * LANES * 4 * UNIT <= LENGTH)
    //# sum_t += select(0.0, unit_n_t * scale_n_c, k + n * LANES < end);
    // @else
    //# sum_t = fma(unit_n_t, scale_n_c, sum_t);
    // @end
    // @end
    // @end
    // @if M >= SOME_ROWS
    //# }
    // @end
    // @end
    // @if ROUNDS > 1
    //# }
    // @end
    // @if SUBGROUPS
    // @repeat t < SUMS
    //# let all_t = subgroupAdd(sum_t);
    // @end
    // Lane `t` of a column finishes the sum `t`.
    //# var own_sum = all_0;
    // @repeat t in 1..SUMS
    //# own_sum = select(own_sum, all_t, slot == t);
    // @end
    //# let own_number = slot % COLUMNS * GROUPS + local / LANES;
    // @if SHARED_SUMS
    //# if (slot < SUMS) {
    //#     products[slot / COLUMNS * TILE + own_number] = own_sum;
    //# }
    // @else
    //# if (slot < SUMS && column_of(tile, own_number) < N) {
    //#     finish(part, element_number(batch, slot / COLUMNS, column_of(tile, own_number)), own_sum);
    //# }
    // @end
    // @else
    // @repeat s < (SUMS + STORED_SUMS - 1) / STORED_SUMS
    {
        let first = s * STORED_SUMS;
        // @if s > 0
        workgroupBarrier();
        // @end
        // @repeat t in s * STORED_SUMS..min((s + 1) * STORED_SUMS, SUMS)
        sums[((t - s * STORED_SUMS) * GROUPS + local / LANES) * STRIDE + slot] = sum_t;
        // @end
        workgroupBarrier();
        // @if (s + 1) * STORED_SUMS < SUMS
        //# if (local < STORED_SUMS * GROUPS * REDUCE_THREADS) {
        //#     few[local] = add_lanes(local / REDUCE_THREADS * STRIDE + local % REDUCE_THREADS);
        //# }
        // @else
        if (local < LAST_SUMS * GROUPS * LAST_REDUCE_THREADS) {
            few[local] = add_last_lanes(local / LAST_REDUCE_THREADS * STRIDE + local % LAST_REDUCE_THREADS);
        }
        // @end
        workgroupBarrier();
        if (local < min(STORED_SUMS, SUMS - s * STORED_SUMS) * GROUPS) {
            let own = s * STORED_SUMS + local / GROUPS;
            let own_number = own % COLUMNS * GROUPS + local % GROUPS;
            // @if (s + 1) * STORED_SUMS < SUMS
            //# let sum = add_few(local);
            // @else
            let sum = add_last_few(local);
            // @end
            // @if SHARED_SUMS
            //# products[own / COLUMNS * TILE + own_number] = sum;
            // @else
            if (column_of(tile, own_number) < N) {
                finish(part, element_number(batch, own / COLUMNS, column_of(tile, own_number)), sum);
            }
            // @end
        }
    }
    // @end
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
