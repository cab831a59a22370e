var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<f32>;
// Scatter of few updates: one thread per element of the result scans all indices and applies the updates of its row in
// order, so that sums are the same in every run. O(elements * updates) reads.
//
// Twin in the oracle: core/src/ops/scatter.rs.
alias Value = f32;
// Elements of the result, and numbers of indices.
const COUNT: u32 = 3u;
const INDICES: u32 = 7u;
// Updates along the axis, rows of the result along it, and elements of a row.
const UPDATES: u32 = 7u;
const ROWS: u32 = 3u;
const INNER: u32 = 1u;
// True if every element of the updates has its own index; otherwise all elements of a row share one.
const PER_ROW: bool = true;
const THREADS: u32 = 256u;
fn load_index(number: u32) -> u32 {
    return b1[number];
}
fn load_update(number: u32) -> Value {
    return b2[number];
}
// Value of an element before the first update.
fn load_base(i: u32) -> Value {
    return f32();
}
// Value of an element after an update: the sum, or the update.
fn join(value: Value, update: Value) -> Value {
    return value + update;
}
fn store(i: u32, value: Value) {
    b0[i] = value;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    // The threads together check every index, even without a result.
    for (var number = i; number < INDICES; number += COUNT) {
        let found = checked_index(load_index(number), ROWS);
    }
    let outer = i / (ROWS * INNER);
    let row = i / INNER % ROWS;
    let column = i % INNER;
    var value = load_base(i);
    for (var k = 0u; k < UPDATES; k += 1u) {
        let number = (outer * UPDATES + k) * INNER + column;
        if (load_index(select(k, number, PER_ROW)) == row) {
            value = join(value, load_update(number));
        }
    }
    store(i, value);
}
// Returns the index if it is below `rows`. Otherwise reports it and returns 0. The largest invalid index is kept, so
// that the report does not depend on the order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
