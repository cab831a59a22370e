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
const COLUMNS: u32 = 4096u;
const REDUCTIONS: u32 = 1u;
const LEVELS: u32 = 1u;
// Whether there are results with an element for each row, and for each element.
const BY_ROW: bool = true;
const BY_ELEMENT: bool = false;
const PROLOGUE: bool = false;
// The schedule. Neighbouring threads have neighbouring rows where ROWS_FIRST, as those are neighbours in memory then.
const LANES: u32 = 256u; // a power of two
const ROWS_FIRST: bool = false;
const WRITTEN: u32 = 0u;
const UNROLL: u32 = 4u;
const PARTS: u32 = 1u;
const PART_LENGTH: u32 = COLUMNS; // columns of a part, but for the last
const THREADS: u32 = 256u;

const WIDTH: u32 = THREADS / LANES; // rows of a workgroup
const JOINERS: u32 = 16u; // lanes that join what all of them have
const JOINED: u32 = min(LANES, JOINERS);
const r: u32 = 0u; const l: u32 = 0u; const u: u32 = 0u; const c: u32 = 0u; // indices of repeats

var<storage, read> x: array<f32>;
var<storage, read_write> out: array<f32>;

// @repeat r < REDUCTIONS
alias Value_r = f32;
var<workgroup> shared_r: array<Value_r, THREADS>;

fn combine_r(a: Value_r, b: Value_r) -> Value_r {
    return a + b;
}

// Joins what every JOINERS-th lane has.
fn join_some_r(lane: u32, row_here: u32) {
    var joined = shared_r[lane * WIDTH + row_here];
    for (var other = lane + JOINERS; other < LANES; other += JOINERS) {
        joined = combine_r(joined, shared_r[other * WIDTH + row_here]);
    }
    shared_r[lane * WIDTH + row_here] = joined;
}

// What the first JOINED lanes have, in pairs of pairs.
fn joined_r(row_here: u32) -> Value_r {
    var joined = shared_r[row_here];
    for (var lane = 1u; lane < JOINED; lane += 1u) {
        joined = combine_r(joined, shared_r[lane * WIDTH + row_here]);
    }
    return joined;
}
// @end

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    // @if LANES == 1
    //# let row_here = local;
    //# let lane = 0u;
    // @else
    let row_here = select(local / LANES, local % WIDTH, ROWS_FIRST);
    let lane = select(local % LANES, local / WIDTH, ROWS_FIRST);
    // @end
    // Threads without a row do the work of the last one, and store nothing.
    // @if PROLOGUE
    //# let exists = group_number == 0u;
    //# let row = 0u;
    // @else
    let exists = group_number / PARTS * WIDTH + row_here <= ROWS - 1u;
    let row = min(group_number / PARTS * WIDTH + row_here, ROWS - 1u);
    // @end
    // @if PARTS > 1
    let part = group_number % PARTS;
    let begin = part * PART_LENGTH;
    let end = min(begin + PART_LENGTH, COLUMNS);
    // @else
    //# let begin = 0u;
    //# let end = COLUMNS;
    // @end
    // @repeat c < WRITTEN
    // @if (c + 1) * LANES > COLUMNS
    let within_c = lane + c * LANES < COLUMNS;
    let column_c = min(lane + c * LANES, COLUMNS - 1u);
    // @else
    //# let column_c = lane + c * LANES;
    // @end
    // @replace element_c
    let element_c = row * COLUMNS + column_c;
    // @end
    // @end

    // @repeat l < LEVELS
    // @if WRITTEN > 0
    // @insert reduce_written_l
    // @else
    // @replace start_l
    var sum_l = 0.0;
    // @end
    var next_l = begin + lane;
    // @if UNROLL > 1
    for (; next_l + (UNROLL - 1u) * LANES < end; next_l += UNROLL * LANES) {
        // @repeat u < UNROLL
        {
            let column = next_l + u * LANES;
            // @replace element
            let i = row * COLUMNS + column;
            // @end
            // @replace reduce_l_u
            sum_l += x[i];
            // @end
        }
        // @end
    }
    // @end
    for (; next_l < end; next_l += LANES) {
        let column = next_l;
        // @replace element
        let i = row * COLUMNS + column;
        // @end
        // @replace reduce_l_0
        sum_l += x[i];
        // @end
    }
    // @insert join_unrolled_l
    // @end
    // @if LANES > 1
    // @replace share_l
    shared_r[lane * WIDTH + row_here] = sum_l;
    // @end
    workgroupBarrier();
    // @if LANES > JOINERS
    if (lane < JOINERS) {
        // @replace join_l
        join_some_r(lane, row_here);
        // @end
    }
    workgroupBarrier();
    // @end
    // @end
    // @replace results_l
    let result_l = joined_r(row_here);
    // @end
    // @end

    // @if BY_ELEMENT && WRITTEN > 0
    // @repeat c < WRITTEN
    // @if (c + 1) * LANES > COLUMNS
    //# if (exists && within_c) {
    // @else
    //# if (exists) {
    // @end
    // @insert store_c
    //# }
    // @end
    // @end
    // @if BY_ELEMENT && WRITTEN == 0
    if (exists) {
        for (var column = lane; column < COLUMNS; column += LANES) {
            // @replace element
            let i = row * COLUMNS + column;
            // @end
            // @insert store_element
        }
    }
    // @end
    // @if BY_ROW
    if (exists && lane == 0u) {
        // @replace store_row
        out[row] = result_l;
        // @end
    }
    // @end
}
