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
const COLUMNS: u32 = 2097152u;
// The schedule. Neighbouring threads have neighbouring rows where ROWS_FIRST, as those are neighbours in memory then.
const LANES: u32 = 256u;
const ROWS_FIRST: bool = false;
const UNROLL: u32 = 4u;
const PARTS: u32 = 256u;
const PART_LENGTH: u32 = 8192u;
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
    let part = group_number % PARTS;
    let begin = part * PART_LENGTH;
    let end = min(begin + PART_LENGTH, COLUMNS);
    var v1 = (0e0f);
    var v2 = (0e0f);
    var v3 = (0e0f);
    var v4 = (0e0f);
    var next_0 = begin + lane;
    for (; next_0 + (UNROLL - 1u) * LANES < end; next_0 += UNROLL * LANES) {
        {
            let column = next_0 + 0u * LANES;
            let i = column;
            let v5 = b0[i];
            v1 = v1 + v5;
        }
        {
            let column = next_0 + 1u * LANES;
            let i = column;
            let v6 = b0[i];
            v2 = v2 + v6;
        }
        {
            let column = next_0 + 2u * LANES;
            let i = column;
            let v7 = b0[i];
            v3 = v3 + v7;
        }
        {
            let column = next_0 + 3u * LANES;
            let i = column;
            let v8 = b0[i];
            v4 = v4 + v8;
        }
    }
    for (; next_0 < end; next_0 += LANES) {
        let column = next_0;
        let i = column;
        let v5 = b0[i];
        v1 = v1 + v5;
    }
    v1 = v1 + v2;
    v1 = v1 + v3;
    v1 = v1 + v4;
    shared_0[lane * WIDTH + row_here] = v1;
    workgroupBarrier();
    if (lane < JOINERS) {
        join_some_0(lane, row_here);
    }
    workgroupBarrier();
    let v9 = joined_0(row_here);
    if (exists && lane == 0u) {
        b1[row * PARTS + part] = v9;
    }
}
