// Scatter of few updates: one thread per element of the result scans all indices and applies the updates of its row in
// order, so that sums are the same in every run. O(elements * updates) reads.
//
// Twin in the oracle: core/src/ops/scatter.rs.

alias Value = f32;
// Elements of the result, and numbers of indices.
const COUNT: u32 = 1024u;
const INDICES: u32 = 16u;
// Updates along the axis, rows of the result along it, and elements of a row.
const UPDATES: u32 = 16u;
const ROWS: u32 = 32u;
const INNER: u32 = 32u;
// True if every element of the updates has its own index; otherwise all elements of a row share one.
const PER_ROW: bool = false;
// True if the result has elements.
const STORES: bool = true;
const THREADS: u32 = 256u;

var<storage, read> indices: array<u32>;
var<storage, read> updates: array<Value>;
var<storage, read_write> out: array<Value>;

fn load_index(number: u32) -> u32 {
    return indices[number];
}

fn load_update(number: u32) -> Value {
    return updates[number];
}

// Value of an element before the first update.
fn load_base(i: u32) -> Value {
    return Value();
}

// Value of an element after an update: the sum, or the update.
fn join(value: Value, update: Value) -> Value {
    return value + update;
}

fn store(i: u32, value: Value) {
    out[i] = value;
}

// lib/fault.wgsl
fn checked_index(i: u32, rows: u32) -> u32 {
    return min(i, rows - 1u);
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
    // @if STORES
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
    // @end
}
