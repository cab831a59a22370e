var<storage, read_write> first: array<u32>;
// Scatter of many updates, first of three launches: empties the list of updates of each row.
const COUNT: u32 = 50u;
const THREADS: u32 = 256u;
const END: u32 = 4294967295u;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    first[i] = END;
}
