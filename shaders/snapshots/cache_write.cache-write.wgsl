var<storage, read> b0: array<f32>;
var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b1: array<u32>;
var<storage, read_write> b2: array<f32>;
// Writes new rows into a key-value cache [SEQUENCES, CAPACITY, WIDTH] in place, from the row at the position of each
// sequence on. One thread per element of the new rows, or per two elements if the cache is f16. A position past the end
// of the cache is reported as a fault, and nothing is written.
//
// Twin in the oracle: core/src/ops/cache_write.rs.
const COUNT: u32 = 1u;
const ROWS: u32 = 1u;
const CAPACITY: u32 = 1u;
const WIDTH: u32 = 1u;
const POSITIONS: u32 = 1u;
const THREADS: u32 = 256u;
fn load_position(sequence: u32) -> u32 {
    return b1[sequence];
}
// Element of the new rows, or the inserted computation, such as a rotation by the position.
fn new_element(i: u32) -> f32 {
    let v1 = b0[0u];
    return v1;
}
fn store(at: u32, value: f32) {
    b2[at] = value;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let thread = group_number * THREADS + local;
    if (thread >= COUNT) {
        return;
    }
    var i = thread;
    let sequence = i / (ROWS * WIDTH);
    let given = load_position(sequence);
    let position = checked_index(given, POSITIONS);
    if (given != position) {
        return;
    }
    let at = (sequence * CAPACITY + position) * WIDTH + i % (ROWS * WIDTH);
    store(at, new_element(i));
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
