var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<f32>;
// Scatter of few updates: a thread for each element of the result looks at all indices and takes the updates of its row, in
// their order, so that sums are the same at every run. O(elements * updates) reads.
//
// Twin in the oracle: core/src/ops/scatter.rs.
alias Value = f32;
// Elements of the result, and numbers of indices.
const COUNT: u32 = 150u;
const INDICES: u32 = 32u;
// Updates along the axis, rows of the result along it, and elements of a row.
const UPDATES: u32 = 32u;
const ROWS: u32 = 50u;
const INNER: u32 = 3u;
// Whether every element of the updates has an index of its own; else one holds for the elements of a row.
const EACH: bool = false;
const THREADS: u32 = 256u;
fn load_index(number: u32) -> u32 {
    return b1[number];
}
fn load_update(number: u32) -> Value {
    return b2[number];
}
// What an element is before the first update.
fn load_base(i: u32) -> Value {
    return f32();
}
// What an update makes of an element: a sum, or the update.
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
    // Together the threads look at every index, also where there is no result.
    for (var number = i; number < INDICES; number += COUNT) {
        let found = checked_index(load_index(number), ROWS);
    }
    let outer = i / (ROWS * INNER);
    let row = i / INNER % ROWS;
    let column = i % INNER;
    var value = load_base(i);
    for (var k = 0u; k < UPDATES; k += 1u) {
        let number = (outer * UPDATES + k) * INNER + column;
        if (load_index(select(k, number, EACH)) == row) {
            value = join(value, load_update(number));
        }
    }
    store(i, value);
}
// An index that is below `rows`. One that is not is reported, and 0 stands in for it. Of several the largest is kept, so
// that the report depends on no order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
