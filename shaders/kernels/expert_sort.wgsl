// Stable sort of rows by their experts. One thread per expert reads the expert indices of all rows twice: first to find
// the position of its first row, then to write its rows. Rows with an index out of range are reported and left out.
//
// Twin in the oracle: none; core/src/ops/expert_matmul.rs iterates over the rows without sorting them.

const COUNT: u32 = 9u; // number of experts plus one: the last entry is the end of the last expert's rows
const ROWS: u32 = 64u;
const THREADS: u32 = 256u;

var<storage, read> indices: array<u32>;
// Position of each expert's first row in `order`, and the rows in the order of experts.
var<storage, read_write> starts: array<u32>;
var<storage, read_write> order: array<u32>;

fn load_index(row: u32) -> u32 {
    return indices[row];
}

// lib/fault.wgsl
fn checked_index(index: u32, rows: u32) -> u32 {
    return min(index, rows - 1u);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let expert = group_number * THREADS + local;
    if (expert >= COUNT) {
        return;
    }
    var place = 0u;
    for (var row = 0u; row < ROWS; row += 1u) {
        let index = load_index(row);
        place += select(0u, 1u, index < expert);
        if (expert == COUNT - 1u) {
            let found = checked_index(index, COUNT - 1u);
        }
    }
    starts[expert] = place;
    // Indices from COUNT - 1 on are out of range; their rows are left out.
    if (expert < COUNT - 1u) {
        for (var row = 0u; row < ROWS; row += 1u) {
            if (load_index(row) == expert) {
                order[place] = row;
                place += 1u;
            }
        }
    }
}
