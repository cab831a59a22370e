var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<f32>;
var<storage, read_write> b2: array<f32>;
// Writes new rows into the blocks of a paged key-value cache [SLOTS, WIDTH] in place, each row to its given slot. One
// workgroup per new row checks first if a later row has the same slot: only the last of these rows is written. A row
// with the slot SLOTS is not written; larger slots are reported as faults.
//
// Twin in the oracle: core/src/ops/paged_cache_write.rs.
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
// 1 if a later row has the same slot.
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
