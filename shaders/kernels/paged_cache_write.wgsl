// Writes new rows into the blocks of a paged key-value cache [SLOTS, WIDTH] in place, each row to its given slot. One
// workgroup per new row checks first if a later row has the same slot: only the last of these rows is written. A row
// with the slot SLOTS is not written; larger slots are reported as faults.
//
// Twin in the oracle: core/src/ops/paged_cache_write.rs.

const ROWS: u32 = 8u;
const WIDTH: u32 = 192u;
const SLOTS: u32 = 1024u; // number of rows of all blocks
const PAIRS: bool = false; // true if the cache is in half precision, so that each word contains two neighbours of a row
const THREADS: u32 = 256u;

var<storage, read> rows: array<f32>;
var<storage, read> slots: array<u32>;
var<storage, read_write> cache: array<f32>;

fn load_slot(row: u32) -> u32 {
    return slots[row];
}

fn load_new(i: u32) -> f32 {
    return rows[i];
}

fn store(at: u32, value: f32) {
    cache[at] = value;
}

// Two adjacent elements, the first with an even index.
fn store_pair(at: u32, first: f32, second: f32) {
    cache[at] = first;
    cache[at + 1u] = second;
}

// lib/fault.wgsl
fn checked_index(i: u32, rows: u32) -> u32 {
    return min(i, rows - 1u);
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
    // @if PAIRS
    for (var column = 2u * local; column < WIDTH; column += 2u * THREADS) {
        let start = row * WIDTH + column;
        store_pair(slot * WIDTH + column, load_new(start), load_new(start + 1u));
    }
    // @else
    for (var column = local; column < WIDTH; column += THREADS) {
        store(slot * WIDTH + column, load_new(row * WIDTH + column));
    }
    // @end
}
