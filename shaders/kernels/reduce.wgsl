// Reductions over some axes, with fused elementwise programs before them, and programs per row or per element after
// them: sums, norms, softmaxes, losses.
//
// ROWS is the number of kept elements, COLUMNS the number of reduced ones. A row has LANES threads of a workgroup. Each
// reduces every LANES-th column in registers; then the lanes are joined in shared memory, pairwise. A reduction that
// depends on others has a later level (in a softmax the sum comes after the maximum). The kernel iterates over the
// columns once per level, and once more if results have an element per column.
//
// Loops have UNROLL columns of a thread in flight. If a thread has few columns (WRITTEN) there is no loop: columns are
// loaded once and stay in registers for later levels. If there are few long rows, they are split into PARTS (split
// reduction), which reduce_join.wgsl combines. PROLOGUE: every workgroup of a matmul kernel computes the single row for
// itself.
//
// The programs for elements and rows are inserted; without insertion the kernel adds up the elements of each row.
//
// Twin in the oracle: core/src/ops/reduce.rs.

const ROWS: u32 = 64u;
const COLUMNS: u32 = 4096u;
const REDUCTIONS: u32 = 1u;
const LEVELS: u32 = 1u;
// BY_ROW, BY_ELEMENT: some results have one element per row, or one per reduced element.
const BY_ROW: bool = true;
const BY_ELEMENT: bool = false;
const PROLOGUE: bool = false;
// Schedule. With ROWS_FIRST adjacent threads have adjacent rows, because these are then adjacent in memory.
const LANES: u32 = 256u; // a power of two
const ROWS_FIRST: bool = false;
const WRITTEN: u32 = 0u;
const UNROLL: u32 = 4u;
const PARTS: u32 = 1u;
const PART_LENGTH: u32 = COLUMNS; // number of columns of a part, except for the last one
const THREADS: u32 = 256u;

const WIDTH: u32 = THREADS / LANES; // number of rows of a workgroup
const JOIN_LANES: u32 = 16u; // number of lanes that join the values of all lanes
const JOINED: u32 = min(LANES, JOIN_LANES);
const r: u32 = 0u; const l: u32 = 0u; const u: u32 = 0u; const c: u32 = 0u; // indices of repeats

var<storage, read> x: array<f32>;
var<storage, read_write> out: array<f32>;

// @repeat r < REDUCTIONS
alias Value_r = f32;
var<workgroup> shared_r: array<Value_r, THREADS>;

fn combine_r(a: Value_r, b: Value_r) -> Value_r {
    return a + b;
}

// Joins the values of every JOIN_LANES-th lane.
fn join_some_r(lane: u32, row_here: u32) {
    var joined = shared_r[lane * WIDTH + row_here];
    for (var other = lane + JOIN_LANES; other < LANES; other += JOIN_LANES) {
        joined = combine_r(joined, shared_r[other * WIDTH + row_here]);
    }
    shared_r[lane * WIDTH + row_here] = joined;
}

// Joins the values of the first JOINED lanes, pairwise.
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
    // Threads without a row compute the last row, and store nothing.
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
    // @if LANES > JOIN_LANES
    if (lane < JOIN_LANES) {
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
        for (var column = begin + lane; column < end; column += LANES) {
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
