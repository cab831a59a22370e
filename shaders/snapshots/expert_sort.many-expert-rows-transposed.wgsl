var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<u32>;
var<storage, read_write> starts: array<u32>;
var<storage, read_write> order: array<u32>;
// The order of rows by their experts, in which rows of one expert stay in order: a thread for each expert looks at all indices
// twice, first to find where its rows begin, then to write them down. What is out of range is reported, and is in no list.
//
// Twin in the oracle: none; core/src/ops/expert_matmul.rs goes from row to row.
const COUNT: u32 = 7u;
const ROWS: u32 = 200u;
const THREADS: u32 = 256u;
fn load_index(row: u32) -> u32 {
    return b0[row];
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
    // Nothing has the number behind the last expert but what is out of range.
    if (expert < COUNT - 1u) {
        for (var row = 0u; row < ROWS; row += 1u) {
            if (load_index(row) == expert) {
                order[place] = row;
                place += 1u;
            }
        }
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
