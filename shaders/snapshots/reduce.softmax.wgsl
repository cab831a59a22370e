var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
// Reductions over some axes, with what is computed for each element before them, and for each row or element after them: sums,
// norms, softmaxes, losses.
//
// The axes that are kept number ROWS, those that are reduced COLUMNS. A row has LANES threads of a workgroup, each of which
// reduces every LANES-th column in registers; then what the lanes have is joined in shared memory, in pairs of pairs. Reductions
// that depend on others are of a later level (in a softmax the sum is behind the maximum): columns are gone over once for each
// level, and once more where results have an element for each column.
//
// Loops have UNROLL columns of a thread in flight. If a thread has few columns (WRITTEN) there is no loop: what is loaded for
// them once stays in registers for later levels. Long rows of which there are few are cut into PARTS (split reduction), which
// reduce_join.wgsl puts together. PROLOGUE: every workgroup of a matmul kernel computes the one row for itself.
//
// What is computed for elements and rows is inserted; as it stands, the kernel adds up the elements of each row.
//
// Twin in the oracle: core/src/ops/reduce.rs.

const ROWS: u32 = 1u;
const COLUMNS: u32 = 1u;
// The schedule. Neighbouring threads have neighbouring rows where ROWS_FIRST, as those are neighbours in memory then.
const LANES: u32 = 1u;
const PARTS: u32 = 1u;
const THREADS: u32 = 256u;
const WIDTH: u32 = 256u;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
let row_here = local;
let lane = 0u;
    // Threads without a row do the work of the last one, and store nothing.
    let exists = group_number / PARTS * WIDTH + row_here <= ROWS - 1u;
    let row = min(group_number / PARTS * WIDTH + row_here, ROWS - 1u);
let begin = 0u;
let end = COLUMNS;
let column_0 = lane + 0u * LANES;
let element_0 = 0u;

let v1 = b0[0u];
let v2 = v1;
let v3 = v2;
let v4 = v1 - v3;
let v5 = exp_f32(v4);
let v6 = v5;
let v7 = v6;
let v8 = v5 / v7;

    if (exists && lane == 0u) {
b1[row] = v8;
    }
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
// 2^n for whole n from -126 to 127.
fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}
// x 2^n, through two factors, so that n may be beyond the range of one.
fn scale_by_power(x: f32, n: i32) -> f32 {
    let half = n / 2;
    return x * power_of_two(half) * power_of_two(n - half);
}
// e^r for |r| <= ln(2) / 2: the Taylor series.
fn exp_core(r: f32) -> f32 {
    var p = 1.0 / 5040.0;
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    return fma(p, r, 1.0);
}
fn exp_f32(x: f32) -> f32 {
    // Beyond this the result is 0 or infinite; NaN passes both comparisons.
    let limited = select(select(x, 90.0, x > 90.0), -105.0, x < -105.0);
    let n = round(limited * 1.44269504);
    // ln(2) in two parts, the first with trailing zeros.
    let r = fma(n, -1.42860682e-6, fma(n, -0.693145752, limited));
    let whole = i32(select(n, 0.0, is_nan(x)));
    return select(scale_by_power(exp_core(r), whole), x, is_nan(x));
}
