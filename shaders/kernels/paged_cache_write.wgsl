// Writes new rows into the blocks of a paged key-value cache in place: [SLOTS, WIDTH], each row to the slot that is given for it.
// A thread for each element of the new rows. The slot SLOTS writes nothing, one above is reported; of rows with one slot the last
// is written.
//
// Twin in the oracle: core/src/ops/paged_cache_write.rs.

const COUNT: u32 = 1536u; // elements of the new rows
const ROWS: u32 = 8u;
const WIDTH: u32 = 192u;
const SLOTS: u32 = 1024u; // rows of all blocks
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
