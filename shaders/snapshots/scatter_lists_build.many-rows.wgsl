var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read_write> first: array<atomic<u32>>;
var<storage, read_write> next: array<u32>;
// Scatter of many updates, second of three launches: one thread per update inserts it at the head of the list of its
// row. The order within a list varies between runs; the third launch visits the list in the order of indices.
const COUNT: u32 = 33u;
const ROWS: u32 = 50u;
const THREADS: u32 = 256u;
fn load_index(i: u32) -> u32 {
    return b0[i];
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let index = load_index(i);
    let row = checked_index(index, ROWS);
    // Out-of-range indices are reported, and are not in any list.
    if (row == index) {
        next[i] = atomicExchange(&first[row], i);
    }
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
