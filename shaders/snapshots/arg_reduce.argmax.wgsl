var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<u32>;
// Index of the first element of each row that precedes all others in the order, such as the largest. Each of the LANES
// threads of a row compares every LANES-th element; then shared memory halves the candidates in each step. A row may be
// split into several workgroups (PARTS), whose results arg_reduce_join.wgsl joins.
//
// Twin in the oracle: core/src/ops/arg_reduce.rs.
alias Value = f32;
const ROWS: u32 = 1u;
const LENGTH: u32 = 9u;
const INNER: u32 = 1u;
// Rows of a workgroup, and the threads of each (a power of two). Neighbouring threads have neighbouring rows where ROWS_FIRST.
const WIDTH: u32 = 16u;
const LANES: u32 = 16u;
const ROWS_FIRST: bool = false;
const PARTS: u32 = 1u;
const THREADS: u32 = 256u;
var<workgroup> all_most: array<Value, THREADS>;
var<workgroup> all_best: array<u32, THREADS>;
fn load(at: u32) -> Value {
    return b0[at];
}
fn store(row: u32, part: u32, best: u32) {
    b1[row] = best;
}
// Returns true if a precedes b in the order.
fn comes_before(a: Value, b: Value) -> bool {
    return a > b && !is_nan(b) || is_nan(a) && !is_nan(b);
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row_here = select(local / LANES, local % WIDTH, ROWS_FIRST);
    let lane = select(local % LANES, local / WIDTH, ROWS_FIRST);
    // Threads without a row compute the last row, and store nothing.
    let exists = group_number / PARTS * WIDTH + row_here <= ROWS - 1u;
    let row = min(group_number / PARTS * WIDTH + row_here, ROWS - 1u);
    let part = group_number % PARTS;
    let first = part * LANES + lane;
    let start = row / INNER * (LENGTH * INNER) + row % INNER;
    let slot = lane * WIDTH + row_here;
    var best = min(first, LENGTH - 1u);
    var most = load(start + best * INNER);
    for (var k = first + LANES * PARTS; k < LENGTH; k += LANES * PARTS) {
        let value = load(start + k * INNER);
        if (comes_before(value, most)) {
            best = k;
            most = value;
        }
    }
    all_most[slot] = most;
    all_best[slot] = best;
    workgroupBarrier();
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        if (lane < step) {
            let value = all_most[slot + step * WIDTH];
            let at = all_best[slot + step * WIDTH];
            if (comes_before(value, most) || at < best && !comes_before(most, value)) {
                best = at;
                most = value;
                all_most[slot] = most;
                all_best[slot] = best;
            }
        }
        workgroupBarrier();
    }
    if (exists && lane == 0u) {
        store(row, part, best);
    }
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
