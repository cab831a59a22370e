var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<f32>;
var<storage, read_write> b2: array<f32>;
// Writes new rows into the blocks of a paged key-value cache in place: [SLOTS, WIDTH], each row to the slot that is given for it.
// A thread for each element of the new rows. The slot SLOTS writes nothing, one above is reported; of rows with one slot the last
// is written.
//
// Twin in the oracle: core/src/ops/paged_cache_write.rs.
const COUNT: u32 = 1u;
const ROWS: u32 = 1u;
const WIDTH: u32 = 1u;
const SLOTS: u32 = 1u;
const THREADS: u32 = 256u;
fn load_slot(row: u32) -> u32 {
    return b0[row];
}
fn load_new(i: u32) -> f32 {
    return b1[i];
}
fn store(at: u32, value: f32) {
    b2[at] = value;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let row = i / WIDTH;
    let given = load_slot(row);
    let slot = checked_index(given, SLOTS + 1u);
    if (given != slot || slot >= SLOTS) {
        return;
    }
    for (var later = row + 1u; later < ROWS; later += 1u) {
        if (load_slot(later) == given) {
            return;
        }
    }
    store(slot * WIDTH + i % WIDTH, load_new(i));
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
