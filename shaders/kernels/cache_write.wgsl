// Writes new rows into a key-value cache [SEQUENCES, CAPACITY, WIDTH] in place, from the row at the position of each
// sequence on. One thread per element of the new rows, or per two elements if the cache is f16. A position past the end
// of the cache is reported as a fault, and nothing is written.
//
// Twin in the oracle: core/src/ops/cache_write.rs.

const COUNT: u32 = 576u; // number of threads: elements of the new rows of all sequences, or pairs of elements
const PAIRS: bool = false; // true if the cache is in half precision, so that each word contains two neighbours of a row
const ROWS: u32 = 1u; // number of new rows of a sequence
const CAPACITY: u32 = 512u;
const WIDTH: u32 = 576u;
const POSITIONS: u32 = CAPACITY + 1u - ROWS;
const THREADS: u32 = 256u;

var<storage, read> rows: array<f32>;
var<storage, read> positions: array<u32>;
var<storage, read_write> cache: array<f32>;

fn load_position(sequence: u32) -> u32 {
    return positions[sequence];
}

// Element of the new rows, or the inserted computation, such as a rotation by the position.
fn new_element(i: u32) -> f32 {
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

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let thread = group_number * THREADS + local;
    if (thread >= COUNT) {
        return;
    }
    var i = thread;
    // @if PAIRS
    i = 2u * thread;
    // @end
    let sequence = i / (ROWS * WIDTH);
    let given = load_position(sequence);
    let position = checked_index(given, POSITIONS);
    if (given != position) {
        return;
    }
    let at = (sequence * CAPACITY + position) * WIDTH + i % (ROWS * WIDTH);
    // @if PAIRS
    store_pair(at, new_element(i), new_element(i + 1u));
    // @else
    store(at, new_element(i));
    // @end
}
