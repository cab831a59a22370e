// Scatter of many updates, first of three launches: empties the list of updates of each row.

const COUNT: u32 = 32u; // number of rows
const THREADS: u32 = 256u;

// Index of the first update in the list of each row; END for an empty list.
var<storage, read_write> first: array<u32>;
const END: u32 = 0xffffffffu;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    first[i] = END;
}
