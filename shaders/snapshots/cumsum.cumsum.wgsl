var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
// Cumulative sums along rows. In each round, every thread sums up THREAD_ELEMENTS adjacent elements. The LANES threads
// of a row compute the prefix sums of their totals in steps of 1, 2, 4 ... (Hillis and Steele, 1986). Each element is
// written by the thread that has read it, so the operand may be overwritten.
//
// Twin in the oracle: core/src/ops/cumsum.rs.
alias Value = f32;
const ROWS: u32 = 1u;
const LENGTH: u32 = 1u;
const INNER: u32 = 1u;
const REVERSE: bool = false;
const THREAD_ELEMENTS: u32 = 8u;
// Rows of a workgroup, and the threads of each (a power of two). Neighbouring threads have neighbouring rows where ROWS_FIRST.
const WIDTH: u32 = 256u;
const LANES: u32 = 1u;
const THREADS: u32 = 256u;
var<workgroup> sums: array<Value, THREADS>;
fn load(at: u32) -> Value {
    return b0[at];
}
fn store(at: u32, sum: Value) {
    b1[at] = sum;
}
// Returns the index of the k-th element to add.
fn location(start: u32, k: u32) -> u32 {
    if (REVERSE) {
        return start + (LENGTH - 1u - k) * INNER;
    }
    return start + k * INNER;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row_here = local;
    let lane = 0u;
    // Threads without a row compute the last row, and store nothing.
    let exists = group_number * WIDTH + row_here <= ROWS - 1u;
    let row = min(group_number * WIDTH + row_here, ROWS - 1u);
    let start = row / INNER * (LENGTH * INNER) + row % INNER;
    let slot = lane * WIDTH + row_here;
    var carry = Value();
    for (var first = 0u; first < LENGTH; first += LANES * THREAD_ELEMENTS) {
        var values: array<Value, THREAD_ELEMENTS>;
        var sum = Value();
        for (var j = 0u; j < THREAD_ELEMENTS; j += 1u) {
            let k = first + lane * THREAD_ELEMENTS + j;
            if (k < LENGTH) {
                values[j] = load(location(start, k));
                sum += values[j];
            }
        }
        sums[slot] = sum;
        workgroupBarrier();
        for (var step = 1u; step < LANES; step *= 2u) {
            var other = Value();
            if (lane >= step) {
                other = sums[slot - step * WIDTH];
            }
            workgroupBarrier();
            sums[slot] += other;
            workgroupBarrier();
        }
        sum = carry;
        if (lane > 0u) {
            sum += sums[slot - WIDTH];
        }
        carry += sums[(LANES - 1u) * WIDTH + row_here];
        if (exists) {
            for (var j = 0u; j < THREAD_ELEMENTS; j += 1u) {
                let k = first + lane * THREAD_ELEMENTS + j;
                if (k < LENGTH) {
                    sum += values[j];
                    store(location(start, k), sum);
                }
            }
        }
        workgroupBarrier();
    }
}
