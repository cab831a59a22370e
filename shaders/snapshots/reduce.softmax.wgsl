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
const ROWS: u32 = 64u;
const COLUMNS: u32 = 1000u;
// The schedule. Neighbouring threads have neighbouring rows where ROWS_FIRST, as those are neighbours in memory then.
const LANES: u32 = 256u;
const ROWS_FIRST: bool = false;
const PARTS: u32 = 1u;
const THREADS: u32 = 256u;
const WIDTH: u32 = 1u;
const JOINERS: u32 = 16u;
alias Value_0 = f32;
var<workgroup> shared_0: array<Value_0, THREADS>;
fn combine_0(a: Value_0, b: Value_0) -> Value_0 {
    return max_f32(a, b);
}
// Joins what every JOINERS-th lane has.
fn join_some_0(lane: u32, row_here: u32) {
    var joined = shared_0[lane * WIDTH + row_here];
    for (var other = lane + JOINERS; other < LANES; other += JOINERS) {
        joined = combine_0(joined, shared_0[other * WIDTH + row_here]);
    }
    shared_0[lane * WIDTH + row_here] = joined;
}
// What the first JOINED lanes have, in pairs of pairs.
fn joined_0(row_here: u32) -> Value_0 {
    return (max_f32((max_f32((max_f32((max_f32(shared_0[0u * WIDTH + row_here], shared_0[1u * WIDTH + row_here])), (max_f32(shared_0[2u * WIDTH + row_here], shared_0[3u * WIDTH + row_here])))), (max_f32((max_f32(shared_0[4u * WIDTH + row_here], shared_0[5u * WIDTH + row_here])), (max_f32(shared_0[6u * WIDTH + row_here], shared_0[7u * WIDTH + row_here])))))), (max_f32((max_f32((max_f32(shared_0[8u * WIDTH + row_here], shared_0[9u * WIDTH + row_here])), (max_f32(shared_0[10u * WIDTH + row_here], shared_0[11u * WIDTH + row_here])))), (max_f32((max_f32(shared_0[12u * WIDTH + row_here], shared_0[13u * WIDTH + row_here])), (max_f32(shared_0[14u * WIDTH + row_here], shared_0[15u * WIDTH + row_here]))))))));
}
alias Value_1 = f32;
var<workgroup> shared_1: array<Value_1, THREADS>;
fn combine_1(a: Value_1, b: Value_1) -> Value_1 {
    return a + b;
}
// Joins what every JOINERS-th lane has.
fn join_some_1(lane: u32, row_here: u32) {
    var joined = shared_1[lane * WIDTH + row_here];
    for (var other = lane + JOINERS; other < LANES; other += JOINERS) {
        joined = combine_1(joined, shared_1[other * WIDTH + row_here]);
    }
    shared_1[lane * WIDTH + row_here] = joined;
}
// What the first JOINED lanes have, in pairs of pairs.
fn joined_1(row_here: u32) -> Value_1 {
    return ((((shared_1[0u * WIDTH + row_here] + shared_1[1u * WIDTH + row_here]) + (shared_1[2u * WIDTH + row_here] + shared_1[3u * WIDTH + row_here])) + ((shared_1[4u * WIDTH + row_here] + shared_1[5u * WIDTH + row_here]) + (shared_1[6u * WIDTH + row_here] + shared_1[7u * WIDTH + row_here]))) + (((shared_1[8u * WIDTH + row_here] + shared_1[9u * WIDTH + row_here]) + (shared_1[10u * WIDTH + row_here] + shared_1[11u * WIDTH + row_here])) + ((shared_1[12u * WIDTH + row_here] + shared_1[13u * WIDTH + row_here]) + (shared_1[14u * WIDTH + row_here] + shared_1[15u * WIDTH + row_here]))));
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row_here = select(local / LANES, local % WIDTH, ROWS_FIRST);
    let lane = select(local % LANES, local / WIDTH, ROWS_FIRST);
    // Threads without a row do the work of the last one, and store nothing.
    let exists = group_number / PARTS * WIDTH + row_here <= ROWS - 1u;
    let row = min(group_number / PARTS * WIDTH + row_here, ROWS - 1u);
    let begin = 0u;
    let end = COLUMNS;
    let column_0 = lane + 0u * LANES;
    let element_0 = row * 1000u + column_0;
    let column_1 = lane + 1u * LANES;
    let element_1 = row * 1000u + column_1;
    let column_2 = lane + 2u * LANES;
    let element_2 = row * 1000u + column_2;
    let within_3 = lane + 3u * LANES < COLUMNS;
    let column_3 = min(lane + 3u * LANES, COLUMNS - 1u);
    let element_3 = row * 1000u + column_3;
    let v1 = b0[element_0];
    let v2 = b0[element_1];
    let v3 = b0[element_2];
    let v4 = b0[element_3];
    let v5 = (max_f32((max_f32(v1, v2)), (max_f32(v3, select(from_bits(0xff800000u), v4, within_3)))));
    shared_0[lane * WIDTH + row_here] = v5;
    workgroupBarrier();
    if (lane < JOINERS) {
        join_some_0(lane, row_here);
    }
    workgroupBarrier();
    let v6 = joined_0(row_here);
    let v7 = v1 - v6;
    let v8 = exp_f32(v7);
    let v9 = v2 - v6;
    let v10 = exp_f32(v9);
    let v11 = v3 - v6;
    let v12 = exp_f32(v11);
    let v13 = v4 - v6;
    let v14 = exp_f32(v13);
    let v15 = ((v8 + v10) + (v12 + select((0e0f), v14, within_3)));
    shared_1[lane * WIDTH + row_here] = v15;
    workgroupBarrier();
    if (lane < JOINERS) {
        join_some_1(lane, row_here);
    }
    workgroupBarrier();
    let v16 = joined_1(row_here);
    if (exists) {
        let v17 = v8 / v16;
        b1[element_0] = v17;
    }
    if (exists) {
        let v18 = v10 / v16;
        b1[element_1] = v18;
    }
    if (exists) {
        let v19 = v12 / v16;
        b1[element_2] = v19;
    }
    if (exists && within_3) {
        let v20 = v14 / v16;
        b1[element_3] = v20;
    }
}
// Scalar functions. WGSL leaves NaN, infinities and the accuracy of most built-in functions to the driver; these
// say what happens. A kernel gets the functions that it uses, and those that they use.
// Not a constant, so that no compiler evaluates what comes out of these bits.
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
fn max_f32(a: f32, b: f32) -> f32 {
    let larger = select(a, b, a < b);
    return select(larger, b, is_nan(b));
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
