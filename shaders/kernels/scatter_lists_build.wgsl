// Scatter of many updates, second of three launches: one thread per update inserts it at the head of the list of its
// row. The order within a list varies between runs; the third launch visits the list in the order of indices.

const COUNT: u32 = 1024u; // number of updates
const ROWS: u32 = 32u;
const THREADS: u32 = 256u;

var<storage, read> indices: array<u32>;
// Index of the first update in the list of each row, and of the next update after each update.
var<storage, read_write> first: array<atomic<u32>>;
var<storage, read_write> next: array<u32>;

fn load_index(i: u32) -> u32 {
    return indices[i];
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
    let index = load_index(i);
    let row = checked_index(index, ROWS);
    // Out-of-range indices are reported, and are not in any list.
    if (row == index) {
        next[i] = atomicExchange(&first[row], i);
    }
}
