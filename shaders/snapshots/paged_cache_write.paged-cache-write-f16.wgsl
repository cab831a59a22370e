var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<f32>;
var<storage, read_write> b2: array<f32>;
// Writes new rows into the blocks of a paged key-value cache in place: [SLOTS, WIDTH], each row to the slot that is given for it.
// A workgroup for each new row, whose threads look for a later row with its slot: of rows with one slot the last is written. The
// slot SLOTS writes nothing, one above is reported.
//
// Twin in the oracle: core/src/ops/paged_cache_write.rs.
const ROWS: u32 = 16u;
const WIDTH: u32 = 64u;
const SLOTS: u32 = 56u;
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
// Whether a later row has the slot.
var<workgroup> is_replaced: atomic<u32>;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row = group_number;
    let given = load_slot(row);
    let slot = checked_index(given, SLOTS + 1u);
    if (local == 0u) {
        atomicStore(&is_replaced, 0u);
    }
    workgroupBarrier();
    for (var later = row + 1u + local; later < ROWS; later += THREADS) {
        if (load_slot(later) == given) {
            atomicStore(&is_replaced, 1u);
        }
    }
    workgroupBarrier();
    if (given != slot || slot >= SLOTS || atomicLoad(&is_replaced) != 0u) {
        return;
    }
    for (var column = local; column < WIDTH; column += THREADS) {
        store(slot * WIDTH + column, load_new(row * WIDTH + column));
    }
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
