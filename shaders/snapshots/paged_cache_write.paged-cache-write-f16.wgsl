var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read> b1: array<f32>;
var<storage, read_write> b2: array<u32>;
// Writes new rows into the blocks of a paged key-value cache in place: [SLOTS, WIDTH], each row to the slot that is given for it.
// A workgroup for each new row, whose threads look for a later row with its slot: of rows with one slot the last is written. The
// slot SLOTS writes nothing, one above is reported.
//
// Twin in the oracle: core/src/ops/paged_cache_write.rs.
const ROWS: u32 = 1u;
const WIDTH: u32 = 6u;
const SLOTS: u32 = 12u;
const THREADS: u32 = 256u;
fn load_slot(row: u32) -> u32 {
    return b0[row];
}
fn load_new(i: u32) -> f32 {
    return b1[i];
}
// Two neighbours, of which the first has an even number.
fn store_pair(at: u32, first: f32, second: f32) {
    b2[at >> 1u] = f32_to_f16(first) | (f32_to_f16(second) << 16u);
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
    for (var column = 2u * local; column < WIDTH; column += 2u * THREADS) {
        let start = row * WIDTH + column;
        store_pair(slot * WIDTH + column, load_new(start), load_new(start + 1u));
    }
}
fn f32_to_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (magnitude < 0x38800000u) {
        // A multiple of 2^-24; the sum rounds to it.
        let shifted = bitcast<f32>(magnitude) + 0.5;
        return sign | (bitcast<u32>(shifted) - 0x3f000000u);
    }
    let odd = (magnitude >> 13u) & 1u;
    return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13u);
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
