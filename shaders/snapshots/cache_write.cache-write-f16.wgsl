var<storage, read> b0: array<f32>;
var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b1: array<u32>;
var<storage, read_write> b2: array<u32>;
// Writes new rows of a key-value cache in place: [SEQUENCES, CAPACITY, WIDTH] from the row on that the position of each sequence
// names. A thread for each element of the new rows, or for two of a cache of half precision. A position beyond the cache is reported, and nothing is written.
//
// Twin in the oracle: core/src/ops/cache_write.rs.
const COUNT: u32 = 2u;
const ROWS: u32 = 1u;
const CAPACITY: u32 = 9u;
const WIDTH: u32 = 4u;
const POSITIONS: u32 = 9u;
const THREADS: u32 = 256u;
fn load_position(sequence: u32) -> u32 {
    return b1[sequence];
}
// An element of the new rows, or what it becomes before it is written, such as rotated by its position.
fn new_element(i: u32) -> f32 {
    let v1 = b0[i];
    return v1;
}
// Two neighbours, of which the first has an even number.
fn store_pair(at: u32, first: f32, second: f32) {
    b2[at >> 1u] = f32_to_f16(first) | (f32_to_f16(second) << 16u);
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let thread = group_number * THREADS + local;
    if (thread >= COUNT) {
        return;
    }
    var i = thread;
    i = 2u * thread;
    let sequence = i / (ROWS * WIDTH);
    let given = load_position(sequence);
    let position = checked_index(given, POSITIONS);
    if (given != position) {
        return;
    }
    let at = (sequence * CAPACITY + position) * WIDTH + i % (ROWS * WIDTH);
    store_pair(at, new_element(i), new_element(i + 1u));
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
