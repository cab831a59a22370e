var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read_write> b2: array<f32>;
var<storage, read_write> b3: array<f32>;
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
const ROWS: u32 = 128u;
const COLUMNS: u32 = 576u;
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
    return a + b;
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
    return ((((shared_0[0u * WIDTH + row_here] + shared_0[1u * WIDTH + row_here]) + (shared_0[2u * WIDTH + row_here] + shared_0[3u * WIDTH + row_here])) + ((shared_0[4u * WIDTH + row_here] + shared_0[5u * WIDTH + row_here]) + (shared_0[6u * WIDTH + row_here] + shared_0[7u * WIDTH + row_here]))) + (((shared_0[8u * WIDTH + row_here] + shared_0[9u * WIDTH + row_here]) + (shared_0[10u * WIDTH + row_here] + shared_0[11u * WIDTH + row_here])) + ((shared_0[12u * WIDTH + row_here] + shared_0[13u * WIDTH + row_here]) + (shared_0[14u * WIDTH + row_here] + shared_0[15u * WIDTH + row_here]))));
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
    let element_0 = row * 576u + column_0;
    let column_1 = lane + 1u * LANES;
    let element_1 = row * 576u + column_1;
    let within_2 = lane + 2u * LANES < COLUMNS;
    let column_2 = min(lane + 2u * LANES, COLUMNS - 1u);
    let element_2 = row * 576u + column_2;
    let v1 = b0[element_0];
    let v2 = v1 * v1;
    let v3 = b0[element_1];
    let v4 = v3 * v3;
    let v5 = b0[element_2];
    let v6 = v5 * v5;
    let v7 = ((v2 + v4) + select((0e0f), v6, within_2));
    shared_0[lane * WIDTH + row_here] = v7;
    workgroupBarrier();
    if (lane < JOINERS) {
        join_some_0(lane, row_here);
    }
    workgroupBarrier();
    let v8 = joined_0(row_here);
    let v9 = v8 * (1.7361111e-3f);
    let v10 = v9 + (1e-5f);
    let v11 = rsqrt_f32(v10);
    if (exists) {
        let v12 = v1 * v11;
        let v13 = b1[column_0];
        let v14 = v12 * v13;
        b2[element_0] = v14;
    }
    if (exists) {
        let v15 = v3 * v11;
        let v16 = b1[column_1];
        let v17 = v15 * v16;
        b2[element_1] = v17;
    }
    if (exists && within_2) {
        let v18 = v5 * v11;
        let v19 = b1[column_2];
        let v20 = v18 * v19;
        b2[element_2] = v20;
    }
    if (exists && lane == 0u) {
        b3[row] = v11;
    }
}
fn is_inf(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}
fn sqrt_f32(x: f32) -> f32 {
    // Drivers may compute x / sqrt(x).
    return select(sqrt(x), x, x == 0.0 || is_inf(x) && x > 0.0);
}
fn rsqrt_f32(x: f32) -> f32 {
    return 1.0 / sqrt_f32(x);
}
