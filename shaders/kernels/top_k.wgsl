// The K largest elements along an axis with their indices, in descending order, NaN first: one thread per element
// counts the elements that precede it, which gives its rank. Equal elements keep their order.
//
// Twin in the oracle: core/src/ops/top_k.rs.

alias Value = f32;
const COUNT: u32 = 1024u; // number of elements
const LENGTH: u32 = 64u; // number of elements along the axis
const INNER: u32 = 1u; // distance between neighbours along the axis
const K: u32 = 8u;
const THREADS: u32 = 256u;

var<storage, read> x: array<Value>;
var<storage, read_write> values: array<Value>;
var<storage, read_write> locations: array<u32>;

fn load(at: u32) -> Value {
    return x[at];
}

fn store(at: u32, value: Value, location: u32) {
    values[at] = value;
    locations[at] = location;
}

// Returns true if a precedes b in the order.
fn comes_before(a: Value, b: Value) -> bool {
    return a > b;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let outer = i / (LENGTH * INNER);
    let location = i / INNER % LENGTH;
    let start = outer * (LENGTH * INNER) + i % INNER;
    let own = load(i);
    var rank = 0u;
    for (var q = 0u; q < LENGTH; q += 1u) {
        let other = load(start + q * INNER);
        if (comes_before(other, own) || q < location && !comes_before(own, other)) {
            rank += 1u;
        }
    }
    if (rank < K) {
        store((outer * K + rank) * INNER + i % INNER, own, location);
    }
}
